"""`freewheel plan`: the timeline of a method, and what it holds in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import freewheel
from freewheel._errors import whole_number
from freewheel.cli._options import find_method, option_flag
from freewheel.cli._output import check_file, plural, say
from freewheel.methods import Method
from freewheel.plan import Plan, save_picture

LOCKS = ("forward", "backward", "update")


def plan(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A name out of `freewheel methods`.")],
    stages: Annotated[int, typer.Option("--stages", "-k", metavar="K", help="Number of stages.")],
    batches: Annotated[int, typer.Option(metavar="N", help="Number of batches drawn.")] = 8,
    option: Annotated[list[str] | None, option_flag()] = None,
    text: Annotated[bool, typer.Option("--text", help="Print every action, messages included.")] = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a picture too: svg, png or pdf.")] = None,
) -> None:
    """Draw what each stage does when.

    F2@1: the forward of batch 2, with weights of version 1. R: a recomputed forward. B: a backward. ! or U: an update.
    S: a fit of the predictor of gradients.
    """
    whole_number("--stages", stages, least=1)
    whole_number("--batches", batches, least=1)
    if picture is not None:
        check_file("--picture", picture)
    chosen = find_method(method, option)
    drawn = freewheel.plan(chosen, k=stages, batches=batches)
    if picture is not None:
        save_picture([drawn], picture)
        say(f"wrote {picture}", error=True)
    if text:
        say(drawn.text())
        return
    say(str(drawn))
    say()
    for line in facts(lasting(chosen, stages)):
        say(line)


def lasting(method: Method, stages: int) -> Plan:
    """The method's plan, long enough to have settled: in a short one, nothing has yet piled up or been held back."""
    schedule = method.pipeline(stages).schedule()
    return freewheel.plan(method, k=stages, batches=2 * (max(schedule.delays) + schedule.credit.lag + stages) + 2)


def locks(plan: Plan) -> list[str]:
    """The locks that remain, in a fixed order."""
    return [lock for lock in LOCKS if lock in plan.locks]


def facts(plan: Plan) -> list[str]:
    r"""Delays, locks, and for each stage the most that it holds and the queues behind it.

    Example:
        >>> print("\n".join(facts(freewheel.plan("dsp", k=2))))
        delays      2 0
        locks left  none
        <BLANKLINE>
        stage  inputs  graphs  weight copies  queues to the next stage
        0      3       1       1              2 activations, 2 gradients
        1      0       1       1              -
        >>> print("\n".join(facts(freewheel.plan("asyncfgd", k=2))))
        delays      1 0
        locks left  none
        no graphs; a batch that waits for its derivative keeps the seed of its tangents
        <BLANKLINE>
        stage  waiting batches  weight copies  queues to the next stage
        0      2                1              1 activation, 2 derivatives
        1      1                1              -
    """
    lines = [
        f"delays      {' '.join(map(str, plan.delays))}",
        f"locks left  {', '.join(locks(plan)) or 'none'}",
    ]
    forward = plan.schedule.credit.name == "forward"
    queues = [*(_queues(plan, *lengths) for lengths in plan.schedule.lengths()), "-"]
    if forward:
        lines.append(f"no graphs; a batch that waits for its derivative keeps {_kept(plan.schedule.credit)}")
        lines += ["", "stage  waiting batches  weight copies  queues to the next stage"]
        for stage, (held, queue) in enumerate(zip(plan.memory(), queues)):
            lines.append(f"{stage:<5}  {plan.delays[stage] + 1:<15}  {held.weights:<13}  {queue}")
        return lines
    lines += ["", "stage  inputs  graphs  weight copies  queues to the next stage"]
    for stage, (held, queue) in enumerate(zip(plan.memory(), queues)):
        lines.append(f"{stage:<5}  {held.inputs:<6}  {held.graphs:<6}  {held.weights:<13}  {queue}")
    return lines


def _queues(plan: Plan, up: int, down: int) -> str:
    """What may wait between two stages."""
    kinds = [message.noun.split()[-1] for message in plan.schedule.credit.messages]
    return ", ".join([plural(up, "activation"), *(plural(down, kind) for kind in kinds)])


def _kept(tangents: Any) -> str:
    """What a batch leaves behind between its forward and its update, under forward gradients."""
    drawn = "the seed of its tangents" if tangents.checkpoint else "its tangents"
    return f"{drawn} and the inputs of Linear and Conv2d layers" if tangents.perturb == "activations" else drawn
