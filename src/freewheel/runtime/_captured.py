"""A captured function: a CUDA graph with its arguments and result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel._plain import is_same
from freewheel.plan import Unit
from freewheel.runtime._drawn import Sources
from freewheel.runtime._fixed import StepSizes
from freewheel.runtime._places import FixedTree, forms_of
from freewheel.runtime._repeat import Script
from freewheel.stage import Stage


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

    def takes(self, arguments: Sequence[Any], fed: Sequence[Any]) -> bool:
        """Whether it computes the function of these arguments."""
        for a, b in zip(arguments, self._arguments):
            if not is_same(a, b):
                return False
        for tree, fixed in zip(fed, self._fed):
            if tree is not fixed.tree and not fixed.takes(tree):
                return False
        return self._sizes is None or self._sizes.holds()

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
