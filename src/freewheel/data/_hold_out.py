"""Holding out some of the training samples, to choose settings by."""

from __future__ import annotations

import torch

from freewheel._errors import number
from freewheel.data._loader import Loader, generator_for


def hold_out(train: Loader, share: float, *, like: Loader) -> tuple[Loader, Loader]:
    """Return loaders of the rest and of a share of the samples, which are the same ones whatever the seed.

    Args:
        train: The loader of all samples.
        share: How many of them are held out, from 0 to 1.
        like: The loader of the test samples: the held-out ones are treated as they are.

    Example:
        >>> from freewheel.data._loader import TensorLoader
        >>> loader = TensorLoader(torch.zeros(10, 1), torch.arange(10), batch_size=4)
        >>> rest, held_out = hold_out(loader, 0.2, like=loader)
        >>> len(held_out.labels), set(rest.labels.tolist()) | set(held_out.labels.tolist()) == set(range(10))
        (2, True)
    """
    number("validation", share, above=0, hint="the share of the training samples to hold out")
    samples = train.samples
    count = round(samples * share)
    if not 0 < count < samples:
        raise ValueError(
            f"validation={share:g} holds out {count} of {samples} training samples: give a share that leaves some for "
            "each, such as 0.1"
        )
    order = torch.randperm(samples, generator=generator_for("validation", samples))
    rest, held_out = (part.sort().values for part in (order[count:], order[:count]))
    return train.subset(rest), train.subset(held_out, like=like)
