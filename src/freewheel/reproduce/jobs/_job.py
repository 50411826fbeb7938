"""What a kind of job is."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from freewheel.methods import Method


def _ignored(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where a job runs; nothing in it changes what the job is.

    Args:
        device: `cpu` or a GPU.
        data_root: The folder of the data sets and of pretrained weights.
        compile: Whether trainers compile their stages.
        folder: Where the job may leave what it needs to go on after an interruption.
        tell: Called with what the job does now.
    """

    device: str = "cpu"
    data_root: Path | None = None
    compile: bool = False
    folder: Path | None = None
    tell: Callable[[str], object] = _ignored


def in_words(method: Method) -> str:
    """A method and those of its options that are not the default.

    Example:
        >>> import freewheel as fw
        >>> in_words(fw.FDG(shrink=0.5)), in_words(fw.BP())
        ('fdg shrink=0.5', 'bp')
    """
    options = [(field.name, getattr(method, field.name), field.default) for field in fields(method)]  # pyright: ignore[reportArgumentType]
    return " ".join([method.name, *(f"{name}={value}" for name, value, default in options if value != default)])


def with_scale(method: Method, scale: Any) -> Method:
    """A method of forward gradients with another scale of its tangents."""
    return replace(method, scale=scale)  # pyright: ignore[reportArgumentType]


class Job(ABC):
    """Something to measure: a frozen dataclass, so that equal jobs run once and have a name on disk."""

    seeded: ClassVar[bool] = True  # whether it is repeated with other seeds
    timed: ClassVar[bool] = False  # whether nothing else may run beside it

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in one line."""

    @property
    def epochs(self) -> int:
        """The epochs it trains; 0 where it only measures."""
        return 0

    def prepared(self, context: Context) -> tuple[Job, tuple[str, ...]]:
        """The job as it can run there, and what stands for what, in words; refuses one whose files are missing."""
        return self, ()

    def quick(self) -> tuple[Job, tuple[str, ...]]:
        """A scaled-down version that takes seconds on one core, and what it replaces, in words."""
        return self, ()

    @abstractmethod
    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """Measure, and return the measures by name; a KeyboardInterrupt leaves what is needed to go on.

        A job that goes on from an earlier run has the seconds of both as the measure `took`.
        """

    @property
    def key(self) -> str:
        """A name for files, which differs between jobs that differ."""
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", self.title).strip("-").lower()[:60]
        return f"{readable}-{hashlib.blake2b(repr(self).encode(), digest_size=4).hexdigest()}"
