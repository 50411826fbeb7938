"""A habit: something that people do in plain PyTorch. Each is a row of the table in test_habits.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)

# One method of each kind: how it gets its gradient, and at which weights.
METHODS: dict[str, Callable[[], fw.Method]] = {
    "bp": fw.BP,  # no delay
    "gpipe": partial(fw.GPipe, micro=2),  # micro-batches
    "pipedream": fw.PipeDream,  # copies of the forward's weights
    "fr": fw.FR,  # recomputes the forward at the newest weights
    "dsp": fw.DSP,  # recomputes at the forward's
    "pipemare": partial(fw.PipeMare, anneal=20),  # the newest weights with the forward's activations
    "fgd": partial(fw.FGD, scale=0.1),  # forward gradients
    "asyncfgd": partial(fw.AsyncFGD, scale=0.1),
    "dgl": partial(fw.DGL, hidden=8),  # a head for each stage
    "dni": partial(fw.DNI, layers=1),  # predicted gradients
    "fa": partial(fw.FA, pipelined=True),  # random feedback, layer by layer
    "dfa": partial(fw.DFA, pipelined=True),  # ... and from the output
    "async-lu": fw.AsyncLU,  # a race
}
CHAIN = ("bp", "gpipe", "pipedream", "fr", "dsp", "pipemare")
FORWARD = ("fgd", "asyncfgd")
HEADS = ("dgl", "dni")
FEEDBACK = ("fa", "dfa")
RACES = ("async-lu",)


@dataclass
class Case:
    """A network in stages, with its loss and its data, as a user writes them.

    Args:
        stages: The network, in stages.
        batches: The loader.
        loss: Its loss.
        options: Further arguments of `Trainer`.
        optimizer: The factory of optimizers.
    """

    stages: Sequence[nn.Module]
    batches: Iterable[Any]
    loss: Callable[..., Tensor] = F.cross_entropy
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[..., torch.optim.Optimizer] = SGD

    @property
    def trained(self) -> list[nn.Module]:
        """All modules that are trained: the stages, and the loss if it is a module."""
        return [*self.stages, *([self.loss] if isinstance(self.loss, nn.Module) else [])]

    def named(self) -> dict[str, Tensor]:
        """A copy of each parameter and buffer."""
        out = {}
        for i, module in enumerate(self.trained):
            out |= {f"{i}.{name}": t.detach().clone() for name, t in module.named_parameters()}
            out |= {f"{i}.{name}": t.detach().clone() for name, t in module.named_buffers()}
        return out

    def forward(self, x: Any) -> Any:
        """The network's output."""
        for stage in self.stages:
            x = stage(x)
        return x

    def trainer(self, method: fw.Method, **options: Any) -> fw.Trainer:
        """A trainer of it."""
        defaults = {"runtime": "simulate", "seed": 3, "threads": 1}
        given = {"loss": self.loss, "optimizer": self.optimizer, **defaults, **self.options, **options}
        return fw.Trainer(self.stages, method=method, **given)


def fit(trainer: fw.Trainer, case: Case) -> None:
    """Train as most people do."""
    trainer.fit(case.batches)


def loop(case: Case) -> None:
    """Train as most people do, in plain PyTorch."""
    optimizer = case.optimizer([p for m in case.trained for p in m.parameters() if p.requires_grad])
    for module in case.trained:
        module.train()
    steps(case, optimizer)


def steps(case: Case, optimizer: torch.optim.Optimizer) -> None:
    """One pass over the batches, in plain PyTorch."""
    for x, y in case.batches:
        optimizer.zero_grad()
        case.loss(case.forward(x), y).backward()
        optimizer.step()


@dataclass(frozen=True)
class Habit:
    """A row of the table.

    Args:
        name: What people do.
        make: The network and data, the same whenever it is called. A function at the top of a module, since the
            network goes to other processes.
        refused: The methods that refuse it, with a part of the line that says so; `*` stands for all others.
        twin: The same network without the habit, if there is one: methods must train it to the same weights.
        alike: The methods for which this holds: not those that learn by what the habit changes (a head on an output).
        fit: How it is trained.
        plain: How it is trained in plain PyTorch; None where plain PyTorch draws other random numbers.
        still: Parameters that plain PyTorch does not change either (parts of names).
        close: How close to plain PyTorch and to the twin.
        methods: Those that are tried.
        processes: Whether it is tried in processes, too.
    """

    name: str
    make: Callable[[], Case]
    refused: Mapping[str, str] = field(default_factory=dict)
    twin: Callable[[], Case] | None = None
    alike: Sequence[str] = (*CHAIN, *FORWARD)
    fit: Callable[[fw.Trainer, Case], None] = fit
    plain: Callable[[Case], None] | None = loop
    still: tuple[str, ...] = ()
    close: float = 1e-5
    methods: Sequence[str] = tuple(METHODS)
    processes: bool = True

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def refusal(self, method: str) -> str | None:
        """A part of the line that refuses it; None if it is trained."""
        return self.refused.get(method, self.refused.get("*"))


def refuse(line: str, *methods: str) -> dict[str, str]:
    """A refusal by these methods; by all if none is named."""
    return dict.fromkeys(methods or ("*",), line)


def vectors(count: int = 6, size: int = 8, width: int = 6, classes: int = 3) -> list[tuple[Tensor, Tensor]]:
    """Batches of vectors with a class each."""
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(size, width, generator=g), torch.randint(classes, (size,), generator=g)) for _ in range(count)]


def seeded(*makers: Callable[[], nn.Module]) -> list[nn.Module]:
    """Stages with the same weights every time."""
    torch.manual_seed(0)
    return [make() for make in makers]
