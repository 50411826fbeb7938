"""`freewheel bench transport` sends what it says, back and forth; how long that takes is not a matter for tests."""

from __future__ import annotations

import importlib
import json
import multiprocessing
from pathlib import Path

import pytest
import torch

from command_line import freewheel
from freewheel.bench import _transport
from freewheel.bench._transport_pair import BARE, CHANNEL, GLOO, SHARED, Partner


def test_every_contender_brings_a_message_back():
    with Partner() as partner:
        assert partner.names == (SHARED, GLOO, BARE, CHANNEL)
        for size in (4, 5000, 3):
            for name in partner.names:
                message = torch.randint(256, (size,), dtype=torch.uint8)
                trip = partner.trip(name, message, 2)
                for back in (trip(), trip()):
                    assert torch.equal(back, message)
                    assert (back is message) == (name == CHANNEL), "only between threads nothing is copied"
    assert not multiprocessing.active_children()


def test_every_contender_is_measured_at_every_size():
    lines: list[str] = []
    result = _transport.transport(repeats=2, sizes=(4, 1 << 20), trips=2, log=lines.append)
    names = (SHARED, GLOO, BARE, CHANNEL)
    assert [(row["name"], row["bytes"]) for row in result["rows"]] == [(n, s) for s in (4, 1 << 20) for n in names]
    assert all(len(row["turns"]) == 2 and row["microseconds"] > 0 for row in result["rows"])
    assert [row["gigabytes_per_second"] is None for row in result["rows"]] == [True] * 4 + [False] * 3 + [True]
    assert result["trips"] == {4: 2, 1 << 20: 2}
    assert len(lines) == 4
    assert lines[0] == "4 bytes: turn 1 of 2, 4 contenders, 2 round trips each"


def test_medians_and_speeds():
    turns = {SHARED: [500.0, 4000.0, 1000.0], CHANNEL: [2.0, 1.0, 3.0]}
    rows = [_transport.row_of(name, 4_000_000, each) for name, each in turns.items()]
    assert [row["microseconds"] for row in rows] == [1000.0, 2.0]
    assert [row["gigabytes_per_second"] for row in rows] == [pytest.approx(4.0), None]


def test_the_command_prints_a_table_and_writes_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = {
        "rows": [
            {"name": "gloo wire", "bytes": 1024, "microseconds": 61.4, "gigabytes_per_second": None},
            {"name": "gloo wire", "bytes": 4 << 20, "microseconds": 1234.5, "gigabytes_per_second": 3.4},
        ]
    }
    asked = {}

    def measure(*, repeats: int, log):
        asked.update(repeats=repeats)
        return found

    monkeypatch.setattr(importlib.import_module("freewheel.bench"), "transport", measure)
    file = tmp_path / "t.json"
    arguments = ["bench", "transport", "--repeats", "2", "--json", str(file)]
    result = freewheel(*arguments)
    assert result.exit_code == 0, result.output
    assert asked == {"repeats": 2}
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "KiB", "4", "MiB"] in lines
    assert ["gloo", "wire", "61", "1,234", "(3.4)"] in lines
    assert json.loads(file.read_text()) == found
