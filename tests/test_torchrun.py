"""The same program under torchrun: the same bits in every process, and one clear error when one of them fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def torchrun(*arguments: str, timeout: float = 200, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Starts torchrun on this host; both outputs together."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, timeout=timeout, env=env, cwd=cwd, **pipes)


def test_torchrun_equals_simulate_bit_for_bit_and_refuses_what_differs():
    """One start for two transports and for trainers that are not the same on both ranks."""
    tasks = ("auto", "25", "/", "gloo", "14", "ddg", "fdg", "/", "refusals")
    done = torchrun("--nproc-per-node=2", str(HERE / "torchrun_rows.py"), *tasks)
    check_done(done.stdout, ranks=2)
    for rank in range(2):
        told = [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank} says")]
        assert len(told) == 4, done.stdout[-3000:]
        assert "torchrun started 2 processes for 3 stages: each stage needs one, so start 3" in told[0]
        assert "threads=2 on rank 1, but 1 on rank 0: every process must make the same trainer" in told[1]
        assert "seed=1 on rank 1, but 0 on rank 0" in told[2]
        assert "the stages of rank 1 are not those of rank 0: fw.split measures" in told[3]


def test_four_processes_equal_simulate_bit_for_bit():
    check_done(torchrun("--nproc-per-node=4", str(HERE / "torchrun_rows.py"), "auto", "25").stdout, ranks=4)


def check_done(text: str, *, ranks: int) -> None:
    """Every rank came to the end of `torchrun_rows.py` and found no difference."""
    told = sorted(line for line in text.splitlines() if re.fullmatch(r"rank \d(?: done|: .*)", line))
    assert told == [f"rank {r} done" for r in range(ranks)], text[-3000:]


FAILS = """
import os, re, signal, sys, time
from torch import nn
from rows import batches, network, trainer

class Trouble(nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 5 and os.environ["RANK"] == "1":
            if "{what}" == "raises":
                raise KeyError("boom")
            os.kill(os.getpid(), signal.SIG{what})
        return x

stages = network(2)
stages[1] = nn.Sequential(stages[1], Trouble())
try:
    trainer(stages, "pipedream", runtime="torchrun", timeout={timeout}, transport="{transport}").fit(batches(30))
except Exception as error:
    sys.stdout.write(f"rank {{os.environ['RANK']}} says {{type(error).__name__}}: {{error}}\\n")  # in one piece
    sys.stdout.flush()
    if os.environ["RANK"] == "1":
        time.sleep(3)  # torchrun ends all when the first one ends
    else:
        stopped = re.search("rank 1, pid ([0-9]+)", str(error))
        os.kill(int(stopped[1]), signal.SIGKILL)  # for which torchrun would wait long
    os._exit(3)
"""


@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "raises",
            r"StageError: stage 1 \(rank 1, pid \d+ on \S+\) failed in the forward of batch 4: KeyError: 'boom'",
        ),
        ("STOP", r"LostError: stage 1 \(rank 1, pid \d+ on \S+\) has given no sign of life for 2.1 s"),
    ],
)
def test_all_ranks_name_the_one_in_trouble(tmp_path, what, words, transport):
    script = tmp_path / "script.py"
    timeout = 60 if what == "raises" else 3  # only who is lost is waited for
    script.write_text(FAILS.format(what=what, transport=transport, timeout=timeout))
    done = torchrun("--nproc-per-node=2", str(script))
    assert done.returncode != 0
    told = [line for line in done.stdout.splitlines() if line.startswith("rank 0 says")]
    assert told, done.stdout[-3000:]
    assert re.search(words, told[0])
