"""The trainer as its users see it."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from freewheel.trainer._fit import Fit
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
    assert all(len(e.busy) == 3 and all(0 < b <= 1 for b in e.busy) for e in history.epochs)
    assert all(e.images_per_second > 0 for e in history.epochs)
    assert all(e.validation.samples == 18 for e in history.epochs)
    assert json.loads(json.dumps(history.as_dict()))["epochs"][1]["batches"] == 28


def test_of_stages_on_a_gpu_only_a_trace_knows_how_busy_they_are(monkeypatch):
    """The host's time for launching stood there: 5 to 10 %, however much the GPU computed."""
    record = Fit._record

    def on_gpu(fit, cut):
        here, there = fit._setup, torch.device("cuda", 0)
        fit._setup = replace(here, blueprints=[replace(each, device=there) for each in here.blueprints])
        try:
            return record(fit, cut)
        finally:
            fit._setup = here

    monkeypatch.setattr(Fit, "_record", on_gpu)
    [epoch] = trainer(network(2), "pipedream").fit(batches(3)).epochs
    assert epoch.busy == ()
    assert epoch.staleness == (2 / 3, 0.0)


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
        with pytest.raises(RuntimeError, match="fit while fit is running on this trainer") as error:
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


# -- what people do in plain PyTorch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [list, iter], ids=["list", "iterator"])
def test_evaluation_leaves_the_data_alone(wrap):
    stages = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))]
    loader, untouched = batches(3), batches(3)
    trainer(stages, "bp").evaluate(wrap(loader))
    trainer(stages, "bp").fit(batches(2, seed=7), validate=loader)
    assert all(same_bits(a, b) for a, b in zip(loader, untouched))


def test_validation_computes_the_loss_as_training_does(cpu_bfloat16):
    stages = [nn.Linear(6, 12), nn.Linear(12, 3)]
    still = lambda p: torch.optim.SGD(p, lr=0.0)  # noqa: E731
    made = trainer(stages, "bp", autocast=torch.bfloat16, optimizer=still)
    history = made.fit(batches(3), validate=batches(3))
    assert history.epochs[0].validation.loss == history.losses[0] == made.evaluate(batches(3)).loss


@pytest.mark.parametrize("answer", [True, np.True_, torch.tensor(True)], ids=str)
def test_any_true_of_a_callback_ends_the_training(answer):
    history = trainer(network(2), "pipedream").fit(batches(3), epochs=4, callbacks=[lambda end: answer])
    assert (len(history.epochs), history.stopped) == (1, True)


@pytest.mark.parametrize("answer", [False, np.False_, torch.tensor(False), 1, 0.5, "yes", torch.ones(3)], ids=str)
def test_nothing_else_does(answer):
    history = trainer(network(2), "pipedream").fit(batches(3), epochs=2, callbacks=[lambda end: answer])
    assert len(history.epochs) == 2


class TimeFirst(nn.Module):
    def __init__(self, each_step: bool):
        super().__init__()
        self.layer, self.out, self.each_step = nn.RNN(4, 5), nn.Linear(5, 3), each_step

    def forward(self, x):
        steps = self.out(self.layer(x)[0])
        return steps.permute(0, 2, 1) if self.each_step else steps[-1]


@pytest.mark.parametrize("each_step", [False, True])
def test_samples_of_sequences_that_come_time_first(each_step):
    torch.manual_seed(0)
    sizes = [(7, 6), (5, 2), (9, 3)]  # steps, samples
    steps = 4 if each_step else None
    loader = [(torch.randn(steps or t, n, 4), torch.randint(3, (steps, n) if each_step else (n,))) for t, n in sizes]
    model = TimeFirst(each_step)
    made = trainer([model], "bp", optimizer=partial(torch.optim.SGD, lr=0.0), batch_dim=1)
    history = made.fit(loader)
    with torch.no_grad():
        whole = sum(F.cross_entropy(model(x), y).item() * x.shape[1] for x, y in loader) / 11
    assert history.losses[0] == made.evaluate(loader).loss == pytest.approx(whole, rel=1e-6)
    assert history.epochs[0].samples == made.evaluate(loader).samples == 11


def test_the_number_of_samples_is_that_of_the_target():
    loader = [(torch.randn(7, 2, 4), torch.randint(3, (2,))), (torch.randn(3, 5, 4), torch.randint(3, (5,)))]
    assert trainer([TimeFirst(False)], "bp").fit(loader).epochs[0].samples == 7


def test_micro_batches_of_time_are_refused():
    with pytest.raises(ValueError, match="batch_dim=1 with gpipe: micro-batches and replicas divide the first one"):
        trainer([TimeFirst(False)], "gpipe", batch_dim=1)


def test_a_model_in_eval_mode_is_trained_as_after_train():
    """Functional dropout reads the mode of the model, which the stages of fw.split have copied."""

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(6, 8), nn.Linear(8, 3), nn.BatchNorm1d(8)

        def forward(self, x):
            return self.b(F.dropout(self.norm(self.a(x)), 0.5, self.training))

    def trained(between):
        torch.manual_seed(0)
        model = Dropped()
        made = trainer(fw.split(model, 2, by="parameters"), "pipedream")
        made.fit(batches(3))
        between(model)
        made.fit(batches(3))
        return tensors(model)

    assert same_bits(trained(nn.Module.eval), trained(nn.Module.train))


def test_a_module_that_stays_in_train_mode_decides_for_the_others():
    stages = network(2)
    stages[0].eval()
    stages[0][1].train()
    trainer(stages, "pipedream").fit(batches(3))
    assert int(stages[0][0][1].num_batches_tracked) == 0
    assert int(stages[0][1][2].num_batches_tracked) == 3


def test_corrections_with_a_state_refuse_frozen_weights():
    stages = network(2)
    made = trainer(stages, "pipemare")
    made.fit(batches(3))
    before = tensors(*stages)
    stages[0][0][0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"stage 0: '0.0.weight' was frozen or unfrozen, but the method's corrections"):
        made.fit(batches(3))
    assert same_bits(before, tensors(*stages))


def test_an_accumulation_refuses_weights_that_are_frozen_in_its_middle():
    stages = network(2)
    made = trainer(stages, fw.Pipeline(delays=(0, 0), corrections=[fw.Accumulate(2)]))
    made.fit(batches(3))
    stages[0][0][0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="in the middle of an accumulation"):
        made.fit(batches(3))


def test_a_second_ctrl_c_stops_at_once_with_a_stage_that_is_stuck(monkeypatch):
    stuck, told, free = threading.Event(), threading.Event(), threading.Event()

    class Stuck(nn.Module):
        def forward(self, x):
            stuck.set()
            free.wait()
            return x

    class Listener:
        def write(self, text):
            told.set()  # of the first Ctrl-C: the batches under way are to be finished

        def flush(self):
            pass

    def ctrl_c():
        for event in (stuck, told):
            event.wait()
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("sys.stderr", Listener())
    made = trainer(
        [nn.Linear(6, 6), nn.Sequential(Stuck(), nn.Linear(6, 3))], "pipedream", runtime="threads", check=False
    )
    thread = threading.Thread(target=ctrl_c)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        made.fit(batches(20), progress=False)
    free.set()
    thread.join()
