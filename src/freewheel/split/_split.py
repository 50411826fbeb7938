"""Cut a model into stages."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn

from freewheel._cores import intra_op_threads, share
from freewheel._errors import unknown, whole_number
from freewheel._malloc import keep_freed_memory
from freewheel.split._arguments import check_example, check_model, check_no_example, check_plan
from freewheel.split._balance import best_cuts, bounds
from freewheel.split._line import Line, make_line
from freewheel.split._measure import time_backpropagation, time_forward_gradients
from freewheel.split._owners import check_owners, parameter_counts, unused
from freewheel.split._report import SplitReport, Stages
from freewheel.split._stages import make_stages
from freewheel.split._tied import tie
from freewheel.split._trace import convert_sequential, is_plain_sequential, trace
from freewheel.split._tracer import MANUAL_SPLIT
from freewheel.split._tree import tensors
from freewheel.split._undisturbed import unpacks
from freewheel.split._values import infer, observe

TIMED = {"time": time_backpropagation, "forward": time_forward_gradients}


def split(
    model: nn.Module,
    k: int | None = None,
    *,
    example: Any = None,
    by: str = "time",
    at: Sequence[str] | None = None,
    balance: Sequence[int] | None = None,
    threads: int | None = None,
) -> Stages:
    """Split a model into k stages that, run one after the other, compute what the model computes, bit for bit.

    One value is sent from stage to stage: the tensor that crosses the cut, or a tuple of tensors in a fixed
    order if there are several; it is the only argument of the next stage. A value needed only by a later stage
    is forwarded by the stages between. Sizes and other plain values are not sent: a stage that needs one
    computes it from the tensor it came from, so the stages take any batch size. The first stage takes the
    model's input; the last returns the model's output.

    The stages hold the model's own submodules, parameters and buffers under their own qualified names.
    ``stage.train()`` and ``stage.eval()`` also reach calls such as ``F.dropout(x, training=self.training)``.

    A ``nn.Sequential`` is cut between its children, and those of nested Sequentials. Any other model is traced
    with ``torch.fx`` and cut between calls of leaf submodules, functions and methods; submodules that cannot be
    traced, or that have hooks, are kept whole. By default a stage does not begin with a call that changes its
    input in place, if there are enough other places to cut.

    Among all splits into contiguous stages, the one whose most expensive stage is cheapest is chosen. Ties are
    broken by the smallest sum of squared costs, then by the smallest messages, then by the latest cuts.

    Args:
        model: The model.
        k: The number of stages; optional with ``at`` or ``balance``.
        example: What the model is called with: a tensor; a tuple, for ``model(*example)``; or a dict, for
            ``model(**example)``. The first stage then takes that tensor, tuple or dict. Required for
            ``by="time"`` or ``"forward"`` and for models with several arguments. Without it, all tensors of a
            message count as equally large.
        by: What to balance: ``"time"``, measured forward and backward on the example in training mode;
            ``"forward"``, measured in a step of forward gradients, for methods such as ``"asyncfgd"``; or
            ``"parameters"``, their number.
        at: Names of submodules; a stage begins at the first call within each.
        balance: The number of units of each stage, instead of balancing: children of a Sequential (or, if
            the numbers add up to more, those of nested Sequentials), or calls in the traced graph.
        threads: Intra-op threads to measure with, as many as a stage will run with: by default the cores
            divided by the stages, as in `fw.Trainer`.

    Raises:
        ValueError: The model cannot be split as requested; the message says why and what to do.
        TypeError: An argument has the wrong type.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> stages = split(model, 2, by="parameters")
        >>> print(stages.report)
        stage  units      cost         share
        0      0 .. 1 (2) 40 parameters  31%
        1      2 .. 4 (3) 90 parameters  69%
        predicted speed-up: 1.44 with 2 stages
        >>> x = torch.randn(3, 4)
        >>> torch.equal(stages[1](stages[0](x)), model(x))
        True
        >>> stages[1].get_parameter("2.weight") is model[2].weight
        True
    """
    check_model(model)
    stages = check_plan(k, by, at, balance)
    if threads is not None:
        whole_number("threads", threads, least=1)
    timed = TIMED.get(by) if at is None and balance is None else None
    output = None
    if example is not None:
        if timed is not None:
            keep_freed_memory()  # as the runtimes do
        output = check_example(model, example)
    elif stages > 1:
        check_no_example(model, timed=by if timed else None)
    if stages == 1 and balance is None and not unpacks(example):
        return _single_stage(model)

    line = _line_of(model, example, balance, output)
    if balance is not None or at is not None:
        cuts = _cuts_at(line, at) if at is not None else _cuts_after(line, balance or [])
        costs, unit = [1] * len(line.units), "units"
    else:
        excluded = _excluded(line, stages)
        with intra_op_threads(share(stages) if threads is None else threads):
            costs, unit = (parameter_counts(line), "parameters") if timed is None else (timed(line, example), "s")
        messages = [sum(item.elements for item in message) for message in line.messages]
        cuts = best_cuts(costs, stages, messages=messages, forbidden=excluded)

    spans = bounds(cuts, len(line.units))
    check_owners(line, spans)
    report = SplitReport(
        costs=tuple(sum(costs[start:end]) for start, end in spans),
        unit=unit,
        names=tuple(tuple(line.name(u) for u in line.units[start:end]) for start, end in spans),
        unused=unused(line),
    )
    return Stages(make_stages(*tie(line, spans), spans), model=model, report=report)


def _single_stage(model: nn.Module) -> Stages:
    """The model as its own single stage."""
    count = sum(p.numel() for p in model.parameters())
    report = SplitReport(costs=(count,), unit="parameters", names=((type(model).__name__,),))
    return Stages([model], model=model, report=report)


def _line_of(model: nn.Module, example: Any, balance: Sequence[int] | None, output: Any) -> Line:
    """The model as a line of units."""
    if is_plain_sequential(model):
        chain = cast(nn.Sequential, model)
        traced = convert_sequential(chain, example, flat=balance is None or sum(balance) != len(chain))
    else:
        traced = trace(model, example)
    values = infer(traced) if example is None else observe(traced, example)
    if example is not None and not _agree(values.output, output):
        raise ValueError(
            f"model: the traced {type(model).__name__}.forward computes something else than the model, because it "
            f"depends on more than its input: move that into a submodule, {MANUAL_SPLIT}"
        )
    line = make_line(traced, values)
    if not line.units:
        raise ValueError(f"model: {type(model).__name__} has no layers to cut between")
    return line


def _agree(one: Any, two: Any) -> bool:
    ones, twos = list(tensors(one)), list(tensors(two))
    return len(ones) == len(twos) and all(map(_close, ones, twos))


def _close(one: Tensor, two: Tensor) -> bool:
    """Equal up to the noise of nondeterministic operations."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, two)
    return torch.allclose(one, two, rtol=1e-2, atol=1e-3, equal_nan=True)


def _excluded(line: Line, k: int) -> set[int]:
    """The cuts not to make; reject more stages than the units can form."""
    most = len(line.units) - len(line.forbidden)
    if k <= most:
        better = line.avoided | set(line.forbidden)
        return set(better) if k <= len(line.units) - len(better) else set(line.forbidden)
    notes = "".join(f"; '{name}' cannot be traced and counts as one layer" for name in line.traced.whole)
    if line.forbidden:
        cut, reason = min(line.forbidden.items())
        where = f"before '{line.name(line.units[cut])}': {reason}"
        notes += f"; {len(line.forbidden)} cuts are impossible, such as {where}"
    raise ValueError(
        f"k={k}: {type(line.model).__name__} has {len(line.units)} layers, which form at most {most} "
        f"stages{notes}; give k <= {most}, {MANUAL_SPLIT}"
    )


def _cuts_after(line: Line, balance: Sequence[int]) -> list[int]:
    """The cuts that give each stage its number of units."""
    if sum(balance) != len(line.units):
        children = line.traced.sequential and len(list(line.model.children())) != len(line.units)
        whole = f" ({len(list(line.model.children()))} children)" if children else ""
        raise ValueError(
            f"balance={list(balance)} adds up to {sum(balance)}, but {type(line.model).__name__} has "
            f"{len(line.units)} units{whole}: make the two numbers equal"
        )
    cuts = list(accumulate(balance))[:-1]
    for cut in cuts:
        if cut in line.forbidden:
            name = line.name(line.units[cut])
            raise ValueError(f"balance={list(balance)}: no stage can begin at '{name}': {line.forbidden[cut]}")
    return cuts


def _cuts_at(line: Line, at: Sequence[str]) -> list[int]:
    """The cuts before the first unit of each named submodule."""
    cuts = [0]
    for i, name in enumerate(at):
        cut = _first_unit(line, name)
        if cut == 0:
            raise ValueError(f"at: nothing comes before {name!r}, so no stage begins there: leave it out")
        if cut <= cuts[-1]:
            how = "begin at the same layer" if cut == cuts[-1] else "are out of execution order"
            raise ValueError(f"at: {at[i - 1]!r} and {name!r} {how}: name the stages in the order they run")
        if cut in line.forbidden:
            raise ValueError(f"at: no stage can begin at {name!r}: {line.forbidden[cut]}")
        cuts.append(cut)
    return cuts[1:]


def _first_unit(line: Line, name: str) -> int:
    for i, unit in enumerate(line.units):
        if any(path == name or path.startswith(f"{name}.") for path in line.paths(unit)):
            return i
    modules = [known for known, _ in line.model.named_modules(remove_duplicate=False) if known]
    if name not in modules:
        near = difflib.get_close_matches(name, modules, n=8, cutoff=0)
        raise unknown("submodule in at", name, near)
    inside = next((line.name(u) for u in line.units if name.startswith(f"{line.name(u)}.")), None)
    if inside is not None:
        raise ValueError(f"at: {name!r} is inside {inside!r}, which is kept whole: name {inside!r}, {MANUAL_SPLIT}")
    raise ValueError(f"at: {name!r} is never called by the model, so no stage can begin there: leave it out")
