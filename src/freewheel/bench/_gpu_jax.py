"""JAX in the GPU benchmark: compiled steps by `grad` and by `jvp`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from freewheel.bench._gpu_cases import Case
from freewheel.bench._gpu_contender import OPTIMIZER, Batches, Contender, Memory
from freewheel.bench._jax_net import NETS, make_state, make_step


def jax_makers(case: Case, batches: Batches, device: str) -> dict[str, Callable[[], Contender]]:
    """The contenders of a case, by name."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # others need memory, too
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    arrays = [(jax.numpy.asarray(x.permute(0, 2, 3, 1).numpy()), jax.numpy.asarray(y.numpy())) for x, y in batches]
    return {f"jit({mode})": partial(Compiled, jax, case.net, mode, arrays) for mode in ("grad", "jvp")}


class Compiled(Contender):
    """A training step, compiled whole."""

    def __init__(self, jax: Any, net: str, mode: str, batches: list[tuple[Any, Any]]) -> None:
        self._jax, self._batches, self._state = jax, batches, make_state(jax, NETS[net])
        step = make_step(jax, NETS[net], mode, lr=OPTIMIZER.keywords["lr"])
        self._step = step.lower(self._state, *batches[0], 0).compile()

    def turns(self, steps: int, count: int) -> list[float]:
        """The seconds a batch of each turn."""
        return [self._turn(steps) / steps for _ in range(count)]

    def _turn(self, steps: int) -> float:
        self._jax.block_until_ready(self._state)
        started = time.perf_counter()
        for number in range(steps):
            self._state, _ = self._step(self._state, *self._batches[number % len(self._batches)], number)
        self._jax.block_until_ready(self._state)
        return time.perf_counter() - started

    def extra(self, before: Memory) -> Memory:
        """What the compiler has set aside, beyond the state that a step replaces."""
        found = self._step.memory_analysis()
        if found is None:
            return Memory()
        return Memory(found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes)
