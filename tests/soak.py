"""Soak test: workers are killed at random moments, and each run resumes from its last checkpoint to the same bits.

`python tests/soak.py 50` runs trials until there were 50 kills and prints each result; `test_soak.py` has a few.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

import freewheel as fw
from checkpoints import everything, numbers, same
from rows import OPTIMIZERS, ROWS, batches, network, trainer

EPOCHS = 3


class Trial(NamedTuple):
    """The result of a trial: the run, how often it was killed and resumed, and whether it equals one without kills."""

    name: str
    kills: int
    resumed: int
    equal: bool


class Deadly:
    """Batches with a short delay each; shortly after the given one, counted over all epochs, a worker is killed."""

    def __init__(self, data: list[tuple[Tensor, Tensor]], at: int | None, draw: random.Random) -> None:
        self._data, self._at, self._draw = data, at, draw
        self._count = 0
        self._timers: list[threading.Timer] = []

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self):
        for batch in self._data:
            time.sleep(0.02)
            if self._count == self._at:
                self._timers.append(threading.Timer(self._draw.uniform(0, 0.03), kill_one, [self._draw.random()]))
                self._timers[-1].start()
            self._count += 1
            yield batch

    def disarm(self) -> None:
        """Return when no kill is to come: it would hit a worker of the next run."""
        for timer in self._timers:
            timer.join()


def trial(seed: int, kills: int = 1) -> Trial:
    """A run with a random method, number of stages and interval, killed a number of times."""
    draw = random.Random(seed)
    row, k, every = draw.choice(ROWS), draw.choice([2, 3, 4]), draw.choice([1, 2, 3, 5, "epoch"])
    options = {"optimizer": OPTIMIZERS[draw.choice(["sgd", "adam"])]}
    name = f"{row} K={k}, saved every {every}"
    plain = trainer(network(k), row.make(k), **options)
    expected = plain.fit(batches(10), epochs=EPOCHS)
    killed = resumed = 0
    with tempfile.TemporaryDirectory() as folder:
        while True:
            saved = any(Path(folder).glob("checkpoint-*"))
            make = partial(fw.Trainer.resume, folder) if saved else fw.Trainer
            resumed += saved
            made = trainer(network(k, seed=9 if saved else 0), row.make(k), make=make, runtime="processes", **options)
            loader = Deadly(batches(10), draw.randrange(10 * EPOCHS) if killed < kills else None, draw)
            try:
                history = made.fit(loader, epochs=EPOCHS, save_to=folder, save_every=every)
                break
            except fw.LostError:
                killed += 1
            finally:
                loader.disarm()
    equal = same(everything(made), everything(plain)) and numbers(history) == numbers(expected)
    return Trial(name, killed, resumed, equal)


def kill_one(which: float) -> None:
    """Kill one of the workers, if there are any."""
    there = sorted(workers())
    if there:
        os.kill(there[int(which * len(there))], signal.SIGKILL)


def workers() -> set[int]:
    """The worker processes started by this one, through multiprocessing's fork server."""
    server = forkserver._forkserver._forkserver_pid
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if server is not None and int(state[1]) == server and state[0] != "Z":
            found.add(int(path.parent.name))
    return found


def main() -> None:
    wanted, kills, wrong, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 50, 0, 0, 0
    began = time.monotonic()
    while kills < wanted:
        found = trial(seed)
        seed += 1
        kills += found.kills
        wrong += not found.equal
        word = "the same bits" if found.equal else "OTHER BITS"
        how = f"killed {found.kills}, resumed {found.resumed}" if found.kills else "ended before it was killed"
        print(f"{kills:3}/{wanted}  {found.name}: {how}, {word}", flush=True)
    print(f"{seed} runs, {kills} kills, {wrong} with other bits, {time.monotonic() - began:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
