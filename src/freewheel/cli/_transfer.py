"""`freewheel train --transfer`: the schedule of a transfer, from its options."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torch import nn

from freewheel._errors import whole_number
from freewheel.models import classifier
from freewheel.tangents import Transfer

if TYPE_CHECKING:
    from freewheel.cli._train_options import TrainOptions

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Transfer) if field.name != "classifier"}


def transfer_defaults(options: TrainOptions) -> dict[str, Any]:
    """The options `transfer_…` with defaults filled in where `--transfer` is given; refuses them without it."""
    names = {f"transfer_{name}": default for name, default in DEFAULTS.items()}
    given = {name: getattr(options, name) for name in names if getattr(options, name) not in (None, ())}
    if not options.transfer:
        for name in given:
            raise ValueError(f"--{name.replace('_', '-')} without --transfer: give that as well")
        return {}
    return {**names, "transfer_layers": (DEFAULTS["layers"],), **given}


def check_transfer(options: TrainOptions, *, forward: bool, method_options: dict[str, Any]) -> None:
    """Refuse options that do not go together; `options` have their defaults filled in."""
    if not options.transfer:
        return
    if not forward:
        raise ValueError(
            f"--transfer with --method {options.method}: its schedule is for the tangents of forward gradients; give "
            "--method asyncfgd, or leave --transfer out"
        )
    if method_options.get("scale", 1) != 1:
        raise ValueError(
            f"--transfer with -o scale={method_options['scale']}: both set the scale of tangents, give one"
        )
    warmup, peak = options.transfer_warmup, options.transfer_peak
    assert warmup is not None
    assert peak is not None
    whole_number("--transfer-warmup", warmup, least=0)
    whole_number("--transfer-ramp", options.transfer_ramp, least=1)
    if not 0 <= peak < float("inf"):
        raise ValueError(f"--transfer-peak={peak:g}: give a number from 0 on, such as 0.15")
    if options.epochs <= warmup and peak:
        raise ValueError(
            f"--epochs {options.epochs} with a warm-up of {warmup}: only the classifier would be trained; give more "
            "--epochs, or a shorter --transfer-warmup (--transfer-peak 0 for the classifier alone)"
        )


def transfer_schedule(options: TrainOptions, model: nn.Module) -> Transfer | None:
    """The schedule for this network, if one is asked for."""
    if not options.transfer:
        return None
    choices = {name: getattr(options, f"transfer_{name}") for name in DEFAULTS}
    return Transfer(classifier=classifier(model), **choices)


def describe_transfer(schedule: Transfer) -> str:
    """Describe a schedule in one line.

    Example:
        >>> describe_transfer(Transfer(classifier="fc.*", warmup=3, ramp=5))
        'fc.* from the first epoch on, *.bias from epoch 4 on, with α growing to 0.15 in epoch 8'
    """
    first, last = schedule.warmup + 1, schedule.warmup + schedule.ramp
    alone = f"{' '.join(schedule.classifier)} from the first epoch on, "
    if not schedule.peak:
        return f"{alone}and nothing else"
    grows = f"with α growing to {schedule.peak:g} in epoch {last}" if last > first else f"with α = {schedule.peak:g}"
    return f"{alone}{' '.join(schedule.layers)} from epoch {first} on, {grows}"
