"""`simulate`: one thread runs all stages, each as far as it can go. This is the definition of correct."""

from __future__ import annotations

from freewheel._cores import intra_op_threads
from freewheel.plan import Action
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._run import Cut, Local, Outcome, Run


def simulate(run: Run) -> Outcome:
    """Runs to the end, or to the cut at which `on_cut` asks to stop."""
    cuts: list[Cut] = []
    run.complete = cuts.append
    with run.begun() as stages, intra_op_threads(run.threads):
        local = Local(run, stages)
        run.feed.on_demand(local.deliver)
        players = [_Player(interpreter) for interpreter in local.interpreters]
        while sum(player.play() for player in players):  # every one of them gets its turn
            while cuts:
                cut = cuts.pop(0)
                if run.on_cut(cut):
                    return local.outcome(cut)
        assert all(player.over for player in players), "deadlock in a checked plan"
        return local.outcome(None)


class _Player:
    """A stage that is played as far as it goes without waiting."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._actions = interpreter.actions()
        self._next: Action | None = None
        self.over = False

    def play(self) -> bool:
        """Plays until the stage must wait; tells whether anything happened."""
        moved = False
        while not self.over:
            if self._next is None:
                self._next = next(self._actions, None)
                if self._next is None:
                    self.over = True
                    break
            if not self._interpreter.ready(self._next):
                break
            self._interpreter.execute(self._next)
            self._next, moved = None, True
        return moved
