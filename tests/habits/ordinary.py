"""Habits that nobody would call one: the example to follow for other rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from habits._habit import CHAIN, FEEDBACK, FORWARD, HEADS, METHODS, RACES, Case, Habit, refuse, seeded, vectors


def first() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh())


def middle() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def last() -> nn.Module:
    return nn.Linear(8, 3)


def three() -> Case:
    return Case(seeded(first, middle, last), vectors())


def middle_of(make) -> Case:
    return Case(seeded(first, make, last), vectors())


class Clamped(nn.Module):
    """A layer that keeps its weights small itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.clamp_(-0.1, 0.1)
        return self.layer(x)


class Seeds(nn.Module):
    """A layer that wants the same dropout every time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        torch.manual_seed(0)
        return F.dropout(self.layer(x), 0.5, self.training)


class Remembers(nn.Module):
    """A recurrent layer whose state goes from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.state = nn.RNNCell(8, 8), None

    def forward(self, x):
        self.state = self.cell(x, None if self.state is None else self.state.detach())
        return self.state


class TwoHeads(nn.Module):
    """A second output, for training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.other = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return (self.main(x), self.other(x)) if self.training else self.main(x)


def both(outputs, target):
    return F.cross_entropy(outputs[0], target) + 0.4 * F.cross_entropy(outputs[1], target)


def weighted(output, target):
    labels, weights = target
    return (F.cross_entropy(output, labels, reduction="none") * weights).mean()


def squares(output, target):
    assert target is None
    return output.pow(2).mean()


def shifted(output, target):
    return F.cross_entropy(output, target.add_(1).remainder_(3))


def shifts_target() -> Case:
    return Case(three().stages, vectors(), loss=shifted)


class Bag(nn.Module):
    """The mean of a few words, none of which may be long."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, max_norm=0.5)

    def forward(self, words):
        return self.table(words).mean(1)


def clamped() -> Case:
    return middle_of(Clamped)


def seeds() -> Case:
    return middle_of(Seeds)


def remembers() -> Case:
    return middle_of(Remembers)


def two_heads() -> Case:
    return Case(seeded(first, middle, TwoHeads), vectors(), loss=both)


def sample_weights() -> Case:
    g = torch.Generator().manual_seed(2)
    return Case(three().stages, [(x, (y, torch.rand(len(y), generator=g))) for x, y in vectors()], loss=weighted)


def no_target() -> Case:
    return Case(three().stages, [(x, None) for x, _ in vectors()], loss=squares)


def short_words() -> Case:
    g = torch.Generator().manual_seed(2)
    words = [(torch.randint(11, (8, 5), generator=g), torch.randint(3, (8,), generator=g)) for _ in range(6)]
    return Case(seeded(Bag, middle, last), words)


CHANGED = refuse("changes its weights in place in forward", "pipedream", "fa")
AT_ONCE = refuse(
    "modified by an inplace operation", "gpipe"
)  # as in plain PyTorch, with two forwards before a backward
NO_STACK = refuse("plain stack of layers|feedback supports", *FEEDBACK)
LOCAL = [m for m in METHODS if m not in HEADS]
HABITS = [
    Habit("three stages", three),
    Habit("weights clamped in forward", clamped, {**NO_STACK, **CHANGED, **AT_ONCE}),
    Habit("max_norm of an embedding", short_words, {**CHANGED, **refuse("changes its weights in place", "dfa")}),
    Habit("torch.manual_seed in forward", seeds, refuse("seeds torch's generator"), methods=[*CHAIN, *FORWARD]),
    Habit(
        "a state that goes from batch to batch",
        remembers,
        {**refuse("must not count or remember its calls", "fr", "dsp"), **NO_STACK},
        methods=[m for m in LOCAL if m not in RACES and m != "gpipe"],  # these run batches or parts of them at once
    ),
    Habit("a loss that changes its target", shifts_target, refuse("loss changes its target in place")),
    Habit("an auxiliary output", two_heads, methods=[*CHAIN, *FORWARD]),
    Habit("a target of several tensors", sample_weights, methods=[*CHAIN, *FORWARD]),
    Habit("no target", no_target, refuse("this target is not a tensor of", "gpipe"), methods=[*CHAIN, *FORWARD]),
]
