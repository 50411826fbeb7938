"""Errors of a run, named by stage, batch and process, and their form between processes."""

from __future__ import annotations

import traceback
from typing import Any

from freewheel.plan import Action


def in_words(action: Action) -> str:
    """An action in words.

    Example:
        >>> in_words(Action.parse("B3@1"))
        'the backward of batch 3'
    """
    return f"the {action.op.noun} of batch {action.batch}"


class StageError(RuntimeError):
    """A stage failed; the cause is chained, `stage`, `batch` and, if there are several, `replica` say where."""

    def __init__(
        self,
        stage: int,
        action: Action,
        cause: BaseException | None,
        where: str = "",
        replica: int | None = None,
        *,
        reason: str = "",
    ) -> None:
        reason = reason or f"{type(cause).__name__}: {str(cause).strip().split(chr(10))[0]}"
        which = "" if replica is None else f", replica {replica}"
        super().__init__(f"stage {stage}{which}{where} failed in {in_words(action)}: {reason}")
        self.stage, self.batch, self.action, self.reason = stage, action.batch, action, reason
        self.replica = replica

    def fields(self) -> dict[str, Any]:
        """What it takes to rebuild the error in another process."""
        action = str(self.action)
        return {"kind": "stage", "stage": self.stage, "replica": self.replica, "action": action, "reason": self.reason}


class LostError(RuntimeError):
    """Another process of the run has ended, or does not respond."""

    def __init__(self, peer: str, what: str = "does not answer: it has ended, or cannot be reached") -> None:
        super().__init__(f"{peer} {what}")
        self.peer, self.what = peer, what

    def fields(self) -> dict[str, Any]:
        """What it takes to rebuild the error in another process."""
        return {"kind": "lost", "peer": self.peer, "what": self.what}


class RemoteError(Exception):
    """The traceback of an error in another process, chained to the one that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def encode_error(error: BaseException) -> dict[str, Any]:
    """An error as plain data, with its traceback; see `decode_error`."""
    if isinstance(error, StageError | LostError):
        fields = error.fields()
    else:
        kind = "system" if isinstance(error, OSError) else "other"
        fields = {"kind": kind, "text": f"{type(error).__name__}: {error}"}
    return {**fields, "traceback": "".join(traceback.format_exception(error))}


def decode_error(report: dict[str, Any], where: str) -> Exception:
    """The error of another process from its plain data; `where` names that process in the message."""
    if report["kind"] == "lost":
        return LostError(report["peer"], report["what"])
    if report["kind"] == "stage":
        action, reason = Action.parse(report["action"]), report["reason"]
        error: Exception = StageError(report["stage"], action, None, where, report["replica"], reason=reason)
    else:
        error = (OSError if report["kind"] == "system" else RuntimeError)(f"{where}: {report['text']}")
    error.__cause__ = RemoteError(report["traceback"])
    return error
