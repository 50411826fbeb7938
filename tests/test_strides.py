"""Gradients whose memory is laid out in another way than that of their weights: fused optimizers would mix them up."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from rows import batches, same_bits, trainer

FUSED = {"sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9), "adam": partial(torch.optim.Adam, lr=0.01)}


class Turned(nn.Module):
    """A linear layer that autograd gives a gradient by columns for a weight by rows."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t().contiguous())


class ByColumns(nn.Linear):
    """A linear layer with its weight by columns."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())


def stages(layer: type[nn.Module] = Turned) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(layer(6, 8), nn.Tanh()), nn.Sequential(layer(8, 8), nn.Tanh(), layer(8, 3))]


def weights(modules: list[nn.Module]) -> list[Tensor]:
    return [p.detach() for module in modules for p in module.parameters()]


def learned(method, optimizer, layer: type[nn.Module] = Turned, **options) -> list[Tensor]:
    made = stages(layer)
    trainer(made, method, optimizer=optimizer, **options).fit(batches(6))
    return weights(made)


def test_autograd_gives_such_a_gradient() -> None:
    layer = Turned(6, 8)
    (gradient,) = torch.autograd.grad(layer(torch.ones(2, 6)).sum(), [layer.weight])
    assert gradient.stride() != layer.weight.stride()


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_optimizer_steps_as_in_plain_pytorch(name: str) -> None:
    make = partial(FUSED[name], fused=True)
    plain = stages()
    optimizer = make([p for stage in plain for p in stage.parameters()])
    for x, y in batches(6):
        optimizer.zero_grad()
        F.cross_entropy(plain[1](plain[0](x)), y).backward()
        optimizer.step()
    assert same_bits(learned("bp", make), weights(plain))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("method", ["pipedream", "fgd", "dni", "async-lu", "hogwild"])
@pytest.mark.parametrize("layer", [Turned, ByColumns])
def test_a_fused_optimizer_steps_as_another_form_of_it(layer, method: str, name: str) -> None:
    found, expected = (learned(method, partial(FUSED[name], **form), layer) for form in ({"fused": True}, {}))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_heads_of_their_own() -> None:
    def head(stage: int) -> nn.Module:
        torch.manual_seed(1)
        return Turned(8, 3)

    found, expected = (learned(fw.DGL(heads=head), partial(FUSED["sgd"], **form)) for form in ({"fused": True}, {}))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
def test_a_checkpoint_of_another_layout(tmp_path, name: str) -> None:
    """What an optimizer has kept is laid out as the weights it goes on with."""
    turned, found, expected = (stages(layer) for layer in (ByColumns, nn.Linear, nn.Linear))
    first = trainer(turned, "bp", optimizer=FUSED[name])
    first.fit(batches(4))
    first.save(tmp_path / "checkpoint")
    for made, form in ((found, {"fused": True}), (expected, {})):
        again = partial(fw.Trainer.resume, tmp_path / "checkpoint")
        options = {"optimizer": partial(FUSED[name], **form), "method": "bp", "loss": F.cross_entropy, "seed": 3}
        going = again(made, **options, runtime="simulate", threads=1)
        for stage in going._stages:  # the checkpoint's own settings came with its state
            for group in stage.optimizer.param_groups:  # pyright: ignore[reportOptionalMemberAccess]
                group |= {"fused": bool(form), "foreach": None}
        going.fit(batches(4, seed=5))
    for a, b in zip(weights(found), weights(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
