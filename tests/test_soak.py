"""A few trials of `make soak`, and a restart by torchrun."""

from __future__ import annotations

import re

import pytest

from soak import trial
from spread import exhaustive, rarely
from test_torchrun import torchrun


@pytest.mark.parametrize("seed", [1000, 1001, rarely(1002), rarely(1003)])
def test_a_killed_run_resumes_to_the_same_bits(seed):
    found = trial(seed, kills=2)
    assert found.kills <= 2
    assert found.equal, found


RESTARTS = """
import os, signal, sys
from functools import partial
import torch
from checkpoints import everything, numbers, same
from rows import batches, network, trainer

class Loader:
    passes = 0
    def __iter__(self):
        self.passes += 1
        for n, batch in enumerate(batches(10)):
            if self.passes == 2 and n == 6 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

made = trainer(network(2), "fdg", runtime="torchrun", timeout=30)
history = made.fit(Loader(), epochs=2, save_to=sys.argv[1], save_every=2)
plain = trainer(network(2), "fdg")
expected = plain.fit(batches(10), epochs=2)
ok = same(everything(made), everything(plain)) and numbers(history) == numbers(expected)
began = "resumed" if made.resumed_from else "started over"
print(f"rank {os.environ['RANK']} {began} {'the same' if ok else 'other bits'}.", flush=True)
"""


@exhaustive
def test_torchrun_restarts_a_killed_run_from_its_last_checkpoint(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RESTARTS)
    done = torchrun("--nproc-per-node=2", "--max-restarts=1", str(script), str(tmp_path / "saved"))
    found = sorted(re.findall(r"rank \d .*?\.", done.stdout))
    assert found == ["rank 0 resumed the same.", "rank 1 resumed the same."], done.stdout[-3000:]
