"""Recurrent nets under forward credit: pieces of a sequence give what the sequence as a whole gives.

The reference knows no pieces. It runs whole sequences through all stages, each at its version, and takes the derivative
backwards, through time: d(n) = ⟨∇ loss(n), u(n)⟩.
"""

from __future__ import annotations

import textwrap
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import freewheel as fw
from command_line import freewheel
from freewheel.runtime._channels import Channel
from reference import SGD, Adam, Rule, Tensors, distance
from rows import same_bits, tensors
from spread import rarely, spread

CLOSE, FAR = 1e-10, 1e-4
T, COUNT = 7, 6
RUNTIMES = ("simulate", "threads")
KINDS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
}
RULES: dict[str, Rule] = {"sgd": SGD(lr=0.05, momentum=0.9), "adam": Adam(lr=0.01)}

Batches = Sequence[tuple[Tensor, Tensor]]


def direction(batch: int, stage: int, params: Tensors) -> Tensors:
    """A direction that anybody can draw again: it depends on the names alone."""
    return {name: draw(f"{batch} {stage} {name}", p) for name, p in params.items()}


def draw(key: str, like: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(like.shape, generator=g, dtype=like.dtype)


# The reference. ---------------------------------------------------------------------------------------------------


class Version(NamedTuple):
    """A stage after some number of sequences."""

    weights: Tensors
    state: object  # the optimizer's


class Sequences:
    """The trajectory of forward gradients over whole sequences; `delays` are those of the stages."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        batches: Batches,
        *,
        rule: Rule,
        delays: Sequence[int],
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    ) -> None:
        self.stages, self.batches, self.rule, self.delays, self.loss = stages, batches, rule, delays, loss
        self.versions = [[Version({n: p.detach().clone() for n, p in s.named_parameters()}, None)] for s in stages]

    def train(self, fits: int = 1) -> list[Tensors]:
        """The weights of every stage after all batches, which so many fits share out."""
        each = len(self.batches) // fits
        for n, (x, y) in enumerate(self.batches):
            drained = n // each * each  # versions that were there when the fit began
            used = [self.versions[k][max(drained, n - late)].weights for k, late in enumerate(self.delays)]
            moves = [direction(n, k, weights) for k, weights in enumerate(used)]
            d = self.derivative(x, y, used, moves)
            for k, move in enumerate(moves):
                weights, state = self.versions[k][-1]
                self.versions[k].append(
                    Version(*self.rule(weights, {m: d * u for m, u in move.items()}, state, n, 1.0))
                )
        return [versions[-1].weights for versions in self.versions]

    def derivative(self, x: Tensor, y: Tensor, weights: list[Tensors], moves: list[Tensors]) -> Tensor:
        leaves = [{name: w.clone().requires_grad_() for name, w in each.items()} for each in weights]
        out = x
        for stage, each in zip(self.stages, leaves):
            out = functional_call(stage, each, (out,))
        pairs = [(each[name], u) for each, move in zip(leaves, moves) for name, u in move.items()]
        gradients = torch.autograd.grad(self.loss(out, y), [w for w, _ in pairs])
        return torch.stack([(g * u).sum() for g, (_, u) in zip(gradients, pairs)]).sum()


# Networks of three blocks, and data. ------------------------------------------------------------------------------


TASKS = {"class": (), "steps": (T,)}  # the shape of a target: a class at the end of a sequence, or at every step


def head(features: int, task: str) -> list[nn.Module]:
    linear = nn.Linear(features, 3)
    return [linear] if task == "class" else [linear, fw.models.ClassesFirst()]


def deep(kind: str, task: str, *, dropout: float = 0.0) -> list[list[nn.Module]]:
    """Recurrent layers in every block, and one that is two deep."""
    layer = partial(KINDS[kind], batch_first=True)
    return [
        [fw.Recurrent(layer(4, 5)), nn.Tanh(), nn.Dropout(dropout)],
        [nn.Linear(5, 6), fw.Recurrent(layer(6, 5, num_layers=2, dropout=dropout))],
        [fw.Recurrent(layer(5, 6), last=task == "class"), *head(6, task)],
    ]


def plain_middle(kind: str, task: str) -> list[list[nn.Module]]:
    """A block without memory between two that have some."""
    layer = partial(KINDS[kind], batch_first=True)
    return [
        [fw.Recurrent(layer(4, 6))],
        [nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()],
        [fw.Recurrent(layer(6, 5), last=task == "class"), nn.Linear(5, 4), nn.Tanh(), *head(4, task)],
    ]


def plain_ends(kind: str, task: str) -> list[list[nn.Module]]:
    """Memory in the middle alone."""
    return [
        [nn.Linear(4, 6), nn.Tanh()],
        [fw.Recurrent(KINDS[kind](6, 5, batch_first=True), last=task == "class")],
        head(5, task),
    ]


def tokens(kind: str, task: str) -> list[list[nn.Module]]:
    """Whole numbers come in."""
    layer = partial(KINDS[kind], batch_first=True)
    return [
        [nn.Embedding(9, 4), fw.Recurrent(layer(4, 6))],
        [fw.Recurrent(layer(6, 6, bias=False))],
        [fw.Recurrent(layer(6, 5), last=task == "class"), *head(5, task)],
    ]


NETS: dict[str, Callable[..., list[list[nn.Module]]]] = {
    "deep": deep,
    "plain-middle": plain_middle,
    "plain-ends": plain_ends,
    "tokens": tokens,
}


def make_stages(net: str, kind: str, task: str, k: int, **options: Any) -> list[nn.Module]:
    """K stages in float64: the last ones hold a block each, the first holds the rest."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = NETS[net](kind, task, **options)
    cut = len(made) - k + 1
    groups = [[layer for block in made[:cut] for layer in block], *made[cut:]]
    return [nn.Sequential(*group).double() for group in groups]


def make_batches(net: str, task: str, count: int = COUNT) -> list[tuple[Tensor, Tensor]]:
    """Batches of which every fourth is smaller."""
    g = torch.Generator().manual_seed(1)
    made = []
    for n in range(count):
        size = 3 if n % 4 == 2 else 5
        x = torch.randn(size, T, 4, generator=g, dtype=torch.float64)
        x = torch.randint(9, (size, T), generator=g) if net == "tokens" else x
        made.append((x, torch.randint(3, (size, *TASKS[task]), generator=g)))
    return made


def make_trainer(stages: list[nn.Module], method: fw.Method, **options: Any) -> fw.Trainer:
    defaults = {"loss": F.cross_entropy, "optimizer": OPTIMIZERS["sgd"], "runtime": "simulate", "seed": 3}
    return fw.Trainer(stages, method=method, threads=1, check=False, **(defaults | options))


def delays(name: str, k: int, steps: int) -> tuple[int, ...]:
    """One sequence at every stage but the last where sequences come in pieces."""
    if name == "fgd":
        return (0,) * k
    return tuple(min(late, 1) if steps > 1 else late for late in range(k - 1, -1, -1))


# No stage stalls. -------------------------------------------------------------------------------------------------


def starts(plan: fw.Plan) -> list[list[int]]:
    """When each stage begins its forwards if each takes 1 and all else nothing, from the text of the plan alone.

    There are no queues here: a message is there once it has been sent.
    """
    rows = [line.split()[2:] for line in plan.text().splitlines()[1:]]
    last = len(rows) - 1
    sent: dict[tuple[int, str], int] = {}  # by sender and message
    clock, at, found = [0] * len(rows), [0] * len(rows), [[] for _ in rows]
    while any(i < len(row) for i, row in zip(at, rows)):
        for k, row in enumerate(rows):
            while at[k] < len(row):
                word = row[at[k]]
                if word.startswith(">"):
                    sender = k - 1 if word[1] == "a" else last
                    if (sender, word[1:]) not in sent:
                        break
                    clock[k] = max(clock[k], sent[sender, word[1:]])
                elif word.endswith(">"):
                    sent[k, word[:-1]] = clock[k]
                elif word[0] == "F":
                    found[k].append(clock[k])
                    clock[k] += 1
                at[k] += 1
    return found


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("steps", [1, 4, 5, 8])
def test_no_stage_ever_stalls(k: int, steps: int) -> None:
    """Stage 0 was busy n/(n+K-2) of the time with n steps, while d was passed on from stage to stage."""
    batches = 6
    if steps > 1 and steps < k - 1:
        steps = k - 1
    plan = fw.plan(fw.AsyncFGD(steps=steps), k=k, batches=batches)
    assert plan.delays == (tuple(range(k))[::-1] if steps == 1 else (1,) * (k - 1) + (0,))
    assert starts(plan) == [[stage + i for i in range(batches * steps)] for stage in range(k)]


def test_with_fewer_steps_than_that_a_sequence_waits_for_the_derivative_alone() -> None:
    """It is known K-1 after the first stage has forwarded all of a sequence, and needed one sequence later."""
    k, steps = 6, 2
    first = starts(fw.plan(fw.AsyncFGD(steps=steps), k=k, batches=4))[0]
    assert first[:5] == [0, 1, 2, 3, steps + k - 1]


# The library equals the reference. --------------------------------------------------------------------------------


@cache
def expected(net: str, kind: str, task: str, late: tuple[int, ...], optimizer: str) -> list[Tensors]:
    stages = make_stages(net, kind, task, len(late))
    batches = make_batches(net, task)
    return Sequences(stages, batches, rule=RULES[optimizer], delays=late).train()


def check(name: str, net: str, kind: str, task: str, k: int, steps: int, optimizer: str, runtime: str) -> None:
    stages, late = make_stages(net, kind, task, k), delays(name, k, steps)
    method = fw.method(name, direction=direction, steps=steps)
    assert fw.plan(method, k=k).delays == late
    trainer = make_trainer(stages, method, optimizer=OPTIMIZERS[optimizer], runtime=runtime)
    trainer.fit(make_batches(net, task), progress=False)
    assert distance(stages, expected(net, kind, task, late, optimizer)) < CLOSE
    assert distance(stages, [dict(s.named_parameters()) for s in make_stages(net, kind, task, k)]) > FAR


def summed(out: Tensor, y: Tensor) -> Tensor:
    """Eq. 15: the losses of the time steps, each the mean over samples, added up."""
    return torch.stack([F.cross_entropy(out[:, :, t], y[:, t]) for t in range(T)]).sum()


@spread(name=["asyncfgd", "fgd"], runtime=["simulate", "threads", rarely("processes")], steps=[3, T])
def test_the_loss_may_be_the_sum_over_time(name: str, runtime: str, steps: int) -> None:
    stages, late = make_stages("deep", "gru", "steps", 3), delays(name, 3, steps)
    batches = make_batches("deep", "steps")
    expected = Sequences(stages, batches, rule=RULES["sgd"], delays=late, loss=summed).train()
    method = fw.method(name, direction=direction, steps=steps, over_time="sum")
    make_trainer(stages, method, runtime=runtime).fit(batches, progress=False)
    assert distance(stages, expected) < CLOSE


def test_a_sum_over_time_is_also_what_is_reported() -> None:
    stages, batches = make_stages("deep", "gru", "steps", 3), make_batches("deep", "steps")
    still = partial(torch.optim.SGD, lr=0.0)
    history = make_trainer(stages, fw.AsyncFGD(steps=3, over_time="sum"), optimizer=still).fit(batches, progress=False)
    losses = [summed(nn.Sequential(*stages)(x), y).item() * len(x) for x, y in batches]
    assert history.epochs[0].loss == pytest.approx(sum(losses) / sum(len(x) for x, _ in batches))


def test_a_class_at_the_end_has_one_loss_anyway() -> None:
    found = [train("asyncfgd", "simulate", task="class", k=2, steps=3, over_time=over) for over in ("mean", "sum")]
    assert same_bits(*found)


def test_over_time_needs_time_steps() -> None:
    with pytest.raises(ValueError, match="over_time='sum' without micro-batches along time: split sequences"):
        fw.AsyncFGD(over_time="sum")
    with pytest.raises(ValueError, match="over_time 'max'"):
        fw.AsyncFGD(steps=2, over_time="max")  # pyright: ignore[reportArgumentType]
    plan = fw.plan(fw.AsyncFGD(steps=2, over_time="sum"), k=2)
    assert fw.Plan.parse(str(plan)) == plan
    assert "along=1 over_time=sum" in str(plan)


@spread(least=12, kind=KINDS, name=["asyncfgd", "fgd"], k=[1, 2, 3], steps=[1, 3, T], task=TASKS)
def test_equals_reference(kind: str, name: str, k: int, steps: int, task: str) -> None:
    check(name, "deep", kind, task, k, steps, "sgd", "simulate")


@spread(kind=KINDS, case=[("asyncfgd", 3, 3), ("asyncfgd", 2, T), ("fgd", 2, 3)], task=TASKS)
def test_adam_and_threads_equal_reference(kind: str, case: tuple[str, int, int], task: str) -> None:
    name, k, steps = case
    check(name, "deep", kind, task, k, steps, "adam", "threads")


@spread(net=[net for net in NETS if net != "deep"], case=[("rnn", 3), ("gru", T), ("lstm", 3), ("lstm", 1)], task=TASKS)
def test_other_nets_equal_reference(net: str, case: tuple[str, int], task: str) -> None:
    """Stages without memory, and embeddings of whole numbers."""
    kind, steps = case
    check("asyncfgd", net, kind, task, 3, steps, "sgd", "simulate")


@pytest.mark.parametrize("late", [(3, 1, 0), (2, 2, 1)], ids=str)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_free_delays_equal_reference(runtime: str, late: tuple[int, ...]) -> None:
    """Of several sequences that wait for their update, each is forwarded from end to end before the next."""
    credit = fw.Forward(direction=direction)
    method = fw.Pipeline(credit=credit, delays=late, micro=3, along=1)
    stages = make_stages("deep", "gru", "steps", 3)
    make_trainer(stages, method, runtime=runtime).fit(make_batches("deep", "steps"), progress=False)
    assert distance(stages, expected("deep", "gru", "steps", late, "sgd")) < CLOSE


def test_versions_matter() -> None:
    """What is compared above differs where it should."""
    late = [expected("deep", "gru", "steps", d, "sgd") for d in ((2, 1, 0), (1, 1, 0), (0, 0, 0))]
    for i, one in enumerate(late):
        for other in late[:i]:
            assert max((a[name] - b[name]).abs().max() for a, b in zip(one, other) for name in a) > FAR


def train(
    name: str,
    runtime: str,
    *,
    net: str = "deep",
    kind: str = "gru",
    task: str = "steps",
    k: int = 3,
    epochs: int = 1,
    dropout: float = 0.0,
    **options: Any,
) -> list[Tensor]:
    stages = make_stages(net, kind, task, k, **({"dropout": dropout} if net == "deep" else {}))
    trainer = make_trainer(stages, fw.method(name, **options), runtime=runtime)
    trainer.fit(make_batches(net, task), epochs=epochs, progress=False)
    return tensors(*stages)


@spread(
    kind=KINDS,
    task=TASKS,
    options=[{}, {"tangents": 3}, {"checkpoint": False}, {"scale": {"0.*": 0}}, {"scale": {"*hh_l0": 0.5, "1.*": 0}}],
)
def test_pieces_change_nothing_without_delays(kind: str, task: str, options: dict[str, Any]) -> None:
    whole, *cut = (train("fgd", "simulate", kind=kind, task=task, steps=n, **options) for n in (1, 2, T))
    for pieces in cut:
        assert max((a - b).abs().max() for a, b in zip(whole, pieces)) < 1e-12


@spread(k=[1, 3], classes=[3, T - 1])
def test_a_target_of_another_length_belongs_to_the_end(k: int, classes: int) -> None:
    """Such as shares of classes, of which there may be more than pieces: it was cut as if they were time steps."""
    g = torch.Generator().manual_seed(2)
    batches = [
        (x, torch.rand(len(x), classes, generator=g).double().softmax(1)) for x, _ in make_batches("deep", "class")
    ]
    runs = []
    for steps in (1, 2, T):
        stages = make_stages("deep", "gru", "class", k)
        stages[-1][-1] = nn.Linear(6, classes).double()  # pyright: ignore[reportIndexIssue]
        nn.init.eye_(stages[-1][-1].weight)  # pyright: ignore[reportIndexIssue]
        nn.init.zeros_(stages[-1][-1].bias)  # pyright: ignore[reportIndexIssue]
        make_trainer(stages, fw.FGD(steps=steps)).fit(batches, progress=False)
        runs.append(tensors(*stages))
    for pieces in runs[1:]:
        assert max((a - b).abs().max() for a, b in zip(runs[0], pieces)) < 1e-12


def test_samples_may_be_cut_too() -> None:
    whole, cut = train("fgd", "simulate"), train("fgd-sync", "simulate", micro=2)
    assert max((a - b).abs().max() for a, b in zip(whole, cut)) < 1e-12


OPTIONS: list[dict[str, Any]] = [
    {},
    {"tangents": 2},
    {"perturb": "activations", "tangents": 2, "distribution": "rademacher"},
    {"dropout": 0.3},
    {"dropout": 0.3, "tangents": 2, "perturb": "activations", "epochs": 2},
]


@spread(case=[("asyncfgd", 2, T), ("asyncfgd", 3, 3), ("fgd", 3, 3)], task=TASKS, options=OPTIONS)
def test_threads_equal_simulate(case: tuple[str, int, int], task: str, options: dict[str, Any]) -> None:
    name, k, steps = case
    found = [train(name, runtime, task=task, k=k, steps=steps, **options) for runtime in RUNTIMES]
    assert same_bits(*found)
    assert all(bool(t.isfinite().all()) for t in found[0])


@pytest.mark.parametrize("kind", [rarely("rnn"), "lstm"])
def test_threads_equal_simulate_with_other_layers(kind: str) -> None:
    runs = [train("asyncfgd", r, kind=kind, steps=3, dropout=0.3, tangents=2) for r in RUNTIMES]
    assert same_bits(*runs)


def test_several_fits_go_on() -> None:
    """Sequences are counted on, each fit starts with an empty pipeline, and no state is left over."""
    stages, batches = make_stages("deep", "gru", "steps", 3), make_batches("deep", "steps")
    made = Sequences(stages, batches, rule=RULES["sgd"], delays=(1, 1, 0))
    wanted = made.train(fits=2)
    trainer = make_trainer(stages, fw.AsyncFGD(direction=direction, steps=3))
    for part in (batches[: COUNT // 2], batches[COUNT // 2 :]):
        trainer.fit(part, progress=False)
        assert all(layer.state is None for layer in recurrent(stages))
    assert distance(stages, wanted) < CLOSE


def recurrent(stages: Sequence[nn.Module]) -> list[fw.Recurrent]:
    return [m for stage in stages for m in stage.modules() if isinstance(m, fw.Recurrent)]


# Evaluation. ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_evaluation_takes_whole_sequences_from_zero(runtime: str, task: str) -> None:
    stages, batches = make_stages("deep", "lstm", task, 2), make_batches("deep", task)
    bare = [[layer.layer if isinstance(layer, fw.Recurrent) else layer for layer in stage] for stage in stages]

    def losses() -> list[float]:
        made = []
        for x, y in batches:
            for layer in (layer for stage in bare for layer in stage):
                x = layer(x)[0] if isinstance(layer, nn.RNNBase) else layer(x)
            x = x[:, -1] if task == "class" else x
            made.append(F.cross_entropy(x, y).item() * len(y))
        return made

    trainer = make_trainer(stages, fw.AsyncFGD(steps=3), runtime=runtime)
    for _ in range(2):
        trainer.fit(batches, progress=False)
        found = trainer.evaluate(batches).loss
        assert found == trainer.evaluate(batches).loss
        assert found == pytest.approx(sum(losses()) / sum(len(y) for _, y in batches), rel=1e-12)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_watching_changes_nothing(runtime: str) -> None:
    """What is seen between epochs is the network after so many sequences, itself without a state."""
    batches = make_batches("deep", "steps")
    seen = []

    def look(end: fw.EpochEnd) -> None:
        assert end.record.validation is not None
        seen.append(end.record.validation.loss)
        assert all(layer.state is None for layer in recurrent(end.stages))

    stages = make_stages("deep", "gru", "steps", 3)
    trainer = make_trainer(stages, fw.AsyncFGD(steps=3), runtime=runtime)
    trainer.fit(batches, epochs=3, validate=batches[:3], callbacks=[look], progress=False)
    assert same_bits(tensors(*stages), train("asyncfgd", "simulate", steps=3, epochs=3))
    assert seen[-1] == trainer.evaluate(batches[:3]).loss
    once = make_stages("deep", "gru", "steps", 3)
    other = make_trainer(once, fw.AsyncFGD(steps=3))
    other.fit(batches, epochs=1, progress=False)
    assert seen[0] == other.evaluate(batches[:3]).loss


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_of_an_epoch_is_that_of_whole_sequences(task: str) -> None:
    still = partial(torch.optim.SGD, lr=0.0)
    batches, stages = make_batches("deep", task), make_stages("deep", "gru", task, 2)
    trainer = make_trainer(stages, fw.AsyncFGD(steps=3), optimizer=still)
    epoch = trainer.fit(batches, progress=False).epochs[0]
    assert epoch.loss == pytest.approx(trainer.evaluate(batches).loss, rel=1e-12)
    assert epoch.samples == sum(len(y) for _, y in batches)


# Without pieces. --------------------------------------------------------------------------------------------------


class Bare(nn.Module):
    """A layer as torch has it."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_without_pieces_bare_layers_will_do(kind: str) -> None:
    wrapped = make_stages("deep", kind, "steps", 3)
    stages: list[nn.Module] = [
        nn.Sequential(*(Bare(layer.layer) if isinstance(layer, fw.Recurrent) else layer for layer in stage))
        for stage in make_stages("deep", kind, "steps", 3)
    ]
    for made in (wrapped, stages):
        make_trainer(made, fw.AsyncFGD(direction=direction)).fit(make_batches("deep", "steps"), progress=False)
    assert same_bits(tensors(*wrapped), tensors(*stages))


@pytest.mark.parametrize("method", ["pipedream", "bp"])
def test_chain_credit_takes_whole_sequences(method: str) -> None:
    stages = make_stages("deep", "gru", "class", 3)
    make_trainer(stages, fw.method(method)).fit(make_batches("deep", "class"), progress=False)
    assert all(layer.state is None for layer in recurrent(stages))


# Estimates. -------------------------------------------------------------------------------------------------------


@spread(perturb=["weights", "activations"], task=TASKS)
def test_the_mean_of_many_tangents_is_the_gradient(perturb: str, task: str) -> None:
    """For each stage along its true gradient, within 4 standard errors; the seed is fixed."""
    count, (x, y) = 400, make_batches("plain-ends", task, 1)[0]
    stages, before = (make_stages("plain-ends", "rnn", task, 3) for _ in range(2))
    weights = [list(stage.parameters()) for stage in before]
    loss = F.cross_entropy(before[2](before[1](before[0](x))), y)
    wanted = [torch.cat([g.flatten() for g in torch.autograd.grad(loss, w, retain_graph=True)]) for w in weights]
    method = fw.AsyncFGD(steps=2, tangents=count, perturb=perturb)
    make_trainer(stages, method, optimizer=partial(torch.optim.SGD, lr=1.0)).fit([(x, y)], progress=False)
    total = sum(g @ g for g in wanted)
    for stage, old, g in zip(stages, weights, wanted):
        found = torch.cat([(a - b).flatten() for a, b in zip(old, stage.parameters())])
        error = ((total / (g @ g) + 1) / count).sqrt()  # exact for weights, and more than activations need
        assert 4 * error < 0.8
        assert abs(found @ g / (g @ g) - 1) < 4 * error


# What is held, and what is refused. -------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("steps", [T, 3])
def test_one_piece_waits_at_each_boundary(runtime: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most, shapes = 0, set()
    put = Channel.put

    def watched(channel: Channel, item: Any) -> None:
        nonlocal most
        put(channel, item)
        if hasattr(item, "tangents"):
            most = max(most, len(channel._items))
            shapes.add(tuple(item.values.shape[1:]))

    monkeypatch.setattr(Channel, "put", watched)
    train("asyncfgd", runtime, steps=steps)
    assert most == 1
    assert {shape[0] for shape in shapes} == ({1} if steps == T else {3, 2})
    plan = fw.plan(fw.AsyncFGD(steps=steps), k=3)
    assert [up for up, _ in plan.schedule.lengths()] == [1, 1]
    assert plan.memory() == ((0, 0, 1),) * 3


def test_no_state_is_left_when_a_sequence_breaks_off() -> None:
    stages, batches = make_stages("deep", "gru", "steps", 2), make_batches("deep", "steps")
    trainer = make_trainer(stages, fw.AsyncFGD(steps=3))
    broken = [batches[0], (batches[1][0], torch.full_like(batches[1][1], 7)), batches[2]]
    with pytest.raises(fw.StageError):
        trainer.fit(broken, progress=False)
    assert all(layer.state is None for layer in recurrent(stages))
    assert trainer.evaluate(batches).loss == trainer.evaluate(batches).loss
    trainer.fit(batches, progress=False)


class Twice(nn.Module):
    """One layer, called two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = fw.Recurrent(nn.GRU(4, 4, batch_first=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


FLAT = (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
SHORT = (torch.zeros(4, 2, 4), torch.zeros(4, dtype=torch.int64))
UNEVEN = ((torch.zeros(4, 3, 4), torch.zeros(4, 5, 4)), torch.zeros(4, dtype=torch.int64))


def gru(**options: Any) -> nn.GRU:
    return nn.GRU(4, 4, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fw.AsyncFGD(steps=0), ValueError, "steps=0: give 1 or more"),
        (lambda: fw.FGD(steps=2.0), TypeError, "steps=2.0: give a whole number"),
        (lambda: fw.Recurrent(nn.Linear(4, 4)), TypeError, "give an nn.RNN, nn.GRU or nn.LSTM"),
        (lambda: fw.Recurrent(gru()), ValueError, "layer must have batch_first=True and be unidirectional"),
        (lambda: fw.Recurrent(gru(batch_first=True, bidirectional=True)), ValueError, "and be unidirectional"),
        (
            lambda: fw.Recurrent(gru(batch_first=True))(torch.zeros(3, 4)),
            ValueError,
            "takes (samples, steps, features)",
        ),
        (lambda: fit(Bare(gru(batch_first=True)), SHORT), TypeError, "'0.layer' would lose its state between"),
        (lambda: fit(Twice(), SHORT, steps=2), fw.StageError, "is called twice in one pass: with steps=…"),
        (
            lambda: fit(nn.Linear(4, 4), SHORT),
            ValueError,
            "steps=3: this input has only",
        ),
        (lambda: fit(nn.Linear(4, 4), (torch.zeros(4), FLAT[1])), ValueError, "this input has none"),
        (lambda: fit(nn.Linear(4, 4), UNEVEN), ValueError, "this input has tensors of 3 and 5 time steps"),
        (
            lambda: fit(nn.Linear(4, 4), (SHORT[0].repeat(1, 2, 1), (FLAT[1], torch.zeros(4, 4)))),
            ValueError,
            "cuts sequences along their second dimension, but this target has none",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def fit(layer: nn.Module, batch: Any, steps: int = 3) -> None:
    stages: list[nn.Module] = [nn.Sequential(layer), nn.Linear(4, 3)]
    make_trainer(stages, fw.AsyncFGD(steps=steps)).fit([batch], progress=False)


# Splitting, models and data. --------------------------------------------------------------------------------------


class Traced(nn.Module):
    """A model that is not an `nn.Sequential`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = fw.Recurrent(nn.GRU(4, 6, batch_first=True)), fw.Recurrent(nn.LSTM(6, 6, batch_first=True))
        self.head = nn.Sequential(*head(12, "steps"))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        return self.head(torch.cat([self.b(h), h], -1))


def test_a_traced_model_keeps_its_states() -> None:
    runs = []
    for pieces in (1, 3):
        torch.manual_seed(0)
        stages = fw.split(Traced().double(), at=["b"], example=make_batches("deep", "steps")[0][0])
        assert [len(recurrent([stage])) for stage in stages] == [1, 1]
        make_trainer(stages, fw.FGD(steps=pieces)).fit(make_batches("deep", "steps"), progress=False)
        runs.append(tensors(*stages))
    assert max((a - b).abs().max() for a, b in zip(*runs)) < 1e-12


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("shape", "out"), [((8, 5), (3, 7)), ((6,), (3, 7, 6))], ids=["vectors", "numbers"])
def test_models_are_cut_between_layers(name: str, shape: tuple[int, ...], out: tuple[int, ...]) -> None:
    model = fw.models.build(name, num_classes=7, in_shape=shape, layers=3, hidden=9)
    x = torch.randn(3, *shape) if len(shape) == 2 else torch.randint(7, (3, *shape))
    y = torch.randint(7, out[::2])
    before = model(x)
    assert before.shape == out
    for stages in (fw.split(model, 3, example=x, threads=1), fw.split(model, 3, by="parameters")):
        assert sum(len(recurrent([stage])) for stage in stages) == 3
        h = x
        for stage in stages:
            h = stage(h)
        assert torch.equal(h, before)
        assert all(layer.state is None for layer in recurrent(stages))
    trainer = fw.Trainer(
        stages, method=fw.AsyncFGD(steps=4), loss=F.cross_entropy, optimizer=OPTIMIZERS["adam"], threads=1
    )
    history = trainer.fit([(x, y)] * 3, progress=False)
    assert trainer.evaluate([(x, y)]).metric is not None
    assert history.epochs[0].loss > 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: fw.models.build("gru", in_shape=(1, 8, 8)),
            ValueError,
            "give (steps, features), or (steps,",
        ),
        (lambda: fw.models.build("gru", in_shape=8), TypeError, "in_shape=8: give (steps, features), or (steps,)"),
        (lambda: fw.models.build("rnn", in_shape=(8, 0)), ValueError, "in_shape[1]=0: give 1 or more"),
        (lambda: fw.models.build("lstm", layers=0), ValueError, "layers=0: give 1 or more"),
        (lambda: fw.models.build("lstm", hidden=1.5), TypeError, "hidden=1.5: give a whole number"),
        (lambda: fw.models.build("lstm", width=3), TypeError, "has no option 'width': it takes layers, hidden"),
        (lambda: fw.models.paper_cuts("gru"), ValueError, "model 'gru' has no published split"),
    ],
)
def test_bad_models_are_refused_in_one_line(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    test_bad_input_is_refused_in_one_line(call, error, message)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data", "digits-rows", "--model", "gru", "-o", "steps=8"],
        ["--data", "text", "--data-root", textwrap.__file__, "--model", "rnn", "-o", "steps=4"],
    ],
    ids=["digits-rows", "text"],
)
def test_the_command_line_trains_sequences(arguments: list[str]) -> None:
    common = ["-k", "2", "--method", "asyncfgd", "--limit", "96", "--epochs", "1", "--threads", "1", "--no-compare"]
    done = freewheel("train", *arguments, *common)
    assert done.exit_code == 0, done.output
    assert "delays 1 0" in done.stdout
    assert "test accuracy" in done.stdout
