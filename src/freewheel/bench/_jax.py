"""The same ResNet-20 in JAX with a compiled `jvp`: the baseline for compiled forward gradients.

Images are NHWC, which XLA prefers on a CPU. BatchNorm uses the statistics of the batch and updates running ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from freewheel.bench._network import Cut
from freewheel.bench._team import Batches, Turn

WIDTHS = (16, 32, 64)
DEPTH = 3  # blocks in a group


def jax_steps(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """One contender, or none if JAX is not installed."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX starts its threads
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        import jax
    except ImportError:
        return {}
    step, state = _step(jax), _state(jax)

    def turn(batches: Batches) -> float:
        nonlocal state
        arrays = [(jax.numpy.asarray(x.permute(0, 2, 3, 1).numpy()), jax.numpy.asarray(y.numpy())) for x, y in batches]
        started = time.perf_counter()
        for number, (x, y) in enumerate(arrays):
            state, _ = step(state, x, y, number)
        jax.block_until_ready(state)
        return time.perf_counter() - started

    return {"jit(jvp)": turn}


def _step(jax: Any) -> Callable[..., Any]:
    """A compiled training step."""
    np, lax = jax.numpy, jax.lax

    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def norm(x: Any, p: Any) -> tuple[Any, Any]:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * lax.rsqrt(var + 1e-5) * p["w"] + p["b"], (mean, var)

    def forward(weights: Any, x: Any) -> tuple[Any, Any]:
        found = []

        def unit(x: Any, p: Any, stride: int = 1) -> Any:
            y, stats = norm(conv(x, p["conv"], stride), p)
            found.append(stats)
            return y

        h = jax.nn.relu(unit(x, weights["stem"]))
        for group, blocks in enumerate(weights["groups"]):
            for number, (first, second) in enumerate(blocks):
                stride = 2 if group and not number else 1
                inner = unit(jax.nn.relu(unit(h, first, stride)), second)
                if stride == 2:
                    grow = h.shape[-1] // 2
                    h = np.pad(h[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (grow, grow)))
                h = jax.nn.relu(inner + h)
        return h.mean((1, 2)) @ weights["fc"]["w"] + weights["fc"]["b"], found

    def loss(weights: Any, x: Any, y: Any) -> tuple[Any, Any]:
        scores, found = forward(weights, x)
        return -jax.nn.log_softmax(scores)[np.arange(len(y)), y].mean(), found

    @jax.jit
    def step(state: Any, x: Any, y: Any, number: int) -> tuple[Any, Any]:
        weights, running, velocity = state
        leaves, tree = jax.tree.flatten(weights)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), number), len(leaves))
        u = jax.tree.unflatten(tree, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves)])
        value, d, found = jax.jvp(lambda w: loss(w, x, y), (weights,), (u,), has_aux=True)
        running = jax.tree.map(lambda r, f: 0.9 * r + 0.1 * f, running, found)
        velocity = jax.tree.map(lambda v, t, w: 0.9 * v + d * t + 5e-4 * w, velocity, u, weights)
        weights = jax.tree.map(lambda w, v: w - 1e-5 * v, weights, velocity)
        return (weights, running, velocity), value

    return step


def _state(jax: Any) -> Any:
    """The initial state: weights, running statistics, momentum."""
    np, key = jax.numpy, jax.random.key(0)

    def unit(inputs: int, outputs: int) -> dict[str, Any]:
        nonlocal key
        key, sub = jax.random.split(key)
        kernel = jax.random.normal(sub, (3, 3, inputs, outputs)) * (2 / (9 * outputs)) ** 0.5
        return {"conv": kernel, "w": np.ones(outputs), "b": np.zeros(outputs)}

    weights: dict[str, Any] = {"stem": unit(3, WIDTHS[0]), "groups": []}
    inputs = WIDTHS[0]
    for outputs in WIDTHS:
        blocks = []
        for _ in range(DEPTH):
            blocks.append((unit(inputs, outputs), unit(outputs, outputs)))
            inputs = outputs
        weights["groups"].append(blocks)
    weights["fc"] = {"w": jax.random.normal(key, (inputs, 10)) * 0.1, "b": np.zeros(10)}
    units = [weights["stem"], *(half for group in weights["groups"] for block in group for half in block)]
    running = [(np.zeros_like(p["b"]), np.ones_like(p["w"])) for p in units]
    return weights, running, jax.tree.map(np.zeros_like, weights)
