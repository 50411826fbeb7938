"""AsyncFGD: tables 1, 2 and 7, and figures 2 to 4 and 6 to 10."""

from __future__ import annotations

import re
from dataclasses import replace

from freewheel import recipes
from freewheel.bench._memory_nets import Net as Layers
from freewheel.methods import BP, DFA, DRTP, FA, FGD, FGDDP, FGDMP, SDFA, AsyncFGD, FGDSync, Method
from freewheel.reproduce._experiment import Cell, Experiment, Largest, Measure, Ratio, Value, grid
from freewheel.reproduce._figures import tables
from freewheel.reproduce._networks import Source
from freewheel.reproduce.experiments._nets import SMALL, SOURCES, TRANSFER
from freewheel.reproduce.jobs import Ideal, Job, LayerMemory, NetMemory, Speed, Training

METHODS: dict[str, tuple[Method, bool]] = {  # and whether it is in stages
    "BP": (BP(), False),
    "FA": (FA(), False),
    "DFA": (DFA(), False),
    "sDFA": (SDFA(), False),
    "DRTP": (DRTP(), False),
    "FGD": (FGD(), False),
    "AsyncFGD": (AsyncFGD(), True),
}
SCRATCH, TRANSFERRED = recipes.find("asyncfgd"), recipes.find("asyncfgd-transfer")
IDEAL = {"FGD": FGDMP(), "Sync FGD": FGDSync(micro=1), "AsyncFGD": AsyncFGD()}
CONTENDERS = {  # of `freewheel bench memory`
    "BP": "BP",
    "Sublinear or ME-BPTT": "BP, checkpointed",
    "AsyncFGD": "AsyncFGD",
    "AsyncFGD†": "AsyncFGD, tangents kept",
}


def _scratch(row: str, column: str) -> Training:
    source, net = row.split(", ")
    method, staged = METHODS[column]
    k = SCRATCH.stages or 1 if staged else 1
    return Training(net=SMALL[net], source=SOURCES[source], recipe=SCRATCH, method=method, k=k)


def _tuned(source: Source, net: str, method: str, peak: float | None) -> Training:
    """From pretrained weights: all of them, or by the schedule of transfer up to a scale."""
    assert TRANSFERRED.transfer is not None
    transfer = None if peak is None else replace(TRANSFERRED.transfer, peak=peak)
    found, staged = METHODS[method]
    k = TRANSFERRED.stages or 1 if staged else 1
    recipe = replace(TRANSFERRED, transfer=transfer)
    return Training(net=TRANSFER[net], source=source, recipe=recipe, method=found, k=k)


def _transfer(row: str, column: str) -> Training:
    source, net = row.split(", ")
    assert TRANSFERRED.transfer is not None
    peak = TRANSFERRED.transfer.peak if column.endswith("*") else None
    return _tuned(SOURCES[source], net, column.rstrip("*"), peak)


def _peak(row: str, column: str) -> Training:
    source, net = row.split(", ")
    return _tuned(SOURCES[source], net, "AsyncFGD", float(column.partition("=")[2]))


def _memory(row: str, column: str) -> Measure:
    part, what = row[:3], row[4:]
    if part == "(c)":
        if " / " in column:
            return Ratio(_net_memory(what, column.partition(" / ")[0]), _net_memory(what, "BP"), "MB")
        return Value(_net_memory(what, column), "MB")
    size = int(what.split()[0])
    layers = (
        Layers(kind="fc", depth=size, width=512)
        if part == "(a)"
        else Layers(kind="rnn", depth=2, width=128, length=size)
    )
    return Value(LayerMemory(layers=layers, contender=CONTENDERS[column]), "MB")


def _net_memory(net: str, column: str) -> Job:
    few = column.endswith("*")
    method, staged = METHODS[column.rstrip("*")]
    own = replace(TRANSFER[net], options=(), pretrained=())
    return NetMemory(net=own, method=method, k=4 if staged else 1, few=few)


def _speed(net: str, column: str, batch: int, k: int) -> Ratio:
    """How many times as fast as FGD on one worker."""
    methods: dict[str, Method] = {
        "FGD-MP": FGDMP(),
        "FGD-DP": FGDDP(),
        "Sync FGD": FGDSync(micro=batch),  # micro-batches of one image (appendix I.2)
        "AsyncFGD": AsyncFGD(),
    }
    base = Speed(
        net=replace(TRANSFER[net], options=(), pretrained=()),
        method=FGD(),
        batch=batch,
        shape=(3, 64, 64),
        by="forward",
    )
    split = {"replicas": k} if column == "FGD-DP" else {"k": k}
    return Ratio(replace(base, method=methods[column], **split), base, "images/s")


def _speeds() -> tuple[Cell, ...]:
    places, cells = list(tables()["asyncfgd-fig4"].cells()), []
    known: dict[tuple[str, str], list[Measure]] = {}
    for row, column in places:
        if size := re.search(r"^(.*), B=(\d+), K=(\d+)$", row):
            net, batch, k = size.groups()
            measure = _speed(net, column, int(batch), int(k))
            known.setdefault((net, column), []).append(measure)
            cells.append(Cell(row, column, measure))
    largest = [
        Cell(row, column, Largest(tuple(known[row.split(", ")[0], column])))
        for row, column in places
        if "largest" in row
    ]
    return (*largest, *cells)


EXPERIMENTS = (
    Experiment(
        name="asyncfgd-table1",
        what="accuracy without backpropagation",
        cells=grid(tables()["asyncfgd-table1"], _scratch, name="last"),
        quick=("MNIST, ConvS-*",),
    ),
    Experiment(
        name="asyncfgd-table2",
        what="transfer from ImageNet weights",
        cells=grid(tables()["asyncfgd-table2"], _transfer, name="last"),
        curve="curve",
        quick=("Fashion-MNIST, MobileNetV3-Small / *",),
    ),
    Experiment(
        name="asyncfgd-table7",
        what="transfer with different scales of the biases",
        cells=grid(tables()["asyncfgd-table7"], _peak, name="last"),
        quick=("CIFAR-10, ResNet-18 / *",),
    ),
    Experiment(
        name="asyncfgd-fig2",
        what="ideal time of a batch, from the plans",
        cells=grid(
            tables()["asyncfgd-fig2"],
            lambda row, _: Ideal(method=IDEAL[row], forward="T_F", backward="", update="T_U", auxiliary=""),
            name=lambda column: column,
        ),
    ),
    Experiment(
        name="asyncfgd-fig3",
        what="memory",
        cells=tuple(Cell(*place, _memory(*place)) for place in tables()["asyncfgd-fig3"].cells()),
        quick=("(a) 2 linear", "(a) 8 linear", "(b) 8 time", "(c) ResNet-18"),
    ),
    Experiment(
        name="asyncfgd-fig4",
        what="speed over FGD, for different K and batches",
        cells=_speeds(),
        quick=("ResNet-18*",),
    ),
)
