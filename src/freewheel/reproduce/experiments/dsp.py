"""DSP: tables 1 to 3, and figure 4."""

from __future__ import annotations

import re

from freewheel import recipes
from freewheel.methods import BP, DSP, FR, GPipe, Method
from freewheel.reproduce._experiment import Cell, Experiment, Ratio, grid
from freewheel.reproduce._figures import tables
from freewheel.reproduce._networks import Net
from freewheel.reproduce.experiments._nets import NETS, SOURCES
from freewheel.reproduce.jobs import Difference, Speed, Straggler, Training

LARGE = {name: Net(title=name, model=f"{name.lower()}-imagenet") for name in ("ResNet-50", "ResNet-101")}
IMAGENET = {"shape": (3, 224, 224), "classes": 1000}
METHODS: dict[str, Method] = {"FR": FR(), "GPipe": GPipe(), "DSP": DSP(delay=2)}


def parse(row: str) -> tuple[Method, int]:
    """The method of a row, and its stages.

    Example:
        >>> parse("DSP(1,1,0;4,2,0)")[1], parse("FR, K=4")[1], parse("BP")
        (3, 4, (BP(), 1))
    """
    if row == "BP":
        return BP(), 1
    if row.startswith("FR"):
        return FR(), int(row[-1]) if row != "FR" else 3
    p, m = (tuple(map(int, part.split(","))) for part in row.removeprefix("DSP(").rstrip(")").split(";"))
    return DSP(p=p, m=m), len(p)


def _accuracy(row: str, column: str) -> Training:
    net, source = column.split(", ")
    method, k = parse(row)
    recipe = recipes.find("dsp", model=NETS[net].model)
    return Training(net=NETS[net], source=SOURCES[source], recipe=recipe, method=method, k=k)


def _speed_up(row: str, column: str) -> Ratio:
    net, k, batch = re.findall(r"^(.*), K=(\d+), B=(\d+)", row)[0]
    options = (
        {"net": NETS[net], "batch": int(batch)}
        if net not in LARGE
        else {"net": LARGE[net], "batch": int(batch), **IMAGENET}
    )
    base = Speed(**options, method=BP(), k=int(k) if "BP-K" in row else 1)
    return Ratio(Speed(**options, method=METHODS[column], k=int(k)), base, "images/s")


def _difference(row: str, _: str) -> Difference:
    return Difference(training=_accuracy(row, "ResNet-164, CIFAR-10"))


EXPERIMENTS = (
    Experiment(
        name="dsp-table1",
        what="best accuracy, K = 3 and 4",
        cells=grid(tables()["dsp-table1"], _accuracy, name="best"),
        quick=("* / ResNet-98, CIFAR-10",),
    ),
    Experiment(
        name="dsp-table2",
        what="stages that are slow at random",
        cells=grid(
            tables()["dsp-table2"],
            lambda row, _: Straggler(name=row, method=parse(row)[0]),
            name=lambda column: column,
        ),
    ),
    Experiment(
        name="dsp-table3",
        what="speed over BP",
        cells=tuple(Cell(*place, _speed_up(*place)) for place in tables()["dsp-table3"].cells()),
        quick=("ResNet-164* / *", "ResNet-101* / *"),
    ),
    Experiment(
        name="dsp-fig4",
        what="difference of the gradient from BP's",
        cells=grid(tables()["dsp-fig4"], _difference, name=lambda column: column),
        curve="{column} curve",
        axis="‖g − ∇‖ over the number of parameters",
    ),
)
