"""Random combinations, run for real: each ends, and every forward and backward sees the version it was promised."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import freewheel as fw
from rows import LOCAL


class Watch(torch.autograd.Function):
    """Adds a weight, and notes which value of it the forward and the backward see."""

    @staticmethod
    def forward(ctx, x, weight, seen, batch):
        ctx.save_for_backward(weight)
        ctx.seen, ctx.batch = seen, batch
        seen.append(("F", batch, weight.item()))
        return x + weight

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        ctx.seen.append(("B", ctx.batch, weight.item()))
        return gradient, gradient.sum(), None, None


class Counter(nn.Module):
    """Its gradient is always 1, so that SGD with a step of -1 makes the weight count the versions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[str, int, float]] = []

    def forward(self, message):
        value, batch = message
        return Watch.apply(value, self.weight, self.seen, int(batch)), batch


pipelines = st.integers(1, 4).flatmap(
    lambda k: st.builds(
        dict,
        delays=st.lists(st.integers(0, 4), min_size=k, max_size=k).map(tuple),
        order=st.sampled_from(["forward", "backward"]),
        weights=st.sampled_from(["stash", "recompute", "current", "predict"]),
        turns=st.booleans(),
        queues=st.one_of(
            st.just(()),
            st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=k - 1, max_size=k - 1).map(tuple),
        ),
    )
)


@pytest.mark.parametrize("runtime", LOCAL)
@given(choices=pipelines, batches=st.integers(1, 9), slack=st.integers(0, 2))
def test_random_pipelines_end_and_see_the_promised_versions(runtime, choices, batches, slack):
    delays, weights = choices["delays"], choices["weights"]
    stages = [Counter() for _ in delays]
    try:
        trainer = fw.Trainer(
            stages,
            check=False,
            method=fw.Pipeline(**choices),
            loss=lambda out, target: out[0].sum(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0, maximize=True),
            runtime=runtime,
            threads=1,
            slack=slack,
        )
    except ValueError:
        return  # refused: an increasing delay, or queues too short
    loader = [((torch.zeros(()), torch.tensor(n)), torch.zeros(1)) for n in range(batches)]
    trainer.fit(loader)
    for stage, delay in zip(stages, delays):
        assert stage.weight.item() == batches
        first = choices["order"] == "backward" and delay > 0
        version = [max(0, n - delay + first) for n in range(batches)]
        ahead = [(delay - first) * (v > 0) if weights == "predict" else 0 for v in version]
        forwards = [(b, w) for kind, b, w in stage.seen if kind == "F"]
        backwards = [(b, w) for kind, b, w in stage.seen if kind == "B"]
        promised = [(n, version[n] + ahead[n]) for n in range(batches)]
        if weights == "recompute" and delay:
            redone = [(n, n) for n in range(batches)]
            assert sorted(forwards) == sorted(promised + redone)
        else:
            assert forwards == promised
        late = delay and weights in ("stash", "predict")
        assert backwards == (promised if late else [(n, n) for n in range(batches)])


class ForwardCounter(nn.Module):
    """The same for forward gradients: every tangent is 1, so that d is the number of stages."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, float]] = []

    def forward(self, message):
        value, batch = message
        self.seen.append((int(batch[0]), self.weight.item()))
        return value + self.weight, batch


forward_pipelines = st.integers(1, 4).flatmap(
    lambda k: st.builds(
        dict,
        delays=st.lists(st.integers(0, 4), min_size=k, max_size=k).map(tuple),
        order=st.sampled_from(["forward", "backward"]),
        micro=st.integers(1, 3),
        queues=st.one_of(
            st.just(()),
            st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=k - 1, max_size=k - 1).map(tuple),
        ),
    )
)


@pytest.mark.parametrize("runtime", LOCAL)
@given(choices=forward_pipelines, batches=st.integers(1, 9), slack=st.integers(0, 2))
def test_random_forward_pipelines_end_and_see_the_promised_versions(runtime, choices, batches, slack):
    delays = choices["delays"]
    stages = [ForwardCounter() for _ in delays]
    ones = fw.Forward(direction=lambda batch, stage, params: {name: torch.ones_like(p) for name, p in params.items()})
    try:
        trainer = fw.Trainer(
            stages,
            check=False,
            method=fw.Pipeline(credit=ones, **choices),
            loss=lambda out, target: out[0].mean(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1 / len(delays), maximize=True),
            runtime=runtime,
            threads=1,
            slack=slack,
        )
    except ValueError:
        return  # refused: an increasing delay, or queues too short
    loader = [((torch.zeros(3), torch.full((3,), n)), torch.zeros(3)) for n in range(batches)]
    trainer.fit(loader)
    for stage, delay in zip(stages, delays):
        gap = delay - (choices["order"] == "backward" and delay > 0)
        promised = [(n, max(0, n - gap)) for n in range(batches) for _ in range(choices["micro"])]
        assert [(n, round(version, 3)) for n, version in stage.seen] == promised
        assert stage.weight.item() == pytest.approx(batches)
