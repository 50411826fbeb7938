"""Random numbers that belong to a batch and a stage, not to a thread.

Dropout and its kin draw from torch's one process-wide generator. Two stages running at once would share it, and the
order of their draws would depend on timing. Here every forward of (seed, stage, batch, micro-batch) draws from a
generator of its own, so that it can be repeated at any time: by another runtime, or by a recomputation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class SeededDraws(TorchDispatchMode):
    """Inside this mode every random operation draws from the mode's own generator.

    `used` tells whether there was one: a stage that has none need not pay for the mode again.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.used = False
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def _generator(self, args: Any, kwargs: Any) -> torch.Generator:
        """The generator of the device that the operation draws on."""
        given = next((a.device for a in args if isinstance(a, torch.Tensor)), kwargs.get("device"))
        device = torch.device(given) if given is not None else torch.get_default_device()
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=device).manual_seed(self._seed)
        return self._generators[device]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        self.used = True
        if func is torch.ops.aten.native_dropout.default:
            return self._dropout(*args, **kwargs)
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **{**kwargs, "generator": self._generator(args, kwargs)})
        wanted = [argument.name for argument in func._schema.arguments]
        for overload in func.overloadpacket.overloads():
            # torch.rand and friends take a generator in an overload of their own.
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
