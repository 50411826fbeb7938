"""A stage that owns a small network beside its module: a head, or a predictor of gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._seeds import seed_of
from freewheel.stage._chain import ChainStage
from freewheel.stage._corrections import Gradients
from freewheel.stage._forms import Form, form_of
from freewheel.stage._random import SeededDraws
from freewheel.stage._state import load_tensors, tensors_of
from freewheel.stage._trees import to_device

MakeParts = Callable[[nn.Module], tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]]
HEAD = -1  # in place of a batch, in the seed that the network is drawn from


class Owned:
    """A small network with its optimizer and scheduler.

    Args:
        forms: Of the tensors that it is made for.
        module: The network.
        make: Makes its optimizer, and its scheduler if there is one.
    """

    def __init__(self, forms: Sequence[Form], module: nn.Module, make: MakeParts) -> None:
        self.forms, self.module = tuple(forms), module
        self.optimizer, self.scheduler = make(module)
        self.weights: list[nn.Parameter] = list(module.parameters())

    def take(self, gradients: Gradients) -> None:
        """Gets the gradients of the next step."""
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient

    def step(self) -> None:
        """Makes the step."""
        self.optimizer.step()
        for weight in self.weights:
            weight.grad = None
        if self.scheduler is not None:
            self.scheduler.step()

    def state(self) -> dict[str, Any]:
        """All that it is, by reference."""
        return {
            "forms": self.forms,
            "tensors": {name: t.detach() for name, t in tensors_of(self.module).items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
        }


class HeadedStage(ChainStage):
    """Its small network is drawn from the seed when the stage's first output shows what form it must have.

    So it begins with the same weights on every runtime, and nobody needs to know an example beforehand.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.owned: Owned | None = None
        self._make: MakeParts | None = None

    def equip(self, make: MakeParts) -> None:
        """Tells what makes the optimizer and the scheduler of the stage's network."""
        self._make = make

    @abstractmethod
    def _network(self, forms: Sequence[Form]) -> nn.Module:
        """A network for tensors of these forms."""

    def _own(self, tensors: Sequence[Tensor]) -> Owned:
        """The stage's network, made for these tensors if there is none yet."""
        forms = tuple(form_of(tensor) for tensor in tensors)
        if self.owned is None:
            self.owned = self._made(forms)
        if self.owned.forms != forms:
            raise ValueError(
                f"stage {self.index} gives tensors of another form than when its head was made (dimensions and width "
                f"{self.owned.forms}, now {forms}): every batch must give the same"
            )
        return self.owned

    def _made(self, forms: Sequence[Form]) -> Owned:
        assert self._make is not None
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), None)
        with SeededDraws(seed_of(self.options.seed, self.index, HEAD)), torch.enable_grad():
            network = self._network(forms)
        return Owned(forms, network.to(self.device, dtype), self._make)

    def head_state(self) -> dict[str, Any] | None:
        """The network's weights, optimizer and scheduler."""
        return None if self.owned is None else self.owned.state()

    def load_head(self, state: dict[str, Any] | None) -> None:
        """Goes back to these; without any, the network is drawn once more."""
        self.owned = None
        if state is None:
            return
        owned = self._made([(dimensions, width) for dimensions, width in state["forms"]])
        load_tensors(owned.module, to_device(state["tensors"], self.device))
        owned.optimizer.load_state_dict(state["optimizer"])
        if owned.scheduler is not None and state["scheduler"] is not None:
            owned.scheduler.load_state_dict(state["scheduler"])
        self.owned = owned
