"""Compiled dual passes: the same steps, within rounding, and the same bits on every runtime."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import freewheel as fw
from checkpoints import goes_on
from rows import batches, same_bits, tensors, trainer
from spread import exhaustive, rarely

pytestmark = pytest.mark.timeout(1200)  # the compiler shares the cores with other tests


def stages() -> list[nn.Module]:
    """BatchNorm, whose statistics must be updated once, and a stage that edits its input."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh())
    return [first, nn.Sequential(nn.ReLU(inplace=True), nn.Linear(12, 3))]


def trained(compiled: bool, runtime: str = "simulate", fits: int = 1, **options) -> list[torch.Tensor]:
    modules = stages()
    run = trainer(modules, fw.AsyncFGD(**options), runtime=runtime, compile=compiled)
    for _ in range(fits):
        run.fit(batches(8))
    return tensors(*modules)


@pytest.mark.parametrize("options", [{}, rarely({"tangents": 3}), rarely({"scale": {"*.bias": 0.0}})], ids=str)
def test_compiled_steps_are_the_same_steps(options: dict) -> None:
    eager, compiled = trained(False, **options), trained(True, **options)
    for a, b in zip(eager, compiled):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not same_bits(eager, trained(False, distribution="sphere"))  # the steps do differ between directions


@exhaustive
def test_threads_equal_simulate_when_compiled() -> None:
    assert same_bits(trained(True, "simulate", fits=2), trained(True, "threads", fits=2))


def test_a_stage_that_draws_is_not_compiled() -> None:
    modules = [nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.3)), nn.Linear(12, 3)]
    with pytest.warns(UserWarning, match="stage 0 draws random numbers"):
        trainer(modules, fw.FGD(), compile=True).fit(batches(2))


def test_what_cannot_be_traced_is_said_in_one_line() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(fw.StageError, match=r"stage 1 .*compile=True: .*leave compile out"):
        trainer([nn.Linear(6, 3), Asks()], fw.FGD(), compile=True).fit(batches(2))


def test_a_mode_that_is_changed_between_fits() -> None:
    """The pass that was compiled for training went on with the statistics of the batch."""

    def run(compiled: bool) -> list[torch.Tensor]:
        modules = stages()
        made = trainer(modules, fw.FGD(scale=0.1), compile=compiled)
        made.fit(batches(3))
        modules[0][1].eval()
        made.fit(batches(3))
        return tensors(*modules)

    for a, b in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


class Averages(nn.Module):
    """Puts another tensor in the place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class Counts(nn.Module):
    """Counts its calls in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        return x * self.calls[0]


@pytest.mark.parametrize("module", [Averages, Counts])
def test_what_a_pass_would_change_only_once_is_refused(module) -> None:
    modules = [nn.Linear(6, 3), module()]
    before = tensors(*modules)
    with pytest.raises(
        fw.StageError, match=r"of stages\[1\] changes in forward, which compiled code would do only once"
    ):
        trainer(modules, fw.FGD(), compile=True).fit(batches(2))
    assert same_bits(before, tensors(*modules))


def test_activations_cannot_be_compiled() -> None:
    with pytest.raises(ValueError, match="compile=True with perturb='activations'"):
        trainer(stages(), fw.AsyncFGD(perturb="activations"), compile=True)


@exhaustive
def test_a_resumed_run_compiles_for_the_form_that_it_was_compiled_for(tmp_path) -> None:
    """The batches that come first after the checkpoint are smaller; they run as they are."""

    def sizes() -> list:
        return [(x[:5], y[:5]) if n > 2 else (x, y) for n, (x, y) in enumerate(batches(6))]

    def made(seed: int) -> list[nn.Module]:
        torch.manual_seed(seed)
        return [nn.Sequential(nn.Linear(6, 12), nn.Tanh()), nn.Linear(12, 3)]

    goes_on(tmp_path, lambda: fw.AsyncFGD(scale=0.1), made, data=sizes, every=8, compile=True)


class Shared(nn.Module):
    """A BatchNorm that is used twice, between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(3))

    def forward(self, x):
        first, twice, last = self.norms
        return last(twice(twice(first(x))))


def test_every_batchnorm_counts_its_batches():
    stages = [Shared(), nn.Linear(6, 3)]
    data = batches(5)
    trainer(stages, "asyncfgd", compile=True).fit([data[0]] * 5, epochs=2)
    assert [int(norm.num_batches_tracked) for norm in stages[0].norms] == [10, 20, 10]
