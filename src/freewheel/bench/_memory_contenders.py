"""The contenders of the memory benchmark: the same network, trained by backpropagation and by forward gradients.

All of them use SGD without momentum, which has no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from freewheel.bench._memory_nets import Net, loss
from freewheel.methods import FGD, AsyncFGD
from freewheel.trainer import Trainer

Batches = Sequence[tuple[Tensor, Tensor]]
Train = Callable[[Batches], object]
SGD = partial(torch.optim.SGD, lr=1e-6)
STAGES = 4


def backprop(net: Net, device: str, *, checkpointed: bool = False, fused: bool = False) -> Train:
    """Plain PyTorch.

    `checkpointed` retains only the boundaries of √L segments of the L layers, or of √T segments of T time steps, and
    recomputes the rest in the backward (Chen 2016, Gruslys 2016). `fused` updates each weight within the backward, as
    soon as its gradient is known, and frees the gradient.
    """
    model = nn.Sequential(*net.layers()).to(device)
    segments = _segments_of_time if net.kind == "rnn" else _segments_of_depth
    cost = partial(segments, net, model) if checkpointed else lambda x, target: loss(model(x), target)
    if fused:
        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(partial(_update, SGD([weight])))
    optimizer = SGD(model.parameters())

    def train(batches: Batches) -> None:
        for x, target in batches:
            optimizer.zero_grad()
            cost(x, target).backward()
            optimizer.step()
        optimizer.zero_grad()

    return train


def _update(optimizer: torch.optim.Optimizer, weight: Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()


def _segments_of_depth(net: Net, model: nn.Sequential, x: Tensor, target: Tensor) -> Tensor:
    count = round(math.sqrt(net.depth))
    return loss(checkpoint_sequential(model, count, x, use_reentrant=False, preserve_rng_state=False), target)


def _segments_of_time(net: Net, model: nn.Sequential, x: Tensor, target: Tensor) -> Tensor:
    recurrent = [layer[0].layer for layer in model]  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    head: Any = model[-1][1]  # pyright: ignore[reportIndexIssue]

    def segment(x: Tensor, target: Tensor, *states: Tensor | None) -> tuple[Tensor, ...]:
        ends = []
        for layer, state in zip(recurrent, states):
            x, end = layer(x, state)
            ends.append(end)
        return loss(head(x), target) * (x.shape[1] / net.length), *ends

    steps = math.ceil(net.length / math.sqrt(net.length))
    total, states = x.new_zeros(()), [None] * net.depth
    for some, wanted in zip(x.split(steps, 1), target.split(steps, 1)):
        cost, *states = checkpoint(segment, some, wanted, *states, use_reentrant=False, preserve_rng_state=False)
        total = total + cost
    return total


def forward_gradients(
    net: Net, device: str, *, stages: int = 1, checkpoint: bool = True, runtime: str = "simulate"
) -> Train:
    """Forward gradients: FGD in one stage, AsyncFGD in several; sequences one time step at a time."""
    options = {"checkpoint": checkpoint, "steps": net.length}
    trainer = Trainer(
        [stage.to(device) for stage in net.stages(stages)],
        method=FGD(**options) if stages == 1 else AsyncFGD(**options),
        loss=loss,
        optimizer=SGD,
        runtime=runtime,
        check=False,
        threads=1,
    )
    return partial(trainer.fit, progress=False)


def contenders_for(net: Net, device: str) -> dict[str, Callable[..., Train]]:
    """The contenders by name; CUDA graphs need a GPU, and do not suit recurrent nets: one for every time step."""
    return CONTENDERS if device == "cpu" or net.kind == "rnn" else CONTENDERS | GRAPHED


def make_contender(name: str, net: Net, device: str) -> tuple[Train, int]:
    """A function that trains the network, and the number of batches after which its memory has had its peak.

    They fill the pipeline, and two more; with CUDA graphs, all graphs have been captured by then.
    """
    stages = min(STAGES, net.depth) if name.startswith("AsyncFGD") else 1
    train = contenders_for(net, device)[name](net, device, **({"stages": stages} if stages > 1 else {}))
    return train, 8 * stages if name in GRAPHED else stages + 2


CONTENDERS: dict[str, Callable[..., Train]] = {
    "BP": backprop,
    "BP, checkpointed": partial(backprop, checkpointed=True),
    "BP, checkpointed, fused updates": partial(backprop, checkpointed=True, fused=True),
    "FGD": forward_gradients,
    "AsyncFGD": forward_gradients,
    "AsyncFGD, tangents kept": partial(forward_gradients, checkpoint=False),
}
GRAPHED: dict[str, Callable[..., Train]] = {
    "FGD, graph": partial(forward_gradients, runtime="graph"),
    "AsyncFGD, graph": partial(forward_gradients, runtime="graph"),
}
