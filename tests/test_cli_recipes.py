"""`freewheel train --recipe` and its like: schedules, ends of a training, and several runs of it."""

from __future__ import annotations

import json
import math
import shutil
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import freewheel as fw
from command_line import freewheel as command
from freewheel.checkpoint import _writer
from freewheel.cli._recipe import recipe_defaults
from test_cli_resume import cut_off
from test_cli_train import good, run

BRIEF = ("--epochs", "3", "--limit", "200", "--at", "pool", "--threads", "1", "--no-compare", "-q")


def record(path: Path, *arguments: str) -> dict[str, Any]:
    good(*arguments, "--json", str(path))
    return json.loads(path.read_text())


def losses(history: dict[str, Any]) -> list[float]:
    return [epoch["loss"] for epoch in history["epochs"]]


# ---- what a recipe sets ----


def test_a_recipe_sets_what_the_paper_says():
    """Zhuang et al. 2019, section V.A, for four modules."""
    assert recipe_defaults({"recipe": "fdg", "model": "resnet-56", "stages": 4}) == {
        "data": "cifar10", "method": "fdg", "stages": 4, "model": "resnet-56", "batch_size": 128, "augment": True,
        "validation": 0.0, "epochs": 300, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005,
        "schedule": "multistep", "milestones": (150, 225, 275), "gamma": 0.1, "warmup_epochs": 3, "warmup_lr": 0.01,
        "warmup": "constant", "schedule_every": "epoch", "transfer": False, "early_stopping": 0, "seeds": 3,
    }  # fmt: skip


def test_torchrun_decides_how_many_stages_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("freewheel.cli._recipe.is_one_of_several", lambda: True)
    monkeypatch.setattr("freewheel.cli._recipe.rank_and_size", lambda: (0, 8))
    found = recipe_defaults({"recipe": "fdg", "replicas": 2})
    assert (found["stages"], found["warmup_epochs"]) == (4, 3)
    assert recipe_defaults({"recipe": "fdg", "at": ("layer2",)})["stages"] == 2


def test_all_recipes_are_listed():
    lines = command("recipes").stdout.splitlines()
    listed = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert listed[: len(fw.recipes.RECIPES)] == list(fw.recipes.RECIPES)
    rows = {row["name"]: row for row in json.loads(command("recipes", "--json").stdout)}
    assert rows["fdg"]["schedule"]["milestones"] == [150, 225, 275]
    transfer = "\n".join(lines[listed_at(lines, "asyncfgd-transfer") : listed_at(lines, "fdg-warmup")])
    assert "the classifier alone for 10 epochs, then *.bias, α to 0.15 in 20 epochs" in transfer
    assert "on 10% of the training" in transfer
    assert "cropped and flipped" not in transfer


def listed_at(lines: list[str], name: str) -> int:
    return next(i for i, line in enumerate(lines) if line.startswith(f"{name}:"))


def test_what_is_typed_overrides_the_recipe(tmp_path: Path):
    def written(*arguments: str) -> dict[str, Any]:
        return record(tmp_path / "a.json", *BRIEF, "--data", "digits", "--recipe", *arguments, "--seeds", "1")

    fdg = written("fdg")["arguments"]
    assert (fdg["method"], fdg["model"], fdg["augment"]) == ("fdg", "digits-cnn", None), "the data are not the paper's"
    assert (fdg["lr"], fdg["milestones"], fdg["recipe"]) == (0.1, [2, 3, 4], "fdg"), "300 epochs are 3 now"
    other = written("fdg", "--optimizer", "adam", "--schedule", "constant", "--batch-size", "50", "--method", "bp")
    assert other["optimizer"] == {"name": "adam", "lr": 0.001, "weight_decay": 0.0}
    assert (other["arguments"]["milestones"], other["arguments"]["gamma"]) == ([], None)
    assert (other["method"]["name"], other["arguments"]["batch_size"]) == ("bp", 50)
    alone = written("asyncfgd", "--lr", "0.001", "--model", "digits-cnn")
    assert (alone["arguments"]["lr_grid"], alone["arguments"]["validation"]) == ([], 0.1)
    warm = written("fdg-warmup", "--warmup-epochs", "0")["arguments"]
    assert (warm["warmup_epochs"], warm["warmup_lr"]) == (0, None)


def test_the_opening_says_what_the_recipe_sets():
    lines = good(*BRIEF[:-1], "--data", "digits", "--recipe", "async-lu", "--seeds", "1").splitlines()
    text = " ".join(line.strip() for line in lines[:6])
    assert text.startswith("recipe   async-lu (Async LU, section 4.1, weight decay from table 10): --batch-size 128 ")
    assert " not as in the paper: --no-augment --epochs 3 --t-max 2 --warmup-epochs 1 --seeds 1 " in text
    assert " left open by the paper, our choice: weight decay " in text
    assert "ends     after 30 epochs without a better test accuracy" in lines
    assert max(len(line) for line in lines[:4]) <= 110


# ---- schedules ----


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (("--milestones", "2,3", "--warmup-epochs", "1", "--warmup-lr", "0.01"), [0.01, 0.05, 0.005, 0.0005]),
        (("--milestones", "1", "3", "--gamma", "0.5", "--schedule-every", "batch"), [0.05, 0.025, 0.025, 0.0125]),
        (("--schedule", "cosine", "--schedule-every", "epoch", "--t-max", "2"), [0.05, 0.025, 0.0, 0.025]),
        (
            ("--warmup-epochs", "2", "--warmup-lr", "0.01", "--warmup", "linear", "--schedule-every", "epoch"),
            [0.01, 0.03, 0.05, 0.025],
        ),
    ],
    ids=["multistep", "by batch", "cosine", "linear"],
)
def test_a_schedule_is_a_plain_loop_with_those_step_sizes(arguments, steps, tmp_path: Path):
    file = tmp_path / "net.pt"
    sgd = ("--method", "bp", "--lr", "0.05", "--momentum", "0.5", "--weight-decay", "0")
    good(*BRIEF, "--epochs", "4", *sgd, *arguments, "--save", str(file))
    torch.manual_seed(0)
    model, data = fw.models.build("digits-cnn"), fw.data.load("digits", train_limit=200)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    for lr in steps:
        optimizer.param_groups[0]["lr"] = lr
        for x, y in data.train:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    found = torch.load(file)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--schedule", "multistep"), "--schedule multistep without --milestones: give the epochs"),
        (("--milestones", "3", "--schedule", "cosine"), "--milestones with --schedule cosine: it is for multistep"),
        (("--milestones", "3", "2"), "--milestones (3, 2) after 0 epochs of warm-up: each must be later than"),
        (("--milestones", "2,x"), "--milestones 2,x: give a whole number"),
        (("--gamma", "0.5"), "--gamma with --schedule cosine: it is for multistep"),
        (("--milestones", "2", "--gamma", "0"), "--gamma 0.0: give the factor of the step size at a milestone"),
        (("--warmup-lr", "0.1"), "--warmup-lr without --warmup-epochs: say how long the warm-up is"),
        (("--warmup-epochs", "1"), "--warmup-epochs 1 without --warmup-lr: give the step size of the warm-up"),
        (("--warmup-epochs", "3", "--warmup-lr", "0.01"), "--warmup-epochs 3 with --epochs 3: there would be nothing"),
        (("--warmup-epochs", "1", "--warmup-lr", "1"), "--warmup-lr 1 with --lr 0.05: a warm-up has the smaller"),
        (("--schedule-every", "week"), "unknown schedule_every 'week'"),
        (("--recipe", "fgd"), "unknown recipe 'fgd': did you mean 'asyncfgd'?"),
        (("--recipe", "fdg", "--epochs", "0"), "--epochs=0: give 1 or more"),
        (("--recipe", "fdg", "--data", "cifar10"), "data set 'cifar10' is read from files: give --data-root"),
        (("--target", "90"), "--target 90: give an accuracy from 0 to 1, such as 0.9"),
        (("--validation", "1"), "--validation 1: give a share below 1, such as 0.1"),
        (("--validation", "0.001"), "--validation 0.001 holds out 0 of 200 training samples: give a share that"),
        (("--lr-grid", "0.1"), "--lr-grid 0.1: give several different ones, or one with --lr"),
        (("--lr-grid", "0.1", "0.1"), "--lr-grid 0.1 0.1: give several different ones"),
        (("--lr-grid", "0.1", "1", "--lr", "1"), "--lr 1 with --lr-grid: both set the step size, give one"),
        (("--lr-grid", "0.1", "1", "--validation", "0"), "--lr-grid with --validation 0: the step size is chosen by"),
        (("--seeds", "2", "--save", "x"), "--save x with --seeds 2: which one? --save-to DIR keeps them all"),
        (("--seeds", "0"), "--seeds=0: give 1 or more"),
        (("--early-stopping", "-1"), "--early-stopping=-1: give 0 or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_options_are_one_line(arguments: tuple[str, ...], message: str):
    result = run(*BRIEF, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


# ---- the end ----


def test_a_target_ends_the_training_and_has_a_time(tmp_path: Path):
    result = record(tmp_path / "a.json", *BRIEF, "--epochs", "50", "--target", "0.5")
    epochs = result["history"]["epochs"]
    metrics = [epoch["validation"]["metric"] for epoch in epochs]
    assert metrics[-1] >= 0.5 > max(metrics[:-1])
    assert result["time_to_target"]["epochs"] == len(epochs) < 50
    assert math.isclose(result["time_to_target"]["seconds"], sum(epoch["seconds"] for epoch in epochs))
    assert result["score"]["metric"] == metrics[-1]
    stdout = good(*BRIEF, "--target", "0.999")
    assert "time to 99.90% test accuracy: not reached" in stdout


def test_early_stopping_waits_for_a_better_accuracy(tmp_path: Path):
    """With a step size of almost 0 nothing becomes better."""
    result = record(tmp_path / "a.json", *BRIEF, "--epochs", "9", "--lr", "1e-30", "--early-stopping", "2")
    metrics = [epoch["validation"]["metric"] for epoch in result["history"]["epochs"]]
    best = metrics.index(max(metrics))
    assert len(metrics) == best + 3 < 9
    assert result["history"]["stopped"]


def test_held_out_samples_are_scored_and_the_test_samples_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scored: list[int] = []
    evaluate = fw.Trainer.evaluate

    def counted(self: fw.Trainer, loader: Any) -> fw.Score:
        scored.append(len(loader.labels))
        return evaluate(self, loader)

    monkeypatch.setattr(fw.Trainer, "evaluate", counted)
    result = record(tmp_path / "a.json", *BRIEF, "--validation", "0.2")
    assert result["data"]["train"] == 160
    assert [(epoch["samples"], epoch["validation"]["samples"]) for epoch in result["history"]["epochs"]] == [
        (160, 40)
    ] * 3
    assert scored == [360] == [result["score"]["samples"]]


# ---- several runs ----


def test_every_seed_is_a_run_of_its_own(tmp_path: Path):
    result = record(tmp_path / "a.json", *BRIEF, "--seeds", "3", "--seed", "4")
    alone = [record(tmp_path / "b.json", *BRIEF, "--seed", str(seed)) for seed in (4, 5, 6)]
    assert [losses(one["history"]) for one in result["runs"]] == [losses(one["history"]) for one in alone]
    scores = [one["score"]["metric"] for one in alone]
    found = result["statistics"]["test accuracy"]
    assert found["values"] == scores
    assert math.isclose(found["median"], sorted(scores)[1])
    assert math.isclose(found["mean"], sum(scores) / 3)
    assert math.isclose(found["deviation"], statistics.stdev(scores), abs_tol=1e-12)
    best = [max(epoch["validation"]["metric"] for epoch in one["history"]["epochs"]) for one in alone]
    assert result["statistics"]["best test accuracy of an epoch"]["values"] == best


GRID = (*BRIEF, "--lr-grid", "0.0001,0.1", "0.03", "--seeds", "2")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(tmp_path_factory.mktemp("grid") / "a.json", *GRID)


def test_the_best_step_size_on_held_out_samples_is_taken(searched: dict[str, Any], tmp_path: Path):
    held_out = {one["lr"]: one["history"]["epochs"][-1]["validation"]["metric"] for one in searched["step_sizes"]}
    assert list(held_out) == [0.0001, 0.1, 0.03]
    best = max(held_out, key=lambda lr: held_out[lr])
    assert [one["arguments"]["lr"] for one in searched["runs"]] == [best, best]
    assert [one["arguments"]["seed"] for one in searched["runs"]] == [0, 1]
    alone = record(tmp_path / "b.json", *BRIEF, "--lr", str(best), "--validation", "0.1", "--seed", "1")
    assert losses(alone["history"]) == losses(searched["runs"][1]["history"])
    assert alone["score"] == searched["runs"][1]["score"]


def test_several_runs_go_on_where_they_were(searched: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One is complete, one was cut off in its middle, the others have not begun."""
    monkeypatch.setattr(_writer, "RETAINED", 99)
    folder = tmp_path / "run"
    good(*GRID, "--save-to", str(folder), "--save-every", "2")
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "lr-0.0001", "lr-0.03", "lr-0.1", "seed-1"]
    cut_off(folder / "lr-0.1", 4)
    shutil.rmtree(folder / "lr-0.03")
    shutil.rmtree(folder / "seed-1")
    result = record(tmp_path / "a.json", "--resume", str(folder), "--no-compare", "-q")
    assert [losses(one["history"]) for one in result["runs"]] == [losses(one["history"]) for one in searched["runs"]]
    assert [one["score"] for one in result["runs"]] == [one["score"] for one in searched["runs"]]
    assert [losses(one["history"]) for one in result["step_sizes"]] == [
        losses(one["history"]) for one in searched["step_sizes"]
    ]
    again = run(*GRID, "--save-to", str(folder))
    assert f"--save-to {folder}: there are checkpoints of an earlier run" in again.stderr


def test_an_interrupted_run_ends_all_of_them_and_they_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, fit = tmp_path / "run", fw.Trainer.fit
    runs = (*BRIEF, "--seeds", "3", "--method", "bp")  # others drain the pipeline, after which it begins anew
    whole = record(tmp_path / "a.json", *runs)

    def interrupt(end: fw.EpochEnd) -> None:
        if end.record.epoch == 0 and len(list(folder.iterdir())) == 3:  # the config, and two runs
            signal.raise_signal(signal.SIGINT)

    def interrupted(self: fw.Trainer, *args: Any, **kwargs: Any) -> fw.History:
        return fit(self, *args, **{**kwargs, "callbacks": [interrupt]})

    monkeypatch.setattr(fw.Trainer, "fit", interrupted)
    result = run(*runs, "--save-to", str(folder))
    assert result.exit_code == 130
    assert "interrupted: 1 of 3 runs are complete" in result.stdout
    monkeypatch.setattr(fw.Trainer, "fit", fit)
    resumed = record(tmp_path / "b.json", "--resume", str(folder), "--no-compare", "-q")
    assert [losses(one["history"]) for one in resumed["runs"]] == [losses(one["history"]) for one in whole["runs"]]


def test_a_step_size_that_diverges_is_not_taken():
    stdout = good(*BRIEF[:-1], "--epochs", "1", "--lr-grid", "1e30", "0.05")
    assert any(line.split()[::3] == ["1e+30", "-"] or "diverged" in line.split() for line in stdout.splitlines())
    assert "lr 0.05 has the best score on held-out samples" in stdout
    result = run(*BRIEF, "--lr-grid", "1e30", "1e31")
    assert result.stderr == "error: --lr-grid: the loss became infinite with every step size; give smaller ones\n"
