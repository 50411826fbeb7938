"""Plans as pictures: a row per stage, a column per tick, forwards and backwards in two colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freewheel.plan._actions import Op
from freewheel.plan._clock import ticks

if TYPE_CHECKING:
    from freewheel.plan._plan import Plan

COLOURS = {Op.FORWARD: "#8ecae6", Op.RECOMPUTE: "#cdeaf5", Op.BACKWARD: "#ffb703"}


def save_picture(plans: Sequence[Plan], path: str | Path) -> None:
    """Draw plans one below the other and save them; the file suffix selects the format (svg, png, pdf).

    Forwards are blue, backwards orange, recomputed forwards pale. The large number of a cell is the batch, the small
    one below it the weight version. Idle ticks stay white.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError("a picture needs matplotlib: pip install 'freewheel[bench]'") from None
    scales = [2 if plan.schedule.cell == "round" else 1 for plan in plans]  # a round is a forward and a backward
    when = [
        [[scale * tick for tick in row] for row in ticks(plan.schedule, plan.streams)]
        for plan, scale in zip(plans, scales)
    ]
    width = max(max(row) + scale for rows, scale in zip(when, scales) for row in rows)
    heights = [plan.schedule.stages + 1 for plan in plans]
    figure = Figure(figsize=(0.55 * width + 1.3, 0.5 * sum(heights)), layout="constrained")
    for axes, plan, rows, scale in zip(_column(figure, heights), plans, when, scales):
        _draw(axes, plan, rows, width, scale)
    figure.savefig(path, dpi=150)


def _column(figure: Any, heights: list[int]) -> list[Any]:
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    return [row[0] for row in axes]


def _draw(axes: Any, plan: Plan, rows: list[list[int]], width: int, scale: int) -> None:
    for stage, actions in enumerate(plan.streams):
        cells: dict[int, list[Any]] = {}
        for action, tick in zip(actions, rows[stage]):
            if action.op in COLOURS:
                cells.setdefault(tick, []).append(action)
        for tick, inside in cells.items():
            for i, action in enumerate(inside):
                share = scale / max(scale, len(inside))
                left = tick + i * share
                axes.barh(-stage, share, left=left, height=0.9, color=COLOURS[action.op], edgecolor="white")
                number = f"{action.batch}" if action.micro is None else f"{action.batch}.{action.micro}"
                axes.text(left + share / 2, -stage + 0.1, number, ha="center", va="center", fontsize=8)
                version = f"v{action.version}"
                axes.text(left + share / 2, -stage - 0.26, version, ha="center", va="center", fontsize=5, color="#555")
    axes.set(xlim=(0, width), ylim=(-plan.schedule.stages + 0.5, 0.5), xticks=[])
    axes.set_yticks([-k for k in range(plan.schedule.stages)], [f"stage {k}" for k in range(plan.schedule.stages)])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    locks = ", ".join(sorted(plan.locks)) or "none"
    delays = " ".join(map(str, plan.delays))
    axes.set_title(f"{plan.schedule.name}: delays {delays}, locks left: {locks}", loc="left", fontsize=9)
