"""Stages that are cut again by what they take in training: the search, and what it leaves alone."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from freewheel.trace import TraceEvent
from freewheel.trainer._rebalance import search, stage_seconds
from rows import OPTIMIZERS, batches, network, same_bits, tensors


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


def best_of_all(true, k):
    """The smallest largest stage of every cut into two or three stages, one by one."""
    n = len(true)
    bounds = [(a,) for a in range(1, n)] if k == 2 else [(a, b) for a in range(1, n) for b in range(a + 1, n)]
    return min(max(sum(true[i:j]) for i, j in pairwise((0, *each, n))) for each in bounds)


@pytest.mark.parametrize("k", [2, 3])
def test_the_best_cut_is_found_where_layers_take_longer_than_the_split_has_thought(k):
    true = [1.0] * 6 + [3.0] * 6
    stages = fw.split(layers(12), k, by="parameters")
    measured = []

    def measure(balance):
        measured.append([sum(true[i:j]) for i, j in pairwise(accumulate(balance, initial=0))])
        return measured[-1]

    balance, seconds = search(stages, measure, None, rounds=4)
    assert sum(balance) == 12
    assert len(balance) == k
    assert max(measured[0]) > best_of_all(true, k), "the split of `fw.split` is not the best"
    assert max(seconds) == best_of_all(true, k)


def test_a_worker_that_is_half_as_fast_gets_half_as_many_layers():
    stages = fw.split(layers(12), 2, by="parameters")
    balance, seconds = search(stages, lambda balance: [1.0 * balance[0], 2.0 * balance[1]], None, rounds=4)
    assert balance == (8, 4)
    assert seconds == [8.0, 8.0]


def test_a_cut_that_turns_out_slower_is_not_taken():
    stages = fw.split(layers(4), 2, by="parameters")
    balance, seconds = search(stages, lambda cut: [1.0, 3.0] if cut == (2, 2) else [9.0, 9.0], None, rounds=3)
    assert (balance, seconds) == ((2, 2), [1.0, 3.0])


def test_no_more_cuts_are_trained_than_asked_for():
    tried = []

    def measure(balance):
        tried.append(balance)
        return [2.0 ** len(tried), 1.0]

    search(fw.split(layers(12), 2, by="parameters"), measure, None, rounds=2)
    assert len(set(tried)) == 2


def test_a_computer_that_is_busy_for_a_while_does_not_decide():
    turns = iter([1.0, 3.0, 1.0, 1.0, 1.0, 1.0])  # of the first cut and of the second, three times in turn

    def measure(balance):
        pace = next(turns)
        return [pace * balance[0], pace * 2 * balance[1]]

    balance, _ = search(fw.split(layers(9), 2, by="parameters"), measure, None, rounds=2)
    assert balance == (6, 3)


def test_the_time_of_a_stage_is_what_it_computes_for_a_batch():
    def event(stage, name, batch, seconds, micro=0, replica=0):
        return TraceEvent(stage, replica, name, batch, micro, None, 1.0, 1.0 + seconds)

    events = [event(0, "F", n, 0.25, micro=m) for n in range(3) for m in range(2)]
    events += [event(0, ">g", 0, 9.0), event(0, "B", 0, 1.0), event(0, "B", 1, 2.0), event(0, "B", 2, 7.0)]
    events += [event(1, "F", n, 1.5, replica=r) for n in range(3) for r in range(2)]
    assert stage_seconds(fw.Trace(events)) == [2.5, 1.5]


def make(**options):
    base = {"loss": F.cross_entropy, "optimizer": OPTIMIZERS["sgd"], "runtime": "simulate", "check": False}
    return partial(fw.Trainer, **base | options)


@pytest.mark.parametrize("runtime", ["simulate", "threads"])
def test_the_model_is_not_trained_and_no_random_number_is_drawn(runtime):
    model = nn.Sequential(*network(2))
    model.eval()
    before, modes = [t.clone() for t in tensors(model)], [m.training for m in model.modules()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    stages = fw.split(model, 2, by="parameters")
    again = fw.rebalance(stages, make(method="pipedream", runtime=runtime), batches(4), rounds=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert same_bits(tensors(model), before)
    assert [m.training for m in model.modules()] == modes
    assert again.model is model
    assert sum(again.report.balance) == sum(stages.report.balance)
    assert min(again.report.seconds) > 0


def test_what_it_returns_is_trained_as_the_same_cut_of_split():
    def trained(stages):
        fw.Trainer(stages, method="fdg", loss=F.cross_entropy, optimizer=OPTIMIZERS["adam"]).fit(batches(6))
        return tensors(stages.model)

    first, second = (nn.Sequential(*network(2)) for _ in range(2))
    again = fw.rebalance(fw.split(first, 2, by="parameters"), make(method="fdg"), batches(4), rounds=1)
    assert same_bits(trained(again), trained(fw.split(second, balance=again.report.balance)))


def test_a_single_stage_stays_as_it_is():
    stages = fw.split(layers(3), 1, by="parameters")
    assert fw.rebalance(stages, make(method="bp"), batches(2)) is stages


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"stages": [nn.Linear(2, 2)] * 2}, TypeError, "stages must be what fw.split returns, not list"),
        ({"rounds": 0}, ValueError, "rounds=0"),
        ({"batches": []}, ValueError, "batches is empty"),
        ({"make": make(method="hogwild")}, ValueError, "method='hogwild': its workers share the whole network"),
    ],
)
def test_what_cannot_be_balanced_is_refused(change, error, words):
    stages = fw.split(nn.Sequential(*network(2)), 2, by="parameters")
    given = {"stages": stages, "make": make(method="bp"), "batches": batches(2)} | change
    with pytest.raises(error, match=words):
        fw.rebalance(**given)
