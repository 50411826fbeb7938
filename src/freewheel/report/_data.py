"""Everything that the page of runs shows, as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from freewheel._files import as_json
from freewheel.report import _words as words
from freewheel.report._configuration import configuration_of
from freewheel.report._curves import curves_of
from freewheel.report._figures import figures_of, status_of
from freewheel.report._stages import memory_of, shares_of, staleness_of, untraced
from freewheel.report._timelines import MOST, measured_timeline, planned_timeline
from freewheel.runs import TRACE, Run
from freewheel.trace import Trace

FORMAT = 1
FEWEST = 300  # actions that are drawn of each run, however many there are


def report_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the page of these runs shows, as plain data.

    What a run does not have is said in a sentence, under `missing`.

    Args:
        runs: The runs. In place of a folder of several runs, its runs are shown.

    Returns:
        `runs`, and for folders of several runs what is known of them together, `groups`.

    Example:
        >>> import tempfile, torch
        >>> from functools import partial
        >>> import freewheel as fw
        >>> trainer = fw.Trainer([torch.nn.Linear(4, 2)], method="bp", loss=torch.nn.functional.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> folder = Path(tempfile.mkdtemp()) / "first"
        >>> with fw.RunRecorder(folder, trainer) as recorder:
        ...     history = trainer.fit([(torch.ones(8, 4), torch.zeros(8).long())], epochs=3, callbacks=[recorder])
        ...     recorder.finish(history)
        >>> [found] = report_data([fw.Run.open(folder)])["runs"]
        >>> found["name"], found["curves"]["epochs"], found["measured"]
        ('first', [1, 2, 3], {'missing': 'This run has no trace; --trace or fit(trace=True) records one.'})
    """
    if not runs:
        raise ValueError("runs=[]: give at least one run")
    single = [(name, run) for given in runs for name, run in _expanded(given)]
    most = max(FEWEST, MOST // max(1, len(single)))
    names = _told_apart([name for name, _ in single], [str(run.folder) for _, run in single])
    data = {
        **no_data(", ".join(run.name for run in runs)),
        "groups": [_group(run) for run in runs if run.facts.get("runs")],
        "runs": [_run(name, run, most) for name, (_, run) in zip(names, single)],
    }
    return json.loads(as_json(data, indent=None))  # finite numbers alone


def no_data(title: str) -> dict[str, Any]:
    """What the page shows where no run has begun."""
    return {"format": FORMAT, "title": title, "groups": [], "runs": []}


def _expanded(run: Run) -> Iterator[tuple[str, Run]]:
    """A run with its name; of a folder of several, those that have begun."""
    if not run.facts.get("runs"):
        yield run.name, run
        return
    for child in run.children:
        yield f"{run.name}/{child.name}", child


def _told_apart(names: list[str], folders: list[str]) -> list[str]:
    """Short names, all different: the folder where two runs have the same."""
    short = [name.rpartition("/")[2] for name in names]
    for known in (short, names):
        if len(set(known)) == len(known):
            return known
    return folders


def _run(name: str, run: Run, most: int) -> dict[str, Any]:
    epochs = run.epochs
    path = run.folder / TRACE
    trace = _trace(path, path.stat().st_mtime_ns) if path.exists() else None
    status = status_of(run)
    shares = shares_of(run, trace, epochs)
    return {
        "name": name,
        "status": status,
        "started": run.facts.get("started"),
        "figures": figures_of(run, epochs, shares),
        "curves": curves_of(epochs, status["name"]),
        "measured": {"missing": untraced(run)} if trace is None else measured_timeline(trace, most),
        "planned": planned_timeline(run),
        "shares": shares,
        "staleness": staleness_of(run, trace, epochs),
        "memory": memory_of(run),
        "configuration": configuration_of(run),
    }


@lru_cache(maxsize=32)
def _trace(path: Path, changed: int) -> Trace:
    """The trace in a file, read once for each time that it has changed."""
    return Trace.load(path)


def _group(run: Run) -> dict[str, Any]:
    """What is known of several runs together."""
    final = run.final or {}
    return {
        "name": run.name,
        "status": status_of(run),
        "of": len(run.facts["runs"]),
        "begun": len(run.children),
        "statistics": [_statistics(name, found) for name, found in (final.get("statistics") or {}).items()],
        "repeat": run.facts.get("repeat"),
    }


def _statistics(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Statistics over several runs, in words."""
    form = words.share if "accuracy" in name else "{:.4f}".format if "loss" in name else "{:,.1f}".format
    told = {key: form(found[key]) for key in ("median", "mean", "least", "most")}
    deviation = "" if found.get("deviation") is None else f" ± {form(found['deviation'])}"
    return {"name": name, **told, "mean": told["mean"] + deviation}
