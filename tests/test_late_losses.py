"""A loss belongs to the epoch of its batch, also where the last stage is late by more than an epoch."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from checkpoints import goes_on
from freewheel.checkpoint import _writer
from reference import SGD, Reference
from rows import LOCAL, trainer
from spread import spread

AN_EPOCH, EPOCHS = 2, 5


def stages(k: int, seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(k - 1)]
    return [layer.double() for layer in (*layers, nn.Linear(4, 3))]


def loader() -> list[tuple[Tensor, Tensor]]:
    """Two batches, of different sizes."""
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 4, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in (8, 4)]


def by_batch(method: fw.Pipeline) -> list[tuple[float, int]]:
    """The loss of each batch and its samples, from the definition of the method."""
    data, k = loader() * EPOCHS, len(method.delays)
    made = Reference(
        stages(k),
        data,
        loss=F.cross_entropy,
        rule=SGD(0.3),
        delays=method.delays,
        order=method.order,
        weights=method.weights,
    )
    made.train()
    return [(F.cross_entropy(made.output(k - 1, n), y).item(), len(y)) for n, (_, y) in enumerate(data)]


def mean(losses: list[tuple[float, int]]) -> float:
    return sum(loss * size for loss, size in losses) / sum(size for _, size in losses)


def expected(method: fw.Pipeline) -> list[float]:
    """The mean loss of each epoch."""
    losses = by_batch(method)
    return [mean(losses[n : n + AN_EPOCH]) for n in range(0, len(losses), AN_EPOCH)]


LATE = {
    "one stage": fw.Pipeline(delays=(5,)),
    "one stage, backward first": fw.Pipeline(delays=(5,), order="backward"),
    "by the length of an epoch": fw.Pipeline(delays=(2,)),
    "two stages": fw.Pipeline(delays=(7, 5)),
    "redone": fw.Pipeline(delays=(3, 3), weights="recompute"),
    "later than all batches": fw.Pipeline(delays=(20,)),
}
STEP = partial(torch.optim.SGD, lr=0.3)


def fitted(method: fw.Pipeline, **options) -> fw.Trainer:
    return trainer(stages(len(method.delays)), method, optimizer=STEP, **options)


@spread(name=LATE, runtime=LOCAL)
def test_every_epoch_has_its_own_losses(name, runtime):
    method = LATE[name]
    history = fitted(method, runtime=runtime).fit(loader(), EPOCHS)
    assert history.losses == pytest.approx(expected(method), rel=1e-12)
    assert [(epoch.batches, epoch.samples) for epoch in history.epochs] == [(2 * e, 12) for e in range(1, EPOCHS + 1)]


def test_losses_travel_between_processes_with_their_epochs():
    method = LATE["two stages"]
    assert (
        fitted(method, runtime="processes").fit(loader(), EPOCHS).losses == fitted(method).fit(loader(), EPOCHS).losses
    )


def test_losses_of_replicas_are_those_of_their_epochs():
    method = LATE["two stages"]
    history = fitted(method, replicas=2).fit(loader(), EPOCHS)
    assert history.losses == pytest.approx(expected(method), rel=1e-12)
    assert [epoch.samples for epoch in history.epochs] == [12] * EPOCHS


@spread(name=["one stage", "two stages"], every=[1, 2, 3])
def test_a_run_that_goes_on_has_the_same_losses(name, every, tmp_path, monkeypatch):
    monkeypatch.setattr(_writer, "RETAINED", 99)
    method = LATE[name]
    make = partial(stages, len(method.delays))
    goes_on(tmp_path, lambda: method, make, every=every, data=loader, epochs=EPOCHS, plain=True, optimizer=STEP)


def test_a_run_that_a_callback_ends_has_the_losses_up_to_there():
    method = LATE["one stage"]
    history = fitted(method).fit(loader(), EPOCHS, callbacks=[lambda end: end.record.epoch == 2])
    assert history.losses == pytest.approx(expected(method)[:3], rel=1e-12)


class Interrupted:
    """Ctrl-C comes while the first batch of the third epoch is made, the last one that is trained on."""

    epoch = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.epoch += 1
        for n, batch in enumerate(loader()):
            if (self.epoch, n) == (3, 0):
                signal.raise_signal(signal.SIGINT)
            yield batch


def test_an_epoch_that_is_broken_off_has_the_losses_of_its_batches():
    method = LATE["one stage"]
    history = fitted(method).fit(Interrupted(), EPOCHS)
    losses = by_batch(method)
    assert history.interrupted
    assert [epoch.complete for epoch in history.epochs] == [True, True, False]
    assert history.losses == pytest.approx([*expected(method)[:2], losses[4][0]], rel=1e-12)
