"""`freewheel train --save-to` and `--resume`: the same weights as without a break, and no second set of options."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import freewheel as fw
from freewheel.checkpoint import _writer, finished
from freewheel.runs import take_lock
from test_cli_train import good, run, same

BRIEF = ("--epochs", "3", "--limit", "200", "--threads", "1", "--stages", "2", "--no-compare", "-q")


WARM_UP = ("--recipe", "fdg-warmup", "--data", "digits", "--seeds", "1", "--batch-size", "64")  # then milestones


def same_files(one: Path, two: Path) -> bool:
    return same(torch.load(one), torch.load(two))


def cut_off(folder: Path, batches: int) -> None:
    """As if the run had ended after the checkpoint with so many batches."""
    for path in finished(folder):
        if json.loads((path / "manifest.json").read_text())["fit"]["batches"] > batches:
            shutil.rmtree(path)


@pytest.mark.parametrize(
    "method", [("--method", "fdg", "-o", "shrink=0.5"), ("--method", "asyncfgd"), WARM_UP], ids="-".join
)
def test_a_run_goes_on_without_other_options(method, tmp_path, monkeypatch):
    """The cut was measured, and would be another one today; images come in an order that depends on the epoch."""
    monkeypatch.setattr(_writer, "RETAINED", 99)
    folder, whole, resumed = tmp_path / "run", tmp_path / "whole.pt", tmp_path / "resumed.pt"
    good(*BRIEF, *method, "--save-to", str(folder), "--save-every", "5", "--save", str(whole))
    cut_off(folder, 5)
    measured = fw.split

    def other(model: Any, k: Any, **options: Any) -> fw.Stages:
        assert options["balance"], "the cut is the stored one"
        return measured(model, k, **options)

    monkeypatch.setattr(fw, "split", other)
    stdout = good("--resume", str(folder), "--no-compare", "--save", str(resumed), "--runtime", "simulate")
    assert f"resume   {folder}: the run continues" in stdout
    assert "after 3 epochs" in stdout
    assert same_files(whole, resumed)


def test_a_complete_run_has_nothing_left(tmp_path):
    folder, whole, resumed = tmp_path / "run", tmp_path / "whole.pt", tmp_path / "resumed.pt"
    before = good(*BRIEF, "--at", "pool", "--save-to", str(folder), "--save", str(whole))
    after = good("--resume", str(folder), "--no-compare", "--save", str(resumed))
    assert f"resume   {folder}: the run is complete: there is nothing left to train" in after
    assert before.splitlines()[0] in after
    assert same_files(whole, resumed)


def test_contradictions_are_refused(tmp_path):
    folder = tmp_path / "run"
    good(*BRIEF, "--at", "pool", "--save-to", str(folder))
    for arguments, message in (
        (("--lr", "0.1"), f"--lr 0.1 with --resume {folder}: that run has 0.05; leave it out"),
        (("--epochs", "9"), f"--epochs 9 with --resume {folder}: that run has 3; leave it out"),
        (("--at", "fc"), f"--at fc with --resume {folder}: that run has pool; leave it out"),
        (("--save-to", str(tmp_path)), f"--save-to {tmp_path} with --resume {folder}: that run has {folder}; leave"),
    ):
        result = run("--resume", str(folder), *arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {message}")
    good("--resume", str(folder), "--epochs", "3", "--lr", "0.05", "--no-compare")  # says the same


def test_folders_are_checked(tmp_path):
    folder = tmp_path / "run"
    good(*BRIEF, "--at", "pool", "--save-to", str(folder))
    for arguments, message in (
        ((*BRIEF, "--save-to", str(folder)), "there are checkpoints of an earlier run; continue it with --resume"),
        ((*BRIEF, "--save-every", "3", "--no-run"), "--save-every 3 with --no-run: name the folder of the checkpoints"),
        ((*BRIEF, "--save-every", "3", "--no-checkpoints"), "--save-every 3 with --no-checkpoints: leave one out"),
        ((*BRIEF, "--save-to", "x", "--no-checkpoints"), "--save-to x with --no-checkpoints: there would be nothing"),
        ((*BRIEF, "--save-to", str(tmp_path), "--save-every", "often"), "--save-every often: give a number of batches"),
        (("--resume", str(tmp_path)), f"--resume {tmp_path}: there is no config.toml"),
        (("--resume", str(tmp_path / "no")), f"--resume {tmp_path / 'no'}: there is no such folder"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("limit = 200", "limit = 201"))
    result = run("--resume", str(folder))
    assert result.exit_code == 2
    assert f"config.toml was changed after the run began; undo that, or begin a new run with --config {config}" in (
        result.stderr
    )


def test_a_name_with_a_space_is_quoted_in_what_is_to_be_typed(tmp_path):
    """It can be copied into a shell."""
    folder = tmp_path / "my run"
    said = good(*BRIEF[:-1], "--run-dir", str(folder))
    assert f"repeat   freewheel train --config '{folder}/config.toml'\n" in said
    assert f"freewheel report '{folder}' draws it" in said
    assert f"continue it with --resume '{folder}', or" in run("--run-dir", str(folder)).stderr
    shutil.rmtree(folder / "checkpoints")
    assert f"--config '{folder}/config.toml' begins it anew" in run("--resume", str(folder)).stderr
    (folder / "config.toml").write_text("epochs = 4\n")
    assert f"begin a new run with --config '{folder}/config.toml'\n" in run("--resume", str(folder)).stderr


def test_a_run_that_is_going_on_is_not_resumed(tmp_path):
    """Nor are its checkpoints read, which it removes one after the other."""
    folder = tmp_path / "run"
    good(*BRIEF, "--run-dir", str(folder))
    for file in folder.glob("checkpoints/*/stage-0.pt"):
        file.unlink()
    with take_lock(folder):
        result = run("--resume", str(folder))
    assert result.stderr == f"error: {folder}: this run is going on in another process; wait for it, or stop it\n"


def test_a_run_whose_checkpoints_were_never_finished_begins_anew(tmp_path):
    folder = tmp_path / "run"
    good(*BRIEF, "--run-dir", str(folder))
    for path in finished(folder / "checkpoints"):
        shutil.rmtree(path)
    assert f"--config {folder}/config.toml begins it anew" in run("--resume", str(folder)).stderr
