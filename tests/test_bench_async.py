"""The benchmark of races: what it reports, from settings small enough for a test. Nothing is asserted of any time."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import freewheel as fw
from command_line import freewheel
from freewheel.bench import _async
from freewheel.bench._async import RaceContender
from freewheel.trainer import Epoch, History, LayerUpdates, Score


def epoch(number: int, accuracy: float, *, seconds: float, staleness: float) -> Epoch:
    return Epoch(
        epoch=number, batches=10, samples=100, loss=1.0, seconds=seconds, images_per_second=100 / seconds,
        validation=Score(loss=1.0, metric=accuracy, samples=50), busy=(1.0,), staleness=(staleness,),
        layers={"fc": LayerUpdates(started=10, finished=10, staleness=staleness)},
    )  # fmt: skip


def test_the_contenders_are_the_five_methods_and_plain_sgd():
    names = {contender.method.name for contender in _async.all_contenders()}
    assert names == {*fw.RACES, "bp"}


def test_a_training_is_summed_up():
    epochs = [epoch(0, 0.5, seconds=2.0, staleness=1.0), epoch(1, 0.98, seconds=1.0, staleness=2.0)]
    found = _async._summary(History(epochs=epochs), 0.97)
    expected = {"seconds": 3.0, "epochs": 2, "images_per_second": 75.0, "accuracy": 0.98, "staleness": 1.5}
    assert found == {**expected, "layers": {"fc": 1.5}}
    late = _async._summary(History(epochs=epochs), 0.99)
    assert late["seconds"] is None
    assert late["epochs"] is None
    middle = _async._medians([found, {**found, "seconds": 9.0, "staleness": 0.5}, {**found, "seconds": 4.0}])
    assert (middle["seconds"], middle["staleness"]) == (4.0, 1.5)
    assert _async._medians([found, late])["seconds"] is None


def test_every_contender_is_trained_in_every_round(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_async, "additions", list)
    contenders = [RaceContender("lu", fw.AsyncLU(), "threads"), RaceContender("sgd", fw.BP(), "simulate")]
    lines: list[str] = []
    result = _async.asynchronous(repeats=2, epochs=1, target=1.0, limit=64, contenders=contenders, log=lines.append)
    assert [row["name"] for row in result["rows"]] == ["lu", "sgd"]
    assert all(len(row["runs"]) == 2 and row["seconds"] is None for row in result["rows"])
    assert len(result["rows"][0]["layers"]) == 17
    assert result["rows"][1]["layers"] == {}
    assert lines[0].startswith("round 1 of 2: lu, target not reached, ")


def test_additions_under_a_lock_are_all_there():
    (row,) = _async.additions(sizes=(1000,), work=100_000, repeats=1)
    assert (row["size"], row["calls"], row["lost_locked"]) == (1000, 100, 0.0)
    assert 0 <= row["lost"] < 1


def test_the_command_prints_tables_and_writes_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    row = {"seconds": 2.5, "epochs": 3.0, "images_per_second": 1234.5, "accuracy": 0.975, "staleness": 1.25}
    lost = {"size": 1024, "lost": 0.125, "lost_locked": 0.0, "microseconds": 1.5, "microseconds_locked": 2.25}
    found = {
        "rows": [{"name": "async-lu", **row, "layers": {"fc": 0.75}}, {"name": "slow", **row, "seconds": None}],
        "target": 0.97,
        "additions": [lost],
    }
    asked = {}

    def measure(*, repeats: int, epochs: int, target: float, log):
        asked.update(repeats=repeats, epochs=epochs, target=target)
        return found

    found["rows"][1]["layers"] = {}
    monkeypatch.setattr(importlib.import_module("freewheel.bench"), "asynchronous", measure)
    file = tmp_path / "a.json"
    arguments = ["bench", "async", "--repeats", "2", "--target", "0.9", "--json", str(file)]
    result = freewheel(*arguments)
    assert result.exit_code == 0, result.output
    assert asked == {"repeats": 2, "epochs": 20, "target": 0.9}
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["async-lu", "2.50", "3", "1,234", "97.50%", "1.25"] in lines
    assert ["slow", "-", "3", "1,234", "97.50%", "1.25"] in lines
    assert ["1,024", "12.50%", "0.00%", "1.50", "2.25"] in lines
    assert "async-lu, staleness by layer: fc 0.75" in result.stdout
    assert json.loads(file.read_text()) == found
