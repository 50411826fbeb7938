"""FDG: tables II, III, IV, VI and VII, and figure 3."""

from __future__ import annotations

from freewheel import recipes
from freewheel.methods import BP, DDG, DGL, DNI, FDG, FR, Method
from freewheel.reproduce._experiment import Cell, Experiment, Ratio, Value, grid
from freewheel.reproduce._figures import PaperTable, tables
from freewheel.reproduce._networks import Net, Source
from freewheel.reproduce.experiments._nets import CIFAR10, CIFAR100, NETS
from freewheel.reproduce.jobs import Ideal, Speed, Training

MLP_SR_AUX = DGL(convs=3, layers=3, hidden=None, norm=True)  # section V.A
METHODS: dict[str, Method] = {"BP": BP(), "DDG": DDG(), "FR": FR(), "DGL": MLP_SR_AUX, "DNI": DNI(), "FDG": FDG()}
SHAPES = {  # of the speed measurements: images, classes and samples in a batch
    "WRN-28-10": {"shape": (3, 32, 32), "classes": 10, "batch": 128},
    "ResNet-101": {"shape": (3, 224, 224), "classes": 1000, "batch": 32},
}
SPEED_NETS = {"WRN-28-10": NETS["WRN-28-10"], "ResNet-101": Net(title="ResNet-101", model="resnet-101-imagenet")}


def _trained(net: str, source: Source, method: Method, k: int) -> Training:
    stages = 1 if method == BP() else k
    recipe = recipes.find("fdg", model=NETS[net].model, stages=stages)
    return Training(net=NETS[net], source=source, recipe=recipe, method=method, k=stages)


def _method(table: PaperTable, row: str, column: str) -> Method:
    name, _, shrinking = column.partition(", ")
    return FDG(shrink=table.setting(row, "β")) if shrinking == "best β" else METHODS[name]


def _errors(name: str, source: Source) -> tuple[Cell, ...]:
    """A table of errors; its rows are networks, with K=2 where they do not say."""
    table = tables()[name]

    def make(row: str, column: str) -> Training:
        net, _, k = row.partition(", K=")
        return _trained(net, source, _method(table, row, column), int(k or 2))

    return grid(table, make, name="error")


def _curve(row: str, column: str) -> Training:
    net, what = row.partition(") ")[2].split(", ")
    k = int(column.removeprefix("K="))
    if what.startswith("β="):
        return _trained(net, CIFAR10, FDG(shrink=float(what[2:])), k)
    best = tables()["fdg-table6"]
    method = FDG(shrink=best.setting(f"{net}, {column}", "β")) if what == "FDG" else METHODS[what]
    return _trained(net, CIFAR10, method, k)


def _speed(row: str) -> Speed:
    net, *rest = row.split(", ")
    k, method = (1, "BP") if len(rest) == 1 else (int(rest[0][2:]), rest[1])
    return Speed(net=SPEED_NETS[net], method=METHODS[method], k=k, **SHAPES[net])


def _speeds() -> tuple[Cell, ...]:
    cells = []
    for row, column in tables()["fdg-table7"].cells():
        job = _speed(row)
        base = _speed(f"{row.split(', ')[0]}, BP")
        measure = Ratio(job, base, "images/s") if column == "speed-up" else Value(job, column)
        cells.append(Cell(row, column, measure))
    return tuple(cells)


EXPERIMENTS = (
    Experiment(
        name="fdg-table2",
        what="ideal time of a batch, from the plans",
        cells=grid(tables()["fdg-table2"], lambda row, _: Ideal(method=METHODS[row]), name=lambda column: column),
    ),
    Experiment(
        name="fdg-table3",
        what="error on CIFAR-10, K = 2",
        cells=_errors("fdg-table3", CIFAR10),
        seeds=3,
        statistic="median",
        quick=("ResNet-56 / *",),
    ),
    Experiment(
        name="fdg-table4",
        what="error on CIFAR-100, K = 2",
        cells=_errors("fdg-table4", CIFAR100),
        seeds=3,
        statistic="median",
        quick=("ResNet-56 / *",),
    ),
    Experiment(
        name="fdg-table6",
        what="error on CIFAR-10, K = 2, 3 and 4",
        cells=_errors("fdg-table6", CIFAR10),
        seeds=3,
        statistic="median",
        quick=("ResNet-56*",),
    ),
    Experiment(
        name="fdg-table7",
        what="speed and utilization, K = 2, 3 and 4",
        cells=_speeds(),
        quick=("WRN-28-10*",),
    ),
    Experiment(
        name="fdg-fig3",
        what="learning curves, and different β",
        cells=grid(tables()["fdg-fig3"], _curve, name="error"),
        seeds=3,
        statistic="median",
        curve="errors",
        axis="test error, %",
        quick=("(a, b)* / K=[12]", "(c)*"),
    ),
)
