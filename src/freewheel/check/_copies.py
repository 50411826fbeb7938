"""Copies of the network and of a few samples: the check leaves no trace on the user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from freewheel._config import Loss
from freewheel._trees import map_tensors, tensors_of
from freewheel.runtime import Batch
from freewheel.stage import copied, hooked


@dataclass(frozen=True)
class Network:
    """A network as a whole and in stages, with the same parameters, and its loss."""

    model: nn.Module
    stages: list[nn.Module]
    loss: Loss

    def copy(self) -> Network | None:
        """Return a copy; None if the network cannot be copied."""
        loss = self.loss if isinstance(self.loss, nn.Module) else None
        try:
            model, stages, own = copied((self.model, self.stages, loss))
        except Exception:  # whatever the user's objects raise
            return None
        out = Network(model, stages, self.loss if own is None else own)
        if len(out.parameters) != len(self.parameters):
            return None
        for theirs, ours in zip(out.parameters, self.parameters):
            hooked(theirs, ours)
        return out

    @property
    def names(self) -> dict[int, str]:
        """The name of each parameter, by its id."""
        out = {id(p): f"loss.{name}" for m in self._losses for name, p in m.named_parameters()}
        for k, stage in enumerate(self.stages):
            out |= {id(p): f"stages[{k}].{name}" for name, p in stage.named_parameters()}
        return out | {id(p): name for name, p in self.model.named_parameters()}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trainable parameters, each once."""
        found = [p for module in [*self.stages, *self._losses] for p in module.parameters() if p.requires_grad]
        return list({id(p): p for p in found}.values())

    @property
    def _losses(self) -> list[nn.Module]:
        return [self.loss] if isinstance(self.loss, nn.Module) else []


@dataclass(frozen=True)
class Samples:
    """The input and target of a few samples."""

    x: Any
    target: Any
    size: int

    def fresh(self) -> tuple[Any, Any]:
        """Return a copy of both, which may be changed in place."""
        return map_tensors(lambda t: t.clone(), self.x), map_tensors(lambda t: t.clone(), self.target)


def some_of(batch: Batch, count: int) -> Samples:
    """Return the first samples of a batch; the whole batch where its first dimension is not that of samples."""
    found = [*tensors_of(batch.x), *tensors_of(batch.target)]
    if batch.size <= count or any(not t.dim() or t.shape[0] != batch.size for t in found):
        return Samples(batch.x, batch.target, batch.size)
    x, target = (map_tensors(lambda t: t[:count], tree) for tree in (batch.x, batch.target))
    return Samples(x, target, count)
