"""State that stages or workers do not share: counters and buffers that a forward replaces, and that of a loss."""

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
from freewheel.stage import SeededDraws


def check_shared(network: Network | None, plain: Callable[[Network], Plain], samples: Samples) -> None:
    """Refuse modules whose state would stay in one worker's copy, for methods on shared weights.

    Args:
        network: A copy of the network.
        plain: How plain PyTorch runs it.
        samples: A few samples.
    """
    if network is None:
        return
    runs = plain(network)
    seen = [_state(network)]
    for _ in range(2):  # what is set once, such as a size, is no counter
        runs.loss((0, 0), *samples.fresh())
        seen.append(_state(network))
    first, second, third = seen
    for name, (kind, value) in third.items():
        if kind == "buffer" and value != first[name][1]:
            raise MismatchError(
                f"the buffer {name!r} is replaced in forward, but each worker has its own copy of the module: change "
                "it in place (copy_, add_), which all see"
            )
        if kind == "number" and len({first.get(name), second.get(name), third[name]}) == 3:
            raise MismatchError(
                f"{name!r} changes with each forward, but each worker has its own copy of the module: make it a "
                "buffer that is changed in place, which all see; if this is intended, train with check=False"
            )


def check_loss(network: Network | None, plain: Callable[[Network], Plain], samples: Samples) -> None:
    """Refuse a loss with a state of its own where several stages or workers call it, in an order that may vary."""
    if network is None:
        return
    try:
        first, second = plain(replace(network, loss=_twice(network.loss))).loss((0, 0), *samples.fresh())
    except Exception:  # training says how it fails
        return
    if far_apart(second, first):
        raise MismatchError(
            "loss returns something else each time it sees the same output, but several stages or workers call it, in "
            "an order that may vary: it must not count or remember its calls"
        )


def _twice(loss: Loss) -> Loss:
    """Return a function that computes a loss twice, with the same random numbers."""

    def both(out: Any, target: Any) -> Tensor:
        found = []
        for _ in range(2):
            with SeededDraws(0):
                found.append(loss(out, map_tensors(torch.clone, target)))
        return torch.stack(found)

    return both


def _state(network: Network) -> dict[str, tuple[str, Any]]:
    """The identity and shape of each buffer, and the value of other tensors and numbers in modules, by name."""
    out: dict[str, tuple[str, Any]] = {}
    for k, stage in enumerate(network.stages):
        for name, module in stage.named_modules(prefix=f"stages[{k}]"):
            out |= {f"{name}.{n}": ("buffer", (id(b), b.shape)) for n, b in module.named_buffers(recurse=False)}
            held = vars(module).items()
            out |= {f"{name}.{n}": ("number", v) for n, v in held if type(v) in (int, float)}
            out |= {f"{name}.{n}": ("number", v.detach().sum().item()) for n, v in held if torch.is_tensor(v)}
    return out
