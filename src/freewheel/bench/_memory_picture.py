"""The memory benchmark as a picture: a panel per sweep, as in the paper's figures 3 and 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

# Backpropagation in warm colours, forward gradients in cold ones; what should stand out lies on top.
STYLES: dict[str, dict[str, Any]] = {
    "BP": {"color": "#d62828", "marker": "o", "linewidth": 2.4},
    "BP, checkpointed": {"color": "#f77f00", "marker": "s", "linestyle": "--"},
    "BP, checkpointed, fused updates": {"color": "#e9b000", "marker": "D", "linestyle": ":"},
    "FGD": {"color": "#5aa9d6", "marker": "v"},
    "AsyncFGD": {"color": "#1d3557", "marker": "o", "linewidth": 2.4, "zorder": 3},
    "AsyncFGD, tangents kept": {"color": "#457b9d", "marker": "^", "linestyle": "--"},
    "FGD, graph": {"color": "#2a9d8f", "marker": "v", "linestyle": ":"},
    "AsyncFGD, graph": {"color": "#1b7f5c", "marker": "o", "linestyle": ":"},
}
RESIDENT = {"linestyle": "none", "marker": "o", "markersize": 8, "fillstyle": "none", "alpha": 0.5}
COLUMNS = 3


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before anything is measured."""
    known = _figure().canvas.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise ValueError(f"--picture {path}: name the file .svg, .png or .pdf, for its ending is the format")


def save_picture(sweeps: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a panel for each sweep, and save the picture.

    Lines are bytes of tensors; hollow marks are the resident set, which is not only tensors.
    """
    drawn = [sweep for sweep in sweeps if sweep["rows"]]
    rows = -(-(len(drawn) + 1) // COLUMNS)
    figure = _figure(figsize=(3.9 * COLUMNS, 3.3 * rows), layout="constrained")
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    legend = panels.pop(min(COLUMNS - 1, len(drawn)))
    for axes, sweep in zip(panels, drawn):
        _draw(axes, sweep)
    for axes in (legend, *panels[len(drawn) :]):
        axes.axis("off")
    seen = {row["contender"] for sweep in drawn for row in sweep["rows"]}
    lines = [legend.plot([], [], label=name, **style)[0] for name, style in STYLES.items() if name in seen]
    lines += legend.plot([], [], label="the same, resident set", color="#555", **RESIDENT)
    legend.legend(handles=lines, loc="center left", frameon=False, title="Peak memory beyond weights and batch")
    figure.savefig(path, dpi=150)


def _figure(**options: Any) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError("a picture needs matplotlib: pip install 'freewheel[bench]'") from None
    return Figure(**options)


def _draw(axes: Any, sweep: Mapping[str, Any]) -> None:
    for name, style in STYLES.items():
        rows = [row for row in sweep["rows"] if row["contender"] == name]
        axes.plot([row["value"] for row in rows], [row["extra"] / 1e6 for row in rows], markersize=4, **style)
        seen = [row for row in rows if row["resident"] is not None]
        marks = RESIDENT | {"color": style["color"]}
        axes.plot([row["value"] for row in seen], [row["resident"] / 1e6 for row in seen], **marks)
    ticks = sorted({row["value"] for row in sweep["rows"]})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel(sweep["unit"])
    axes.set_ylabel("MB")
    axes.set_title(fill(sweep["title"], 48), loc="left", fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
