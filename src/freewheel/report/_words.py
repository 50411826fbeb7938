"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

KIB = 1024
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def share(value: float) -> str:
    """A share as a percentage.

    Example:
        >>> share(0.98055)
        '98.06%'
    """
    return f"{value:.2%}"


def seconds(value: float) -> str:
    """A time in the unit that suits it.

    Example:
        >>> [seconds(each) for each in (0.000012, 0.0345, 1.56, 75, 3700)]
        ['12 µs', '34.5 ms', '1.56 s', '1 min 15 s', '1 h 1 min']
    """
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(value: float) -> str:
    """A number of bytes.

    Example:
        >>> size(512), size(448_950_272), size(3 * 1024**3)
        ('512 B', '428 MiB', '3.00 GiB')
    """
    unit = 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / KIB, unit + 1
    digits = 0 if value >= 100 or not unit else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {UNITS[unit]}"


def moment(value: str) -> str:
    """A time of day, written in ISO format, to the minute.

    Example:
        >>> moment("2026-03-01T09:30:12+00:00")
        '2026-03-01 09:30 UTC'
    """
    return f"{datetime.fromisoformat(value).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def count(value: float) -> str:
    """A number with separators between thousands; small ones keep three digits.

    Example:
        >>> count(10862.2), count(3.14159)
        ('10,862', '3.14')
    """
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def plural(number: int, word: str, many: str = "") -> str:
    """The number and the word.

    Example:
        >>> plural(1, "batch", "batches"), plural(1200, "batch", "batches")
        ('1 batch', '1,200 batches')
    """
    return f"{number:,} {word if number == 1 else many or f'{word}s'}"


def delays(values: list[int] | None) -> str:
    """The delays of all stages.

    Example:
        >>> delays([4, 2, 0]), delays([0, 0]), delays(None)
        ('4, 2, 0', 'none', 'not planned')
    """
    if values is None:
        return "not planned"
    return ", ".join(map(str, values)) if any(values) else "none"
