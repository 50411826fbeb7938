"""The same program under torchrun: the same bits in every process, and one clear error when one of them fails."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spread import exhaustive, rarely

HERE = Path(__file__).parent
SOME = ("bp", "gpipe", "ddg", "dsp", "pipemare", "accumulated", "asyncfgd-activations", "dgl-replay", "dni", "dfa")


def torchrun(*arguments: str, timeout: float = 200, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Starts torchrun on this host; both outputs together."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, timeout=timeout, env=env, cwd=cwd, **pipes)


@pytest.mark.parametrize("rows", [(*SOME, "stop"), rarely(())], ids=["some", "all"])
def test_torchrun_equals_simulate_bit_for_bit_and_refuses_what_differs(rows):
    """One start for two transports and for trainers that are not the same on both ranks."""
    tasks = ("auto", "16", *rows, "/", "gloo", "14", "ddg", "fdg", "/", "refusals")
    done = torchrun("--nproc-per-node=2", str(HERE / "torchrun_rows.py"), *tasks)
    check_done(done.stdout, ranks=2)
    for rank in range(2):
        told = [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank} says")]
        assert len(told) == 4, done.stdout[-3000:]
        assert "torchrun started 2 processes for 3 stages: each stage needs one, so start 3" in told[0]
        assert "threads=2 on rank 1, but 1 on rank 0: every process must make the same trainer" in told[1]
        assert "seed=1 on rank 1, but 0 on rank 0" in told[2]
        assert "the stages of rank 1 are not those of rank 0: fw.split measures" in told[3]


@exhaustive
def test_four_processes_equal_simulate_bit_for_bit():
    check_done(torchrun("--nproc-per-node=4", str(HERE / "torchrun_rows.py"), "auto", "16").stdout, ranks=4)


def check_done(text: str, *, ranks: int) -> None:
    """Every rank came to the end of `torchrun_rows.py` and found no difference."""
    told = sorted(line for line in text.splitlines() if re.fullmatch(r"rank \d(?: done|: .*)", line))
    assert told == [f"rank {r} done" for r in range(ranks)], text[-3000:]


FAILS = """
import os, re, signal, sys, threading, time
from pathlib import Path
from torch import nn
from rows import batches, network, trainer

RANK, WHAT, WHO, FOLDER = os.environ["RANK"], "{what}", "{who}", Path("{folder}")

class Trouble(nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 5 and RANK == WHO:
            if WHAT == "raises":
                raise KeyError("boom")
            if WHAT == "hangs":
                time.sleep(1000)
            os.kill(os.getpid(), getattr(signal, WHAT))
        return x

class Loader:
    def __iter__(self):
        for n, batch in enumerate(batches(30)):
            if n == 6 and WHAT == "raises" and RANK != WHO:  # busy here until the heartbeat has brought the error
                while any(t.name == "freewheel-heartbeat-0" for t in threading.enumerate()):
                    time.sleep(0.01)
            yield batch

stages = network({k})
stages = [nn.Sequential(stage, Trouble()) if str(k) == WHO else stage for k, stage in enumerate(stages)]
try:
    trainer(stages, "pipedream", runtime="torchrun", timeout={timeout}, transport="{transport}").fit(Loader())
except Exception as error:
    sys.stdout.write(f"rank {{RANK}} says {{type(error).__name__}}: {{error}}\\n")  # in one piece
    sys.stdout.flush()
    if {agent}:
        if RANK == WHO:
            while not FOLDER.joinpath("said").exists():  # torchrun ends all when the first one ends
                time.sleep(0.05)
        else:
            FOLDER.joinpath("said").touch()
            if WHAT == "SIGSTOP":
                os.kill(int(re.search("rank 1, pid ([0-9]+)", str(error))[1]), signal.SIGKILL)  # torchrun would wait
    os._exit(3)
"""
RAISED = r"StageError: stage {k} \(rank {k}, pid \d+ on \S+\) failed in the forward of batch 4: KeyError: 'boom'"


@pytest.mark.parametrize("transport", ["auto", rarely("gloo")])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raises", RAISED.format(k=1)),
        rarely("SIGSTOP", r"LostError: stage 1 \(rank 1, pid \d+ on \S+\) has sent no heartbeat for 4.2 s"),
    ],
    ids=["raises", "stops"],
)
def test_all_ranks_name_the_one_in_trouble(tmp_path, what, words, transport):
    script = tmp_path / "script.py"
    timeout = 60 if what == "raises" else 6  # only who is lost is waited for
    options = {"what": what, "who": 1, "k": 2, "folder": tmp_path, "agent": True}
    script.write_text(FAILS.format(transport=transport, timeout=timeout, **options))
    done = torchrun("--nproc-per-node=2", str(script))
    assert done.returncode != 0
    found = [line for line in done.stdout.splitlines() if line.startswith("rank 0 says")]
    assert found, done.stdout[-3000:]
    assert re.search(words, found[0])


@pytest.mark.parametrize(
    ("what", "who", "words"),
    [
        rarely("raises", 0, RAISED.format(k=0)),
        rarely("raises", 2, RAISED.format(k=2)),
        rarely("SIGKILL", 1, r"LostError: stage 1 \(rank 1, pid \d+ on \S+\) does not answer: it has ended"),
        rarely(
            "hangs", 1, r"LostError: stage 1 \(rank 1, pid \d+ on \S+\) hangs: it has been in the forward of batch 4"
        ),
    ],
    ids=["raises-0", "raises-2", "killed", "hangs"],
)
def test_all_name_it_without_an_agent_too(tmp_path, what, who, words):
    """Rank 0 serves the store itself, and every process ends as soon as it has raised."""
    script = tmp_path / "script.py"
    timeout = 6 if what == "hangs" else 60
    options = {"what": what, "who": who, "k": 3, "folder": tmp_path, "agent": False}
    script.write_text(FAILS.format(transport="auto", timeout=timeout, **options))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "OMP_NUM_THREADS": "1"}
    env = {**os.environ, **shared, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [subprocess.Popen([sys.executable, str(script)], env={**env, "RANK": f"{r}"}, **pipes) for r in range(3)]
    said = [rank.communicate(timeout=200)[0] for rank in ranks]
    for rank, text in enumerate(said):
        if rank != who:
            assert re.search(rf"rank {rank} says {words}", text), said
