"""The table that every method's tests run over: a new method adds one row and inherits every check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from spread import rarely


@dataclass(frozen=True)
class Row:
    """A deterministic method, made for K stages."""

    name: str
    make: Callable[[int], fw.Method]

    def __str__(self) -> str:
        return self.name


def late_forward(k: int) -> fw.Pipeline:
    """Forward gradients in a free combination."""
    return fw.Pipeline(credit=fw.Forward(scale=0.1), delays=(2,) * k, corrections=[fw.Accumulate(3)])


ROWS = [
    Row("bp", lambda k: fw.BP()),
    Row("gpipe", lambda k: fw.GPipe(micro=3)),
    Row("1f1b", lambda k: fw.OneFOneB(micro=3)),
    Row("ddg", lambda k: fw.DDG()),
    Row("fr", lambda k: fw.FR()),
    Row("pipedream", lambda k: fw.PipeDream()),
    Row("fdg", lambda k: fw.FDG(shrink=0.5)),
    Row("fdg-forward", lambda k: fw.FDG(shrink=0.5, order="forward")),
    Row("dsp", lambda k: fw.DSP()),
    Row("dsp-3", lambda k: fw.DSP(delay=3)),
    Row("recompute-late", lambda k: fw.Pipeline(delays=(2,) * k, weights="recompute")),
    Row("pipemare", lambda k: fw.PipeMare(anneal=20)),
    Row("predict", lambda k: fw.Pipeline(delays=tuple(range(k))[::-1], weights="predict")),
    Row("compensated", lambda k: fw.Pipeline(delays=(2,) * k, corrections=[fw.DelayCompensation(0.5)])),
    Row("fgd", lambda k: fw.FGD(scale=0.1)),
    Row("fgd-mp", lambda k: fw.FGDMP(scale=0.1, distribution="rademacher")),
    Row("fgd-dp", lambda k: fw.FGDDP(scale=0.1, replicas=2)),
    Row("fgd-sync", lambda k: fw.FGDSync(scale=0.1, micro=3)),
    Row("asyncfgd", lambda k: fw.AsyncFGD(scale=0.1)),
    Row("asyncfgd-kept", lambda k: fw.AsyncFGD(scale=0.1, checkpoint=False, tangents=2, distribution="sphere")),
    Row("asyncfgd-activations", lambda k: fw.AsyncFGD(scale=0.1, perturb="activations")),
    Row("late-forward", late_forward),
    Row("dgl", lambda k: fw.DGL(hidden=8)),
    Row("dgl-replay", lambda k: fw.DGL(hidden=8, replay=3)),
    Row("dgl-norm", lambda k: fw.DGL(hidden=8, norm=True)),
    Row("dni", lambda k: fw.DNI(layers=1)),
    Row("dni-labels", lambda k: fw.DNI(labels=True, lag=2)),
    Row("dni-norm", lambda k: fw.DNI(layers=1, norm=True)),
    Row("fa", lambda k: fw.FA(pipelined=True)),
    Row("dfa", lambda k: fw.DFA(pipelined=True)),
    Row("sdfa", lambda k: fw.SDFA()),
    Row("drtp", lambda k: fw.DRTP()),
    Row("accumulated", lambda k: fw.Pipeline(delays=tuple(range(k))[::-1], corrections=[fw.Accumulate(3)])),
]

# One row of each kind, for tests of a property that does not depend on the method.
KINDS = (
    *("bp", "gpipe", "pipedream", "fdg", "dsp", "pipemare", "fgd", "fgd-dp"),
    *("asyncfgd-activations", "dgl", "dni", "fa", "dfa"),
)


def often(rows: list[Row]) -> list[Any]:
    """All rows, those of another kind for `make test-all` alone."""
    return [row if row.name in KINDS else rarely(row) for row in rows]


LOCAL = ("simulate", "threads")  # runtimes within one process

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
}


def network(k: int, seed: int = 0) -> list[nn.Module]:
    """A small net with BatchNorm, dropout and an in-place start of a stage, in k stages."""
    torch.manual_seed(seed)
    blocks = [
        nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3)),
        nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.BatchNorm1d(12)),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(12, 12), nn.Dropout(0.2)),
        nn.Sequential(nn.Linear(12, 3)),
    ]
    cuts = {1: (0, 4), 2: (0, 2, 4), 3: (0, 1, 2, 4), 4: (0, 1, 2, 3, 4)}[k]
    return [nn.Sequential(*blocks[a:b]) for a, b in pairwise(cuts)]


def batches(count: int = 25, seed: int = 1, size: int = 9, small: int = 6) -> list[tuple[Tensor, Tensor]]:
    """Batches of which every seventh is smaller."""
    g = torch.Generator().manual_seed(seed)
    sizes = [small if i % 7 == 6 else size for i in range(count)]
    return [(torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)) for n in sizes]


def trainer(stages, method, make=fw.Trainer, **options) -> fw.Trainer:
    """A trainer with the tests' defaults; `make` is what makes it. The check has tests of its own."""
    defaults = {"loss": F.cross_entropy, "optimizer": OPTIMIZERS["sgd"], "runtime": "simulate", "seed": 3, "threads": 1}
    return make(stages, method=method, **{**defaults, "check": False, **options})


def tensors(*modules: nn.Module) -> list[Tensor]:
    """All parameters and buffers."""
    return [t.detach().clone() for m in modules for t in [*m.parameters(), *m.buffers()]]


def same_bits(a, b) -> bool:
    """Whether two lists of tensors are equal to the last bit."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
