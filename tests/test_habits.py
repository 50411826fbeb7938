"""Whatever plain PyTorch trains is trained right, or refused by name before any weight changes.

The rows are in the folder habits, by theme; a file of it has a list `HABITS`.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch

import habits
from habits._habit import METHODS, RACES, Case, Habit
from spread import exhaustive

# Reentrant checkpoints and backward hooks warn where no gradient is asked for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch.compile reads it
]
HABITS: list[Habit] = [
    habit
    for module in pkgutil.iter_modules(habits.__path__)
    if not module.name.startswith("_")
    for habit in importlib.import_module(f"habits.{module.name}").HABITS
]
IN_PROCESSES = ("bp", "pipedream", "asyncfgd", "dgl")


def trained(habit: Habit, method: str, make=None, **options) -> Case:
    """The case, trained."""
    case = (make or habit.make)()
    habit.fit(case.trainer(METHODS[method](), **options), case)
    return case


def apart(a: Case, b: Case) -> dict[str, float]:
    """Where two trained networks differ, and how much for their size."""
    ours, theirs = a.named(), b.named()
    assert [t.shape for t in ours.values()] == [t.shape for t in theirs.values()]
    wide = torch.complex128
    pairs = [(name, x.to(wide), y.to(wide)) for (name, x), y in zip(ours.items(), theirs.values())]
    return {name: ((x - y).norm() / (1e-3 + y.norm())).item() for name, x, y in pairs}


def test_every_habit_has_a_name_of_its_own():
    names = [habit.name for habit in HABITS]
    assert len(set(names)) == len(names)
    for habit in HABITS:
        assert set(habit.refused) <= {*METHODS, "*"}, habit.name


PLAIN = [h for h in HABITS if h.plain and "bp" in h.methods and h.refusal("bp") is None]


@pytest.mark.parametrize("habit", PLAIN, ids=str)
def test_trains_as_plain_pytorch_does(habit):
    ours, theirs = trained(habit, "bp"), habit.make()
    habit.plain(theirs)
    assert {name: d for name, d in apart(ours, theirs).items() if not d <= habit.close} == {}


def check(habit: Habit, method: str, runtime: str) -> None:
    line = habit.refusal(method)
    if line is not None:
        case = habit.make()
        before = case.named()
        with pytest.raises((ValueError, TypeError, RuntimeError), match=line):
            habit.fit(case.trainer(METHODS[method](), runtime=runtime), case)
        assert all(torch.equal(t, before[name]) for name, t in case.named().items() if name in before)
        return
    ours = trained(habit, method)
    fresh, weights = habit.make().named(), ours.named()
    names = [f"{i}.{name}" for i, m in enumerate(ours.trained) for name, p in m.named_parameters() if p.requires_grad]
    learned = [name for name in names if not any(part in name for part in habit.still)]
    assert [name for name in learned if name in fresh and torch.equal(weights[name], fresh[name])] == []
    if habit.twin is not None and method in habit.alike:
        twin = trained(habit, method, habit.twin)
        assert {name: d for name, d in apart(ours, twin).items() if not d <= habit.close} == {}
    if method not in RACES:
        theirs = trained(habit, method, runtime=runtime).named()
        assert [name for name, t in weights.items() if not torch.equal(t, theirs[name])] == []


def turns(habits: list[Habit], often: int = 1) -> list:
    """Every habit with every method; `make test` tries one of each habit's methods, and one that refuses, in turn."""
    out = []
    for number, habit in enumerate(habits):
        right = [m for m in habit.methods if habit.refusal(m) is None]
        refusing = [m for m in habit.methods if habit.refusal(m) is not None]
        quick = [some[number % len(some)] for some in (right, refusing) if some and number % often == 0]
        marks = {m: () if m in quick else exhaustive for m in habit.methods}
        out += [pytest.param(habit, m, id=f"{habit}-{m}", marks=marks[m]) for m in habit.methods]
    return out


@pytest.mark.parametrize(("habit", "method"), turns(HABITS))
def test_right_or_refused_by_every_kind_of_method(habit, method):
    check(habit, method, "threads")


@pytest.mark.parametrize(
    ("habit", "method"),
    [p for p in turns([h for h in HABITS if h.processes], often=40) if p.values[1] in IN_PROCESSES],
)
def test_right_or_refused_in_processes(habit, method):
    check(habit, method, "processes")
