"""The small networks of the papers, MLP-SR-aux heads and DNI's predictors with BatchNorm, against plain loops."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from checkpoints import everything, resume, same, saved_at
from freewheel.credit._heads import Head, HeadOptions
from spread import rarely
from test_dgl_dni import CLASSES, SGD, Descent, call, close, first_weights, image_stages, images, made


class HandNorm:
    """BatchNorm by hand: the batch's statistics, and running ones."""

    def __init__(self) -> None:
        self.mean, self.var = torch.zeros(()).double(), torch.ones(()).double()

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor, *, counts: bool = True) -> Tensor:
        over = (0, 2, 3) if x.dim() == 4 else (0,)
        shape = (1, -1, 1, 1) if x.dim() == 4 else (1, -1)
        mean, count = x.mean(over), x.numel() // x.shape[1]
        var = (x - mean.view(shape)).pow(2).mean(over)
        if counts:
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.var = 0.9 * self.var + 0.1 * var.detach() * count / (count - 1)
        return (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt() * weight.view(shape) + bias.view(shape)


def mlp_sr_aux(weights: list[Tensor], norms: list[HandNorm], h: Tensor) -> Tensor:
    """Belilovsky et al. 2019: a quarter of the sides, three 1x1 convolutions, a grid of 2x2, three layers."""
    left, norm = iter(weights), iter(norms)
    if h.dim() == 4:
        rows = [range(h.shape[2])[start : start + 3] for start in (0, 3)]  # 6x6 becomes 2x2
        parts = [h[:, :, list(a)][:, :, :, list(b)].mean((2, 3)) for a in rows for b in rows]
        h = torch.stack(parts, 2).unflatten(2, (2, 2))
        for _ in range(3):
            mixed = torch.einsum("ncij,kc->nkij", h, next(left).flatten(1))
            h = next(norm)(mixed, next(left), next(left)).relu()
        h = h.flatten(1)
    for _ in range(3):
        h = h @ next(left).T + next(left)
        h = next(norm)(h, next(left), next(left)).relu()
    return h @ next(left).T + next(left)


MLP_SR_AUX = {"convs": 3, "layers": 3, "hidden": None, "norm": True}


@pytest.mark.parametrize("replay", [0, rarely(3)])
@pytest.mark.parametrize("runtime", ["simulate", rarely("threads")])
def test_mlp_sr_aux_is_what_the_paper_says(runtime: str, replay: int) -> None:
    method = fw.DGL(**MLP_SR_AUX, replay=replay, draw="fifo")
    stages = image_stages(3)
    heads = [Descent(weights) for weights in first_weights(stages, method)]
    nets = [Descent(list(stage.parameters())) for stage in stages]
    modules, norms = deepcopy(stages), [[HandNorm() for _ in range(6)], [HandNorm() for _ in range(3)]]
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in stages]
    for x, y in images():
        h = x
        for i, (module, net, head) in enumerate(zip(modules, nets, heads)):
            kept[i] = [*kept[i], (h, y)][-3:]
            out = call(module, net.weights, h).detach()
            seen, label = kept[i][0] if replay and i else (h, y)
            made_of_it = call(module, net.weights, seen)
            guessed = made_of_it if i == 2 else mlp_sr_aux(head.weights, norms[i], made_of_it)
            found = torch.autograd.grad(F.cross_entropy(guessed, label), [*net.weights, *head.weights])
            net.step(found[: len(net.weights)])
            head.step(found[len(net.weights) :])
            h = out
    run = made(stages, method, runtime=runtime)
    run.fit(images())
    for stage, net in zip(stages, nets):
        close(list(stage.parameters()), net.weights)
    for head, expected, statistics in zip(run.heads, heads, norms):
        assert head is not None
        close(list(head.parameters()), expected.weights)
        ours = [m for m in head.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        close(
            [t for m in ours for t in (m.running_mean, m.running_var)], [t for s in statistics for t in (s.mean, s.var)]
        )


def test_mlp_sr_aux_is_as_large_as_counted_by_hand() -> None:
    """Three 1x1 convolutions without bias, then layers of 4C, each with BatchNorm, and the classifier."""
    for channels in (16, 64):
        torch.manual_seed(0)
        net = [nn.Conv2d(3, channels, 3), nn.Sequential(nn.Flatten(), nn.Linear(channels * 36, 10))]
        run = made(net, fw.DGL(**MLP_SR_AUX))
        run.fit([(torch.randn(4, 3, 8, 8), torch.arange(4))])
        wide = 4 * channels
        expected = 3 * (channels**2 + 2 * channels) + 3 * (wide**2 + 3 * wide) + 10 * wide + 10
        assert run.heads[0] is not None
        assert sum(p.numel() for p in run.heads[0].parameters()) == expected


@pytest.mark.parametrize(
    ("method", "compiles", "runtime"),
    [
        (fw.DGL(**MLP_SR_AUX), False, "threads"),
        (fw.DNI(layers=1, norm=True), False, "threads"),
        rarely(fw.DGL(layers=0, convs=1, norm=True), True, "threads"),
        rarely(fw.DGL(**MLP_SR_AUX), False, "processes"),
        rarely(fw.DGL(**MLP_SR_AUX), True, "processes"),
        rarely(fw.DNI(layers=1, norm=True), True, "processes"),
    ],
)
def test_norms_are_the_same_on_every_runtime_compiled_and_resumed(method, compiles, runtime, tmp_path) -> None:
    def small() -> list[nn.Module]:
        torch.manual_seed(0)
        first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        return [first, nn.Sequential(nn.Flatten(), nn.Linear(144, CLASSES))]

    data = [(x.float(), y) for x, y in images(3)]
    found = []
    for name in ("simulate", runtime):
        run = made(small(), method, runtime=name, compile=compiles)
        run.fit(data, epochs=2, save_to=tmp_path / name, save_every=3)
        found.append(everything(run))
        counted = [m.num_batches_tracked for m in run.heads[0].modules() if isinstance(m, nn.BatchNorm2d)]
        assert counted
        assert all(count == 6 for count in counted)
    assert same(*found)
    again = resume(
        saved_at(tmp_path / "simulate")[3], small(), method, runtime="threads", compile=compiles, optimizer=SGD
    )
    again.fit(data, epochs=2)
    assert same(everything(again), found[0])


def test_norms_of_sequences_are_over_all_positions() -> None:
    head = Head([(3, 4)], HeadOptions(layers=1, norm=True), classes=3)
    x = torch.randn(5, 6, 4)
    hidden = x.flatten(0, 1) @ head.layers[0].weight.T + head.layers[0].bias
    normal = ((hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()).relu()
    expected = (normal @ head.layers[3].weight.T + head.layers[3].bias).unflatten(0, (5, 6)).transpose(1, 2)
    torch.testing.assert_close(head([x], torch.zeros(5, 6)), expected)


@pytest.mark.parametrize("lag", [1, rarely(2)])
def test_predictors_with_norm_are_what_they_say(lag: int) -> None:
    """DSP, section 5: hidden 5x5 convolutions with BatchNorm and ReLU, and one without."""

    def predict(weights: list[Tensor], norms: list[HandNorm], h: Tensor, *, counts: bool) -> Tensor:
        left = iter(weights)
        for norm in norms:
            h = F.conv2d(h, next(left), next(left), padding=2)
            h = norm(h, next(left), next(left), counts=counts).relu()
        return F.conv2d(h, next(left), next(left), padding=2)

    method = fw.DNI(layers=2, norm=True, lag=lag)
    stages = image_stages(2)
    predictor = Descent(first_weights(stages, method)[0])
    nets = [Descent(list(stage.parameters())) for stage in stages]
    modules, norms = deepcopy(stages), [HandNorm(), HandNorm()]
    waiting: list[tuple[Tensor, Tensor]] = []

    def fit() -> None:
        h, g = waiting.pop(0)
        error = ((predict(predictor.weights, norms, h, counts=True) - len(h) * g) ** 2).mean()
        predictor.step(torch.autograd.grad(error, predictor.weights))

    for x, y in images():
        out = call(modules[0], nets[0].weights, x)
        h = out.detach().requires_grad_()
        guessed = predict(predictor.weights, norms, h, counts=False).detach() / len(x)
        found = torch.autograd.grad((out * guessed).sum(), nets[0].weights)
        back, *last = torch.autograd.grad(
            F.cross_entropy(call(modules[1], nets[1].weights, h), y), [h, *nets[1].weights]
        )
        waiting.append((h.detach(), back))
        nets[0].step(found)
        nets[1].step(tuple(last))
        if len(waiting) > lag:
            fit()
    while waiting:
        fit()
    run = made(stages, method)
    run.fit(images())
    for stage, net in zip(stages, nets):
        close(list(stage.parameters()), net.weights)
    assert run.heads[0] is not None
    close(list(run.heads[0].parameters()), predictor.weights)
    ours = [m for m in run.heads[0].modules() if isinstance(m, nn.BatchNorm2d)]
    close([t for m in ours for t in (m.running_mean, m.running_var)], [t for s in norms for t in (s.mean, s.var)])


@pytest.mark.parametrize("known", [True, False], ids=["known", "built inside"])
def test_a_call_that_is_only_tried_changes_no_running_statistics(known: bool) -> None:
    """Before a stage is compiled or captured, it is called once more than there are batches."""
    stages, (first, *_) = image_stages(2), images()
    run = made(stages, fw.DGL(convs=1, norm=True))
    run.fit([first])
    stage = run._stages[0]
    stage.auxiliary = stage.auxiliary if known else None
    with stage.discards(), torch.enable_grad():
        stage._plain_call(*first)
    norms = [m for m in stage.head.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 2
    assert [int(m.num_batches_tracked) for m in norms] == [known] * 2
    assert all(bool(m.running_mean.any()) == known for m in norms)
