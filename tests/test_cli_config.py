"""`freewheel train --config`: a file in place of options, and one written by every run that repeats it."""

from __future__ import annotations

import hashlib
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import freewheel as fw
from command_line import CACHE
from freewheel.cli._config import NOT_WRITTEN
from freewheel.cli._settings import resolve
from freewheel.cli._train_options import TrainOptions
from spread import rarely
from test_cli_train import good, run

BRIEF = ("--epochs", "2", "--limit", "200", "--no-compare", "-q", "--no-run")


def digest(file: Path) -> str:
    """Of all weights in a state_dict."""
    state = torch.load(file)
    return hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()


def options_in(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


RUNS = {
    "measured cut": ("--stages", "2"),
    "method options": ("--method", "fdg", "-o", "shrink=0.3", "--stages", "3", "--split", "parameters", "--seed", "5"),
    "at": ("--at", "pool", "--optimizer", "adam", "--batch-size", "50", "--clip", "0.5", "--schedule", "constant"),
    "forward gradients": ("--method", "asyncfgd", "-o", "tangents=2", "--stages", "2"),
    "replicas": ("--method", "gpipe", "-o", "micro=2", "--replicas", "2", "--stages", "2", "--momentum", "0"),
    "transfer": ("--method", "asyncfgd", "--transfer", "--transfer-warmup", "1", "--transfer-ramp", "1", "-k", "2"),
    "sequences": ("--data", "digits-rows", "--hidden", "8", "--stages", "2"),
    "a recipe": ("--recipe", "fdg", "--data", "digits", "--stages", "3", "--seeds", "1", "--lr", "0.05"),
    "step sizes": ("--recipe", "asyncfgd", "--data", "digits", "--lr-grid", "1e-4", "1e-3", "--at", "fc2"),
    "a warm-up": ("--warmup-epochs", "1", "--warmup-lr", "0.01", "--warmup", "linear", "--t-max", "3", "-k", "2"),
    "a race in one thread": ("--method", "async-bu", "--runtime", "simulate"),
}


OFTEN = ("measured cut", "method options", "replicas", "transfer", "a recipe", "step sizes")


@pytest.mark.parametrize("name", [name if name in OFTEN else rarely(name) for name in RUNS])
def test_a_run_is_repeated_by_the_config_that_it_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    good(*BRIEF, *RUNS[name], "--save", str(first))
    monkeypatch.setattr("freewheel.cli._settings.cores", lambda: 1)  # on another machine
    monkeypatch.setattr("freewheel.cli._settings.share", lambda _: 7)
    config = tmp_path / "first.config.toml"
    good("--config", str(config), "--no-compare", "-q", "--no-run", "--save", str(second))
    assert digest(second) == digest(first)
    assert options_in(tmp_path / "second.config.toml") == options_in(config)


def test_everything_is_resolved(tmp_path: Path):
    file = tmp_path / "run.toml"
    good(*BRIEF, "--method", "fdg", "-o", "shrink=0.5", "--stages", "2", "--write-config", str(file))
    found = options_in(file)
    cut = found.pop("balance")
    assert len(cut) == 2
    assert sum(cut) == len(list(fw.models.build("digits-cnn").children()))
    assert found.pop("threads") >= 1
    assert found == {
        "data": "digits", "limit": 200, "batch-size": 64, "model": "digits-cnn", "stages": 2, "method": "fdg",
        "option": ["shrink=0.5", "order=backward", "step_size=update"],
        "runtime": "threads", "replicas": 1, "slack": 0, "device": "cpu",
        "epochs": 2, "optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight-decay": 0.0005, "schedule": "cosine",
        "bf16": False, "check": True, "compile": False, "overlap": False, "seed": 0, "transfer": False,
        "schedule-every": "batch", "warmup-epochs": 0, "validation": 0.0, "early-stopping": 0, "target": 0.0,
        "seeds": 1,
    }  # fmt: skip


def test_resolving_twice_changes_nothing():
    options = resolve(TrainOptions(method="asyncfgd", transfer=True, epochs=11, data="imdb", slow=("0:0.5:1",))).options
    assert resolve(options).options == options
    assert (options.model, options.hidden, options.batch_size) == ("lstm", 256, 75)
    assert (options.lr, options.split, options.transfer_layers) == (0.003, "forward", ("*.bias",))


def test_where_it_is_written(tmp_path: Path):
    """Where it is asked for, in the folder of the run, beside its files, or in the cache folder."""
    for arguments, file in (
        (("--run-dir", str(tmp_path / "a run")), tmp_path / "a run" / "config.toml"),
        (("--save-to", str(tmp_path / "run"), "--no-run"), tmp_path / "run" / "config.toml"),
        (
            ("--json", str(tmp_path / "a.json"), "--save", str(tmp_path / "b.pt"), "--no-run"),
            tmp_path / "a.config.toml",
        ),
        (("--save", str(tmp_path / "b.pt"), "--no-run"), tmp_path / "b.config.toml"),
        (("--save", str(tmp_path / "c.pt"), "--write-config", str(tmp_path / "x")), tmp_path / "x"),
        (("--no-run",), Path(CACHE) / "freewheel" / "last-run.config.toml"),
    ):
        file.unlink(missing_ok=True)
        stdout = good("--epochs", "1", "--limit", "20", "--at", "pool", "--no-compare", *arguments)
        assert f"repeat   freewheel train --config {shlex.quote(str(file))}\n" in stdout
        assert options_in(file)["at"] == ["pool"]
        assert file.read_text().startswith(f"# Freewheel {fw.__version__}: ")
    assert not (tmp_path / "c.config.toml").exists()


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "repeat" not in good("--epochs", "1", "--limit", "20", "--at", "pool", "--no-compare", "--no-run")


def test_a_file_by_hand_and_typed_options_on_top(tmp_path: Path):
    file, out = tmp_path / "my.toml", tmp_path / "out.toml"
    file.write_text(
        'epochs = 1\nlimit = 40\nlr = 1\nmethod = "fdg"\noption = ["shrink=0.5"]\nat = ["conv3", "pool"]\n'
        f'compare = false\nquiet = true\nsave-every = 3\nsave = "{tmp_path / "net.pt"}"\noptimizer = "sgd"\n'
        "momentum = 0.5\n"
    )
    base = ("--config", str(file), "--write-config", str(out), "--no-run")
    assert len(good(*base).splitlines()) == 3
    assert (tmp_path / "net.pt").exists()
    written = options_in(out)
    assert (written["lr"], written["at"], written["option"][0]) == (1.0, ["conv3", "pool"], "shrink=0.5")
    assert "save-every" not in written, "there were no checkpoints"
    good(*base, "--lr", "0.1", "--seed", "3")
    assert options_in(out) == {**written, "lr": 0.1, "seed": 3}
    for typed, gone in (
        (("--method", "bp"), {"option"}),
        (("--optimizer", "adam"), {"momentum"}),
        (("--balance", "10", "18"), {"at"}),
        (("--stages", "2"), {"at"}),
    ):
        good(*base, *typed)
        assert gone.isdisjoint(options_in(out))
    assert len(options_in(out)["balance"]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch = 3", "epoch = 3: there is no option 'epoch'; did you mean 'epochs'?"),
        ("batch_size = 3", "batch_size = 3: there is no option 'batch_size'; did you mean 'batch-size'?"),
        ("qqq = true", "qqq = true: there is no option 'qqq'; freewheel train --help lists the options"),
        ('resume = "x"', "resume = \"x\": there is no option 'resume'; "),
        ("[sgd]\nlr = 0.1", "sgd = {\"lr\": 0.1}: there is no option 'sgd'; "),
        ('epochs = "3"', 'epochs = "3": give a whole number'),
        ("epochs = true", "epochs = true: give a whole number"),
        ("epochs = 3.0", "epochs = 3.0: give a whole number"),
        ('lr = "0.1"', 'lr = "0.1": give a number'),
        ("bf16 = 1", "bf16 = 1: give true or false"),
        ("augment = 0", "augment = 0: give true or false"),
        ("data = 3", "data = 3: give a string in quotes"),
        ("data-root = 3", "data-root = 3: give a path in quotes"),
        ('at = "pool"', 'at = "pool": give a list in brackets, each item a string in quotes'),
        ("balance = [1, 2.5]", "balance = [1, 2.5]: give a list in brackets, each item a whole number"),
        ("save-every = 2.5", 'save-every = 2.5: give a whole number or "epoch"'),
        ("epochs = ", "that is not TOML: Invalid value (at end of document)"),
        (None, "there is no such file"),
    ],
)
def test_wrong_files_are_one_line(content: str | None, message: str, tmp_path: Path):
    file = tmp_path / "wrong.toml"
    if content is not None:
        file.write_text(content)
    result = run("--config", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: --config {file}: {message}")
    assert result.stderr.count("\n") == 1


def test_values_are_checked_as_if_they_were_typed(tmp_path: Path):
    file = tmp_path / "wrong.toml"
    for content, message in (
        ("epochs = 0", "--epochs=0: give 1 or more"),
        ('at = ["pool"]\nbalance = [13, 15]', "--balance 13 with --at pool: both say where to cut, give one"),
        ("stages = 3\nbalance = [13, 15]", "--stages 3 with --balance of 2, so that makes 2; leave --stages out"),
        ('save-to = "x"\nsave-every = "often"', "--save-every often: give a number of batches, 1 or more, or epoch"),
    ):
        file.write_text(content)
        result = run("--config", str(file))
        assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_a_run_that_goes_on_takes_no_other_config(tmp_path: Path):
    good(*BRIEF, "--at", "pool", "--save-to", str(tmp_path / "run"))
    result = run("--resume", str(tmp_path / "run"), "--config", "x.toml")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --config x.toml with --resume {tmp_path / 'run'}: that run has none")


def test_what_is_not_written_says_where_results_go():
    assert set(NOT_WRITTEN) <= set(TrainOptions.__dataclass_fields__)
