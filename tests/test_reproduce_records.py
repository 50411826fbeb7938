"""What `freewheel reproduce` keeps of its jobs, and says about where they ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from freewheel.reproduce import Cell, Experiment, _runner, reproduce, tables
from freewheel.reproduce._experiment import Value
from freewheel.reproduce._markdown import hardware
from freewheel.reproduce.jobs import Context, Job


@dataclass(frozen=True, kw_only=True)
class Compiling(Job):
    """Gives 1 with compiled stages, and 0 without."""

    @property
    def title(self) -> str:
        return "compiling"

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        return {"x": float(context.compile)}


@pytest.fixture(autouse=True)
def _experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    place = next(tables()["fdg-table3"].cells())
    cells = (Cell(*place, Value(Compiling(), "x")),)
    monkeypatch.setattr(_runner, "EXPERIMENTS", {"it": Experiment(name="fdg-table3", what="", cells=cells)})


def test_what_was_measured_without_compiling_is_measured_again_with_it(tmp_path: Path):
    """The speed of plain stages was reported as that of compiled ones."""
    found = [reproduce("it", run_dir=tmp_path, compile=on).rows[0].ours for on in (False, True, False)]
    assert found == [0.0, 1.0, 0.0]


def test_the_machine_is_that_which_has_measured(tmp_path: Path):
    """It was the one on which the report was put together, on that day."""
    ours = hardware(reproduce("it", run_dir=tmp_path))
    (file,) = tmp_path.glob("reproduce-jobs/*/seed-0.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    record["machine"] |= {"processor": "A computer", "cores": 7, "torch": "1.0", "date": "2026-01-31"}
    file.write_text(json.dumps(record), encoding="utf-8")
    assert hardware(reproduce("it", run_dir=tmp_path)) == "A computer, 7 cores, PyTorch 1.0, 2026-01-31"
    both = hardware(reproduce("it", run_dir=tmp_path, seeds=2))
    here, _, today = ours.rpartition(", ")
    assert both == f"A computer, 7 cores, PyTorch 1.0 and {here}, 2026-01-31 to {today}"
