"""`compile=True`: the same training within rounding, and the same bits on every runtime."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import freewheel as fw
from checkpoints import goes_on
from rows import LOCAL, ROWS, batches, network, same_bits, tensors, trainer
from spread import exhaustive, needs_cuda

pytestmark = pytest.mark.timeout(1200)  # the compiler shares the cores with other tests
CREDITS = ("chain", "aligned", "local", "synthetic", "feedback")
COMPILED = [row for row in ROWS if fw.plan(row.make(3), k=3).schedule.credit.name in CREDITS]
NAMED = {row.name: row for row in COMPILED}


def trained(method, stages=None, *, count=9, device="cpu", **options) -> list[Tensor]:
    """The weights after batches of two sizes; by default of a network with BatchNorm, dropout and in-place changes."""
    stages = [stage.to(device) for stage in stages or network(3)]
    trainer(stages, method, **{"compile": True, **options}).fit(batches(count))
    return tensors(*stages)


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_compiled_steps_are_those_of_eager_execution() -> None:
    def stages() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.3)), nn.Linear(4, 3)]

    compiled = trained("pipedream", stages(), count=4)
    close(compiled, trained("pipedream", stages(), count=4, compile=False))
    assert same_bits(compiled, trained("pipedream", stages(), count=4, runtime="threads"))


def test_a_stage_that_ends_with_a_convolution_passes_on_the_strides_of_eager_execution() -> None:
    """Inductor would rather return them channels-last, and dropout draws in the order of memory: the masks differed.

    A bias in front of BatchNorm has no gradient but rounding, which is larger in compiled code: it was refused.
    """
    g = torch.Generator().manual_seed(0)
    images = [(torch.randn(8, 3, 12, 12, generator=g), torch.randint(4, (8,), generator=g)) for _ in range(4)]

    def weights(**options) -> list[Tensor]:
        torch.manual_seed(0)
        conv = partial(nn.Conv2d, kernel_size=3, padding=1)
        first = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 8))
        second = nn.Sequential(conv(8, 8), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3))
        last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
        stages = [first, second, last]
        trainer(stages, "pipedream", check=True, **options).fit(images)
        return [p for stage in stages for name, p in stage.named_parameters() if name != "0.bias"]

    close(weights(compile=True), weights())


@exhaustive
@pytest.mark.parametrize("row", COMPILED, ids=str)
def test_every_row(row) -> None:
    compiled = trained(row.make(3), check=True)
    close(compiled, trained(row.make(3), compile=False))
    assert same_bits(compiled, trained(row.make(3), runtime="threads"))


@exhaustive
@pytest.mark.parametrize("name", ["fdg", "dsp", "pipemare", "dgl", "dfa"])
def test_processes_equal_simulate(name: str) -> None:
    method = NAMED[name].make(3)
    assert same_bits(trained(method), trained(method, runtime="processes"))


@exhaustive
@pytest.mark.parametrize("name", ["pipedream", "dsp", "pipemare", "dgl", "dni", "fa"])
def test_a_resumed_run_goes_on_where_it_was(tmp_path, name: str) -> None:
    goes_on(tmp_path, partial(NAMED[name].make, 2), network_of_two, every=10, runtimes=LOCAL, compile=True)


def network_of_two(seed: int) -> list[nn.Module]:
    return network(2, seed)


class Calls(nn.Module):
    """Calls a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Counts(nn.Module):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x * self.calls


class Remembers(nn.Module):
    """Keeps its input."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x


class Averages(nn.Module):
    """Puts another tensor in the place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class Inside(nn.Module):
    """Changes what a list, a dict, an object or a queue holds."""

    def __init__(self, held, change) -> None:
        super().__init__()
        self.held, self.change = held, change

    def forward(self, x: Tensor) -> Tensor:
        self.change(self.held, x)
        return x


class Masked(nn.Module):
    """Has a tensor as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.tensor([1.0, 0.0, 1.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


class Checkpointed(nn.Sequential):
    """Runs its modules again in the backward."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def noisy(x: Tensor) -> Tensor:
    """Draws twice from the same distribution, and by operations in place."""
    kept = torch.empty(len(x), 1).bernoulli_(0.5)
    return x * torch.randn_like(x) * kept + torch.randn_like(x) + torch.bernoulli(x.detach().sigmoid())


def pair(middle) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 4), middle()), nn.Linear(4, 3)]


@exhaustive
@pytest.mark.parametrize("method", ["pipedream", "pipemare"])
@pytest.mark.parametrize(
    "middle",
    [
        Masked,
        lambda: Calls(noisy),
        lambda: Calls(lambda x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4)),
        lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=5),
        lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
        nn.Identity,
    ],
    ids=["attribute", "noise", "view", "prune", "weight-norm", "spectral-norm", "identity"],
)
def test_what_modules_do(middle, method: str) -> None:
    close(trained(method, pair(middle)), trained(method, pair(middle), compile=False))


@exhaustive
def test_a_checkpointed_module() -> None:
    def middle() -> nn.Module:
        return Checkpointed(nn.Linear(4, 4), nn.Tanh())

    close(trained("pipedream", pair(middle)), trained("pipedream", pair(middle), compile=False))


@pytest.mark.parametrize(
    ("middle", "line"),
    [
        (lambda: Calls(lambda x: x * 2 if x.sum() > 0 else x), r"stages\[0\] cannot be compiled \(.*leave compile out"),
        (Counts, r"1.calls of stages\[0\] changes in forward, which compiled code would do only once"),
        (Remembers, r"1.last of stages\[0\] changes in forward"),
        (Averages, r"1.mean of stages\[0\] changes in forward"),
        (lambda: Inside([0], lambda held, x: held.__setitem__(0, held[0] + 1)), r"1.held.0 of stages\[0\] changes"),
        (lambda: Inside([torch.ones(4)], lambda held, x: held.__setitem__(0, 2 * x)), r"1.held of stages\[0\] changes"),
        (lambda: Inside({}, lambda held, x: held.update(x=x)), r"the length of 1.held of stages\[0\] changes"),
        (
            lambda: Inside(SimpleNamespace(n=0), lambda held, x: setattr(held, "n", 1)),
            r"1.held.n of stages\[0\] changes",
        ),
        (lambda: Inside(deque([0]), lambda held, x: held.append(1)), r"the length of 1.held of stages\[0\] changes"),
        (lambda: Calls(partial(torch.mul, torch.ones(4))), r"it uses a tensor that is neither .* nor held by a"),
        (lambda: Checkpointed(nn.Dropout(0.3)), r"uses torch.utils.checkpoint and draws random numbers"),
    ],
    ids=[
        *("values", "counts", "remembers", "replaced buffer", "list", "tensor in a list", "dict", "object", "queue"),
        *("hidden tensor", "checkpoint"),
    ],
)
def test_what_cannot_be_compiled_is_refused(middle, line: str) -> None:
    stages = pair(middle)
    before, held = tensors(*stages), deepcopy(vars(stages[0][1]).get("held"))
    with pytest.raises(fw.StageError, match=line):
        trainer(stages, "bp", compile=True).fit(batches(1))
    assert same_bits(before, tensors(*stages))
    assert repr(vars(stages[0][1]).get("held")) == repr(held)


def test_hooks_and_compiled_modules_are_refused() -> None:
    def refused(line: str, change) -> None:
        stages = pair(nn.Tanh)
        change(stages[0][0])
        with pytest.raises(ValueError, match=line):
            trainer(stages, "bp", compile=True).fit(batches(1))

    refused("module '0' of .* forward hook", lambda layer: layer.register_forward_hook(lambda *call: None))
    refused("module '0' of .* forward hook", lambda layer: layer.register_forward_pre_hook(lambda *call: None))
    refused("module '0' of .* backward hook", lambda layer: layer.register_full_backward_hook(lambda *call: None))
    refused("module '0' of .* compiled by torch.compile", lambda layer: layer.compile())
    refused("module '0.cell' of .* an nn.LSTM", lambda layer: layer.add_module("cell", nn.LSTM(2, 2)))


@pytest.mark.parametrize(
    ("compiled", "given", "form"),
    [
        (False, {}, "foreach"),
        (True, {}, "fused"),
        (True, {"foreach": True}, "foreach"),
        (True, {"lr": torch.tensor(0.1)}, None),
    ],
)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizers_of_compiled_stages_are_fused_unless_the_user_chose(optimizer, compiled, given, form) -> None:
    """In one call other threads can run Python meanwhile; eager stages have the bits of torch's loop."""
    made = trainer(network(2), "pipedream", compile=compiled, optimizer=partial(optimizer, **{"lr": 0.1, **given}))
    for stage in made._stages:
        assert [name for name in ("foreach", "fused") if stage.optimizer.param_groups[0][name]] == (
            [form] if form else []
        )


@exhaustive
def test_an_output_without_a_gradient_is_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), self.two(x)

    with pytest.raises(fw.StageError, match=r"an output of stages\[0\] gets no gradient"):
        trainer([Two(), Calls(lambda pair: pair[0][:, :3])], "bp", compile=True).fit(batches(1))


def test_methods_that_race_are_refused() -> None:
    with pytest.raises(ValueError, match="compile with async-lu"):
        trainer(network(2), "async-lu", runtime="threads", compile=True)


def test_without_a_compiler(monkeypatch) -> None:
    def missing() -> str:
        raise RuntimeError("no working C++ compiler found")

    monkeypatch.setattr("freewheel.stage._inductor.get_cpp_compiler", missing)
    with pytest.raises(ValueError, match=r"compile=True needs a C\+\+ compiler \(no working"):
        trainer(network(2), "bp", compile=True).fit(batches(1))


class Scales(nn.Module):
    """Reads a number from an object."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(scale=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.config.scale * x


def test_what_is_changed_inside_an_object_between_fits() -> None:
    """Code was compiled again for attributes of modules only, and went on with the old number."""

    def run(compile: bool) -> list[Tensor]:
        stages = pair(Scales)
        made = trainer(stages, "pipedream", compile=compile)
        made.fit(batches(3))
        stages[0][1].config.scale = 3.0
        made.fit(batches(3))
        return tensors(*stages)

    close(run(True), run(False))


@exhaustive
@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: m.to(memory_format=torch.channels_last)])
def test_the_form_of_the_weights_is_changed_between_fits(change) -> None:
    """What was compiled for the old form was called with the new one."""
    g = torch.Generator().manual_seed(0)
    data = [(torch.randint(20, (5, 64), generator=g), torch.randint(3, (5,), generator=g)) for _ in range(3)]

    def run(compile: bool) -> list[Tensor]:
        torch.manual_seed(0)
        first = nn.Sequential(nn.Embedding(20, 3), nn.Unflatten(1, (8, 8)), Calls(lambda x: x.movedim(-1, 1)))
        stages = [first, nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3))]
        made = trainer(stages, "pipedream", compile=compile, optimizer=partial(torch.optim.SGD, lr=0.05))
        made.fit(data)
        for stage in stages:
            change(stage)
        made.fit(data)
        return tensors(*stages)

    close(run(True), run(False))


@exhaustive
def test_what_is_changed_between_fits() -> None:
    """A dropout's p, a function, the mode of a BatchNorm, and a weight that is frozen."""

    def run(compile: bool) -> list[Tensor]:
        stages = network(2)
        stages[1].append(Calls(torch.tanh))
        made = trainer(stages, "pipedream", compile=compile)
        made.fit(batches(3))
        stages[0][0][3].p = 0.6
        stages[1][-1].function = torch.sin
        made.fit(batches(3))
        stages[0][0][1].eval()
        stages[1][1][0].weight.requires_grad_(False)
        made.fit(batches(3))
        return tensors(*stages)

    close(run(True), run(False))


@exhaustive
@pytest.mark.parametrize("options", [{"autocast": torch.bfloat16}, {"replicas": 2}, {"accumulate": 2, "clip": 0.1}])
def test_options(options: dict) -> None:
    compiled = trained("pipedream", **options)
    assert same_bits(compiled, trained("pipedream", runtime="threads", **options))
    theirs = trained("pipedream", compile=False, **options)
    for a, b in zip(compiled, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.02 if "autocast" in options else 1e-5)


@exhaustive
def test_a_loss_with_weights() -> None:
    losses = [nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])) for _ in range(2)]
    close(trained("fdg", loss=losses[0]), trained("fdg", loss=losses[1], compile=False))


@needs_cuda
@pytest.mark.parametrize("name", ["bp", "gpipe", "pipedream", "fdg", "dsp", "pipemare", "predict", "dgl", "fa", "dfa"])
def test_on_a_gpu(name: str) -> None:
    compiled, eager = (trained(NAMED[name].make(3), device="cuda", count=30, compile=on) for on in (True, False))
    for a, b in zip(compiled, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)
    for runtime in ("threads", "graph"):
        assert same_bits(compiled, trained(NAMED[name].make(3), device="cuda", count=30, runtime=runtime)), runtime


@needs_cuda
def test_a_convolutional_network_on_a_gpu() -> None:
    def run(runtime: str) -> list[Tensor]:
        torch.manual_seed(0)
        blocks = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, 2), nn.ReLU()]
        stages = [nn.Sequential(*blocks[:3]), nn.Sequential(*blocks[3:], nn.Flatten(), nn.Linear(8 * 6 * 6, 3))]
        stages = [stage.cuda() for stage in stages]
        g = torch.Generator().manual_seed(0)
        data = [(torch.randn(8, 3, 16, 16, generator=g), torch.randint(3, (8,), generator=g)) for _ in range(12)]
        trainer(stages, "fdg", runtime=runtime, compile=True, loss=F.cross_entropy).fit(data)
        return tensors(*stages)

    simulated = run("simulate")
    assert same_bits(simulated, run("threads"))
    assert same_bits(simulated, run("graph"))
