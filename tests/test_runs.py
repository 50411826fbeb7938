"""The folder of a run: what `freewheel train` and `fw.RunRecorder` write, what `fw.Run` reads, and every way to end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import freewheel as fw
from command_line import freewheel
from freewheel.checkpoint import finished
from freewheel.cli._config import read_config
from freewheel.runs import default_parent, new_folder, newest_run
from rows import ROWS, batches, network, often, trainer
from spread import rarely, spread
from test_cli_train import good, run

BRIEF = ("--epochs", "2", "--limit", "200", "--at", "pool", "--threads", "1", "--no-compare", "-q")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FREEWHEEL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def same_weights(one: Path, two: Path) -> bool:
    a, b = torch.load(one), torch.load(two)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ---- what freewheel train writes


def test_a_run_has_a_folder_that_repeats_it_and_goes_on(runs, tmp_path):
    said = good(*BRIEF, "--method", "fdg", "--trace", "--json", str(tmp_path / "all.json"))
    [folder] = runs.iterdir()
    assert folder.name == "fdg-digits-cnn-digits-1"
    assert said.splitlines()[-1] == f"wrote {folder}: freewheel report {folder} draws it"
    made = fw.Run.open(folder)
    everything = json.loads((tmp_path / "all.json").read_text())
    assert made.status == "complete"
    assert made.epochs == fw.History.from_dict(everything["history"]).epochs
    assert made.final is not None
    for name in ("score", "images_per_second", "speedup"):
        assert made.final[name] == everything[name]
    assert (made.final["epochs"], made.final["batches"]) == (2, 8)
    for name in ("method", "data", "model", "optimizer", "runtime", "split", "versions"):
        assert made.facts[name] == everything[name]
    assert made.facts["repeat"] == f"freewheel train --config {folder / 'config.toml'}"
    trace = made.trace()
    assert trace is not None
    assert sum(event.name == "U" for event in trace.events) == 2 * 8
    good("--config", str(folder / "config.toml"), "-q", "--no-compare")
    again = runs / "fdg-digits-cnn-digits-2"
    assert same_weights(folder / "weights.pt", again / "weights.pt")
    assert newest_run(runs) == again
    said = good("--resume", str(folder), "--no-compare")
    assert "the run is complete: there is nothing left to train" in said
    assert fw.Run.open(folder).epochs == made.epochs
    assert fw.Run.open(folder).facts["started"] == made.facts["started"]
    assert fw.Run.open(folder).trace() is not None
    assert fw.Run.open(folder).final == made.final, "the time and memory of a training are not those of none"
    assert len(list(runs.iterdir())) == 2, "a run that goes on stays where it is"


def test_the_planned_timeline_is_that_of_the_plan(runs):
    good(*BRIEF, "--method", "fdg", "--no-checkpoints")
    [folder] = runs.iterdir()
    facts = fw.Run.open(folder).facts
    plan = fw.plan("fdg", k=2, batches=facts["timeline"]["batches"])
    assert {(c[0], c[1], c[2], c[4]) for c in facts["timeline"]["cells"]} == {
        (stage, a.op.value, a.batch, a.version)
        for stage, actions in enumerate(plan.streams)
        for a in actions
        if a.op.value in "FB"
    }
    assert facts["method"]["delays"] == [2, 0]
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize("arguments", [("--no-checkpoints",), ("--method", "hogwild", "--runtime", "simulate")])
def test_a_run_without_checkpoints_cannot_go_on(arguments, runs):
    good("--epochs", "1", "--limit", "20", "--no-compare", "-q", *arguments)
    [folder] = runs.iterdir()
    result = run("--resume", str(folder))
    assert result.exit_code == 2
    advice = f"--config {folder / 'config.toml'} begins it anew"
    assert result.stderr == f"error: --resume {folder}: that run has no checkpoints to go on from; {advice}\n"


def test_without_a_run_nothing_is_written(runs):
    said = good(*BRIEF, "--no-run")
    assert not runs.exists()
    assert "wrote" not in said


def test_a_run_goes_where_it_is_asked_to(runs, tmp_path):
    folder = tmp_path / "a" / "b"
    good(*BRIEF, "--run-dir", str(folder))
    assert fw.Run.open(folder).status == "complete"
    assert not runs.exists()
    result = run(*BRIEF, "--run-dir", str(folder))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --run-dir {folder}: there is a run already; continue it with --resume")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--no-run", "--run-dir", "x"), "--run-dir x with --no-run: "),
        (("--no-run", "--trace"), "--trace with --no-run: "),
        (("--trace-batches", "5"), "--trace-batches 5: give two numbers of batches, such as 100:200"),
        (("--trace-batches", "7:7"), "--trace-batches 7:7: give two numbers"),
        (("--run-dir", __file__), f"--run-dir {__file__}: that is a file, give a folder"),
        (("--save-every", "3", "--method", "hogwild"), "--save-every 3 with hogwild: a race has no checkpoints"),
        (("--data", "cifar10", "--data-root", "nowhere"), ""),
    ],
)
def test_what_is_refused_leaves_no_folder(arguments, message, runs):
    result = run("--epochs", "1", "--no-compare", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not runs.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FREEWHEEL_RUNS", str(tmp_path / "file"))
    result = run(*BRIEF)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path / 'file'}: the folder of the run cannot be made there")


@pytest.mark.parametrize(("options", "file"), [((), "checkpoints"), (("--no-checkpoints",), "weights.pt")])
def test_a_full_disk_is_told_in_a_line_that_names_the_file(options, file, tmp_path):
    """torch.save said `enforce fail at inline_container.cc` then, under a traceback; other files had no name."""
    least = 16 * 1024  # bytes: enough for all files but those with weights
    result = subprocess.run(
        [sys.executable, "-m", "freewheel.cli", "train", *BRIEF, *options, "--run-dir", str(tmp_path / "run")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (least, least)),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {tmp_path / 'run'}")
    assert file in result.stderr
    assert result.stderr.endswith("it cannot be written (File too large)\n")
    assert result.stderr.count("\n") == 1
    assert fw.Run.open(tmp_path / "run").status == "failed"


@pytest.mark.parametrize("method", ["async-lu", "asyncfgd"])
def test_methods_without_plans_or_gradients_have_runs(method, runs):
    good(*BRIEF[:4], "--threads", "1", "--no-compare", "-q", "--method", method, "--trace-batches", "1:3")
    [folder] = runs.iterdir()
    made = fw.Run.open(folder)
    assert made.status == "complete"
    assert (made.facts["timeline"] is None) == (method == "async-lu")
    assert (folder / "checkpoints").exists() == (method != "async-lu")
    trace = made.trace()
    assert trace is not None
    assert {event.batch for event in trace.events} == {1, 2}


def test_several_runs_are_in_one_folder_and_go_on(runs):
    good(*BRIEF, "--seeds", "2")
    [folder] = runs.iterdir()
    whole = fw.Run.open(folder)
    assert whole.status == "complete"
    assert [child.name for child in whole.children] == ["seed-0", "seed-1"]
    assert whole.final is not None
    scores = [child.final["score"]["metric"] for child in whole.children if child.final]
    assert whole.final["statistics"]["test accuracy"]["mean"] == pytest.approx(sum(scores) / 2)
    weights = [(folder / name / "weights.pt").read_bytes() for name in ("seed-0", "seed-1")]
    for path in finished(folder / "seed-1" / "checkpoints"):
        (path / "manifest.json").unlink()  # as if it had been killed before its first checkpoint
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    good("--resume", str(folder), "-q", "--no-compare")
    assert [(folder / name / "weights.pt").read_bytes() for name in ("seed-0", "seed-1")] == weights
    assert len(list(runs.iterdir())) == 1


def test_runs_that_are_refused_at_once_leave_no_folder(runs):
    result = run("--data", "mnist", "--data-root", "nowhere", "--seeds", "2", "--epochs", "1")
    assert result.exit_code == 2
    assert not runs.exists() or not list(runs.iterdir())


def test_ctrl_c_is_recorded_and_the_run_goes_on(runs, monkeypatch):
    fit = fw.Trainer.fit

    def interrupt(end):
        if end.record.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(
            fw.Trainer, "fit", lambda self, *a, callbacks, **k: fit(self, *a, callbacks=[*callbacks, interrupt], **k)
        )
        assert run("--epochs", "40", *BRIEF[2:]).exit_code == 130
    [folder] = runs.iterdir()
    made = fw.Run.open(folder)
    assert made.status == "interrupted"
    assert 2 <= len(made.epochs) < 40
    good("--resume", str(folder), "-q", "--no-compare")
    made = fw.Run.open(folder)
    assert made.status == "complete"
    assert [epoch.epoch for epoch in made.epochs if epoch.complete][-1] == 39


def test_a_killed_run_is_lost_and_goes_on(runs):
    code = "import sys; from freewheel.cli import main; sys.argv[1:] = %r; main()"
    typed = ["train", "--epochs", "10000", *BRIEF[2:], "--save-every", "epoch"]
    process = subprocess.Popen([sys.executable, "-c", code % (typed,)], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 240
        while not any(len(path.read_text().splitlines()) >= 3 for path in runs.glob("*/history.jsonl")):
            assert process.poll() is None, "the run has ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        [folder] = runs.iterdir()
        assert fw.Run.open(folder).status == "running"
        progress = fw.Run.open(folder).progress
        assert progress is not None
        assert (progress["batches"], progress["epochs"]) == (40000, 10000)
        with pytest.raises(ValueError, match="is going on in another process"), fw.RunRecorder(folder, goes_on=True):
            pass
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    made = fw.Run.open(folder)
    assert made.status == "lost"
    assert made.final is None
    assert len(made.epochs) >= 3
    with pytest.raises(ValueError, match=r"^--no-run with --resume"):
        raise ValueError(run("--resume", str(folder), "--no-run").stderr.removeprefix("error: "))
    stored = read_config(folder / "config.toml")
    assert stored["epochs"] == 10000


# ---- freewheel evaluate


@pytest.mark.parametrize("method", ["fdg", "hogwild"])
def test_the_network_of_a_run_scores_what_it_scored(method, runs, tmp_path):
    good("--epochs", "2", "--limit", "200", "--threads", "1", "--no-compare", "-q", "--method", method)
    [folder] = runs.iterdir()
    made = fw.Run.open(folder)
    assert made.final is not None
    result = freewheel("evaluate", "--json", str(tmp_path / "score.json"))
    assert result.exit_code == 0, result.output
    assert f"{folder}: test accuracy {made.final['score']['metric']:.2%}, loss " in result.stdout
    scored = json.loads((tmp_path / "score.json").read_text())
    assert scored.pop("metrics") == pytest.approx(made.final["score"]["metrics"])
    assert scored == pytest.approx({name: made.final["score"][name] for name in ("loss", "metric", "samples")})
    weights = torch.load(folder / "weights.pt")
    torch.save({name: torch.zeros_like(value) for name, value in weights.items()}, folder / "weights.pt")
    assert freewheel("evaluate", str(folder)).stdout != result.stdout


def test_what_cannot_be_scored_is_named(runs):
    assert (
        freewheel("evaluate").stderr == f"error: {runs}: there is no run; freewheel train begins one, or name the "
        "folder of a run\n"
    )
    good(*BRIEF, "--seeds", "2")
    [folder] = runs.iterdir()
    assert "several runs; name one of them: seed-0, seed-1" in freewheel("evaluate", str(folder)).stderr
    (folder / "seed-0" / "weights.pt").unlink()
    message = freewheel("evaluate", str(folder / "seed-0")).stderr
    assert "there is no weights.pt, since the run has not ended; go on with it: --resume" in message


# ---- from Python


@spread(row=often(ROWS), runtime=["threads", rarely("simulate"), rarely("processes")])
def test_every_method_is_recorded(row, runtime, tmp_path):
    made = trainer(network(3), row.make(3), runtime=runtime)
    progress = []
    with fw.RunRecorder(tmp_path / "run", made) as recorder:
        history = made.fit(
            batches(5),
            epochs=2,
            validate=batches(2),
            callbacks=[recorder],
            trace=True,
            on_progress=lambda *told: progress.append(told),
        )
        recorder.finish(history, score=made.evaluate(batches(2)))
    read = fw.Run.open(tmp_path / "run")
    assert read.epochs == history.epochs
    assert read.status == "complete"
    assert read.facts["runtime"] == runtime
    assert read.facts["repeat" if "repeat" in read.facts else "method"] is not None
    trace = read.trace()
    assert trace is not None
    assert trace.staleness() == history.trace.staleness()
    assert progress == [(n, 10) for n in range(1, 11)]


def test_a_run_that_goes_on_keeps_its_history_until_there_is_more(tmp_path):
    """It was removed at once: a run that was killed twice had nothing to show."""
    seen = []
    for goes_on in (False, True):
        made = trainer(network(2), "bp")
        with fw.RunRecorder(tmp_path / "run", made, goes_on=goes_on) as recorder:
            seen.append(len(fw.Run.open(tmp_path / "run").epochs))
            made.fit(batches(2), epochs=1 + goes_on, callbacks=[recorder])
        seen.append(len(fw.Run.open(tmp_path / "run").epochs))
    assert seen == [0, 1, 1, 2]


class _Weighed(nn.Linear):
    """A layer that notes the peak of memory of its process, in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(6, 4)
        self.folder = folder

    def forward(self, x):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (self.folder / f"{os.getpid()}-{peak}").touch()
        return super().forward(x)


@pytest.mark.parametrize("method", ["pipedream", "hogwild"])
def test_the_peak_of_workers_is_theirs(method, tmp_path):
    """The system told nothing of them to the caller: a server process starts them, and the peak was 0."""
    (tmp_path / "peaks").mkdir()
    stages = [_Weighed(tmp_path / "peaks"), nn.Linear(4, 3)]
    made = trainer(stages, method, runtime="processes")
    with fw.RunRecorder(tmp_path / "run", made) as recorder:
        recorder.finish(made.fit(batches(6), callbacks=[recorder]))
    noted = [path.name.split("-") for path in (tmp_path / "peaks").iterdir()]
    theirs = [1024 * int(peak) for process, peak in noted if int(process) != os.getpid()]
    worker = fw.Run.open(tmp_path / "run").final["memory"]["worker"]
    assert max(theirs) <= worker < 2 * max(theirs)


def test_an_error_is_recorded_in_one_line(tmp_path):
    made = trainer(network(2), "bp")

    def fails(end):
        raise ValueError("no more\n disk")

    with pytest.raises(ValueError, match="no more"), fw.RunRecorder(tmp_path / "run", made) as recorder:
        made.fit(batches(3), epochs=2, callbacks=[recorder, fails])
    read = fw.Run.open(tmp_path / "run")
    assert read.status == "failed"
    assert read.final is not None
    assert read.final["error"] == "no more disk"
    assert len(read.epochs) == 1


def test_an_error_may_have_no_words(tmp_path):
    with pytest.raises(ZeroDivisionError), fw.RunRecorder(tmp_path / "run"):
        raise ZeroDivisionError
    assert fw.Run.open(tmp_path / "run").final["error"] == "ZeroDivisionError"


def test_a_context_that_ends_without_a_history_is_interrupted(tmp_path):
    with fw.RunRecorder(tmp_path / "run"):
        pass
    assert fw.Run.open(tmp_path / "run").status == "interrupted"


def test_progress_of_a_plateau_counts_on(tmp_path):
    stages = network(2)
    plateau = lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)  # noqa: E731
    told = []
    trainer(stages, "pipedream", scheduler=plateau).fit(batches(3), epochs=3, on_progress=lambda *n: told.append(n))
    assert told == [(n, 9) for n in range(1, 10)]


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no such folder; give that of a run"):
        fw.Run.open(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"there is no run.json, so that is not the folder of a run"):
        fw.Run.open(tmp_path)
    with pytest.raises(NotADirectoryError, match=r"that is a file, give the folder of a run"):
        fw.Run.open(__file__)
    with fw.RunRecorder(tmp_path / "runs" / "first"):
        pass
    with pytest.raises(ValueError, match=r"runs: that is a folder of runs; name one of them, such as .*first$"):
        fw.Run.open(tmp_path / "runs")
    with pytest.raises(FileNotFoundError, match=r"there is no run; freewheel train begins one"):
        newest_run(tmp_path)
    (tmp_path / "run.json").write_text("[1")
    with pytest.raises(ValueError, match=r"run\.json: that is not what Freewheel has written"):
        fw.Run.open(tmp_path)
    with pytest.raises(ValueError, match=r"there is a run already; name another folder"):
        fw.RunRecorder(tmp_path)
    with pytest.raises(TypeError, match=r"^on_progress=3: give a function of the batches begun and of their total$"):
        trainer([nn.Linear(6, 3)], "bp").fit(batches(1), on_progress=3)


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    made = trainer(network(2), "bp")
    with fw.RunRecorder(tmp_path / "run", made) as recorder:
        recorder.finish(made.fit(batches(2), epochs=2, callbacks=[recorder]))
    path = tmp_path / "run" / "history.jsonl"
    path.write_text(path.read_text()[:-20])
    assert len(fw.Run.open(tmp_path / "run").epochs) == 1
    path.write_text("{}\n")
    with pytest.raises(ValueError, match=r"history\.jsonl: that is not what Freewheel has written"):
        _ = fw.Run.open(tmp_path / "run").epochs


def test_names_count_on_also_between_runs_that_begin_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("FREEWHEEL_RUNS", raising=False)
    assert default_parent() == Path("runs")
    assert [new_folder(tmp_path, "a b", "C").name for _ in range(3)] == ["a-b-c-1", "a-b-c-2", "a-b-c-3"]
    os.rename(tmp_path / "a-b-c-3", tmp_path / "a-b-c-10")
    assert new_folder(tmp_path, "a b", "C").name == "a-b-c-11"
