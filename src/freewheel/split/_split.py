"""Cut a model into stages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn

from freewheel._cores import intra_op_threads, share
from freewheel._errors import whole_number
from freewheel._malloc import keep_freed_memory
from freewheel.split._arguments import check_example, check_model, check_no_example, check_plan
from freewheel.split._cuts import Cuts, balanced, counted, enclosing, named, too_many
from freewheel.split._line import Line
from freewheel.split._lines import first, lines_of, with_units
from freewheel.split._measure import time_backpropagation, time_forward_gradients
from freewheel.split._owners import check_owners, parameter_counts, unused
from freewheel.split._report import SplitReport, Stages
from freewheel.split._stages import make_stages
from freewheel.split._tied import tie
from freewheel.split._undisturbed import unpacks

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

    A ``nn.Sequential`` is cut between its children, and those of nested Sequentials, if that gives stages of about
    equal cost. Any other model is traced with ``torch.fx`` and cut between calls of leaf submodules, functions and
    methods; submodules that cannot be traced, or that have hooks, are kept whole, and reported. Where the model
    itself cannot be traced, its calls are recorded while it runs on the example. By default a stage does not begin
    with a call that changes its input in place, if there are enough other places to cut.

    Among all splits into contiguous stages, the one whose most expensive stage is cheapest is chosen. Ties are
    broken by the smallest sum of squared costs, then by the smallest messages, then by the latest cuts. If the most
    expensive stage costs more than one and a half times the mean, a warning gives the shares and the reason.

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
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> stages = split(model, 2, by="parameters")
        >>> print(stages.report)
        stage  units      cost         share
        0      0 .. 1 (2) 40 parameters  31%
        1      2 .. 4 (3) 90 parameters  69%
        balance allows a speed-up of 1.44 with 2 stages
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

    lines = lines_of(model, example, output, children=balance is not None)
    if at is not None:
        cuts = named(first(lines, lambda line: not any(enclosing(line, name) for name in at)), at)
    elif balance is not None:
        cuts = counted(with_units(lines, sum(balance)), balance)
    else:
        with intra_op_threads(share(stages) if threads is None else threads):
            cuts = _best(lines, stages, partial(timed, example=example) if timed else None)
    check_owners(cuts.line, cuts.spans)
    report = _report(cuts)
    if report.bottleneck:
        measure = "time" if report.unit == "s" else report.unit
        warnings.warn(
            f"unbalanced split: the stages have {report.shares} of the {measure}: {report.bottleneck}; "
            "give fewer stages, another `by`, or divide that part of the model into smaller layers",
            stacklevel=2,
        )
    return Stages(make_stages(*tie(cuts.line, cuts.spans), cuts.spans), model=model, report=report)


def _single_stage(model: nn.Module) -> Stages:
    """The model as its own single stage."""
    count = sum(p.numel() for p in model.parameters())
    report = SplitReport(costs=(count,), unit="parameters", names=((type(model).__name__,),))
    return Stages([model], model=model, report=report)


def _best(lines: Iterator[Line], k: int, timed: Callable[[Line], list[float]] | None) -> Cuts:
    """The cuts of the first line that they divide well, or of the line that they divide best."""
    found: list[Cuts] = []
    tried: list[Line] = []
    for line in lines:
        tried.append(line)
        if line.most_stages >= k:
            costs, unit = (parameter_counts(line), "parameters") if timed is None else (timed(line), "s")
            found.append(balanced(line, k, costs, unit))
            if not found[-1].unbalanced:
                return found[-1]
    if not found:
        raise too_many(tried[-1], k)
    return min(found, key=lambda cuts: cuts.largest_share)


def _report(cuts: Cuts) -> SplitReport:
    line = cuts.line
    return SplitReport(
        costs=tuple(cuts.stage_costs),
        unit=cuts.unit,
        names=tuple(tuple(line.name(u) for u in line.units[start:end]) for start, end in cuts.spans),
        unused=unused(line),
        whole=tuple(line.traced.whole.items()),
        bottleneck=cuts.bottleneck(),
        unit_costs=tuple(cuts.costs),
    )
