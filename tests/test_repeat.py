"""The runtime `graph` repeats the launches of earlier batches: with a stand-in for CUDA graphs, on a CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import freewheel as fw
from freewheel.runtime._repeat import Script
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer
from stand_in import Races, stand_in as stand_in

pytestmark = pytest.mark.usefixtures("stand_in")
LR = torch.optim.lr_scheduler
COSINE = partial(LR.CosineAnnealingLR, T_max=60)
BOTH = ("simulate", "graph")
REGULAR = ("pipedream", "fdg", "dsp", "fr", "ddg", "asyncfgd", "fgd", "bp")


def stands_in(row):
    """Whether the stand-in can: it copies what micro-batches find unaligned, and changes in place what is looked at."""
    schedule = fw.plan(row.make(3), k=3).schedule
    if schedule.micro > 1 or schedule.replicas > 1 or getattr(schedule.credit, "perturb", "") == "activations":
        return False
    try:
        schedule.credit.check_captured(schedule)
    except ValueError:
        return False
    return True


OTHERS = [row for row in ROWS if row.name not in REGULAR and stands_in(row)]


@pytest.fixture
def repeated(monkeypatch):
    """The batches that are repeated."""
    repeat, counted = Script.repeat, []
    monkeypatch.setattr(Script, "repeat", lambda script, batch: counted.append(batch) or repeat(script, batch))
    return counted


def even(count=40, last=6, seed=1):
    """Batches of one size, but for a smaller last one."""
    return [*batches(count, seed, small=9), *batches(1, seed + 1, size=last)]


def trained(method, runtime, loader=None, epochs=2, stages=None, callbacks=(), **options):
    stages = stages or network(3)
    made = trainer(stages, method, runtime=runtime, **{"scheduler": COSINE, **options})
    history = made.fit(loader or even(), epochs=epochs, validate=batches(3), callbacks=callbacks)
    return tensors(*stages), history.losses, history.metrics, [epoch.staleness for epoch in history.epochs]


def assert_same(wanted, found):
    assert same_bits(wanted[0], found[0])
    assert wanted[1:] == found[1:]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in REGULAR], ids=str)
def test_repeated_batches_are_those_of_simulate(row, optimizer, repeated):
    assert_same(*(trained(row.make(3), runtime, optimizer=OPTIMIZERS[optimizer]) for runtime in BOTH))
    assert len(repeated) >= 10


@pytest.mark.parametrize("row", OTHERS, ids=str)
def test_other_methods_are_those_of_simulate(row):
    assert_same(*(trained(row.make(3), runtime) for runtime in BOTH))


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in REGULAR] + OTHERS, ids=str)
def test_events_order_all_that_touches_the_same_memory(row):
    with Races() as races:
        trained(row.make(3), "graph")
    assert not races.found


@pytest.mark.parametrize("k", [1, 2, 4])
def test_any_number_of_stages(k, repeated):
    assert_same(*(trained("pipedream", runtime, stages=network(k)) for runtime in BOTH))
    assert len(repeated) >= 10


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": partial(LR.OneCycleLR, max_lr=0.1, total_steps=100)},  # moves the momentum
        {"slow": {1: (0.1, 1.01)}},
        {"accumulate": 2},
        {"slack": 9},
        {"callbacks": [print]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_whatever_is_asked_for_the_weights_are_the_same(options):
    assert_same(*(trained("pipedream", runtime, **options) for runtime in BOTH))


def test_the_end_of_an_epoch_is_not_passed():
    seen, results = [], []

    def stop(end):
        seen.append(end.record.epoch)
        return len(seen) == 2

    for runtime in BOTH:
        seen.clear()
        results.append(trained("fdg", runtime, epochs=4, callbacks=[stop]))
    assert_same(*results)
    assert len(results[0][1]) == 2


def test_a_second_fit_and_a_limit_of_steps(repeated):
    results = []
    for runtime in BOTH:
        stages = network(3)
        made = trainer(stages, fw.AsyncFGD(scale=0.1), runtime=runtime)
        made.fit(even(), max_steps=30)
        history = made.fit(even(seed=5), epochs=2)
        results.append((tensors(*stages), history.losses))
    assert_same(*results)
    assert repeated


def test_an_error_of_the_loader_comes_after_the_batches_before_it(repeated):
    def loader():
        yield from even(33)[:33]
        raise OSError("the disk is gone")

    for runtime in BOTH:
        with pytest.raises(OSError, match="the disk is gone"):
            trained("pipedream", runtime, loader=loader(), epochs=1)
    assert repeated


def test_a_batch_that_cannot_be_trained_has_its_own_number():
    bad = [*even(37)[:37], (torch.randn(9, 5), torch.zeros(9, dtype=torch.long))]
    for runtime in BOTH:
        with pytest.raises(fw.StageError, match="the forward of batch 37"):
            trained("pipedream", runtime, loader=bad, epochs=1)
