"""The same ResNet-20 in JAX with a compiled `jvp`: the baseline for compiled forward gradients."""

from __future__ import annotations

import os
import time

from freewheel.bench._jax_net import NETS, make_state, make_step
from freewheel.bench._network import Cut
from freewheel.bench._team import Batches, Turn


def jax_steps(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """One contender, or none if JAX is not installed."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX starts its threads
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        import jax
    except ImportError:
        return {}
    net = NETS["resnet-20"]
    step, state = make_step(jax, net, "jvp"), make_state(jax, net)

    def turn(batches: Batches) -> float:
        nonlocal state
        arrays = [(jax.numpy.asarray(x.permute(0, 2, 3, 1).numpy()), jax.numpy.asarray(y.numpy())) for x, y in batches]
        started = time.perf_counter()
        for number, (x, y) in enumerate(arrays):
            state, _ = step(state, x, y, number)
        jax.block_until_ready(state)
        return time.perf_counter() - started

    return {"jit(jvp)": turn}
