"""The scale α of tangents: how much each parameter is moved, and so how fast it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

# A number for all parameters; or numbers by patterns of parameter names, of which the first that matches counts; or a
# function that gives one of these for an epoch, counted from 0.
Alphas = float | Mapping[str, float]
Scale = Alphas | Callable[[int], Alphas]


def check_scale(scale: object) -> None:
    """Refuses what is no scale; what a function gives is looked at when it is called."""
    if callable(scale):
        return
    values = scale.items() if isinstance(scale, Mapping) else [("", scale)]
    for pattern, value in values:
        where = f"scale={value!r}" if pattern == "" else f"scale={{{pattern!r}: {value!r}}}"
        if not isinstance(pattern, str):
            raise TypeError(f"scale has the key {pattern!r}: give patterns of parameter names, such as 'classifier.*'")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(
                f"{where}: give a number from 0 on, a dict of them by name pattern, or a function of the epoch"
            )
        if not 0 <= value < float("inf"):
            raise ValueError(f"{where}: a scale is a number from 0 on; 0 freezes")


def alphas(scale: Scale, epoch: int, names: Sequence[tuple[str, ...]], groups: Sequence[float]) -> list[float]:
    """α of each parameter in an epoch: that of the first pattern that matches one of its names, or its group's.

    Example:
        >>> alphas({"*.bias": 0.5, "fc.*": 0}, 0, [("fc.bias",), ("fc.weight",), ("conv.weight",)], [1, 1, 2])
        [0.5, 0.0, 2.0]
    """
    now = _in_epoch(scale, epoch)
    if not isinstance(now, Mapping):
        return [float(now) * group for group in groups]
    matches = [_first(now, known) for known in names]
    return [float(group if match is None else now[match]) for match, group in zip(matches, groups)]


def check_patterns(scale: Scale, epochs: Iterable[int], names: Sequence[tuple[str, ...]]) -> None:
    """Refuses a pattern that decides about no parameter in one of these epochs; `names` are those of all stages.

    Example:
        >>> check_patterns({"fc.*": 1, "*.biass": 0.1, "*": 0}, [0], [("conv.bias",), ("fc.weight",)])
        Traceback (most recent call last):
        ...
        ValueError: scale has the pattern '*.biass', but no parameter is called so: there are conv.bias, fc.weight
    """
    seen: set[tuple[str, ...]] = set()
    for epoch in epochs if callable(scale) else [0]:
        now = _in_epoch(scale, epoch)
        if not isinstance(now, Mapping) or tuple(now) in seen:
            continue
        seen.add(tuple(now))
        used = {_first(now, known) for known in names}
        for pattern in now:
            if pattern == "*" or pattern in used:
                continue
            if _first([pattern], [n for known in names for n in known]) is None:
                few = ", ".join([known[0] for known in names][:3] + ["…"] * (len(names) > 3))
                raise ValueError(f"scale has the pattern {pattern!r}, but no parameter is called so: there are {few}")
            raise ValueError(
                f"scale has the pattern {pattern!r}, but all that it names is taken by patterns before it: of several "
                "the first counts, so put it further up, or leave it out"
            )


def _in_epoch(scale: Scale, epoch: int) -> Alphas:
    now = scale(epoch) if callable(scale) else scale
    check_scale(now)
    if callable(now):
        raise TypeError(f"scale gave a function for epoch {epoch}: it must give a number or a dict")
    return now


def _first(patterns: Iterable[str], names: Sequence[str]) -> str | None:
    """The first pattern that matches one of the names."""
    return next((pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)), None)
