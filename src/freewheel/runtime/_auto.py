"""`auto`: another runtime, chosen when the trainer is made."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from freewheel._config import RunConfig
from freewheel.runtime._graph import Graphs
from freewheel.runtime._processes import Processes
from freewheel.runtime._ranks import is_one_of_several
from freewheel.runtime._run import Outcome, Run
from freewheel.runtime._runtime import Runtime, RuntimeChoice
from freewheel.stage import Blueprint

SHORT = 0.05  # seconds of a stage's step: where it takes less, threads wait for each other's Python


class Auto(Runtime):
    """Chooses by the devices of the stages and by how long their steps take."""

    def choose(self, config: RunConfig, blueprints: Sequence[Blueprint], seconds: Sequence[float]) -> RuntimeChoice:
        """Choose `torchrun` where that has started this process; on a GPU `graph`, else `processes` or `threads`."""
        if is_one_of_several():
            return RuntimeChoice("torchrun", "torchrun has started this process")
        if any(blueprint.device.type == "cuda" for blueprint in blueprints):
            return _on_gpus(config, blueprints)
        return _on_cores(config, blueprints, seconds)

    def run(self, run: Run) -> Outcome:
        """Never called: the trainer has the runtime that was chosen."""
        raise NotImplementedError


def _on_gpus(config: RunConfig, blueprints: Sequence[Blueprint]) -> RuntimeChoice:
    try:
        Graphs().check(config, blueprints)
    except ValueError as error:
        return RuntimeChoice("threads", f"refused: {str(error).partition(':')[0]}")
    if any(isinstance(layer, nn.RNNBase) for each in blueprints for layer in each.module.modules()):
        return RuntimeChoice("threads", "a graph of a recurrent layer would have every time step")
    return RuntimeChoice("graph", f"all stages are on {blueprints[0].device}")


def _on_cores(config: RunConfig, blueprints: Sequence[Blueprint], seconds: Sequence[float]) -> RuntimeChoice:
    if len(blueprints) == 1:
        return RuntimeChoice("threads", "there is one stage")
    if not seconds:
        return RuntimeChoice("threads", "the split has not measured how long a step takes")
    longest = f"a step of a stage takes up to {max(seconds) * 1000:.3g} ms"
    if max(seconds) >= SHORT:
        return RuntimeChoice("threads", longest)
    if not _workers_can_load_the_script():
        return RuntimeChoice("threads", "the script has no `if __name__ == '__main__':`, which processes need")
    try:
        Processes().check(config, blueprints)
    except TypeError as error:
        return RuntimeChoice("threads", str(error).partition(" (")[0])
    return RuntimeChoice("processes", longest)


def _workers_can_load_the_script() -> bool:
    """Whether this process may start workers, which load its script without doing its work again."""
    if multiprocessing.current_process().daemon:
        return False
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        return script is not None and "__main__" in Path(script).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
