"""Captured functions: CUDA graphs with their arguments and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel._plain import is_plain, is_same
from freewheel.plan import Unit
from freewheel.runtime._drawn import Sources
from freewheel.runtime._fixed import StepSizes
from freewheel.runtime._places import FixedTree, Recorded, forms_of
from freewheel.runtime._repeat import Script
from freewheel.stage import Stage

FORMS = 4  # of batches that are captured; further ones are computed as on other runtimes
Place = tuple[int, int]  # a slot, and the number of a micro-batch


class CapturedCall:
    """A captured function with its arguments and result."""

    def __init__(
        self,
        arguments: Sequence[Any],
        fed: Sequence[FixedTree],
        held: Sequence[Tensor],
        graph: torch.cuda.CUDAGraph,
        sources: Sources,
        sizes: StepSizes | None,
        result: Any,
    ) -> None:
        self._graph, self._arguments, self._fed = graph, arguments, fed
        self._held = held  # by the modules then: a graph refers to their memory
        self._sources, self._sizes, self.result = sources, sizes, result
        self.forms = forms_of(fed)
        self.epoch = 0  # that it was used in

    def takes(self, arguments: Sequence[Any], fed: Sequence[Any]) -> bool:
        """Whether it computes the function of these arguments."""
        for a, b in zip(arguments, self._arguments):
            if not is_same(a, b):
                return False
        for tree, fixed in zip(fed, self._fed):
            if tree is not fixed.tree and not fixed.takes(tree):
                return False
        return self._sizes is None or self._sizes.holds()

    def uses(self, value: Any) -> bool:
        """Whether it has this object for an argument."""
        return any(value is each for each in self._arguments)

    def check_unchanged(self, stage: int) -> None:
        """Reject an optimizer whose state has been replaced."""
        if self._sizes is not None:
            self._sizes.check_state(stage)

    def copy(self, fed: Sequence[Any]) -> int:
        """Copy what it is fed to its places; return how many of the first trees were not all there."""
        count = 0
        for number, (tree, fixed) in enumerate(zip(fed, self._fed), 1):
            if tree is not fixed.tree:
                fixed.copy(tree)
                count = number
        return count

    def replay(self, stage: Stage, unit: Unit, script: Script) -> Any:
        """Compute it, with the random numbers of a unit."""
        if self._sources:
            self._sources.seed(stage, unit)
            script.note(self._seed_again, stage, script, unit[0] - script.batch)
        if self._sizes is not None:
            script.do(self._sizes.fill)
        script.do(self._graph.replay)
        return self.result

    def _seed_again(self, stage: Stage, script: Script, ahead: int) -> None:
        self._sources.seed(stage, (script.batch + ahead, 0))


class CapturedCalls:
    """The captured functions of a stage.

    Args:
        recorded: The results of all stages.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._calls: dict[tuple[str, Place], list[CapturedCall]] = {}

    def __iter__(self) -> Iterator[CapturedCall]:
        return (call for calls in self._calls.values() for call in calls)

    def add(self, name: str, place: Place, call: CapturedCall) -> CapturedCall:
        """Add a captured function."""
        self._calls.setdefault((name, place), []).append(call)
        return call

    def find(
        self, name: str, place: Place, arguments: Sequence[Any], fed: Sequence[Any], epoch: int
    ) -> CapturedCall | None:
        """Return the captured function of these arguments, which is used in an epoch."""
        for call in self._calls.get((name, place), ()):
            if call.takes(arguments, fed):
                call.epoch = epoch
                return call
        return None

    def make_room(self, place: Place, epoch: int) -> bool:
        """Forget a forward that has had no use for an epoch, if there are too many; return whether there is room.

        A scale that changes with the epoch is a constant of a captured forward.
        """
        calls = self._calls.get(("forward", place), [])
        if len(calls) < FORMS:
            return True
        oldest = min(calls, key=lambda call: call.epoch)
        if oldest.epoch >= epoch - 1:
            return False
        calls.remove(oldest)
        for part in (part for part in self._recorded.remove(oldest.result) if not is_plain(part)):
            for (_, where), others in self._calls.items():
                if where == place:
                    others[:] = [call for call in others if not call.uses(part)]
        return True

    def clear(self) -> None:
        """Free all graphs."""
        self._calls.clear()
