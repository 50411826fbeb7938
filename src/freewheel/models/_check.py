"""Checks of what a caller typed, and the arithmetic of layer sizes."""

from __future__ import annotations

from collections.abc import Sequence

from freewheel._errors import whole_number


def image_shape(value: object) -> tuple[int, int, int]:
    """Return `value` as (channels, height, width), else raise naming `in_shape`.

    Example:
        >>> image_shape([1, 28, 28])
        (1, 28, 28)
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"in_shape must be three ints (channels, height, width), got {value!r}")
    if len(value) != 3:
        raise ValueError(f"in_shape must be three ints (channels, height, width), got {tuple(value)!r}")
    channels, height, width = (whole_number(f"in_shape[{i}]", side, least=1) for i, side in enumerate(value))
    return channels, height, width


def require_side(model: str, in_shape: tuple[int, int, int], least: int) -> None:
    """Raise if an image is smaller than the pools of `model` can halve.

    Example:
        >>> require_side("vgg-19", (3, 32, 32), 32)
        >>> require_side("vgg-19", (3, 32, 16), 32)
        Traceback (most recent call last):
        ...
        ValueError: in_shape=(3, 32, 16) is too small for vgg-19: its pools need images of at least 32x32
    """
    if min(in_shape[1:]) < least:
        raise ValueError(
            f"in_shape={in_shape} is too small for {model}: its pools need images of at least {least}x{least}"
        )


def out_side(side: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """The side of what a convolution or a pool makes of an image of the given side.

    Example:
        >>> out_side(28, kernel=3, padding=2), out_side(30, kernel=2, stride=2)
        (30, 15)
    """
    return (side + 2 * padding - kernel) // stride + 1
