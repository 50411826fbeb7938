"""`freewheel doctor`: what it tries, and what it makes of a process that crashes, hangs or talks."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import freewheel as fw
from command_line import freewheel, good
from freewheel import doctor
from freewheel.cli import _doctor
from freewheel.doctor import TRIALS, Finding, Trial, facts, try_all
from freewheel.doctor._facts import EXTRAS
from freewheel.doctor._work import WORK
from spread import exhaustive

ROOT = Path(__file__).parents[1]
ANSWER = """import json; print(json.dumps({"works": True, "note": "of steel"}))"""
HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e4)"])
open(%r, "w").write(f"{child.pid}")
time.sleep(1e4)
"""


@dataclass(frozen=True)
class Scripted(Trial):
    """A trial that runs a program of its own."""

    program: str = ANSWER

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", self.program]


def scripted(program: str, name: str = "it", **more) -> Scripted:
    return Scripted(name, "do without it", program=program, **more)


def tried(program: str, **more) -> Finding:
    [found] = try_all([scripted(program)], **more)
    return found


@pytest.mark.parametrize(
    ("program", "works", "note"),
    [
        (ANSWER, True, "of steel"),
        (f"print('noise'); {ANSWER}", True, "of steel"),
        (f"import os, signal; os.kill(os.getpid(), {signal.SIGILL:d})", False, "its process dies of SIGILL ("),
        ("raise SystemExit(3)", False, "its process ends with 3"),
        ("import nothing_at_all", False, "its process ends with 1: ModuleNotFoundError: No module named"),
        ("print('what I like')", False, "its process ends with 0"),
        ("print(5)", False, "its process ends with 0"),
    ],
)
def test_whatever_a_process_does_is_an_answer(program, works, note):
    found = tried(program)
    assert found.works is works
    assert found.note.startswith(note)
    assert found.remedy == ("" if works else "do without it")


def wait_for_the_end_of(path: Path) -> None:
    """Wait until the process has ended whose number is in this file; at once if it never began."""
    number = path.read_text() if path.exists() else ""
    status = Path(f"/proc/{number}/stat")
    while number and status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


def test_what_hangs_is_ended_with_all_that_it_has_started(tmp_path):
    found = tried(HANGS % f"{tmp_path / 'pid'}", seconds=2)
    assert found == Finding("it", False, "no answer within 2 s", "do without it")
    wait_for_the_end_of(tmp_path / "pid")


def test_who_stops_asking_leaves_no_process_behind(tmp_path):
    findings = try_all([scripted(ANSWER, "first"), scripted(HANGS % f"{tmp_path / 'pid'}", "second")])
    assert next(findings).name == "first"
    findings.close()  # as Ctrl-C does; returns once the processes have ended
    wait_for_the_end_of(tmp_path / "pid")


def test_what_needs_something_that_is_not_here_is_not_tried():
    broken = scripted("raise SystemExit(1)", "gpu")
    found = list(try_all([broken, scripted(ANSWER, "graph", needs="gpu"), scripted(ANSWER, "other")]))
    assert [(each.name, each.works, each.note) for each in found] == [
        ("gpu", False, "its process ends with 1"),
        ("graph", None, "needs gpu"),
        ("other", True, "of steel"),
    ]


def test_every_trial_has_work_and_a_remedy():
    assert [trial.name for trial in TRIALS if trial.core] == ["training"]
    assert {trial.name for trial in TRIALS} == WORK.keys()
    assert all(trial.remedy for trial in TRIALS)
    assert {trial.needs for trial in TRIALS} <= {"", *WORK}


def test_extras_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, names in EXTRAS.items():
        assert list(names) == [re.match(r"[\w-]+", each)[0] for each in extras[extra] if "freewheel" not in each]


def test_the_facts_are_those_of_here():
    known = facts()
    assert known.versions["freewheel"] == fw.__version__
    assert known.versions["torch"] == torch.__version__
    assert known.memory is None or 0 < known.memory[1] <= known.memory[0]
    assert known.shared is None or 0 <= known.shared[1] <= known.shared[0]


@pytest.mark.parametrize("core", [True, False])
def test_it_fails_only_where_nothing_can_be_trained(core, monkeypatch):
    trials = (scripted(ANSWER, "fine"), scripted("raise SystemExit(1)", "broken", core=core))
    monkeypatch.setattr(_doctor, "TRIALS", trials)
    monkeypatch.setattr(_doctor, "try_all", lambda: doctor.try_all(trials))
    result = freewheel("doctor", columns=80)
    assert result.exit_code == core
    assert result.stderr == ""
    said = [line.split() for line in result.stdout.splitlines()]
    assert ["fine", "works", "of", "steel"] in said
    assert ["broken", "does", "not", "work", "its", "process", "ends", "with", "1"] in said
    assert ["do", "without", "it"] in said
    assert result.stdout.splitlines()[-1] == f"Freewheel {'cannot train' if core else 'trains'} here."


def test_here_it_trains(monkeypatch):
    monkeypatch.setattr(_doctor, "try_all", lambda: try_all(TRIALS[:1]))
    found = json.loads(good("doctor", "--json"))
    assert found["trials"] == [{"name": "training", "works": True, "note": "", "remedy": ""}]
    assert found["trains"] is True
    assert found["versions"]["torch"] == torch.__version__


@exhaustive
def test_all_is_tried_and_fits_a_screen():
    result = freewheel("doctor", columns=80)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    found = {trial.name: next(line for line in lines if line.startswith(f" {trial.name} ")) for trial in TRIALS}
    for name in ("training", "processes", "shared memory", "gloo", "torch.compile"):
        assert " works" in found[name]
    for name in ("CUDA", "CUDA graphs", "NCCL"):
        assert (" works" if torch.cuda.is_available() else " not here") in found[name]
    assert " works" in found["bfloat16"] or "SIGILL" in result.stdout
