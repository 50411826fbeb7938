"""What can go wrong in a run, named by stage, batch and place."""

from __future__ import annotations

import traceback
from typing import Any

from freewheel.plan import Action


def in_words(action: Action) -> str:
    """What a stage does.

    Example:
        >>> in_words(Action.parse("B3@1"))
        'the backward of batch 3'
    """
    return f"the {action.op.noun} of batch {action.batch}"


class StageError(RuntimeError):
    """A stage failed; the cause is chained, `stage`, `batch` and, if there are several, `replica` say where."""

    def __init__(
        self, stage: int, action: Action, cause: BaseException | str, where: str = "", replica: int | None = None
    ) -> None:
        reason = cause if isinstance(cause, str) else f"{type(cause).__name__}: {str(cause).strip().split(chr(10))[0]}"
        which = "" if replica is None else f", replica {replica}"
        super().__init__(f"stage {stage}{which}{where} failed in {in_words(action)}: {reason}")
        self.stage, self.batch, self.action, self.reason = stage, action.batch, action, reason
        self.replica = replica


class LostError(RuntimeError):
    """Another process of the run is gone, or does not answer."""

    def __init__(self, peer: str, what: str = "does not answer: it has ended, or cannot be reached") -> None:
        super().__init__(f"{peer} {what}")
        self.peer, self.what = peer, what


class RemoteError(Exception):
    """The traceback of an error in another process, chained to the one that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def told(error: BaseException) -> dict[str, Any]:
    """An error as plain values, to be told to another process."""
    lines = "".join(traceback.format_exception(error))
    if isinstance(error, StageError):
        kind = {"stage": error.stage, "replica": error.replica}
        return {"kind": "stage", **kind, "action": str(error.action), "reason": error.reason, "traceback": lines}
    if isinstance(error, LostError):
        return {"kind": "lost", "text": [error.peer, error.what], "traceback": lines}
    return {"kind": "other", "text": f"{type(error).__name__}: {error}", "traceback": lines}


def heard(report: dict[str, Any], where: str) -> Exception:
    """The error that another process told of; `where` says which."""
    if report["kind"] == "stage":
        action, replica = Action.parse(report["action"]), report["replica"]
        error: Exception = StageError(report["stage"], action, report["reason"], where, replica)
    else:
        error = RuntimeError(f"{where}: {report['text']}")
    error.__cause__ = RemoteError(report["traceback"])
    return error
