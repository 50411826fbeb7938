"""Settings: what must not change for batches in flight to stay valid."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from freewheel.stage import StageOptions

FREE = ("name", "credit", "queues", "cell", "credit_options", "over_time")  # change no result, or are below


def settings_of(options: StageOptions) -> dict[str, Any]:
    """A run's settings as plain data."""
    schedule, config = options.schedule, options.config
    settings = {
        "stages": schedule.stages,
        "method": schedule.name,
        **{f.name: getattr(schedule, f.name) for f in fields(schedule) if f.name not in FREE},
        "corrections": [repr(correction) for correction in options.corrections],
        **{f"credit.{name}": value for name, value in options.credit.settings().items()},
        **({"over_time": schedule.over_time} if schedule.over_time != "mean" else {}),  # as for compile
        "head": options.credit.head_settings(),
        "clip": config.clip,
        "autocast": repr(config.autocast),
        "seed": config.seed,
        "threads": config.threads,
        **({"compile": True} if config.compile else {}),  # earlier checkpoints do not have it
    }
    return json.loads(json.dumps(settings))


def difference(saved: dict[str, Any], given: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting that is not as it was: its name, what it was and what it is."""
    names = {**given, **saved}
    return next(
        ((name, saved.get(name), given.get(name)) for name in names if saved.get(name) != given.get(name)), None
    )


def same_heads(saved: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether heads and predictors are the same."""
    return all(saved[name] == given[name] for name in ("stages", "head"))
