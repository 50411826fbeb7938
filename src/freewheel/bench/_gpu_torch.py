"""Plain PyTorch in the GPU benchmark: eager, captured as a CUDA graph, compiled, checkpointed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from freewheel.bench._gpu_cases import Case
from freewheel.bench._gpu_contender import OPTIMIZER, Batches, Contender, Repeated, TorchContender, Whole, build_network
from freewheel.bench._jvp import jvp_step

Peer = Callable[[Case, Batches, str], Contender]


def backprop(
    case: Case,
    batches: Batches,
    device: str,
    *,
    graphed: bool = False,
    compiled: bool = False,
    checkpointed: bool = False,
    channels_last: bool = False,
) -> Contender:
    """Backpropagation; `graphed` captures the whole step, the update included."""
    model = build_network(case, device)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        batches = [(x.to(memory_format=torch.channels_last), y) for x, y in batches]
    optimizer = OPTIMIZER(model.parameters())
    forward: Any = torch.compile(model) if compiled else partial(_segments, model) if checkpointed else model

    def step(x: Tensor, target: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward(x), target).backward()
        optimizer.step()

    made = Repeated(step, model, optimizer, batches, device)
    return Graphed(made, batches) if graphed else made


def _segments(model: Whole, x: Tensor) -> Tensor:
    """A forward that retains only the boundaries of √L segments of the L blocks (Chen 2016)."""
    units = nn.Sequential(*_units(model.net))
    return checkpoint_sequential(units, round(math.sqrt(len(units))), x, use_reentrant=False, preserve_rng_state=False)


def _units(net: nn.Sequential) -> Iterable[nn.Module]:
    for layer in net:
        yield from layer.children() if type(layer) is nn.Sequential else (layer,)


def forward_mode(
    case: Case, batches: Batches, device: str, *, graphed: bool = False, compiled: bool = False
) -> Contender:
    """Forward gradients by `torch.func.jvp`, without running statistics of BatchNorm."""
    model = build_network(case, device)
    optimizer = OPTIMIZER(model.parameters())
    made = Repeated(jvp_step(model, optimizer, compiled=compiled), model, optimizer, batches, device)
    return Graphed(made, batches) if graphed else made


class Graphed(TorchContender):
    """A training step as one CUDA graph; its first turns are eager, on the stream that it is captured on."""

    def __init__(self, eager: Repeated, batches: Batches) -> None:
        self._eager, self._static = eager, [tensor.clone() for tensor in batches[0]]
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = False

    def turns(self, steps: int, count: int) -> list[float]:
        """The seconds a batch of each turn."""
        if not self._warm:
            self._warm = True
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                return self._eager.turns(steps, count)
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._eager.step(*self._static)
            self._eager.step = self._replay
        return self._eager.turns(steps, count)

    def _replay(self, x: Tensor, target: Tensor) -> None:
        assert self._graph is not None
        self._static[0].copy_(x)
        self._static[1].copy_(target)
        self._graph.replay()

    def persistent(self) -> Iterable[Tensor]:
        """Weights, buffers and optimizer state, and the place of the batch."""
        return [*self._eager.persistent(), *self._static]


PEERS: dict[str, Peer] = {
    "bp, eager": backprop,
    "bp, graphed": partial(backprop, graphed=True),
    "bp, compiled": partial(backprop, compiled=True),
    "bp, compiled, graphed": partial(backprop, compiled=True, graphed=True),
    "bp, channels last, graphed": partial(backprop, channels_last=True, graphed=True),
    "bp, channels last, compiled, graphed": partial(backprop, channels_last=True, compiled=True, graphed=True),
    "bp, checkpointed": partial(backprop, checkpointed=True),
    "jvp, eager": forward_mode,
    "jvp, graphed": partial(forward_mode, graphed=True),
    "jvp, compiled, graphed": partial(forward_mode, compiled=True, graphed=True),
}


def pytorch_makers(case: Case, batches: Batches, device: str) -> dict[str, Callable[[], Contender]]:
    """The contenders of a case, by name; none is captured on a CPU."""
    names = [name for name in case.peers if device != "cpu" or not name.endswith("graphed")]
    return {name: partial(PEERS[name], case, batches, device) for name in names}
