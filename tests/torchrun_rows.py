"""Started by torchrun: rows of the table, against `simulate`. Prints one line for each difference, and `done`.

Arguments: the transport, the number of batches, and the rows; all of them if none is named. `stop` among them is a run
that a callback ends. With `nccl` the stages
are on GPUs, or all on the only one. After a `/` more of them follow. `refusals` in their place tries trainers that
differ between two processes, and prints what is said to them.
"""

from __future__ import annotations

import hashlib
import os
import sys

import torch
from torch import Tensor

import freewheel as fw
from freewheel.runtime import of_rank_0
from rows import OPTIMIZERS, ROWS, Row, batches, network, same_bits, tensors, trainer


def say(line: str) -> None:
    """Prints a line in one piece, whatever other processes print."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def digest(weights: list[Tensor]) -> str:
    """A text that stands for all bits of some tensors."""
    return hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in weights)).hexdigest()


def simulated(
    row: Row, k: int, data: list[tuple[Tensor, Tensor]], device: str
) -> tuple[str, list[float], list[float | None]]:
    """What a row must come to."""
    stages = [stage.to(device) for stage in network(k)]
    history = trainer(stages, row.make(k)).fit(data, epochs=2, validate=batches(3, seed=9))
    return digest(tensors(*stages)), history.losses, history.metrics


def refusals(rank: int) -> None:
    """Trainers of too many stages, of other threads, another seed and another network on rank 1."""
    other, two = network(2), network(2)
    other[rank] = network(2)[0]
    for stages, options in ((network(3), {}), (two, {"threads": 1 + rank}), (two, {"seed": rank}), (other, {})):
        try:
            trainer(stages, "pipedream", runtime="torchrun", **options).fit(batches(2))
        except ValueError as error:
            say(f"rank {rank} says {error}")


def compare(rank: int, k: int, transport: str, count: str, *names: str) -> None:
    """Prints a line for each row whose outcome is another than that of `simulate`."""
    data = batches(int(count))
    device = f"cuda:{rank % torch.cuda.device_count()}" if transport == "nccl" else "cpu"
    if transport == "nccl":
        os.environ["NCCL_HOSTID"] = f"{rank}"  # else NCCL refuses two processes on one GPU
    for row in ROWS:
        if names and row.name not in names:
            continue
        stages = [stage.to(device) for stage in network(k)]
        made = trainer(stages, row.make(k), runtime="torchrun", transport=transport, timeout=60)
        history = made.fit(data, epochs=2, validate=batches(3, seed=9))
        weights, losses, metrics = of_rank_0(row.name, lambda row=row: simulated(row, k, data, device))
        if digest(tensors(*stages)) != weights:
            say(f"rank {rank}: {row} has other weights")
        if (history.losses, history.metrics) != (losses, metrics):
            say(f"rank {rank}: {row} has another history")
    if not names or "stop" in names:
        stop_at_a_cut(rank, k)


def stop_at_a_cut(rank: int, k: int) -> None:
    """The same for a run that a callback ends."""
    outcome = []
    for runtime in ("simulate", "torchrun"):
        stages = network(k)
        made = trainer(stages, fw.FDG(), runtime=runtime, optimizer=OPTIMIZERS["adam"])
        history = made.fit(batches(8), epochs=5, callbacks=[lambda end: end.record.epoch == 1])
        made.fit(batches(3))
        outcome.append((tensors(*stages), history.stopped, history.batches))
    if not same_bits(outcome[0][0], outcome[1][0]) or outcome[0][1:] != outcome[1][1:]:
        say(f"rank {rank}: stopping at a cut has another outcome")


def main() -> None:
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for task in " ".join(sys.argv[1:]).split(" / "):
        if task == "refusals":
            refusals(rank)
        else:
            compare(rank, k, *task.split())
    say(f"rank {rank} done")


if __name__ == "__main__":
    main()
