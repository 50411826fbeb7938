"""The trainer as its users see it."""

from __future__ import annotations

import json
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from rows import LOCAL, batches, network, same_bits, tensors, trainer


def test_the_modules_handed_in_hold_the_trained_weights():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    stages = fw.split(model, 2, by="parameters")
    before = tensors(model)
    made = trainer(stages, "pipedream", runtime="threads")
    made.fit(batches(5))
    assert made.model() is model
    assert not same_bits(before, tensors(model))
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(type(p) is nn.Parameter and p.is_leaf for p in model.parameters())


def test_a_list_of_stages_gives_a_network_too():
    stages = [nn.Linear(6, 4), nn.Linear(4, 3)]
    made = trainer(stages, "fdg")
    made.fit(batches(3))
    x = torch.randn(2, 6)
    assert torch.equal(made.model()(x), stages[1](stages[0](x)))


def test_history_tells_what_happened():
    made = trainer(network(3), "fdg", runtime="threads")
    history = made.fit(batches(14), epochs=3, validate=batches(2, seed=5))
    assert [e.epoch for e in history.epochs] == [0, 1, 2]
    assert [e.batches for e in history.epochs] == [14, 28, 42]
    assert {e.samples for e in history.epochs} == {14 * 9 - 2 * 3}
    assert history.epochs[2].staleness == (3.0, 1.0, 0.0)  # backward-first: one less than the delays 4, 2, 0
    assert all(0 < b <= 1 for e in history.epochs for b in e.busy)
    assert all(e.images_per_second > 0 for e in history.epochs)
    assert all(e.validation.samples == 18 for e in history.epochs)
    assert json.loads(json.dumps(history.as_dict()))["epochs"][1]["batches"] == 28


def test_the_loss_in_the_history_is_the_mean_over_samples():
    torch.manual_seed(0)
    stages = [nn.Linear(6, 3)]
    loader = batches(8)
    sgd = lambda p: torch.optim.SGD(p, lr=0.0)  # noqa: E731
    history = trainer(stages, "bp", optimizer=sgd).fit(loader)
    with torch.no_grad():
        whole = F.cross_entropy(stages[0](torch.cat([x for x, _ in loader])), torch.cat([y for _, y in loader]))
    assert history.losses[0] == pytest.approx(whole.item(), rel=1e-5)


def test_evaluation_leaves_no_trace():
    stages = network(2)
    stages[0][0].eval()
    modes = [m.training for s in stages for m in s.modules()]
    made = trainer(stages, "pipedream")
    before = tensors(*stages)
    first, second = made.evaluate(batches(3)), made.evaluate(batches(3))
    assert first == second
    assert same_bits(before, tensors(*stages))
    assert modes == [m.training for s in stages for m in s.modules()]
    with torch.no_grad():
        for s in stages:
            s.eval()
        x, y = torch.cat([x for x, _ in batches(3)]), torch.cat([y for _, y in batches(3)])
        out = stages[1](stages[0](x))
    assert first.loss == pytest.approx(F.cross_entropy(out, y).item(), rel=1e-5)
    assert first.metric == pytest.approx((out.argmax(1) == y).float().mean().item())


def test_a_metric_of_ones_own_and_none_for_regression():
    loader = [(torch.randn(4, 6), torch.randn(4, 1)) for _ in range(3)]
    made = trainer([nn.Linear(6, 1)], "bp", loss=F.mse_loss)
    assert made.evaluate(loader).metric is None
    mae = trainer([nn.Linear(6, 1)], "bp", loss=F.mse_loss, metric=lambda out, y: (out - y).abs().mean())
    assert mae.evaluate(loader).metric > 0


def test_callbacks_see_the_cut_and_not_the_training():
    stages = network(3)
    seen = []

    def look(end):
        model = end.model()
        assert not any(m.training for m in model.modules())
        assert all(a is not b for a, b in zip(end.stages, stages))
        with torch.no_grad():
            seen.append(model(torch.ones(2, 6)))
        for p in model.parameters():
            p.requires_grad_(False).zero_()

    made = trainer(stages, "fdg", runtime="threads")
    made.fit(batches(6), epochs=3, callbacks=[look])
    other = network(3)
    trainer(other, "fdg").fit(batches(6), epochs=3)
    assert same_bits(tensors(*stages), tensors(*other))
    assert not torch.equal(seen[0], seen[1])


def test_fitting_again_goes_on():
    once, twice = network(2), network(2)
    trainer(once, "bp", seed=1).fit(batches(10), epochs=2)
    made = trainer(twice, "bp", seed=1)
    made.fit(batches(10))
    made.fit(batches(10))
    assert same_bits(tensors(*once), tensors(*twice))


def test_a_network_in_eval_mode_is_trained_in_train_mode():
    stages = network(2)
    frozen = stages[0][0][1]  # a BatchNorm
    stages[1].eval()
    frozen.eval()
    trainer(stages, "pipedream").fit(batches(4))
    assert int(frozen.num_batches_tracked) == 0
    assert stages[1].training


def test_a_trainer_runs_once_at_a_time():
    made = trainer(network(2), "pipedream")
    caught = []

    def again(end):
        with pytest.raises(RuntimeError, match="fit is already running") as error:
            made.fit(batches(2))
        caught.append(error)

    made.fit(batches(2), callbacks=[again])
    assert caught


def test_fit_works_outside_the_main_thread():
    stages, other = network(2), network(2)
    worker = threading.Thread(target=lambda: trainer(stages, "fdg", runtime="threads").fit(batches(6)))
    worker.start()
    worker.join()
    trainer(other, "fdg").fit(batches(6))
    assert same_bits(tensors(*stages), tensors(*other))


def test_the_thread_count_of_the_caller_is_restored():
    torch.set_num_threads(2)
    for runtime in LOCAL:
        trainer(network(2), "fdg", runtime=runtime).fit(batches(3))
        assert torch.get_num_threads() == 2
        seen = []
        worker = threading.Thread(target=lambda seen=seen: seen.append(torch.get_num_threads()))
        worker.start()
        worker.join()
        assert seen == [2]


@pytest.mark.parametrize("progress", [True, False])
def test_progress_goes_to_standard_error_alone(progress, capsys):
    trainer(network(2), "fdg").fit(batches(30), epochs=2, progress=progress, validate=batches(2))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("epoch 2/2" in err) == progress
