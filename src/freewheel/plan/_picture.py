"""Plans as pictures: a row per stage, a column per tick, forwards and backwards in two colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freewheel.plan._plan import Plan

COLOURS = {"F": "#8ecae6", "R": "#cdeaf5", "B": "#ffb703"}


def save_picture(plans: Sequence[Plan], path: str | Path) -> None:
    """Draw plans one below the other and save them; the file suffix selects the format (svg, png, pdf).

    Forwards are blue, backwards orange, recomputed forwards pale. The large number of a cell is the batch, the small
    one below it the weight version. Idle ticks stay white.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError("a picture needs matplotlib: pip install 'freewheel[bench]'") from None
    width = max(cell.end for plan in plans for cell in plan.cells())
    heights = [plan.schedule.stages + 1 for plan in plans]
    figure = Figure(figsize=(0.55 * width + 1.3, 0.5 * sum(heights)), layout="constrained")
    for axes, plan in zip(_column(figure, heights), plans):
        _draw(axes, plan, width)
    undated = {"Date": None} if Path(path).suffix == ".svg" else None
    with rc_context({"svg.hashsalt": "freewheel"}):  # the same picture of the same plans
        figure.savefig(path, dpi=150, metadata=undated)


def _column(figure: Any, heights: list[int]) -> list[Any]:
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    return [row[0] for row in axes]


def _draw(axes: Any, plan: Plan, width: float) -> None:
    for stage, op, batch, micro, version, begin, end in plan.cells():
        axes.barh(-stage, end - begin, left=begin, height=0.9, color=COLOURS[op], edgecolor="white")
        number = f"{batch}" if micro is None else f"{batch}.{micro}"
        middle = (begin + end) / 2
        axes.text(middle, -stage + 0.1, number, ha="center", va="center", fontsize=11)
        axes.text(middle, -stage - 0.25, f"v{version}", ha="center", va="center", fontsize=7.5, color="#333")
    axes.set(xlim=(0, width), ylim=(-plan.schedule.stages + 0.5, 0.5), xticks=[])
    axes.set_yticks([-k for k in range(plan.schedule.stages)], [f"stage {k}" for k in range(plan.schedule.stages)])
    axes.tick_params(length=0, labelsize=10.5)
    axes.spines[:].set_visible(False)
    locks = ", ".join(sorted(plan.locks)) or "none"
    delays = " ".join(map(str, plan.delays))
    axes.set_title(f"{plan.schedule.name}: delays {delays}, locks left: {locks}", loc="left", fontsize=11.5)
