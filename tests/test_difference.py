"""The difference between the gradients that stages apply and the exact ones, against plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import freewheel as fw
from freewheel.stage import Stage
from freewheel.stage._packed import Gone
from freewheel.stage._slots import fill, slots_of
from reference import SGD, Reference
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer
from spread import rarely, spread

LR = 0.1
CLOSE = 1e-9
CHAIN = {
    "fdg": (fw.FDG(shrink=0.5), {"delays": (4, 2, 0), "order": "backward", "shrink": 0.5}),
    "dsp": (fw.DSP(), {"delays": (4, 2, 0), "weights": "recompute"}),
    "pipedream": (fw.PipeDream(), {"delays": (2, 1, 0)}),
    "compensated": (
        fw.Pipeline(delays=(3, 1, 0), corrections=[fw.DelayCompensation(2.0)]),
        {"delays": (3, 1, 0), "compensation": 2.0},
    ),
    "late end": (fw.Pipeline(delays=(2, 1, 1), weights="recompute"), {"delays": (2, 1, 1), "weights": "recompute"}),
}


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    blocks = [nn.Linear(6, 8), nn.Tanh()], [nn.Linear(8, 8), nn.Tanh()], [nn.Linear(8, 3)]
    return [nn.Sequential(*block).double() for block in blocks]


def data(count: int, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    return [(x.double(), y) for x, y in batches(count, seed)]


def flat(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient[name].flatten() for name in sorted(gradient)])


def by_hand(reference: Reference, first: int) -> list[tuple[float, float]]:
    """The mean norms: autograd through the whole network at version n, and the reference's own gradient."""
    found: list[Tensor] = []
    for n in range(first, len(reference.batches)):
        x, y = reference.batches[n]
        weights = [reference.weights(k, n) for k in range(len(reference.stages))]
        leaves = [{name: w.clone().requires_grad_() for name, w in each.items()} for each in weights]
        for stage, each in zip(reference.stages, leaves):
            x = functional_call(stage, each, (x,))
        exact = torch.autograd.grad(F.cross_entropy(x, y), [w for each in leaves for w in each.values()])
        named = iter(exact)
        norms = []
        for k, each in enumerate(leaves):
            true = flat({name: next(named) for name in each})
            ours = reference.gradient(k, n).weights
            if reference.compensation and reference.delays[k]:
                then, now = reference.forward_weights(k, n), weights[k]
                lam = reference.compensation
                ours = {name: g + lam * g * g * (now[name] - then[name]) for name, g in ours.items()}
            norms.append(torch.stack([(flat(ours) - true).norm(), true.norm()]))
        found.append(torch.stack(norms))
    return torch.stack(found).mean(0).tolist()


@spread(name=CHAIN, runtime=["threads", "simulate"], more=[0, 3])
def test_it_is_that_of_plain_pytorch(name: str, runtime: str, more: int) -> None:
    """Of a trainer that has made some steps, so that weights move."""
    method, definition = CHAIN[name]
    made, late = stages(), max(definition["delays"])
    fit = trainer(made, method, runtime=runtime, optimizer=partial(torch.optim.SGD, lr=LR))
    fit.fit(data(6))
    given = data(late + 1 + more, seed=5)
    before = tensors(*made)
    found = fw.gradient_difference(fit, given)
    assert same_bits(before, tensors(*made))
    reference = Reference(made, given, loss=F.cross_entropy, rule=SGD(lr=LR), **definition)
    for ours, (difference, exact) in zip(found, by_hand(reference, late), strict=True):
        assert ours.difference == pytest.approx(difference, abs=CLOSE)
        assert ours.exact == pytest.approx(exact, abs=CLOSE)
        assert ours.relative == pytest.approx(difference / exact)
    assert [each.parameters for each in found] == [6 * 8 + 8, 8 * 8 + 8, 8 * 3 + 3]
    assert found[1].per_parameter == found[1].difference / 72
    assert all(each.difference > 1e-4 for each in found)  # of the last stage, too: what comes into it is old


@pytest.mark.parametrize("name", ["bp", "gpipe", "1f1b"])
def test_without_delays_there_is_none(name: str) -> None:
    """To the last bit, dropout included."""
    fit = trainer(network(3), name)
    fit.fit(batches(2))
    found = fw.gradient_difference(fit, batches(3, seed=5))
    assert [each.difference for each in found] == [0.0] * 3
    assert all(each.exact > 0 for each in found)


def chain_rows() -> list[Any]:
    return [row for row in ROWS if row.make(3).pipeline(3).credit.family == "chain" and row.name != "accumulated"]


@spread(row=chain_rows(), optimizer=["sgd", "adam"], runtime=["simulate", "threads", rarely("processes")])
def test_every_chain_method_is_measured_in_a_callback_and_trains_on_as_before(
    row, optimizer: str, runtime: str
) -> None:
    found: list[Any] = []
    decay = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    options = {"optimizer": OPTIMIZERS[optimizer], "scheduler": decay, "clip": 1.0, "runtime": runtime}
    plain, watched = network(3), network(3)
    trainer(plain, row.make(3), **options).fit(batches(7), epochs=2)
    fit = trainer(watched, row.make(3), **options)
    given = batches(9, seed=5)
    fit.fit(
        batches(7), epochs=2, callbacks=[lambda end: found.append(fw.gradient_difference(fit, given, end)) and None]
    )
    assert same_bits(tensors(*plain), tensors(*watched))
    assert len(found) == 2
    assert found[0] != found[1]
    assert all(each.exact > 0 for each in found[1])
    assert all((each.difference > 0) == (row.name not in ("bp", "gpipe", "1f1b")) for each in found[1])


def test_a_callback_measures_what_a_stopped_training_does_then() -> None:
    found: list[Any] = []
    fit = trainer(network(3), fw.FDG(), runtime="threads")
    given = batches(6, seed=5)

    def measure(end: fw.EpochEnd) -> bool:
        found.append(fw.gradient_difference(fit, given, end))
        return True

    fit.fit(batches(7), epochs=3, callbacks=[measure])
    assert found == [fw.gradient_difference(fit, given)]
    assert found == [fw.gradient_difference(fit, given)]  # again: nothing has changed
    once = network(3)
    other = trainer(once, fw.FDG(), runtime="threads")
    other.fit(batches(7), epochs=3, callbacks=[lambda end: True])
    for each in (fit, other):
        each.fit(batches(4, seed=6))
    assert same_bits(tensors(*fit.stages), tensors(*once))


@pytest.mark.parametrize("measure", ["difference", "alignment"])
def test_a_callback_does_not_touch_the_running_stages(measure: str) -> None:
    """A thread may be in the middle of a backward: the weights of its modules are elsewhere then."""
    fit, found = trainer(network(3), "pipemare", loss=WeightedLoss()), []
    given = batches(6, seed=5)

    def both(end: fw.EpochEnd) -> None:
        for inside in (nullcontext, without_weights):
            with ExitStack() as stack:
                for stage in fit._stages:
                    stack.enter_context(inside(stage))
                if measure == "difference":
                    found.append(fw.gradient_difference(fit, given, end))
                else:
                    found.append(fw.alignment(fit, given[0], end.stages))

    fit.fit(batches(7), callbacks=[both])
    assert found[0] == found[1]
    assert found[0]


@contextmanager
def without_weights(stage: Stage) -> Iterator[None]:
    places = slots_of(stage.module, stage.weights.live)
    fill(places, [Gone()] * len(places))
    try:
        yield
    finally:
        fill(places, stage.weights.live)


@pytest.mark.parametrize("what", ["evaluate", "predict", "alignment", "save"])
def test_what_meets_the_running_stages_is_refused(what: str, tmp_path: Path) -> None:
    fit = trainer(network(2), "fdg")
    calls = {
        "evaluate": lambda: fit.evaluate(batches(2)),
        "predict": lambda: fit.predict(batches(2)),
        "alignment": lambda: fw.alignment(fit, batches(1)[0]),
        "save": lambda: fit.save(tmp_path),
    }
    with pytest.raises(RuntimeError, match=f"{what} while fit is running on this trainer: "):
        fit.fit(batches(3), callbacks=[lambda end: calls[what]() and None])
    calls[what]()


class WeightedLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(out * self.factor, target)


def test_a_loss_with_weights_and_frozen_layers_are_left_alone() -> None:
    loss, made = WeightedLoss(), network(3)
    fit = trainer(made, fw.FDG(), loss=loss)
    fit.fit(batches(3))
    made[1][0][0].weight.requires_grad_(False)  # pyright: ignore
    fit.fit(batches(3))
    before = [*tensors(*made), loss.factor.detach().clone()]
    found = fw.gradient_difference(fit, batches(6))
    assert all(each.difference > 0 for each in found)
    assert same_bits(before, [*tensors(*made), loss.factor.detach()])


def test_what_cannot_be_measured_is_refused() -> None:
    for method in ("asyncfgd", "dfa", "hogwild"):
        with pytest.raises(
            ValueError, match=f"gradient_difference with method='{method}': it compares gradients of the"
        ):
            fw.gradient_difference(trainer(network(2), method), batches(3))
    with pytest.raises(ValueError, match="gradient_difference with Accumulate: a step is made with the gradients of"):
        fw.gradient_difference(trainer(network(2), "pipedream", accumulate=2), batches(3))
    with pytest.raises(ValueError, match="batches has 4, but the first stage is 4 batches late: give 5 or more"):
        fw.gradient_difference(trainer(network(3), "fdg"), batches(4))
    fit, kept = trainer(network(2), "fdg"), []
    with pytest.raises(ValueError, match="gradient_difference takes end in the callback that got it"):
        fit.fit(batches(3), callbacks=[lambda end: fw.gradient_difference(fit, batches(3)) and None])
    fit = trainer(network(2), "fdg")
    fit.fit(batches(3), callbacks=[kept.append])
    with pytest.raises(ValueError, match="gradient_difference takes end in the callback that got it"):
        fw.gradient_difference(fit, batches(3), kept[0])
