"""A stage that learns from a loss of its own: that of a head on its output.

::

    stage 0   x ──F──▶ h_1 ──▶ head ──▶ loss_0        nothing comes back from stage 1
    stage 1            h_1 ──F──▶ h_2 ──▶ head ──▶ loss_1
    stage 2                       h_2 ──F──▶ loss     the last one has the network's
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._seeds import seed_of
from freewheel.stage._chain import Graph, Stored
from freewheel.stage._forms import Form
from freewheel.stage._heads import Head
from freewheel.stage._owned import HEAD, HeadedStage
from freewheel.stage._stage import Tree, Unit
from freewheel.stage._state import scratch_buffers
from freewheel.stage._trees import Shape, flatten, to_device


class LocalStage(HeadedStage):
    """Forward, backward and update, without any gradient from outside."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.passes_back = False
        self._loss_here: Tensor | None = None

    def _network(self, forms: Sequence[Form]) -> nn.Module:
        return Head(forms, self.options.heads, self.options.classes)

    def _forget(self) -> None:
        super()._forget()
        self._arrived: deque[Stored] = deque(maxlen=max(1, self.options.heads.replay))

    # -- forward ---------------------------------------------------------------------------------------------------

    def _pass(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Passes on what it makes of the newest input, and learns from that one, or from one that it has kept.

        A kept one is forwarded with the weights of now; running statistics have counted it already.
        """
        if not self.options.heads.replay or not self.index:
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
        draw = self.options.heads.draw
        if draw != "random":
            return self._arrived[0 if draw == "fifo" else -1]
        number = seed_of(self.options.seed, self.index, self.first_batch + batch, HEAD)
        return self._arrived[number % len(self._arrived)]

    def _plain_call(self, x: Tree, target: Tree) -> Tree:
        """The module, with the head and its loss where anything is to be learned from it."""
        out = super()._plain_call(x, target)
        if self.is_last or not torch.is_grad_enabled():
            return out
        made = [t for t in flatten(out)[0] if isinstance(t, Tensor) and t.requires_grad]
        if made:
            head = self._own(made)
            seen = [t.to(head.weights[0].dtype) for t in made]
            self._loss_here = self._loss(head.module(seen, to_device(target, self.device)), target)
        return out

    def _record(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """A forward whose graph is that of the loss here."""
        leaves, spec = super()._record(unit, x, target, share)
        if not self.is_last:
            loss, self._loss_here = self._loss_here, None
            with torch.enable_grad():
                outputs = [] if loss is None else [loss if share == 1.0 else loss * share]
            before = self._graphs[unit]
            weights = [*before.weights, *(self.owned.weights if self.owned else ())]
            self._graphs[unit] = Graph([], outputs, [None] * len(outputs), weights, before.version)
        return leaves, spec

    # -- update ----------------------------------------------------------------------------------------------------

    def _learners(self) -> list[nn.Parameter]:
        return [*self.weights.live, *(self.owned.weights if self.owned else ())]

    def update(self, norm: Tensor | None = None) -> None:
        """Applies the gradient to the module and to the head."""
        own = len(self.weights.live)
        if self.owned is not None:
            self.owned.take(self._gradients[own:])
        self._gradients = self._gradients[:own]
        super().update(norm)

    def _stepped(self) -> None:
        super()._stepped()
        if self.owned is not None:
            self.owned.step()

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, Any]:
        """The batches that are kept to learn from."""
        return {**super().pending(), "arrived": [tuple(stored) for stored in self._arrived]}

    def restore(self, pending: dict[str, Any]) -> None:
        """Keeps these again."""
        super().restore(pending)
        self._arrived.extend(Stored(*stored) for stored in to_device(pending["arrived"], self.device))
