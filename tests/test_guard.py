"""Callbacks that change weights or buffers: refused before they do, on every runtime, or done between two fits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

import freewheel as fw
from freewheel.stage import scratch_buffers
from freewheel.trainer._guard import Guard
from rows import LOCAL, OPTIMIZERS, batches, same_bits, tensors, trainer
from spread import spread

RUNTIMES = (*LOCAL, "processes")
Stages = Sequence[Any]


class Warm(nn.Module):
    """A layer with a temperature in a buffer, and a factor in a tensor that is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(12, 3), torch.ones(3)
        self.register_buffer("heat", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / self.heat * self.factor


def network() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh()), Warm()]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def halved(module: nn.Module) -> dict[str, Tensor]:
    return {name: t * 0.5 if t.is_floating_point() else t for name, t in module.state_dict().items()}


def vector(stages: Stages) -> None:
    vector_to_parameters(drawn(84), stages[0][0].parameters())


def foreach(stages: Stages) -> None:
    torch._foreach_mul_([p.detach() for p in stages[1].parameters()], 0.5)


# What is changed, and how.
CHANGES: dict[str, tuple[str, Callable[[Stages], Any]]] = {
    "clamp_": (r"stages\[1\]\.layer\.weight", lambda s: s[1].layer.weight.detach().clamp_(-0.1, 0.1)),
    "item": (r"stages\[0\]\.0\.weight", lambda s: s[0][0].weight.detach().__setitem__(0, 1.0)),
    "out": (r"stages\[0\]\.0\.bias", lambda s: torch.add(drawn(12), 1.0, out=s[0][0].bias.detach())),
    "data in place": (r"stages\[0\]\.0\.weight", lambda s: s[0][0].weight.data.mul_(0.5)),
    "data": (r"stages\[0\]\.0\.weight", lambda s: setattr(s[0][0].weight, "data", drawn(12, 6))),
    "double": (r"stages\[0\]\.0\.weight", lambda s: s[0].double()),
    "vector": (r"stages\[0\]\.0\.weight", vector),
    "init": (r"stages\[0\]\.0\.weight", lambda s: nn.init.zeros_(s[0][0].weight)),
    "reset": (r"stages\[1\]\.layer\.weight", lambda s: s[1].layer.reset_parameters()),
    "load": (r"stages\[0\]\.0\.weight", lambda s: s[0].load_state_dict(halved(s[0]))),
    "assign": (r"stages\[0\]\.0\.weight", lambda s: s[0].load_state_dict(halved(s[0]), assign=True)),
    "foreach": (r"stages\[1\]\.layer\.weight", foreach),
    "parameter": (r"stages\[1\]\.layer\.weight", lambda s: setattr(s[1].layer, "weight", nn.Parameter(drawn(3, 12)))),
    "prune": (r"stages\[0\]\.0\.weight_orig", lambda s: prune.l1_unstructured(s[0][0], "weight", 3)),
    "module": (r"stages\[1\]\.layer", lambda s: setattr(s[1], "layer", nn.Linear(12, 3))),
    "buffer in place": (r"stages\[1\]\.heat", lambda s: s[1].heat.fill_(0.5)),
    "buffer": (r"stages\[1\]\.heat", lambda s: setattr(s[1], "heat", torch.tensor(0.5))),
    "attribute": (r"stages\[1\]\.factor", lambda s: s[1].factor.mul_(0.5)),
    "train mode": (r"stages\[0\]\.1\.num_batches_tracked", lambda s: s[0](drawn(4, 6))),
}


class StopsError(Exception):
    """Raised by a callback that changes nothing."""


def stop(stages: Stages) -> None:
    raise StopsError("stopped")


def interrupted(change: Callable[[Stages], Any], words: str, kind: str, runtime: str, method: str) -> list[Tensor]:
    """The network after a fit that has ended in an error of a callback."""
    stages = network()
    made = trainer(stages, method, runtime=runtime)
    with pytest.raises((StopsError, ValueError), match=words):
        made.fit(batches(4), epochs=3, **{kind: [lambda end: change(stages)]})  # pyright: ignore
    return [*tensors(*stages), stages[1].factor]  # pyright: ignore


@spread(change=CHANGES, runtime=RUNTIMES, kind=["callbacks", "batch_callbacks"], least=3 * len(CHANGES))
def test_a_change_is_refused_before_it_is_made(change: str, runtime: str, kind: str) -> None:
    """`simulate` made it in the middle of batches, `threads` at any time, and in processes it was lost."""
    name, call = CHANGES[change]
    words = f"^a callback would change {name} while batches are under way"
    found = interrupted(call, words, kind, runtime, "bp")
    if runtime != "threads":  # where the stages go on meanwhile
        assert same_bits(found, interrupted(stop, "stopped", kind, runtime, "bp"))


def new_state(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(deepcopy(optimizer.state_dict()))


def zeroed(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


OPTIMIZER_CHANGES: dict[str, tuple[str, Callable[[torch.optim.Optimizer], Any]]] = {
    "step size": ("would change lr of", lambda o: o.param_groups[0].__setitem__("lr", 0.5)),
    "several": ("would change a setting of", lambda o: o.param_groups[0].update(momentum=0.5)),
    "default": ("would change pace of", lambda o: o.param_groups[0].setdefault("pace", 1)),
    "state in place": ("would change momentum_buffer of", zeroed),
    "state": ("has changed the groups or the state of", new_state),
    "group": ("has changed the groups or the state of", lambda o: o.param_groups.append(dict(o.param_groups[0]))),
}


@spread(change=OPTIMIZER_CHANGES, runtime=RUNTIMES, kind=["callbacks", "batch_callbacks"], least=18)
def test_a_change_to_an_optimizer_is_refused(change: str, runtime: str, kind: str) -> None:
    words, call = OPTIMIZER_CHANGES[change]
    made = trainer(network(), "pipedream", runtime=runtime)
    made.fit(batches(4))
    with pytest.raises(ValueError, match=rf"^a callback {words} the optimizer of stages\[1\] while"):
        made.fit(batches(4), epochs=3, **{kind: [lambda end: call(made.optimizers[1])]})  # pyright: ignore


def test_a_group_that_is_referred_to_stays_that_of_the_optimizer() -> None:
    made = trainer(network(), "pipedream")
    before = [group for optimizer in made.optimizers for group in optimizer.param_groups]
    made.fit(batches(4), callbacks=[lambda end: None])
    after = [group for optimizer in made.optimizers for group in optimizer.param_groups]
    assert [id(group) for group in before] == [id(group) for group in after]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_optimizers_can_be_read_and_copied_by_callbacks_and_changed_between_fits(runtime: str) -> None:
    def train(watch: bool) -> list[Tensor]:
        stages, read = network(), []
        make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        made = trainer(stages, "pipedream", runtime=runtime, optimizer=make)

        def look(end: Any) -> None:
            copied = [deepcopy(optimizer) for optimizer in made.optimizers]
            copied[0].param_groups[0]["lr"] = 7.0
            read.append([optimizer.param_groups[0]["lr"] for optimizer in made.optimizers])

        for size in (0.1, 0.05):
            for optimizer in made.optimizers:
                optimizer.param_groups[0]["lr"] = size
            made.fit(batches(4), epochs=2, callbacks=[look] if watch else [])
        assert not watch or read == [[0.1, 0.1]] * 2 + [[0.05, 0.05]] * 2
        return tensors(*stages)

    assert same_bits(train(True), train(False))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("change", ["clamp_", "data", "load", "vector", "parameter", "buffer", "train mode"])
def test_a_change_to_a_late_stage_is_refused(change: str, runtime: str) -> None:
    """Its modules hold copies of weights now and then."""
    name, call = CHANGES[change]
    interrupted(call, f"^a callback would change {name} while", "callbacks", runtime, "pipedream")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_arrays_of_weights_can_be_read_alone(runtime: str) -> None:
    seen = []

    def change(stages: Stages) -> None:
        array = stages[0][0].weight.detach().numpy()
        seen.append(array.sum())
        array *= 0.5

    interrupted(change, "read-only", "callbacks", runtime, "bp")
    assert seen


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_change_that_a_callback_hides_is_refused(runtime: str) -> None:
    def change(stages: Stages) -> None:
        with suppress(ValueError):
            stages[1].heat.fill_(0.5)

    interrupted(change, r"a callback would change stages\[1\]\.heat", "callbacks", runtime, "bp")


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("who", ["a metric", "on_progress"])
def test_other_functions_change_nothing_either(who: str, runtime: str) -> None:
    stages = network()

    def call(*_: Any) -> Tensor:
        return stages[1].heat.fill_(0.5)  # pyright: ignore

    made = trainer(stages, "bp", runtime=runtime, metric=call if who == "a metric" else fw.accuracy)
    given: dict[str, Any] = {"validate": batches(2)} if who == "a metric" else {"on_progress": call}
    with pytest.raises(ValueError, match=rf"^{who} would change stages\[1\]\.heat"):
        made.fit(batches(4), epochs=2, **given)


@pytest.mark.parametrize(("method", "runtime"), [("async-lu", "threads"), ("hogwild", "processes")])
def test_a_change_between_epochs_of_a_race_is_refused(method: str, runtime: str) -> None:
    """All workers are idle then, but those in processes would not see it."""
    stages = network()
    with pytest.raises(ValueError, match=r"a callback would change stages\[1\]\.layer\.weight"):
        trainer(stages, method, runtime=runtime).fit(
            batches(4), epochs=2, callbacks=[lambda end: nn.init.zeros_(stages[1].layer.weight)]
        )


def test_a_change_to_a_head_is_refused() -> None:
    made = trainer(network(), "dgl", runtime="threads")

    def change(end: fw.EpochEnd) -> None:
        head = made.heads[0]
        assert head is not None
        nn.init.zeros_(next(head.parameters()))

    with pytest.raises(ValueError, match=r"a callback would change heads\[0\]\."):
        made.fit(batches(4), epochs=2, callbacks=[change])


def test_the_weights_of_a_loss_are_guarded() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    with pytest.raises(ValueError, match=r"a callback would change loss\.weight"):
        trainer(network(), "bp", loss=loss).fit(batches(4), callbacks=[lambda end: loss.weight.mul_(2)])


@pytest.mark.parametrize("kind", ["weights", "buffers"])
@pytest.mark.parametrize("first", ["stage", "callback"])
def test_what_stands_in_for_a_tensor_is_guarded(kind: str, first: str) -> None:
    """A stage puts copies into its module for a while; a callback beside it may get hold of one, and use it later."""
    made = trainer(network(), "pipedream")
    stage = made._stages[0]
    stage.begin(0, 0)
    guard, module = Guard(made.model(), made._stages), stage.module
    name = {"weights": r"stages\[0\]\.0\.weight", "buffers": r"stages\[0\]\.1\.running_mean"}[kind]
    inside = stage.weights.forward(0) if kind == "weights" else scratch_buffers(module)
    guarded = guard.tensors("a callback")

    def held() -> Tensor:
        return module[0].weight if kind == "weights" else module[1].running_mean  # pyright: ignore

    def late_write() -> None:
        live = held()
        with ExitStack() as stack:
            if first == "callback":
                stack.enter_context(guarded)
            with inside:
                if first == "stage":
                    stack.enter_context(guarded)
                stand_in = held()
                assert stand_in is not live
            assert held() is live
            nn.init.zeros_(stand_in)

    with pytest.raises(ValueError, match=f"a callback would change {name} while"):
        late_write()


def test_copies_of_weights_in_flight_are_guarded() -> None:
    """A callback may have got hold of one earlier."""
    made = trainer(network(), "pipedream")
    stage = made._stages[0]
    stage.begin(0, 0)
    with stage.weights.forward(0) as copy:
        pass
    stage.weights.hold(0, copy)
    guard, words = Guard(made.model(), made._stages), r"a callback would change stages\[0\]\.0\.weight while"
    with pytest.raises(ValueError, match=words), guard.tensors("a callback"):
        nn.init.zeros_(copy[0])
    stage.weights.release(0)  # to be used again
    with pytest.raises(ValueError, match=words), guard.tensors("a callback"):
        nn.init.zeros_(copy[0])
    assert same_bits(copy, stage.weights.live)


# -- what is allowed --------------------------------------------------------------------------------------------------


def looks(stages: Stages, average: AveragedModel, mean: list[Tensor]) -> Callable[[fw.EpochEnd], None]:
    """A callback that reads, copies and evaluates."""

    def look(end: fw.EpochEnd) -> None:
        for each in (deepcopy(end.model()), end.model()):  # the copy may be changed
            each.train()(drawn(4, 6))
            for p in each.parameters():
                p.requires_grad_(False).zero_()
            each.load_state_dict(halved(each))
            each.register_buffer("own", torch.zeros(1))
            del each.own
        for stage in stages:
            torch.save(stage.state_dict(), BytesIO())
            assert stage.cpu() is stage
            assert not any(p.detach().numpy().sum() != p.detach().numpy().sum() for p in deepcopy(stage).parameters())
        average.update_parameters(nn.Sequential(*deepcopy(end.stages)))
        for m, p in zip(mean, nn.Sequential(*end.stages).parameters(), strict=True):
            m.lerp_(p, 0.1)

    return look


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("method", ["bp", "asyncfgd"])
def test_reading_copying_and_evaluating_are_free(method: str, runtime: str) -> None:
    stages, others = network(), network()
    average = AveragedModel(nn.Sequential(*network()))
    mean = [p.detach().clone() for p in nn.Sequential(*network()).parameters()]
    made = trainer(stages, method, runtime=runtime)
    made.fit(batches(4), epochs=2, callbacks=[looks(stages, average, mean)])
    trainer(others, method).fit(batches(4), epochs=2)
    assert same_bits(tensors(*stages), tensors(*others))
    assert int(average.n_averaged) == 2


def test_compiled_code_runs_in_a_callback() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    def look(end: fw.EpochEnd) -> None:
        with torch.no_grad():
            torch.compile(end.model(), backend=backend)(drawn(4, 6))

    trainer(network(), "bp").fit(batches(4), callbacks=[look])
    assert compiled


def test_stages_go_on_beside_a_callback() -> None:
    """Under `threads` they change weights and buffers, and replace buffers, while a callback runs."""
    made = trainer(network(), "bp")
    first, second = made.stages
    before = tensors(first)

    def learn() -> None:
        first.load_state_dict(halved(first))
        second.heat = torch.tensor(0.5)

    stage = threading.Thread(target=learn)
    with Guard(made.model(), made._stages).tensors("a callback"):
        stage.start()
        stage.join()
    assert not same_bits(tensors(first), before)
    assert second.heat == 0.5


# -- between fits -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def change_all(stages: Stages, epoch: int) -> None:
    for p in nn.Sequential(*stages).parameters():
        p.clamp_(-0.3, 0.3)
    nn.init.zeros_(stages[1].layer.bias)
    stages[1].heat.fill_(0.8**epoch)
    stages[0][1].reset_running_stats()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_changes_between_fits_are_those_of_a_plain_loop(runtime: str) -> None:
    stages, plain = network(), network()
    made = trainer(stages, "bp", runtime=runtime)
    model = nn.Sequential(*plain)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for epoch in range(3):
        made.fit(batches(4))
        change_all(stages, epoch)
        for x, y in batches(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        change_all(plain, epoch)
    assert same_bits(tensors(*stages), tensors(*plain))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_checkpoint_before_a_refused_change_is_good(runtime: str, tmp_path: Path) -> None:
    def change(end: fw.EpochEnd) -> None:
        if end.record.epoch == 2:
            nn.init.zeros_(stages[1].layer.weight)  # pyright: ignore

    stages, others, whole = network(), network(), network()
    with pytest.raises(ValueError, match="a callback would change"):
        trainer(stages, "fdg", runtime=runtime).fit(batches(4), 4, callbacks=[change], save_to=tmp_path)
    resumed = fw.Trainer.resume(
        tmp_path, others, method="fdg", loss=F.cross_entropy, optimizer=OPTIMIZERS["sgd"], seed=3, threads=1,
        runtime="simulate",
    )  # fmt: skip
    assert resumed.unfinished == 4
    resumed.fit(batches(4), 4)
    trainer(whole, "fdg").fit(batches(4), 4)
    assert same_bits(tensors(*others), tensors(*whole))
