"""The scale α of tangents, and so the learning speed of each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from freewheel._errors import number, of_type

# A number for all parameters; or numbers by patterns of parameter names, the first match taking precedence; or a
# function of the epoch, counted from 0, that returns one of these.
Alphas = float | Mapping[str, float]
Scale = Alphas | Callable[[int], Alphas]


def check_scale(scale: object) -> None:
    """Reject an invalid scale; the results of a function are checked when it is called."""
    if callable(scale):
        return
    patterns = _patterns(scale)
    if patterns is None:
        hint = "a factor on tangents (or a dict of them by name pattern, or a function of the epoch; 0 freezes)"
        number("scale", scale, least=0, hint=hint)
        return
    for pattern, value in patterns.items():
        of_type("key of scale", pattern, str, "give patterns of parameter names, such as 'classifier.*'")
        number(f"scale[{pattern!r}]", value, least=0, hint="a factor on tangents (0 freezes)")


def alphas(scale: Scale, epoch: int, names: Sequence[tuple[str, ...]], groups: Sequence[float]) -> list[float]:
    """Return α of each parameter in an epoch: that of the first pattern that matches a name, or its group's.

    Example:
        >>> alphas({"*.bias": 0.5, "fc.*": 0}, 0, [("fc.bias",), ("fc.weight",), ("conv.weight",)], [1, 1, 2])
        [0.5, 0.0, 2.0]
    """
    now = _in_epoch(scale, epoch)
    patterns = _patterns(now)
    if patterns is None:
        return [float(now) * group for group in groups]
    matches = [_first(patterns, known) for known in names]
    return [float(group if match is None else patterns[match]) for match, group in zip(matches, groups)]


def check_patterns(scale: Scale, epochs: Iterable[int], names: Sequence[tuple[str, ...]]) -> None:
    """Reject a pattern without any effect in one of these epochs; `names` are those of all stages.

    Example:
        >>> check_patterns({"fc.*": 1, "*.biass": 0.1, "*": 0}, [0], [("conv.bias",), ("fc.weight",)])
        Traceback (most recent call last):
        ...
        ValueError: scale has the pattern '*.biass', which matches no parameter: they are conv.bias, fc.weight
    """
    seen: set[tuple[str, ...]] = set()
    for epoch in epochs if callable(scale) else [0]:
        now = _patterns(_in_epoch(scale, epoch)) or {}
        if tuple(now) in seen:
            continue
        seen.add(tuple(now))
        used = {_first(now, known) for known in names}
        for pattern in now:
            if pattern == "*" or pattern in used:
                continue
            if _first([pattern], [n for known in names for n in known]) is None:
                few = ", ".join([known[0] for known in names][:3] + ["…"] * (len(names) > 3))
                raise ValueError(f"scale has the pattern {pattern!r}, which matches no parameter: they are {few}")
            raise ValueError(
                f"scale has the pattern {pattern!r}, but earlier patterns match all of its parameters, and the first "
                "match counts: move it up, or leave it out"
            )


def _in_epoch(scale: Scale, epoch: int) -> Any:
    now = scale(epoch) if callable(scale) else scale
    check_scale(now)
    if callable(now):
        raise TypeError(f"scale returned a function for epoch {epoch}: it must return a number or a dict")
    return now


def _patterns(scale: object) -> Mapping[str, float] | None:
    """Return a scale by patterns, None for a number."""
    return scale if isinstance(scale, Mapping) else None


def _first(patterns: Iterable[str], names: Sequence[str]) -> str | None:
    """Return the first pattern that matches one of the names."""
    return next((pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)), None)
