"""Stages with an auxiliary network: a head or a gradient predictor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._config import OptimizerFactory
from freewheel.corrections import Gradients
from freewheel.credit._chain_stage import ChainStage
from freewheel.credit._shapes import Kind, kind_of
from freewheel.stage import (
    Blueprint,
    SeededDraws,
    add,
    align_gradient,
    factory_of,
    load_buffers,
    load_tensors,
    scratch_buffers,
    step_scheduler,
    tensors_of,
    to_device,
)

HEAD = -1  # instead of a batch, in the seed of the network's initial weights


class Auxiliary:
    """A small network with its optimizer and scheduler.

    Args:
        kinds: The kinds of its input activations.
        module: The network.
        blueprint: The blueprint of its stage.
        factory: The factory of its optimizer.
    """

    def __init__(
        self, kinds: Sequence[Kind], module: nn.Module, blueprint: Blueprint, factory: OptimizerFactory
    ) -> None:
        self.kinds, self.module = tuple(kinds), module
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.optimizer, self.scheduler = blueprint.make_optimizer(factory, trained)
        self.weights: list[nn.Parameter] = [p for _, p in trained]

    def add_gradients(self, gradients: Gradients) -> None:
        """Add to the gradients of the next step."""
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = align_gradient(add(weight.grad, gradient), weight)

    def step(self) -> None:
        """Step the optimizer."""
        self.optimizer.step()
        for weight in self.weights:
            weight.grad = None

    def state(self) -> dict[str, Any]:
        """Return its state, by reference."""
        return {
            "kinds": self.kinds,
            "tensors": {name: t.detach() for name, t in tensors_of(self.module).items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "gradients": [weight.grad for weight in self.weights],
        }


class AuxiliaryStage(ChainStage):
    """A stage whose auxiliary network is initialized from the seed, to fit the stage's first output.

    Args:
        blueprint: The stage.
        optimizer: The factory of the network's optimizer; by default the trainer's for the stage.
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
        """Build a network for activations of these kinds."""

    def _network_for(self, activations: Sequence[Tensor]) -> Auxiliary:
        """Return the stage's network, built for these activations if it does not exist yet."""
        kinds = tuple(kind_of(tensor) for tensor in activations)
        if self.auxiliary is None:
            self.auxiliary = self._build(kinds)
        if self.auxiliary.kinds != kinds:
            raise ValueError(
                f"the output of stage {self.index} has changed its form since its head was built (dimensions and width "
                f"{self.auxiliary.kinds}, now {kinds}): it must be the same for every batch"
            )
        return self.auxiliary

    def _build(self, kinds: Sequence[Kind]) -> Auxiliary:
        if self._factory is None:
            raise ValueError(
                f"optimizer has no factory for stage {self.index}, whose predictor has parameters to train: give one, "
                "or give the method an optimizer for predictors"
            )
        return Auxiliary(kinds, self._new_network(kinds), self.blueprint, self._factory)

    def _new_network(self, kinds: Sequence[Kind]) -> nn.Module:
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), None)
        with SeededDraws(self.config.seed, self.index, HEAD), torch.enable_grad():
            return self._network(kinds).to(self.device, dtype)

    @contextmanager
    def discards(self) -> Iterator[None]:
        """Undo changes to buffers of the network, too; one that is built inside the context begins anew."""
        before = self.auxiliary
        with super().discards(), nullcontext() if before is None else scratch_buffers(before.module):
            yield
        if before is None and self.auxiliary is not None and any(True for _ in self.auxiliary.module.buffers()):
            load_buffers(self.auxiliary.module, dict(self._new_network(self.auxiliary.kinds).named_buffers()))

    def end_epoch(self) -> None:
        """Step the schedulers that count epochs."""
        super().end_epoch()
        if self.auxiliary is not None and self.config.scheduler_every == "epoch":
            step_scheduler(self.auxiliary.scheduler)

    def step_on_plateau(self, value: float) -> None:
        """Step the network's scheduler, too."""
        super().step_on_plateau(value)
        if self.auxiliary is not None:
            step_scheduler(self.auxiliary.scheduler, value)

    def _step_auxiliary(self) -> None:
        """Step the network's optimizer, and its scheduler if that counts batches."""
        if self.auxiliary is not None:
            self.auxiliary.step()
            if self.config.scheduler_every == "batch":
                step_scheduler(self.auxiliary.scheduler)

    def head_state(self) -> dict[str, Any] | None:
        """Return the network's weights, optimizer and scheduler."""
        return None if self.auxiliary is None else self.auxiliary.state()

    def load_head(self, state: dict[str, Any] | None) -> None:
        """Restore such a state; without one, the network is initialized again."""
        self.auxiliary = None
        if state is None:
            return
        built = self._build([(dimensions, width) for dimensions, width in state["kinds"]])
        load_tensors(built.module, to_device(state["tensors"], self.device))
        built.optimizer.load_state_dict(state["optimizer"])
        if built.scheduler is not None and state["scheduler"] is not None:
            built.scheduler.load_state_dict(state["scheduler"])
        for weight, gradient in zip(built.weights, state["gradients"]):
            weight.grad = to_device(gradient, self.device)
        self.auxiliary = built
