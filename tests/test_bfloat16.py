"""bfloat16 on the CPU: tried in another process before anything computes in it here, and refused where it dies."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from freewheel import _bfloat16
from freewheel.cli import main


@pytest.fixture
def broken(monkeypatch):
    """A CPU on which every attempt dies; the attempts are counted."""
    attempts = []

    def run(command, **options):
        attempts.append(command)
        return SimpleNamespace(returncode=-signal.SIGILL)

    _bfloat16.probe.cache_clear()
    monkeypatch.setattr(subprocess, "run", run)
    yield attempts
    _bfloat16.probe.cache_clear()


def test_it_works_here_or_dies_of_an_illegal_instruction():
    """The probe itself is a program without errors."""
    assert _bfloat16.probe() in (0, -signal.SIGILL)
    assert _bfloat16.cpu_bfloat16_works() == (_bfloat16.probe() == 0)


def test_it_is_tried_once(broken):
    assert not _bfloat16.cpu_bfloat16_works()
    assert not _bfloat16.cpu_bfloat16_works()
    assert len(broken) == 1


def command_line(monkeypatch, capsys, *arguments):
    """The exit code of `freewheel`, and what it says of errors."""
    monkeypatch.setattr(sys, "argv", ["freewheel", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr().err


def test_the_command_line_says_that_this_cpu_cannot(broken, monkeypatch, capsys):
    code, error = command_line(monkeypatch, capsys, "train", "--bf16")
    assert code == 2
    assert error.startswith("error: --bf16: this CPU cannot compute in bfloat16")
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in error
    assert error.count("\n") == 1
    assert len(broken) == 1


def test_nothing_is_tried_without_need(broken, monkeypatch, capsys):
    _, error = command_line(monkeypatch, capsys, "train", "--epochs", "1", "--save-every", "3", "--no-run")
    assert "--save-every" in error
    assert not broken
