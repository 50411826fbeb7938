"""`simulate`: one thread runs all stages, each as far as it can go; it defines what is correct."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from freewheel._cores import intra_op_threads
from freewheel.plan import Action, Op
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._run import Cut, LocalRun, Outcome, Run
from freewheel.runtime._runtime import Runtime


class Simulate(Runtime):
    """One thread runs all stages."""

    local = True

    def run(self, run: Run) -> Outcome:
        """Run to the end, or to the cut at which `on_cut` asks to stop."""
        with run.begun() as stages, intra_op_threads(run.threads):
            local = LocalRun(run, stages)
            if all(stage.device.type != "cuda" for stage in stages):
                run.feed.on_demand(local.deliver)
                return local.outcome(take_turns(run, local, Stepper.advance, run.on_cut))
            caller = torch.cuda.current_device()

            def deliver() -> bool:
                with torch.cuda.device(caller):
                    return local.deliver()

            run.feed.on_demand(deliver)
            return local.outcome(take_turns(run, local, _advance_on_its_gpu, run.on_cut))


def _advance_on_its_gpu(stepper: Stepper) -> bool:
    """Let a stage advance with its GPU as the current one, as in a thread of its own."""
    device = stepper.interpreter.stage.device
    with torch.cuda.device(device.index if device.type == "cuda" else -1):
        return stepper.advance()


def take_turns(
    run: Run, local: LocalRun, advance: Callable[[Stepper], bool], on_cut: Callable[[Cut], bool]
) -> Cut | None:
    """Let the stages advance one after another until all have finished, or to the cut at which `on_cut` stops."""
    cuts: list[Cut] = []
    run.on_complete = cuts.append
    steppers = [Stepper(interpreter, cuts) for interpreter in local.interpreters]
    while sum(advance(stepper) for stepper in steppers):  # not any(): every stage gets its turn
        while cuts:
            cut = cuts.pop(0)
            if on_cut(cut):
                return cut
    assert all(stepper.over for stepper in steppers), "deadlock in a checked plan"
    return None


class Stepper:
    """Runs one stage in turns.

    Args:
        interpreter: The interpreter of the stage.
        cuts: The complete cuts that have not been looked at.
    """

    def __init__(self, interpreter: Interpreter, cuts: Sequence[Cut]) -> None:
        self.interpreter, self._cuts = interpreter, cuts
        self._actions = interpreter.actions()
        self._next: Action | None = None
        self.over = False

    def advance(self) -> bool:
        """Execute actions until the stage must wait, has learned from a batch, or has completed a cut.

        Return whether it may go on. One batch a turn lets all stages go on at the same pace.
        """
        moved = False
        while not self.over:
            if self._cuts:
                return True
            if self._next is None:
                self._next = next(self._actions, None)
                if self._next is None:
                    self.over = True
                    break
            if not self.interpreter.ready(self._next):
                break
            action, self._next, moved = self._next, None, True
            self.interpreter.execute(action)
            if action.op is Op.UPDATE:
                break
        return moved
