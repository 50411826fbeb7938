"""`freewheel train --schedule`: the step size schedule, from its options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from freewheel._errors import one_of, whole_number
from freewheel.recipes import EVERY, SHAPES, WARMUPS, LRSchedule

if TYPE_CHECKING:
    from freewheel.cli._train_options import TrainOptions

OPTIONS = ("schedule", "milestones", "gamma", "t_max", "warmup_epochs", "warmup_lr", "warmup", "schedule_every")
GAMMA = 0.1


def schedule_defaults(options: TrainOptions) -> dict[str, Any]:
    """The options of the schedule with defaults filled in; refuses those that do not go together."""
    shape = options.schedule or ("multistep" if options.milestones else "cosine")
    one_of("schedule", shape, SHAPES)
    if shape == "multistep" and not options.milestones:
        raise ValueError("--schedule multistep without --milestones: give the epochs, such as --milestones 150 225")
    for name, needs in (("milestones", "multistep"), ("gamma", "multistep"), ("t_max", "cosine")):
        if getattr(options, name) not in (None, ()) and shape != needs:
            raise ValueError(
                f"--{name.replace('_', '-')} with --schedule {shape}: it is for {needs}; leave one of them out"
            )
    one_of("schedule_every", options.schedule_every or "batch", EVERY)
    one_of("warmup", options.warmup or "constant", WARMUPS)
    return {
        "schedule": shape,
        "gamma": (options.gamma if options.gamma is not None else GAMMA) if shape == "multistep" else None,
        "schedule_every": options.schedule_every or ("epoch" if shape == "multistep" else "batch"),
        **_warmup_defaults(options),
    }


def _warmup_defaults(options: TrainOptions) -> dict[str, Any]:
    """The options of the warm-up; `--warmup-epochs 0` leaves it out, whatever a recipe says of it."""
    epochs = whole_number("--warmup-epochs", 0 if options.warmup_epochs is None else options.warmup_epochs, least=0)
    for name in ("warmup_lr", "warmup"):
        if options.warmup_epochs is None and getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} without --warmup-epochs: say how long the warm-up is")
    if not epochs:
        return {"warmup_epochs": 0, "warmup_lr": None, "warmup": None}
    if options.warmup_lr is None:
        raise ValueError(f"--warmup-epochs {epochs} without --warmup-lr: give the step size of the warm-up")
    if epochs >= options.epochs:
        raise ValueError(f"--warmup-epochs {epochs} with --epochs {options.epochs}: there would be nothing else")
    return {"warmup_epochs": epochs, "warmup": options.warmup or "constant"}


def check_warmup(options: TrainOptions) -> None:
    """Refuse a warm-up with a larger step size than what follows; `options` have their defaults filled in."""
    for lr in options.lr_grid or (options.lr,):
        if lr is not None and options.warmup_lr is not None and options.warmup_lr > lr:
            raise ValueError(f"--warmup-lr {options.warmup_lr:g} with --lr {lr:g}: a warm-up has the smaller step size")


def step_sizes(options: TrainOptions) -> LRSchedule:
    """The schedule; `options` have their defaults filled in."""
    try:
        return LRSchedule(
            shape=options.schedule,  # pyright: ignore[reportArgumentType]
            milestones=options.milestones,
            gamma=GAMMA if options.gamma is None else options.gamma,
            t_max=options.t_max,
            warmup_epochs=options.warmup_epochs or 0,
            warmup_lr=options.warmup_lr,
            warmup=options.warmup or "constant",  # pyright: ignore[reportArgumentType]
            every=options.schedule_every,  # pyright: ignore[reportArgumentType]
        )
    except ValueError as error:
        names = "|".join(OPTIONS)
        raise ValueError(re.sub(rf"\b({names})=", lambda m: f"--{m[1].replace('_', '-')} ", str(error))) from None
