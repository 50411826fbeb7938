"""Stages that run their module on dual numbers: the passes of `ForwardStage`, eager and compiled."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils._pytree import tree_leaves

from freewheel.plan import Unit
from freewheel.stage import (
    Blueprint,
    Held,
    Shape,
    Stage,
    Tree,
    check_split_along_time,
    copies,
    flatten,
    recurrent_layers,
    restored_buffers,
    scratch_buffers,
    to_device,
    unflatten,
    versions,
)
from freewheel.tangents import (
    AliasGuard,
    CompiledPass,
    Directions,
    Dual,
    DualMode,
    PendingBatch,
    Perturber,
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


COUNTS = ["cuda"]  # the devices whose compiled kernels draw tangents; on a CPU torch's generator is faster
DrawTangents = Callable[[Sequence[Tensor]], list[Tensor]]


class DualInput(NamedTuple):
    """The input of a stage's passes."""

    leaves: list[Any]
    shape: Shape
    tangents: list[list[Tensor | None]]  # of the leaves, for each direction
    target: Tree
    has_loss: bool  # False in a sequence before its end

    @property
    def constant(self) -> bool:
        """Whether no leaf has a tangent."""
        return all(o is None for each in self.tangents for o in each)


class DualStage(Stage):
    """A stage that runs one pass per tangent; `ForwardStage` uses the results."""

    def __init__(self, blueprint: Blueprint, forward: Forward) -> None:
        super().__init__(blueprint)
        self.tangents = forward
        self._cuts_time = self.schedule.along == 1
        if self._cuts_time:
            check_split_along_time(self.module)
        self._recurrent = recurrent_layers(self.module)
        self._recurs_later = forward.recurs_later[self.index]
        self._states: list[list[Any]] = []  # of recurrent layers, for each tangent
        self._compiled: dict[Any, CompiledPass] = {}  # by the trained parameters, a loss, a scale
        self._held = self._read_held()
        self._settings: dict[str, Any] = {}  # of the modules, before the run
        self._form: Any = None  # of what the modules hold, that passes were compiled for
        self._signatures: dict[Any, Any] = {}  # likewise, the inputs to compile for in a resumed run
        # On a GPU, the batched products of several tangents have other bits in a CUDA graph than outside of it.
        exact = forward.tangents == 1 or self.device.type != "cuda"
        compiles = self.config.compile and not forward.eager and exact
        self._compiles = compiles and not self._recurrent
        real = all(p.is_floating_point() for p in self.module.parameters())
        on_device = self.device.type in COUNTS
        self._counts = compiles and forward.counts and real and on_device  # whether kernels draw the tangents
        self._directions = self._make_directions()

    def discards(self) -> AbstractContextManager[None]:
        """Return a context that undoes changes to buffers; a compiled pass uses the module's own."""
        return restored_buffers(self.module)

    @abstractmethod
    def _make_directions(self) -> Directions:
        """Return the tangents for the current parameters and optimizer."""

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Start a run and enter the dual level."""
        super().begin(batches_before, epochs_before)
        enter_level()
        self._directions = self._make_directions()
        self._held = self._read_held()
        before, self._form = self._form, self._held.form() if self._compiles else None
        self._settings = self._held.settings() if self._compiles else {}
        if before != self._form:
            self._compiled = {}
        self._alias_guard = AliasGuard(first=self.index == 0)
        self._signatures = {}
        self._scrubs = True  # whether the module leaves tangents in its buffers, detected in the first forward
        for layer in self._recurrent:
            layer.carry_state(self._cuts_time)

    def _read_held(self) -> Held:
        """Return what the modules hold now."""
        return Held(self._holders(), self.index)

    def check_unchanged(self) -> None:
        """Reject a module whose settings have changed in the present run."""
        if self._compiled:
            self._held.check_same(self._settings)

    def end(self) -> None:
        """End a run and leave the dual level."""
        for layer in self._recurrent:
            layer.carry_state(False)
        self._states = []
        super().end()
        leave_level()

    def pending(self) -> dict[str, Any]:
        """Add what the passes have detected; recurrent states are not included, since a new sequence starts."""
        signatures = {**self._signatures, **{key: ready.signature for key, ready in self._compiled.items()}}
        return {
            **super().pending(),
            "repeated": sorted(self._directions.repeated),
            "scrubs": self._scrubs,
            "signatures": list(signatures.items()),
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Restore it."""
        super().restore(pending)
        self._directions.repeated = set(pending["repeated"])
        self._scrubs = pending["scrubs"]
        self._signatures = dict(pending["signatures"])

    def _passes(self, unit: Unit, pending: PendingBatch, x: DualInput) -> list[SplitDuals]:
        """Run the passes of all tangents; return values and tangents, in the last stage the loss and its derivative."""
        count = self.tangents.tangents
        if x.constant and pending.frozen and not self._recurrent:  # without tangents, all passes are the same
            return [self._run(unit, 0, pending, x)] * count
        out = self._run_compiled(unit, pending, x) if self._compiles else None
        if out is not None:
            return out
        drawn = self._directions.counted.draw_all(pending, [self._tangent_key(unit, 0)[0]]) if self._counts else {}
        pending.passed.tangents |= drawn
        out = [self._run(unit, p, pending, x) for p in range(count)]
        for key in drawn:
            del pending.passed.tangents[key]
        return out

    def _run(self, unit: Unit, p: int, pending: PendingBatch, x: DualInput) -> SplitDuals:
        """Run one pass."""
        # The first forward runs on a copy to detect whether the module edits its input; later only editors get a copy.
        # Input from another stage belongs to this one, and needs a copy only if another pass reads it.
        kept = self.index == 0 or p < self.tangents.tangents - 1 or self.launch.fixed
        used = copies(x.leaves) if self._edits and kept else x.leaves
        self._alias_guard.note_input(used)
        before = versions(used) if self._edits else []
        duals = [t if o is None else dual(t, o) for t, o in zip(used, x.tangents[p])]
        with self._pass(unit, p, pending, constant=x.constant):
            result = self._call_split(unit, unflatten(duals, x.shape), x.target)
        self._edits = self._edits and versions(used) != before
        return result

    def _call_split(self, unit: Unit, x: Tree, target: Tree) -> SplitDuals:
        result = self._call(unit, x, target)
        return (result[0], [result[1]]) if self.is_last else split_duals(result)

    def _run_compiled(self, unit: Unit, pending: PendingBatch, x: DualInput) -> list[SplitDuals] | None:
        """Run all passes compiled; return None for a form of input that is not compiled.

        A pass is compiled for the first form of input, and again if other parameters are trained.
        """
        key = (
            tuple(alpha > 0 for alpha in pending.alphas),
            x.has_loss,
            self._counts and set(pending.alphas) <= {0.0, 1.0},
        )
        target, target_shape = flatten(to_device(x.target, self.device))
        ready = self._compiled.get(key)
        known = self._signatures.get(key) if ready is None else ready.signature
        if known is not None and known != signature_of(x.leaves, x.tangents[0], target):
            return None
        used = self._probe(unit, pending, x) if ready is None else ready.used
        self._edits = self._edits if ready is None else ready.edits
        if ready is None and self._draws:
            warnings.warn(f"stage {self.index} draws random numbers (dropout?) and is not compiled", stacklevel=1)
            self._compiles = False
            return None
        given, draw = self._tangents_for(unit, pending, used)
        if ready is None:
            with restored_buffers(self.module), self._held.unchanged():
                ready = self._compiled[key] = CompiledPass(
                    lambda x, y: self._call_split(unit, x, y),
                    self._directions.index_of,
                    (copies(x.leaves), x.shape),
                    [copies(each) for each in x.tangents],
                    (target, target_shape),
                    used,
                    given,
                    draw,
                    edits=self._edits,
                )
        values = copies(x.leaves) if self._edits and (self.index == 0 or self.launch.fixed) else x.leaves
        self._alias_guard.note_input(values)
        return ready(values, x.tangents, target, given)

    def _tangents_for(
        self, unit: Unit, pending: PendingBatch, used: Sequence[int]
    ) -> tuple[list[Tensor], DrawTangents]:
        """Return what the tangents of a compiled pass are computed from, and how."""
        keys = [self._tangent_key(unit, p) for p in range(self.tangents.tangents)]
        if self._counts:
            pending.passed.used |= set(used)
            return self._directions.counted.given(pending, keys[0][0]), self._directions.counted.drawer(used)
        sources = [TangentSource(self._directions, pending, each) for each in keys]
        return [torch.stack([source.tangent(index) for source in sources]) for index in used], list  # pyright: ignore

    def _probe(self, unit: Unit, pending: PendingBatch, x: DualInput) -> list[int]:
        """Run a pass on copies to find the used parameters, and detect random numbers and edits of the input."""
        leaves, trial = copies(x.leaves), replace(pending, passed=replace(pending.passed, used=set()))
        duals = [t if o is None else dual(t, o) for t, o in zip(leaves, copies(x.tangents[0]))]
        with scratch_buffers(self.module), self._held.put_back(), self._pass(unit, 0, trial, constant=False):
            self._call(unit, unflatten(duals, x.shape), x.target)
        self._edits = any(versions(leaves))
        return sorted(trial.passed.used)

    def _message(self, out: list[SplitDuals], pending: PendingBatch) -> Dual:
        """Return the message to the next stage."""

        def retained() -> list[Any]:
            inputs = [each.x for found in pending.passed.perturbations.values() for each in found]
            return [*self.module.parameters(), *self.module.buffers(), *tree_leaves(self._states), *inputs]

        return self._alias_guard.message(out, retained)

    def _tangent_key(self, unit: Unit, p: int) -> TangentKey:
        """Return the key of a pass's tangent within the batch."""
        return self.first_micro_batch + unit[1] if self.tangents.each == "micro" else self.replica, p

    @contextmanager
    def _pass(self, unit: Unit, p: int, pending: PendingBatch, *, constant: bool) -> Iterator[None]:
        """Run the module on dual numbers inside the context. Only the first tangent's pass changes buffers."""
        micro = unit[1]
        with ExitStack() as stack:
            if p:
                stack.enter_context(scratch_buffers(self.module))
            if constant and pending.frozen and not self._recurrent:
                stack.enter_context(torch.no_grad())
                yield
                return
            perturber = None
            if self.tangents.perturb == "activations":
                perturber = Perturber(self._directions, pending, (micro, p))
            if self._cuts_time:
                if micro == 0 and p == 0:
                    self._states = [[None] * len(self._recurrent) for _ in range(self.tangents.tangents)]
                for layer, state in zip(self._recurrent, self._states[p]):
                    layer.set_state(state, perturber.after_recurrent if perturber else None)
            source = TangentSource(self._directions, pending, self._tangent_key(unit, p))
            try:
                with torch.enable_grad(), DualMode(source, perturber.rules if perturber else {}):
                    yield
            except (NotImplementedError, RuntimeError) as error:
                reason = explained(error)
                raise reason from (None if reason is error else error)
            if perturber:
                persist = self._cuts_time and self._recurs_later
                pending.passed.perturbations[micro, p] = perturber.perturbations(persist=persist)
            if self._cuts_time:
                self._states[p] = [layer.state for layer in self._recurrent]
            if self._scrubs:
                self._scrubs = self._scrub()

    def _scrub(self) -> bool:
        """Remove tangents from the module's buffers; return whether there were any."""
        found = False
        for child in self.module.modules():
            for name, buffer in child._buffers.items():
                if buffer is not None and unpack_dual(buffer).tangent is not None:
                    child._buffers[name], found = unpack_dual(buffer).primal, True
        return found
