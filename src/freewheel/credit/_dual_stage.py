"""A stage that runs its module on dual numbers: the passes of `ForwardStage`, eager and compiled."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils._pytree import tree_leaves

from freewheel.plan import Unit
from freewheel.stage import (
    Blueprint,
    Shape,
    Stage,
    Tree,
    copies,
    flatten,
    kept_buffers,
    recurrent_layers,
    scratch_buffers,
    to_device,
    unflatten,
    versions,
)
from freewheel.tangents import (
    CompiledPass,
    Directions,
    Dual,
    DualMode,
    Handover,
    Mover,
    PendingBatch,
    SplitDuals,
    TangentKey,
    TangentSource,
    dual,
    enter_level,
    explained,
    leave_level,
    signature_of,
    split_duals,
)

if TYPE_CHECKING:
    from freewheel.credit.forward import Forward


class DualStage(Stage):
    """Runs one pass for each tangent. What becomes of the results is `ForwardStage`'s."""

    def __init__(self, blueprint: Blueprint, forward: Forward) -> None:
        super().__init__(blueprint)
        self.tangents = forward
        self._cuts_time = self.schedule.along == 1
        self._recurrent = recurrent_layers(self.module, in_pieces=self._cuts_time)
        self._recurs_later = forward.recurs_later[self.index]
        self._states: list[list[Any]] = []  # of recurrent layers, for each tangent
        self._compiled: dict[Any, CompiledPass] = {}  # by what is trained
        self._signatures: dict[Any, Any] = {}  # the same, of a run that goes on: the inputs to compile for
        self._compiles = forward.compile and not self._recurrent
        self._directions = self._make_directions()

    @abstractmethod
    def _make_directions(self) -> Directions:
        """The tangents of the stage's parameters, as they and the optimizer are now."""

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Starts a run; tensors may carry tangents from here on."""
        super().begin(batches_before, epochs_before)
        enter_level()
        self._directions = self._make_directions()
        self._handover = Handover(first=self.index == 0)
        self._signatures = {}
        self._scrubs = True  # whether the module puts tangents into its buffers, as its first forward shows
        for layer in self._recurrent:
            layer.stream(self._cuts_time)

    def end(self) -> None:
        """Ends it."""
        for layer in self._recurrent:
            layer.stream(False)
        self._states = []
        super().end()
        leave_level()

    def pending(self) -> dict[str, Any]:
        """What the passes so far have shown. States of recurrent layers are none of it: a new sequence begins."""
        signatures = {**self._signatures, **{key: ready.signature for key, ready in self._compiled.items()}}
        return {
            **super().pending(),
            "repeated": sorted(self._directions.repeated),
            "scrubs": self._scrubs,
            "signatures": list(signatures.items()),
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Takes it up again."""
        super().restore(pending)
        self._directions.repeated = set(pending["repeated"])
        self._scrubs = pending["scrubs"]
        self._signatures = dict(pending["signatures"])

    # -- passes -----------------------------------------------------------------------------------------------------

    def _passes(
        self,
        unit: Unit,
        pending: PendingBatch,
        x: tuple[list[Any], Shape],
        moved: list[list[Tensor | None]],
        target: Tree,
        lossy: bool,
    ) -> list[SplitDuals]:
        """The dual passes of all tangents: values and their tangents; at the last stage, the loss and its derivative.

        Args:
            unit: The batch and micro-batch.
            pending: What is known of the batch.
            x: The input's leaves and its shape.
            moved: For each tangent, those of the input's leaves.
            target: The target, for the last stage.
            lossy: Whether there is a loss, which a sequence has at its end alone.
        """
        still = all(o is None for each in moved for o in each)
        count = self.tangents.tangents
        if still and pending.frozen and not self._recurrent:  # nothing moves: all passes are the same
            return [self._run(unit, 0, pending, x, moved[0], target, still)] * count
        if self._compiles:
            out = self._run_compiled(unit, pending, x, moved, target, lossy)
            if out is not None:
                return out
        return [self._run(unit, p, pending, x, moved[p], target, still) for p in range(count)]

    def _run(
        self,
        unit: Unit,
        p: int,
        pending: PendingBatch,
        x: tuple[list[Any], Shape],
        moved: list[Tensor | None],
        target: Tree,
        still: bool,
    ) -> SplitDuals:
        """One pass."""
        leaves, shape = x
        # Whether the module edits its input is found out on a copy, the first time; then only editors get one. What
        # came from another stage is this one's alone, and needs a copy only where one more pass follows.
        copied = self._edits and (self.index == 0 or p < self.tangents.tangents - 1)
        used = copies(leaves) if copied else leaves
        self._handover.borrow(used)
        before = versions(used) if self._edits else []
        duals = [t if o is None else dual(t, o) for t, o in zip(used, moved)]
        with self._pass(unit, p, pending, still=still):
            result = self._call_split(unit, unflatten(duals, shape), target)
        self._edits = self._edits and versions(used) != before
        return result

    def _call_split(self, unit: Unit, x: Tree, target: Tree) -> SplitDuals:
        result = self._call(unit, x, target)
        return (result[0], [result[1]]) if self.is_last else split_duals(result)

    def _run_compiled(
        self,
        unit: Unit,
        pending: PendingBatch,
        x: tuple[list[Any], Shape],
        moved: list[list[Tensor | None]],
        target: Tree,
        lossy: bool,
    ) -> list[SplitDuals] | None:
        """All passes, compiled; None where there is no compiled pass for such an input.

        A pass is compiled for the first form of input that is met, and anew when other parameters are trained.
        """
        leaves, _ = x
        key = tuple(alpha > 0 for alpha in pending.alphas), lossy
        given, target_shape = flatten(to_device(target, self.device))
        ready = self._compiled.get(key)
        known = self._signatures.get(key) if ready is None else ready.signature
        if known is not None and known != signature_of(leaves, moved[0], given):
            return None
        used = self._probe(unit, pending, x, moved[0], target) if ready is None else ready.used
        self._edits = self._edits if ready is None else ready.edits
        if ready is None and self._draws:
            warnings.warn(f"stage {self.index} draws random numbers (dropout?): it is not compiled", stacklevel=1)
            self._compiles = False
            return None
        sources = [
            TangentSource(self._directions, pending, self._tangent_key(unit, p)) for p in range(self.tangents.tangents)
        ]
        us = {index: torch.stack([source.tangent(index) for source in sources]) for index in used}  # pyright: ignore
        if ready is None:
            with kept_buffers(self.module):
                ready = self._compiled[key] = CompiledPass(
                    lambda x, y: self._call_split(unit, x, y),
                    self._directions.index_of,
                    (copies(leaves), x[1]),
                    [copies(each) for each in moved],
                    (given, target_shape),
                    us,
                    edits=self._edits,
                )
        values = copies(leaves) if self._edits and self.index == 0 else leaves
        self._handover.borrow(values)
        return ready(values, moved, given, list(us.values()))

    def _probe(
        self, unit: Unit, pending: PendingBatch, x: tuple[list[Any], Shape], moved: list[Tensor | None], target: Tree
    ) -> list[int]:
        """Runs a pass on copies for what it shows.

        Which parameters take part; also whether random numbers are drawn, and whether the input is edited.
        """
        leaves, shape = copies(x[0]), x[1]
        trial = replace(pending, used=set())
        duals = [t if o is None else dual(t, o) for t, o in zip(leaves, copies(moved))]
        with scratch_buffers(self.module), self._pass(unit, 0, trial, still=False):
            self._call(unit, unflatten(duals, shape), target)
        self._edits = any(versions(leaves))
        return sorted(trial.used)

    def _passed_on(self, out: list[SplitDuals], pending: PendingBatch) -> Dual:
        """What the next stage gets."""

        def kept() -> list[Any]:
            moves = [move.x for moves in pending.moves.values() for move in moves]
            return [*self.module.parameters(), *self.module.buffers(), *tree_leaves(self._states), *moves]

        return self._handover.passed_on(out, kept)

    def _tangent_key(self, unit: Unit, p: int) -> TangentKey:
        """Which of the batch's tangents a pass has."""
        return self.first_piece + unit[1] if self.tangents.each == "micro" else self.replica, p

    @contextmanager
    def _pass(self, unit: Unit, p: int, pending: PendingBatch, *, still: bool) -> Iterator[None]:
        """Inside, the module runs on dual numbers. Only the first tangent's pass changes its buffers."""
        micro = unit[1]
        with ExitStack() as stack:
            if p:
                stack.enter_context(scratch_buffers(self.module))
            if still and pending.frozen and not self._recurrent:
                stack.enter_context(torch.no_grad())
                yield
                return
            mover = None
            if self.tangents.perturb == "activations":
                mover = Mover(self._directions, pending, (micro, p))
            if self._cuts_time:
                if micro == 0 and p == 0:
                    self._states = [[None] * len(self._recurrent) for _ in range(self.tangents.tangents)]
                for layer, state in zip(self._recurrent, self._states[p]):
                    layer.go_on(state, mover.recurs if mover else None)
            source = TangentSource(self._directions, pending, self._tangent_key(unit, p))
            try:
                with torch.enable_grad(), DualMode(source, mover.rules if mover else {}):
                    yield
            except (NotImplementedError, RuntimeError) as error:
                reason = explained(error)
                raise reason from (None if reason is error else error)
            if mover:
                pending.moves[micro, p] = mover.moves(lasting=self._cuts_time and self._recurs_later)
            if self._cuts_time:
                self._states[p] = [layer.state for layer in self._recurrent]
            if self._scrubs:
                self._scrubs = self._scrub()

    def _scrub(self) -> bool:
        """Takes tangents off the module's buffers; tells whether there were any."""
        found = False
        for child in self.module.modules():
            for name, buffer in child._buffers.items():
                if buffer is not None and unpack_dual(buffer).tangent is not None:
                    child._buffers[name], found = unpack_dual(buffer).primal, True
        return found
