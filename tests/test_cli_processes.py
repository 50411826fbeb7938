"""`freewheel train` on several processes, its own and torchrun's: the same weights, and one voice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import freewheel as fw
from freewheel.checkpoint import _writer
from freewheel.cli._settings import resolve
from freewheel.cli._train_options import TrainOptions
from spread import exhaustive
from test_cli_resume import cut_off, same_files
from test_cli_train import good, run
from test_torchrun import torchrun

BRIEF = ("--epochs", "2", "--limit", "200", "--no-compare")


def test_processes_give_the_weights_of_simulate_and_go_on_with_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(_writer, "RETAINED", 99)
    folder, whole, resumed = tmp_path / "run", tmp_path / "whole.pt", tmp_path / "resumed.pt"
    small = (*BRIEF, "--at", "pool", "--threads", "1", "-q")
    good(*small, "--runtime", "simulate", "--save", str(whole))
    good(*small, "--runtime", "processes", "--save-to", str(folder), "--save-every", "3")
    cut_off(folder, 3)
    stdout = good("--resume", str(folder), "--no-compare", "--save", str(resumed))
    assert "runtime  processes: 2 stages, 1 thread each" in stdout
    assert same_files(whole, resumed)


# A whole run; the rest of one, from its middle; then errors of one process and of both.
SCRIPT = """
import os, time
from pathlib import Path
import freewheel as fw
from freewheel.checkpoint import _writer
from freewheel.cli._app import command_line
from freewheel.runtime import of_rank_0
from test_cli_resume import cut_off

_writer.RETAINED = 99
rank = os.environ["RANK"]
measured = fw.split

def split(model, k, **options):
    assert rank == "0" or options["balance"] or k == 1, "rank 0 decides where to cut"
    return measured(model, k, **options)

def train(*arguments):
    return command_line(["train", *arguments])

fw.split = split
brief = ["--epochs", "2", "--limit", "200", "--no-compare"]
train(*brief, "--save-to", "run", "--save-every", "3", "--save", "whole.pt", "--json", "whole.json")
of_rank_0("cut off", lambda: cut_off(Path("run"), 3))
train("--resume", "run", "--no-compare", "-q", "--save", "resumed.pt")
train(*brief, "--replicas", "2", "--threads", "1", "-q", "--save", "replicas.pt")
assert train(*brief, "--method", "asyncfgd", "--trace", "--threads", "1", "-q", "--run-dir", "forward") == 0
if rank == "1":
    assert train("--epochs", "-7") == 2
    Path("said").touch()
while not Path("said").exists():
    time.sleep(0.05)
assert train("--epochs", "-8") == 2
print(f"rank {rank} done", flush=True)
"""


@pytest.fixture(scope="module")
def under_torchrun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder in which torchrun has run the script with two processes, and what they printed."""
    folder = tmp_path_factory.mktemp("torchrun")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = torchrun("--nproc-per-node=2", str(script), cwd=folder)
    assert sorted(line for line in done.stdout.splitlines() if "done" in line) == ["rank 0 done", "rank 1 done"], (
        done.stdout[-3000:]
    )
    return folder, done.stdout.splitlines()


@exhaustive
def test_torchrun_gives_the_weights_of_simulate(under_torchrun, tmp_path):
    folder, _ = under_torchrun
    found = json.loads((folder / "whole.json").read_text())
    assert (found["runtime"], found["stages"]) == ("torchrun", 2)
    first = found["split"]["names"][1][0]
    threads = str(found["threads_per_stage"])
    whole = tmp_path / "whole.pt"
    good(*BRIEF, "--at", first, "--threads", threads, "--runtime", "simulate", "-q", "--save", str(whole))
    assert same_files(whole, folder / "whole.pt")
    assert same_files(whole, folder / "resumed.pt")


@exhaustive
def test_torchrun_divides_its_processes_among_replicas(under_torchrun, tmp_path):
    folder, _ = under_torchrun
    alone = (*BRIEF, "--replicas", "2", "--stages", "1", "--threads", "1", "--runtime", "simulate", "-q")
    good(*alone, "--save", str(tmp_path / "replicas.pt"))
    assert same_files(tmp_path / "replicas.pt", folder / "replicas.pt")


@pytest.mark.parametrize(("processes", "stages"), [(4, 2), (2, 1), (6, 3)])
def test_the_stages_are_the_processes_of_a_replica(processes, stages, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": processes, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert resolve(TrainOptions(replicas=2)).stages == stages
    with pytest.raises(ValueError, match=f"torchrun started {processes} processes for 7 stages in each of 2 replicas"):
        resolve(TrainOptions(replicas=2, stages=7))


@exhaustive
def test_torchrun_cuts_once_for_forward_gradients_and_its_run_has_a_trace(under_torchrun):
    """Rank 1 got the cut of rank 0 beside what to balance by, and refused to take both: the run failed."""
    run = fw.Run.open(under_torchrun[0] / "forward")
    assert run.status == "complete"
    trace = run.trace()
    for stage in range(2):
        updates = [(event.batch, event.version) for event in trace.events if (event.stage, event.name) == (stage, "U")]
        assert updates == [(n, n) for n in range(2 * 4)]


@exhaustive
def test_only_rank_0_speaks(under_torchrun):
    folder, lines = under_torchrun
    assert [line for line in lines if line.startswith("runtime")] == ["runtime  torchrun: 2 stages, 1 thread each"]
    assert sum(line.startswith("test accuracy") for line in lines) == 4
    wrote = [line.removeprefix("wrote ").partition(": ")[0] for line in lines if line.startswith("wrote")]
    runs = [place for place in wrote if place.startswith("runs/")]
    named = ["whole.json", "whole.pt", "resumed.pt", "replicas.pt", "forward"]
    assert [place for place in wrote if place not in runs] == named
    assert len(runs) == 3
    assert set(runs) == {str(place.relative_to(folder)) for place in (folder / "runs").iterdir()}


@exhaustive
def test_an_error_is_said_once_by_rank_0_or_by_the_only_one_to_meet_it(under_torchrun):
    _, lines = under_torchrun
    errors = [line for line in lines if "error" in line]
    assert sorted(errors) == ["error: --epochs=-8: give 1 or more", "rank 1: error: --epochs=-7: give 1 or more"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--runtime", "torchrun", "-k", "3"),
            "--runtime torchrun: torchrun has not started this; run torchrun --nproc-per-node 3 -m freewheel.cli train",
        ),
        (("--runtime", "process"), "unknown runtime 'process': did you mean 'processes'?"),
    ],
)
def test_runtimes_are_checked_before_anything_is_loaded(arguments, message):
    result = run(*arguments, "--data", "mnist")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")


def test_all_stages_in_each_of_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("freewheel.cli._app.reports_errors", lambda: True)
    result = run("--runtime", "threads", "--data", "mnist")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: --runtime threads under torchrun: every process would train all stages; leave --runtime out\n"
    )
