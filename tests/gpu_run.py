"""Makes `tests/data/gpu_run`, a run as one on a GPU writes it: `PYTHONPATH=tests python tests/gpu_run.py`.

A CPU trains the network, so losses and scores are real. Devices, times and memory are made up: the trace has what the
plan says in its order, with lengths of the kind that kernels have.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import freewheel as fw
from command_line import good
from freewheel.plan import Action, Plan

FOLDER = Path(__file__).parent / "data" / "gpu_run"
KEPT = ("run.json", "history.jsonl", "final.json")
STAGES, TRACED = 4, 40  # TRACED: batches
MICRO = 1e-6
LENGTHS = {"F": 105.0, "B": 190.0, "U": 22.0, "send": 3.5, "receive": 1.5, "data": 4.0}  # µs
MEMORY = {"allocated": 412_876_800, "reserved": 469_762_048}


def main() -> None:
    """Write the folder anew."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "gpu_run"
        given = ("--method", "pipedream", "-k", f"{STAGES}", "--epochs", "4", "--limit", "1300", "--validation", "0.1")
        good("train", *given, "--threads", "1", "--no-compare", "--no-checkpoints", "-q", "--run-dir", str(run))
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copy(run / name, FOLDER / name)
    edit("run.json", on_a_gpu)
    edit("final.json", faster)
    lines = (FOLDER / "history.jsonl").read_text().splitlines()
    (FOLDER / "history.jsonl").write_text(
        "".join(json.dumps(epoch_on_a_gpu(json.loads(line))) + "\n" for line in lines)
    )
    trace().save(FOLDER / "trace.json.gz")


def edit(name: str, change: Any) -> None:
    """Change the content of a file."""
    content = json.loads((FOLDER / name).read_text())
    change(content)
    (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n")


def on_a_gpu(facts: dict[str, Any]) -> None:
    """What a run says of itself on a GPU."""
    command = "freewheel train --method pipedream -k 4 --epochs 4 --limit 1300 --validation 0.1 --device cuda --trace"
    facts["arguments"] |= {
        "device": "cuda",
        "runtime": "graph",
        "trace": True,
        "run_dir": "runs/gpu_run",
        "quiet": False,
    }
    facts |= {
        "runtime": "graph",
        "devices": ["cuda:0"] * STAGES,
        "cores": 16,
        "started": "2026-03-02T09:30:00+00:00",
        "command": command,
        "repeat": "freewheel train --config runs/gpu_run/config.toml",
    }
    facts["split"] |= {"costs": [LENGTHS["B"] * MICRO] * STAGES}


def faster(final: dict[str, Any]) -> None:
    """The final figures with made-up times and memory."""
    final |= {"seconds": 1.9, "images_per_second": 192_000.0, "ended": "2026-03-02T09:30:02+00:00"}
    final["memory"] = {"host": 1_402_994_688, "worker": None, "devices": {"cuda:0": MEMORY}}


def epoch_on_a_gpu(epoch: dict[str, Any]) -> dict[str, Any]:
    """An epoch with made-up times."""
    rate = 31_000.0 if epoch["epoch"] == 0 else 192_000.0 + 1000 * epoch["epoch"]
    return epoch | {"seconds": epoch["samples"] / rate, "images_per_second": rate, "busy": [0.9, 0.88, 0.87, 0.86]}


def trace() -> fw.Trace:
    """What the plan says, with made-up times: a stage begins when it is free and what it needs has come."""
    plan = fw.plan("pipedream", k=STAGES, batches=TRACED)
    clock, sent = [0.0] * STAGES, dict[tuple[str, int, int], float]()
    left = [list(stream) for stream in plan.streams]
    random, events = Random(0), list[fw.TraceEvent]()
    while any(left):
        stage = next(k for k, stream in enumerate(left) if stream and ready(stream[0], k, sent))
        action = left[stage].pop(0)
        for name, needs, length in parts(action, stage, sent):
            begin = clock[stage]
            clock[stage] = max(begin, needs) + length * MICRO * random.uniform(0.94, 1.1)
            version = action.version if name == action.op.value else None
            events.append(fw.TraceEvent(stage, 0, name, action.batch, 0, version, begin, clock[stage]))
        if action.op.value.endswith(">"):
            sent[action.op.value[0], stage, action.batch] = clock[stage]
    return fw.Trace(sorted(events, key=lambda event: (event.begin, event.end)), meta(plan))


def ready(action: Action, stage: int, sent: dict[tuple[str, int, int], float]) -> bool:
    """Whether what an action waits for has been sent."""
    return not action.op.value.startswith(">") or source(action, stage) in sent


def source(action: Action, stage: int) -> tuple[str, int, int]:
    """The send that a receipt waits for."""
    letter = action.op.value[1]
    return letter, stage - 1 if letter == "a" else stage + 1, action.batch


def parts(action: Action, stage: int, sent: dict[tuple[str, int, int], float]) -> Iterator[tuple[str, float, float]]:
    """The events of an action: its name, what it waits for, and its length; the first stage waits for data as well."""
    name = action.op.value
    if name == "F" and stage == 0:
        yield "data", 0.0, LENGTHS["data"]
    kind = "receive" if name.startswith(">") else "send" if name.endswith(">") else name
    yield name, sent[source(action, stage)] if kind == "receive" else 0.0, LENGTHS[kind]


def meta(plan: Plan) -> dict[str, Any]:
    """What was traced."""
    return {
        "method": "pipedream",
        "runtime": "graph",
        "delays": list(plan.delays),
        "rows": [f"stage {stage}" for stage in range(STAGES)],
        "devices": ["cuda:0"] * STAGES,
        "overlaps": [],
        "ways": {"a": 1, "g": -1},
    }


if __name__ == "__main__":
    main()
