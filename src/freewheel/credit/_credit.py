"""What a credit is: where the learning signal of a stage comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from freewheel.plan import PlanCredit
from freewheel.stage import Blueprint, Stage

if TYPE_CHECKING:
    from freewheel.methods import Pipeline


class Credit(PlanCredit, ABC):
    """Where a stage's learning signal comes from: its options, its plan, its messages, its stages, its restrictions.

    Subclasses are frozen dataclasses. `name` is what users type, and what plans and checkpoints say. What plans ask is
    in `freewheel.plan.PlanCredit`, with the chain rule's answers as defaults.
    """

    family: ClassVar[str]  # what corrections know it by: `chain`, `forward`, `feedback` or its own name

    @abstractmethod
    def build(self, blueprint: Blueprint) -> Stage:
        """Builds a stage that learns so."""

    def check(self, pipeline: Pipeline) -> None:
        """Refuses choices that do not go together with this credit, in one line."""

    def check_replicas(self, replicas: int, pipeline: Pipeline) -> None:
        """Refuses several replicas where an all-reduce cannot combine what they find."""

    def check_epochs(self, stages: Sequence[Stage], epochs: range) -> None:
        """Refuses options that make no sense in these epochs, before any of them begins."""

    def bind(self, modules: Sequence[nn.Module]) -> Credit:
        """Returns this credit with what it needs to know of the network."""
        return self

    def settings(self) -> dict[str, Any]:
        """Returns what must be the same for batches in flight to mean the same, as plain data."""
        chosen = {f.name: _text(getattr(self, f.name)) for f in fields(self) if f.repr}  # pyright: ignore
        return {"credit": self.name, **chosen}

    def head_settings(self) -> Any:
        """Returns what must be the same for a stage's head to be of use."""
        return self.name


def _text(value: Any) -> Any:
    """A setting as text that is the same in another process."""
    if isinstance(value, Mapping):
        return {str(key): _text(item) for key, item in value.items()}
    if callable(value) and not is_dataclass(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
