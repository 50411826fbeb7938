"""The mean and the variance of forward gradients: lemmas 3.1 and 5.3 of the AsyncFGD paper, by many samples.

For u ~ N(0, I) and g the gradient, ĝ = <g, u> u has E ĝ = g and, along any e, Var <e, ĝ> = |e|²|g|² + <e, g>², so
E|ĝ|² = (D+2)|g|², which is within the lemma's (D+4)|g|². Other distributions have the same mean.

A statistic is accepted within `BOUND` standard errors. That is far out for a thousand samples of products of normal
numbers (whose tails are heavier than a normal number's): a right program fails less than once in a million seeds. The
seeds are fixed besides.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import freewheel as fw
from spread import exhaustive, rarely

BOUND = 6.5
Tensors = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


# What is watched. -------------------------------------------------------------------------------------------------


class Watch(torch.optim.Optimizer):
    """Keeps every gradient, and puts the weights of the next version where `version` says; nowhere else."""

    def __init__(
        self, params: Iterable[Tensor], log: dict[int, list[Tensor]], version: Callable[[Tensor, int], Tensor]
    ):
        super().__init__(params, {"lr": 0.0})
        self.log, self.version = log, version

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.log[id(p)].append(p.grad.clone())
            p.copy_(self.version(p, len(self.log[id(p)])))


def stay(p: Tensor, version: int) -> Tensor:
    return p


def samples(
    stages: list[nn.Module],
    method: Any,
    batches: Sequence[Batch],
    *,
    version: Callable[[Tensor, int], Tensor] = stay,
    epochs: int = 1,
    fits: int = 1,
    **options: Any,
) -> Tensor:
    """The gradient that each update was given, as a row: all parameters of all stages, in order."""
    log: dict[int, list[Tensor]] = defaultdict(list)
    trainer = fw.Trainer(
        stages,
        check=False,
        method=method,
        optimizer=partial(Watch, log=log, version=version),
        threads=1,
        **({"loss": F.cross_entropy, "runtime": "simulate", "seed": 5} | options),
    )
    for _ in range(fits):
        trainer.fit(batches, epochs=epochs, progress=False)
    return torch.cat([torch.stack(log[id(p)]).flatten(1) for p in trained(stages)], 1).double()


def trained(stages: Sequence[nn.Module]) -> list[Tensor]:
    return [p for stage in stages for p in stage.parameters() if p.requires_grad]


def gradient(stages: Sequence[nn.Module], weights: Sequence[Tensors], batch: Batch) -> Tensor:
    """By reverse mode, of the stages at the given weights."""
    leaves = [{name: w.detach().clone().requires_grad_() for name, w in part.items()} for part in weights]
    h, y = batch
    for stage, part in zip(stages, leaves, strict=True):
        h = functional_call(stage, part, (h,))
    flat = [w for part in leaves for w in part.values()]
    return torch.cat([g.flatten() for g in torch.autograd.grad(F.cross_entropy(h, y), flat)])


def weights_of(stages: Sequence[nn.Module]) -> list[Tensors]:
    return [{name: p.detach().clone() for name, p in stage.named_parameters() if p.requires_grad} for stage in stages]


def plain_gradient(stages: Sequence[nn.Module], batch: Batch) -> Tensor:
    return gradient(stages, weights_of(stages), batch)


# Tests of a mean. -------------------------------------------------------------------------------------------------


def probes(g: Tensor, *others: Tensor) -> Tensor:
    """Directions to look along: every coordinate, the gradient, and where it differs from a wrong one."""
    return torch.cat([torch.eye(len(g), dtype=g.dtype), torch.stack([g, *(g - other for other in others)])])


def gaussian_variance(e: Tensor, g: Tensor) -> Tensor:
    return (e**2).sum(1) * (g @ g) + (e @ g) ** 2


def rademacher_variance(e: Tensor, g: Tensor) -> Tensor:
    return (e**2).sum(1) * (g @ g) + (e @ g) ** 2 - 2 * (e**2 @ g**2)


def worst(found: Tensor, g: Tensor, e: Tensor, variance: Tensor | None = None) -> float:
    """How many standard errors the mean of the samples is away from g, along the worst of the directions e."""
    along = found @ e.T
    error = ((along.var(0) if variance is None else variance) / len(found)).sqrt()
    assert (error > 0).all()
    return ((along.mean(0) - e @ g) / error).abs().max().item()


def off(values: Tensor, wanted: Tensor | float) -> float:
    """How many standard errors the mean of some numbers is away from what it should be; positive if too large."""
    return ((values.mean() - wanted) / (values.std() / math.sqrt(len(values)))).item()


def square(found: Tensor) -> Tensor:
    return (found**2).sum(1)


# Networks and data. -----------------------------------------------------------------------------------------------


def small_stages(k: int) -> list[nn.Module]:
    """Layers of one and the same shape: tangents that they shared would show as a bias."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2)] + [nn.Linear(3, 3)]
    cut = len(layers) - k + 1
    return [stage.double() for stage in (nn.Sequential(*layers[:cut]), *layers[cut:])]


def small_batch(seed: int = 1, size: int = 7) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=g, dtype=torch.float64) * 2, torch.randint(3, (size,), generator=g)


# Lemma 3.1. -------------------------------------------------------------------------------------------------------

VARIANCES: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "gaussian": gaussian_variance,
    "rademacher": rademacher_variance,
    "sphere": None,  # it depends on what is one sphere; the samples' own is taken
}


@pytest.mark.parametrize(("distribution", "k"), [("gaussian", 3), rarely("rademacher", 1), rarely("sphere", 2)])
def test_forward_gradients_are_unbiased(distribution: str, k: int) -> None:
    stages, batch = small_stages(k), small_batch()
    g = plain_gradient(stages, batch)
    found = samples(stages, fw.method("fgd", distribution=distribution), [batch] * 600)
    assert found.shape == (600, 36)
    e, variance = probes(g), VARIANCES[distribution]
    assert worst(found, g, e, variance(e, g) if variance else None) < BOUND
    assert worst(found, 0.5 * g, e) > BOUND  # what these samples could have shown
    if distribution == "gaussian":  # equation 11, and what it is exactly
        assert off(square(found), (36 + 4) * g @ g) < BOUND
        assert abs(off(square(found), (36 + 2) * g @ g)) < BOUND
        assert off(square(found), 0.6 * (36 + 2) * g @ g) > BOUND


@pytest.mark.parametrize("distribution", ["rademacher", "sphere"])
def test_of_constant_length(distribution: str) -> None:
    """|u|² = D where all of the network is one tensor; <g, ĝ> = d² and |ĝ|² = d²|u|² tell it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stage = nn.Linear(3, 4, bias=False).double()
    batch = small_batch()
    g = plain_gradient([stage], batch)
    found = samples([stage], fw.method("fgd", distribution=distribution), [batch] * 50)
    lengths = square(found) / (found @ g)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 12.0))
    sizes = found.abs()
    equal = bool(((sizes - sizes[:, :1]).abs() < 1e-9 * sizes[:, :1]).all())
    assert equal == (distribution == "rademacher")


def test_tangents_are_averaged() -> None:
    """E|ĝ - g|² = (D+1)|g|² / P for P independent ones."""
    stages, batch = small_stages(2), small_batch()
    g = plain_gradient(stages, batch)
    found = samples(stages, fw.method("fgd", tangents=6), [batch] * 120)
    e = probes(g)
    assert worst(found, g, e, gaussian_variance(e, g) / 6) < BOUND
    spread = square(found - g)
    assert abs(off(spread, (36 + 1) / 6 * g @ g)) < BOUND
    assert off(spread, (36 + 1) / 12 * g @ g) > BOUND
    assert off(spread, (36 + 1) / 3 * g @ g) < -BOUND


def test_every_batch_has_its_own_tangents() -> None:
    """In every epoch, in every fit, with every seed."""
    batch = small_batch()

    def run(**options: Any) -> Tensor:
        return samples(small_stages(2), fw.method("asyncfgd", tangents=2), [batch] * 3, **options)

    found = run(epochs=2, fits=2)
    other = run(seed=6)
    assert len(found) == 12
    rows = [*found, *other]
    for i, row in enumerate(rows):
        row = row / row.norm()
        for before in rows[:i]:
            assert (row @ before / before.norm()).abs() < 0.999
    assert torch.equal(run(), found[:3])


# Shards and micro-batches. ----------------------------------------------------------------------------------------


def shards(batch: Batch, count: int) -> list[Batch]:
    sizes = [len(batch[0]) // count + (r < len(batch[0]) % count) for r in range(count)]
    return list(zip(batch[0].split(sizes), batch[1].split(sizes)))


def test_replicas_have_their_own_tangents() -> None:
    """ĝ = Σ_r s_r ĝ_r for shards r with a share s_r of the samples: independent, so their variances add up.

    The shards are much alike here. Tangents in common would give nearly three times the variance.
    """
    stages, (x, y) = small_stages(2), small_batch()
    batch = x[[0, 1, 0, 0, 1, 0, 1]], y[[0, 1, 0, 0, 1, 0, 1]]
    g = plain_gradient(stages, batch)
    parts = [(len(part[0]) / len(batch[0]), plain_gradient(stages, part)) for part in shards(batch, 3)]
    torch.testing.assert_close(sum((share * part for share, part in parts), torch.zeros(36)), g)
    found = samples(stages, fw.method("fgd-dp", replicas=3), [batch] * 400)
    e = probes(g)
    apart = torch.stack([share**2 * gaussian_variance(e, part) for share, part in parts]).sum(0)
    assert worst(found, g, e, apart) < BOUND
    spread = square(found - g)
    assert abs(off(spread, sum(share**2 * (36 + 1) * float(part @ part) for share, part in parts))) < BOUND
    assert off(spread, (36 + 1) * g @ g) < -BOUND


# Lemma 5.3: every module at its own stale version. ----------------------------------------------------------------

CYCLE = 3  # versions of the weights that take turns, so that what a batch sees is known beforehand


def cycle_of(stages: Sequence[nn.Module]) -> list[list[Tensors]]:
    """The weights of each stage at version v, by v mod CYCLE: those it has, and two others."""
    g = torch.Generator().manual_seed(2)

    def moved(stage: nn.Module, by: float) -> Tensors:
        return {
            name: p.detach() + by * torch.randn(p.shape, generator=g, dtype=p.dtype)
            for name, p in stage.named_parameters()
        }

    return [[moved(stage, by) for by in (0.0, 0.8, 0.8)] for stage in stages]


def scripted(stages: Sequence[nn.Module], cycle: list[list[Tensors]]) -> Callable[[Tensor, int], Tensor]:
    place = {id(p): (k, name) for k, stage in enumerate(stages) for name, p in stage.named_parameters()}

    def version(p: Tensor, v: int) -> Tensor:
        k, name = place[id(p)]
        return cycle[k][v % CYCLE][name]

    return version


def at(cycle: list[list[Tensors]], versions: Iterable[int]) -> list[Tensors]:
    return [part[v % CYCLE] for part, v in zip(cycle, versions, strict=True)]


def test_stale_forward_gradients_are_unbiased() -> None:
    """Batch n sees versions n-2, n-1 and n of three stages: equations 10 and 11."""
    stages, batch = small_stages(3), small_batch()
    cycle = cycle_of(stages)
    found = samples(stages, "asyncfgd", [batch] * 1200, version=scripted(stages, cycle))
    for n in (3, 4, 5):
        here = found[n::CYCLE]
        g = gradient(stages, at(cycle, (n - 2, n - 1, n)), batch)
        wrong = [gradient(stages, at(cycle, v), batch) for v in ((n, n, n), (n, n - 1, n - 2), (n - 2, n - 2, n - 2))]
        e = probes(g, *wrong)
        assert worst(here, g, e, gaussian_variance(e, g)) < BOUND
        for other in wrong:
            assert worst(here, other, e) > BOUND
        assert off(square(here), (36 + 4) * g @ g) < BOUND
        assert abs(off(square(here), (36 + 2) * g @ g)) < BOUND


@pytest.mark.parametrize("runtime", ["simulate", "threads"])
def test_unit_directions_give_the_stale_gradient_itself(runtime: str) -> None:
    """No chance in it: after four batches that really train, batch 4 goes along one coordinate in each run."""
    batches = [small_batch(seed) for seed in range(5)]
    coordinates = [
        (k, name, i)
        for k, s in enumerate(small_stages(3))
        for name, p in s.named_parameters()
        for i in range(p.numel())
    ]
    found = []
    seen: list[dict[int, Tensors]] = [{}, {}, {}]

    for unit in coordinates:

        def direction(batch: int, stage: int, params: Tensors, unit: Any = unit) -> Tensors:
            if batch < 4:
                return {name: repeatable(f"{batch} {stage} {name}", p) for name, p in params.items()}
            drawn = {name: torch.zeros_like(p) for name, p in params.items()}
            if unit[0] == stage:
                drawn[unit[1]].view(-1)[unit[2]] = 1.0
            return drawn

        stages = small_stages(3)
        log: dict[int, list[Tensor]] = defaultdict(list)

        def version(p: Tensor, v: int, log: dict[int, list[Tensor]] = log, stages: list[nn.Module] = stages) -> Tensor:
            k, name = next((k, n) for k, s in enumerate(stages) for n, q in s.named_parameters() if q is p)
            seen[k].setdefault(v - 1, {})[name] = p.detach().clone()
            return p - 0.2 * log[id(p)][-1]

        trainer = fw.Trainer(
            stages,
            check=False,
            method=fw.method("asyncfgd", direction=direction),
            loss=F.cross_entropy,
            optimizer=partial(Watch, log=log, version=version),
            runtime=runtime,
            threads=1,
        )
        trainer.fit(batches, progress=False)
        given = torch.cat([log[id(p)][4].flatten() for s in stages for p in s.parameters()])
        position = coordinates.index(unit)
        found.append(given[position].clone())
        given[position] = 0
        assert not given.any()
    model = small_stages(3)
    stale = [seen[0][2], seen[1][3], seen[2][4]]
    torch.testing.assert_close(torch.stack(found), gradient(model, stale, batches[4]), rtol=0, atol=1e-10)
    newest = gradient(model, [seen[k][4] for k in range(3)], batches[4])
    assert (torch.stack(found) - newest).abs().max() > 1e-3


def repeatable(key: str, like: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(like.shape, generator=g, dtype=like.dtype)


# Activity perturbation. -------------------------------------------------------------------------------------------


class Layers(nn.Sequential):
    """Linear layers with tanh between them, whose inputs and output derivatives can be had by hand."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for one, two in pairwise(widths):
            layers += [nn.Linear(one, two), nn.Tanh()]
        super().__init__(*layers[:-1])


def dense(*widths: int, k: int = 1) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        whole = list(Layers(*widths).double())
    cut = 2 * (k - 1)
    return [nn.Sequential(*whole[:cut]), nn.Sequential(*whole[cut:])] if cut else [nn.Sequential(*whole)]


def data(*shape: int, size: int = 6) -> Batch:
    g = torch.Generator().manual_seed(4)
    return torch.randn(size, *shape, generator=g, dtype=torch.float64), torch.randint(3, (size,), generator=g)


def activity_variance(stages: Sequence[nn.Module], batch: Batch) -> Tensor:
    """Of each weight: Σ_b x_b² (|G_b|² + g_b²), with g_b = ∂loss/∂z_b of its output and G_b that of all outputs.

    ĝ = Σ_b d_b v_b x_b' with d_b = <G_b, v_b>: samples are independent, and each is a forward gradient of its own.
    """
    h, y = batch
    inputs, outputs = [], []
    for layer in (layer for stage in stages for layer in stage):
        if isinstance(layer, nn.Linear):
            inputs.append(h.detach())
        h = layer(h)
        if isinstance(layer, nn.Linear):
            outputs.append(h)
    slopes = torch.autograd.grad(F.cross_entropy(h, y), outputs)
    total = torch.cat(slopes, 1).square().sum(1)
    found = []
    for x, g in zip(inputs, slopes):
        spread = total[:, None] + g**2
        found += [(spread.T @ x**2).flatten(), spread.sum(0)]
    return torch.cat(found)


@pytest.mark.parametrize(("name", "k"), [rarely("fgd", 2), rarely("fgd-sync", 1), ("fgd-dp", 1)])
def test_activity_perturbation_is_unbiased_for_linear_layers(name: str, k: int) -> None:
    """And its variance is known, weight by weight. Samples are perturbed one by one, in whatever parts they come."""
    stages, batch = dense(4, 5, 3, k=k), data(4)
    options = {"fgd-sync": {"micro": 2}, "fgd-dp": {"replicas": 2}}.get(name, {})
    g, variance = plain_gradient(stages, batch), activity_variance(stages, batch)
    found = samples(stages, fw.method(name, perturb="activations", **options), [batch] * 400)
    e = torch.eye(len(g), dtype=g.dtype)
    assert worst(found, g, e, variance) < BOUND
    assert worst(found, 0.5 * g, torch.cat([e, g[None]])) > BOUND
    assert abs(off(square(found - g), variance.sum())) < BOUND
    assert off(square(found - g), 0.6 * variance.sum()) > BOUND


class Frozen(nn.Linear):
    """A layer that asks for no gradient."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.requires_grad_(False)


class Layer(NamedTuple):
    """Layers to look at, the shape of a sample, and a seed with which none of their gradients is small."""

    make: Callable[[], list[nn.Module]]
    shape: tuple[int, ...]
    seed: int


OTHERS = {
    "conv": Layer(lambda: [nn.Conv2d(2, 2, 3, padding=1)], (2, 3, 3), 5),
    "conv-strided": Layer(lambda: [nn.Conv2d(2, 2, 2, stride=2)], (2, 4, 4), 3),
    "conv-grouped": Layer(lambda: [nn.Conv2d(2, 4, 3, dilation=2, padding=1, groups=2, bias=False)], (2, 4, 4), 3),
    "conv-same": Layer(lambda: [nn.Conv2d(2, 2, (1, 3), groups=2, padding="same")], (2, 3, 3), 3),
    "conv-norm": Layer(lambda: [nn.Conv2d(1, 2, 2), nn.GroupNorm(1, 2)], (1, 3, 3), 2),
    "positions": Layer(lambda: [nn.Linear(4, 2)], (3, 4), 3),
    "linear-norm": Layer(lambda: [nn.Linear(3, 3), nn.LayerNorm(3)], (3,), 0),
    "linear-twice": Layer(lambda: [layer := nn.Linear(3, 3), nn.Tanh(), layer], (3,), 0),
}


OFTEN = ("conv-norm", "linear-twice")


@pytest.mark.parametrize("name", [name if name in OFTEN else rarely(name) for name in OTHERS])
def test_activity_perturbation_is_unbiased_for_other_layers(name: str) -> None:
    """Convolutions, layers on several positions of a sample, and norms, whose weights are perturbed."""
    make, shape, seed = OTHERS[name]
    batch = data(*shape, size=2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = make()
        width = nn.Sequential(*layers, nn.Flatten())(batch[0].float()).shape[1]
        stages = [nn.Sequential(*layers).double(), nn.Sequential(nn.Tanh(), nn.Flatten(), Frozen(width, 3)).double()]
    g = plain_gradient(stages, batch)
    found = samples(stages, fw.method("fgd", perturb="activations"), [batch] * 500)
    assert worst(found, g, probes(g)) < BOUND
    parts = torch.eye(len(g), dtype=g.dtype).split([p.numel() for p in trained(stages)])
    for part in parts:  # any tensor left out would have shown
        only = part.sum(0) * g
        assert worst(found, g - only, only[None]) > BOUND


@exhaustive
def test_stale_activity_perturbation_is_unbiased() -> None:
    stages, batch = small_stages(3), small_batch()
    cycle = cycle_of(stages)
    method = fw.method("asyncfgd", perturb="activations")
    found = samples(stages, method, [batch] * 900, version=scripted(stages, cycle))
    for n in (3, 4, 5):
        g = gradient(stages, at(cycle, (n - 2, n - 1, n)), batch)
        wrong = [gradient(stages, at(cycle, v), batch) for v in ((n, n, n), (n - 2, n - 2, n - 2))]
        e = probes(g, *wrong)
        assert worst(found[n::CYCLE], g, e) < BOUND
        for other in wrong:
            assert worst(found[n::CYCLE], other, e) > BOUND


def test_activity_perturbation_varies_less_where_layers_are_wide() -> None:
    """There are fewer activations than weights: by theory about 25 times fewer here."""
    stages, batch = dense(32, 64, 64, 3), data(32)
    g = plain_gradient(stages, batch)
    spread = {
        perturb: square(samples(stages, fw.method("fgd", perturb=perturb), [batch] * 150) - g)
        for perturb in ("weights", "activations")
    }
    assert abs(off(spread["weights"], (len(g) + 1) * g @ g)) < BOUND
    assert abs(off(spread["activations"], activity_variance(stages, batch).sum())) < BOUND
    assert 10 * activity_variance(stages, batch).sum() < (len(g) + 1) * g @ g
    assert 5 * spread["activations"].mean() < spread["weights"].mean()


# Activity perturbation over time. ---------------------------------------------------------------------------------

STEPS = 3


def remembering(k: int) -> tuple[list[nn.Module], list[nn.Module]]:
    """A layer, a recurrent one that is not trained, and two layers behind it; whole, and in stages."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        memory = fw.Recurrent(nn.RNN(4, 3, bias=False, nonlinearity="relu", batch_first=True)).requires_grad_(False)
        layers = [nn.Linear(3, 4), memory, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), fw.models.ClassesFirst()]
        nn.init.eye_(memory.layer.weight_hh_l0)  # it adds up what comes
        nn.init.uniform_(memory.layer.weight_ih_l0, 0, 0.5)
        nn.init.ones_(layers[0].bias)
    layers = [layer.double() for layer in layers]
    cut = {1: [layers], 3: [layers[:1], layers[1:2], layers[2:]]}[k]
    return layers, [nn.Sequential(*part) for part in cut]


def slopes_by_piece(layers: Sequence[nn.Module], batch: Batch) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The inputs of the linear layers; and for every time step, the slopes of its part of the loss by their outputs."""
    h, y = batch
    inputs, outputs = [], []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            inputs.append(h.detach())
        h = layer(h)
        if isinstance(layer, nn.Linear):
            outputs.append(h)
    parts = F.cross_entropy(h, y, reduction="none").sum(0) / y.numel()
    return inputs, [list(torch.autograd.grad(part, outputs, retain_graph=True)) for part in parts]


def sequences() -> Batch:
    return data(STEPS, 3, size=3)[0], torch.randint(3, (3, STEPS), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("k", [rarely(1), 3])
def test_a_move_that_is_remembered_counts_for_later_steps(k: int) -> None:
    (first, *others), stages = remembering(k)
    for layer in others:
        layer.requires_grad_(False)
    batch = sequences()
    g = plain_gradient(stages, batch)
    found = samples(stages, fw.method("asyncfgd", perturb="activations", steps=STEPS), [batch] * 200)
    (x, *_), pieces = slopes_by_piece([first, *others], batch)
    at_once = [pieces[j][0][:, j] for j in range(STEPS)]  # of each step's loss, by the output of that step
    by_weight = torch.stack([at_once[j].T @ x[:, j] for j in range(STEPS)]).sum(0)
    forgetful = torch.cat([by_weight.flatten(), torch.stack(at_once).sum((0, 1))])
    e = probes(g, forgetful)
    assert worst(found, g, e) < BOUND
    assert worst(found, forgetful, e) > BOUND


@pytest.mark.parametrize("k", [1, 3])
def test_what_nobody_remembers_counts_for_its_own_step(k: int) -> None:
    """With one sample and a loss at the end alone, Σ d·v ⊗ x has one term; before the memory, one for each step."""
    _, stages = remembering(k)
    x, y = data(STEPS, 3, size=1)
    end = lambda out, y: F.cross_entropy(out[:, :, -1], y)  # noqa: E731
    (found,) = samples(stages, fw.method("asyncfgd", perturb="activations", steps=STEPS), [(x, y)], loss=end)
    made = found.split([p.numel() for p in trained(stages)])
    ranks = [int(torch.linalg.matrix_rank(g.view_as(p))) for g, p in zip(made, trained(stages)) if p.dim() == 2]
    assert ranks == [STEPS, 1, 1]


@pytest.mark.parametrize("k", [3])
def test_behind_the_last_recurrent_layer_steps_are_independent(k: int) -> None:
    """So the variance is known: for each weight Σ x² (|G|² + g²) over samples and steps.

    There g is the slope of that step's loss, and G its slopes by all that moves. With the whole sequence's derivative
    in place of the step's, |G|² would be that of the whole loss.
    """
    layers, stages = remembering(k)
    batch = sequences()
    g = plain_gradient(stages, batch)
    found = samples(stages, fw.method("asyncfgd", perturb="activations", steps=STEPS), [batch] * 200)
    inputs, pieces = slopes_by_piece(layers, batch)
    whole = [torch.stack(slopes).sum(0) for slopes in zip(*pieces)]
    step, sequence = [], []
    for n in (1, 2):
        for out, sizes in ((step, [size(piece) for piece in pieces]), (sequence, [size(whole)] * STEPS)):
            spread = [sizes[j][:, None] + pieces[j][n][:, j] ** 2 for j in range(STEPS)]
            by_weight = torch.stack([spread[j].T @ inputs[n][:, j] ** 2 for j in range(STEPS)]).sum(0)
            out += [by_weight.flatten(), torch.stack(spread).sum((0, 1))]
    variance, other = torch.cat(step), torch.cat(sequence).sum()
    behind = slice(len(g) - len(variance), None)
    assert worst(found, g, torch.eye(len(g), dtype=g.dtype)[behind], variance) < BOUND
    spread = square((found - g)[:, behind])
    assert abs(off(spread, variance.sum())) < BOUND
    assert off(spread, other) < -BOUND


def size(slopes: Sequence[Tensor]) -> Tensor:
    """The sum of squares over all of a sample's."""
    return torch.stack([slope.flatten(1).square().sum(1) for slope in slopes]).sum(0)
