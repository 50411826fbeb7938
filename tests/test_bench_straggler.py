"""The straggler benchmark: what it reports, from settings small enough for a test. Nothing is asserted of any time."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

import freewheel as fw
from command_line import freewheel
from freewheel.bench import _straggler
from freewheel.bench._straggler import CONTENDERS, StragglerContender
from freewheel.runtime import is_slow
from freewheel.trainer import Epoch
from spread import rarely


class Naps:
    """Remembers what was to be slept, and stays awake."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def take(self, seconds: float) -> None:
        self.taken.append(seconds)


def epoch(seconds: float, *busy: float) -> Epoch:
    return Epoch(
        epoch=1, batches=10, samples=80, loss=1.0, validation=None, seconds=seconds, images_per_second=1.0, busy=busy,
        staleness=(0.0,) * len(busy),
    )  # fmt: skip


def test_the_contenders_are_those_of_the_table():
    delays = [c.method.pipeline(3).delays for c in CONTENDERS[:3]]
    assert delays == [(4, 2, 0), (6, 3, 0), (10, 5, 0)]
    for contender in CONTENDERS[:5]:
        dsp = contender.method.pipeline(3)
        p = ",".join(f"{a - 1}" for a, _ in dsp.queues)
        assert contender.name.startswith(f"DSP({p},0;{','.join(map(str, dsp.delays))})")
    assert {type(c.method) for c in CONTENDERS} == {fw.DSP, fw.FDG, fw.PipeDream, fw.FR, fw.GPipe}


def test_a_sleeping_stage_sleeps_both_ways_in_proportion_to_its_samples():
    sleeper = _straggler.Sleeper()
    sleeper._naps = naps = Naps()  # pyright: ignore[reportAttributeAccessIssue]
    x = torch.randn(_straggler.ROWS, _straggler.CLASSES, requires_grad=True)
    out = sleeper(x)
    assert torch.equal(out, sleeper.layer(x))
    assert naps.taken == [_straggler.FORWARD]
    (found,) = torch.autograd.grad(out.square().sum(), x)
    assert naps.taken == [_straggler.FORWARD, _straggler.BACKWARD]
    assert torch.equal(found, torch.autograd.grad(sleeper.layer(x).square().sum(), x)[0])
    sleeper(x[:2])
    assert naps.taken[2:] == [pytest.approx(_straggler.FORWARD * 2 / _straggler.ROWS)]


def test_slow_downs_are_taken_within_a_round_and_then_the_median():
    rounds = [
        [epoch(10.0, 0.5, 0.9), epoch(12.0), epoch(20.0)],
        [epoch(5.0, 0.6, 0.2), epoch(6.5), epoch(15.0)],
        [epoch(20.0, 0.8, 0.3), epoch(21.0), epoch(50.0)],
    ]
    row = _straggler._row(StragglerContender(name="DSP", method=fw.DSP(), paper=(1.0, 2.0)), rounds, batches=10)
    assert row["seconds"] == 1.0
    assert row["busy"] == 0.8
    assert row["slow_downs"] == pytest.approx([20.0, 150.0])
    assert row["turns"][1] == pytest.approx([30.0, 200.0])
    other = {"name": "DSP, slack", "slow_downs": [30.0, 100.0], "paper": []}
    third = {"name": "FR", "slow_downs": [0.0, 0.0], "paper": [0.0, 0.0]}
    best = _straggler._best([row, other, third])
    assert best == {"ours": pytest.approx([20.0, 100.0]), "paper": [1.0, 2.0]}


def test_the_draws_are_counted():
    shares = [max(sum(is_slow(s, k, n, 1 / 3) for n in range(50)) / 50 for k in range(3)) for s in range(3)]
    assert _straggler._drawn(3, 50) == pytest.approx(sorted(shares)[1])


@pytest.mark.parametrize("asleep", [True, rarely(False)])
def test_every_contender_is_measured(monkeypatch: pytest.MonkeyPatch, asleep: bool):
    monkeypatch.setattr(_straggler, "FORWARD", 1e-5)
    monkeypatch.setattr(_straggler, "BACKWARD", 1e-5)
    monkeypatch.setattr(_straggler, "WIDTH", 16)
    monkeypatch.setattr(_straggler, "DEPTH", 1)
    asked = []
    real = _straggler.Trainer

    def watched(*args, **options):
        asked.append((options["seed"], options["slow"]))
        return real(*args, **options)

    monkeypatch.setattr(_straggler, "Trainer", watched)
    lines: list[str] = []
    result = _straggler.straggler(repeats=2, batches=3, percentages=(50, 150), asleep=asleep, log=lines.append)
    assert [row["name"] for row in result["rows"]] == [c.name for c in CONTENDERS]
    assert all(len(row["slow_downs"]) == 2 and len(row["turns"]) == 2 and row["seconds"] > 0 for row in result["rows"])
    assert len(lines) == 2 * len(CONTENDERS)
    assert lines[0].startswith("round 1 of 2: DSP(1,1,0;4,2,0), ")
    assert (result["asleep"] is None) == (not asleep)
    assert result["always_busy"]["expected"] == pytest.approx([50 / 3, 50.0])
    assert asked[:3] == [(0, dict.fromkeys(range(3), (1 / 3, factor))) for factor in (0.0, 0.5, 1.5)]
    assert [seed for seed, _ in asked] == [0] * (len(asked) // 2) + [1] * (len(asked) // 2)


@pytest.mark.parametrize(("cores", "asleep"), [(2, True), (3, False)])
def test_stages_sleep_where_there_are_fewer_cores(monkeypatch: pytest.MonkeyPatch, cores: int, asleep: bool):
    monkeypatch.setattr(_straggler, "cores", lambda: cores)
    monkeypatch.setattr(_straggler, "_turn", lambda *_, **options: epoch(1.0, float(options["asleep"])))
    result = _straggler.straggler(repeats=1, batches=3, log=lambda _: None)
    assert (result["asleep"] is not None) == asleep
    assert result["rows"][0]["busy"] == float(asleep)


@pytest.mark.parametrize("asleep", [None, {"forward": 0.003, "backward": 0.006}])
def test_the_command_prints_the_paper_beside_it_and_writes_json(monkeypatch, tmp_path: Path, asleep):
    found = {
        "percentages": [20, 50],
        "probability": 1 / 3,
        "rows": [
            {"name": "DSP(7)", "seconds": 0.01234, "busy": 0.97, "slow_downs": [6.66, 17.0], "paper": [6.02, 16.14]},
            {"name": "FDG", "seconds": 0.01, "busy": 0.9, "slow_downs": [8.88, 19.0], "paper": []},
        ],
        "best": {"ours": [6.66, 17.0], "paper": [6.02, 16.01]},
        "always_busy": {"expected": [6.7, 16.7], "drawn": [6.9, 17.1]},
        "asleep": asleep,
    }
    asked = {}

    def measure(*, repeats: int, batches: int, log):
        asked.update(repeats=repeats, batches=batches)
        return found

    monkeypatch.setattr(importlib.import_module("freewheel.bench"), "straggler", measure)
    file = tmp_path / "s.json"
    arguments = ["bench", "straggler", "--repeats", "2", "--batches", "9", "--json", str(file)]
    result = freewheel(*arguments)
    assert result.exit_code == 0, result.output
    assert asked == {"repeats": 2, "batches": 9}
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["DSP(7)", "12.34", "97%", "6.7", "(6.0)", "17.0", "(16.1)"] in lines
    assert ["FDG", "10.00", "90%", "8.9", "19.0"] in lines
    assert ["best", "of", "DSP", "6.7", "(6.0)", "17.0", "(16.0)"] in lines
    assert ("stages slept, 3 ms for a forward and 6 ms for a backward" in result.stdout) == (asleep is not None)
    assert ("Stages computed" in result.stdout) == (asleep is None)
    assert f"wrote {file}" in result.stdout
    assert json.loads(file.read_text()) == found
