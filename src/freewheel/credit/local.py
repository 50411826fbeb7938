"""`local`: a stage learns from a loss of its own, that of a head on its output.

::

    stage 0   x ──F──▶ h_1 ──▶ head ──▶ loss_0        nothing comes back from stage 1
    stage 1            h_1 ──F──▶ h_2 ──▶ head ──▶ loss_1
    stage 2                       h_2 ──F──▶ loss     the last one has the network's
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from freewheel._seeds import seed_of
from freewheel.credit._auxiliary import HEAD, AuxiliaryStage
from freewheel.credit._chain_stage import Graph, Stored
from freewheel.credit._credit import Credit
from freewheel.credit._heads import Head, HeadOptions
from freewheel.credit._shapes import Kind, network_outputs
from freewheel.plan import Message, Unit
from freewheel.stage import Blueprint, Shape, Stage, Tree, flatten, scratch_buffers, tensors_among, to_device

if TYPE_CHECKING:
    from freewheel.methods import Pipeline


@dataclass(frozen=True, kw_only=True)
class Local(HeadOptions, Credit):
    """Each stage but the last learns from the loss of a head of its own. Nothing comes back from later stages.

    The options are those of the heads: see `HeadOptions`.

    Example:
        >>> import freewheel as fw
        >>> fw.plan(fw.Pipeline(credit=fw.Local(hidden=32), delays=(0, 0)), k=2).locks
        frozenset()
    """

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "local"

    @property
    def messages(self) -> tuple[Message, ...]:
        """None beside the activations."""
        return ()

    @property
    def needs_targets(self) -> bool:
        """Every head has a loss."""
        return True

    def check(self, pipeline: Pipeline) -> None:
        """A stage learns at once."""
        check_immediate(self.name, pipeline)

    def bind(self, modules: Sequence[nn.Module]) -> Local:
        """Finds the number of classes."""
        given = self.classes if self.classes is not None or len(modules) == 1 else network_outputs(modules)
        return replace(self, classes=given)

    def build(self, blueprint: Blueprint) -> Stage:
        """Builds a stage with a head."""
        return LocalStage(blueprint, self)

    def head_settings(self) -> Any:
        """The heads' options."""
        return self.settings()


def check_immediate(credit: str, pipeline: Pipeline) -> None:
    """Refuses delays and micro-batches where a stage has its own signal, and so learns from each batch at once."""
    for name, value, plain in (
        ("delays", tuple(pipeline.delays), (0,) * len(pipeline.delays)),
        ("micro", pipeline.micro, 1),
        ("weights", pipeline.weights, "stash"),
    ):
        if value != plain:
            raise ValueError(
                f"{name}={value!r}: under credit={credit!r} a stage learns from a batch at once; use {name}={plain!r}"
            )


class LocalStage(AuxiliaryStage):
    """Forward, backward and update, without any gradient from outside."""

    def __init__(self, blueprint: Blueprint, local: Local) -> None:
        self._options = local
        super().__init__(blueprint, local.optimizer)
        self.passes_back = False
        self._own_loss: Tensor | None = None

    def _network(self, kinds: Sequence[Kind]) -> nn.Module:
        assert self._options.classes is not None
        return Head(kinds, self._options, self._options.classes)

    def _forget(self) -> None:
        super()._forget()
        self._arrived: deque[Stored] = deque(maxlen=max(1, self._options.replay))

    # -- forward ---------------------------------------------------------------------------------------------------

    def _pass(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Passes on what it makes of the newest input, and learns from that one, or from one that it has kept.

        A kept one is forwarded with the weights of now; running statistics have counted it already.
        """
        if not self._options.replay or not self.index:
            return super()._pass(unit, x, target, share)
        self._arrived.append(Stored(x, target, share))
        chosen = self._chosen(unit[0])
        if chosen is self._arrived[-1]:
            return super()._pass(unit, x, target, share)
        with torch.no_grad():
            leaves, spec, _ = self._run(unit, x, target)
        with scratch_buffers(self.module):
            self._record(unit, *chosen)
        return leaves, spec

    def _chosen(self, batch: int) -> Stored:
        draw = self._options.draw
        if draw != "random":
            return self._arrived[0 if draw == "fifo" else -1]
        number = seed_of(self.config.seed, self.index, self.first_batch + batch, HEAD)
        return self._arrived[number % len(self._arrived)]

    def _plain_call(self, x: Tree, target: Tree) -> Tree:
        """The module, with the head and its loss where anything is to be learned from it."""
        out = super()._plain_call(x, target)
        if self.is_last or not torch.is_grad_enabled():
            return out
        made = [t for t in tensors_among(flatten(out)[0]) if t.requires_grad]
        if made:
            head = self._network_for(made)
            seen = [t.to(head.weights[0].dtype) for t in made]
            self._own_loss = self._loss(head.module(seen, to_device(target, self.device)), target)
        return out

    def _record(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """A forward whose graph is that of the loss here."""
        leaves, spec = super()._record(unit, x, target, share)
        if not self.is_last:
            loss, self._own_loss = self._own_loss, None
            with torch.enable_grad():
                outputs = [] if loss is None else [loss if share == 1.0 else loss * share]
            before = self._graphs[unit]
            weights = [*before.weights, *(self.auxiliary.weights if self.auxiliary else ())]
            self._graphs[unit] = Graph([], outputs, [None] * len(outputs), weights, before.version)
        return leaves, spec

    # -- update ----------------------------------------------------------------------------------------------------

    def _trained(self) -> list[nn.Parameter]:
        return [*self.weights.live, *(self.auxiliary.weights if self.auxiliary else ())]

    def _update(self) -> None:
        """Applies the gradient to the module and to the head."""
        own = len(self.weights.live)
        if self.auxiliary is not None:
            self.auxiliary.take(self._gradients[own:])
        self._gradients = self._gradients[:own]
        super()._update()

    def _stepped(self) -> None:
        super()._stepped()
        if self.auxiliary is not None:
            self.auxiliary.step()

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, Any]:
        """The batches that are kept to learn from."""
        return {**super().pending(), "arrived": [tuple(stored) for stored in self._arrived]}

    def restore(self, pending: dict[str, Any]) -> None:
        """Keeps these again."""
        super().restore(pending)
        self._arrived.extend(Stored(*stored) for stored in to_device(pending["arrived"], self.device))
