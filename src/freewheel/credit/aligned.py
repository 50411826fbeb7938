"""`aligned`: the chain rule through fixed random weights (feedback alignment)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import nn

from freewheel.credit._chain_stage import ChainStage
from freewheel.credit._graph import Graph
from freewheel.credit.chain import Chain
from freewheel.feedback import FeedbackOptions, FeedbackWeights, feedback_backward
from freewheel.feedback._numbering import StageLayers, number_all_layers
from freewheel.plan import Unit
from freewheel.stage import Blueprint, Holders, Stage, Tree, check_no_module_hooks, check_not_compiled


@dataclass(frozen=True, kw_only=True)
class Aligned(FeedbackOptions, Chain):
    """The chain rule through fixed random weights in the shape of each layer's own (`fa`).

    Args:
        bound, own: See `FeedbackOptions`.
        layers: The layers of each stage, set by `bind`.

    Example:
        >>> Aligned(bound=0.5)
        Aligned(bound=0.5, own=None)
    """

    name: ClassVar[str] = "aligned"
    exact: ClassVar[bool] = False

    layers: tuple[StageLayers, ...] = field(default=(), repr=False, compare=False)

    def bind(self, modules: Sequence[nn.Module]) -> Aligned:
        """Number the layers."""
        return replace(self, layers=number_all_layers(modules))

    @property
    def ties(self) -> bool:
        """No: the feedback weights belong to layers that have their weight."""
        return False

    def build(self, blueprint: Blueprint) -> Stage:
        """Build an `AlignedStage`."""
        return AlignedStage(blueprint, self)


class AlignedStage(ChainStage):
    """A chain-rule stage whose layers backpropagate through feedback weights."""

    def __init__(self, blueprint: Blueprint, aligned: Aligned) -> None:
        self._aligned = aligned
        super().__init__(blueprint)
        self._numbered = aligned.layers[self.index].of(self.module)

    def check(self) -> None:
        """Reject backward hooks on modules, which gradients pass by."""
        super().check()
        check_no_module_hooks(self.module, self.index, "feedback alignment")
        check_not_compiled(self.module, self.index, "feedback alignment")

    def _forget(self) -> None:
        super()._forget()
        self._feedback = FeedbackWeights(self._aligned, self.config.seed)

    def _holders(self) -> Holders:
        """Add the feedback weights, which are drawn before they are used."""
        for layer, number in self._numbered:
            self._feedback.of(number, layer.weight.shape, layer.weight)
        return super()._holders()._replace(others=[self._feedback.drawn])

    def _enter_backward(self, stack: ExitStack, unit: Unit, graph: Graph) -> None:
        super()._enter_backward(stack, unit, graph)
        if self._checkpoints:
            stack.enter_context(feedback_backward(self._numbered, self._feedback))

    def _plain_call(self, x: Tree, target: Tree) -> tuple[Tree, Tree]:
        with feedback_backward(self._numbered, self._feedback):
            return super()._plain_call(x, target)
