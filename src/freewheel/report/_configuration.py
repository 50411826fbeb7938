"""What a run was told, and what repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from freewheel.report import _words as words
from freewheel.runs import Run

Rows = list[list[str]]


def configuration_of(run: Run) -> dict[str, Any]:
    """The configuration in groups of names and values, and the commands."""
    facts = run.facts
    groups = [{"title": title, "rows": rows} for title, rows in _groups(facts) if rows]
    return {
        "groups": groups,
        "repeat": facts.get("repeat"),
        "command": facts.get("command"),
        "no_command": ""
        if facts.get("repeat")
        else "This run was not started by freewheel train: no command repeats it.",
        "folder": str(run.folder),
    }


def _groups(facts: Mapping[str, Any]) -> Iterator[tuple[str, Rows]]:
    method = facts.get("method") or {}
    yield (
        "Method",
        _rows(
            {
                "method": method.get("with_options") or method.get("name"),
                "credit": method.get("credit"),
                "delays": words.delays(method["delays"]) if "delays" in method else None,
                "order": method.get("order"),
                "weights a backward sees": method.get("weights"),
                "corrections": ", ".join(method.get("corrections") or ()) or None,
                "locks left": ", ".join(method["locks"]) or "none" if method.get("locks") is not None else None,
            }
        ),
    )
    yield "Network and data", _rows(_network(facts))
    yield "Optimizer", _rows(facts.get("optimizer") or {})
    yield "Where it ran", _rows(_place(facts))
    yield "All options", _rows({name: value for name, value in (facts.get("arguments") or {}).items() if _given(value)})


def _network(facts: Mapping[str, Any]) -> dict[str, Any]:
    model, data, split = facts.get("model") or {}, facts.get("data") or {}, facts.get("split") or {}
    names = split.get("names") or []
    stages = {f"stage {stage}": ", ".join(_short(each)) for stage, each in enumerate(names)}
    return {
        "network": model.get("name"),
        "parameters": None if model.get("parameters") is None else words.count(model["parameters"]),
        **stages,
        "data": data.get("name"),
        "training samples": _count(data.get("train")),
        "test samples": _count(data.get("test")),
        "classes": data.get("classes"),
        "shape of a sample": " × ".join(map(str, data.get("shape") or ())) or None,
    }


def _place(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "runtime": facts.get("runtime"),
        "stages": facts.get("stages"),
        "replicas": facts.get("replicas"),
        "threads of each stage": facts.get("threads_per_stage"),
        "cores": facts.get("cores"),
        "devices": ", ".join(facts.get("devices") or ()) or None,
        "started": words.moment(facts["started"]) if facts.get("started") else None,
        **(facts.get("versions") or {}),
    }


def _count(value: Any) -> str | None:
    return words.count(value) if isinstance(value, int) else None


def _short(names: list[str]) -> list[str]:
    """Names of layers; of many, the first and the last."""
    return names if len(names) <= 6 else [*names[:2], "…", *names[-2:]]


def _given(value: Any) -> bool:
    return value is not None and value is not False and value != [] and value != ""


def _rows(values: Mapping[str, Any]) -> Rows:
    return [[name, _text(value)] for name, value in values.items() if value is not None]


def _text(value: Any) -> str:
    """A value in words.

    Example:
        >>> _text(["a", 1]), _text(0.05), _text(True)
        ('a, 1', '0.05', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
