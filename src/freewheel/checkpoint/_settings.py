"""What must be the same for batches in flight to mean the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from freewheel.stage import StageOptions

FREE = ("name", "queues", "cell")  # of a schedule: they change no result
UNSAID = {  # where settings leave them out
    "replicas": 1,
    "taught": False,
    "lag": 0,
    "joined": False,
    "heads": None,
    "predictors": None,
    "feedback": None,
}


def settings_of(options: StageOptions, threads: int) -> dict[str, Any]:
    """A run's settings as plain data."""
    schedule = {name: value for name, value in asdict(options.schedule).items() if name not in FREE}
    settings = {
        "stages": options.schedule.stages,
        "method": options.schedule.name,
        **schedule,
        "corrections": [_text(correction) for correction in options.corrections],
        "tangents": _options(options.tangents),
        "heads": _options(options.heads) if options.schedule.credit == "local" else None,
        "predictors": _options(options.predictors) if options.schedule.credit == "synthetic" else None,
        "feedback": None if options.feedback is None else _text(options.feedback),
        "clip": options.clip,
        "autocast": _text(options.autocast),
        "seed": options.seed,
        "threads": threads,
    }
    if options.schedule.replicas == 1:
        del settings["replicas"]
    return json.loads(json.dumps(settings))


def difference(saved: dict[str, Any], given: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting that is not as it was: its name, what it was and what it is."""
    saved, given = {**UNSAID, **saved}, {**UNSAID, **given}
    return next(((name, saved.get(name), value) for name, value in given.items() if saved.get(name) != value), None)


def _options(chosen: Any) -> dict[str, Any]:
    """What a user has chosen, by name."""
    return {f.name: _text(getattr(chosen, f.name)) for f in fields(chosen)}


def _text(value: Any) -> Any:
    """A setting as text that is the same in another process."""
    if isinstance(value, Mapping):
        return {str(key): _text(item) for key, item in value.items()}
    if callable(value) and not is_dataclass(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
