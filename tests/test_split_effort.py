"""Splitting takes work in proportion to the model, and a signal stops it. Work is counted, not timed."""

from __future__ import annotations

import importlib
import signal
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from freewheel.split import split

WORK: Counter[str] = Counter()
values = importlib.import_module("freewheel.split._values")


class Norm(nn.Module):
    """Reads parameters and buffers itself, as many libraries' fused layers do."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, self.training)


class BranchesOnMode(Norm):
    def forward(self, x):
        if self.training:
            self.mean.add_(1)
        return super().forward(x)


class SkipsInEvaluation(Norm):
    def forward(self, x):
        return super().forward(x) if self.training else x


class BranchesOnData(Norm):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


class BranchesOnDataInEvaluation(Norm):
    def forward(self, x):
        return x + 1 if self.training or x.sum() > 0 else x


class Noise(Norm):
    def forward(self, x):
        return x + self.weight * torch.randn(3)


class Chain(nn.Module):
    """A model that is no Sequential, and counts the runs of its forward and the searches for its tensors."""

    def __init__(self, *blocks):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(3, 3), nn.ModuleList(blocks), nn.Linear(3, 3)

    def forward(self, x):
        WORK["forward"] += 1
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def named_parameters(self, *args, **kwargs):
        WORK["search"] += 1
        return super().named_parameters(*args, **kwargs)

    def named_buffers(self, *args, **kwargs):
        WORK["search"] += 1
        return super().named_buffers(*args, **kwargs)


def work_of(block, count, **options):
    model = Chain(*(block() for _ in range(count)))
    WORK.clear()
    stages = split(model, 2, by="parameters", **options)
    return Counter(WORK), sum(stages.report.names, ())


BLOCKS = [Norm, BranchesOnMode, SkipsInEvaluation, BranchesOnData, BranchesOnDataInEvaluation, Noise]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_deeper_model_is_traced_and_searched_no_more_often(block):
    shallow, _ = work_of(block, 3)
    deep, names = work_of(block, 24)
    assert deep == shallow
    assert ("blocks.23" in names) == (block is not Norm)  # all but the plain one are kept whole


def test_writes_are_looked_for_only_where_a_call_can_write(monkeypatch):
    real = values._versions
    looks = Counter()

    def counted(value):
        looks[depth] += 1
        return real(value)

    monkeypatch.setattr(values, "_versions", counted)
    for depth in (10, 20, 40):
        work_of(Norm, depth, example=torch.randn(4, 3))
    assert looks[40] - looks[20] == 2 * (looks[20] - looks[10])


class Interrupted(nn.Module):
    """Receives a signal when it is traced, or when it is called."""

    def __init__(self, *, traced):
        super().__init__()
        self.traced, self.fc = traced, nn.Linear(3, 3)

    def forward(self, x):
        if isinstance(x, fx.Proxy) == self.traced:
            signal.raise_signal(signal.SIGUSR1)
        return self.fc(x) * 2


class StopNow(BaseException):
    pass


class Watchdog:
    def expire(self, number, frame):
        signal.signal(number, signal.SIG_DFL)
        raise TimeoutError


def stop(number, frame):
    raise StopNow


def fail(*args):
    raise RuntimeError


HANDLERS = [
    (signal.default_int_handler, KeyboardInterrupt),
    (Watchdog().expire, TimeoutError),
    (stop, StopNow),
    (fail, RuntimeError),
]


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("wrap", [Chain, lambda module: module], ids=["submodule", "model"])
@pytest.mark.parametrize(("handler", "error"), HANDLERS, ids=[error.__name__ for _, error in HANDLERS])
def test_what_a_signal_handler_raises_gets_through(handler, error, wrap, traced):
    model, call = wrap(Interrupted(traced=traced)), nn.Module.__call__
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(error):
            split(model, 2, by="parameters", example=torch.randn(4, 3))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert nn.Module.__call__ is call
    assert model.training


def test_errors_of_the_model_are_still_told_from_signals():
    class Fails(nn.Module):
        def forward(self, x):
            return fail(1, x)

    with pytest.raises(ValueError, match=r"example: model\(example\) failed in training mode with RuntimeError"):
        split(Chain(Fails()), 2, by="parameters", example=torch.randn(4, 3))
    with pytest.raises(ValueError, match=r"Fails.forward cannot be traced"):
        split(Fails(), 2, by="parameters")
