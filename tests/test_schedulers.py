"""Schedulers by batch, by epoch and on a plateau, and accumulation, against plain PyTorch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import freewheel as fw
from rows import OPTIMIZERS, batches, network, same_bits, tensors, trainer
from spread import rarely, spread

SGD = OPTIMIZERS["sgd"]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def halves(model: nn.Sequential) -> list[nn.Module]:
    return [model[:2], model[2:]]


def step_lr(optimizer):
    return lr_scheduler.StepLR(optimizer, 2, 0.1)


def plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1, threshold=0.5)


def loop(model, epochs, scheduler, data, valid=()):
    optimizer = SGD(model.parameters())
    schedule = scheduler(optimizer)
    for _ in range(epochs):
        losses = []
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item() * len(x))
        if scheduler is step_lr:
            schedule.step()
            continue
        with torch.no_grad():
            scores = [F.cross_entropy(model(x), y).item() * len(x) for x, y in valid] or losses
        schedule.step(sum(scores) / sum(len(x) for x, _ in (valid or data)))
    return optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("runtime", ["simulate", "threads", rarely("processes")])
def test_a_scheduler_by_epoch(runtime):
    model, plain = net(), net()
    made = trainer(halves(model), "bp", scheduler=step_lr, scheduler_every="epoch", runtime=runtime)
    made.fit(batches(4), epochs=3)
    made.fit(batches(4), epochs=2)
    lr = loop(plain, 5, step_lr, batches(4))
    assert same_bits(tensors(model), tensors(plain))
    assert [o.param_groups[0]["lr"] for o in made.optimizers] == [lr, lr]


@spread(validated=[True, False], runtime=["simulate", "threads", rarely("processes")])
def test_a_scheduler_on_a_plateau(runtime, validated):
    model, plain = net(), net()
    seen: list[fw.EpochEnd] = []
    made = trainer(halves(model), "bp", scheduler=plateau, runtime=runtime)
    valid = batches(2, seed=8) if validated else None
    history = made.fit(batches(4), epochs=5, validate=valid, callbacks=[seen.append])
    lr = loop(plain, 5, plateau, batches(4), valid or ())
    assert lr < 0.05, "a plateau was reached"
    assert same_bits(tensors(model), tensors(plain))
    assert [o.param_groups[0]["lr"] for o in made.optimizers] == [lr, lr]
    assert [e.epoch for e in history.epochs] == [0, 1, 2, 3, 4] == [end.record.epoch for end in seen]
    assert [e.batches for e in history.epochs] == [4, 8, 12, 16, 20]
    assert [len(end.history.epochs) for end in seen] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("method", ["pipedream", "dgl", fw.AsyncFGD(scale=0.1)], ids=str)
def test_a_plateau_is_the_same_on_every_runtime(method):
    def trained(runtime):
        stages = network(3)
        steps: list[int] = []
        history = trainer(stages, method, scheduler=plateau, runtime=runtime).fit(
            batches(5), max_steps=12, batch_callbacks=[lambda end: steps.append((end.step, end.epoch))]
        )
        assert steps == [(i + 1, i // 5) for i in range(12)]
        assert history.batches == 12
        return tensors(*stages)

    assert same_bits(trained("simulate"), trained("threads"))


def test_a_plateau_is_refused_where_it_cannot_be():
    with pytest.raises(ValueError, match="ReduceLROnPlateau with async-lu"):
        trainer(network(2), "async-lu", scheduler=plateau)
    with pytest.raises(ValueError, match="save_to with ReduceLROnPlateau"):
        trainer(network(2), "bp", scheduler=plateau).fit(batches(2), save_to="x")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (step_lr, "StepLR with step_size=2"),
        (partial(lr_scheduler.CosineAnnealingLR, T_max=3), "CosineAnnealingLR with T_max=3"),
        (partial(lr_scheduler.MultiStepLR, milestones=[1, 3]), "MultiStepLR with milestones=3"),
    ],
)
def test_a_scheduler_that_looks_as_if_it_counted_epochs(make, words):
    with pytest.warns(
        UserWarning, match=f"{words} is stepped after each of 12 batches, in a fit of 3 epochs; if it co"
    ):
        trainer(network(2), "bp", scheduler=make).fit(batches(4), epochs=3)
    trainer(network(2), "bp", scheduler=make, scheduler_every="epoch").fit(batches(4), epochs=3)
    trainer(network(2), "bp", scheduler=make).fit(batches(4))


# -- accumulation -----------------------------------------------------------------------------------------------------


def accumulated(model, data, every):
    optimizer = SGD(model.parameters())
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    for i, (x, y) in enumerate(data):
        (F.cross_entropy(model(x), y) / every).backward()
        if (i + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


@pytest.mark.parametrize("method", ["bp", "1f1b", "fr"])
@pytest.mark.parametrize("runtime", ["simulate", "threads"])
def test_accumulation_equals_plain_accumulation(method, runtime):
    model, plain = net(), net()
    every = partial(lr_scheduler.ExponentialLR, gamma=0.9)
    stages = [model] if method == "fr" else halves(model)  # one stage has no delay
    made = trainer(stages, method, accumulate=3, scheduler=every, runtime=runtime)
    made.fit(batches(5))
    made.fit(batches(4))  # which begins in the middle of an accumulation
    accumulated(plain, [*batches(5), *batches(4)], 3)
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "method", ["pipedream", "dgl", "dni", "fa", "dfa", fw.AsyncFGD(scale=0.1), "pipemare"], ids=str
)
def test_every_method_accumulates_the_same_on_every_runtime(method):
    def trained(runtime, data, **options):
        stages = network(3)
        for stage in stages:
            stage.eval()  # BatchNorm and dropout aside
            stage[0].train()
        trainer(stages, method, runtime=runtime, **options).fit(data)
        return tensors(*stages)

    assert same_bits(trained("simulate", batches(6), accumulate=2), trained("threads", batches(6), accumulate=2))
    assert not same_bits(trained("simulate", batches(6), accumulate=2), trained("simulate", batches(6)))


def test_heads_accumulate_with_their_stage():
    """Two batches of one accumulation teach the head what both together would."""
    torch.manual_seed(1)
    x, y = torch.randn(8, 6), torch.randint(3, (8,))

    def trained(data, **options):
        torch.manual_seed(0)
        made = trainer([nn.Linear(6, 5), nn.Linear(5, 3)], fw.DGL(hidden=4), **options)
        made.fit(data)
        return tensors(*made.stages, made.heads[0])

    whole = trained([(x, y)] * 2)
    halved = trained([(x[:4], y[:4]), (x[4:], y[4:])] * 2, accumulate=2)
    for ours, theirs in zip(halved, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_races_do_not_accumulate():
    with pytest.raises(ValueError, match="accumulate with hogwild"):
        trainer(network(2), "hogwild", accumulate=2)
    with pytest.raises(ValueError, match="accumulate=0: give 1 or more"):
        trainer(network(2), "bp", accumulate=0)
