"""The step size of FDG's eq. 11: that of the batch which is forwarded at the time of the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import freewheel as fw
from checkpoints import goes_on
from freewheel.checkpoint import _writer
from reference import SGD, Reference, distance
from rows import batches, network, trainer
from spread import rarely, spread

CLOSE, FAR = 1e-10, 1e-5
LR, GAMMA, COUNT = 0.2, 0.8, 18
DELAYS = (4, 2, 0)
DECAY = partial(lr_scheduler.ExponentialLR, gamma=GAMMA)


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    blocks = [nn.Linear(6, 8), nn.Tanh()], [nn.Linear(8, 8), nn.Tanh()], [nn.Linear(8, 3)]
    return [nn.Sequential(*block).double() for block in blocks]


def data(count: int = COUNT, seed: int = 1) -> list[Any]:
    return [(x.double(), y) for x, y in batches(count, seed)]


def expected(
    schedule: Callable[[int], float], given: list[Any], from_: list[nn.Module] | None = None, **definition: Any
):
    made = stages() if from_ is None else from_
    definition = {"delays": DELAYS, "order": "backward", "leads": True, **definition}
    return Reference(made, given, loss=F.cross_entropy, rule=SGD(lr=LR), schedule=schedule, **definition)


def fitted(made: list[nn.Module], method: fw.Method, **options: Any) -> fw.Trainer:
    optimizer = partial(torch.optim.SGD, lr=LR)
    return trainer(made, method, **{"optimizer": optimizer, "scheduler": DECAY, **options})


@spread(order=["backward", "forward"], leads=[True, False], runtime=["simulate", "threads", rarely("processes")])
def test_an_update_takes_the_step_size_of_its_time_or_of_its_batch(order: str, leads: bool, runtime: str) -> None:
    method = fw.FDG(order=order, step_size="update" if leads else "gradient")  # pyright: ignore[reportArgumentType]
    made = stages()
    fit = fitted(made, method, runtime=runtime)
    fit.fit(data())
    weights = expected(lambda n: GAMMA**n, data(), order=order, leads=leads).train()
    assert distance(made, weights) < CLOSE
    assert distance(made, expected(lambda n: GAMMA**n, data(), order=order, leads=not leads).train()) > FAR
    rates = [o.param_groups[0]["lr"] for o in fit.optimizers]
    assert rates == pytest.approx([LR * GAMMA**COUNT] * 3)  # all have seen as many batches in the end


@pytest.mark.parametrize("each", [3, 5])
@pytest.mark.parametrize("order", ["backward", "forward"])
def test_a_scheduler_by_epoch_counts_the_epoch_that_is_forwarded(order: Any, each: int) -> None:
    """Also where an epoch is shorter than the delay."""
    made, epochs = stages(), 4
    fit = fitted(made, fw.FDG(order=order), scheduler_every="epoch")
    fit.fit(data(each), epochs=epochs)
    weights = expected(lambda n: GAMMA ** (n // each), data(each) * epochs, order=order).train()
    assert distance(made, weights) < CLOSE
    assert [o.param_groups[0]["lr"] for o in fit.optimizers] == pytest.approx([LR * GAMMA**epochs] * 3)


@pytest.mark.parametrize("order", ["backward", "forward"])
def test_a_fit_that_is_shorter_than_the_delay(order: Any) -> None:
    made = stages()
    fit = fitted(made, fw.FDG(order=order))
    fit.fit(data(2))
    assert distance(made, expected(lambda n: GAMMA**n, data(2), order=order).train()) < CLOSE
    assert [o.param_groups[0]["lr"] for o in fit.optimizers] == pytest.approx([LR * GAMMA**2] * 3)


def test_several_fits_go_on() -> None:
    made, done = stages(), 0
    fit = fitted(made, fw.FDG())
    for count in (7, 3, 8):
        part = data(count, seed=count)
        weights = expected(lambda n, done=done: GAMMA ** (done + n), part, made).train()
        fit.fit(part)
        done += count
        assert distance(made, weights) < CLOSE


def test_a_fit_that_is_ended_at_a_cut_goes_on_from_there() -> None:
    """Its late stages had gone on to later step sizes."""
    made, each = stages(), 6
    whole = expected(lambda n: GAMMA**n, data(each) * 3)
    fit = fitted(made, fw.FDG())
    fit.fit(data(each), epochs=3, callbacks=[lambda end: True])
    assert distance(made, [whole.weights(k, each) for k in range(3)]) < CLOSE
    weights = expected(lambda n: GAMMA ** (each + n), data(7, seed=3), made).train()
    fit.fit(data(7, seed=3))
    assert distance(made, weights) < CLOSE


@pytest.mark.parametrize("every", [2, 3])
def test_accumulation_counts_steps(every: int) -> None:
    made = stages()
    fitted(made, fw.FDG(), accumulate=every).fit(data())
    assert distance(made, expected(lambda n: GAMMA ** (n // every), data(), every=every).train()) < CLOSE


@spread(counts=["batch", "epoch"], first=["simulate", "threads"], second=["threads", "simulate", rarely("processes")])
def test_saved_in_flight_and_resumed_is_not_stopping(
    counts: str, first: str, second: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(_writer, "RETAINED", 99)
    options = {"scheduler": DECAY, "scheduler_every": counts, "plain": True}
    goes_on(tmp_path, fw.FDG, lambda seed: network(3, seed), every=4, runtimes=(first, second), **options)


@dataclass(frozen=True)
class EverySecond(fw.Correction):
    """Skips steps, and does not tell."""

    collects: ClassVar[bool] = True

    def update(self, step: Any, state: Any) -> Any:
        return step._replace(skip=step.number % 2 == 0), state


def test_a_correction_that_skips_must_tell() -> None:
    method = fw.Pipeline(delays=(2, 1, 0), corrections=[EverySecond(), fw.CurrentStepSize()])
    with pytest.raises(fw.StageError, match="EverySecond skips a step that its method `skips` does not tell of"):
        fitted(stages(), method).fit(data())


def test_only_two_step_sizes_are_known() -> None:
    with pytest.raises(ValueError, match="step_size 'now'"):
        fw.FDG(step_size="now")  # pyright: ignore[reportArgumentType]
