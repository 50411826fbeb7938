"""The tables that `freewheel bench gpu` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from freewheel.cli._bench_tables import show_grid
from freewheel.cli._output import new_table, print_line, print_table

MIB = 1 << 20
COLUMNS = ("ms", "images/s", "+MiB", "reserved", "over eager", "", "over best")

LEGEND = (
    "ms: of a batch, the median. +MiB: the peak of tensors beyond weights, optimizer state and data; reserved: of the",
    "allocator. over eager: how many times as fast as eager backpropagation in PyTorch. over best: as the best of",
    "PyTorch and JAX, with the same kind of gradient.",
)


def show_gpu(result: Mapping[str, Any]) -> None:
    """Print the result of `freewheel bench gpu`."""
    for case in result["cases"]:
        if not result["speed_ups"]:
            _show_case(case)
        for row in case["rows"]:
            if row["error"] is not None:
                print_line(f"{case['title']}, {row['name']}: {row['error']}")
    if result["speed_ups"]:
        _show_sweep(result["speed_ups"])
    else:
        for line in LEGEND:
            print_line(line)
    for finding in result["findings"]:
        print_line(f"{finding['about']}: {finding['found']:.3f} ({finding['unit']} {finding['limit']:g} expected)")
    print_line(", ".join(f"{name} {value}" for name, value in result["machine"].items()))


def _show_case(case: Mapping[str, Any]) -> None:
    table = new_table("contender", *COLUMNS, right=COLUMNS, title=case["title"])
    for row in case["rows"]:
        if row["seconds"] is not None:
            table.add_row(row["name"], *_cells(row))
    print_table(table)


def _show_sweep(speed_ups: Sequence[Mapping[str, Any]]) -> None:
    for net in dict.fromkeys(row["net"] for row in speed_ups):
        show_grid(
            f"{net.removeprefix('torchvision/')}: times as fast as fgd, by images in a batch",
            [row for row in speed_ups if row["net"] == net],
            row="name",
            column="batch",
            header=str,
            cell=lambda row: f"{row['speed_up']:.2f}",
        )


def _cells(row: Mapping[str, Any]) -> list[str]:
    eager, best = row["over_eager"], row["over_best"]
    return [
        f"{1e3 * row['seconds']:.3f}",
        f"{row['images_per_second']:,.0f}",
        *("" if row[key] is None else f"{row[key] / MIB:,.0f}" for key in ("extra", "reserved")),
        "" if eager is None else f"{eager:.2f}",
        "slower" if eager is not None and eager < 1 and row["kind"] == "freewheel" else "",
        "" if best is None else f"{best:.2f}",
    ]
