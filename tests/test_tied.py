"""Weights that several stages use: against plain PyTorch, and against the whole network computed by hand."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad

import freewheel as fw
from spread import spread

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.01)
WORDS = 11


class Tied(nn.Module):
    """Embedding and head are one weight; the head has a bias of its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = torch.tanh(self.embed(tokens))
        x = x + torch.tanh(self.first(x))
        x = x + torch.tanh(self.second(x))
        return self.head(x)


class ByFunction(Tied):
    """The same, with a function in place of the head."""

    def forward(self, tokens):
        x = torch.tanh(self.embed(tokens))
        x = x + torch.tanh(self.first(x))
        x = x + torch.tanh(self.second(x))
        return F.linear(x, self.embed.weight, self.head.bias)


class SharedLayer(Tied):
    """A layer that is called in two stages, beside the tied weight."""

    def forward(self, tokens):
        x = torch.tanh(self.embed(tokens))
        for layer in (self.first, self.second, self.first):
            x = x + torch.tanh(layer(x))
        return self.head(x)


class Padded(Tied):
    """An embedding with padding, which the head trains nevertheless."""

    def __init__(self):
        super().__init__()
        self.embed.padding_idx = 0


class Block(nn.Module):
    """A block with a tied weight deep inside, and a buffer that it reads."""

    def __init__(self, weight, scale):
        super().__init__()
        self.inner = nn.ModuleDict({"fc": nn.Linear(8, 8)})
        self.inner["fc"].weight = weight
        self.register_buffer("scale", scale)

    def forward(self, x):
        if x.isnan().any():
            return x
        return x + self.scale * torch.tanh(self.inner["fc"](x))


class Blocks(nn.Module):
    """Untraceable blocks that share a weight and a buffer."""

    def __init__(self):
        super().__init__()
        weight, scale = nn.Parameter(torch.randn(8, 8) / 3), torch.tensor(0.5)
        self.embed, self.blocks = nn.Embedding(WORDS, 8), nn.ModuleList(Block(weight, scale) for _ in range(3))
        self.head = nn.Linear(8, WORDS)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


NETS = [Tied, ByFunction, SharedLayer, Padded, Blocks]


def loss(out, target):
    return F.cross_entropy(out.flatten(0, -2), target.flatten())


def make(net, dtype=torch.float64):
    torch.manual_seed(0)
    return net().to(dtype)


def batches(count=7):
    g = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(WORDS, (4, 5), generator=g) for _ in range(2)) for _ in range(count)]


def trained(net, method, *, k=3, optimizer=SGD, runtime="simulate", **options):
    model = make(net)
    stages = fw.split(model, k, example=batches()[0][0], by="parameters")
    trainer = fw.Trainer(
        stages, method=method, loss=loss, optimizer=optimizer, runtime=runtime, seed=0, threads=1, **options
    )
    trainer.fit(batches())
    assert trainer.model() is model
    return model


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_close(found, wanted, tolerance=1e-10):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


# -- zero delay: plain PyTorch --------------------------------------------------------------------------------------


@spread(net=NETS, method=["bp", fw.GPipe(micro=2), fw.OneFOneB(micro=4)], optimizer=[SGD, ADAM], k=[2, 3, 4])
def test_without_delay_it_is_plain_pytorch(net, method, optimizer, k):
    model = make(net)
    made = optimizer(model.parameters())
    for x, y in batches():
        made.zero_grad()
        loss(model(x), y).backward()
        made.step()
    assert_close(weights_of(trained(net, method, optimizer=optimizer, k=k)), weights_of(model))


# -- delays: the whole network by hand, at the version of each stage ------------------------------------------------


def stage_of(net, k):
    """The stage that owns each parameter: the first that uses it."""
    stages = fw.split(make(net), k, example=batches()[0][0], by="parameters")
    found = {}
    for number, stage in enumerate(stages):
        for name, _ in stage.named_parameters():
            assert name not in found
            found[name] = number
    return found


def by_hand(net, k, delays, gradient):
    """SGD with momentum; a batch sees each weight as old as the delay of the stage that owns it."""
    model, owner = make(net), stage_of(net, k)
    history = [weights_of(model)]
    assert history[0].keys() == owner.keys()
    velocity = {name: torch.zeros_like(w) for name, w in history[0].items()}
    for n, (x, y) in enumerate(batches()):
        seen = {name: history[max(0, n - delays[owner[name]])][name] for name in owner}
        found = gradient(n, seen, lambda weights, x=x, y=y: loss(functional_call(model, weights, (x,)), y))
        velocity = {name: 0.9 * velocity[name] + found[name] for name in owner}
        history.append({name: w - 0.1 * velocity[name] for name, w in history[-1].items()})
    return history[-1]


@spread(net=NETS, k=[2, 3, 4], method=["pipedream", "ddg", fw.FDG(shrink=1.0, order="forward")])
def test_a_late_stage_sees_the_version_of_the_owners_forward(net, k, method):
    delays = fw.plan(method, k=k).delays
    assert_close(
        weights_of(trained(net, method, k=k)),
        by_hand(net, k, delays, lambda n, seen, value: grad(value)(seen)),
    )


def tangent(n, name, like):
    g = torch.Generator().manual_seed(1000 * n + sum(map(ord, name)))
    return torch.randn(like.shape, generator=g, dtype=like.dtype) / 10


def direction(batch, stage, params):
    return {name: tangent(batch, name, p) for name, p in params.items()}


@spread(net=NETS, k=[2, 3], method=[fw.FGD, fw.AsyncFGD])
def test_the_tangent_of_the_weight_is_one_in_all_stages(net, k, method):
    def gradient(n, seen, value):
        u = {name: tangent(n, name, w) for name, w in seen.items()}
        found = grad(value)(seen)
        derivative = sum((found[name] * u[name]).sum() for name in u)
        return {name: derivative * t for name, t in u.items()}

    chosen = method(direction=direction)
    assert_close(
        weights_of(trained(net, chosen, k=k)),
        by_hand(net, k, fw.plan(chosen, k=k).delays, gradient),
    )


def test_a_recomputed_forward_lends_the_newest_weights_gradient():
    """`fr` in two stages: the cotangents of batch n meet the owner's forward at version n."""
    model, owner = make(Tied), stage_of(Tied, 2)
    first = [name for name in owner if owner[name] == 0]
    names = list(owner)
    history = [weights_of(model)]
    velocity = {name: torch.zeros_like(w) for name, w in history[0].items()}
    report = fw.split(model, 2, example=batches()[0][0], by="parameters").report
    assert report.names[0] == ("embed", "tanh"), "or this test computes another network"

    def start(weight, x):
        return torch.tanh(F.embedding(x, weight)), weight

    def rest(w, message):
        x, lent = message
        x = x + torch.tanh(F.linear(x, w["first.weight"], w["first.bias"]))
        x = x + torch.tanh(F.linear(x, w["second.weight"], w["second.bias"]))
        return F.linear(x, lent, w["head.bias"])

    for n, (x, y) in enumerate(batches()):
        old, new = history[max(0, n - 1)], history[n]
        message = [t.detach().requires_grad_() for t in start(old["embed.weight"], x)]
        later = {name: new[name].requires_grad_() for name in names if name not in first}
        found = torch.autograd.grad(loss(rest(later, message), y), [*message, *later.values()])
        weight = new["embed.weight"].requires_grad_()
        (own,) = torch.autograd.grad(start(weight, x), weight, found[:2])
        gradient = {"embed.weight": own, **dict(zip(later, found[2:]))}
        velocity = {name: 0.9 * velocity[name] + gradient[name] for name in names}
        history.append({name: new[name].detach() - 0.1 * velocity[name] for name in names})
    assert_close(weights_of(trained(Tied, "fr", k=2)), history[-1])


# -- runtimes, checkpoints, replicas ---------------------------------------------------------------------------------


@spread(
    net=NETS,
    method=["bp", "pipedream", "fr", fw.DSP(p=(1, 1, 0), m=(4, 2, 0)), "pipemare", "asyncfgd"],
    runtime=["threads", "processes"],
)
def test_every_runtime_equals_simulate(net, method, runtime):
    found, wanted = weights_of(trained(net, method, runtime=runtime)), weights_of(trained(net, method))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("method", ["pipedream", "asyncfgd"])
def test_it_resumes_with_batches_in_flight(method, tmp_path):
    arguments = {"method": method, "loss": loss, "optimizer": SGD, "runtime": "simulate", "seed": 0, "threads": 1}

    def stages(k=3):
        return fw.split(make(Blocks), k, example=batches()[0][0], by="parameters")

    whole = fw.Trainer(stages(), **arguments)
    whole.fit(batches(), save_to=tmp_path, save_every=3)
    before_the_end = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())[0]
    resumed = fw.Trainer.resume(before_the_end, stages(), **arguments)
    assert resumed.unfinished == 1
    resumed.fit(batches())
    found, wanted = weights_of(resumed.model()), weights_of(whole.model())
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    whole.save(tmp_path / "end")
    two = fw.Trainer.resume(tmp_path / "end", stages(2), **arguments)  # cut elsewhere
    assert all(torch.equal(weights_of(two.model())[name], wanted[name]) for name in wanted)


def test_replicas_average_the_gradient_of_the_weight():
    model = make(Tied)
    stages = fw.split(model, 2, example=batches()[0][0], by="parameters")
    trainer = fw.Trainer(
        stages, method="bp", loss=loss, optimizer=SGD, runtime="simulate", seed=0, threads=1, replicas=2
    )
    trainer.fit(batches())
    assert_close(weights_of(model), weights_of(trained(Tied, "bp", k=2)))


# -- what the model still is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", NETS)
def test_the_model_is_still_tied_and_has_its_own_names(net):
    untouched = make(net)
    model = trained(net, "pipedream")
    assert model.state_dict().keys() == untouched.state_dict().keys()
    if net is not Blocks:
        assert model.head.weight is model.embed.weight
    copied = copy.deepcopy(untouched)
    copied.load_state_dict(model.state_dict())
    x = batches()[0][0]
    assert torch.equal(copied(x), model(x))


def test_the_stages_give_what_the_model_gives_for_any_batch():
    for net in NETS:
        model = make(net)
        out = x = torch.randint(WORDS, (3, 2))
        for stage in fw.split(model, 3, example=batches()[0][0], by="parameters"):
            out = stage(out)
        assert torch.equal(out, model(x))


@pytest.mark.parametrize("method", ["dgl", "dni", "fa", "dfa", "sdfa", "drtp", fw.AsyncFGD(perturb="activations")])
def test_refused_where_the_gradient_would_be_incomplete(method):
    stages = fw.split(make(Tied), 3, example=batches()[0][0], by="parameters")
    with pytest.raises(ValueError, match=r"with 'embed\.weight', which several stages use: .*pipedream") as caught:
        fw.Trainer(stages, method=method, loss=loss, optimizer=SGD, runtime="simulate")
    assert "\n" not in str(caught.value)


class SharedNorm(nn.Module):
    """Running statistics that two stages would write."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(self.b(torch.tanh(self.norm(self.a(x)))))


def test_a_buffer_that_two_stages_write_is_refused():
    message = r"'norm' is used in stage 0 and in stage 1, and forward changes it"
    with pytest.raises(ValueError, match=message):
        fw.split(SharedNorm(), at=["b"], example=torch.randn(3, 4))
    model = SharedNorm()
    model.norm.track_running_stats, model.norm.running_mean, model.norm.running_var = False, None, None
    model.norm.num_batches_tracked = None
    assert len(fw.split(model, at=["b"], example=torch.randn(3, 4))) == 2  # without statistics it can be shared
