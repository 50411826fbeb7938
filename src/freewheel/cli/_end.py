"""When a training ends, and how often it is done: early stopping, a target, held-out samples, seeds, step sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from freewheel._errors import number, whole_number
from freewheel.cli._output import plural
from freewheel.cli._own import is_own
from freewheel.recipes import RECIPES
from freewheel.trainer import Callback, EarlyStopping, History, StopAt

if TYPE_CHECKING:
    from freewheel.cli._train_options import TrainOptions

HELD_OUT = 0.1  # of the training samples, where a step size is chosen by them


def end_defaults(options: TrainOptions) -> dict[str, Any]:
    """The options of the end of a training, with defaults filled in; refuses those that do not go together."""
    patience = whole_number("--early-stopping", options.early_stopping or 0, least=0)
    target = number("--target", options.target or 0.0, least=0, hint="an accuracy such as 0.9")
    if target > 1:
        raise ValueError(f"--target {target:g}: give an accuracy from 0 to 1, such as {target / 100:g}")
    if target and options.loss is not None:
        raise ValueError(f"--target {target:g} with --loss: a loss of one's own may have no accuracy; leave it out")
    seeds = 1 if options.seeds is None else options.seeds
    if seeds > 1 and options.save is not None:
        raise ValueError(f"--save {options.save} with --seeds {seeds}: which one? --save-to DIR keeps them all")
    return {"early_stopping": patience, "target": target, "seeds": seeds, "validation": _held_out(options)}


def _held_out(options: TrainOptions) -> float:
    """The share of the samples that is held out."""
    for lr in options.lr_grid:
        number("--lr-grid", lr, above=0, hint="step sizes")
    if options.lr_grid and (len(options.lr_grid) == 1 or len(set(options.lr_grid)) < len(options.lr_grid)):
        given = " ".join(f"{lr:g}" for lr in options.lr_grid)
        raise ValueError(f"--lr-grid {given}: give several different ones, or one with --lr")
    if options.lr_grid and options.lr is not None:
        raise ValueError(f"--lr {options.lr:g} with --lr-grid: both set the step size, give one")
    share = (HELD_OUT if options.lr_grid else 0.0) if options.validation is None else options.validation
    number("--validation", share, least=0, hint="the share of the training samples to hold out, such as 0.1")
    if share and is_own(options.data):
        given = "--lr-grid" if options.lr_grid else f"--validation {share:g}"
        raise ValueError(f"{given} with --data {options.data}: samples of its loaders cannot be held out; leave it out")
    if share >= 1:
        raise ValueError(f"--validation {share:g}: give a share below 1, such as 0.1")
    if options.lr_grid and not share:
        raise ValueError("--lr-grid with --validation 0: the step size is chosen by held-out samples; give a share")
    return share


def callbacks(options: TrainOptions) -> list[Callback]:
    """What ends the training before its last epoch."""
    out: list[Callback] = []
    if options.target:
        out.append(StopAt(target=options.target))
    if options.early_stopping:
        monitor = "accuracy" if options.loss is None else "loss"
        out.append(EarlyStopping(monitor=monitor, patience=options.early_stopping))
    return out


def describe_end(options: TrainOptions) -> str:
    """What may end the training early, in words; empty if nothing does.

    Example:
        >>> from freewheel.cli._train_options import TrainOptions
        >>> describe_end(TrainOptions(target=0.9, early_stopping=30, validation=0.1))
        'at 90.00% held-out accuracy, or after 30 epochs without a better one'
    """
    scored = "held-out" if options.validation else "test"
    known = "accuracy" if options.loss is None else "loss"
    after = f"after {options.early_stopping} epochs without a better"
    if options.target and options.early_stopping:
        return f"at {options.target:.2%} {scored} {known}, or {after} one"
    if options.target:
        return f"at {options.target:.2%} {scored} {known}"
    return f"{after} {scored} {known}" if options.early_stopping else ""


def target_of(options: TrainOptions) -> float | None:
    """The accuracy whose time is reported: that of `--target`, else that of the recipe, which ends no training."""
    return options.target or (RECIPES[options.recipe].target if options.recipe else None)


def describe_times(options: TrainOptions, history: History) -> Iterator[str]:
    """When a run has reached its target, or that of the recipe, and what it ended early with."""
    scored, target = "held-out" if options.validation else "test", target_of(options)
    if target is not None:
        reached = history.time_to(target)
        when = "not reached" if reached is None else f"{plural(reached.epochs, 'epoch')}, {reached.seconds:,.1f} s"
        yield f"time to {target:.2%} {scored} accuracy: {when}"
    known = [metric for metric in history.metrics if metric is not None]
    if options.early_stopping and known:
        best = known.index(max(known))
        more = f", and no better in {plural(len(known) - 1 - best, 'more epoch')}" if best + 1 < len(known) else ""
        yield f"best {scored} accuracy {known[best]:.2%} after {plural(best + 1, 'epoch')}{more}"


def run_names(options: TrainOptions) -> list[str]:
    """The names of the runs, if there are several: one for each step size and each seed.

    Example:
        >>> from freewheel.cli._train_options import TrainOptions
        >>> run_names(TrainOptions(lr_grid=(0.1, 0.01), seeds=2)), run_names(TrainOptions(seeds=1))
        (['lr-0.1', 'lr-0.01', 'seed-1'], [])
    """
    begin = options.seed + bool(options.lr_grid)  # the best step size was trained with the first seed
    seeds = range(begin, options.seed + (options.seeds or 1))
    names = [f"lr-{lr:g}" for lr in options.lr_grid] + [f"seed-{seed}" for seed in seeds]
    return names if len(names) > 1 else []


def describe_runs(options: TrainOptions) -> str:
    """Several runs, in words.

    Example:
        >>> from freewheel.cli._train_options import TrainOptions
        >>> describe_runs(TrainOptions(lr_grid=(0.1, 0.01), seeds=3))
        'lr 0.1, 0.01 with seed 0, then the one with the best held-out accuracy with seeds 0 to 2'
        >>> describe_runs(TrainOptions(seeds=3, seed=5))
        'seeds 5 to 7'
    """
    last = options.seed + (options.seeds or 1) - 1
    seeds = f"seed {last}" if last == options.seed else f"seeds {options.seed} to {last}"
    if not options.lr_grid:
        return seeds
    best = "accuracy" if options.loss is None else "loss"
    tried = f"lr {', '.join(f'{lr:g}' for lr in options.lr_grid)} with seed {options.seed}"
    return f"{tried}, then the one with the best held-out {best}{'' if last == options.seed else f' with {seeds}'}"
