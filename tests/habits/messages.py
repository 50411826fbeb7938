"""What stages pass to each other, and what loaders give."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from habits._habit import FEEDBACK, HEADS, Case, Habit, refuse, seeded, vectors


@dataclass
class Features:
    """A registered dataclass."""

    left: Tensor
    right: Tensor


torch.export.register_dataclass(Features, serialized_type_name="habits.Features")


@dataclass
class Hidden:
    """A dataclass that torch does not know."""

    left: Tensor
    right: Tensor


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


Couple = namedtuple("Couple", "left right")


class Opaque:
    """Any class."""

    def __init__(self, left, right):
        self.left, self.right = left, right


class Fork(nn.Module):
    """Two branches, passed on in a class."""

    def __init__(self, kind):
        super().__init__()
        self.left, self.right, self.kind = nn.Linear(6, 4), nn.Linear(6, 4), kind

    def forward(self, x):
        return self.kind(self.left(x).tanh(), self.right(x).sigmoid())


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, pair):
        left, right = (pair.left, pair.right) if hasattr(pair, "left") else pair
        return self.out(torch.cat([left, right], 1))


def fork(kind):
    return Case(seeded(lambda: Fork(kind), Join), vectors())


def a_tuple(left, right):
    return left, right


def as_tuple():
    return fork(a_tuple)


def as_named_tuple():
    return fork(Pair)


def as_collections_named_tuple():
    return fork(Couple)


def as_registered_dataclass():
    return fork(Features)


def as_unknown_dataclass():
    return fork(Hidden)


def as_any_class():
    return fork(Opaque)


class DictFork(nn.Module):
    def __init__(self, kind=dict):
        super().__init__()
        self.left, self.right, self.kind = nn.Linear(6, 4), nn.Linear(6, 4), kind

    def forward(self, x):
        return self.kind(
            {"left": self.left(x).tanh(), "right": self.right(x).sigmoid(), "name": "features", "none": None}
        )


class DictJoin(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        assert x["name"] == "features"
        return self.out(torch.cat([x["left"], x["right"]], 1))


def as_dict():
    return Case(seeded(DictFork, DictJoin), vectors())


def as_ordered_dict():
    return Case(seeded(lambda: DictFork(OrderedDict), DictJoin), vectors())


class Spectrum(nn.Module):
    """A Fourier layer: its output is complex."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return torch.fft.rfft(self.inner(x))


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.cfloat))

    def forward(self, x):
        return x * self.weight


class Back(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.fft.irfft(x, n=6))


def fourier():
    return Case(seeded(Spectrum, Filter, Back), vectors())


class RealSpectrum(nn.Module):
    """The same, passed on as real numbers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return torch.view_as_real(torch.fft.rfft(self.inner(x)))


class RealFilter(Filter):
    def forward(self, x):
        return torch.view_as_real(torch.view_as_complex(x) * self.weight)


class RealBack(Back):
    def forward(self, x):
        return super().forward(torch.view_as_complex(x))


def real_fourier():
    return Case(seeded(RealSpectrum, RealFilter, RealBack), vectors())


STACK = refuse("not a plain stack of layers", "dfa")
REGISTER = {**refuse("register its class"), **STACK}
COMPLEX = {**refuse("view_as_real", *HEADS), **refuse("feedback supports", *FEEDBACK)}
HABITS = [
    Habit("a tuple between stages", as_tuple, STACK),
    Habit("a named tuple between stages", as_named_tuple, STACK, twin=as_tuple),
    Habit("collections.namedtuple between stages", as_collections_named_tuple, STACK, twin=as_tuple),
    Habit("a registered dataclass between stages", as_registered_dataclass, STACK, twin=as_tuple),
    Habit("a dataclass between stages", as_unknown_dataclass, REGISTER),
    Habit("any class between stages", as_any_class, REGISTER),
    Habit("a dict between stages", as_dict, STACK, twin=as_tuple),
    Habit("an OrderedDict between stages", as_ordered_dict, STACK, twin=as_tuple),
    Habit("complex tensors between stages", fourier, COMPLEX, twin=real_fourier),
]
