"""The tables that `freewheel bench` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from freewheel.cli._output import new_table, print_line, print_table

Row = Mapping[str, Any]

SPEED_RATIOS = {
    "sequential": "the same stages one at a time",
    "bp_all_cores": "plain PyTorch on all cores",
    "bp_best": "plain PyTorch on its best number of cores",
    "torch_pipelining": "torch.distributed.pipelining at its best",
}
COMPILED_RATIOS = {"sequential": "the same one at a time", "bp_all_cores": "compiled PyTorch on all cores"}
FORWARD_RATIOS = {
    "compiled_over_bp": "A compiled step takes {:.2f} of the time of backpropagation",
    "eager_over_bp": "An eager step takes {:.2f} of the time of backpropagation",
    "compiled_over_bp_compiled": "A compiled step takes {:.2f} of the time of compiled backpropagation",
    "eager_over_func_jvp": "An eager step takes {:.2f} of the time of torch.func.jvp",
    "compiled_over_jax": "A compiled step takes {:.2f} of the time of JAX's jit(jvp)",
    **{
        f"asyncfgd_{kind}_{runtime}": f"Two stages on two cores are {{:.2f}} times as fast as one, {kind}, in {runtime}"
        for kind in ("eager", "compiled")
        for runtime in ("threads", "processes")
    },
}
# Columns of tables: the key in a row, the header and the format.
RATE_COLUMNS = {
    "name": ("", ""),
    "seconds": ("seconds per step", ".4f"),
    "images_per_second": ("images/s", ",.0f"),
}
ASYNC_COLUMNS = {
    "name": ("", ""),
    "seconds": ("seconds", ".2f"),
    "epochs": ("epochs", "g"),
    "images_per_second": ("images/s", ",.0f"),
    "accuracy": ("best accuracy", ".2%"),
    "staleness": ("staleness", ".2f"),
}
ADDITION_COLUMNS = {
    "size": ("numbers", ","),
    "lost": ("lost", ".2%"),
    "lost_locked": ("lost, locked", ".2%"),
    "microseconds": ("µs", ".2f"),
    "microseconds_locked": ("µs, locked", ".2f"),
}
BYTE_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def show_speed(result: Mapping[str, Row]) -> None:
    """Print the result of `freewheel bench speed`."""
    for batch_size, found in result.items():
        _show_numbers(f"batches of {batch_size} images", found["rows"], RATE_COLUMNS)
        print_line("The fastest method on threads is")
        for name, ratio in found["ratios"].items():
            print_line(f"  {ratio:.2f} times as fast as {SPEED_RATIOS.get(name, name)}")
        print_line(f"In processes a method is {found['processes']:.2f} times as fast as on threads.")
        for name, ratio in found["compiled"].items():
            print_line(f"Compiled stages are {ratio:.2f} times as fast as {COMPILED_RATIOS[name]}.")
        print_line(f"Running the plan, not a hand-written loop, takes {found['bookkeeping']:.1%} of a sequential step.")
        for runtime, cost in found["tracing"].items():
            print_line(f"A trace makes a step {cost:.1%} longer on {runtime}.")
        print_line()


def show_forward(result: Mapping[str, Row]) -> None:
    """Print the result of `freewheel bench forward`."""
    for batch_size, found in result.items():
        _show_numbers(f"batches of {batch_size} images", found["rows"], RATE_COLUMNS)
        for name, value in {**found["ratios"], **found["speed_ups"]}.items():
            print_line(FORWARD_RATIOS[name].format(value) + ".")
        if "compiled_over_jax" not in found["ratios"]:
            print_line("JAX is not installed, so it was left out: pip install 'freewheel[bench]'")
        print_line()


def show_memory(result: Mapping[str, Any]) -> None:
    """Print the result of `freewheel bench memory`."""

    def cell(row: Row) -> str:
        extra = f"{row['extra'] / 1e6:.1f}"
        return extra if row["resident"] is None else f"{extra} ({row['resident'] / 1e6:.1f})"

    for sweep in result["sweeps"]:
        title = f"{sweep['title']}: peak MB of tensors (of the process), by {sweep['unit']}"
        show_grid(title, sweep["rows"], row="contender", column="value", header=str, cell=cell)
    for finding in result["findings"]:
        print_line(f"{finding['about']}: {finding['found']:.3f} (expected: at most {finding['limit']:.3f})")


def show_transport(result: Mapping[str, Any]) -> None:
    """Print the result of `freewheel bench transport`."""

    def cell(row: Row) -> str:
        rate = row["gigabytes_per_second"]
        return f"{row['microseconds']:,.0f}" + ("" if rate is None else f" ({rate:.1f})")

    title = "microseconds one way, by size of the message (GB/s)"
    show_grid(title, result["rows"], row="name", column="bytes", header=format_bytes, cell=cell)


def show_straggler(result: Mapping[str, Any]) -> None:
    """Print the result of `freewheel bench straggler`."""
    numbers = ("ms per batch", "busy", *(f"{percentage} %" for percentage in result["percentages"]))
    rows = [
        (row["name"], f"{1e3 * row['seconds']:.2f}", f"{row['busy']:.0%}", *_beside(row["slow_downs"], row["paper"]))
        for row in result["rows"]
    ]
    always_busy = result["always_busy"]
    rows += [
        ("best of DSP", "", "", *_beside(result["best"]["ours"], result["best"]["paper"])),
        ("a stage that is always busy", "", "", *_beside(always_busy["expected"])),
        ("the same, with these draws", "", "", *_beside(always_busy["drawn"])),
    ]
    title = f"% slower when each stage is slowed with probability {result['probability']:.2f} (DSP paper)"
    _show_rows(title, ("", *numbers), rows)
    asleep = result["asleep"]
    if asleep is None:
        print_line("Stages computed, each on a core of its own.")
    else:
        print_line(
            "There are fewer cores than stages, so computing was simulated: stages slept, "
            f"{1e3 * asleep['forward']:g} ms for a forward and {1e3 * asleep['backward']:g} ms for a backward."
        )


def show_async(result: Mapping[str, Any]) -> None:
    """Print the result of `freewheel bench async`."""
    _show_numbers(f"digits, until a test accuracy of {result['target']:.1%}", result["rows"], ASYNC_COLUMNS)
    layers = {row["name"]: row["layers"] for row in result["rows"]}
    for name in ("async-lu", "async-bu"):
        if name in layers:
            by_layer = ", ".join(f"{layer} {late:.2f}" for layer, late in layers[name].items())
            print_line(f"{name}, staleness by layer: {by_layer}")
    print_line()
    _show_numbers("additions of two threads, free and locked", result["additions"], ADDITION_COLUMNS)


def _show_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose named columns hold numbers."""
    table = new_table(*columns, right=tuple(column for column in columns if column), title=title)
    for row in rows:
        table.add_row(*row)
    print_table(table)


def _show_numbers(title: str, rows: Iterable[Row], columns: Mapping[str, tuple[str, str]]) -> None:
    """Print a table with a column for each of these keys, of this header and format."""
    cells = [
        ["-" if row[key] is None else format(row[key], form) for key, (_, form) in columns.items()] for row in rows
    ]
    _show_rows(title, [header for header, _ in columns.values()], cells)


def show_grid(
    title: str,
    rows: Sequence[Row],
    *,
    row: str,
    column: str,
    header: Callable[[Any], str],
    cell: Callable[[Row], str],
) -> None:
    """Print a table with a line for each value of one key, and a column for each value of another."""
    values, names = (dict.fromkeys(found[key] for found in rows) for key in (column, row))
    cells = {(found[row], found[column]): cell(found) for found in rows}
    lines = [(name, *(cells.get((name, value), "") for value in values)) for name in names]
    _show_rows(title, ("", *map(header, values)), lines)


def _beside(ours: Iterable[float], paper: Iterable[float] = ()) -> list[str]:
    """Each number, with the paper's in brackets if there is one."""
    found = [f"{value:.1f}" for value in ours]
    known = [f" ({value:.1f})" for value in paper]
    return [a + b for a, b in zip(found, known or [""] * len(found))]


def format_bytes(size: int) -> str:
    """A number of bytes with its unit.

    Example:
        >>> format_bytes(4), format_bytes(1024), format_bytes(4 << 20)
        ('4 B', '1 KiB', '4 MiB')
    """
    unit, name = next((unit, name) for unit, name in BYTE_UNITS if size >= unit)
    return f"{size // unit} {name}"
