"""The library against definitions: an independent reference to 1e-10, and plain PyTorch bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import freewheel as fw
from reference import SGD, Adam, Reference, distance
from spread import spread

BATCHES = 24
CLOSE = 1e-10
FAR = 1e-6  # what a wrong definition must at least do to the weights
RUNTIMES = ("simulate", "threads")

OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
}
RULES = {"sgd": SGD(lr=0.05, momentum=0.9), "adam": Adam(lr=0.01)}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums come in another order with another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Networks of four blocks, and data. -------------------------------------------------------------------------------


def conv_blocks() -> list[list[nn.Module]]:
    return [
        [nn.Conv2d(2, 3, 3, padding=1), nn.Tanh()],
        [nn.Conv2d(3, 2, 3), nn.GELU()],
        [nn.Flatten(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5), nn.GELU()],
        [nn.Linear(5, 3)],
    ]


def dense_blocks() -> list[list[nn.Module]]:
    return [
        [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh()],
        [nn.Linear(5, 5), nn.Tanh()],
        [nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)],
        [nn.Tanh(), nn.Linear(4, 3)],
    ]


def norm_blocks() -> list[list[nn.Module]]:
    """Every block begins with a BatchNorm.

    None follows a bias at once: it would cancel it, and Adam would make steps out of the rounding of a zero gradient.
    """
    return [
        [nn.BatchNorm1d(4), nn.Linear(4, 6), nn.Tanh()],
        [nn.BatchNorm1d(6), nn.Linear(6, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.GELU()],
        [nn.BatchNorm1d(5), nn.Linear(5, 5), nn.GELU()],
        [nn.BatchNorm1d(5), nn.Linear(5, 3)],
    ]


def image_blocks() -> list[list[nn.Module]]:
    return [
        [nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()],
        [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()],
        [nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU()],
        [nn.Linear(8, 3)],
    ]


def drop_blocks() -> list[list[nn.Module]]:
    return [
        [nn.Linear(4, 8), nn.Dropout(0.3), nn.Tanh()],
        [nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5)],
        [nn.Linear(8, 8), nn.Dropout(0.2)],
        [nn.Tanh(), nn.Linear(8, 3)],
    ]


def known_blocks() -> list[list[nn.Module]]:
    """Layers whose derivatives the reference knows by hand."""
    return [
        [nn.Conv2d(2, 3, 3, padding=1), nn.Tanh()],
        [nn.Conv2d(3, 2, 3), nn.Tanh(), nn.Flatten(), nn.BatchNorm1d(8)],
        [nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh()],
        [nn.BatchNorm1d(5), nn.Linear(5, 3)],
    ]


Blocks = Callable[[], list[list[nn.Module]]]


def make_stages(blocks: Blocks, k: int, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    """K stages: the last ones hold a block each, the first holds the rest."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = blocks()
    cut = len(made) - k + 1
    groups = [[layer for block in made[:cut] for layer in block], *made[cut:]]
    return [nn.Sequential(*group).to(dtype) for group in groups]


def make_batches(*shape: int, count: int = BATCHES, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, *shape, generator=g, dtype=dtype), torch.randint(3, (6,), generator=g)) for _ in range(count)
    ]


def data_for(blocks: Blocks, count: int = BATCHES, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    shape = (2, 4, 4) if blocks in (conv_blocks, image_blocks, known_blocks) else (4,)
    return make_batches(*shape, count=count, dtype=dtype)


def train(
    stages: list[nn.Module],
    method: str | fw.Method,
    batches: list[tuple[Tensor, Tensor]],
    *,
    optimizer: Any,
    runtime: str = "simulate",
    epochs: int = 1,
    **options: Any,
) -> fw.Trainer:
    trainer = fw.Trainer(
        stages,
        check=False,
        method=method,
        loss=F.cross_entropy,
        optimizer=optimizer,
        runtime=runtime,
        threads=1,
        **options,
    )
    trainer.fit(batches, epochs=epochs, progress=False)
    return trainer


# Late methods against the reference. ------------------------------------------------------------------------------


class Case(NamedTuple):
    """A method, and what the reference is told of it."""

    method: fw.Method
    k: int
    definition: tuple[tuple[str, Any], ...]
    blocks: Blocks = conv_blocks


def case(method: fw.Method, blocks: Blocks = conv_blocks, **definition: Any) -> Case:
    return Case(method, len(definition["delays"]), tuple(definition.items()), blocks)


def late(k: int, each: int = 1) -> tuple[int, ...]:
    return tuple(each * (k - 1 - i) for i in range(k))


def dsp(p: tuple[int, ...], m: tuple[int, ...]) -> Case:
    return case(fw.DSP(p=p, m=m), delays=m, weights="recompute")


CASES = {
    **{f"ddg-{k}": case(fw.DDG(), delays=late(k)) for k in (2, 3, 4)},
    **{f"fr-{k}": case(fw.FR(), delays=late(k), weights="recompute") for k in (2, 3, 4)},
    **{f"pipedream-{k}": case(fw.PipeDream(), delays=late(k)) for k in (2, 3, 4)},
    **{
        f"fdg-{order}-{k}": case(fw.FDG(shrink=0.5, order=order), delays=late(k, 2), order=order, shrink=0.5)
        for order in ("backward", "forward")
        for k in (2, 3, 4)
    },
    "fdg-plain": case(fw.FDG(), delays=(4, 2, 0), order="backward"),
    "dsp-2": dsp((1, 0), (2, 0)),
    "dsp-3": dsp((1, 1, 0), (4, 2, 0)),
    "dsp-3-long": dsp((2, 2, 0), (6, 3, 0)),
    "dsp-4": dsp((1, 1, 1, 0), (6, 4, 2, 0)),
    **{
        f"pipemare-{k}": case(fw.PipeMare(anneal=0, decay=None), dense_blocks, delays=late(k), weights="current")
        for k in (2, 3, 4)
    },
    **{
        f"pipemare-step-{k}": case(
            fw.PipeMare(anneal=15, decay=None), dense_blocks, delays=late(k), weights="current", anneal=15
        )
        for k in (3, 4)
    },
    **{
        f"pipemare-discrepancy-{k}": case(
            fw.PipeMare(anneal=0, decay=0.3), dense_blocks, delays=late(k), weights="current", decay=0.3
        )
        for k in (2, 4)
    },
    **{
        f"pipemare-both-{k}": case(
            fw.PipeMare(), dense_blocks, delays=late(k), weights="current", anneal=1000, decay=math.exp(-2)
        )
        for k in (3, 4)
    },
    "pipemare-layers": case(fw.PipeMare(anneal=0, decay=None), known_blocks, delays=late(4), weights="current"),
    "pipemare-layers-discrepancy": case(
        fw.PipeMare(anneal=0, decay=0.3), known_blocks, delays=late(4), weights="current", decay=0.3
    ),
    "predict-forward": case(fw.Pipeline(delays=(3, 1, 0), weights="predict"), delays=(3, 1, 0), weights="predict"),
    "predict-backward": case(
        fw.Pipeline(delays=(4, 1, 0), order="backward", weights="predict"),
        delays=(4, 1, 0),
        order="backward",
        weights="predict",
    ),
    "compensation-forward": case(
        fw.Pipeline(delays=(3, 2, 0), corrections=[fw.DelayCompensation(2.0)]),
        delays=(3, 2, 0),
        compensation=2.0,
    ),
    "compensation-backward": case(
        fw.Pipeline(delays=(3, 1, 0), order="backward", corrections=[fw.DelayCompensation(2.0)]),
        delays=(3, 1, 0),
        order="backward",
        compensation=2.0,
    ),
    "compensation-predict": case(
        fw.Pipeline(delays=(3, 1, 0), weights="predict", corrections=[fw.DelayCompensation(2.0)]),
        delays=(3, 1, 0),
        weights="predict",
        compensation=2.0,
    ),
    "accumulate": case(fw.Pipeline(delays=(2, 1, 0), corrections=[fw.Accumulate(3)]), delays=(2, 1, 0), every=3),
    "accumulate-rest": case(  # four gradients are left over at the end, and wait
        fw.Pipeline(delays=(2, 0), weights="recompute", corrections=[fw.Accumulate(5)]),
        delays=(2, 0),
        weights="recompute",
        every=5,
    ),
    "accumulate-zero": case(fw.Pipeline(delays=(0, 0), corrections=[fw.Accumulate(2)]), delays=(0, 0), every=2),
    "accumulate-step": case(  # the step's t counts batches, as versions do
        fw.Pipeline(delays=(3, 2, 0), corrections=[fw.Accumulate(2), fw.StalenessStep(10)]),
        delays=(3, 2, 0),
        every=2,
        anneal=10,
    ),
    "free-stash": case(
        fw.Pipeline(delays=(3, 1, 0), order="backward", corrections=[fw.Shrink(0.7)]),
        delays=(3, 1, 0),
        order="backward",
        shrink=0.7,
    ),
    "free-recompute": case(
        fw.Pipeline(delays=(3, 1, 0), order="backward", weights="recompute"),
        delays=(3, 1, 0),
        order="backward",
        weights="recompute",
    ),
    "recompute-late-end": case(
        fw.Pipeline(delays=(3, 2, 1), weights="recompute"), delays=(3, 2, 1), weights="recompute"
    ),
    "recompute-late-end-backward": case(
        fw.Pipeline(delays=(3,), order="backward", weights="recompute"),
        delays=(3,),
        order="backward",
        weights="recompute",
    ),
    "free-current": case(
        fw.Pipeline(delays=(3, 1, 0), order="backward", weights="current", corrections=[fw.Discrepancy(0.4)]),
        dense_blocks,
        delays=(3, 1, 0),
        order="backward",
        weights="current",
        decay=0.4,
    ),
    "free-equal": case(fw.Pipeline(delays=(2, 2, 2, 0)), delays=(2, 2, 2, 0)),
    "free-late-end": case(fw.Pipeline(delays=(3, 1, 1)), delays=(3, 1, 1)),
    "free-late-end-backward": case(fw.Pipeline(delays=(3, 2, 1), order="backward"), delays=(3, 2, 1), order="backward"),
    "free-mixture": case(
        fw.Pipeline(
            delays=(5, 3, 1, 0),
            order="backward",
            corrections=[fw.Shrink(0.8), fw.DelayCompensation(1.0), fw.Accumulate(2)],
        ),
        delays=(5, 3, 1, 0),
        order="backward",
        shrink=0.8,
        compensation=1.0,
        every=2,
    ),
    "norm-stash": case(fw.FDG(shrink=0.5), norm_blocks, delays=(6, 4, 2, 0), order="backward", shrink=0.5),
    "norm-recompute": case(fw.FR(), norm_blocks, delays=late(4), weights="recompute"),
}


@cache
def expected(name: str, optimizer: str) -> list[dict[str, Tensor]]:
    _, k, definition, blocks = CASES[name]
    return Reference(
        make_stages(blocks, k),
        data_for(blocks),
        loss=F.cross_entropy,
        rule=RULES[optimizer],
        **dict(definition),
    ).train()


@spread(name=CASES, optimizer=OPTIMIZERS)
def test_equals_reference(name: str, optimizer: str) -> None:
    method, k, _, blocks = CASES[name]
    stages = make_stages(blocks, k)
    train(stages, method, data_for(blocks), optimizer=OPTIMIZERS[optimizer])
    assert distance(stages, expected(name, optimizer)) < CLOSE


class TwoOutputs(nn.Module):
    """A stage with two results, and below a loss with a weight of its own that changes its argument in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x).tanh().split(3, 1)  # pyright: ignore[reportReturnType]


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(out[0].mul_(1.0) * self.factor, target) + out[1].square().mean()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_late_end_recomputes_all_but_the_value_that_its_loss_sees(runtime: str) -> None:
    """Eq. 5 of DSP, in plain PyTorch: the loss at the output of the forward, the stage at the newest weights."""
    delay, lr, batches = 2, 0.5, data_for(dense_blocks)
    torch.manual_seed(0)
    stage, loss = TwoOutputs(), Weighted()
    own, factor = [deepcopy(dict(stage.named_parameters()))], loss.factor.detach().clone()
    for n, (x, y) in enumerate(batches):
        seen = [h.detach().requires_grad_() for h in functional_call(stage, own[max(0, n - delay)], (x,))]
        newest, scale = own[n], factor.clone().requires_grad_()
        value = F.cross_entropy(seen[0] * scale, y) + seen[1].square().mean()
        *errors, step = torch.autograd.grad(value, [*seen, scale])
        found = torch.autograd.grad(functional_call(stage, newest, (x,)), list(newest.values()), errors)
        own.append({name: (w - lr * g).detach().requires_grad_() for (name, w), g in zip(newest.items(), found)})
        factor = factor - lr * step
    method = fw.Pipeline(delays=(delay,), weights="recompute")
    fw.Trainer(
        [stage],
        method=method,
        loss=loss,
        optimizer=partial(torch.optim.SGD, lr=lr),
        runtime=runtime,
        threads=1,
        check=False,
    ).fit(batches, progress=False)
    assert distance([stage], [own[-1]]) < CLOSE
    assert (loss.factor - factor).abs() < CLOSE


def test_equals_reference_over_several_fits() -> None:
    """The pipeline drains at the end of a fit; the next one starts from the newest weights."""
    stages, batches = make_stages(conv_blocks, 3), data_for(conv_blocks)
    trainer = fw.Trainer(
        stages,
        check=False,
        method="fdg",
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.05),
        runtime="simulate",
        threads=1,
    )
    expected = stages
    for part in (batches[:11], batches[11:]):
        reference = Reference(
            expected, part, loss=F.cross_entropy, rule=SGD(lr=0.05), delays=(4, 2, 0), order="backward"
        )
        trained = reference.train()
        expected = [deepcopy(stage) for stage in stages]
        for stage, weights in zip(expected, trained):
            stage.load_state_dict(weights)
        trainer.fit(part, progress=False)
        assert distance(stages, trained) < CLOSE


# The reference can fail. ------------------------------------------------------------------------------------------


class ForwardTooNew(Reference):
    def forward_version(self, k: int, n: int) -> int:
        return min(n, super().forward_version(k, n) + (self.delays[k] > 0))


class ForwardTooOld(Reference):
    def forward_version(self, k: int, n: int) -> int:
        return max(0, super().forward_version(k, n) - (self.delays[k] > 0))


class BackwardTooOld(Reference):
    def backward_version(self, k: int, n: int) -> int:
        return max(0, n - (self.delays[k] > 0))


class ShrinkAtTheEndToo(Reference):
    def received(self, k: int, n: int) -> Tensor:
        return super().received(k, n) * (self.shrink if k == len(self.stages) - 2 else 1.0)


class NoShrink(Reference):
    def received(self, k: int, n: int) -> Tensor:
        return super().received(k, n) / (self.shrink if k < len(self.stages) - 1 else 1.0)


class StepOneLate(Reference):
    def step_scale(self, k: int, t: int) -> float:
        return super().step_scale(k, t + 1)


class DriftDoubled(Reference):
    def drift(self, k: int, old: Any, new: Any) -> Any:
        return {name: 2 * d for name, d in super().drift(k, old, new).items()}


MUTANTS = [
    ("ddg-2", ForwardTooNew),
    ("ddg-3", ForwardTooOld),
    ("pipedream-4", ForwardTooNew),
    ("fr-2", ForwardTooOld),
    ("fr-2", BackwardTooOld),
    ("dsp-3", ForwardTooNew),
    ("dsp-3-long", BackwardTooOld),
    ("dsp-4", BackwardTooOld),
    ("fdg-backward-3", ForwardTooNew),
    ("fdg-backward-3", ForwardTooOld),
    ("fdg-forward-2", ForwardTooNew),
    ("fdg-backward-3", ShrinkAtTheEndToo),
    ("fdg-backward-3", NoShrink),
    ("pipemare-3", BackwardTooOld),
    ("pipemare-3", ForwardTooNew),
    ("pipemare-step-3", StepOneLate),
    ("pipemare-discrepancy-2", DriftDoubled),
    ("predict-forward", ForwardTooNew),
    ("compensation-forward", ForwardTooNew),
    ("free-late-end", ForwardTooNew),
]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_reference_is_sensitive(name: str, mutant: type[Reference]) -> None:
    _, k, definition, blocks = CASES[name]
    wrong = mutant(
        make_stages(blocks, k), data_for(blocks), loss=F.cross_entropy, rule=RULES["sgd"], **dict(definition)
    ).train()
    assert distance(wrong, expected(name, "sgd")) > FAR


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ddg-3", "fr-3"),
        ("dsp-3", "fdg-plain"),
        ("fdg-plain", "fdg-backward-3"),
        ("fdg-backward-3", "fdg-forward-3"),
        ("pipemare-4", "pipemare-discrepancy-4"),
        ("pipemare-3", "pipemare-step-3"),
        ("predict-forward", "compensation-predict"),
        ("compensation-backward", "free-stash"),
    ],
)
def test_methods_differ(name: str, other: str) -> None:
    assert distance(expected(name, "sgd"), expected(other, "sgd")) > FAR


def test_pipedream_is_ddg() -> None:
    assert distance(expected("pipedream-4", "adam"), expected("ddg-4", "adam")) == 0


# Zero delay is plain PyTorch, bit for bit. ------------------------------------------------------------------------


def plain_loop(
    stages: list[nn.Module],
    batches: list[tuple[Tensor, Tensor]],
    *,
    optimizer: Any,
    epochs: int = 1,
    clip: Callable[[list[nn.Module]], object] = lambda stages: None,
) -> None:
    model = nn.Sequential(*stages).train()
    stepper = optimizer(model.parameters())
    for x, y in batches * epochs:
        stepper.zero_grad()
        F.cross_entropy(model(x), y).backward()
        clip(stages)
        stepper.step()


def clip_each(stages: list[nn.Module]) -> None:
    for stage in stages:
        nn.utils.clip_grad_norm_(list(stage.parameters()), 0.5)


def clip_all(stages: list[nn.Module]) -> None:
    nn.utils.clip_grad_norm_([p for stage in stages for p in stage.parameters()], 0.5)


def assert_same_bits(stages: list[nn.Module], expected: list[nn.Module]) -> None:
    for k, (stage, other) in enumerate(zip(stages, expected, strict=True)):
        found, wanted = stage.state_dict(), other.state_dict()
        assert found.keys() == wanted.keys()
        wrong = [name for name in wanted if not torch.equal(found[name], wanted[name])]
        assert not wrong, f"stage {k}: {wrong}"


def zero_delay_methods(k: int) -> dict[str, fw.Method]:
    found: dict[str, fw.Method] = {"bp": fw.BP(), "gpipe": fw.GPipe(micro=1), "1f1b": fw.OneFOneB(micro=1)}
    for weights in ("stash", "recompute", "current", "predict"):
        for order in ("forward", "backward"):
            found[f"{weights}-{order}"] = fw.Pipeline(delays=(0,) * k, weights=weights, order=order)
    if k == 1:
        found |= {
            "ddg": fw.DDG(),
            "fr": fw.FR(),
            "pipedream": fw.PipeDream(),
            "fdg": fw.FDG(shrink=0.5),
            "fdg-forward": fw.FDG(shrink=0.5, order="forward"),
            "dsp": fw.DSP(),
            "dsp-given": fw.DSP(p=(0,), m=(0,)),
            "pipemare": fw.PipeMare(),
            "dgl": fw.DGL(replay=4),
            "dni": fw.DNI(labels=True),
        }
    return found


ZERO = {f"{name}-{k}": (k, method) for k in (1, 2, 3, 4) for name, method in zero_delay_methods(k).items()}


@cache
def plainly_trained(k: int, optimizer: str, clip: Callable[[list[nn.Module]], object]) -> list[nn.Module]:
    stages = make_stages(image_blocks, k, torch.float32)
    batches = data_for(image_blocks, 6, torch.float32)
    plain_loop(stages, batches, optimizer=OPTIMIZERS[optimizer], epochs=2, clip=clip)
    return stages


def no_clip(stages: list[nn.Module]) -> None:
    pass


def test_every_chain_method_is_tried_with_one_stage() -> None:
    pipelines = {name: cls().pipeline(1) for name, cls in fw.METHODS.items()}
    chain = {name for name, made in pipelines.items() if made.credit.name == "chain"}
    assert chain <= zero_delay_methods(1).keys()


@spread(name=ZERO, optimizer=OPTIMIZERS)
def test_zero_delay_is_plain_training(name: str, optimizer: str) -> None:
    k, method = ZERO[name]
    stages = make_stages(image_blocks, k, torch.float32)
    batches = data_for(image_blocks, 6, torch.float32)
    train(stages, method, batches, optimizer=OPTIMIZERS[optimizer], epochs=2)
    assert_same_bits(stages, plainly_trained(k, optimizer, no_clip))


@pytest.mark.parametrize("name", ["bp", "1f1b", "stash-forward", "recompute-forward"])
def test_zero_delay_is_plain_training_in_threads(name: str) -> None:
    stages = make_stages(image_blocks, 3, torch.float32)
    batches = data_for(image_blocks, 6, torch.float32)
    method = zero_delay_methods(3)[name]
    train(stages, method, batches, optimizer=OPTIMIZERS["sgd"], epochs=2, runtime="threads")
    assert_same_bits(stages, plainly_trained(3, "sgd", no_clip))


@spread(name=["bp", "gpipe", "1f1b", "stash-forward", "recompute-forward"], k=[1, 2, 3, 4], optimizer=OPTIMIZERS)
def test_stage_clipping_is_plain_clipping(name: str, k: int, optimizer: str) -> None:
    stages = make_stages(image_blocks, k, torch.float32)
    batches = data_for(image_blocks, 6, torch.float32)
    method = zero_delay_methods(k)[name]
    train(stages, method, batches, optimizer=OPTIMIZERS[optimizer], epochs=2, clip=0.5)
    assert_same_bits(stages, plainly_trained(k, optimizer, clip_each))


@spread(least=6, name=["bp", "gpipe", "1f1b"], k=[1, 2, 3, 4], optimizer=OPTIMIZERS, runtime=RUNTIMES)
def test_global_clipping_is_plain_clipping(name: str, k: int, optimizer: str, runtime: str) -> None:
    stages = make_stages(image_blocks, k, torch.float32)
    batches = data_for(image_blocks, 6, torch.float32)
    train(
        stages,
        zero_delay_methods(k)[name],
        batches,
        optimizer=OPTIMIZERS[optimizer],
        epochs=2,
        runtime=runtime,
        clip=0.5,
        clip_scope="global",
    )
    assert_same_bits(stages, plainly_trained(k, optimizer, clip_all))


def test_clipping_clips() -> None:
    """The bound is one that these nets exceed, for a stage and for all."""
    none, each, all_ = (plainly_trained(3, "sgd", clip) for clip in (no_clip, clip_each, clip_all))
    for one, other in ((none, each), (none, all_), (each, all_)):
        assert any(not torch.equal(a, b) for a, b in zip(parameters(one), parameters(other)))


def parameters(stages: list[nn.Module]) -> list[Tensor]:
    return [p for stage in stages for p in stage.parameters()]


# Micro-batches. ---------------------------------------------------------------------------------------------------


@spread(micro=[2, 4], k=[1, 2, 3, 4])
def test_micro_batches_add_up(micro: int, k: int) -> None:
    """A batch of 6 in 4 parts has parts of unequal size: each weighs as much as it holds."""
    plain, batches = make_stages(conv_blocks, k), data_for(conv_blocks, 10)
    plain_loop(plain, batches, optimizer=OPTIMIZERS["sgd"])
    found = {}
    for method in (fw.GPipe(micro=micro), fw.OneFOneB(micro=micro)):
        for runtime in RUNTIMES:
            stages = make_stages(conv_blocks, k)
            train(stages, method, batches, optimizer=OPTIMIZERS["sgd"], runtime=runtime)
            found[method.name, runtime] = stages
    first = found["gpipe", "simulate"]
    for stages in found.values():
        assert_same_bits(stages, first)
    assert distance(first, [dict(stage.named_parameters()) for stage in plain]) < 1e-12


def test_micro_batches_are_micro_batches() -> None:
    """BatchNorm sees them one at a time: its count is the sign."""
    stages = make_stages(norm_blocks, 2)
    train(stages, fw.GPipe(micro=3), data_for(norm_blocks, 5), optimizer=OPTIMIZERS["sgd"])
    assert [int(m.num_batches_tracked) for m in norms(stages)] == [15] * 5


# BatchNorm: running statistics. -----------------------------------------------------------------------------------


def norms(stages: list[nn.Module]) -> list[nn.BatchNorm1d]:
    return [m for stage in stages for m in stage.modules() if isinstance(m, nn.BatchNorm1d)]


RUNNING = {
    "fr": (fw.FR(), {"delays": (3, 2, 1, 0), "weights": "recompute"}),
    "dsp": (fw.DSP(), {"delays": (6, 4, 2, 0), "weights": "recompute"}),
    "ddg": (fw.DDG(), {"delays": (3, 2, 1, 0)}),
    "fdg": (fw.FDG(shrink=0.5), {"delays": (6, 4, 2, 0), "order": "backward", "shrink": 0.5}),
}


@spread(name=RUNNING, runtime=RUNTIMES)
def test_running_statistics_count_each_batch_once(name: str, runtime: str) -> None:
    method, definition = RUNNING[name]
    batches = data_for(norm_blocks, 20)
    reference = Reference(make_stages(norm_blocks, 4), batches, loss=F.cross_entropy, rule=RULES["sgd"], **definition)
    trained = reference.train()
    stages = make_stages(norm_blocks, 4)
    train(stages, method, batches, optimizer=OPTIMIZERS["sgd"], runtime=runtime)
    assert distance(stages, trained) < CLOSE
    assert [int(m.num_batches_tracked) for m in norms(stages)] == [20] * 5
    for k, stage in enumerate(stages):
        head = stage[0]  # what it sees does not depend on the weights of its own stage
        mean, var = torch.zeros_like(head.running_mean), torch.ones_like(head.running_var)
        for n in range(20):
            x = reference.input(k, n)
            mean = 0.9 * mean + 0.1 * x.mean(0)
            var = 0.9 * var + 0.1 * x.var(0)
        torch.testing.assert_close(head.running_mean, mean, rtol=0, atol=CLOSE)
        torch.testing.assert_close(head.running_var, var, rtol=0, atol=CLOSE)


# Dropout: a forward that is redone draws the same numbers. --------------------------------------------------------


def buffers(
    method: fw.Method, *, runtime: str = "simulate", seed: int = 0, k: int = 4, batches: int = 12
) -> list[Tensor]:
    """The momentum buffers after training that leaves the weights where they are: a sum of all gradients.

    The step size is 0, so every version is version 0, and methods can differ by their random numbers only.
    """
    stages = make_stages(drop_blocks, k, torch.float32)
    before = deepcopy(stages)
    still = partial(torch.optim.SGD, lr=0.0, momentum=0.9)
    data = data_for(drop_blocks, batches, torch.float32)
    trainer = train(stages, method, data, optimizer=still, runtime=runtime, seed=seed)
    assert_same_bits(stages, before)
    return [
        o.state[p]["momentum_buffer"]
        for o in trainer.optimizers
        if o is not None
        for group in o.param_groups
        for p in group["params"]
    ]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    assert len(found) == len(expected) == 8
    return all(torch.equal(a, b) for a, b in zip(found, expected))


@spread(delays=[(3, 2, 1, 0), (6, 4, 2, 0), (2, 2, 1, 1)], runtime=RUNTIMES)
def test_redone_forward_draws_the_same_numbers(delays: tuple[int, ...], runtime: str) -> None:
    stash = buffers(fw.Pipeline(delays=delays))
    redone = buffers(fw.Pipeline(delays=delays, weights="recompute"), runtime=runtime)
    assert same(redone, stash)


def test_random_numbers_belong_to_the_batch() -> None:
    """Not to the method, the order or the runtime; but to the seed."""
    first = buffers(fw.BP())
    assert same(buffers(fw.FDG()), first)
    assert same(buffers(fw.FDG(order="forward"), runtime="threads"), first)
    assert same(buffers(fw.DSP()), first)
    assert same(buffers(fw.Pipeline(delays=(3, 2, 1, 0), weights="predict")), first)
    assert same(buffers(fw.PipeMare(), runtime="threads"), first)
    assert not same(buffers(fw.BP(), seed=1), first)


def test_batches_draw_different_numbers() -> None:
    stages = make_stages(drop_blocks, 2, torch.float32)
    still = partial(torch.optim.SGD, lr=0.0, momentum=1.0)
    batch = data_for(drop_blocks, 1, torch.float32)
    gradients = []
    for count in (1, 2):
        trainer = train(stages, "fr", batch * count, optimizer=still)
        optimizer = trainer.optimizers[0]
        assert optimizer is not None
        gradients.append(optimizer.state[next(stages[0].parameters())]["momentum_buffer"].clone())
    once, twice = gradients
    assert not torch.allclose(twice, 2 * once)


class Draws(nn.Linear):
    """Notes the random numbers of its forwards."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.drawn: list[tuple[float, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.drawn.append(tuple(torch.rand(3).tolist()))
        return super().forward(x)


def test_stages_batches_micro_batches_and_fits_draw_different_numbers() -> None:
    stages: list[nn.Module] = [Draws(), Draws()]
    batches = make_batches(4, count=3, dtype=torch.float32)
    trainer = train(stages, fw.GPipe(micro=2), batches, optimizer=OPTIMIZERS["sgd"])
    trainer.fit(batches, progress=False)
    drawn = [numbers for stage in stages if isinstance(stage, Draws) for numbers in stage.drawn]
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 3 * 2
