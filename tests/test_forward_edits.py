"""Modules that change tensors in place, under forward credit: the same bits as their twins that do not.

What a stage receives is its own, and it is not copied; what it must not reach is the user's data, weights and buffers,
and whatever an earlier stage still needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from rows import LOCAL, same_bits, tensors
from spread import exhaustive, spread

Stages = list[nn.Module]
OPTIONS = {"plain": {}, "several": {"tangents": 3}, "kept": {"checkpoint": False}, "moved": {"perturb": "activations"}}


class Double(nn.Module):
    """Doubles its input, in place or not: done twice to one tensor, it would show."""

    def __init__(self, edits: bool) -> None:
        super().__init__()
        self.edits = edits

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2) if self.edits else x * 2


class Weight(nn.Module):
    """Passes on a parameter and a buffer of its own, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(6, 6), nn.Parameter(torch.randn(6))
        self.register_buffer("table", torch.randn(6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.layer(x), self.own.view(1, 6), self.table[None, :]


class Skip(nn.Module):
    """Passes on what a layer has used; with moved activations the layer's gradient needs it later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.first(x).tanh()
        return self.second(h), h


class Join(nn.Module):
    """Doubles each part that it gets, and adds them up."""

    def __init__(self, edits: bool) -> None:
        super().__init__()
        self.twice, self.layer = Double(edits), nn.Linear(6, 3)

    def forward(self, parts: tuple[Tensor, ...]) -> Tensor:
        total = self.twice(parts[0])
        for part in parts[1:]:
            total = total + self.twice(part)
        return self.layer(total)


NETS: dict[str, Callable[[bool], Stages]] = {
    "first": lambda edits: [nn.Sequential(Double(edits), nn.Linear(6, 6)), nn.Linear(6, 3)],
    "second": lambda edits: [nn.Linear(6, 6), nn.Sequential(Double(edits), nn.Linear(6, 3))],
    "view of the input": lambda edits: [nn.Flatten(), nn.Sequential(Double(edits), nn.Linear(6, 3))],
    "handed on": lambda edits: [nn.Identity(), nn.Identity(), nn.Sequential(Double(edits), nn.Linear(6, 3))],
    "weights and buffers": lambda edits: [Weight(), Join(edits)],
    "skip": lambda edits: [Skip(), Join(edits)],
}


def train(net: str, edits: bool, batches: list[tuple[Tensor, Tensor]], **options: Any) -> list[Tensor]:
    torch.manual_seed(0)
    stages = NETS[net](edits)
    runtime = options.pop("runtime", "simulate")
    how = {"runtime": runtime, "compile": options.pop("compile", False), "threads": 1}
    optimizer = partial(torch.optim.SGD, lr=1e-3)
    trainer = fw.Trainer(stages, method=fw.AsyncFGD(**options), loss=F.cross_entropy, optimizer=optimizer, **how)
    trainer.fit(batches, epochs=2, progress=False)
    return tensors(*stages)


def made(count: int = 5) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 6, generator=g), torch.randint(3, (4,), generator=g)) for _ in range(count)]


@spread(least=18, net=NETS, options=OPTIONS, runtime=LOCAL)
def test_editing_in_place_changes_nothing_else(net: str, options: str, runtime: str) -> None:
    given, batches = OPTIONS[options], made()
    wanted = train(net, False, batches, **given)
    assert same_bits(train(net, True, batches, runtime=runtime, **given), wanted)
    assert same_bits([x for x, _ in batches], [x for x, _ in made()])


@exhaustive
@pytest.mark.parametrize("net", ["first", "second", "view of the input"])
def test_nor_in_a_compiled_pass(net: str) -> None:
    batches = made()
    wanted = train(net, False, batches)
    found = train(net, True, batches, compile=True)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert same_bits([x for x, _ in batches], [x for x, _ in made()])


def test_moved_activations_notice_that_an_input_was_changed_after_its_use() -> None:
    class Late(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x.mul_(2)[:, :3]

    stages = [nn.Linear(6, 6), Late(6, 3)]
    trainer = fw.Trainer(
        stages,
        method=fw.AsyncFGD(perturb="activations"),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=1e-3),
        runtime="simulate",
    )
    with pytest.raises(fw.StageError, match=r"stage 1 .* the input of a Linear or Conv2d layer was changed in place"):
        trainer.fit(made(1), progress=False)
