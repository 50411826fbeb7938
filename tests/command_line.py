"""Runs the command line in this process, and catches what it prints."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

CACHE = os.path.join(tempfile.gettempdir(), f"freewheel-tests-{os.getpid()}")  # no other worker writes there
TERMINAL = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def freewheel(*arguments: str, columns: int = 120) -> Result:
    """What `freewheel ARGUMENTS` prints, and its exit code."""
    from freewheel.cli._app import command_line  # which needs more than torch, as not all tests here do

    out, err = io.StringIO(), io.StringIO()
    env = {
        "XDG_CACHE_HOME": CACHE,
        "FREEWHEEL_RUNS": os.path.join(CACHE, "runs"),
        **os.environ,
        **TERMINAL,
        "COLUMNS": str(columns),
    }
    with patch.dict(os.environ, env), redirect_stdout(out), redirect_stderr(err):
        code = command_line(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def good(*arguments: str) -> str:
    """What a command prints that succeeds."""
    result = freewheel(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout
