"""A credit, a correction, a distribution and a method from outside the library get everything that its own have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import freewheel as fw
from extensions import Decay, HeavyBall, LastFirst, LateMomentum, Uniform
from freewheel.plan import Message, Plan
from rows import ROWS, Row, batches, network, same_bits, tensors, trainer

EXTENSIONS = [
    Row("credit", lambda k: fw.Pipeline(credit=Decay(rate=0.3), delays=tuple(range(k))[::-1], title="decay")),
    Row("correction", lambda k: fw.Pipeline(delays=tuple(range(k))[::-1], corrections=[HeavyBall(0.5)])),
    Row("distribution", lambda k: fw.AsyncFGD(distribution=Uniform(), scale=0.1)),
    Row("method", lambda k: LateMomentum()),
]
PLAIN = partial(torch.optim.SGD, lr=0.05)


def run(row, runtime, **options):
    stages = network(3)
    made = trainer(stages, row.make(3), runtime=runtime, optimizer=PLAIN)
    made.fit(batches(12), **options)
    return tensors(*stages), made


@pytest.mark.parametrize("row", EXTENSIONS, ids=str)
def test_every_runtime_gives_the_same_bits(row):
    expected, _ = run(row, "simulate")
    assert not same_bits(expected, tensors(*network(3)))  # it has learned something
    for runtime in ("threads", "processes"):
        assert same_bits(expected, run(row, runtime)[0]), runtime


@pytest.mark.parametrize("row", EXTENSIONS, ids=str)
def test_saved_in_flight_and_resumed_is_not_stopping(row, tmp_path):
    expected, _ = run(row, "simulate")
    run(row, "threads", save_to=tmp_path, save_every=5)
    first = sorted(tmp_path.glob("checkpoint-*"))[0]
    stages = network(3, seed=9)  # other weights, which the checkpoint replaces
    made = trainer(stages, row.make(3), make=partial(fw.Trainer.resume, first), runtime="simulate", optimizer=PLAIN)
    assert made.unfinished == 1
    made.fit(batches(12))
    assert same_bits(expected, tensors(*stages))


@pytest.mark.parametrize("row", EXTENSIONS, ids=str)
def test_it_is_planned_and_drawn(row, monkeypatch):
    monkeypatch.setitem(fw.CREDITS, "decay", Decay)  # the row of the table, so that drawings read back
    plan = fw.plan(row.make(3), k=3, batches=6)
    assert Plan.parse(str(plan)) == plan
    assert Plan.parse(plan.text()) == plan
    assert plan.locks == frozenset()


def test_the_credit_is_drawn_with_its_message(monkeypatch):
    monkeypatch.setitem(fw.CREDITS, "decay", Decay)
    plan = fw.plan(fw.Pipeline(credit=Decay(), delays=(1, 0), title="decay"), k=2, batches=2)
    assert str(plan).splitlines()[0] == "plan decay: credit=decay delays=1,0 batches=2"
    assert plan.text().splitlines()[1] == "stage 0  F0@0 a0> F1@0 a1> >l0 U0@0 >l1 U1@1"
    with pytest.raises(fw.PlanError, match="its loss has not been received"):
        Plan.parse(plan.text().replace(">l0 U0@0", "U0@0 >l0"))


def test_the_credit_learns_what_it_says():
    """By hand: with one stage, each weight shrinks by lr · rate · loss of the batch."""
    torch.manual_seed(0)
    layer, copy = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
    copy.load_state_dict(layer.state_dict())
    trainer([layer], fw.Pipeline(credit=Decay(rate=0.3), delays=(0,)), optimizer=PLAIN).fit(batches(5))
    with torch.no_grad():
        for x, y in batches(5):
            factor = 1 - 0.05 * 0.3 * F.cross_entropy(copy(x), y)
            for weight in copy.parameters():
                weight.mul_(factor)
    for ours, theirs in zip(layer.parameters(), copy.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


def test_the_correction_is_momentum():
    """HeavyBall before plain SGD is SGD with momentum."""
    row = EXTENSIONS[1]
    ours, theirs = network(2), network(2)
    trainer(ours, row.make(2), optimizer=PLAIN).fit(batches(12))
    momentum = partial(torch.optim.SGD, lr=0.05, momentum=0.5)
    trainer(theirs, "pipedream", optimizer=momentum).fit(batches(12))
    for a, b in zip(tensors(*ours), tensors(*theirs)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_credit_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="micro=2: under credit='decay'"):
        fw.Pipeline(credit=Decay(), delays=(0,), micro=2)
    with pytest.raises(ValueError, match="Shrink has no meaning with credit='decay'"):
        fw.Pipeline(credit=Decay(), delays=(0,), corrections=[fw.Shrink(0.5)])
    with pytest.raises(ValueError, match="replicas=2 with credit='decay'"):
        trainer(network(2), fw.Pipeline(credit=Decay(), delays=(0, 0)), replicas=2)


def test_a_runtime_in_another_order_gives_the_same_bits(monkeypatch):
    monkeypatch.setitem(fw.RUNTIMES, "last-first", LastFirst())
    for row in ROWS[:: len(ROWS) // 6]:
        results = []
        for runtime in ("simulate", "last-first"):
            stages = network(3)
            history = trainer(stages, row.make(3), runtime=runtime).fit(batches(8), epochs=2, validate=batches(2))
            results.append((tensors(*stages), history.losses, history.metrics))
        (expected, *numbers), (found, *others) = results
        assert same_bits(expected, found), row
        assert numbers == others


def test_a_message_has_a_letter_of_its_own():
    @dataclass(frozen=True, kw_only=True)
    class Twin(Decay):
        messages = (Message("a", "loss", way=-1),)

    with pytest.raises(ValueError, match=r"the letter of Message\('a'\) is taken"):
        fw.plan(fw.Pipeline(credit=Twin(), delays=(0, 0)), k=2)
    with pytest.raises(ValueError, match="letter='AB': give one lower-case letter"):
        Message("AB", "loss", way=-1)


def test_an_option_of_a_credit_may_have_any_name(tmp_path):
    """One called as an option of the schedule hides nothing: both are compared where batches are in flight."""
    made = trainer(network(2), fw.Pipeline(credit=Ordered(order=1), delays=(1, 0)))
    made.fit(batches(6), save_to=tmp_path, save_every=2)
    first = sorted(tmp_path.glob("checkpoint-*"))[0]
    other = fw.Pipeline(credit=Ordered(order=1), delays=(1, 0), order="backward")
    with pytest.raises(ValueError, match=r"order='backward', but .* resume only with order='forward'"):
        trainer(network(2), other, make=partial(fw.Trainer.resume, first))


@dataclass(frozen=True, kw_only=True)
class Ordered(Decay):
    order: int = 0


def test_the_correction_passes_over_weights_without_a_gradient():
    """As SGD's own momentum does: a layer that only every second batch uses keeps its velocity meanwhile."""

    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.a(x) + (self.b(x) if len(x) % 2 else 0)

    results = []
    for corrections, momentum in (([HeavyBall(0.5)], 0.0), ([], 0.5)):
        torch.manual_seed(0)
        net = Half()
        data = [pair for batch in batches(8) for pair in (batch, tuple(t[:4] for t in batch))]
        optimizer = partial(torch.optim.SGD, lr=0.05, momentum=momentum)
        trainer([net], fw.Pipeline(delays=(0,), corrections=corrections), optimizer=optimizer).fit(data)
        results.append(tensors(net))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
