"""Random numbers per batch and stage, independent of threads.

Dropout and similar layers draw from torch's global generator. Concurrent stages would share it, and the order of their
draws would depend on timing. Here every forward of (seed, stage, batch, micro-batch) has its own generator, so it is
reproducible on another runtime and in a recomputation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from freewheel.stage._trees import tensors_among


class SeededDraws(TorchDispatchMode):
    """A mode in which every random operation draws from the mode's own generator; `used` is whether there was any."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.used = False
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def _generator(self, args: Any, kwargs: Any) -> torch.Generator:
        """Return the generator of the operation's device."""
        given = next((t.device for t in tensors_among(args)), kwargs.get("device"))
        device = torch.device(given) if given is not None else torch.get_default_device()
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=device).manual_seed(self._seed)
        return self._generators[device]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        self.used = True
        if func is torch.ops.aten.native_dropout.default:
            return self._dropout(*args, **kwargs)
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **{**kwargs, "generator": self._generator(args, kwargs)})
        wanted = [argument.name for argument in func._schema.arguments]
        for overload in func.overloadpacket.overloads():
            # torch.rand and similar functions take a generator in a separate overload.
            other = getattr(func.overloadpacket, overload)
            names = [a.name for a in other._schema.arguments]
            if "generator" in names and [n for n in names if n != "generator"] == wanted:
                return other(*args, **{**kwargs, "generator": self._generator(args, kwargs)})
        raise RuntimeError(
            f"{func} draws random numbers but takes no generator, so its result would depend on timing: "
            "set its dropout to 0, or use another kernel"
        )

    def _dropout(self, x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        if not train or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        if p == 1:
            return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
        mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=self._generator([x], {}))
        return x * mask * (1 / (1 - p)), mask


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation tagged as random draws from torch's global generator, with these arguments."""
    arguments = func._schema.arguments
    given = {a.name: a.default_value for a in arguments} | dict(zip((a.name for a in arguments), args)) | kwargs
    if given.get("generator") is not None or "philox_seed" in given:
        return False
    # A fused attention kernel draws only for its dropout.
    return given.get("dropout_p") != 0.0
