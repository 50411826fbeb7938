"""Habits that nobody would call one: the example to follow for other rows."""

from __future__ import annotations

from torch import nn

from habits._habit import Case, Habit, seeded, vectors


def first() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh())


def middle() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def last() -> nn.Module:
    return nn.Linear(8, 3)


def three() -> Case:
    return Case(seeded(first, middle, last), vectors())


HABITS = [Habit("three stages", three)]
