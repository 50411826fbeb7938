"""Runs of every kind, and the page that shows them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import freewheel as fw
from command_line import good
from freewheel.report import report_data
from freewheel.trainer import Score
from rows import batches, network, trainer

GPU = Path(__file__).parent / "data" / "gpu_run"
TRAIN = ("--epochs", "2", "--limit", "200", "--at", "pool", "--threads", "1", "--no-compare", "-q")


def trained(folder: Path, *arguments: str) -> Path:
    """The folder of a run of the command line, on a CPU."""
    good("train", *TRAIN, "--run-dir", str(folder), *arguments)
    return folder


def recorded(folder: Path, method: Any = "fdg", *, stages: Any = None, count: int = 6, **options: Any) -> Path:
    """The folder of a run from Python, of two epochs of as many batches; with a trace and scores but for `options`."""
    fitted = {"epochs": 2, "trace": True, "validate": batches(2)}
    fitted |= {name: options.pop(name) for name in fitted if name in options}
    made = trainer(stages or network(3), method, **options)
    with fw.RunRecorder(folder, made) as recorder:
        history = made.fit(batches(count), callbacks=[recorder], **fitted)
        score = Score(loss=0.5, metric=0.75, samples=9, metrics={"accuracy": 0.75}) if fitted["validate"] else None
        recorder.finish(history, **({"score": score} if score else {}))
    return folder


def evened(folder: Path) -> Path:
    """The same run with a trace in which all moments are equally far apart, in their order: every block can be seen."""
    file = folder / "trace.json.gz"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    timed = [event for event in trace["traceEvents"] if "ts" in event]
    moments = {round(event["ts"] + length, 3) for event in timed for length in (0, event.get("dur", 0))}
    even = {moment: 20.0 * i for i, moment in enumerate(sorted(moments))}
    for event in timed:
        begin, end = (even[round(event["ts"] + length, 3)] for length in (0, event.get("dur", 0)))
        event |= {"ts": begin} | ({"dur": end - begin} if "dur" in event else {})
    file.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder


def shown(*folders: Path) -> list[dict[str, Any]]:
    """What the page has of runs."""
    return report_data([fw.Run.open(folder) for folder in folders])["runs"]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run, as they are in its file."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def reported(folder: Path, *runs: Path) -> Path:
    """The page of runs, written into a folder."""
    good("report", *map(str, runs), "--out", str(folder / "page.html"))
    return folder / "page.html"
