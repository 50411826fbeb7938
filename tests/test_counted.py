"""Tangents drawn inside compiled kernels: what is perturbed is what the update uses, on every runtime."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import freewheel as fw
from checkpoints import resume, saved_at
from freewheel.credit import _dual_stage
from freewheel.stage import Launcher, NotYetError
from freewheel.tangents import CountedTangents, PendingBatch
from rows import batches, same_bits, tensors, trainer
from spread import exhaustive

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
ADAM = partial(torch.optim.AdamW, lr=0.01)


@pytest.fixture(autouse=True)
def counting(monkeypatch):
    """Draw tangents inside kernels on a CPU, too."""
    monkeypatch.setattr(_dual_stage, "COUNTS", ["cpu", "cuda"])


def stages(dropout=False):
    torch.manual_seed(0)
    between = [nn.Dropout(0.5)] if dropout else []
    return [nn.Sequential(nn.Linear(6, 5), *between, nn.BatchNorm1d(5)), nn.Sequential(nn.ReLU(), nn.Linear(5, 3))]


def train(method, runtime="simulate", dropout=False, **options):
    made = trainer(stages(dropout), method, runtime=runtime, compile=True, **{"optimizer": SGD, **options})
    made.fit([*batches(5), *batches(1, size=2)], epochs=2)
    return tensors(*made.stages)


@exhaustive
@pytest.mark.parametrize("optimizer", [SGD, ADAM, partial(torch.optim.RMSprop, lr=0.01)], ids=["sgd", "adamw", "other"])
@pytest.mark.parametrize("options", [{}, {"tangents": 3, "distribution": "sphere"}, {"scale": 0.3}], ids=str)
def test_threads_agree_with_simulate(options, optimizer):
    method = fw.AsyncFGD(**options)
    assert same_bits(*(train(method, runtime, optimizer=optimizer) for runtime in ("simulate", "threads")))


@exhaustive
@pytest.mark.parametrize("distribution", ["gaussian", "rademacher", "sphere"])
def test_the_gradient_is_the_derivative_times_the_tangent(distribution):
    """From two updates with unrelated step sizes: (w0 - w1) / lr = d·u has d = |∇L·u| of that very u."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 1, bias=False).double()
    x, y = torch.randn(8, 4, dtype=torch.double), torch.randn(8, 1, dtype=torch.double)
    before = layer.weight.detach().clone()
    sgd = partial(torch.optim.SGD, lr=0.5)
    options = {"loss": nn.functional.mse_loss, "optimizer": sgd, "runtime": "simulate", "compile": True}
    fw.Trainer([layer], method=fw.FGD(distribution=distribution), **options).fit([(x, y)])
    g = (before - layer.weight.detach()) / 0.5
    weight = before.requires_grad_()
    (true,) = torch.autograd.grad(nn.functional.mse_loss(x @ weight.t(), y), [weight])
    # g = d·u and d = true·u, so that true·g = d² and |g|² = d²·|u|²
    d = (true * g).sum().sqrt()
    u = g / d
    assert torch.allclose((true * u).sum(), d)
    if distribution == "rademacher":
        assert torch.allclose(u.abs(), torch.ones_like(u))
    if distribution == "sphere":
        assert torch.allclose(u.norm(), torch.tensor(2.0, dtype=torch.double))


@exhaustive
def test_stages_with_dropout_are_not_compiled_but_draw_the_same_tangents():
    method = fw.AsyncFGD()
    with pytest.warns(UserWarning, match="draws random numbers"):
        wanted, found = (train(method, runtime, dropout=True) for runtime in ("simulate", "threads"))
    assert same_bits(wanted, found)


@exhaustive
def test_resumes(tmp_path):
    method = fw.AsyncFGD()
    begun = trainer(stages(), method, runtime="simulate", optimizer=SGD, compile=True)
    begun.fit(batches(8), epochs=2, save_to=tmp_path, save_every=5)
    path = next(iter(saved_at(tmp_path).values()))
    again = resume(path, stages(), method, runtime="threads", optimizer=SGD, compile=True)
    again.fit(batches(8), epochs=2)
    assert same_bits(tensors(*begun.stages), tensors(*again.stages))


def test_a_capture_neither_copies_a_scale_nor_compiles():
    """A scale may change with the epoch, when the forward has long been captured with another one."""
    launcher, weight = Launcher(), nn.Parameter(torch.zeros(2, 3))
    counted = CountedTangents(fw.Forward(), (3, 0), [weight], {}, torch.device("cpu"), lambda: launcher)
    for call in (
        lambda: counted.given(PendingBatch(5, (0.5,)), 0),
        lambda: counted.draw_all(PendingBatch(5, (1.0,)), [0]),
    ):
        launcher.captures = True
        with pytest.raises(NotYetError):
            call()
        launcher.captures = False
        call()
        launcher.captures = True
        call()
