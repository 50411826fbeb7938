"""Forward credit against its definition: dual numbers written out with torch.func.jvp, every version kept.

version(k, v)  = version(k, v-1) stepped along gradient(k, v-1)
dual(k, n)     = (h, o) behind stage k: h = f(h'; w), o = J_h o' + J_w u, at w = version max(0, n - m_k)
derivative(n)  = the tangent of the loss of batch n
gradient(k, n) = derivative(n) · u_k(n)
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

import freewheel as fw
import rows
from reference import SGD, Adam, Loss, Rule, Tensors, distance, without_statistics
from rows import same_bits, tensors
from spread import spread

with warnings.catch_warnings(action="ignore"):  # torch scripts a few functions when it first meets a tangent
    import torch._decomp.decompositions_for_jvp

CLOSE = 1e-10
FAR = 1e-4  # what a wrong definition must at least do to the weights
COUNT = 12
RUNTIMES = ("simulate", "threads")
DISTRIBUTIONS = ("gaussian", "rademacher", "sphere")

OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
}
RULES = {"sgd": SGD(lr=0.01, momentum=0.9), "adam": Adam(lr=0.01)}

Batches = Sequence[tuple[Tensor, Tensor]]
Scale = Callable[[int, int, str], float]  # of a batch, a stage and a parameter's name in it


def direction(batch: int, stage: int, params: Tensors) -> Tensors:
    """A direction that anybody can draw again: it depends on the names alone."""
    return {name: draw(f"{batch} {stage} {name}", p) for name, p in params.items()}


def same_direction(batch: int, stage: int, params: Tensors) -> Tensors:
    return direction(0, stage, params)


def draw(key: str, like: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(like.shape, generator=g, dtype=like.dtype)


# The reference. ---------------------------------------------------------------------------------------------------


class Version(NamedTuple):
    """A stage after some number of batches; states and steps are the optimizer's, for each parameter."""

    weights: Tensors
    states: dict[str, object]
    steps: dict[str, int]
    pending: list[Tensors]  # gradients that wait for a step


class Dual(NamedTuple):
    value: Tensor
    tangent: Tensor


class Forward:
    """The trajectory of forward gradients on given stages and batches, in micro-batches if asked to."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        batches: Batches,
        *,
        rule: Rule,
        delays: Sequence[int],
        order: str = "forward",
        loss: Loss = F.cross_entropy,
        direction: Callable[[int, int, Tensors], Tensors] = direction,
        scale: Scale = lambda batch, stage, name: 1.0,
        micro: int = 1,
        every: int = 1,
        anneal: float = 0,
    ) -> None:
        assert len(delays) == len(stages)
        self.stages = [without_statistics(stage) for stage in stages]
        self.batches, self.rule, self.loss, self.micro = batches, rule, loss, micro
        self.delays, self.order = tuple(delays), order
        self.direction, self.scale = direction, scale
        self.every, self.anneal = every, anneal
        for name in ("version", "dual", "derivative", "tangent"):
            setattr(self, name, cache(getattr(self, name)))

    def train(self) -> list[Tensors]:
        """The weights of every stage after all batches."""
        for n in range(len(self.batches)):  # in order, so that no recursion goes deep
            for k in range(len(self.stages)):
                self.version(k, n + 1)
        return [self.weights(k, len(self.batches)) for k in range(len(self.stages))]

    def forward_version(self, k: int, n: int) -> int:
        late = self.delays[k]
        if self.order == "backward" and late > 0:
            return max(0, n - late + 1)
        return max(0, n - late)

    def weights(self, k: int, v: int) -> Tensors:
        return self.version(k, v).weights

    def version(self, k: int, v: int) -> Version:
        if v == 0:
            first = {name: p.detach().clone() for name, p in self.stages[k].named_parameters()}
            return Version(first, dict.fromkeys(first), dict.fromkeys(first, 0), [])
        n, old = v - 1, self.version(k, v - 1)
        weights, states, steps = dict(old.weights), dict(old.states), dict(old.steps)
        pending = [*old.pending, self.gradient(k, n)]
        if len(pending) < self.every:
            return old._replace(pending=pending)
        for name in weights:
            g = torch.stack([part[name] for part in pending]).mean(0)
            if not self.scale(n, k, name):
                continue  # frozen: the optimizer is given nothing
            one = {name: self.before(k, n)[name]}
            moved, states[name] = self.rule(one, {name: g}, old.states[name], old.steps[name], self.length(k, n))
            weights[name], steps[name] = moved[name], old.steps[name] + 1
        return Version(weights, states, steps, [])

    def length(self, k: int, t: int) -> float:
        """That of a step: m^-(1 - t/T) at first, with T the time in which the staleness is got used to."""
        late = self.delays[k]
        return late ** -(1 - min(t / self.anneal, 1)) if self.anneal and late else 1.0

    def before(self, k: int, n: int) -> Tensors:
        """What update n is applied to: the newest."""
        return self.weights(k, n)

    def tangent(self, k: int, n: int) -> Tensors:
        drawn = self.direction(n, k, self.weights(k, 0))
        return {name: self.scale(n, k, name) * u for name, u in drawn.items()}

    def parts(self, n: int) -> list[tuple[Tensor, Tensor]]:
        """The micro-batches; the first few are larger by one."""
        x, y = self.batches[n]
        small, more = divmod(len(x), self.micro)
        sizes = [small + (j < more) for j in range(self.micro)]
        return list(zip(x.split(sizes), y.split(sizes)))

    def dual(self, k: int, n: int, j: int) -> Dual:
        if k < 0:
            x = self.parts(n)[j][0]
            return Dual(x, torch.zeros_like(x))
        weights = self.weights(k, self.forward_version(k, n))
        return Dual(*self.push(k, n, weights, self.dual(k - 1, n, j)))

    def push(self, k: int, n: int, weights: Tensors, into: Dual) -> tuple[Tensor, Tensor]:
        def run(weights: Tensors, h: Tensor) -> Tensor:
            return functional_call(self.stages[k], weights, (h,))

        return jvp(run, (weights, into.value), (self.tangent(k, n), into.tangent))

    def derivative(self, n: int) -> Tensor:
        total = torch.zeros((), dtype=self.batches[n][0].dtype)
        for j, (x, y) in enumerate(self.parts(n)):
            out = self.dual(len(self.stages) - 1, n, j)
            _, d = jvp(lambda h, y=y: self.loss(h, y), (out.value,), (out.tangent,))
            total = total + self.share(len(x), n) * d
        return total

    def share(self, size: int, n: int) -> float:
        return size / len(self.batches[n][0])

    def gradient(self, k: int, n: int) -> Tensors:
        return {name: self.derivative(n) * u for name, u in self.tangent(k, n).items()}


# Networks of four blocks, and data. -------------------------------------------------------------------------------


def mixed_blocks() -> list[list[nn.Module]]:
    return [
        [nn.Conv2d(2, 3, 3, padding=1), nn.Tanh()],
        [nn.Conv2d(3, 2, 3), nn.GroupNorm(1, 2), nn.GELU()],
        [nn.Flatten(), nn.Linear(8, 6), nn.LayerNorm(6), nn.Tanh()],
        [nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 3)],
    ]


def norm_blocks() -> list[list[nn.Module]]:
    return [
        [nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.Tanh()],
        [nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3), nn.GELU()],
        [nn.Flatten(), nn.BatchNorm1d(8), nn.Linear(8, 6), nn.Tanh(), nn.BatchNorm1d(6, momentum=None)],
        [nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Tanh(), nn.Linear(5, 3)],
    ]


Blocks = Callable[[], list[list[nn.Module]]]


def make_stages(blocks: Blocks, k: int) -> list[nn.Module]:
    """K stages in float64: the last ones hold a block each, the first holds the rest."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = blocks()
    cut = len(made) - k + 1
    groups = [[layer for block in made[:cut] for layer in block], *made[cut:]]
    return [nn.Sequential(*group).double() for group in groups]


def make_batches(count: int = COUNT) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    sizes = [7 if n % 5 == 3 else 10 for n in range(count)]
    return [
        (torch.randn(size, 2, 4, 4, generator=g, dtype=torch.float64), torch.randint(3, (size,), generator=g))
        for size in sizes
    ]


def train(stages: list[nn.Module], method: Any, batches: Any, *, epochs: int = 1, **options: Any) -> fw.Trainer:
    options = {"loss": F.cross_entropy, "optimizer": OPTIMIZERS["sgd"], "runtime": "simulate", "seed": 3} | options
    trainer = fw.Trainer(stages, method=method, threads=1, check=False, **options)
    trainer.fit(batches, epochs=epochs, progress=False)
    return trainer


def late(k: int) -> tuple[int, ...]:
    return tuple(k - 1 - i for i in range(k))


def first_match(patterns: dict[str, float], stage: int, name: str) -> float:
    for pattern, value in patterns.items():
        if fnmatchcase(name, pattern) or fnmatchcase(f"{stage}.{name}", pattern):
            return value
    return 1.0


# The library equals the reference. --------------------------------------------------------------------------------


class Case(NamedTuple):
    """A method, and what the reference is told of it."""

    method: Callable[[], Any]
    k: int
    definition: dict[str, Any]
    blocks: Blocks = mixed_blocks


def case(name: str, blocks: Blocks = mixed_blocks, options: dict[str, Any] | None = None, **definition: Any) -> Case:
    made = partial(fw.method, name, direction=direction, **(options or {}))
    return Case(made, len(definition["delays"]), definition, blocks)


def free(order: str, *delays: int, corrections: Sequence[fw.Correction] = (), **definition: Any) -> Case:
    credit = fw.Forward(direction=direction)
    made = partial(fw.Pipeline, credit=credit, delays=delays, order=order, corrections=corrections)
    return Case(made, len(delays), {"delays": delays, "order": order, **definition})


PATTERNS = {"1.*.bias": 0.0, "*.bias": 2.0, "2.2.weight": 0.25, "0.weight": 0.5, "1.weight": 3.0}

CASES = {
    **{f"asyncfgd-{k}": case("asyncfgd", delays=late(k)) for k in (1, 2, 3, 4)},
    **{f"asyncfgd-norm-{k}": case("asyncfgd", norm_blocks, delays=late(k)) for k in (1, 2, 3, 4)},
    "asyncfgd-kept": case("asyncfgd", options={"checkpoint": False}, delays=late(3)),
    "asyncfgd-scaled": case(
        "asyncfgd",
        options={"scale": PATTERNS},
        delays=late(3),
        scale=lambda batch, stage, name: first_match(PATTERNS, stage, name),
    ),
    "asyncfgd-half": case("asyncfgd", options={"scale": 0.5}, delays=late(3), scale=lambda *_: 0.5),
    "fgd-1": case("fgd", delays=(0,)),
    "fgd-3": case("fgd", delays=(0, 0, 0)),
    "fgd-norm": case("fgd", norm_blocks, delays=(0, 0, 0)),
    "fgd-mp": case("fgd-mp", delays=(0, 0, 0)),
    "fgd-sync": case("fgd-sync", options={"micro": 3}, delays=(0, 0, 0), micro=3),
    "fgd-sync-norm": case("fgd-sync", norm_blocks, options={"micro": 2}, delays=(0, 0), micro=2),
    "free": free("forward", 3, 1, 0),
    "free-backward": free("backward", 3, 1, 0),
    "free-backward-4": free("backward", 6, 4, 2, 0),
    "free-zero": free("forward", 0, 0),
    "free-equal": free("forward", 2, 2, 0),
    "free-late-end": free("forward", 3, 2, 1),
    "free-late-end-backward": free("backward", 3, 2, 1),
    "free-accumulate": free("forward", 2, 1, 0, corrections=[fw.Accumulate(3)], every=3),
    "free-staleness": free("forward", 3, 2, 0, corrections=[fw.StalenessStep(10)], anneal=10),
}


def reference(name: str, optimizer: str, kind: type[Forward] = Forward) -> Forward:
    _, k, definition, blocks = CASES[name]
    return kind(make_stages(blocks, k), make_batches(), rule=RULES[optimizer], **definition)


@cache
def expected(name: str, optimizer: str) -> list[Tensors]:
    return reference(name, optimizer).train()


@spread(name=CASES, optimizer=OPTIMIZERS)
def test_equals_reference(name: str, optimizer: str) -> None:
    method, k, _, blocks = CASES[name]
    stages = make_stages(blocks, k)
    train(stages, method(), make_batches(), optimizer=OPTIMIZERS[optimizer])
    assert distance(stages, expected(name, optimizer)) < CLOSE


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_equals_reference_over_epochs(runtime: str) -> None:
    """Batches are counted on, and the pipeline does not drain in between."""
    stages, batches = make_stages(mixed_blocks, 3), make_batches(5)
    wanted = Forward(stages, batches * 3, rule=RULES["sgd"], delays=late(3)).train()
    train(stages, fw.method("asyncfgd", direction=direction), batches, epochs=3, runtime=runtime)
    assert distance(stages, wanted) < CLOSE


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_equals_reference_over_several_fits(runtime: str) -> None:
    """The pipeline drains at the end of a fit; the next one starts from the newest weights."""
    stages, batches = make_stages(mixed_blocks, 3), make_batches()
    trainer = fw.Trainer(
        stages,
        check=False,
        method=fw.method("asyncfgd", direction=same_direction),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.01),
        runtime=runtime,
        threads=1,
    )
    for part in (batches[:6], batches[6:]):
        wanted = Forward(stages, part, rule=SGD(lr=0.01), delays=late(3), direction=same_direction).train()
        trainer.fit(part, progress=False)
        assert distance(stages, wanted) < CLOSE


def test_a_direction_sees_the_stage_it_is_for() -> None:
    stages, batches = make_stages(mixed_blocks, 3), make_batches(4)
    named = [{name: p.shape for name, p in stage.named_parameters()} for stage in stages]
    seen: dict[tuple[int, int], dict[str, torch.Size]] = {}

    def watch(batch: int, stage: int, params: Tensors) -> Tensors:
        seen[batch, stage] = {name: p.shape for name, p in params.items()}
        return direction(batch, stage, params)

    train(stages, fw.method("asyncfgd", direction=watch), batches)
    assert seen == {(n, k): named[k] for n in range(4) for k in range(3)}


# The reference can fail, and is what it says. ---------------------------------------------------------------------


class TooNew(Forward):
    def forward_version(self, k: int, n: int) -> int:
        return min(n, super().forward_version(k, n) + (self.delays[k] > 0))


class TooOld(Forward):
    def forward_version(self, k: int, n: int) -> int:
        return max(0, super().forward_version(k, n) - (self.delays[k] > 0))


class Newest(Forward):
    def forward_version(self, k: int, n: int) -> int:
        return n


class SwappedStages(Forward):
    def forward_version(self, k: int, n: int) -> int:
        return max(0, n - self.delays[-1 - k])


class NoInputTangent(Forward):
    def push(self, k: int, n: int, weights: Tensors, into: Dual) -> tuple[Tensor, Tensor]:
        return super().push(k, n, weights, Dual(into.value, torch.zeros_like(into.tangent)))


class NoWeightTangent(Forward):
    """In the last stage."""

    def push(self, k: int, n: int, weights: Tensors, into: Dual) -> tuple[Tensor, Tensor]:
        if k < len(self.stages) - 1:
            return super().push(k, n, weights, into)
        return jvp(lambda h: functional_call(self.stages[k], weights, (h,)), (into.value,), (into.tangent,))


class AppliedToTheStale(Forward):
    def before(self, k: int, n: int) -> Tensors:
        return self.weights(k, self.forward_version(k, n))


class TangentOfAnotherBatch(Forward):
    def gradient(self, k: int, n: int) -> Tensors:
        return {name: self.derivative(n) * u for name, u in self.tangent(k, max(0, n - 1)).items()}


class DerivativeOfAnotherBatch(Forward):
    def gradient(self, k: int, n: int) -> Tensors:
        return {name: self.derivative(max(0, n - 1)) * u for name, u in self.tangent(k, n).items()}


class ScaledOnce(Forward):
    def gradient(self, k: int, n: int) -> Tensors:
        drawn = self.direction(n, k, self.weights(k, 0))
        return {name: self.derivative(n) * u for name, u in drawn.items()}


class EqualShares(Forward):
    def share(self, size: int, n: int) -> float:
        return 1 / self.micro


MUTANTS: list[tuple[str, type[Forward]]] = [
    ("asyncfgd-2", TooNew),
    ("asyncfgd-3", TooNew),
    ("asyncfgd-4", TooOld),
    ("asyncfgd-norm-3", TooOld),
    ("asyncfgd-2", Newest),
    ("asyncfgd-3", SwappedStages),
    ("asyncfgd-norm-4", SwappedStages),
    ("asyncfgd-2", NoInputTangent),
    ("asyncfgd-4", NoInputTangent),
    ("asyncfgd-1", NoWeightTangent),
    ("asyncfgd-3", NoWeightTangent),
    ("asyncfgd-3", AppliedToTheStale),
    ("asyncfgd-3", TangentOfAnotherBatch),
    ("asyncfgd-3", DerivativeOfAnotherBatch),
    ("asyncfgd-half", ScaledOnce),
    ("asyncfgd-scaled", ScaledOnce),
    ("fgd-sync", EqualShares),
    ("free", TooNew),
    ("free-backward", TooOld),
    ("free-backward", TooNew),
    ("free-late-end", TooNew),
]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_reference_is_sensitive(name: str, mutant: type[Forward]) -> None:
    assert distance(reference(name, "sgd", mutant).train(), expected(name, "sgd")) > FAR


@pytest.mark.parametrize("name", ["asyncfgd-3", "asyncfgd-norm-4", "free-backward", "fgd-sync"])
def test_reference_derivative_is_that_of_reverse_mode(name: str) -> None:
    """d = Σ_k <∂loss/∂w_k, u_k>, the whole network taken at once at the versions that its stages see."""
    made = reference(name, "sgd")
    made.train()
    stages = range(len(made.stages))
    for n in range(0, COUNT, 3):
        weights = [made.weights(k, made.forward_version(k, n)) for k in stages]

        def whole(weights: list[Tensors], n: int = n) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for h, y in made.parts(n):
                for stage, w in zip(made.stages, weights):
                    h = functional_call(stage, w, (h,))
                total = total + F.cross_entropy(h, y, reduction="sum") / len(made.batches[n][1])
            return total

        _, pull = vjp(whole, weights)
        slopes = pull(torch.ones((), dtype=torch.float64))[0]
        d = sum(
            ((slopes[k][name] * u).sum() for k in stages for name, u in made.tangent(k, n).items()), torch.zeros(())
        )
        assert abs(d) > 1e-4
        torch.testing.assert_close(made.derivative(n), d, rtol=1e-10, atol=1e-12)


# BatchNorm: running statistics. -----------------------------------------------------------------------------------


@spread(name=["asyncfgd-norm-1", "asyncfgd-norm-3", "asyncfgd-norm-4", "fgd-norm", "fgd-sync-norm"], runtime=RUNTIMES)
def test_running_statistics_are_those_of_plain_forwards(name: str, runtime: str) -> None:
    """Each batch counts once, at the version that its forward sees."""
    method, k, _, blocks = CASES[name]
    made = reference(name, "sgd")
    made.train()
    plain = make_stages(blocks, k)
    for i, stage in enumerate(plain):
        for n in range(COUNT):
            stage.load_state_dict(made.weights(i, made.forward_version(i, n)), strict=False)
            with torch.no_grad():
                for j in range(made.micro):
                    stage(made.dual(i - 1, n, j).value)
    stages = make_stages(blocks, k)
    train(stages, method(), make_batches(), runtime=runtime)
    for stage, other in zip(stages, plain):
        found, wanted = dict(stage.named_buffers()), dict(other.named_buffers())
        assert found.keys() == wanted.keys()
        for buffer, value in wanted.items():
            torch.testing.assert_close(found[buffer], value, rtol=0, atol=CLOSE)
    counted = [int(m.num_batches_tracked) for s in stages for m in s if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert counted == [COUNT * made.micro] * 5


@pytest.mark.parametrize("name", ["fgd", "asyncfgd"])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_running_statistics_count_a_batch_once_whatever_the_tangents(name: str, checkpoint: bool) -> None:
    """With a step of 0 no version differs, and the statistics cannot depend on the tangents."""
    still = partial(torch.optim.SGD, lr=0.0)
    one, three = make_stages(norm_blocks, 2), make_stages(norm_blocks, 2)
    train(one, fw.method(name), make_batches(), optimizer=still)
    train(three, fw.method(name, tangents=3, checkpoint=checkpoint), make_batches(), optimizer=still)
    assert same_bits(tensors(*one), tensors(*three))
    assert all(int(m.num_batches_tracked) == COUNT for s in three for m in s if isinstance(m, nn.BatchNorm2d))


# Equal to the last bit. -------------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "asyncfgd": {},
    "fgd": {},
    "fgd-mp": {},
    "fgd-dp": {"replicas": 2},
    "fgd-sync": {"micro": 3},
}


@cache
def drop_run(name: str, k: int, optimizer: str, runtime: str, seed: int = 3, **options: Any) -> list[Tensor]:
    """Training on a net with BatchNorm, dropout and a stage that starts in place, with batches of unequal size."""
    stages = rows.network(k)
    method = fw.method(name, **(METHODS[name] | options))
    train(stages, method, rows.batches(7), runtime=runtime, optimizer=rows.OPTIMIZERS[optimizer], seed=seed)
    return tensors(*stages)


@spread(name=METHODS, options=[{"tangents": 2}, {"perturb": "activations"}])
def test_threads_equal_simulate_with_options(name: str, options: dict[str, Any]) -> None:
    found, wanted = (drop_run(name, 3, "sgd", runtime, **options) for runtime in ("threads", "simulate"))
    assert same_bits(found, wanted)


@spread(least=8, name=METHODS, runtime=RUNTIMES, distribution=DISTRIBUTIONS, tangents=[1, 3])
def test_checkpoint_changes_no_bit(name: str, runtime: str, distribution: str, tangents: int) -> None:
    again, kept = (
        drop_run(name, 3, "sgd", runtime, distribution=distribution, tangents=tangents, checkpoint=checkpoint)
        for checkpoint in (True, False)
    )
    assert same_bits(again, kept)


@pytest.mark.parametrize("optimizer", rows.OPTIMIZERS)
def test_one_stage_of_asyncfgd_is_fgd(optimizer: str) -> None:
    assert same_bits(drop_run("asyncfgd", 1, optimizer, "simulate"), drop_run("fgd", 1, optimizer, "simulate"))


@pytest.mark.parametrize("k", [2, 4])
def test_model_parallel_fgd_is_fgd(k: int) -> None:
    assert same_bits(drop_run("fgd-mp", k, "sgd", "threads"), drop_run("fgd", k, "sgd", "simulate"))


def test_options_and_seeds_matter() -> None:
    """What is compared above differs where it should."""
    runs = [
        drop_run("asyncfgd", 3, "sgd", "simulate"),
        drop_run("fgd", 3, "sgd", "simulate"),
        drop_run("fgd-dp", 3, "sgd", "simulate"),
        drop_run("asyncfgd", 3, "sgd", "simulate", seed=4),
        drop_run("asyncfgd", 3, "sgd", "simulate", tangents=3),
        drop_run("asyncfgd", 3, "sgd", "simulate", perturb="activations"),
        *(drop_run("asyncfgd", 3, "sgd", "simulate", distribution=name) for name in DISTRIBUTIONS[1:]),
    ]
    for i, one in enumerate(runs):
        assert not any(same_bits(one, other) for other in runs[:i]), i


def test_gaussian_is_the_default() -> None:
    plain = drop_run("asyncfgd", 3, "sgd", "simulate")
    assert same_bits(drop_run("asyncfgd", 3, "sgd", "simulate", distribution="gaussian"), plain)


@pytest.mark.parametrize("name", ["AsyncFGD", "FGD", "FGDMP", "FGDDP", "FGDSync"])
def test_classes_are_their_names(name: str) -> None:
    named = {"AsyncFGD": "asyncfgd", "FGD": "fgd", "FGDMP": "fgd-mp", "FGDDP": "fgd-dp", "FGDSync": "fgd-sync"}[name]
    stages = rows.network(2)
    made = getattr(fw, name)(**METHODS[named])
    train(stages, made, rows.batches(7), optimizer=rows.OPTIMIZERS["sgd"])
    assert same_bits(tensors(*stages), drop_run(named, 2, "sgd", "simulate"))


# Micro-batches. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("micro", "k", "runtime"), [(2, 1, "simulate"), (4, 3, "simulate"), (2, 3, "threads")])
@pytest.mark.parametrize("given", [True, False], ids=["direction", "seed"])
def test_micro_batches_with_one_tangent_add_up(micro: int, k: int, given: bool, runtime: str) -> None:
    """Without batch statistics. Tangents belong to the batch, as all random numbers do, and not to the method."""
    options = {"direction": direction} if given else {}
    plain, cut = make_stages(mixed_blocks, k), make_stages(mixed_blocks, k)
    train(plain, fw.method("fgd", **options), make_batches())
    train(cut, fw.method("fgd-sync", micro=micro, **options), make_batches(), runtime=runtime)
    assert distance(cut, [dict(stage.named_parameters()) for stage in plain]) < 1e-12
    assert distance(cut, [dict(stage.named_parameters()) for stage in make_stages(mixed_blocks, k)]) > FAR


def test_a_batch_may_be_smaller_than_the_number_of_parts() -> None:
    """Parts of nothing have no share."""
    x, y = make_batches(1)[0]
    batches = [(x, y), (x[:2], y[:2]), (x[:1], y[:1])]
    stages = make_stages(mixed_blocks, 2)
    wanted = Forward(stages, batches, rule=RULES["sgd"], delays=(0, 0)).train()
    train(stages, fw.method("fgd-sync", micro=4, direction=direction), batches)
    assert distance(stages, wanted) < 1e-12


# Scale. -----------------------------------------------------------------------------------------------------------


def moves(before: list[nn.Module], after: list[nn.Module]) -> list[Tensors]:
    return [
        {name: p.detach() - old.get_parameter(name).detach() for name, p in new.named_parameters()}
        for old, new in zip(before, after)
    ]


@spread(name=["asyncfgd", "fgd", "fgd-mp", "fgd-sync"], given=[True, False])
def test_a_scale_counts_twice(name: str, given: bool) -> None:
    """Once in the pass and once in the update: the first step is α² as long."""
    found = []
    for alpha in (1.0, 0.3):
        stages = make_stages(mixed_blocks, 3)
        options = METHODS[name] | ({"direction": direction} if given else {})
        method = fw.method(name, scale=alpha, **options)
        train(stages, method, make_batches(1), optimizer=partial(torch.optim.SGD, lr=0.01))
        found.append(moves(make_stages(mixed_blocks, 3), stages))
    for whole, scaled in zip(*found):
        for parameter, move in whole.items():
            assert move.abs().max() > FAR
            torch.testing.assert_close(scaled[parameter], 0.09 * move, rtol=1e-9, atol=1e-14)


FROZEN = {"0.0.*": 0, "1.*.weight": 0, "2.bias": 0}
DECAYING: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


@spread(name=METHODS, optimizer=DECAYING, perturb=["weights", "activations"])
def test_scale_zero_freezes(name: str, optimizer: str, perturb: str) -> None:
    """No move, no decay, no momentum; all others learn."""
    stages, before = make_stages(mixed_blocks, 3), make_stages(mixed_blocks, 3)
    trainer = train(
        stages,
        fw.method(name, scale=FROZEN, perturb=perturb, **METHODS[name]),
        make_batches(5),
        optimizer=DECAYING[optimizer],
    )
    frozen = 0
    for k, (old, new, stepper) in enumerate(zip(before, stages, trainer.optimizers)):
        for parameter, p in new.named_parameters():
            still = first_match(FROZEN, k, parameter) == 0
            assert torch.equal(p, old.get_parameter(parameter)) == still, (k, parameter)
            assert stepper is not None
            assert (len(stepper.state[p]) == 0) == still
            frozen += still
    assert frozen == 2 + 2 + 3  # `2.bias` is a name in every stage


def test_a_stage_may_be_frozen_whole() -> None:
    stages = make_stages(mixed_blocks, 3)
    wanted = Forward(
        stages, make_batches(), rule=RULES["sgd"], delays=late(3), scale=lambda batch, stage, name: stage != 1
    ).train()
    train(stages, fw.method("asyncfgd", direction=direction, scale={"1.*.*": 0}), make_batches())
    assert distance(stages, wanted) < CLOSE
    assert same_bits(tensors(stages[1]), tensors(make_stages(mixed_blocks, 3)[1]))


def alpha_of(epoch: int) -> float | dict[str, float]:
    return ({"0.*.*": 0.0, "*": 0.5}, 1.5, {"*.bias": 0.0}, 0.0)[epoch]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_scale_may_follow_the_epoch(runtime: str) -> None:
    """That of the batch, in the pass and in the update alike, though other epochs are under way in other stages."""
    stages, batches = make_stages(mixed_blocks, 3), make_batches(4)

    def scale(batch: int, stage: int, name: str) -> float:
        alpha = alpha_of(batch // 4)
        return first_match(alpha, stage, name) if isinstance(alpha, dict) else alpha

    def wrong(batch: int, stage: int, name: str) -> float:
        return scale(min(15, batch + 1), stage, name)

    made = {
        kind: Forward(stages, batches * 4, rule=RULES["sgd"], delays=late(3), scale=kind).train()
        for kind in (scale, wrong)
    }
    train(stages, fw.method("asyncfgd", direction=direction, scale=alpha_of), batches, epochs=4, runtime=runtime)
    assert distance(stages, made[scale]) < CLOSE
    assert distance(stages, made[wrong]) > FAR


def test_frozen_by_scale_is_frozen_by_requires_grad() -> None:
    """A parameter that asks for no gradient is left alone, and gets no tangent."""
    stages, other = make_stages(mixed_blocks, 3), make_stages(mixed_blocks, 3)
    for stage in other:
        for name, p in stage.named_parameters():
            p.requires_grad_(not name.endswith("bias"))
    train(stages, fw.method("asyncfgd", direction=direction, scale={"*bias": 0}), make_batches())
    train(other, fw.method("asyncfgd", direction=direction), make_batches())
    assert distance(stages, [dict(stage.named_parameters()) for stage in other]) < CLOSE
    assert distance(stages, [dict(stage.named_parameters()) for stage in make_stages(mixed_blocks, 3)]) > FAR
    assert same_bits(
        [p for s in other for name, p in s.named_parameters() if name.endswith("bias")],
        [p for s in make_stages(mixed_blocks, 3) for name, p in s.named_parameters() if name.endswith("bias")],
    )


# The optimizer. ---------------------------------------------------------------------------------------------------


class Unit(torch.optim.Optimizer):
    """Steps of length 1 along all of its gradients together, and counts them."""

    made: ClassVar[list[Unit]] = []

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.steps = 0
        self.made.append(self)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        found = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        length = torch.cat([p.grad.flatten() for p in found]).norm()
        for p in found:
            p -= p.grad / length


@spread(name=METHODS, checkpoint=[True, False])
def test_an_optimizer_may_look_at_all_its_gradients(name: str, checkpoint: bool) -> None:
    """An update is one step of it, with everything that the stage has learned from the batch."""
    Unit.made.clear()
    stages, before = make_stages(mixed_blocks, 3), make_stages(mixed_blocks, 3)
    train(stages, fw.method(name, checkpoint=checkpoint, **METHODS[name]), make_batches(1), optimizer=Unit)
    assert [optimizer.steps for optimizer in Unit.made] == [1, 1, 1]
    for move in moves(before, stages):
        length = torch.cat([m.flatten() for m in move.values()]).norm()
        torch.testing.assert_close(length, torch.ones_like(length))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_clipping_clips_all_of_a_stage(runtime: str) -> None:
    free, clipped = make_stages(mixed_blocks, 3), make_stages(mixed_blocks, 3)
    before = make_stages(mixed_blocks, 3)
    method, optimizer = fw.method("asyncfgd", direction=direction), partial(torch.optim.SGD, lr=1.0)
    train(free, method, make_batches(1), optimizer=optimizer)
    train(clipped, method, make_batches(1), optimizer=optimizer, clip=0.05, runtime=runtime)
    for whole, short in zip(moves(before, free), moves(before, clipped)):
        one, other = (torch.cat([m.flatten() for m in move.values()]) for move in (whole, short))
        assert one.norm() > 0.1
        torch.testing.assert_close(other, 0.05 * one / one.norm(), rtol=1e-4, atol=0)  # torch adds 1e-6 to the norm


def test_plans_have_the_versions_of_the_definition() -> None:
    for k in (1, 2, 3, 4):
        plan = fw.plan("asyncfgd", k=k)
        assert tuple(plan.delays) == late(k)
        for stage in range(k):
            for n in range(6):
                assert plan.versions(stage=stage, batch=n).forward == max(0, n - (k - 1 - stage))
        for name in ("fgd", "fgd-mp", "fgd-dp", "fgd-sync"):
            plan = fw.plan(name, k=k)
            assert not any(plan.delays)
            assert [plan.versions(stage=0, batch=n).forward for n in range(4)] == [0, 1, 2, 3]
