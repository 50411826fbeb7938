"""Stages give what the model gives: every network below goes through every check."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from freewheel.split import SplitReport, Stages, split
from freewheel.tangents import Drawer

splitting = importlib.import_module("freewheel.split._split")
measuring = importlib.import_module("freewheel.split._clock")
cutting = importlib.import_module("freewheel.split._cuts")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.relu(self.norm(self.a(x))))


class LongSkip(nn.Module):
    """Values that jump over several layers, and a size taken early and used late."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        n = x.size(0)
        a = self.first(x).tanh()
        b = self.second(a).sigmoid()
        c = self.third(b) * b
        return self.last((c + a).view(n, -1) * x.shape[1])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        high = F.relu(self.down1(x), inplace=True)
        low = self.middle(self.down2(high))
        return self.out(torch.cat([self.up(low), high], dim=1))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.p = heads, 0.1
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(16, 16, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)).masked_fill(~self.mask[:t, :t], -1e9)
        weights = F.dropout(weights.softmax(-1), self.p, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(n, t, c))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 8), nn.Parameter(torch.randn(16, 8))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(8),
                    "att": Attention(8, 2),
                    "norm2": nn.LayerNorm(8),
                    "fc": nn.Linear(8, 8),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(8, 11)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = x + block["att"](block["norm1"](x))
            x = x + F.gelu(block["fc"](block["norm2"](x)))
        return self.head(x)


class MultiHead(nn.Module):
    """The library's attention: a leaf that returns a tuple with None in it."""

    def __init__(self):
        super().__init__()
        self.norm, self.att = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.att(y, y, y, need_weights=False)[0]
        return self.fc(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.gru = nn.LSTM(5, 6, batch_first=True), nn.GRU(6, 6, batch_first=True)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        out, (h, c) = self.rnn(x)
        second = self.gru(out)
        return self.fc(second[0][:, -1] + h[-1] * c[-1]), second[1]


class SeveralAtOnce(nn.Module):
    """A tuple of tensors that is used as a whole, far from where it was made."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        pieces = self.a(x).chunk(3, dim=1)
        y = torch.tanh(x)
        return {"out": self.b(torch.cat(pieces, 1)), "sum": y.sum() + torch.max(y, 1).values.sum()}


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.join = nn.Linear(3, 4), nn.Linear(5, 4), nn.Bilinear(4, 4, 2)

    def forward(self, left, right, scale=None):
        a, b = self.left(left), self.right(right)
        if scale is not None:
            a = a * scale
        return self.join(a.relu(), b.relu()), right.mean()


class Modes(nn.Module):
    """Everything that looks at self.training without being a submodule."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.inner = nn.Linear(6, 6), nn.Linear(6, 6), Inner()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        x = F.dropout(self.fc1(x), p=0.5, training=self.training)
        x = F.batch_norm(x, self.mean, self.var, training=self.training)
        x = self.inner(self.drop(x))
        return F.dropout(self.fc2(x), 0.4 if self.training else 0.0)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return F.alpha_dropout(self.fc(x), 0.2, self.training)


class Constants(nn.Module):
    """Tensors that are no parameters: a plain attribute, one made in forward, a buffer read in two places."""

    def __init__(self):
        super().__init__()
        self.scale = torch.tensor([1.0, 2.0, 3.0])
        self.register_buffer("shift", torch.ones(3))
        self.a, self.b, self.spare = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = self.a(x) * self.scale + self.shift
        x = self.b(x) + torch.arange(3.0) * self.shift
        return x + torch.arange(x.size(0), dtype=x.dtype).unsqueeze(1)


class Untraceable(nn.Module):
    """Submodules that look at their data are kept whole."""

    def __init__(self):
        super().__init__()
        self.a, self.choose, self.b = nn.Linear(3, 3), Choose(), nn.Linear(3, 3)

    def forward(self, x):
        return self.b(self.choose(self.a(x)))


class Choose(nn.Module):
    def __init__(self):
        super().__init__()
        self.yes, self.no = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        if self.training:
            x = x + 1
        return self.yes(x) if x.sum() > 0 else self.no(x)


class CausalEncoder(nn.Module):
    """The encoder finds out by itself that its mask is causal."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 3, nn.LayerNorm(8)), nn.Linear(8, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x):
        return self.head(self.encoder(x, self.mask))


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.head = nn.Transformer(8, 2, 2, 2, 12, dropout=0.2, batch_first=True), nn.Linear(8, 2)

    def forward(self, source, target):
        return self.head(self.both(source, target, tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1)))


def sequential():
    return nn.Sequential(nn.Linear(6, 6), nn.Sequential(Block(6), nn.ReLU(), nn.Sequential(Block(6))), nn.Linear(6, 2))


def repeated():
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 6), relu, nn.Linear(6, 6), relu, nn.Dropout(0.5), nn.Linear(6, 6))


NETWORKS = {
    "block": (lambda: Block(6), lambda n: torch.randn(n, 6)),
    "long skip": (LongSkip, lambda n: torch.randn(n, 6)),
    "u-net": (UNet, lambda n: torch.randn(n, 1, 8, 8)),
    "transformer": (Transformer, lambda n: torch.randint(11, (n, 7))),
    "multi-head": (MultiHead, lambda n: torch.randn(n, 5, 8)),
    "recurrent": (Recurrent, lambda n: torch.randn(n, 4, 5)),
    "several at once": (SeveralAtOnce, lambda n: torch.randn(n, 4)),
    "tuple": (TwoInputs, lambda n: (torch.randn(n, 3), torch.randn(n, 5))),
    "dict": (TwoInputs, lambda n: {"right": torch.randn(n, 5), "left": torch.randn(n, 3)}),
    "optional": (TwoInputs, lambda n: (torch.randn(n, 3), torch.randn(n, 5), torch.randn(n, 1))),
    "modes": (Modes, lambda n: torch.randn(n, 6)),
    "constants": (Constants, lambda n: torch.randn(n, 3)),
    "encoder": (CausalEncoder, lambda n: torch.randn(n, 5, 8)),
    "encoder and decoder": (EncoderDecoder, lambda n: (torch.randn(n, 5, 8), torch.randn(n, 4, 8))),
    "untraceable": (Untraceable, lambda n: torch.randn(n, 3)),
    "sequential": (sequential, lambda n: torch.randn(n, 6)),
    "repeated": (repeated, lambda n: torch.randn(n, 6)),
    "sequential of a tuple": (sequential, lambda n: (torch.randn(n, 6),)),
}
network = pytest.mark.parametrize("name", NETWORKS)


def make(name, seed=0):
    torch.manual_seed(seed)
    model, batch = NETWORKS[name]
    return model(), batch


def call(model, x):
    return model(*x) if isinstance(x, tuple) else model(**x) if isinstance(x, dict) else model(x)


def chain(stages, x, *, look=lambda message: None):
    for i, stage in enumerate(stages):
        if i:
            look(x)
        x = stage(x)
    return x


def seeded(function, *args):
    torch.manual_seed(7)
    return function(*args)


def assert_same(one, two):
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = list(one.values()), list(two.values())
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, two)
    else:
        assert len(one) == len(two)
        for a, b in zip(one, two):
            assert_same(a, b)


def flat(message):
    return [message] if isinstance(message, torch.Tensor) else list(message)


def loss_of(y):
    return sum(part.float().square().sum() for part in (y.values() if isinstance(y, dict) else flat(y)))


def check_message(message):
    assert isinstance(message, torch.Tensor) or (isinstance(message, tuple) and len(message) > 1)
    assert all(isinstance(part, torch.Tensor) for part in flat(message))


@network
def test_any_cut_gives_the_same_numbers_for_any_batch_size(name):
    model, batch = make(name)
    units = sum(map(len, split(model, 2, example=batch(4), by="parameters").report.names))
    made = 0
    step = 1 + units // 12
    for balance in [*([p, units - p] for p in range(1, units, step)), [1] * units]:
        try:
            stages = split(model, example=batch(4), balance=balance)
        except ValueError as error:
            assert "no stage can begin" in str(error)
            continue
        made += 1
        for mode in (False, True):
            for stage in stages:
                stage.train(mode)
            twin = copy.deepcopy(model).train(mode)
            x = batch(6)
            assert_same(seeded(lambda s, x: chain(s, x, look=check_message), stages, x), seeded(call, twin, x))
    assert made >= min(units - 1, 2)


@network
@pytest.mark.parametrize("k", [2, 3])
def test_gradients_are_those_of_the_model(name, k):
    model, batch = make(name)
    stages = split(model, k, example=batch(4), by="parameters")
    twin, x = copy.deepcopy(model), batch(5)
    seeded(lambda: loss_of(call(twin, x)).backward())

    def backward_by_hand():
        held, message = [], x
        for i, stage in enumerate(stages):
            if i:
                parts = [p.detach().requires_grad_(p.requires_grad) for p in flat(message)]
                held[-1] = (held[-1], flat(message), parts)
                message = parts[0] if isinstance(message, torch.Tensor) else tuple(parts)
            held.append(None)
            message = stage(message)
        loss_of(message).backward()
        for _, sent, received in reversed(held[:-1]):
            pairs = [(s, r.grad) for s, r in zip(sent, received) if s.requires_grad and r.grad is not None]
            torch.autograd.backward([s for s, _ in pairs], [g for _, g in pairs])

    seeded(backward_by_hand)
    for (key, one), two in zip(model.named_parameters(), twin.parameters()):
        assert (one.grad is None) == (two.grad is None), key
        assert one.grad is None or torch.equal(one.grad, two.grad), key
    for (key, one), two in zip(model.named_buffers(), twin.buffers()):
        assert torch.equal(one, two), key


@network
def test_names_and_tensors_are_the_models_own(name):
    model, batch = make(name)
    stages = split(model, 3, example=batch(4), by="parameters")
    union = {}
    for stage in stages:
        for key, value in stage.state_dict(keep_vars=True).items():
            union[key] = value
    state = model.state_dict(keep_vars=True)
    assert union.keys() == state.keys() - set(stages.report.unused)
    assert all(union[key] is state[key] for key in union)
    names = [key for stage in stages for key, _ in stage.named_parameters()]
    assert len(names) == len(set(names))
    assert stages.model is model
    assert sum(map(len, stages.report.names)) >= 3


@pytest.mark.parametrize("by", ["time", "forward"])
@network
def test_splitting_leaves_the_model_as_it_was(name, by):
    model, batch = make(name)
    next(model.children()).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    attributes = [set(vars(m)) for m in model.modules()]
    example, state = batch(4), torch.get_rng_state()
    kept = copy.deepcopy(example)
    stages = split(model, 2, example=example, by=by)
    assert stages.report.unit == "s"
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(example, kept)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert [set(vars(m)) for m in model.modules()] == attributes
    assert all(p.grad is None for p in model.parameters())


@network
def test_copies_and_pickles_work_by_themselves(name):
    model, batch = make(name)
    stages = split(model, 3, example=batch(4), by="parameters")
    x = batch(3)
    for twins in (
        copy.deepcopy(stages),
        [copy.deepcopy(s) for s in stages],
        pickle.loads(pickle.dumps(stages)),
    ):
        for one, two in zip(stages, twins):
            assert one.state_dict().keys() == two.state_dict().keys()
            assert not {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}
            assert [m.training for m in one.modules()] == [m.training for m in two.modules()]
        for twin in twins:
            twin.eval()
        assert_same(chain(twins, x), call(copy.deepcopy(model).eval(), x))


@network
def test_stages_run_in_threads(name):
    model, batch = make(name)
    model.eval()
    stages = split(model, 2, example=batch(4), by="parameters")
    batches = [batch(3) for _ in range(6)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda x: chain(stages, x), batches))
    for x, y in zip(batches, results):
        assert_same(y, call(model, x))


def test_the_mode_reaches_functions_that_ask_for_it():
    model, batch = make("modes")
    stages, x = split(model, 3, example=batch(4), by="parameters"), batch(4)
    for stage in stages:
        stage.eval()
    assert_same(chain(stages, x), chain(stages, x))
    assert_same(chain(stages, x), copy.deepcopy(model).eval()(x))
    stages[0].train()
    assert not torch.equal(chain(stages, x), chain(stages, x))
    assert not model.mean.eq(0).all()  # the running mean of the model itself has moved


def test_stages_begin_in_the_mode_of_the_model():
    model, batch = make("modes")
    stages, x = split(model.eval(), 2, example=batch(4), by="parameters"), batch(4)
    assert not any(m.training for stage in stages for m in stage.modules())
    assert_same(chain(stages, x), model(x))


def test_a_sequential_is_cut_into_sequentials():
    model = sequential()
    stages = split(model, 3, by="parameters")
    assert all(type(stage) is nn.Sequential for stage in stages)
    assert stages.report.names == (("0",), ("1.0", "1.1"), ("1.2.0", "2"))
    assert "1.2.0.a.weight" in stages[2].state_dict()
    assert stages[1].get_submodule("1.0") is model[1][0]


def test_balance_counts_children_or_flattened_children():
    model = sequential()
    assert split(model, balance=[1, 2]).report.names == (("0",), ("1", "2"))
    assert split(model, balance=[2, 3]).report.names == (("0", "1.0"), ("1.1", "1.2.0", "2"))
    assert split(model, balance=[1, 2]).report.costs == (1, 2)


def test_a_hooked_sequential_is_kept_whole():
    model, seen = sequential(), []
    model[1].register_forward_hook(lambda *args: seen.append(1))
    stages = split(model, 2, by="parameters")
    chain(stages, torch.randn(4, 6))
    assert "1" in sum(stages.report.names, ())
    assert seen == [1]


@pytest.mark.parametrize(
    ("at", "starts"),
    [(["second"], ["second"]), (["second", "last"], ["second", "last"]), ([], [])],
)
def test_a_stage_begins_where_at_says(at, starts):
    stages = split(LongSkip(), at=at)
    assert [names[0] for names in stages.report.names][1:] == starts
    assert stages.report.unit == ("units" if at else "parameters")


def test_at_names_containers_too():
    stages = split(Transformer(), at=["blocks", "blocks.1.att", "head"])
    assert [names[0] for names in stages.report.names][1:] == ["blocks.0.norm1", "blocks.1.att.qkv", "head"]
    assert split(sequential(), at=["1.2"]).report.names[1] == ("1.2.0", "2")


def test_without_an_example_plain_values_are_told_from_tensors():
    model = LongSkip()
    for k in (2, 3, 5):
        stages = split(model, k, by="parameters")
        x = torch.randn(3, 6)
        assert_same(chain(stages, x, look=check_message), model(x))


@pytest.mark.parametrize("name", ["u-net", "transformer", "modes", "constants", "untraceable"])
def test_without_an_example_cuts_that_cannot_be_judged_are_left_out(name):
    model, batch = make(name)
    stages = split(model.eval(), 2, by="parameters")
    x = batch(3)
    assert_same(chain(stages, x, look=check_message), model(x))


def test_no_stage_changes_what_it_receives_if_that_can_be_helped():
    model = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.ReLU(inplace=True))])
    for example in (None, torch.randn(2, 4)):
        names = split(model, 3, example=example, by="parameters").report.names
        assert names == (("0", "1"), ("2", "3"), ("4", "5"))
    assert len(split(model, 6, by="parameters")) == 6
    assert split(model, balance=[1, 5]).report.names[0] == ("0",)


class SharedMemory(nn.Module):
    def forward(self, x):
        a = x * 2
        b = a.view(-1)
        b.add_(1)
        return a.sum() + b.sum()


def test_a_cut_between_two_views_of_written_memory_is_refused():
    with pytest.raises(ValueError, match="share memory"):
        split(SharedMemory(), balance=[2, 4], example=torch.ones(2, 2))
    x = torch.ones(2, 2)
    assert_same(chain(split(SharedMemory(), 2, example=x, by="parameters"), x), SharedMemory()(x))


def test_messages_decide_between_equal_cuts():
    model = nn.Sequential(nn.Linear(4, 4), nn.AdaptiveAvgPool1d(1), nn.Upsample(scale_factor=4), nn.Linear(4, 4))
    names = split(model, 2, example=torch.randn(3, 4, 4), by="parameters").report.names
    assert names == (("0", "1"), ("2", "3"))
    assert split(model, 2, by="parameters").report.names == (("0", "1", "2"), ("3",))


@pytest.mark.parametrize("by", ["time", "forward"])
def test_time_is_what_is_balanced(by, monkeypatch):
    seconds = {"0": 1.0, "1": 1.0, "2": 1.0, "3": 3.0}
    monkeypatch.setitem(splitting.TIMED, by, lambda line, example: [seconds[line.name(u)] for u in line.units])
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
    report = split(model, 2, example=torch.randn(3, 2), by=by).report
    names = (("0", "1", "2"), ("3",))
    assert report == SplitReport((3.0, 3.0), "s", names, unit_costs=(1.0, 1.0, 1.0, 3.0))
    assert report.speedup == 2.0


class Counted(torch.autograd.Function):
    """Doubles, and counts how often it is differentiated in either direction."""

    calls: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        Counted.calls["backward"] += 1
        return g * 2

    @staticmethod
    def jvp(ctx, o):
        Counted.calls["jvp"] += 1
        return o * 2


class Doubling(nn.Module):
    def forward(self, x):
        return Counted.apply(x)


@pytest.fixture
def one_line(monkeypatch):
    """However long its parts take, a model is measured once, not again as finer units."""
    monkeypatch.setattr(cutting, "UNBALANCED", math.inf)


@pytest.mark.parametrize(("by", "calls"), [("time", {"backward": 9}), ("forward", {"jvp": 9})])
def test_the_steps_that_are_measured_are_of_the_kind_asked_for(by, calls, monkeypatch, one_line):
    monkeypatch.setattr(measuring, "BUDGET_SECONDS", math.inf)
    Counted.calls.clear()
    split(nn.Sequential(nn.Linear(4, 4), Doubling(), nn.Linear(4, 2)), 2, example=torch.randn(3, 4), by=by)
    assert Counted.calls == calls


def test_a_slow_model_is_measured_in_one_step(monkeypatch, one_line):
    monkeypatch.setattr(measuring, "BUDGET_SECONDS", 0)
    Counted.calls.clear()
    report = split(nn.Sequential(nn.Linear(4, 4), Doubling()), 2, example=torch.randn(3, 4)).report
    assert Counted.calls == {"backward": 1}
    assert all(cost > 0 for cost in report.costs)


def test_tangents_are_drawn_for_the_pass_and_for_the_update(monkeypatch):
    monkeypatch.setattr(measuring, "BUDGET_SECONDS", math.inf)
    real, drawn = Drawer.draw, []
    monkeypatch.setattr(Drawer, "draw", lambda self, key, like: drawn.append(like.shape) or real(self, key, like))
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2).requires_grad_(False))
    split(model, 2, example=torch.randn(3, 4), by="forward")
    assert Counter(drawn) == {(3, 4): 18, (3,): 18}  # twice in each of nine steps


def test_no_forward_derivative_is_said_in_one_line():
    class OneWay(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    class Step(nn.Module):
        def forward(self, x):
            return OneWay.apply(x)

    with pytest.raises(NotImplementedError, match=r"^OneWay has no forward derivative: .*'pipedream'$"):
        split(nn.Sequential(nn.Linear(4, 4), Step()), 2, example=torch.randn(3, 4), by="forward")


@pytest.mark.parametrize("by", ["time", "forward"])
@network
def test_measured_times_are_positive(name, by):
    model, batch = make(name)
    report = split(model, 2, example=batch(2), by=by).report
    assert report.unit == "s"
    assert all(cost > 0 for cost in report.costs)
    assert 1 <= report.speedup <= 2


def test_measuring_under_no_grad_is_the_same_work():
    with torch.no_grad():
        assert split(sequential(), 2, example=torch.randn(4, 6)).report.unit == "s"


def test_one_stage_is_the_model_itself():
    model = Untraceable()
    stages = split(model, 1)
    assert isinstance(stages, Stages)
    assert stages[0] is model
    assert stages.report.speedup == 1.0
    pair = split(TwoInputs(), 1, example=(torch.randn(2, 3), torch.randn(2, 5)))
    x = (torch.randn(4, 3), torch.randn(4, 5))
    assert_same(pair[0](x), pair.model(*x))


def test_modules_without_parameters_can_be_split():
    model = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Softmax(1))
    assert split(model, 3, by="parameters").report.speedup == 1.0


def test_parameters_that_forward_never_uses_are_reported():
    report = split(Constants(), 2, example=torch.randn(2, 3), by="parameters").report
    assert report.unused == ("spare.weight", "spare.bias")
    assert "spare.bias" in str(report)


class Keeper(nn.Module):
    """Keeps a value in an attribute, which tracing must not leave there."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(2, 2), nn.Linear(2, 2), None

    def forward(self, x):
        self.last = self.a(x)
        return self.b(self.last)


def test_tracing_leaves_nothing_in_the_model():
    model = Keeper()
    split(model, 2, example=torch.randn(2, 2))
    assert model.last is None


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x + self.scale * torch.randn(3)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.noise, self.b = nn.Linear(3, 3), Noise(), nn.Linear(3, 3)

    def forward(self, x):
        return self.b(self.noise(self.a(x)))


def test_random_numbers_are_not_frozen():
    model = Noisy()
    stages, x = split(model, 2, by="parameters"), torch.randn(2, 3)
    assert "noise" in sum(stages.report.names, ())
    assert not torch.equal(chain(stages, x), chain(stages, x))
    assert_same(seeded(chain, stages, x), seeded(model, x))


class Nested(nn.Module):
    """One argument that is itself made of several tensors."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, pair, extra):
        return self.b(self.a(pair["x"]) + pair["y"][0]) * extra


def test_examples_may_be_nested():
    def batch(n):
        return ({"x": torch.randn(n, 2), "y": [torch.randn(n, 2)]}, torch.randn(n, 1))

    model = Nested()
    stages, x = split(model, 2, example=batch(3), by="parameters"), batch(5)
    assert_same(chain(stages, x, look=check_message), model(*x))


def test_a_hooked_submodule_is_kept_whole_and_its_hook_runs():
    model, seen = Transformer(), []
    model.blocks[0]["att"].register_forward_hook(lambda module, args, output: seen.append(output))
    stages = split(model, 2, example=torch.randint(11, (2, 5)), by="parameters")
    assert "blocks.0.att" in sum(stages.report.names, ())
    seen.clear()
    chain(stages, torch.randint(11, (3, 5)))
    assert [tuple(t.shape) for t in seen] == [(3, 5, 8)]


def test_frozen_parameters_and_frozen_layers_are_fine():
    model, batch = make("u-net")
    model.down1.requires_grad_(False)
    model.middle.eval()
    stages = split(model, 3, example=batch(2))
    assert not model.middle.training
    assert stages[0].training
    x = batch(2)
    assert_same(chain(stages, x), copy.deepcopy(model)(x))
