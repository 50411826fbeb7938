"""Local and synthetic credit against plain loops in float64, and what their small networks are."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from checkpoints import everything, resume, same
from rows import LOCAL, batches, network, same_bits, tensors, trainer
from spread import spread

LR, MOMENTUM = 0.1, 0.9
SGD = partial(torch.optim.SGD, lr=LR, momentum=MOMENTUM)
STILL = partial(torch.optim.SGD, lr=0.0)
CLASSES = 4


def image_stages(k: int) -> list[nn.Module]:
    """Images, then vectors; all in float64."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh())
    second = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 6), nn.Tanh())
    last = nn.Linear(6, CLASSES)
    cut = {1: [[first, second, last]], 2: [[first], [second, last]], 3: [[first], [second], [last]]}[k]
    return [nn.Sequential(*parts).double() for parts in cut]


def images(count: int = 9) -> list[tuple[Tensor, Tensor]]:
    """Batches of which every fourth is smaller."""
    g = torch.Generator().manual_seed(1)
    sizes = [4 if i % 4 == 3 else 5 for i in range(count)]
    return [(torch.randn(n, 2, 6, 6, generator=g).double(), torch.randint(CLASSES, (n,), generator=g)) for n in sizes]


def made(stages: list[nn.Module], method: fw.Method, optimizer: Any = SGD, **options: Any) -> fw.Trainer:
    return trainer(stages, method, optimizer=optimizer, **options)


def first_weights(stages: list[nn.Module], method: fw.Method) -> list[list[Tensor]]:
    """The weights that each stage's head or predictor begins with."""
    still = made(deepcopy(stages), method, STILL)
    still.fit(images(1))
    return [[] if head is None else [p.detach().clone() for p in head.parameters()] for head in still.heads]


class Descent:
    """SGD with momentum, by hand."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = [w.detach().clone().requires_grad_() for w in weights]
        self.speed = [torch.zeros_like(w) for w in weights]

    def step(self, gradients: tuple[Tensor, ...]) -> None:
        self.speed = [MOMENTUM * v + g for v, g in zip(self.speed, gradients, strict=True)]
        self.weights = [(w - LR * v).detach().requires_grad_() for w, v in zip(self.weights, self.speed)]


def call(module: nn.Module, weights: list[Tensor], x: Tensor) -> Tensor:
    names = [name for name, _ in module.named_parameters()]
    return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-10)


# ---- local ----


def guess(weights: list[Tensor], h: Tensor, pool: int) -> Tensor:
    """A head with one hidden layer: each image averaged over a grid by hand."""
    if h.dim() == 4:
        rows = h.tensor_split(pool, dim=2)
        h = torch.stack([b.mean((2, 3)) for row in rows for b in row.tensor_split(pool, dim=3)], dim=2).flatten(1)
    a, b, c, d = weights
    return (h @ a.T + b).relu() @ c.T + d


@pytest.mark.parametrize("draw", [None, "fifo", "lifo"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_dgl_is_what_it_says(k: int, draw: str | None) -> None:
    options = {} if draw is None else {"replay": 3, "draw": draw}
    method = fw.DGL(pool=3, hidden=7, **options)
    stages = image_stages(k)
    heads = [Descent(weights) for weights in first_weights(stages, method)]
    nets = [Descent(list(stage.parameters())) for stage in stages]
    modules = deepcopy(stages)
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in stages]
    for x, y in images() * 2:
        h = x
        for i, (module, net, head) in enumerate(zip(modules, nets, heads)):
            kept[i] = [*kept[i], (h, y)][-3:]
            out = call(module, net.weights, h).detach()
            seen, label = kept[i][0] if draw == "fifo" and i else (h, y)
            made_of_it = call(module, net.weights, seen)
            last = i == k - 1
            loss = F.cross_entropy(made_of_it if last else guess(head.weights, made_of_it, 3), label)
            found = torch.autograd.grad(loss, [*net.weights, *head.weights])
            net.step(found[: len(net.weights)])
            head.step(found[len(net.weights) :])
            h = out
    run = made(stages, method)
    run.fit(images(), epochs=2)
    for stage, net in zip(stages, nets):
        close(list(stage.parameters()), net.weights)
    for head, expected in zip(run.heads, heads):
        close([] if head is None else list(head.parameters()), expected.weights)


# ---- synthetic ----


def forecast(weights: list[Tensor], h: Tensor, y: Tensor | None) -> Tensor:
    """A predictor with one hidden layer or none; labels come as more channels or features."""
    if y is not None:
        marks = torch.eye(CLASSES, dtype=h.dtype)[y]
        h = torch.cat([h, marks[:, :, None, None] * torch.ones_like(h[:, :1])] if h.dim() == 4 else [h, marks], 1)
    pairs = list(zip(weights[::2], weights[1::2]))
    for i, (a, b) in enumerate(pairs):
        h = h.relu() if i else h
        h = F.conv2d(h, a, b, padding=2) if h.dim() == 4 else h @ a.T + b
    return h


@spread(least=8, k=[1, 2, 3], labels=[False, True], form=[(0, 1), (1, 0), (1, 1), (3, 0)])
def test_dni_is_what_it_says(k: int, labels: bool, form: tuple[int, int]) -> None:
    lag, layers = form
    method = fw.DNI(labels=labels, lag=lag, layers=layers)
    stages = image_stages(k)
    predictors = [Descent(weights) for weights in first_weights(stages, method)]
    nets = [Descent(list(stage.parameters())) for stage in stages]
    modules = deepcopy(stages)
    waiting: list[list[tuple[Tensor, Tensor | None, Tensor]]] = [[] for _ in stages]

    def fit(i: int) -> None:
        h, label, g = waiting[i].pop(0)
        error = ((forecast(predictors[i].weights, h, label) - len(h) * g) ** 2).mean()
        predictors[i].step(torch.autograd.grad(error, predictors[i].weights))

    for x, y in images() * 2:
        label = y if labels else None
        outs, steps = [x], []
        for module, net in zip(modules, nets):
            outs.append(call(module, net.weights, outs[-1]).detach())
        for i, (module, net) in enumerate(zip(modules, nets)):
            h = outs[i].detach().requires_grad_()
            out = call(module, net.weights, h)
            if i == k - 1:
                value = F.cross_entropy(out, y)
            else:
                g = forecast(predictors[i].weights, out.detach(), label).detach() / len(x)
                value = (out * g).sum()
            back, *found = torch.autograd.grad(value, [h, *net.weights])
            steps.append(found)
            if i:
                waiting[i - 1].append((outs[i], label, back))
        for i, net in enumerate(nets):
            net.step(steps[i])
            if len(waiting[i]) > lag:
                fit(i)
    for i in range(k):
        while waiting[i]:
            fit(i)
    run = made(stages, method)
    run.fit([batch for _ in range(2) for batch in images()])
    for stage, net in zip(stages, nets):
        close(list(stage.parameters()), net.weights)
    for predictor, expected in zip(run.heads, predictors):
        close([] if predictor is None else list(predictor.parameters()), expected.weights)


def test_nothing_is_learned_from_a_prediction_before_the_first_fit() -> None:
    stages = image_stages(3)
    before = tensors(*stages)
    made(stages, fw.DNI()).fit(images(1))
    count = len(list(stages[2].parameters()))
    assert same_bits(before[:-count], tensors(*stages[:2]))
    assert not same_bits(before, tensors(*stages))


# ---- both ----

BOTH = [fw.DGL(hidden=8, replay=2), fw.DNI(labels=True)]


@pytest.mark.parametrize("method", BOTH, ids=["dgl", "dni"])
def test_heads_are_the_stages_own_and_no_part_of_the_model(method: fw.Method) -> None:
    model = nn.Sequential(*image_stages(3))
    names = list(model.state_dict())
    stages = fw.split(model, at=["1", "2"])
    run = made(stages, method)
    assert run.heads == [None] * 3
    run.fit(images())
    assert [head is not None for head in run.heads] == [True, True, False]
    assert list(run.model().state_dict()) == names
    assert run.model() is model


@pytest.mark.parametrize("method", BOTH, ids=["dgl", "dni"])
def test_heads_have_a_scheduler_and_go_on_in_the_next_fit_and_from_a_file(method, tmp_path) -> None:
    """Two fits, with a file between them or not, and the heads' step sizes follow the same schedule as the stages'."""
    options = {"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.5)}
    one = made(image_stages(3), method, **options)
    one.fit(images())
    one.save(tmp_path)
    one.fit(images())
    other = resume(tmp_path, image_stages(3), method, optimizer=SGD, runtime="threads", **options)
    other.fit(images())
    assert same(everything(one), everything(other))
    rates = [stage.auxiliary.optimizer.param_groups[0]["lr"] for stage in one._stages[:2]]
    assert rates == [LR * 0.5 ** (18 // 4)] * 2


def test_heads_begin_anew_with_another_method(tmp_path) -> None:
    one = made(image_stages(3), fw.DGL())
    one.fit(images())
    one.save(tmp_path)
    for method, kept in ((fw.DGL(), True), (fw.DGL(hidden=5), False), (fw.DNI(), False), (fw.FDG(), False)):
        other = resume(tmp_path, image_stages(3), method, optimizer=SGD, seed=5)
        assert [head is not None for head in other.heads] == [kept, kept, False]
        other.fit(images(2))


def test_a_checkpoint_at_the_end_is_drained(tmp_path) -> None:
    """The last fits come after the last update: what is saved at the end has seen them."""
    one = made(image_stages(2), fw.DNI())
    one.fit(images(6), save_to=tmp_path, save_every=3)
    assert same(everything(one), everything(resume(tmp_path, image_stages(2), fw.DNI(), optimizer=SGD)))


@pytest.mark.parametrize("method", BOTH, ids=["dgl", "dni"])
def test_heads_are_the_same_on_every_runtime_also_after_stopping_at_a_cut(method: fw.Method) -> None:
    """A fit that a callback ends while gradients are under way, and another one after it."""
    found = []
    for runtime in (*LOCAL, "processes"):
        stages = network(3)
        run = trainer(stages, method, runtime=runtime)
        assert run.fit(batches(8), epochs=5, callbacks=[lambda end: end.record.epoch == 1]).stopped
        run.fit(batches(4))
        found.append([*tensors(*stages), *(p.detach() for head in run.heads if head for p in head.parameters())])
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])


@pytest.mark.parametrize("method", [fw.DGL, fw.DNI])
def test_heads_have_an_optimizer_of_their_own_where_asked_for(method) -> None:
    run = made(image_stages(2), method(optimizer=partial(torch.optim.Adam, lr=0.01)))
    run.fit(images())
    assert isinstance(run._stages[0].auxiliary.optimizer, torch.optim.Adam)
    assert isinstance(run.optimizers[0], torch.optim.SGD)


def own_head(stage: int) -> nn.Module:
    return nn.Sequential(nn.Tanh(), nn.Linear(5 + stage, 3))


@pytest.mark.parametrize("runtime", ["simulate", "processes"])
def test_heads_of_ones_own_learn_as_a_plain_loop_teaches_them(runtime) -> None:
    torch.manual_seed(0)
    stages = [nn.Linear(6, 5), nn.Linear(5, 6), nn.Linear(6, 3)]
    plain = deepcopy(stages)
    sgd = partial(torch.optim.SGD, lr=0.1)
    trainer = made(stages, fw.DGL(heads=own_head), sgd, runtime=runtime)
    data = batches(4)
    trainer.fit(data[:1])
    assert [type(head.module) for head in trainer.heads[:2]] == [nn.Sequential, nn.Sequential]
    heads = [deepcopy(head.module) for head in trainer.heads[:2]] + [nn.Identity()]
    for ours, theirs in zip(stages, plain):
        theirs.load_state_dict(ours.state_dict())
    optimizers = [sgd([*stage.parameters(), *head.parameters()]) for stage, head in zip(plain, heads)]
    trainer.fit(data[1:])
    for x, y in data[1:]:
        for stage, head, optimizer in zip(plain, heads, optimizers):
            optimizer.zero_grad()
            x = stage(x)
            F.cross_entropy(head(x), y).backward()
            optimizer.step()
            x = x.detach()
    pairs = zip([*stages, *(head.module for head in trainer.heads[:2])], [*plain, *heads[:2]])
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_heads_that_are_none() -> None:
    with pytest.raises(TypeError, match="heads=3: give a function of a stage's number"):
        fw.DGL(heads=3)
    with pytest.raises((TypeError, fw.StageError), match=r"heads\(0\)=None: it must return a torch.nn.Module"):
        made([nn.Linear(6, 5), nn.Linear(5, 3)], fw.DGL(heads=print)).fit(batches(1))


def test_clipping_counts_the_head_with_its_stage() -> None:
    seen: list[float] = []

    class Watching(torch.optim.SGD):
        def step(self, closure=None):
            seen.extend(float(p.grad.pow(2).sum()) for group in self.param_groups for p in group["params"])

    made([nn.Linear(6, 5), nn.Linear(5, 3)], fw.DGL(hidden=4), partial(Watching, lr=0.1), clip=0.01).fit(batches(1))
    first, last = sum(seen[:6]), sum(seen[6:])  # two of the stage, four of its head, then two of the last stage
    assert (first, last) == (pytest.approx(1e-4, rel=1e-3), pytest.approx(1e-4, rel=1e-3))


@pytest.mark.parametrize("runtime", LOCAL)
def test_sequences_are_guessed_at_every_position_where_all_have_targets(runtime: str) -> None:
    """Letters in, for each the next one: heads give a class for every position, as the network does."""
    text = torch.arange(40).reshape(5, 8) % 5
    for method in (fw.DGL(hidden=6), fw.DNI(labels=True), fw.DNI(layers=1)):
        torch.manual_seed(0)
        model = fw.models.build("rnn", num_classes=5, in_shape=(8,), hidden=6)
        run = made(fw.split(model, 2, by="parameters"), method, partial(torch.optim.Adam, lr=0.02), runtime=runtime)
        history = run.fit([(text, (text + 1) % 5)] * 40)
        assert run.evaluate([(text, (text + 1) % 5)]).loss < 0.6 * history.losses[0], method


def test_replicas_learn_with_heads_as_one() -> None:
    """Two replicas of half a batch each have the head that one pipeline has, to the last digits of float64."""
    found = []
    for replicas in (1, 2):
        stages = image_stages(3)
        run = made(stages, fw.DGL(), replicas=replicas)
        run.fit([(x[:4], y[:4]) for x, y in images()])
        found.append([*tensors(*stages), *(p for head in run.heads[:2] for p in head.parameters())])
    close(*found)


# ---- plans ----


def test_plans_of_own_signals() -> None:
    dgl, dni = fw.plan("dgl", k=3, batches=12), fw.plan("dni", k=3, batches=12)
    for plan in (dgl, dni):
        assert (plan.delays, plan.locks) == ((0, 0, 0), frozenset())
        assert plan.versions(stage=0, batch=7) == (7, 7)
    assert dgl.memory() == ((0, 1, 1),) * 3
    assert dni.memory() == ((2, 1, 1), (2, 1, 1), (0, 1, 1))
    assert fw.plan("dni", k=2, lag=0).locks == {"forward", "update"}
    assert fw.plan("dni", k=2).text().splitlines()[1:3] == [
        "stage 0  F0@0 a0> B0@0 U0@0 F1@1 a1> B1@1 U1@1 >g0 S0@0 F2@2 a2> B2@2 U2@2 >g1 S1@1 F3@3 a3> B3@3 U3@3 "
        ">g2 S2@2 F4@4 a4> B4@4 U4@4 >g3 S3@3 F5@5 a5> B5@5 U5@5 >g4 S4@4 F6@6 a6> B6@6 U6@6 >g5 S5@5 F7@7 a7> "
        "B7@7 U7@7 >g6 S6@6 >g7 S7@7",
        "stage 1  " + " ".join(f">a{n} F{n}@{n} B{n}@{n} g{n}> U{n}@{n}" for n in range(8)),
    ]


BROKEN = [
    ("S0@0 ", "", "out of order: the next fit here is of batch 0"),
    ("S0@0 ", "S0@1 ", "it must see version 0, the fits so far"),
    ("U1@1 >g0 S0@0", ">g0 S0@0 U1@1", "has learned from 0 batches beyond it, but the declared lag is 1"),
    (">g0 S0@0 ", "S0@0 >g0 ", "its gradient has not been received"),
    (" S2@2", "", "it has 2 of 3 fits"),
    ("B2@2 g2> U2@2", "B2@2 g2> U2@2 S2@2", "the last stage has no fit under credit='synthetic'"),
]


@pytest.mark.parametrize(("before", "after", "rule"), BROKEN)
def test_a_broken_plan_is_refused(before: str, after: str, rule: str) -> None:
    text = fw.plan("dni", k=2, batches=3).text()
    assert before in text
    with pytest.raises(fw.PlanError, match=rule):
        fw.Plan.parse(text.replace(before, after, 1))


# ---- bad input ----

REFUSED: list[tuple[Any, str]] = [
    (lambda: fw.DGL(pool=0), "pool=0: give 1 or more"),
    (lambda: fw.DGL(convs=-1), "convs=-1: give 0 or more"),
    (lambda: fw.DGL(hidden=0), "hidden=0: give 1 or more"),
    (lambda: fw.DGL(norm=1), "norm=1: give True or False"),
    (lambda: fw.DGL(norm=True, layers=0), "norm=True with layers=0: BatchNorm is for hidden layers; give layers=1"),
    (lambda: fw.DNI(norm=True), "norm=True with layers=0: BatchNorm is for hidden layers"),
    (lambda: fw.DGL(draw="any"), "unknown draw 'any'"),
    (lambda: fw.DGL(optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1)), "optimizer=SGD"),
    (lambda: fw.DNI(labels=1), "labels=1: give True or False"),
    (lambda: fw.DNI(lag=-1), "lag=-1: give 0 or more"),
    (lambda: fw.Pipeline(credit="local", delays=(1, 0)), r"delays=\(1, 0\): under credit='local' a stage learns"),
    (lambda: fw.Pipeline(credit="synthetic", delays=(0, 0), micro=2), "micro=2: under credit='synthetic'"),
    (
        lambda: made([nn.PReLU(), nn.GRU(6, 3)], fw.DGL()),
        "classes=None: no layer of the network has a known number of outputs",
    ),
    (lambda: made(network(2), fw.DNI(), replicas=2), "replicas=2 with dni: predictors are not all-reduced"),
    (
        lambda: made([nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)], fw.DNI(), {0: SGD, 2: SGD}).fit(batches(3)),
        "optimizer has no factory for stage 1, whose predictor has parameters to train",
    ),
    (
        lambda: made(network(2), fw.DNI(labels=True), loss=lambda out, y: out.sum()).fit([(torch.ones(4, 6), 1.0)]),
        "labels=True, but the target is a float",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_input_is_refused_in_one_line(call, message: str) -> None:
    with pytest.raises((ValueError, TypeError, fw.StageError), match=message):
        call()
