"""The `Credit` interface: the source of a stage's learning signal."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from freewheel._compare import far_apart, norm
from freewheel.plan import PlanCredit, Schedule
from freewheel.stage import Blueprint, Stage

if TYPE_CHECKING:
    from freewheel.methods import Pipeline

# A gradient smaller than this, beside those of all parameters, may be rounding: that of a bias before BatchNorm, say.
NEGLIGIBLE = 1e-3
NEGLIGIBLE_COMPILED = 0.1  # Inductor sums in another order; beside float64, its rounding is up to 50 times as large


class Credit(PlanCredit, ABC):
    """The source of a stage's learning signal: options, plan, messages, stages and restrictions.

    Subclasses are frozen dataclasses with a `name` for users, plans and checkpoints. The planning interface is
    inherited from `freewheel.plan.PlanCredit`; its defaults are those of the chain rule, as is `ChainStage`.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch, freewheel as fw
        >>> from freewheel.credit import ChainStage
        >>> class SignStage(ChainStage):
        ...     def _update(self):
        ...         self._gradients = fw.map_gradients(torch.sign, self._gradients)
        ...         super()._update()
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Sign(fw.Credit):
        ...     name = family = "sign"
        ...
        ...     def build(self, blueprint):
        ...         return SignStage(blueprint)
        >>> fw.plan(fw.Pipeline(credit=Sign(), delays=(1, 0)), k=2).locks
        frozenset()
    """

    exact: ClassVar[bool] = False  # whether its gradients are those of backpropagation at the forward's weights
    repeats: ClassVar[bool] = False  # whether stages compute by their launchers alone; `graph` repeats launches then
    family: ClassVar[str]  # for the compatibility of corrections: `chain`, `forward`, `feedback` or its own name

    @abstractmethod
    def build(self, blueprint: Blueprint) -> Stage:
        """Build a stage that learns from this signal."""

    @property
    def ties(self) -> bool:
        """Whether the learning signal of a weight that several stages use reaches the stage that owns it."""
        return True

    def check(self, pipeline: Pipeline) -> None:
        """Reject incompatible options of the pipeline."""

    def check_replicas(self, replicas: int, pipeline: Pipeline) -> None:
        """Reject several replicas if an all-reduce cannot combine their gradients."""

    def check_captured(self, schedule: Schedule) -> None:
        """Reject capture as CUDA graphs, unless stages compute every batch by the same functions of tensors."""
        raise ValueError(f"runtime='graph' with credit={self.name!r}, which it cannot capture: use runtime='threads'")

    def check_compiled(self) -> None:
        """Reject `compile=True`, unless `_plain_call` of its stages returns all that it computes."""
        raise ValueError(f"compile=True with credit={self.name!r}, which it cannot compile: leave compile out")

    def check_overlap(self) -> None:
        """Reject `overlap=True`, unless `beside_forwards` of its stages may run on another thread than forwards."""
        raise ValueError(
            f"overlap=True with credit={self.name!r}, whose forwards cannot run beside backwards: leave overlap out"
        )

    def check_epochs(self, stages: Sequence[Stage], epochs: range) -> None:
        """Reject options that are invalid in one of these epochs, before the first starts."""

    def bind(self, modules: Sequence[nn.Module]) -> Credit:
        """Return this credit with the properties of the network that it needs."""
        return self

    def probe(self) -> Credit:
        """Return the credit whose gradients the check of the first batch compares, by default this one."""
        return self

    def wrong_gradient(
        self,
        ours: Sequence[Tensor | None],
        plain: Sequence[Tensor | None],
        *,
        coarse: bool,
        compiled: bool,
    ) -> tuple[int, str] | None:
        """Return the first parameter whose gradient cannot be right, given plain PyTorch's, and what is wrong with it.

        By default that is one without a gradient, or with another one if the credit is exact. `coarse` is whether they
        were computed in low precision, `compiled` whether ours are those of compiled code.
        """
        scale = (NEGLIGIBLE_COMPILED if compiled else NEGLIGIBLE) * norm(plain)
        for i, (a, b) in enumerate(zip(ours, plain)):
            if a is None and b is not None and b.any():
                return i, "is missing, but not"
            if self.exact and a is not None and far_apart(a, torch.zeros_like(a) if b is None else b, scale, coarse):
                return i, "is not the one found"
        return None

    def settings(self) -> dict[str, Any]:
        """Return the options that must match to resume batches in flight, as plain data."""
        chosen = {f.name: _text(getattr(self, f.name)) for f in fields(self) if f.repr}  # pyright: ignore
        return {"name": self.name, **chosen}

    def head_settings(self) -> Any:
        """Return the options that must match to load a stage's head."""
        return self.name


def _text(value: Any) -> Any:
    """Return a setting as text that is the same in every process, and different for every different value."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(bytes(data.tolist())).hexdigest()}"
    if isinstance(value, Mapping):
        return {str(key): _text(item) for key, item in value.items()}
    if callable(value) and not is_dataclass(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
