"""The `graph` runtime: CUDA graphs compute what `simulate` computes, bit for bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from freewheel import plan
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
CAPTURED = [
    row for row in ROWS if plan(row.make(3), k=3).schedule.credit.name in ("chain", "aligned", "local", "feedback")
]
CAPTURED = [row for row in CAPTURED if row.name != "dgl-replay"]


def trained(method, runtime, k=3, epochs=2, **options):
    stages = [stage.cuda() for stage in network(k)]
    schedule = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=60)
    made = trainer(stages, method, runtime=runtime, scheduler=schedule, **options)
    history = made.fit(batches(30), epochs=epochs, validate=batches(3))
    return tensors(*stages), history.losses, history.metrics


@needs_cuda
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("row", CAPTURED, ids=str)
def test_graph_equals_simulate_bit_for_bit(row, optimizer):
    wanted, found = (
        trained(row.make(3), runtime, optimizer=OPTIMIZERS[optimizer]) for runtime in ("simulate", "graph")
    )
    assert same_bits(wanted[0], found[0])
    assert wanted[1:] == found[1:]


def test_it_needs_a_gpu():
    with pytest.raises(ValueError, match=r"runtime='graph' with stages on cpu: it needs all stages on one CUDA device"):
        trainer(network(2), "pipedream", runtime="graph").fit(batches(3))
