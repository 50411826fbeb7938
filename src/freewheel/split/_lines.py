"""The lines of units that a model may be cut into, from coarse to fine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from torch import nn

from freewheel.split._compare import agree, check_other_batch
from freewheel.split._line import Line, make_line
from freewheel.split._trace import Traced, convert_sequential, is_plain_sequential, trace
from freewheel.split._tracer import MANUAL_SPLIT, is_layer
from freewheel.split._values import infer, observe


def lines_of(model: nn.Module, example: Any, output: Any, *, children: bool) -> Iterator[Line]:
    """The model as a line of units, from coarse to fine: the children of a Sequential, then all calls."""
    if is_plain_sequential(model):
        sequential = cast(nn.Sequential, model)
        if children:
            yield _line(convert_sequential(sequential, example, flat=False), example, output)
        flat = convert_sequential(sequential, example, flat=True)
        yield _line(flat, example, output)
        if all(is_layer(child) for child in flat.submodules().values()):
            return
    yield _line(trace(model, example), example, output)


def _line(traced: Traced, example: Any, output: Any) -> Line:
    """The line of a graph, which must compute what the model computes."""
    name = type(traced.model).__name__
    values = infer(traced) if example is None else observe(traced, example)
    if example is not None and not agree(values.output, output):
        raise ValueError(
            f"model: the traced {name}.forward computes something else than the model, because it "
            f"depends on more than its input: move that into a submodule, {MANUAL_SPLIT}"
        )
    if traced.recorded:
        check_other_batch(traced, example)
    line = make_line(traced, values)
    if not line.units:
        raise ValueError(f"model: {name} has no layers to cut between")
    return line


def first(lines: Iterator[Line], fits: Callable[[Line], bool]) -> Line:
    """The first line that fits, or the last."""
    line = next(lines)
    while not fits(line) and (finer := next(lines, None)) is not None:
        line = finer
    return line


def with_units(lines: Iterator[Line], count: int) -> Line:
    """The first line with this number of units, or the last."""
    return first(lines, lambda line: len(line.units) == count)
