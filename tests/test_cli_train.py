"""`freewheel train`: what it prints, what it writes, and that neither changes what is learned."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import freewheel as fw
from command_line import Result, freewheel
from freewheel.cli import _one_core
from freewheel.trainer import EpochEnd
from freewheel.trainer._fit import Fit
from spread import rarely

SMALL = ("--epochs", "1", "--limit", "200", "--at", "pool", "--threads", "1")
BRIEF = (*SMALL, "--no-compare")


def run(*arguments: str) -> Result:
    return freewheel("train", *arguments)


def good(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def record(path: Path, *arguments: str) -> dict[str, Any]:
    good(*BRIEF, *arguments, "--json", str(path))
    return json.loads(path.read_text())


def weights(path: Path, *arguments: str) -> dict[str, torch.Tensor]:
    good(*arguments, "--save", str(path))
    return torch.load(path)


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# ---- what is printed ----


def test_the_default_run_learns_digits():
    lines = good("--no-compare", "--stages", "2").splitlines()
    text = "\n".join(lines)
    assert "data     digits: 1,437 images to train, 360 to test, 1x8x8, 10 classes, batches of 64" in lines
    assert "model    digits-cnn: 40,026 parameters" in lines
    assert "method   pipedream: delays 1 0, locks left none" in lines
    assert "runtime  threads: 2 stages, " in text
    assert "steps    sgd: lr 0.05, momentum 0.9, weight decay 0.0005, cosine schedule, seed 0" in lines
    assert "balance allows a speed-up of " in text
    assert sum(line.strip().endswith("1.0 0.0") for line in lines) == 10
    accuracy = float(lines[-3].removeprefix("test accuracy ").split("%")[0])
    assert accuracy >= 97
    assert lines[-2].endswith(" images/s")


def test_replicas_are_told_of_and_give_the_same_weights_on_every_runtime(tmp_path):
    assert "runtime  threads: 2 stages in each of 2 replicas, 1 thread each" in good(
        *BRIEF, "--replicas", "2", "--threads", "1"
    )
    runs = [
        weights(tmp_path / f"{runtime}.pt", *BRIEF, "--replicas", "2", "--runtime", runtime)
        for runtime in ("threads", "simulate")
    ]
    assert same(*runs)
    assert not same(runs[0], weights(tmp_path / "alone.pt", *BRIEF))
    forward = ("--model", "digits-cnn", "--method", "fgd-dp", "--replicas", "3")
    assert record(tmp_path / "run.json", *forward)["replicas"] == 3
    assert "--replicas=0: give 1 or more" in run(*BRIEF, "--replicas", "0").output


def test_quiet_prints_the_closing_lines_alone():
    lines = good(*BRIEF, "--quiet").splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("test accuracy ")
    assert lines[0].endswith("360 images) after 1 epoch")
    assert lines[1].endswith(" images/s")
    assert lines[2].startswith("wrote ")


def test_many_epochs_are_shown_in_part():
    lines = good("--epochs", "15", "--limit", "20", "--at", "pool", "--no-compare").splitlines()
    shown = [line.split()[0] for line in lines if line.strip().endswith(" 0.0")]
    assert len(shown) == 12
    assert (shown[0], shown[-1]) == ("1", "15")
    assert "12 of 15 epochs; --json FILE writes all" in lines


def test_a_diverged_run_says_so():
    result = run(*BRIEF, "--lr", "1e30")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: stage 1 failed in the forward of batch ")
    assert "the loss is nan: lower the learning rate" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_speed_up_is_over_one_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(_one_core, "SECONDS", 0.01)
    file = tmp_path / "run.json"
    result = run(*SMALL, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert result.stderr.count("timing plain PyTorch on one core") == 2
    written = json.loads(file.read_text())
    one_core = written["one_core"]
    assert one_core["batches_timed"] >= 20
    assert math.isclose(written["speedup"], written["images_per_second"] / one_core["images_per_second"])
    assert f": {written['speedup']:.2f} times plain PyTorch on one core (" in result.stdout


# ---- what is written ----


def test_json_holds_everything(tmp_path: Path):
    file = tmp_path / "run.json"
    written = record(file, "--method", "fdg", "-o", "shrink=0.5", "--clip", "1", "--slack", "1")
    assert written["arguments"]["limit"] == 200
    assert written["arguments"]["at"] == ["pool"]
    assert written["arguments"]["json"] == str(file)
    assert written["method"]["name"] == "fdg"
    assert written["method"]["with_options"] == "FDG(shrink=0.5, order='backward', step_size='update')"
    assert written["method"]["delays"] == [2, 0]
    assert written["method"]["locks"] == []
    assert written["data"] == {"name": "digits", "train": 200, "test": 360, "classes": 10, "shape": [1, 8, 8]}
    assert written["model"] == {"name": "digits-cnn", "parameters": 40026}
    assert written["optimizer"] == {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0005}
    assert len(written["split"]["costs"]) == len(written["split"]["names"]) == written["stages"] == 2
    assert len(written["history"]["epochs"]) == 1
    assert written["score"] == written["history"]["epochs"][0]["validation"]
    assert written["one_core"] is None
    assert written["speedup"] is None
    assert written["versions"]["torch"] == torch.__version__
    assert written["versions"]["freewheel"] == fw.__version__


def test_saved_weights_go_back_into_the_network(tmp_path: Path):
    file = tmp_path / "run.json"
    saved = weights(tmp_path / "net.pt", *BRIEF, "--json", str(file))
    model = fw.models.build("digits-cnn")
    model.load_state_dict(saved)
    trainer = fw.Trainer([model], loss=torch.nn.functional.cross_entropy, optimizer=torch.optim.SGD, threads=1)
    score = trainer.evaluate(fw.data.load("digits").test)
    assert math.isclose(score.loss, json.loads(file.read_text())["score"]["loss"], rel_tol=1e-5)


def test_what_is_written_is_named(tmp_path: Path):
    lines = good(*BRIEF, "--json", str(tmp_path / "a.json"), "--save", str(tmp_path / "b.pt")).splitlines()
    assert lines[-3:-1] == [f"wrote {tmp_path / 'a.json'}", f"wrote {tmp_path / 'b.pt'}"]


# ---- what is learned ----


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of a brief run."""
    return weights(tmp_path_factory.mktemp("brief") / "weights.pt", *BRIEF)


@pytest.mark.parametrize("change", [("--runtime", "simulate"), ("--slack", "2"), ("--slow", "1:0.5:1"), ("--quiet",)])
def test_neither_runtime_nor_slack_nor_stragglers_nor_silence_changes_the_weights(
    change: tuple[str, ...], brief: dict[str, torch.Tensor], tmp_path: Path
):
    assert same(brief, weights(tmp_path / "a.pt", *BRIEF, *change))


def test_the_comparison_does_not_change_the_weights(monkeypatch: pytest.MonkeyPatch, brief, tmp_path: Path):
    monkeypatch.setattr(_one_core, "SECONDS", 0.01)
    assert same(brief, weights(tmp_path / "a.pt", *SMALL))


@pytest.mark.parametrize(
    "change",
    [
        ("--seed", "1"),
        ("--method", "ddg", "--batch-size", "32"),
        ("--optimizer", "adam"),
        ("--optimizer", "adamw", "--lr", "0.01", "--weight-decay", "0.1"),
        ("--momentum", "0"),
        ("--schedule", "constant"),
        ("--clip", "0.1"),
        ("--augment",),
        ("--bf16",),
        ("--method", "gpipe", "-o", "micro=2"),
        ("--method", "pipemare", "-o", "decay=none"),
    ],
    ids=" ".join,
)
def test_everything_else_does(change: tuple[str, ...], brief, tmp_path: Path, request: pytest.FixtureRequest):
    if "--bf16" in change:
        request.getfixturevalue("cpu_bfloat16")
    assert not same(brief, weights(tmp_path / "a.pt", *BRIEF, *change))


@pytest.mark.parametrize(
    ("arguments", "delays"),
    [
        (("--at", "conv3", "--at", "pool", "--method", "dsp", "-o", "p=1,1,0", "-o", "m=4,2,0"), [4, 2, 0]),
        (("--stages", "3", "--split", "parameters", "--method", "fdg"), [4, 2, 0]),
        (("--stages", "1"), [0]),
        rarely(("--stages", "2", "--data", "synthetic", "--model", "convs-relu", "--batch-size", "10"), [1, 0]),
        rarely(("--stages", "2", "--data", "synthetic", "--split", "parameters"), [1, 0]),
    ],
    ids=str,
)
def test_stages_are_cut_as_asked(arguments: tuple[str, ...], delays: list[int], tmp_path: Path):
    file = tmp_path / "run.json"
    good("--epochs", "1", "--limit", "40", "--no-compare", *arguments, "--json", str(file))
    written = json.loads(file.read_text())
    assert written["method"]["delays"] == delays
    assert written["stages"] == len(delays)


# ---- interruption ----


def test_an_interrupted_run_still_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fit = fw.Trainer.fit

    def interrupt(end: EpochEnd) -> None:
        if end.record.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    def interrupted(self: fw.Trainer, *args: Any, **kwargs: Any) -> fw.History:
        return fit(self, *args, **{**kwargs, "callbacks": [*kwargs["callbacks"], interrupt]})

    monkeypatch.setattr(fw.Trainer, "fit", interrupted)
    monkeypatch.setattr(_one_core, "SECONDS", 0.01)
    file = tmp_path / "run.json"
    result = run("--epochs", "1000", "--limit", "200", "--at", "pool", "--json", str(file))
    assert result.exit_code == 130
    assert result.stderr.count("timing plain PyTorch on one core") == 1
    lines = result.stdout.splitlines()
    assert any(" epochs of 1000, interrupted at batch " in line for line in lines)
    assert " times plain PyTorch on one core (" in lines[-3]
    assert lines[-2] == f"wrote {file}"
    written = json.loads(file.read_text())
    assert written["history"]["interrupted"]
    assert len(written["history"]["epochs"]) < 10


def test_how_busy_a_gpu_is_is_not_told(monkeypatch):
    """The host's time for launching stood there."""
    record = Fit._record
    monkeypatch.setattr(Fit, "_record", lambda fit, cut: replace(record(fit, cut), busy=()))
    _, table = good(*BRIEF).split(" busy ")
    *_, busy, first, last = next(line.split() for line in table.splitlines() if line.split()[:1] == ["1"])
    assert (busy, last) == ("-", "0.0")
    assert float(first) > 0


@pytest.mark.parametrize("name", ["run-dir", "save-to", "data", "method", "option"])
def test_an_empty_value_is_refused(name, tmp_path, monkeypatch):
    """As that of a variable of the shell that is not set; an empty path would be the present folder."""
    monkeypatch.chdir(tmp_path)
    result = freewheel("train", f"--{name}", "")
    assert result.exit_code == 2
    assert result.stderr.strip() == f"error: --{name} is empty: give a value, or leave it out"
    assert not list(tmp_path.iterdir())
