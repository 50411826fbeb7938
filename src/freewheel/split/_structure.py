"""The structure of a value in the graph: one tensor, several, none, or unknown. Each kind says how it crosses a cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from freewheel.split._tree import container, entries, holds_tensor

Path = tuple[Any, ...]


class Structure(ABC):
    """What a value consists of."""

    plain: ClassVar[bool] = False  # it holds no tensor
    several: ClassVar[bool] = False  # it may hold more than one

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, int]]:
        """The tensors, each as the indices that lead to it and its number of elements."""
        return iter(())

    def obstacle(self, *, nested: bool = False) -> str:
        """Why the value cannot cross a cut, empty if it can."""
        return ""

    @abstractmethod
    def assemble(self, received: Mapping[Path, Any], path: Path = ()) -> Any:
        """The value, with its tensors taken from what the next stage received."""

    def is_message(self) -> bool:
        """Whether it crosses a cut as it is: one tensor, or a tuple of several."""
        paths = [path for path, _ in self.leaves()]
        return self.assemble({path: path for path in paths}) == (paths[0] if len(paths) == 1 else tuple(paths))


@dataclass(frozen=True)
class OneTensor(Structure):
    """A tensor, with its number of elements (1 if unknown)."""

    elements: int = 1

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, int]]:
        yield path, self.elements

    def assemble(self, received: Mapping[Path, Any], path: Path = ()) -> Any:
        return received[path]


@dataclass(frozen=True)
class Plain(Structure):
    """A value without tensors: a number, a shape, a device, None."""

    value: Any = None
    plain = True

    def obstacle(self, *, nested: bool = False) -> str:
        allowed = nested and self.value is None
        return "" if allowed else f"is a {type(self.value).__name__} and only tensors can be sent"

    def assemble(self, received: Mapping[Path, Any], path: Path = ()) -> Any:
        return self.value


@dataclass(frozen=True)
class Unknown(Structure):
    """Possibly several tensors, to be determined with an example."""

    several = True

    def obstacle(self, *, nested: bool = False) -> str:
        return "may be several tensors: give example= to find out"

    def assemble(self, received: Mapping[Path, Any], path: Path = ()) -> Any:
        raise AssertionError("a value of unknown structure crosses no cut")


@dataclass(frozen=True)
class Several(Structure):
    """A tuple, list or dict that holds at least one tensor.

    Example:
        >>> pair = Several(tuple, {0: OneTensor(4), 1: Several(list, {0: Plain(), 1: OneTensor(2)})})
        >>> list(pair.leaves())
        [((0,), 4), ((1, 1), 2)]
        >>> pair.assemble({(0,): "a", (1, 1): "b"})
        ('a', [None, 'b'])
    """

    kind: type
    entries: Mapping[Any, Structure]
    several = True

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, int]]:
        for key, entry in self.entries.items():
            yield from entry.leaves((*path, key))

    def obstacle(self, *, nested: bool = False) -> str:
        return next((why for entry in self.entries.values() if (why := entry.obstacle(nested=True))), "")

    def assemble(self, received: Mapping[Path, Any], path: Path = ()) -> Any:
        values = {key: entry.assemble(received, (*path, key)) for key, entry in self.entries.items()}
        return values if self.kind is dict else self.kind(values.values())


def structure_of(value: Any) -> Structure:
    """The structure of a value that is at hand."""
    if isinstance(value, Tensor):
        return OneTensor(value.numel())
    if not holds_tensor(value):
        return Plain(value)
    kind = container(value)
    assert kind is not None
    return Several(kind, {key: structure_of(entry) for key, entry in entries(value)})
