"""The command line: what each command prints, and one clear line for whatever is wrong."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import freewheel as fw
from command_line import freewheel as run, good
from freewheel.cli import main
from freewheel.cli._method_options import complete_options, find_method, read_options

# ---- help and version ----


def test_version():
    assert good("--version") == f"freewheel {fw.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["methods", "-h"], ["plan", "-h"], ["train", "-h"], ["bench", "-h"], []]
)
def test_help(arguments: list[str]):
    assert "Usage: freewheel" in good(*arguments)


def test_help_names_every_command():
    assert all(name in good("--help") for name in ("methods", "plan", "train", "bench"))


def test_main_runs_the_app(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["freewheel", "--version"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out == f"freewheel {fw.__version__}\n"


@pytest.mark.parametrize("missing", ["cyclopts", "rich", "tomli_w"])
def test_without_its_libraries_one_line_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in list(sys.modules):
        if name.startswith("freewheel.cli._") and name != "freewheel.cli._main":
            monkeypatch.setattr(name, sys.modules[name])  # so that the package has it again afterwards
            monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> ModuleType:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    line = f"freewheel's command line needs {missing}: pip install 'freewheel[cli]'\n"
    assert capsys.readouterr() == ("", line)


def test_importing_the_cli_needs_neither_cyclopts_nor_rich():
    code = "import sys, freewheel.cli; print(sorted({'cyclopts', 'rich', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- methods ----


def test_methods_lists_them_all():
    text = good("methods")
    for name in (*fw.METHODS, *fw.RACES):
        assert f"\n {name} " in text
    assert "forward, backward, update" in text
    assert "shrink=1 order=backward step_size=update" in text
    assert "Delayed gradients with shrinking." in text


def test_methods_as_json_agree_with_the_library():
    rows = {row["name"]: row for row in json.loads(good("methods", "--json"))}
    assert list(rows) == [*fw.METHODS, *fw.RACES]
    for name, race in fw.RACES.items():
        row = rows.pop(name)
        assert tuple(row["runtimes"]) == race.runtimes
        assert row["description"] == (race.__doc__ or "").split("\n")[0]
        assert row["options"] == vars(race())
    for name, row in rows.items():
        plan = fw.plan(name, k=3, batches=20)
        assert tuple(row["delays"]) == plan.delays
        assert set(row["locks"]) == plan.locks
        assert row["description"] == (fw.METHODS[name].__doc__ or "").split("\n")[0]
    assert rows["fdg"]["options"] == {"shrink": 1.0, "order": "backward", "step_size": "update"}
    assert rows["bp"]["options"] == {}
    assert rows["bp"]["order"] is None
    assert rows["dsp"]["weights"] == "recompute"


# ---- plan ----

PLANS = [
    (["fdg", "--stages", "3"], fw.plan("fdg", k=3)),
    (["bp", "-k", "1", "--batches", "2"], fw.plan("bp", k=1, batches=2)),
    (["gpipe", "-k", "2", "-o", "micro=3", "--batches", "1"], fw.plan("gpipe", k=2, batches=1, micro=3)),
    (["fdg", "-k", "2", "-o", "shrink=0.5", "-o", "order=forward"], fw.plan("fdg", k=2, order="forward")),
    (["dsp", "-k", "3", "-o", "p=1,1,0", "-o", "m=4,2,0"], fw.plan("dsp", k=3, p=(1, 1, 0), m=(4, 2, 0))),
    (["pipemare", "-k", "4", "-o", "decay=none", "--batches", "12"], fw.plan("pipemare", k=4, batches=12)),
    (
        ["pipeline", "-k", "2", "-o", "delays=2,0", "-o", "queues=3/3", "-o", "turns=no"],
        fw.plan("pipeline", k=2, delays=(2, 0), queues=((3, 3),)),
    ),
]


@pytest.mark.parametrize(("arguments", "plan"), PLANS)
def test_plan_prints_the_drawing_as_it_is(arguments: list[str], plan: fw.Plan):
    text = good("plan", *arguments)
    assert text.startswith(f"{plan}\n\n")
    assert f"delays      {' '.join(map(str, plan.delays))}\n" in text
    assert len(text.split("queues to the next stage\n")[1].splitlines()) == len(plan.delays)


@pytest.mark.parametrize(("arguments", "plan"), PLANS)
def test_plan_text_prints_every_action(arguments: list[str], plan: fw.Plan):
    assert good("plan", *arguments, "--text") == f"{plan.text()}\n"


def test_facts_of_a_short_plan_are_those_of_a_long_one():
    """One batch alone would look as if every lock were held."""
    short, long = (good("plan", "pipedream", "-k", "2", "--batches", n).split("\n\n", 1)[1] for n in ("1", "9"))
    assert short == long
    assert "locks left  none" in short
    held = fw.plan("pipedream", k=2, batches=20).memory()[0]
    assert f"\n0      0       {held.graphs}       {held.weights}              2 activations, 2 gradients\n" in short


# ---- bench ----


def test_bench_speed_prints_tables_and_writes_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    part = {
        "rows": [{"name": "pipedream", "seconds": 0.25, "images_per_second": 1234.5, "kind": "threads"}],
        "bookkeeping": 0.012,
        "tracing": {"threads": 0.004},
        "processes": 1.5,
        "compiled": {"sequential": 1.8, "bp_all_cores": 1.3},
        "ratios": {"sequential": 1.75, "bp_all_cores": 1.25, "torch_pipelining": 2.5, "moon": 3.0},
    }
    asked: dict[str, Any] = {}

    def speed(*, batch_sizes: tuple[int, ...] = (64, 4), repeats: int = 5, log: Any = print) -> dict[str, Any]:
        asked.update(repeats=repeats)
        log("one moment")
        return {str(size): part for size in batch_sizes}

    monkeypatch.setattr(importlib.import_module("freewheel.bench"), "speed", speed)
    file = tmp_path / "speed.json"
    result = run("bench", "speed", "--repeats", "2", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert asked == {"repeats": 2}
    assert result.stderr == "one moment\n"
    for words in ("batches of 64 images", "batches of 4 images", "pipedream", "0.2500", "1,234", "1.75 times as fast"):
        assert words in result.stdout
    assert "2.50 times as fast as torch.distributed.pipelining" in result.stdout
    assert "3.00 times as fast as moon" in result.stdout
    assert "In processes a method is 1.50 times as fast as on threads." in result.stdout
    assert "Compiled stages are 1.30 times as fast as compiled PyTorch on all cores." in result.stdout
    assert "A trace makes a step 0.4% longer on threads." in result.stdout
    assert f"wrote {file}" in result.stdout
    assert json.loads(file.read_text()) == {"64": part, "4": part}


# ---- options ----


def test_options_are_read():
    pairs = ["a=1", "b=-0.5", "c=none", "d=1,1,0", "e=2,", "f=3/2,2/2", "g=forward", "h=Yes", "i=1e3", "j = 4"]
    assert read_options(pairs) == {
        "a": 1, "b": -0.5, "c": None, "d": (1, 1, 0), "e": (2,), "f": ((3, 2), (2, 2)), "g": "forward", "h": True,
        "i": 1000.0, "j": 4,
    }  # fmt: skip
    assert read_options([]) == {}


@pytest.mark.parametrize("name", [*fw.METHODS, *fw.RACES])
def test_completed_options_are_those_of_the_same_method(name: str):
    assert find_method(name, complete_options(name, ())) == fw.method(name)


def test_typed_options_stay_as_they_are():
    typed = ("credit=forward", "delays=1,0", "title=x")
    whole = complete_options("pipeline", typed)
    assert whole[:3] == typed
    assert complete_options("pipeline", whole) == whole
    assert find_method("pipeline", whole) == find_method("pipeline", typed)


# ---- errors ----

ERRORS = [
    ("plan pipedreem -k 2", "unknown method 'pipedreem': did you mean 'pipedream'?"),
    ("plan fdg -k 0", "--stages=0: give 1 or more"),
    ("plan fdg -k 2 --batches 0", "--batches=0: give 1 or more"),
    ("plan fdg -k 2 -o shrink", "-o shrink: write NAME=VALUE, such as -o shrink=0.5"),
    ("plan fdg -k 2 -o =1", "-o =1: write NAME=VALUE"),
    ("plan fdg -k 2 -o shrink=", "-o shrink=: write NAME=VALUE"),
    ("plan fdg -k 2 -o shrink=1 -o shrink=2", "'shrink' is given twice"),
    ("plan fdg -k 2 -o shrnk=1", "did you mean 'shrink'?"),
    ("plan fdg -k 2 -o shrink=7", "7"),
    ("plan fdg -k 2 -o order=sideways", "unknown order 'sideways'"),
    ("plan fdg -k 2 -o name=x", "no method has an option 'name'"),
    ("plan dsp -k 2 -o p=1,1,0 -o m=4,2,0", "are for 3 stages, but there are 2"),
    ("plan dsp -k 2 -o p=1,x -o m=4,0", "-o p=1,x: 'x' is not a whole number"),
    ("plan dsp -k 2 -o p=1,0", "give both, or neither"),
    ("plan dsp -k 3 -o p=1,1,0 -o m=2,2,0", "violates q_k > 0"),
    ("plan gpipe -k 2 -o micro=2.5", "give a whole number"),
    ("plan pipeline -k 2", "delays"),
    ("plan pipeline -k 2 -o delays=0,1", "delays must never increase"),
    ("train --method pipedreem", "did you mean 'pipedream'?"),
    ("train -o shrink=0.5", "unknown option of method 'pipedream'"),
    ("train --data digit", "did you mean 'digits'?"),
    ("train --data mnist", "give --data-root, the folder that holds MNIST"),
    ("train --data cifar10 --data-root /no/such/folder", "/no/such/folder is not a folder"),
    ("train --model digits-cnm", "did you mean 'digits-cnn'?"),
    ("train --runtime thread", "did you mean 'threads'?"),
    ("train --optimizer sdg", "did you mean 'sgd'?"),
    ("train --schedule cosinus", "did you mean 'cosine'?"),
    ("train --optimizer adam --momentum 0.5", "--momentum 0.5: adam has none"),
    ("train --stages 0", "--stages=0: give 1 or more"),
    ("train --stages 1000 --split parameters", "k=1000"),
    ("train --epochs 0", "--epochs=0: give 1 or more"),
    ("train --threads 0", "--threads=0: give 1 or more"),
    ("train --limit 0", "--limit=0: give 1 or more"),
    ("train --seed -1", "--seed=-1: give 0 or more"),
    ("train --batch-size 0", "batch_size=0: give 1 or more"),
    ("train --slack -1 --at pool", "slack=-1"),
    ("train --clip 0 --at pool", "clip=0.0"),
    ("train --slow 0:0.3", "--slow 0:0.3: write STAGE:PROBABILITY:FACTOR"),
    ("train --slow 0:0.3:x", "--slow 0:0.3:x: write STAGE:PROBABILITY:FACTOR"),
    ("train --slow 5:0.3:1 --stages 2", "--slow has stage 5, but the stages are 0 to 1"),
    ("train --slow 0:0.3:1 --slow 0:1:1", "--slow 0:1:1: stage 0 is given twice"),
    ("train --slow 0:3:1", "--slow[0]: the probability is 3, give one from 0 to 1"),
    ("train --lr -1 --at pool", "learning rate"),
    ("train --split weight", "unknown by 'weight'"),
    ("train --at pool --split time", "both say where to cut"),
    ("train --at pool --stages 4", "so that makes 2"),
    ("train --at poool", "'pool'"),
    ("train --json /no/such/folder/run.json", "--json /no/such/folder/run.json: there is no folder /no/such/folder"),
    ("train --save /no/such/folder/net.pt", "--save /no/such/folder/net.pt: there is no folder"),
    ("train --json /", "--json /: that is a folder"),
    ("train --data synthetic --augment", "'synthetic' has no augmentation"),
    ("bench straggler --repeats 0", "--repeats=0: give 1 or more"),
    ("bench straggler --batches 0", "--batches=0: give 1 or more"),
    ("bench straggler --json /", "--json /: that is a folder"),
    ("bench speed --repeats 0", "--repeats=0: give 1 or more"),
    ("bench speed --json /no/such/folder/speed.json", "there is no folder"),
]


@pytest.mark.parametrize(("line", "words"), ERRORS, ids=[line for line, _ in ERRORS])
def test_errors_are_one_line(line: str, words: str):
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_refused_plan_is_drawn():
    result = run("plan", "pipeline", "-k", "2", "-o", "delays=4,0", "-o", "queues=1/1")
    assert result.exit_code == 2
    first, *drawing = result.stderr.splitlines()
    assert first == "error: plan refused at stage 0, a3>: it waits forever: the queue to stage 1 stays full"
    assert drawing[0].startswith("plan pipeline: delays=4,0 queues=1/1")
    assert any(set(line.strip()) == {"^"} for line in drawing)


USAGE = [
    ("train --frobnicate", "Unknown option: --frobnicate."),
    ("train --epohcs 3", "Unknown option: --epohcs. Did you mean --epochs?"),
    ("train --epochs x", "--epochs x: give a whole number. See freewheel train --help"),
    ("train --lr big", "--lr big: give a number. See freewheel train --help"),
    ("train --epochs", "--epochs: give a value. See freewheel train --help"),
    ("train stray", "Unused Tokens: ['stray']."),
    ("plan", "METHOD: give a value. See freewheel plan --help"),
    ("plan fdg", "--stages: give a value. See freewheel plan --help"),
    ("plan fdg -k two", "-k two: give a whole number."),
    ("bench speed --repeats x", "--repeats x: give a whole number. See freewheel bench speed --help"),
    ("bench fly", 'Unknown command "fly".'),
    ("trian", 'Unknown command "trian". Did you mean "train"?'),
]


@pytest.mark.parametrize(("line", "words"), USAGE, ids=[line for line, _ in USAGE])
def test_wrong_usage_is_one_line(line: str, words: str):
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {words}")
    assert result.stderr.count("\n") == 1


def test_of_an_option_that_is_typed_twice_the_last_counts():
    assert good("plan", "fdg", "-k", "2", "-k", "3") == good("plan", "fdg", "--stages", "3")


def test_a_reader_that_has_left_gets_no_traceback():
    command = [sys.executable, "-m", "freewheel.cli", "plan", "fdg", "-k", "3"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_debug_lets_the_error_through():
    with pytest.raises(ValueError, match="did you mean 'pipedream'"):
        run("--debug", "plan", "pipedreem", "-k", "2")


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("freewheel.cli._plan.find_method", stop)
    result = run("plan", "fdg", "-k", "2")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
