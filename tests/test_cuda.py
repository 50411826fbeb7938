"""Stages on GPUs: the same promise, on the same device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import freewheel as fw
from rows import ROWS, batches, network, same_bits, tensors, trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_threads_equal_simulate_on_one_gpu(row):
    results = []
    for runtime in ("simulate", "threads"):
        stages = [stage.cuda() for stage in network(3)]
        history = trainer(stages, row.make(3), runtime=runtime).fit(batches(), epochs=2, validate=batches(3))
        results.append((tensors(*stages), history.losses, history.metrics))
    assert same_bits(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


def test_stages_may_sit_on_different_devices():
    devices = [f"cuda:{i % torch.cuda.device_count()}" for i in range(2)] + ["cpu"]
    for runtime in fw.RUNTIMES:
        stages = [stage.to(device) for stage, device in zip(network(3), devices)]
        made = trainer(stages, "pipedream", runtime=runtime)
        made.fit(batches(8))
        assert made.evaluate(batches(2)).samples == 18


def test_autocast_and_convolutions_on_a_gpu():
    for runtime in fw.RUNTIMES:
        stages = [nn.Conv2d(3, 8, 3).cuda(), nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 3)).cuda()]
        loader = [(torch.randn(4, 3, 8, 8), torch.randint(3, (4,))) for _ in range(6)]
        trainer(stages, "fdg", runtime=runtime, autocast=torch.bfloat16).fit(loader)
