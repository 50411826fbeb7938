"""The runtime `graph` repeats the launches of earlier batches: with a stand-in for CUDA graphs, on a CPU."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import freewheel as fw
from freewheel.recipes import LRSchedule
from freewheel.runtime import RuntimeChoice, _auto
from freewheel.runtime._capture import CapturingLauncher
from freewheel.runtime._captured import FORMS, CapturedCalls
from freewheel.runtime._fixed import NotCapturedError
from freewheel.runtime._repeat import Script
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer
from stand_in import Races, stand_in as stand_in

pytestmark = pytest.mark.usefixtures("stand_in")
LR = torch.optim.lr_scheduler
COSINE = partial(LR.CosineAnnealingLR, T_max=60)
BOTH = ("simulate", "graph")
REGULAR = ("pipedream", "fdg", "dsp", "fr", "ddg", "asyncfgd", "fgd", "bp")


def stands_in(row):
    """Whether the stand-in can: it copies what micro-batches find unaligned, and changes in place what is looked at."""
    schedule = fw.plan(row.make(3), k=3).schedule
    if schedule.micro > 1 or schedule.replicas > 1 or getattr(schedule.credit, "perturb", "") == "activations":
        return False
    try:
        schedule.credit.check_captured(schedule)
    except ValueError:
        return False
    return True


OTHERS = [row for row in ROWS if row.name not in REGULAR and stands_in(row)]


@pytest.fixture
def repeated(monkeypatch):
    """The batches that are repeated."""
    repeat, counted = Script.repeat, []
    monkeypatch.setattr(Script, "repeat", lambda script, batch: counted.append(batch) or repeat(script, batch))
    return counted


def even(count=40, last=6, seed=1):
    """Batches of one size, but for a smaller last one."""
    return [*batches(count, seed, small=9), *batches(1, seed + 1, size=last)]


def trained(method, runtime, loader=None, epochs=2, stages=None, callbacks=(), **options):
    stages = stages or network(3)
    made = trainer(stages, method, runtime=runtime, **{"scheduler": COSINE, **options})
    history = made.fit(loader or even(), epochs=epochs, validate=batches(3), callbacks=callbacks)
    return tensors(*stages), history.losses, history.metrics, [epoch.staleness for epoch in history.epochs]


def assert_same(wanted, found):
    assert same_bits(wanted[0], found[0])
    assert wanted[1:] == found[1:]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in REGULAR], ids=str)
def test_repeated_batches_are_those_of_simulate(row, optimizer, repeated):
    assert_same(*(trained(row.make(3), runtime, optimizer=OPTIMIZERS[optimizer]) for runtime in BOTH))
    assert len(repeated) >= 10


@pytest.mark.parametrize("row", OTHERS, ids=str)
def test_other_methods_are_those_of_simulate(row):
    assert_same(*(trained(row.make(3), runtime) for runtime in BOTH))


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in REGULAR] + OTHERS, ids=str)
def test_events_order_all_that_touches_the_same_memory(row):
    with Races() as races:
        trained(row.make(3), "graph")
    assert not races.found


@pytest.mark.parametrize("k", [1, 2, 4])
def test_any_number_of_stages(k, repeated):
    assert_same(*(trained("pipedream", runtime, stages=network(k)) for runtime in BOTH))
    assert len(repeated) >= 10


def test_a_warm_up_changes_step_sizes_alone(repeated):
    schedule = LRSchedule(shape="cosine", warmup_epochs=1, warmup_lr=0.001, warmup="linear", every="batch")
    assert_same(*(trained("fdg", runtime, scheduler=schedule.factory(2, 41)) for runtime in BOTH))
    assert len(repeated) >= 10


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": partial(LR.OneCycleLR, max_lr=0.1, total_steps=100)},  # moves the momentum
        {"slow": {1: (0.1, 1.01)}},
        {"accumulate": 2},
        {"slack": 9},
        {"callbacks": [print]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_whatever_is_asked_for_the_weights_are_the_same(options):
    assert_same(*(trained("pipedream", runtime, **options) for runtime in BOTH))


def test_the_end_of_an_epoch_is_not_passed():
    seen, results = [], []

    def stop(end):
        seen.append(end.record.epoch)
        return len(seen) == 2

    for runtime in BOTH:
        seen.clear()
        results.append(trained("fdg", runtime, epochs=4, callbacks=[stop]))
    assert_same(*results)
    assert len(results[0][1]) == 2


def test_a_second_fit_and_a_limit_of_steps(repeated):
    results = []
    for runtime in BOTH:
        stages = network(3)
        made = trainer(stages, fw.AsyncFGD(scale=0.1), runtime=runtime)
        made.fit(even(), max_steps=30)
        history = made.fit(even(seed=5), epochs=2)
        results.append((tensors(*stages), history.losses))
    assert_same(*results)
    assert repeated


def test_an_error_of_the_loader_comes_after_the_batches_before_it(repeated):
    def loader():
        yield from even(33)[:33]
        raise OSError("the disk is gone")

    for runtime in BOTH:
        with pytest.raises(OSError, match="the disk is gone"):
            trained("pipedream", runtime, loader=loader(), epochs=1)
    assert repeated


def test_a_batch_that_cannot_be_trained_has_its_own_number():
    bad = [*even(37)[:37], (torch.randn(9, 5), torch.zeros(9, dtype=torch.long))]
    for runtime in BOTH:
        with pytest.raises(fw.StageError, match="the forward of batch 37"):
            trained("pipedream", runtime, loader=bad, epochs=1)


class Replaces(nn.Module):
    """Has a mean of its own, in new memory after every forward."""

    def __init__(self, *, buffer):
        super().__init__()
        if buffer:
            self.register_buffer("mean", torch.zeros(()))
        else:
            self.mean = torch.zeros(())

    def forward(self, x):
        self.mean = 0.5 * self.mean + x.detach().mean()
        return x + self.mean


class CountsDeep(nn.Module):
    """Counts its calls where only a look into its attributes finds it."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(calls=[0])

    def forward(self, x):
        self.config.calls[0] += 1
        return x * self.config.calls[0]


class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach())
        return x / len(self.seen)


@pytest.mark.parametrize(
    "layer", [partial(Replaces, buffer=True), partial(Replaces, buffer=False), CountsDeep, Appends], ids=str
)
def test_what_a_graph_would_do_only_once_is_refused(layer):
    stages = network(3)
    stages[1].append(layer())
    before = tensors(stages[1], stages[2])
    with pytest.raises(
        fw.StageError, match=r"of stages\[1\] changes in forward, which a CUDA graph would do only once"
    ):
        trainer(stages, "pipedream", runtime="graph").fit(even(), max_steps=20)
    assert same_bits(before, tensors(stages[1], stages[2]))


class InPlace(nn.Module):
    """Has a mean of its own that is no buffer, and weights that it clips."""

    def __init__(self):
        super().__init__()
        self.weight, self.mean = nn.Parameter(torch.ones(3)), torch.zeros(())

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.detach().mean())
        self.weight.data.mul_(0.999)
        return x * self.weight + self.mean


def with_last(layer, k=3):
    stages = network(k)
    stages[-1].append(layer)
    return stages


def test_tensors_that_are_no_buffers_change_once_a_batch():
    assert_same(*(trained("pipedream", runtime, stages=with_last(InPlace())) for runtime in BOTH))


class Reversible(torch.autograd.Function):
    """Runs its layer again in the backward."""

    @staticmethod
    def forward(ctx, x, layer, *weights):
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            weights = [ctx.layer.weight, ctx.layer.bias]
            out = ctx.layer(x)
        gx, *found = torch.autograd.grad(out, [x, *weights], gradient)
        return gx, None, *found


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return Reversible.apply(x, self.layer, self.layer.weight, self.layer.bias)


@pytest.mark.parametrize("method", ["pipedream", "dsp"])
def test_a_backward_that_runs_a_layer_again_finds_the_weights_of_its_forward(method):
    def stages():
        found = network(3)
        found[0].insert(0, Again())
        return found

    assert_same(*(trained(method, runtime, stages=stages()) for runtime in BOTH))


def test_inputs_without_memory_of_their_own():
    loader = [(x[:1].expand(9, 6), y) for x, y in batches(30, small=9)]
    assert_same(*(trained("pipedream", runtime, loader=loader) for runtime in BOTH))


def test_a_number_in_the_input_is_told_from_another_type():
    class Adds(nn.Module):
        def forward(self, pair):
            x, number = pair if type(pair) is tuple else (pair, 1)
            return x + (1 if number is True else 2)

    loader = [((x, True if i % 3 else 1), y) for i, (x, y) in enumerate(even())]
    results = []
    for runtime in BOTH:
        stages = network(3)
        stages[0].insert(0, Adds())
        results.append(trained("pipedream", runtime, loader=loader, stages=stages))
    assert_same(*results)


def changed(change, runtime, **options):
    """Train, and let a callback change something after the first epoch."""
    stages = network(3)
    made = trainer(stages, "pipedream", runtime=runtime, **options)
    made.fit(even(), epochs=3, callbacks=[lambda end: change(made) if end.record.epoch == 0 else None])
    return tensors(*stages)


def test_settings_that_a_scheduler_changes_are_followed():
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=200)
    assert_same(*(trained("pipedream", runtime, scheduler=cycle) for runtime in BOTH))


@pytest.mark.parametrize("runtime", BOTH)
def test_a_weight_that_a_callback_changes_is_refused(runtime):
    with pytest.raises(ValueError, match=r"a callback would change stages\[0\]\.0\.0\.weight while"):
        changed(lambda made: nn.init.zeros_(made.stages[0][0][0].weight), runtime)


@pytest.mark.parametrize("runtime", BOTH)
def test_a_step_size_that_a_callback_changes_is_refused(runtime):
    with pytest.raises(ValueError, match=r"a callback would change lr of the optimizer of stages\[1\] while"):
        changed(lambda made: made.optimizers[1].param_groups[0].__setitem__("lr", 0.01), runtime)


def test_an_optimizer_state_in_another_place_is_refused():
    made = trainer(network(3), "pipedream", runtime="graph")

    class Loader(list):
        epochs = 0

        def __iter__(self):
            self.epochs += 1
            if self.epochs == 2:
                made.optimizers[0].load_state_dict(deepcopy(made.optimizers[0].state_dict()))
            return super().__iter__()

    with pytest.raises(ValueError, match=r"the optimizer state of stages\[0\] was replaced during a fit"):
        made.fit(Loader(even()), epochs=3)


def test_hooks_of_all_optimizers_are_called():
    calls = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: calls.append(optimizer))
    try:
        for runtime in BOTH:
            calls.clear()
            trained("pipedream", runtime)
            assert len(calls) == 2 * 41 * 3
    finally:
        handle.remove()


def test_weights_in_double_precision():
    double = [(x.double(), y) for x, y in even()]
    results = []
    for runtime in BOTH:
        stages = [stage.double() for stage in network(3)]
        trainer(stages, "pipedream", runtime=runtime, scheduler=COSINE).fit(double, epochs=2)
        results.append(tensors(*stages))
    assert same_bits(*results)


@pytest.fixture
def chosen(monkeypatch):
    """`auto` chooses the runtime `graph`."""
    monkeypatch.setattr(_auto, "_on_cores", lambda *_: RuntimeChoice("graph", "all stages are on one GPU"))


class Wants(nn.Module):
    """Has a number of its own, which grows."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_what_cannot_be_captured_is_computed_where_the_runtime_was_not_asked_for(chosen):
    with pytest.warns(UserWarning, match=r"the forward of stages\[1\] is computed without a CUDA graph") as said:
        found = trained("pipedream", "auto", stages=with_last(Wants(), k=2))
    assert len(said) == 1
    assert_same(trained("pipedream", "simulate", stages=with_last(Wants(), k=2)), found)


def test_a_failed_capture_is_computed_where_the_runtime_was_not_asked_for(chosen, monkeypatch):
    record = CapturingLauncher._record

    def fails(self, kind, place, call):
        if self._stage.index == 1 and kind[0] == "forward":
            raise NotCapturedError("it waits for the GPU")
        return record(self, kind, place, call)

    monkeypatch.setattr(CapturingLauncher, "_record", fails)
    with pytest.warns(UserWarning, match=r"the forward of stages\[1\] .* takes longer: it waits for the GPU"):
        found = trained("pipedream", "auto")
    assert_same(trained("pipedream", "simulate"), found)


def test_a_function_that_draws_other_numbers_in_every_call_is_said_to_be_slow():
    class Alternates(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

        def forward(self, x):
            calls.append(1)
            return self.layers[len(calls) % 2](x).tanh()

    calls = []
    with pytest.warns(UserWarning, match="it draws other random numbers in every call") as said:
        trained("fgd", "graph", stages=with_last(Alternates()), epochs=1)
    assert len(said) == 1


def test_a_scale_that_changes_with_the_epoch_is_captured_again(repeated):
    """Graphs of earlier scales make room for those of later ones."""
    method, counts = fw.AsyncFGD(scale=lambda epoch: 0.1 / (1 + epoch)), []
    for epochs in (8, 9):
        repeated.clear()
        assert_same(*(trained(method, runtime, epochs=epochs) for runtime in BOTH))
        counts.append(len(repeated))
    assert counts[1] - counts[0] >= 10  # in the last epoch


def test_as_many_forms_as_there_is_room_for_are_captured():
    """More of them in an epoch are computed without graphs, and none is captured again and again."""
    loader = [batch for size in range(4, 10) for batch in batches(6, size=size, small=size)]
    captured = []
    with pytest.MonkeyPatch.context() as patch:
        add = CapturedCalls.add
        patch.setattr(CapturedCalls, "add", lambda self, name, *rest: captured.append(name) or add(self, name, *rest))
        assert_same(*(trained("pipedream", runtime, loader=loader, epochs=4) for runtime in BOTH))
    assert captured.count("forward") == 3 * 3 * FORMS  # stages and slots


def test_after_a_break_one_turn_of_known_calls_is_enough():
    def launch(batch, call):
        script.turn()
        script.batch = batch
        script.note(print, call)

    script = Script(2)
    for batch in range(5):
        launch(batch, "ab"[batch % 2])
        assert not script.regular or batch == 4
    script.turn()  # batches 0 to 4 are past
    assert script.regular
    script.repeat(5)
    script.repeat(6)
    script.batch = 5
    script.break_off()
    for batch, call in ((6, "a"), (7, "x"), (8, "a"), (9, "b")):
        launch(batch, call)
        assert not script.regular, "a turn has not passed since something else was called"
    script.turn()
    assert script.regular
