"""`freewheel train` with methods that race on shared weights, and what they learn on the digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from command_line import freewheel as run
from spread import rarely

SMALL = ("--epochs", "1", "--limit", "200", "--no-compare", "--threads", "1")


def good(*arguments: str) -> str:
    result = run("train", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_workers_and_staleness_are_told_of(tmp_path: Path):
    file = tmp_path / "run.json"
    lines = good("--method", "async-lu", "-o", "backward_workers=3", *SMALL, "--json", str(file)).splitlines()
    assert "method   async-lu: no schedule, 4 workers on shared weights" in lines
    assert "runtime  threads: 4 workers, 1 thread each" in lines
    told = next(line for line in lines if line.startswith("staleness by layer in the last epoch: conv1 "))
    assert told.count(",") == 16
    written = json.loads(file.read_text())
    assert written["method"]["delays"] is None
    assert written["stages"] == 1
    layers = written["history"]["epochs"][0]["layers"]
    assert {(layer["started"], layer["finished"]) for layer in layers.values()} == {(4, 4)}


def test_devices_and_times_are_told_of(tmp_path: Path):
    file = tmp_path / "run.json"
    method = ("--method", "async-lu", "-o", "devices=2", "-o", "backward_workers=1", "--runtime", "simulate")
    lines = good(*method, *SMALL, "--json", str(file)).splitlines()
    assert "method   async-lu: no schedule, 4 workers on 2 copies of the weights" in lines
    race = json.loads(file.read_text())["history"]["epochs"][0]["race"]
    assert (race["unit"], race["sending"]) == ("steps", 17)
    told = next(line for line in lines if line.startswith("times of the last epoch: "))
    speedup, waits = f"λ {race['speedup']:.2f} (without waiting ", f"τ {race['wait']:.1f} steps (block updates about "
    assert told.startswith(f"times of the last epoch: {speedup}")
    assert waits in told


def test_a_recorded_run_can_be_replayed(tmp_path: Path):
    steps, files = tmp_path / "steps.txt", [tmp_path / "a.pt", tmp_path / "b.pt"]
    method = ("--method", "async-bu", *SMALL)
    good(*method, "-o", f"record={steps}")
    for file in files:
        good(*method, "-o", f"replay={steps}", "--runtime", "simulate", "--save", str(file))
    one, two = map(torch.load, files)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_whole_batches_go_to_processes_by_default():
    assert "runtime  processes: 2 workers, 1 thread each" in good("--method", "hogwild", *SMALL)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("train", "--method", "async-lu", "--save-to", "x"),
            "error: --save-to x with async-lu: a race cannot be resumed",
        ),
        (
            ("train", "--method", "async-lu", "--runtime", "processes"),
            "error: runtime='processes' with async-lu: it runs",
        ),
        (("train", "--method", "hogwild", "--clip", "1"), "error: clip with hogwild: "),
        (("plan", "async-lu", "--stages", "2"), "error: async-lu has no plan: "),
        (("bench", "async", "--target", "2"), "error: --target 2: give an accuracy"),
    ],
)
def test_what_does_not_fit_is_one_line(arguments: tuple[str, ...], line: str):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("method", "least"),
    [
        (("async-lu", "--epochs", "8"), 96),
        rarely(("async-bu", "--epochs", "8"), 96),
        rarely(("hogwild", "--epochs", "8"), 95),
        rarely(("lap-sgd", "--epochs", "8"), 95),
        rarely(("lpp-sgd", "--lr", "0.2"), 95),
    ],
)
def test_digits_are_learned(method: tuple[str, ...], least: float):
    lines = good("--method", *method, "--no-compare", "--quiet").splitlines()
    assert float(lines[0].removeprefix("test accuracy ").split("%")[0]) >= least
