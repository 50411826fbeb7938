"""The loss of a batch and of its parts, for micro-batches and replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from freewheel._compare import far_apart
from freewheel._config import Loss
from freewheel._trees import map_tensors
from freewheel.check._copies import Network, Samples
from freewheel.check._plain import MismatchError, Plain
from freewheel.plan import Schedule
from freewheel.runtime import split_samples
from freewheel.stage import SeededDraws


def check_parts(
    network: Network | None, plain: Callable[[Network], Plain], samples: Samples, schedule: Schedule
) -> None:
    """Refuse a loss that is not a mean over samples where each part of a batch has a loss of its own.

    Args:
        network: A copy of the network.
        plain: How plain PyTorch runs it.
        samples: A few samples.
        schedule: The schedule, with its micro-batches and replicas.
    """
    parts = schedule.micro * schedule.replicas
    if network is None or parts == 1 or schedule.along or samples.size < parts:
        return
    try:
        both = replace(network, loss=_of_batch_and_parts(network.loss, samples.size, parts))
        whole, mean = plain(both).loss((0, 0), *samples.fresh())
    except Exception:  # it has no parts, or fails on them: training says how
        return
    if far_apart(mean, whole):
        raise MismatchError(
            f"loss of a batch is not the mean of the losses of its parts, from which {schedule.name} learns (micro="
            f"{schedule.micro}, replicas={schedule.replicas}): give reduction='mean' in place of 'sum'; with class "
            "weights, ignore_index or a comparison of samples train without such parts; if the mean over parts is "
            "intended, train with check=False"
        )


def _of_batch_and_parts(loss: Loss, size: int, parts: int) -> Loss:
    """Return a function that gives the loss of a batch, and the mean of the losses of its parts."""

    def both(out: Any, target: Any) -> Tensor:
        own = map_tensors(torch.clone, target)  # a loss may change it in place
        outs, targets = (split_samples(tree, size, parts, "batch") for tree in (out, own))
        with SeededDraws(0) as draws:
            losses = [loss(a, b) * share for (a, _, share), (b, _, _) in zip(outs, targets)]
            whole, mean = loss(out, target), torch.stack(losses).sum()
        return torch.stack([whole, whole if draws.used else mean])  # random numbers are others for each part

    return both
