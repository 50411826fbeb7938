"""Checks of shapes, and the arithmetic of layer sizes."""

from __future__ import annotations

from collections.abc import Sequence

from freewheel._errors import of_type, whole_number

CHW = tuple[int, int, int]  # channels, height, width


def image_shape(value: object) -> tuple[int, ...]:
    """Check that `value` is (channels, height, width).

    Example:
        >>> image_shape([1, 28, 28])
        (1, 28, 28)
    """
    return _in_shape(value, (3,), "give three whole numbers (channels, height, width)")


def sequence_shape(value: object) -> tuple[int, ...]:
    """Check that `value` is (steps, features) or (steps,).

    Example:
        >>> sequence_shape([8, 8])
        (8, 8)
    """
    hint = "give (steps, features), or (steps,) for whole numbers; 'digits-rows' is 'digits' row by row"
    return _in_shape(value, (1, 2), hint)


def _in_shape(value: object, lengths: tuple[int, ...], hint: str) -> tuple[int, ...]:
    sizes = of_type("in_shape", value, Sequence, hint)
    if len(sizes) not in lengths:
        raise ValueError(f"in_shape={tuple(sizes)!r}: {hint}")
    return tuple(whole_number(f"in_shape[{i}]", size, least=1) for i, size in enumerate(sizes))


def require_side(model: str, in_shape: tuple[int, ...], least: int) -> None:
    """Reject an image that is too small for the pools of `model`.

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
    """The side of the output of a convolution or pool for an image of the given side.

    Example:
        >>> out_side(28, kernel=3, padding=2), out_side(30, kernel=2, stride=2)
        (30, 15)
    """
    return (side + 2 * padding - kernel) // stride + 1
