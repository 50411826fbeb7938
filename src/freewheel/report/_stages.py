"""What each stage did with its time, how stale it learned, and what it kept."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from freewheel.report import _words as words
from freewheel.report._timelines import EMPTY
from freewheel.runs import TRACE, Run
from freewheel.trace import DATA, Trace
from freewheel.trainer import Epoch

NOTES = {
    "simulate": "Under simulate one thread runs all stages in turn: other is mostly the turns of other stages.",
    "graph": "Under graph one thread of Python launches the work of all stages: other is mostly waiting for it, "
    "while it reads data, captures graphs, scores between epochs or launches another stage.",
}
PARTS = {
    "compute": "computing",
    "before": "waiting for the stage before",
    "after": "waiting for the stage after",
    "replicas": "waiting for other replicas",
    "data": "waiting for data",
    "other": "other",
}


def shares_of(run: Run, trace: Trace | None, epochs: Sequence[Epoch]) -> dict[str, Any]:
    """Where the time of each stage went: by the trace, or by the history what it computed."""
    if trace is not None and trace.events:
        values = trace.shares()
        absent = {"replicas"} if trace.replicas == 1 else set[str]()
        if not any(event.name == DATA for event in trace.events):
            absent.add("data")
        parts = {key: text for key, text in PARTS.items() if key not in absent}
        rows = list(trace.meta.get("rows") or names_of(run, trace.stages))
        return {
            "of": _of(run),
            "rows": rows,
            "parts": [{"key": key, "text": text} for key, text in parts.items()],
            "values": [[round(each[part], 5) for part in parts] for each in values],
            "note": NOTES.get(run.facts.get("runtime", ""), ""),
            "source": f"Of {words.seconds(trace.seconds)} that were traced.",
        }
    busy = [epoch.busy for epoch in epochs if epoch.complete and epoch.busy] or [e.busy for e in epochs if e.busy]
    if not busy:
        on_cpu = all(device == "cpu" for device in run.facts.get("devices") or ())
        known = "is known once an epoch has ended" if on_cpu else "is not known on a GPU"
        return {"missing": f"{untraced(run)} Without it, the share of computing {known}."}
    means = [fmean(each) for each in zip(*busy)]
    return {
        "of": _of(run),
        "rows": names_of(run, len(means)),
        "parts": [{"key": "compute", "text": "computing"}, {"key": "other", "text": "not computing"}],
        "values": [[round(mean, 5), round(max(0.0, 1 - mean), 5)] for mean in means],
        "note": f"{untraced(run)} A trace says what a stage waited for.",
        "source": "Mean over the epochs.",
    }


def untraced(run: Run) -> str:
    """Why a run has no trace."""
    if (run.folder / TRACE).exists():
        return EMPTY
    asked = run.facts.get("arguments") or {}
    if not (asked.get("trace") or asked.get("trace_batches")):
        return "This run has no trace; --trace or fit(trace=True) records one."
    return (
        f"The trace is written when the run ends{'.' if run.status == 'running' else ', and this one was broken off.'}"
    )


def names_of(run: Run, count: int) -> list[str]:
    """What the stages are called, or the workers of a race."""
    if _of(run) == "worker":
        return ["all workers"] if count == 1 else [f"worker {worker}" for worker in range(count)]
    return [f"stage {stage}" for stage in range(count)]


def _of(run: Run) -> str:
    """What has the rows: a stage, or a worker of a race."""
    return "worker" if run.facts.get("method", {}).get("delays", 0) is None else "stage"


def staleness_of(run: Run, trace: Trace | None, epochs: Sequence[Epoch]) -> dict[str, Any]:
    """Updates between the forward of a batch and the update with it, measured and planned."""
    method = run.facts.get("method", {})
    delays, planned = method.get("delays"), method.get("staleness")
    found = trace.staleness() if trace is not None else []
    if any(found):
        assert trace is not None
        return {
            "rows": list(trace.meta.get("rows") or names_of(run, len(found))),
            "delays": delays,
            "planned": planned,
            "mean": [_mean(each) for each in found],
            "counts": [[[late, number] for late, number in each.items()] for each in found],
            "note": "The first batches are less stale than planned: the weights are new." if any(planned or ()) else "",
        }
    layers = epochs[-1].layers if epochs else {}
    if layers:
        return {
            "rows": list(layers),
            "delays": None,
            "planned": None,
            "mean": [round(layer.staleness, 3) for layer in layers.values()],
            "most": [layer.stalest for layer in layers.values()],
            "counts": None,
            "note": "Changes of a layer between a forward and the update with its gradient, in the last epoch.",
        }
    staleness = next((epoch.staleness for epoch in reversed(epochs) if epoch.complete and epoch.staleness), None)
    if staleness is None:
        return {"missing": f"{untraced(run)} Without it, the mean staleness is known once an epoch has ended."}
    return {
        "rows": names_of(run, len(staleness)),
        "delays": delays,
        "planned": planned,
        "mean": [round(each, 3) for each in staleness],
        "counts": None,
        "note": "Mean over the last whole epoch.",
    }


def _mean(counts: dict[int, int]) -> float | None:
    number = sum(counts.values())
    return round(sum(late * times for late, times in counts.items()) / number, 3) if number else None


def memory_of(run: Run) -> dict[str, Any]:
    """The peaks of a run, and what its plan keeps."""
    final, kept = run.final or {}, run.facts.get("memory")
    peaks = final.get("memory") or {}
    found = [("this process", peaks.get("host")), ("the largest worker process", peaks.get("worker"))]
    for device, each in (peaks.get("devices") or {}).items():
        found += [(f"{device}, allocated", each["allocated"]), (f"{device}, reserved", each["reserved"])]
    shown = [{"name": name, "bytes": value, "text": words.size(value)} for name, value in found if value]
    if not shown and kept is None:
        return {"missing": "Peaks of memory are known when the run has ended; there is no plan that says what is kept."}
    return {
        "peaks": shown,
        "peaks_note": "" if shown else "Peaks of memory are known when the run has ended.",
        "rows": [f"stage {stage}" for stage in range(len(kept or ()))],
        "kept": None if kept is None else [[each["inputs"], each["graphs"], each["weights"]] for each in kept],
        "parts": ["stored inputs", "graphs of batches under way", "copies of the weights"],
        "kept_note": "" if kept is not None else "A race has no plan that says what each stage keeps.",
    }
