"""Started by torchrun: rows of the table, against `simulate`. Prints one line for each difference, and `done`.

Arguments: the transport, the number of batches, and the rows; all of them if none is named.
"""

from __future__ import annotations

import os
import sys

import freewheel as fw
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer


def main() -> None:
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    transport, count, *names = sys.argv[1:]
    data = batches(int(count))
    for row in ROWS:
        if names and row.name not in names:
            continue
        stages = network(k)
        made = trainer(stages, row.make(k), runtime="torchrun", transport=transport, timeout=60)
        history = made.fit(data, epochs=2, validate=batches(3, seed=9))
        expected = network(k)
        watched = trainer(expected, row.make(k)).fit(data, epochs=2, validate=batches(3, seed=9))
        if not same_bits(tensors(*stages), tensors(*expected)):
            print(f"rank {rank}: {row} has other weights", flush=True)
        if (history.losses, history.metrics) != (watched.losses, watched.metrics):
            print(f"rank {rank}: {row} has another history", flush=True)
    if names:
        print(f"rank {rank} done", flush=True)
        return
    outcome = []
    for runtime in ("simulate", "torchrun"):
        stages = network(k)
        made = trainer(stages, fw.FDG(), runtime=runtime, optimizer=OPTIMIZERS["adam"])
        history = made.fit(batches(8), epochs=5, callbacks=[lambda end: end.record.epoch == 1])
        made.fit(batches(3))
        outcome.append((tensors(*stages), history.stopped, history.batches))
    if not same_bits(outcome[0][0], outcome[1][0]) or outcome[0][1:] != outcome[1][1:]:
        print(f"rank {rank}: stopping at a cut has another outcome", flush=True)
    print(f"rank {rank} done", flush=True)


if __name__ == "__main__":
    main()
