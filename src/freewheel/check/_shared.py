"""What copies of a module on shared memory do not share: buffers that a forward replaces, and counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from freewheel.check._copies import Network, Samples
from freewheel.check._plain import MismatchError, Plain


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
