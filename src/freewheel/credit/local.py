"""`local`: a stage learns from a local loss, that of a head on its output.

::

    stage 0   x ──F──▶ h_1 ──▶ head ──▶ loss_0        no gradient from stage 1
    stage 1            h_1 ──F──▶ h_2 ──▶ head ──▶ loss_1
    stage 2                       h_2 ──F──▶ loss     the loss of the network
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from freewheel._errors import of_type
from freewheel._seeds import seed_of
from freewheel.corrections import Accumulate, Gradients, map_gradients
from freewheel.credit._auxiliary import HEAD, AuxiliaryStage
from freewheel.credit._credit import Credit
from freewheel.credit._graph import Graph, StoredInput
from freewheel.credit._heads import Head, HeadOptions, OwnHead, forms
from freewheel.credit._shapes import Kind, network_outputs
from freewheel.plan import Message, Schedule, Unit
from freewheel.stage import (
    Blueprint,
    Holders,
    SeededDraws,
    Shape,
    Stage,
    Tree,
    copies,
    flatten,
    has_weights,
    map_tensors,
    scratch_buffers,
    tensors_among,
    to_device,
    unflatten,
)

if TYPE_CHECKING:
    from freewheel.methods import Pipeline


@dataclass(frozen=True, kw_only=True)
class Local(HeadOptions, Credit):
    """Local losses: each stage but the last learns from its own head. See `HeadOptions` for the options.

    Example:
        >>> import freewheel as fw
        >>> fw.plan(fw.Pipeline(credit=fw.Local(hidden=32), delays=(0, 0)), k=2).locks
        frozenset()
    """

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "local"

    @property
    def messages(self) -> tuple[Message, ...]:
        """None besides activations."""
        return ()

    @property
    def needs_targets(self) -> bool:
        """True: every head has a loss."""
        return True

    @property
    def ties(self) -> bool:
        """No: a stage gets no gradient from later ones."""
        return False

    def check(self, pipeline: Pipeline) -> None:
        """Reject delays and micro-batches."""
        check_immediate(self.name, pipeline)

    def check_captured(self, schedule: Schedule) -> None:
        """Reject a replay buffer, from which every batch takes another input."""
        if self.replay:
            raise ValueError(f"replay={self.replay} with runtime='graph': use runtime='threads'")

    def check_compiled(self) -> None:
        """Accept."""

    def bind(self, modules: Sequence[nn.Module]) -> Local:
        """Find the number of classes."""
        known = self.classes is not None or self.heads is not None or len(modules) == 1
        return self if known else replace(self, classes=network_outputs(modules))

    def build(self, blueprint: Blueprint) -> Stage:
        """Build a `LocalStage`."""
        return LocalStage(blueprint, self)

    def head_settings(self) -> Any:
        """Return the heads' options."""
        return self.settings()


def check_immediate(credit: str, pipeline: Pipeline) -> None:
    """Reject delays and micro-batches for a credit whose stages learn from each batch at once."""
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
    """A stage that learns from its head, without gradients from other stages."""

    def __init__(self, blueprint: Blueprint, local: Local) -> None:
        self._options = local
        super().__init__(blueprint, local.optimizer)
        self.passes_back = False
        self._every = math.prod(c.every for c in self.options.corrections if isinstance(c, Accumulate))
        self._form: int | None = None  # of the head's output, found with the first batch

    def check(self) -> None:
        """Reject a loss with weights, of which every head would need its own."""
        super().check()
        if not self.is_last and has_weights(self.config.loss):
            raise ValueError(
                "loss has parameters: under credit='local' every stage has a loss, but they belong to the last stage; "
                "put them into the last stage's module, or use a method of the chain rule, such as 'pipedream'"
            )

    def _network(self, kinds: Sequence[Kind]) -> nn.Module:
        if self._options.heads is not None:
            hint = "it must return a torch.nn.Module"
            return OwnHead(of_type(f"heads({self.index})", self._options.heads(self.index), nn.Module, hint))
        assert self._options.classes is not None
        return Head(kinds, self._options, self._options.classes)

    def _forget(self) -> None:
        super()._forget()
        self._replay_buffer: deque[StoredInput] = deque(maxlen=max(1, self._options.replay))

    def _pass(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Forward the newest input, and learn from it or from one in the replay buffer.

        A replayed input is forwarded with the newest weights and does not change running statistics again.
        """
        if not self._options.replay or not self.index:
            return super()._pass(unit, x, target, share)
        self._replay_buffer.append(StoredInput(x, target, share))
        chosen = self._chosen(unit[0])
        if chosen is self._replay_buffer[-1]:
            return super()._pass(unit, x, target, share)
        with torch.no_grad():
            leaves, spec, _ = self._run(unit, x, target)
        with scratch_buffers(self.module):
            self._record(unit, *chosen[:3])
        return leaves, spec

    def _chosen(self, batch: int) -> StoredInput:
        draw = self._options.draw
        if draw != "random":
            return self._replay_buffer[0 if draw == "fifo" else -1]
        number = seed_of(self.config.seed, self.index, self.first_batch + batch, HEAD)
        return self._replay_buffer[number % len(self._replay_buffer)]

    def _holders(self) -> Holders:
        """Add the head."""
        found = super()._holders()
        head = {} if self.auxiliary is None else {"head": self.auxiliary.module}
        return found._replace(modules={**found.modules, **head})

    def _call(self, unit: Unit, x: Tree, target: Tree) -> Tree:
        """Build the head, and find its form, before anything is compiled."""
        ready = self.auxiliary is not None and (self._form is not None or self._options.heads is not None)
        if self._compute is not None and not ready and not self.is_last and torch.is_grad_enabled():
            leaves, shape = flatten(x)
            draws = SeededDraws(*self.key_of(unit))
            with self.config.casting(self.device), draws, self.discards():
                self._plain_call(unflatten(copies(leaves), shape), target)
            self._compute.refresh()
        return super()._call(unit, x, target)

    def _plain_call(self, x: Tree, target: Tree) -> tuple[Tree, Tree]:
        """Run the module, and the head with its loss if the stage can learn from it."""
        out, _ = super()._plain_call(x, target)
        if self.is_last or not torch.is_grad_enabled():
            return out, None
        outputs = [t for t in tensors_among(flatten(out)[0]) if t.requires_grad]
        if not outputs:
            return out, None
        head = self._network_for(outputs)
        seen = [t.to(head.weights[0].dtype) for t in outputs]
        if self._compute is not None:  # only the head's loss is learned from
            leaves, shape = flatten(out)
            out = unflatten(map_tensors(Tensor.detach, leaves), shape)
        return out, self._head_loss(head.module(seen, to_device(target, self.device)), target)

    def _head_loss(self, out: Tensor, target: Tree) -> Tensor:
        """Return the loss of a head's output, in the first form that the loss takes."""
        if self._options.heads is not None:  # the user knows the form
            return self._loss(out, target)
        if self._form is not None:
            return self._loss(forms(out, target)[self._form], target)
        errors: list[Exception] = []
        for self._form, form in enumerate(forms(out, target)):
            try:
                return self._loss(form, target)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                errors.append(error)
        self._form = None
        raise ValueError(
            f"loss does not take an output of shape {tuple(out.shape)}, that of a head at stage {self.index} "
            f"({str(errors[-1]).splitlines()[0]}): under credit='local' heads classify samples or the positions of a "
            "sequence; use another loss, or a method of the chain rule, such as 'pipedream'"
        ) from errors[-1]

    def _record(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Run a forward and store the graph of the local loss."""
        leaves, spec = super()._record(unit, x, target, share)
        if not self.is_last:
            loss, self._besides = self._besides, None
            with torch.enable_grad():
                outputs = [] if loss is None else [loss if share == 1.0 else loss * share]
            before = self._graphs[unit]
            weights = [*before.weights, *(self.auxiliary.weights if self.auxiliary else ())]
            self._graphs[unit] = Graph([], outputs, [None] * len(outputs), weights, before.version)
        return leaves, spec

    def _trained(self) -> list[nn.Parameter]:
        return [*self.weights.live, *(self.auxiliary.weights if self.auxiliary else ())]

    def _update(self) -> None:
        """Apply the gradient to the module and the head."""
        own = len(self.weights.live)
        if self.auxiliary is not None:
            self.auxiliary.add_gradients(self._mean(self._gradients[own:]))
        self._gradients = self._gradients[:own]
        super()._update()

    def _mean(self, gradients: Gradients) -> Gradients:
        """Return a head's gradients as a part of those that its next step has, if it is one for several batches."""
        return gradients if self._every == 1 else map_gradients(lambda g: g / self._every, gradients)

    def _stepped(self) -> None:
        super()._stepped()
        self._step_auxiliary()

    def pending(self) -> dict[str, Any]:
        """Add the replay buffer."""
        return {**super().pending(), "arrived": [tuple(stored) for stored in self._replay_buffer]}

    def restore(self, pending: dict[str, Any]) -> None:
        """Restore the replay buffer, too."""
        super().restore(pending)
        self._replay_buffer.extend(StoredInput(*stored) for stored in to_device(pending["arrived"], self.device))
