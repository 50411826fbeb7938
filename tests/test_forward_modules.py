"""The dual pass, module by module, against reverse mode: one step of fgd is d·u with d = Σ <∂loss/∂w, u>."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import freewheel as fw
from spread import exhaustive, spread

SIZE = 5  # samples a batch
RUNTIMES = ("simulate", "threads")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}  # of the largest move


def direction(batch: int, stage: int, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Depends on the names alone."""
    return {name: draw(f"{batch} {stage} {name}", p) for name, p in params.items()}


def draw(key: str, like: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(like.shape, generator=g, dtype=torch.float64).to(like.dtype)


def step(stages: list[nn.Module], batch: tuple[Any, Tensor], *, loss: Any = F.mse_loss, **options: Any) -> fw.History:
    """One step of length 1."""
    options = {"runtime": "simulate", "seed": 0} | options
    method = options.pop("method", None) or fw.method("fgd", direction=direction)
    trainer = fw.Trainer(
        stages, check=False, method=method, loss=loss, optimizer=partial(torch.optim.SGD, lr=1.0), threads=1, **options
    )
    return trainer.fit([batch], progress=False)


def to_double(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.double() if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {key: to_double(value) for key, value in tree.items()}
    return tuple(to_double(value) for value in tree)


def reverse(stages: list[nn.Module], batch: tuple[Any, Tensor], loss: Any = F.mse_loss) -> tuple[float, list[dict]]:
    """The directional derivative of the whole loss by reverse mode, and the moves d·u; None for what is not used."""
    whole = nn.Sequential(*deepcopy(stages)).double().train()
    x, y = batch
    loss(whole(to_double(x)), to_double(y)).backward()
    d, drawn = 0.0, []
    for k, stage in enumerate(stages):
        params = dict(stage.named_parameters())
        u = direction(0, k, params)
        for name in params:
            slope = whole[k].get_parameter(name).grad
            if slope is None:
                del u[name]
            else:
                d += float((slope * u[name].double()).sum())
        drawn.append(u)
    return d, [{name: d * u.double() for name, u in part.items()} for part in drawn]


def check(stages: list[nn.Module], batch: tuple[Any, Tensor], loss: Any = F.mse_loss, **options: Any) -> None:
    before = deepcopy(stages)
    d, wanted = reverse(stages, batch, loss)
    assert abs(d) > 1e-3, "a derivative that shows nothing"
    step(stages, batch, loss=loss, **options)
    for k, (old, new, moves) in enumerate(zip(before, stages, wanted, strict=True)):
        for name, p in new.named_parameters():
            start = old.get_parameter(name).detach()
            if name not in moves:
                assert torch.equal(p, start), (k, name)
                continue
            far = (start.double() - p.detach().double() - moves[name]).abs().max().item()
            assert far <= TOLERANCE[p.dtype] * max(1.0, moves[name].abs().max().item()), (k, name)


# The modules. -----------------------------------------------------------------------------------------------------


class Mix(nn.Module):
    """Something with parameters on either side, so that a tangent comes in and goes on."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.2 * torch.randn(shape))
        self.shift = nn.Parameter(0.2 * torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.scale + self.shift) + 0.1 * x


class Apply(nn.Module):
    """A function, and the modules it uses."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.used = function, nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.used)


def attention(heads: int, need_weights: bool, **options: Any) -> nn.Module:
    def use(x: Tensor, layer: nn.Module) -> Tensor:
        y, seen = layer(x, x.flip(1), x * 0.5, need_weights=need_weights, **options)
        return y if seen is None else y + seen @ x

    return Apply(use, nn.MultiheadAttention(6, heads, batch_first=True))


def sdpa(**options: Any) -> nn.Module:
    def use(x: Tensor, *layers: nn.Module) -> Tensor:
        q, k, v = (layer(x).unflatten(2, (2, 3)).transpose(1, 2) for layer in layers)
        mask = options.get("attn_mask")
        if mask is None or mask.dtype == torch.bool:
            return F.scaled_dot_product_attention(q, k, v, **options)
        return F.scaled_dot_product_attention(q, k, v, **(options | {"attn_mask": mask.to(x.dtype)}))

    return Apply(use, nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))


def recurrent(kind: Any, **options: Any) -> nn.Module:
    """The outputs of every time step, and all last states."""

    def use(x: Tensor, layer: nn.Module) -> Tensor:
        y, state = layer(x)
        states = state if isinstance(state, tuple) else (state,)
        return torch.cat([y.flatten(1), *(s.transpose(0, 1).flatten(1) for s in states)], 1)

    return Apply(use, kind(4, 3, batch_first=True, **options))


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.SiLU(), Mix(6), layer)


def tied_transposed() -> nn.Module:
    """The same weight, there and back: that of another module, used functionally."""
    return Apply(lambda x, fc: F.linear(torch.tanh(fc(x)), fc.weight.T), nn.Linear(6, 4))


def shared_parameter() -> nn.Module:
    """One parameter under two names."""
    one, two = nn.Linear(6, 6), nn.Linear(6, 6)
    two.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), two)


def residual() -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
    )
    return Apply(lambda x, body: F.relu(x + body(x)), body)


def squeeze() -> nn.Module:
    def use(x: Tensor, down: nn.Module, up: nn.Module) -> Tensor:
        return x * F.hardsigmoid(up(F.relu(down(F.adaptive_avg_pool2d(x, 1)))))

    return Apply(use, nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1))


def in_place() -> nn.Module:
    def use(x: Tensor, one: nn.Module, two: nn.Module) -> Tensor:
        y = one(x)
        y += two(x)
        y[:, 0] = y[:, 1] * 2
        y.mul_(x.sum(1, keepdim=True)).tanh_()
        return y

    return Apply(use, nn.Linear(6, 5), nn.Linear(6, 5))


def normalised() -> nn.Module:
    """By a number that is taken as given: what is computed without gradients has none forward either."""

    def use(x: Tensor, layer: nn.Module) -> Tensor:
        y = layer(x)
        with torch.no_grad():
            size = y.abs().mean()
        return y / size

    return Apply(use, nn.Linear(6, 4))


def bias_alone(layer: nn.Conv2d) -> nn.Module:
    layer.weight.requires_grad_(False)
    return layer


def called_with_names() -> nn.Module:
    """Arguments by name; and a sample by itself, without the batch's dimension."""

    def use(x: Tensor, layer: nn.Module) -> Tensor:
        y = F.conv2d(bias=layer.bias, weight=layer.weight, input=x, groups=2, stride=(2, 1), padding=(1, 0))
        return y + torch.stack([F.conv2d(one, layer.weight, None, (2, 1), (1, 0), 1, 2) for one in x])

    return Apply(use, nn.Conv2d(2, 4, 3, groups=2))


def causal() -> Tensor:
    return torch.ones(4, 4, dtype=torch.bool).tril()


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a sample


CASES = {
    "conv1d": Case(lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 7)),
    "conv2d": Case(lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 5, 5)),
    "conv2d-depthwise": Case(lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (4, 5, 5)),
    "conv2d-dilated": Case(lambda: nn.Conv2d(2, 4, 3, dilation=2, stride=2, groups=2), (2, 7, 7)),
    "conv2d-same": Case(lambda: nn.Conv2d(2, 3, (1, 3), padding="same", dilation=(1, 2)), (2, 4, 5)),
    "conv2d-valid": Case(lambda: nn.Conv2d(2, 3, 2, padding="valid", bias=False), (2, 4, 4)),
    "conv2d-frozen": Case(lambda: nn.Conv2d(2, 3, 2).requires_grad_(False), (2, 4, 4)),
    "conv2d-bias-alone": Case(lambda: bias_alone(nn.Conv2d(2, 3, 2)), (2, 4, 4)),
    "conv2d-called": Case(lambda: called_with_names(), (2, 5, 5)),
    "conv2d-circular": Case(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "conv3d": Case(lambda: nn.Conv3d(2, 3, 2), (2, 3, 4, 3)),
    "conv-transpose2d": Case(lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, output_padding=1), (3, 3, 3)),
    "linear": Case(lambda: nn.Linear(6, 4), (6,)),
    "linear-3d": Case(lambda: nn.Linear(6, 4, bias=False), (3, 6)),
    "bilinear": Case(lambda: Apply(lambda x, layer: layer(x, x * 0.5), nn.Bilinear(4, 4, 3)), (4,)),
    "batchnorm1d": Case(lambda: nn.BatchNorm1d(6), (6,)),
    "batchnorm1d-3d": Case(lambda: nn.BatchNorm1d(3), (3, 4)),
    "batchnorm2d": Case(lambda: nn.BatchNorm2d(3), (3, 4, 4)),
    "batchnorm2d-plain": Case(lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False), (3, 4, 4)),
    "batchnorm2d-cumulative": Case(lambda: nn.BatchNorm2d(3, momentum=None), (3, 4, 4)),
    "layernorm": Case(lambda: nn.LayerNorm(6), (6,)),
    "layernorm-2d": Case(lambda: nn.LayerNorm((3, 4), bias=False), (3, 4)),
    "rmsnorm": Case(lambda: nn.RMSNorm(6), (3, 6)),
    "groupnorm": Case(lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "instancenorm": Case(lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    "instancenorm-tracked": Case(lambda: nn.InstanceNorm1d(3, track_running_stats=True), (3, 6)),
    "maxpool": Case(lambda: nn.MaxPool2d(2), (2, 4, 4)),
    "maxpool-overlap": Case(lambda: nn.MaxPool2d(3, stride=1, padding=1), (2, 4, 4)),
    "maxpool1d": Case(lambda: nn.MaxPool1d(2), (2, 6)),
    "avgpool": Case(lambda: nn.AvgPool2d(2, stride=1), (2, 4, 4)),
    "adaptive-avgpool": Case(lambda: nn.AdaptiveAvgPool2d(2), (2, 5, 5)),
    "adaptive-avgpool-1": Case(lambda: nn.AdaptiveAvgPool2d(1), (4, 5, 5)),
    "adaptive-maxpool": Case(lambda: nn.AdaptiveMaxPool2d(2), (2, 5, 5)),
    "no-dropout": Case(lambda: nn.Dropout(0.0), (6,)),
    "attention": Case(lambda: attention(2, need_weights=False), (4, 6)),
    "attention-weights": Case(lambda: attention(3, need_weights=True), (4, 6)),
    "attention-masked": Case(lambda: attention(2, need_weights=False, attn_mask=~causal()), (4, 6)),
    "attention-causal": Case(lambda: attention(2, need_weights=False, attn_mask=~causal(), is_causal=True), (4, 6)),
    "sdpa": Case(sdpa, (4, 6)),
    "sdpa-causal": Case(lambda: sdpa(is_causal=True), (4, 6)),
    "sdpa-mask": Case(lambda: sdpa(attn_mask=causal(), scale=0.7), (4, 6)),
    "sdpa-bias": Case(lambda: sdpa(attn_mask=torch.arange(16.0).view(4, 4).sin()), (4, 6)),
    "encoder-layer": Case(lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), (4, 6)),
    "encoder-layer-gelu": Case(
        lambda: nn.TransformerEncoderLayer(6, 3, 8, dropout=0.0, activation="gelu", batch_first=True, norm_first=True),
        (4, 6),
    ),
    "rnn": Case(lambda: recurrent(nn.RNN), (5, 4)),
    "rnn-relu": Case(lambda: recurrent(nn.RNN, nonlinearity="relu", num_layers=2, bias=False), (5, 4)),
    "gru": Case(lambda: recurrent(nn.GRU), (5, 4)),
    "gru-deep": Case(lambda: recurrent(nn.GRU, num_layers=2, bidirectional=True), (5, 4)),
    "lstm": Case(lambda: recurrent(nn.LSTM), (5, 4)),
    "lstm-deep": Case(lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True), (5, 4)),
    "lstm-projected": Case(lambda: recurrent(nn.LSTM, proj_size=2, num_layers=2), (5, 4)),
    "lstm-cell": Case(lambda: Apply(lambda x, cell: torch.cat(cell(x, cell(x)), 1), nn.LSTMCell(4, 3)), (4,)),
    "tied": Case(tied, (6,)),
    "tied-transposed": Case(tied_transposed, (6,)),
    "shared-parameter": Case(shared_parameter, (6,)),
    "weight-norm": Case(lambda: weight_norm(nn.Linear(6, 4)), (6,)),
    "weight-norm-conv": Case(lambda: weight_norm(nn.Conv2d(2, 3, 3)), (2, 4, 4)),
    "spectral-norm": Case(lambda: spectral_norm(nn.Linear(6, 4)), (6,)),
    "softmax": Case(lambda: nn.Softmax(-1), (6,)),
    "gelu": Case(nn.GELU, (6,)),
    "gelu-tanh": Case(lambda: nn.GELU("tanh"), (6,)),
    "silu": Case(nn.SiLU, (6,)),
    "silu-in-place": Case(lambda: nn.SiLU(inplace=True), (6,)),
    "hardswish": Case(lambda: Apply(lambda x: F.hardswish(4 * x)), (6,)),
    "hardswish-in-place": Case(lambda: nn.Hardswish(inplace=True), (6,)),
    "relu6-in-place": Case(lambda: nn.ReLU6(inplace=True), (6,)),
    "leaky-relu": Case(lambda: nn.LeakyReLU(0.2), (6,)),
    "elu": Case(nn.ELU, (6,)),
    "prelu": Case(lambda: nn.PReLU(3), (3, 4)),
    "log-softmax": Case(lambda: nn.LogSoftmax(1), (6,)),
    "residual": Case(residual, (3, 4, 4)),
    "squeeze-excite": Case(squeeze, (4, 4, 4)),
    "in-place": Case(in_place, (6,)),
    "pieces": Case(
        lambda: Apply(lambda x: torch.cat([a * b for a, b in zip(x.chunk(2, 1), x.flip(1).chunk(2, 1))], 1)), (6,)
    ),
    "interpolate": Case(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 3)),
    "pad": Case(lambda: nn.ReflectionPad2d(1), (2, 3, 3)),
    "detached": Case(lambda: Apply(lambda x: x * x.detach() + (x.round() - x).detach()), (6,)),
    "no-grad": Case(normalised, (6,)),
    "einsum": Case(lambda: Apply(lambda x: torch.einsum("bij,bkj->bik", x, x.exp())), (3, 4)),
    "glu": Case(nn.GLU, (6,)),
    "sort": Case(lambda: Apply(lambda x: x.sort(1).values.cumsum(1)), (6,)),
}


def build(case: Case, where: str, dtype: torch.dtype) -> tuple[list[nn.Module], tuple[Tensor, Tensor]]:
    """The module at the end of the first stage, or at the start of the second: its input is a dual either way."""
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(repr(case.shape).encode()))
        module = case.make()
        x, y = torch.randn(SIZE, *case.shape), torch.randn(SIZE, 3)
        out = deepcopy(module).train()(x.clone()).shape[1:]
        last = [Mix(*out), nn.Flatten(), nn.Linear(out.numel(), 3)]
        if where == "first":
            stages = [nn.Sequential(Mix(*case.shape), module), nn.Sequential(*last)]
        else:
            stages = [Mix(*case.shape), nn.Sequential(module, *last)]
        return [stage.to(dtype) for stage in stages], (x.to(dtype), y.to(dtype))


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch says so of its own single-precision kernel
@spread(name=CASES, dtype=[torch.float64, torch.float32], where=["first", "second"])
def test_one_step_is_the_derivative_of_reverse_mode(name: str, dtype: torch.dtype, where: str) -> None:
    check(*build(CASES[name], where, dtype))


@pytest.mark.parametrize("name", ["residual", "lstm-deep", "encoder-layer", "sdpa-causal", "tied", "weight-norm"])
def test_one_step_on_threads(name: str) -> None:
    check(*build(CASES[name], "second", torch.float64), runtime="threads")


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv2d-depthwise", "conv2d-same", "conv3d", "linear"])
def test_a_layer_whose_input_has_no_tangent(name: str) -> None:
    stages, batch = build(CASES[name], "second", torch.float64)
    check([stages[1]], batch)


@pytest.mark.usefixtures("cpu_bfloat16")
def test_convolutions_under_autocast() -> None:
    """bfloat16 has three digits; a tangent left out would take more than that away."""
    stages, batch = build(CASES["conv2d"], "second", torch.float32)
    d, wanted = reverse(stages, batch)
    before = deepcopy(stages)
    step(stages, batch, autocast=torch.bfloat16)
    for old, new, moves in zip(before, stages, wanted, strict=True):
        for name, p in new.named_parameters():
            moved = (old.get_parameter(name) - p).detach().double()
            torch.testing.assert_close(moved, moves[name], rtol=0.1, atol=0.02 * abs(d))


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_stage_without_parameters(where: int) -> None:
    stages, batch = build(CASES["linear"], "first", torch.float64)
    stages.insert(where, nn.Softsign())
    check(stages, batch)


# Inputs and outputs that are not one tensor of numbers. -----------------------------------------------------------


def made(seed: int, *parts: Callable[[], Any]) -> list[Any]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [part() for part in parts]


def words(*shape: int) -> Tensor:
    return torch.randint(7, shape)


def embedded(**options: Any) -> tuple[list[nn.Module], tuple[Tensor, Tensor]]:
    first, second, x, y = made(
        0,
        lambda: nn.Sequential(nn.Embedding(7, 4, **options), Mix(3, 4)).double(),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double(),
        partial(words, SIZE, 3),
        partial(torch.randn, SIZE, 3, dtype=torch.float64),
    )
    return [first, second], (x, y)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_embedding(runtime: str) -> None:
    check(*embedded(), runtime=runtime)


def test_the_padding_of_an_embedding_stays() -> None:
    """Its row has no derivative by definition."""
    stages, (x, y) = embedded(padding_idx=0)
    assert (x == 0).any()
    before = deepcopy(stages)
    _, wanted = reverse(stages, (x, y))
    step(stages, (x, y))
    move = before[0][0].weight.detach() - stages[0][0].weight.detach()
    assert not move[0].any()
    torch.testing.assert_close(move[1:], wanted[0]["0.weight"][1:], rtol=0, atol=1e-10)


class Give(nn.Module):
    """A tree with a passenger that no tangent goes through."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear, self.side = kind, nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        a, ids = (x["a"], x["ids"]) if isinstance(x, dict) else x
        h, skip = torch.tanh(self.linear(a)), self.side(a)
        return {"h": h, "more": [skip * 2, a], "ids": ids} if self.kind == "dict" else (h, (skip * 2, a), ids)


class Take(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 5), nn.Linear(9, 3)

    def forward(self, x: Any) -> Tensor:
        h, (skip, a), ids = (x["h"], x["more"], x["ids"]) if isinstance(x, dict) else x
        return self.out(torch.cat([torch.tanh(h * skip + self.table(ids)), a], 1))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_trees_between_stages(kind: str, runtime: str) -> None:
    give, take, a, ids, y = made(
        0,
        lambda: Give(kind).double(),
        lambda: Take().double(),
        partial(torch.randn, SIZE, 4, dtype=torch.float64),
        partial(words, SIZE),
        partial(torch.randn, SIZE, 3, dtype=torch.float64),
    )
    x = {"a": a, "ids": ids} if kind == "dict" else (a, ids)
    check([give, take], (x, y), runtime=runtime)


class Spare(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.spare = nn.Linear(6, 6), nn.Linear(6, 6)
        self.alone = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


@spread(name=["fgd", "asyncfgd", "fgd-mp", "fgd-dp", "fgd-sync"], runtime=RUNTIMES)
def test_a_parameter_that_is_not_used_stays(name: str, runtime: str) -> None:
    """Also from weight decay and momentum, as in reverse mode, where it has no gradient."""
    one, two, x, y = made(
        0,
        Spare,
        lambda: nn.Sequential(Spare(), nn.Linear(6, 3)),
        partial(torch.randn, 6, 6),
        partial(torch.randn, 6, 3),
    )
    before = deepcopy([one, two])
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.1)
    trainer = fw.Trainer(
        [one, two], check=False, method=name, loss=F.mse_loss, optimizer=optimizer, runtime=runtime, seed=0, threads=1
    )
    trainer.fit([(x, y)] * 4, progress=False)
    for old, new in zip(before, [one, two]):
        for name, p in new.named_parameters():
            spare = "spare" in name or "alone" in name
            assert torch.equal(p, old.get_parameter(name)) == spare, name


def test_a_parameter_that_is_not_used_stays_in_one_step() -> None:
    one, x, y = made(0, Spare, partial(torch.randn, SIZE, 6), partial(torch.randn, SIZE, 3))
    stages = [one.double(), nn.Sequential(Spare(), nn.Linear(6, 3)).double()]
    check(stages, (x.double(), y.double()))


# Losses. ----------------------------------------------------------------------------------------------------------


def deviation(out: Tensor, target: Tensor) -> Tensor:
    """A loss that mixes samples."""
    return ((out - target) ** 2).mean() + out.var(0).sum().log()


LOSSES: dict[str, tuple[Any, bool]] = {  # and whether its targets are classes
    "cross-entropy": (F.cross_entropy, True),
    "smoothed": (partial(F.cross_entropy, label_smoothing=0.1), True),
    "weighted": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)), True),
    "nll": (lambda out, y: F.nll_loss(out.log_softmax(1), y), True),
    "huber": (F.huber_loss, False),
    "logits": (lambda out, y: F.binary_cross_entropy_with_logits(out, y.sigmoid()), False),
    "deviation": (deviation, False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    loss, classes = LOSSES[name]
    stages, (x, y) = build(CASES["batchnorm1d"], "first", torch.float64)
    check(stages, (x, y.argmax(1) if classes else y), loss=loss)


# Dropout. ---------------------------------------------------------------------------------------------------------


class Times(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(shape, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("where", [0, 1])
def test_dropout_drops_the_tangent_with_the_value(where: int, runtime: str) -> None:
    """The loss is a sum of distinct powers of 2, so its value tells what was dropped, and so what d must be."""
    x = 2.0 ** torch.arange(16, dtype=torch.float64).view(1, 16)
    dropped = set()
    for seed in range(6):
        stages: list[nn.Module] = [Times(16), Times(16)]
        stages[where] = nn.Sequential(stages[where], nn.Dropout(0.3))
        runs = []
        for _ in range(2):
            again = deepcopy(stages)
            history = step(again, (x, x), loss=lambda out, y: out.sum(), seed=seed, runtime=runtime)
            runs.append((history.losses[0], again))
        (total, after), (total_again, after_again) = runs
        assert total == total_again
        kept = torch.tensor([round(total * 0.7) >> i & 1 for i in range(16)], dtype=torch.float64)
        u = [direction(0, k, dict(stage.named_parameters())) for k, stage in enumerate(stages)]
        drawn = torch.stack([next(iter(part.values())) for part in u])
        d = (kept / 0.7 * x[0] * drawn.sum(0)).sum()
        for k in range(2):
            found, same = (next(s[k].parameters()).detach() for s in (after, after_again))
            assert torch.equal(found, same)
            torch.testing.assert_close(1 - found, d * drawn[k], rtol=1e-10, atol=0)
        dropped.add(tuple(kept.tolist()))
    assert len(dropped) == 6  # other seeds, other masks


RANDOM = {
    "dropout": Case(lambda: nn.Dropout(0.3), (6,)),
    "dropout-in-place": Case(lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3, inplace=True)), (6,)),
    "dropout2d": Case(lambda: nn.Dropout2d(0.3), (4, 3, 3)),
    "alpha-dropout": Case(lambda: nn.AlphaDropout(0.3), (6,)),
    "rrelu": Case(nn.RReLU, (6,)),
    "attention": Case(
        lambda: Apply(lambda x, a: a(x, x, x)[0], nn.MultiheadAttention(6, 2, 0.3, batch_first=True)), (4, 6)
    ),
    "sdpa": Case(lambda: sdpa(dropout_p=0.3), (4, 6)),
    "encoder-layer": Case(lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True), (4, 6)),
    "lstm": Case(lambda: recurrent(nn.LSTM, num_layers=2, dropout=0.3), (5, 4)),
    "gru": Case(lambda: recurrent(nn.GRU, num_layers=3, dropout=0.3, bidirectional=True), (5, 4)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_modules_by_finite_differences(name: str) -> None:
    """With the same seed the loss is a function of the weights; d is its slope, measured on the losses themselves."""
    stages, batch = build(RANDOM[name], "second", torch.float64)
    u = [direction(0, k, dict(stage.named_parameters())) for k, stage in enumerate(stages)]
    still = partial(torch.optim.SGD, lr=0.0)

    def loss_at(t: float, seed: int = 7) -> float:
        moved = deepcopy(stages)
        with torch.no_grad():
            for stage, part in zip(moved, u):
                for parameter, p in stage.named_parameters():
                    p += t * part[parameter]
        trainer = fw.Trainer(moved, method="fgd", loss=F.mse_loss, optimizer=still, seed=seed, threads=1)
        return trainer.fit([batch], progress=False).losses[0]

    assert loss_at(0.0) == loss_at(0.0) != loss_at(0.0, seed=8)
    slope = (8 * (loss_at(1e-4) - loss_at(-1e-4)) - (loss_at(2e-4) - loss_at(-2e-4))) / 12e-4
    assert abs(slope) > 1e-3
    before = deepcopy(stages)
    step(stages, batch, seed=7)
    for old, new, part in zip(before, stages, u):
        for parameter, p in new.named_parameters():
            move = old.get_parameter(parameter).detach() - p.detach()
            torch.testing.assert_close(move, slope * part[parameter], rtol=1e-6, atol=1e-8)


def test_several_tangents_see_the_same_dropout_and_statistics() -> None:
    """They are averaged over one and the same forward: with a step of 0 its loss does not depend on their number."""
    losses = []
    for tangents in (1, 4):
        stages, (x, y) = made(
            0,
            lambda: [nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)), nn.Linear(8, 3)],
            lambda: (torch.randn(9, 6), torch.randn(9, 3)),
        )
        still = partial(torch.optim.SGD, lr=0.0)
        trainer = fw.Trainer(
            stages,
            check=False,
            method=fw.method("fgd", tangents=tangents),
            loss=F.mse_loss,
            optimizer=still,
            seed=1,
            threads=1,
        )
        losses.append(trainer.fit([(x, y)] * 3, progress=False).losses)
    assert losses[0] == losses[1]


# What has no forward derivative. ----------------------------------------------------------------------------------


class Backward(torch.autograd.Function):
    """Knows how to go backward, and no more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore
        return g * 2


@torch.library.custom_op("freewheel_tests::backward_only", mutates_args=())
def backward_only(x: Tensor) -> Tensor:
    return x * 2


backward_only.register_autograd(lambda ctx, g: g * 2)


def sample(x: Tensor) -> Tensor:
    grid = torch.linspace(-0.8, 0.8, 2 * 2 * 2, dtype=x.dtype).view(1, 2, 2, 2).expand(len(x), -1, -1, -1)
    return F.grid_sample(x[:, None, None, :].expand(-1, 1, 2, -1), grid, align_corners=False).flatten(1)


WITHOUT: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "function": (Backward.apply, "Backward"),  # pyright: ignore
    "library": (backward_only, "backward_only"),
    "built-in": (sample, "grid_sampler_2d"),
    "distance": (lambda x: torch.cdist(x, x.flip(1)), "_?cdist"),
}


@spread(least=8, name=WITHOUT, method=["fgd", "asyncfgd"], where=[0, 1], runtime=RUNTIMES)
def test_no_forward_derivative_is_said_in_one_line(name: str, method: str, where: int, runtime: str) -> None:
    function, called = WITHOUT[name]
    stages: list[nn.Module] = [nn.Linear(6, 6), nn.Linear(6, 6)]
    stages[where] = nn.Sequential(stages[where], Apply(function))
    x = torch.randn(SIZE, 6)
    with pytest.raises((fw.StageError, NotImplementedError, ValueError, TypeError)) as caught:
        step(stages, (x, x), loss=lambda out, y: out.square().mean(), runtime=runtime, method=fw.method(method))
    text = str(caught.value)
    assert "\n" not in text
    assert re.search(rf"\bstage {where}\b", text), text
    assert re.search(called, text), text
    assert "issue" not in text, text  # torch's own advice helps nobody here
    assert re.search(r"\b(give|use|write|replace|implement|put|choose|take|define|freeze|train)\b", text), text


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_loss_without_forward_derivative_is_named(runtime: str) -> None:
    stages: list[nn.Module] = [nn.Linear(6, 6), nn.Linear(6, 6)]
    with pytest.raises(
        (fw.StageError, NotImplementedError, ValueError, TypeError), match="multi_margin_loss"
    ) as caught:
        step(stages, (torch.randn(4, 6), torch.arange(4)), loss=F.multi_margin_loss, runtime=runtime)
    assert "\n" not in str(caught.value)


class Twice(torch.autograd.Function):
    """Knows both ways."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin() * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore
        return g * ctx.saved_tensors[0].cos() * 2

    @staticmethod
    def jvp(ctx: Any, o: Tensor) -> Tensor:  # pyright: ignore
        return o * ctx.saved_tensors[0].cos() * 2


@pytest.mark.parametrize("where", ["first", "second"])
def test_a_function_with_a_jvp(where: str) -> None:
    check(*build(Case(lambda: Apply(Twice.apply), (6,)), where, torch.float64))  # pyright: ignore


def test_what_no_tangent_reaches_needs_no_derivative() -> None:
    """The data has none: o_0 = 0."""
    (first, second), x, y = made(
        0,
        lambda: [nn.Sequential(Apply(sample), nn.Linear(4, 4), nn.Tanh()).double(), nn.Linear(4, 3).double()],
        partial(torch.randn, SIZE, 6, dtype=torch.float64),
        partial(torch.randn, SIZE, 3, dtype=torch.float64),
    )
    check([first, second], (x, y))


@exhaustive
def test_a_first_run_gives_no_warning() -> None:
    """In a process of its own: torch says some things once only."""
    program = """
import torch, torch.nn.functional as F
import freewheel as fw
stages = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)]
optimizer = lambda p: torch.optim.SGD(p, lr=0.1)
data = [(torch.randn(3, 4), torch.tensor([0, 1, 0]))] * 3
for runtime in ("simulate", "threads"):
    fw.Trainer(stages, method="asyncfgd", loss=F.cross_entropy, optimizer=optimizer, runtime=runtime).fit(data)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
