"""`freewheel plan`: the timeline of a method, and what it holds in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import freewheel
from freewheel._errors import whole_number
from freewheel.cli._method_options import find_method
from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import check_file, plural, print_line
from freewheel.cli._traits import retained, uses_forward_gradients
from freewheel.methods import Method
from freewheel.plan import Plan, save_picture

LOCKS = ("forward", "backward", "update")


def plan(
    method: Annotated[str, Parameter(help="A name from `freewheel methods`.")],
    /,
    *,
    stages: Annotated[int, declare(OPTIONS, "K", "Number of stages.", "-k")],
    batches: Annotated[int, declare(OPTIONS, "N", "Number of batches to draw.")] = 8,
    option: Annotated[
        tuple[str, ...], declare(OPTIONS, "NAME=VALUE", "An option of the method; repeatable.", "-o")
    ] = (),
    text: Annotated[bool, declare(OPTIONS, "", "Print every action, messages included.", negative=())] = False,
    picture: Annotated[Path | None, declare(OPTIONS, "FILE", "Save a picture too: svg, png or pdf.")] = None,
) -> None:
    """Draw what each stage does when.

    F2@1: the forward of batch 2, with weights of version 1. R: a recomputed forward. B: a backward. ! or U: an update.
    S: a step of the predictor of gradients.
    """
    whole_number("--stages", stages, least=1)
    whole_number("--batches", batches, least=1)
    check_file("--picture", picture)
    chosen = find_method(method, option)
    drawn = freewheel.plan(chosen, k=stages, batches=batches)
    if picture is not None:
        save_picture([drawn], picture)
        print_line(f"wrote {picture}", error=True)
    if text:
        print_line(drawn.text())
        return
    print_line(str(drawn))
    print_line()
    for line in facts(chosen, stages):
        print_line(line)


def steady_plan(method: Method, stages: int) -> Plan:
    """A plan of the method that is long enough to reach its steady state: full queues, and every lock at work."""
    schedule = method.pipeline(stages).schedule()
    return freewheel.plan(method, k=stages, batches=2 * (max(schedule.delays) + schedule.credit.lag + stages) + 2)


def locks(plan: Plan) -> list[str]:
    """The locks that a plan leaves, in a fixed order."""
    return [lock for lock in LOCKS if lock in plan.locks]


def facts(method: Method, stages: int) -> list[str]:
    r"""Delays, locks, and for each stage the most that it holds and the queues behind it.

    Example:
        >>> print("\n".join(facts(freewheel.DSP(), 2)))
        delays      2 0
        staleness   2 0
        locks left  none
        <BLANKLINE>
        stage  inputs  graphs  weight copies  queues to the next stage
        0      3       1       1              2 activations, 2 gradients
        1      0       1       1              -
        >>> print("\n".join(facts(freewheel.AsyncFGD(), 2)))
        delays      1 0
        staleness   1 0
        locks left  none
        no graphs; a batch whose derivative is pending retains the seed of its tangents
        <BLANKLINE>
        stage  pending batches  weight copies  queues to the next stage
        0      2                1              1 activation, 2 derivatives
        1      1                1              -
    """
    plan, pipeline = steady_plan(method, stages), method.pipeline(stages)
    lines = [
        f"delays      {' '.join(map(str, plan.delays))}",
        f"staleness   {' '.join(map(str, plan.staleness))}",
        f"locks left  {', '.join(locks(plan)) or 'none'}",
    ]
    queues = [*(_queues(plan, *lengths) for lengths in plan.schedule.lengths()), "-"]
    if uses_forward_gradients(pipeline):
        lines.append(f"no graphs; a batch whose derivative is pending retains {retained(pipeline)}")
        lines += ["", "stage  pending batches  weight copies  queues to the next stage"]
        for stage, (held, queue) in enumerate(zip(plan.memory(), queues)):
            lines.append(f"{stage:<5}  {plan.delays[stage] + 1:<15}  {held.weights:<13}  {queue}")
        return lines
    lines += ["", "stage  inputs  graphs  weight copies  queues to the next stage"]
    for stage, (held, queue) in enumerate(zip(plan.memory(), queues)):
        lines.append(f"{stage:<5}  {held.inputs:<6}  {held.graphs:<6}  {held.weights:<13}  {queue}")
    return lines


def _queues(plan: Plan, up: int, down: int) -> str:
    """The queues between two stages."""
    kinds = [message.noun.split()[-1] for message in plan.schedule.credit.messages]
    return ", ".join([plural(up, "activation"), *(plural(down, kind) for kind in kinds)])
