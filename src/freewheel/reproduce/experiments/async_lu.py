"""Asynchronous SGD with layer-wise updates: tables 1 to 4, 6, 7 and 9."""

from __future__ import annotations

from freewheel import recipes
from freewheel.methods import BP, LAPSGD, LPPSGD, AsyncBU, AsyncLU, Method
from freewheel.reproduce._experiment import Cell, Experiment, Ratio, grid
from freewheel.reproduce._figures import tables
from freewheel.reproduce._networks import Source
from freewheel.reproduce.experiments._nets import CIFAR10, CIFAR100, IMDB, NETS
from freewheel.reproduce.jobs import Passes, Speed, Training

WORKERS = 3  # GPUs of the paper, with one process each
METHODS: dict[str, Method] = {
    "SGD": BP(),
    "Async LU": AsyncLU(),
    "Async BU": AsyncBU(),
    "LAP-SGD": LAPSGD(groups=WORKERS, workers=1),
    "LPP-SGD": LPPSGD(groups=WORKERS, workers=1),
}


def _training(row: str, source: Source) -> Training:
    net, method = row.split(", ")
    recipe = recipes.find("async-lu", data=source.name, model=NETS[net].model)
    return Training(net=NETS[net], source=source, recipe=recipe, method=METHODS[method])


def _to_target(name: str, source: Source) -> Experiment:
    cells = grid(tables()[name], lambda row, _: _training(row, source), name=lambda column: f"target_{column}")
    return Experiment(
        name=name, what=f"time to an accuracy, {source.title}", cells=cells, seeds=3, quick=("ResNet-18*",)
    )


def _to_best(name: str, source: Source, quick: str = "ResNet-18*") -> Experiment:
    cells = grid(tables()[name], lambda row, _: _training(row, source), name=lambda column: column)
    return Experiment(
        name=name,
        what=f"best accuracy, and the time to it, {source.title}",
        cells=cells,
        seeds=3,
        curve="curve",
        quick=(quick,),
    )


def _speed_up(row: str) -> Ratio:
    net, what = row.split(", ")
    ours = Speed(net=NETS[net], batch=128, method=AsyncLU())
    if what == "DDP":
        ours = Speed(net=NETS[net], batch=WORKERS * 128, method=BP(), replicas=WORKERS)
    return Ratio(ours, Speed(net=NETS[net], batch=128, method=BP()), "images/s")


EXPERIMENTS = (
    _to_target("async-table1", CIFAR10),
    _to_best("async-table2", CIFAR10),
    _to_target("async-table3", CIFAR100),
    _to_best("async-table4", CIFAR100),
    _to_best("async-table6", IMDB, quick="*"),
    Experiment(
        name="async-table7",
        what="speed of Async LU and of DDP over one worker",
        cells=tuple(Cell(row, column, _speed_up(row)) for row, column in tables()["async-table7"].cells()),
        seeds=3,
    ),
    Experiment(
        name="async-table9",
        what="time of a forward and a backward pass",
        cells=grid(
            tables()["async-table9"],
            lambda row, _: Passes(net=NETS[row]),
            name=lambda column: column,
        ),
        seeds=3,
    ),
)
