"""The scale α of tangents: how much each parameter is moved, and so how fast it learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    now = scale(epoch) if callable(scale) else scale
    check_scale(now)
    if callable(now):
        raise TypeError(f"scale gave a function for epoch {epoch}: it must give a number or a dict")
    if not isinstance(now, Mapping):
        return [float(now) * group for group in groups]
    out = []
    for known, group in zip(names, groups):
        match = next((a for pattern, a in now.items() if any(fnmatchcase(n, pattern) for n in known)), group)
        out.append(float(match))
    return out
