"""Residual networks in JAX, and compiled training steps of them.

Images are NHWC, which XLA prefers. BatchNorm uses the statistics of the batch and updates running ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """A network of basic blocks.

    Args:
        widths: Channels of each group of blocks; every group but the first halves the image.
        blocks: Blocks in a group.
        stem: The size and stride of the first convolution.
        pool: Whether a max-pool that halves the image follows it.
        projection: Whether shortcuts of blocks that halve the image are 1x1 convolutions, or padded with zeros.
    """

    widths: tuple[int, ...] = (16, 32, 64)
    blocks: int
    stem: tuple[int, int] = (3, 1)
    pool: bool = False
    projection: bool = False


NETS = {
    "resnet-20": ResNet(blocks=3),
    "resnet-56": ResNet(blocks=9),
    "torchvision/resnet18": ResNet(widths=(64, 128, 256, 512), blocks=2, stem=(7, 2), pool=True, projection=True),
}


def make_loss(jax: Any, net: ResNet) -> Callable[..., Any]:
    """A function of weights, images and classes that returns the loss and the statistics of each BatchNorm."""
    np, lax = jax.numpy, jax.lax

    def conv(x: Any, w: Any, stride: int) -> Any:
        pad = [(w.shape[0] // 2, w.shape[0] // 2)] * 2
        return lax.conv_general_dilated(x, w, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def forward(weights: Any, x: Any) -> tuple[Any, Any]:
        found = []

        def unit(x: Any, p: Any, stride: int = 1) -> Any:
            x = conv(x, p["conv"], stride)
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            found.append((mean, var))
            return (x - mean) * lax.rsqrt(var + 1e-5) * p["w"] + p["b"]

        h = jax.nn.relu(unit(x, weights["stem"], net.stem[1]))
        if net.pool:
            pad = ((0, 0), (1, 1), (1, 1), (0, 0))
            h = lax.reduce_window(h, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pad)
        for group, blocks in enumerate(weights["groups"]):
            for number, (first, second, *projection) in enumerate(blocks):
                stride = 2 if group and not number else 1
                inner = unit(jax.nn.relu(unit(h, first, stride)), second)
                if projection:
                    h = unit(h, projection[0], stride)
                elif stride == 2:
                    grow = h.shape[-1] // 2
                    h = np.pad(h[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (grow, grow)))
                h = jax.nn.relu(inner + h)
        return h.mean((1, 2)) @ weights["fc"]["w"] + weights["fc"]["b"], found

    def loss(weights: Any, x: Any, y: Any) -> tuple[Any, Any]:
        scores, found = forward(weights, x)
        return -jax.nn.log_softmax(scores)[np.arange(len(y)), y].mean(), found

    return loss


def make_step(jax: Any, net: ResNet, mode: str, *, lr: float = 1e-5) -> Any:
    """A training step with SGD and momentum: by `jvp` along a random tangent, or by `grad`.

    It maps the state, images, classes and the number of the batch to the next state and the loss.
    """
    loss = make_loss(jax, net)

    def by_jvp(weights: Any, x: Any, y: Any, number: int) -> Any:
        leaves, tree = jax.tree.flatten(weights)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), number), len(leaves))
        u = jax.tree.unflatten(tree, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves)])
        value, d, found = jax.jvp(lambda w: loss(w, x, y), (weights,), (u,), has_aux=True)
        return value, jax.tree.map(lambda t: d * t, u), found

    def by_grad(weights: Any, x: Any, y: Any, number: int) -> Any:
        (value, found), gradient = jax.value_and_grad(loss, has_aux=True)(weights, x, y)
        return value, gradient, found

    differentiate = {"jvp": by_jvp, "grad": by_grad}[mode]

    def step(state: Any, x: Any, y: Any, number: int) -> tuple[Any, Any]:
        weights, running, velocity = state
        value, gradient, found = differentiate(weights, x, y, number)
        running = jax.tree.map(lambda r, f: 0.9 * r + 0.1 * f, running, found)
        velocity = jax.tree.map(lambda v, g, w: 0.9 * v + g + 5e-4 * w, velocity, gradient, weights)
        weights = jax.tree.map(lambda w, v: w - lr * v, weights, velocity)
        return (weights, running, velocity), value

    return jax.jit(step, donate_argnums=0)


def make_state(jax: Any, net: ResNet) -> Any:
    """The initial state: weights, running statistics, momentum."""
    np, key = jax.numpy, jax.random.key(0)

    def unit(inputs: int, outputs: int, size: int = 3) -> dict[str, Any]:
        nonlocal key
        key, sub = jax.random.split(key)
        kernel = jax.random.normal(sub, (size, size, inputs, outputs)) * (2 / (size * size * outputs)) ** 0.5
        return {"conv": kernel, "w": np.ones(outputs), "b": np.zeros(outputs)}

    weights: dict[str, Any] = {"stem": unit(3, net.widths[0], net.stem[0]), "groups": []}
    inputs = net.widths[0]
    for outputs in net.widths:
        blocks = []
        for _ in range(net.blocks):
            projection = [unit(inputs, outputs, 1)] if net.projection and inputs != outputs else []
            blocks.append((unit(inputs, outputs), unit(outputs, outputs), *projection))
            inputs = outputs
        weights["groups"].append(blocks)
    weights["fc"] = {"w": jax.random.normal(key, (inputs, CLASSES)) * 0.1, "b": np.zeros(CLASSES)}
    units = [weights["stem"], *(part for group in weights["groups"] for block in group for part in block)]
    running = [(np.zeros_like(p["b"]), np.ones_like(p["w"])) for p in units]
    return weights, running, jax.tree.map(np.zeros_like, weights)
