"""A stage with an auxiliary network beside its module: a head, or a predictor of gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._config import OptimizerFactory
from freewheel._seeds import seed_of
from freewheel.corrections import Gradients
from freewheel.credit._chain_stage import ChainStage
from freewheel.credit._shapes import Kind, kind_of
from freewheel.stage import Blueprint, SeededDraws, factory_of, load_tensors, tensors_of, to_device

HEAD = -1  # in place of a batch, in the seed that the network is drawn from


class Auxiliary:
    """A small network with its optimizer and scheduler.

    Args:
        kinds: Of the activations that it is made for.
        module: The network.
        blueprint: Of the stage that it belongs to.
        factory: Makes its optimizer.
    """

    def __init__(
        self, kinds: Sequence[Kind], module: nn.Module, blueprint: Blueprint, factory: OptimizerFactory
    ) -> None:
        self.kinds, self.module = tuple(kinds), module
        self.optimizer, self.scheduler = blueprint.make_optimizer(factory, module)
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
            "kinds": self.kinds,
            "tensors": {name: t.detach() for name, t in tensors_of(self.module).items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
        }


class AuxiliaryStage(ChainStage):
    """Its auxiliary network is drawn from the seed when the stage's first output shows what it must fit.

    So it begins with the same weights on every runtime, and nobody needs an example beforehand.

    Args:
        blueprint: The stage.
        optimizer: The factory for the network's optimizer; by default the one that the trainer has for the stage.
    """

    def __init__(self, blueprint: Blueprint, optimizer: OptimizerFactory | None) -> None:
        super().__init__(blueprint)
        self.auxiliary: Auxiliary | None = None
        self._factory = optimizer or factory_of(self.config, self.index)

    @property
    def head(self) -> nn.Module | None:
        """The auxiliary network, None before the first output."""
        return None if self.auxiliary is None else self.auxiliary.module

    @abstractmethod
    def _network(self, kinds: Sequence[Kind]) -> nn.Module:
        """Makes a network for activations of these kinds."""

    def _network_for(self, activations: Sequence[Tensor]) -> Auxiliary:
        """The stage's network, made for these activations if there is none yet."""
        kinds = tuple(kind_of(tensor) for tensor in activations)
        if self.auxiliary is None:
            self.auxiliary = self._made(kinds)
        if self.auxiliary.kinds != kinds:
            raise ValueError(
                f"stage {self.index} gives tensors of another form than when its head was made (dimensions and width "
                f"{self.auxiliary.kinds}, now {kinds}): every batch must give the same"
            )
        return self.auxiliary

    def _made(self, kinds: Sequence[Kind]) -> Auxiliary:
        if self._factory is None:
            raise ValueError(
                f"optimizer has no factory for stage {self.index}, whose predictor has parameters to train: give one, "
                "or give the method an optimizer for predictors"
            )
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), None)
        with SeededDraws(seed_of(self.config.seed, self.index, HEAD)), torch.enable_grad():
            network = self._network(kinds)
        return Auxiliary(kinds, network.to(self.device, dtype), self.blueprint, self._factory)

    def head_state(self) -> dict[str, Any] | None:
        """The network's weights, optimizer and scheduler."""
        return None if self.auxiliary is None else self.auxiliary.state()

    def load_head(self, state: dict[str, Any] | None) -> None:
        """Restores these; without any, the network is drawn once more."""
        self.auxiliary = None
        if state is None:
            return
        made = self._made([(dimensions, width) for dimensions, width in state["kinds"]])
        load_tensors(made.module, to_device(state["tensors"], self.device))
        made.optimizer.load_state_dict(state["optimizer"])
        if made.scheduler is not None and state["scheduler"] is not None:
            made.scheduler.load_state_dict(state["scheduler"])
        self.auxiliary = made
