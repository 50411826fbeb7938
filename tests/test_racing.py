"""Methods on shared weights, one step at a time: against plain loops and against the recorded steps."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

import freewheel as fw
import races
from rows import batches, network as with_dropout, same_bits, tensors, trainer

SGD = partial(torch.optim.SGD, lr=0.05)
OPTIMIZERS = {
    "sgd": SGD,
    "momentum": partial(SGD, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(SGD, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}
ALONE = {  # each with one worker at a time, so there is nothing to race with
    "async-lu": fw.AsyncLU(backward_workers=1, queue=0),
    "async-bu": fw.AsyncBU(backward_workers=1, queue=0),
    "hogwild": fw.Hogwild(workers=1),
    "lap-sgd": fw.LAPSGD(groups=1),
}
RACING = {
    "async-lu": fw.AsyncLU(backward_workers=3),
    "async-lu-2": fw.AsyncLU(forward_workers=2),
    "async-bu": fw.AsyncBU(),
    "async-lu-devices": fw.AsyncLU(devices=3),
    "async-bu-devices": fw.AsyncBU(devices=2, forward_workers=2, backward_workers=1, locked=True),
    "hogwild": fw.Hogwild(workers=3),
    "lap-sgd": fw.LAPSGD(workers=2, average_every=3),
    "lpp-sgd": fw.LPPSGD(workers=2, average_every=2),
    "lpp-random": fw.LPPSGD(workers=2, order="random"),
}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12, bias=False), nn.Tanh(), nn.Linear(12, 3)
    )


def warm_up_and_cosine(optimizer: torch.optim.Optimizer) -> SequentialLR:
    warm_up = LinearLR(optimizer, start_factor=0.2, total_iters=6)
    return SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, T_max=30)], milestones=[6])


def by_hand(model: nn.Module, data, make, scheduler=None, epochs: int = 2, every: str = "batch") -> nn.Module:
    """A plain loop."""
    optimizer = make(model.parameters())
    schedule = scheduler(optimizer) if scheduler else None
    for _ in range(epochs):
        for x, target in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
            if schedule is not None and every == "batch":
                schedule.step()
        if schedule is not None and every == "epoch":
            schedule.step()
    return model


# ---- nothing to race with ----


@pytest.mark.parametrize(
    ("optimizer", "runtime"),
    [*((name, "simulate") for name in OPTIMIZERS), ("momentum", "threads"), ("adam", "threads")],
)
@pytest.mark.parametrize("method", ALONE)
def test_alone_is_plain_sgd_bit_for_bit(method: str, optimizer: str, runtime: str):
    data, model, make = batches(12), net(), OPTIMIZERS[optimizer]
    expected = by_hand(deepcopy(model), data, make)
    history = trainer([model], ALONE[method], optimizer=make, runtime=runtime).fit(data, 2)
    assert same_bits(tensors(model), tensors(expected))
    assert history.batches == 24
    assert all(layer.staleness == 0 for epoch in history.epochs for layer in epoch.layers.values())


@pytest.mark.parametrize("every", ["batch", "epoch"])
@pytest.mark.parametrize("method", ALONE)
def test_alone_with_warm_up_and_cosine_is_the_loop_with_that_schedule(method: str, every: str):
    data, model, make = batches(12), net(), OPTIMIZERS["momentum"]
    expected = by_hand(deepcopy(model), data, make, warm_up_and_cosine, 3, every)
    made = trainer([model], ALONE[method], optimizer=make, scheduler=warm_up_and_cosine, scheduler_every=every)
    made.fit(data, 2)
    made.fit(data)  # momentum and schedule continue
    assert same_bits(tensors(model), tensors(expected))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("method", ALONE)
def test_alone_draws_what_backpropagation_draws(method: str, k: int):
    data = batches(9)
    stages, plain = with_dropout(k), with_dropout(k)
    history = trainer(stages, ALONE[method]).fit(data, 2, validate=data)
    expected = trainer(plain, "bp").fit(data, 2, validate=data)
    assert same_bits(tensors(*stages), tensors(*plain))
    assert history.losses == expected.losses
    assert history.metrics == expected.metrics


def local_sgd(model: nn.Module, data, make, *, groups: int, every: int, partitions, epochs: int) -> nn.Module:
    """Batch n goes to copy n mod G; after `every` updates of each copy all become their mean."""
    copies = [deepcopy(model) for _ in range(groups)]
    optimizers = [make(copy.parameters()) for copy in copies]
    total = 0
    for _ in range(epochs):
        for i, (x, target) in enumerate(data):
            g, turn = total % groups, total // groups
            optimizers[g].zero_grad()
            F.cross_entropy(copies[g](x), target).backward()
            for name, p in copies[g].named_parameters():
                if name.partition(".")[0] not in partitions[turn % len(partitions)]:
                    p.grad = None
            optimizers[g].step()
            total += 1
            if total % (groups * every) == 0 or i == len(data) - 1:
                with torch.no_grad():
                    states = [copy.state_dict() for copy in copies]
                    for name in states[0]:
                        if states[0][name].is_floating_point():
                            mean = sum(state[name] for state in states) / groups
                            for state in states:
                                state[name].copy_(mean)
    return copies[0]


@pytest.mark.parametrize(
    ("method", "partitions"),
    [
        (fw.LAPSGD(groups=2, average_every=3), [("0", "1", "3", "5")]),
        (fw.LAPSGD(groups=3, average_every=1), [("0", "1", "3", "5")]),
        (fw.LPPSGD(groups=2, average_every=3, partitions=2), [("0", "1"), ("3", "5")]),
        (fw.LPPSGD(groups=1, average_every=3, partitions=3), [("0", "1"), ("3",), ("5",)]),
    ],
    ids=str,
)
def test_one_worker_in_each_group_is_local_sgd(method: fw.LAPSGD | fw.LPPSGD, partitions):
    data = [(x.double(), target) for x, target in batches(11)]
    model, make = net().double(), OPTIMIZERS["momentum"]
    expected = local_sgd(
        deepcopy(model),
        data,
        make,
        groups=method.groups,
        every=method.average_every,
        partitions=partitions,
        epochs=2,
    )
    history = trainer([model], method, optimizer=make).fit(data, 2)
    for (name, a), b in zip(model.state_dict().items(), expected.state_dict().values()):
        assert torch.allclose(a, b, rtol=0, atol=1e-12), name
    done = {name: sum(epoch.layers[name].finished for epoch in history.epochs) for name in ("0", "1", "3", "5")}
    for i, partition in enumerate(partitions):
        share = sum(n // method.groups % len(partitions) == i for n in range(22))
        assert all(done[name] == share for name in partition)


# ---- interleavings ----


def race(method: fw.Method, *, seed: int = 3, runtime: str = "simulate", momentum: float = 0.9, epochs: int = 2):
    model = races.network()
    make = partial(torch.optim.SGD, lr=0.1, momentum=momentum)
    history = trainer([model], method, optimizer=make, seed=seed, runtime=runtime).fit(races.batches(), epochs)
    return model, history


@pytest.mark.parametrize("method", RACING.values(), ids=RACING)
def test_one_seed_one_result(method: fw.Method):
    (a, first), (b, second), (c, _) = race(method), race(method), race(method, seed=4)
    assert same_bits(tensors(a), tensors(b))
    assert [epoch.layers for epoch in first.epochs] == [epoch.layers for epoch in second.epochs]
    assert not same_bits(tensors(a), tensors(c))


def steps_of(file: Path) -> list[str]:
    return file.read_text().splitlines()


@pytest.mark.parametrize("runtime", ["simulate", "threads"])
@pytest.mark.parametrize("name", RACING)
def test_recorded_steps_by_hand_give_the_replayed_weights(name: str, runtime: str, tmp_path: Path):
    file, again = tmp_path / "steps", tmp_path / "again"
    method, seed = RACING[name], 3 if name == "lpp-random" else 99  # it also decides which partition a batch updates
    recorded, _ = race(fw.method(method.name, **options(method), record=file), runtime=runtime)
    replayed, history = race(fw.method(method.name, **options(method), record=again, replay=file), seed=seed)
    lines = steps_of(file)
    assert steps_of(again) == lines
    reader = races.Reader(
        races.network(),
        races.batches() * 2,
        lr=0.1,
        momentum=0.9,
        shared=name.startswith("async"),
        groups=method.copies,
    )
    assert races.close(replayed, reader.read(lines))
    if runtime == "simulate":
        assert same_bits(tensors(recorded), tensors(replayed))
    updates = sum(layer.finished for epoch in history.epochs for layer in epoch.layers.values())
    assert updates == sum(line.partition(": ")[2].startswith("U") for line in lines)


def options(method: fw.Method) -> dict[str, object]:
    return {name: value for name, value in vars(method).items() if name not in ("record", "replay")}


def staleness_by_hand(lines: list[str], batches_of_group: int = 1) -> dict[str, float]:
    """For each layer, the mean number of its `U` steps between the `F` and the `U` of a batch."""
    where = {line.partition(": ")[2]: i for i, line in enumerate(lines)}
    out: dict[str, float] = {}
    for layer in ("0", "2"):
        updates = [i for text, i in where.items() if text.startswith("U") and text.endswith(f" {layer}")]
        numbers = [text.split()[0][1:] for text in where if text.startswith("U") and text.endswith(f" {layer}")]
        gaps = [sum(where[f"F{n} {layer}"] < i < where[f"U{n} {layer}"] for i in updates) for n in numbers]
        out[layer] = sum(gaps) / len(gaps)
    return out


@pytest.mark.parametrize("name", ["async-lu", "async-bu", "hogwild"])
def test_staleness_is_the_number_of_updates_between_a_forward_and_its_own(name: str, tmp_path: Path):
    file = tmp_path / "steps"
    _, history = race(fw.method(name, record=file), epochs=1)
    (epoch,) = history.epochs
    expected = staleness_by_hand(steps_of(file))
    assert {layer: record.staleness for layer, record in epoch.layers.items()} == pytest.approx(expected)
    assert epoch.staleness == pytest.approx((sum(expected.values()) / 2,))
    assert expected["0"] > 0


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("async-lu", ["B{}", "U{} 2", "B{} 2", "U{} 0", "B{} 0"]),
        ("async-bu", ["B{}", "B{} 2", "B{} 0", "U{} 2", "U{} 0"]),
    ],
)
def test_a_layer_is_updated_at_once_or_at_the_end(name: str, order: list[str], tmp_path: Path):
    file = tmp_path / "steps"
    race(fw.method(name, record=file), epochs=1)
    texts = [line.partition(": ")[2] for line in steps_of(file)]
    for n in range(12):
        own = [f"B{n}", *(f"{verb}{n} {layer}" for verb in "BU" for layer in "02")]
        assert [text for text in texts if text in own] == [step.format(n) for step in order]


class Counted(torch.autograd.Function):
    """Counts the gradients that pass through it."""

    count = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Counted.count += 1
        return gradient


class Counting(nn.Module):
    def forward(self, x):
        return Counted.apply(x)


def test_a_backward_ends_with_its_partition():
    model = nn.Sequential(nn.Linear(6, 12), Counting(), nn.Linear(12, 3))
    Counted.count = 0
    trainer([model], fw.LPPSGD(groups=1), check=False).fit(batches(10))
    assert Counted.count == 5, "only backwards that update the first layer pass the second"


def test_layer_wise_updates_are_less_stale_than_block_updates():
    """On average over the layers of a deep network and many drawn interleavings."""
    means = {}
    for name in ("async-lu", "async-bu"):
        torch.manual_seed(0)
        deep = nn.Sequential(*[nn.Linear(6, 6) for _ in range(9)], nn.Linear(6, 3))
        (epoch,) = trainer([deep], name, seed=1).fit(batches(60)).epochs
        means[name] = epoch.staleness[0]
    assert means["async-lu"] < means["async-bu"]


def test_a_recording_that_does_not_match_is_refused_with_the_step(tmp_path: Path):
    file = tmp_path / "steps"
    race(fw.AsyncLU(record=file))
    lines = steps_of(file)
    place = next(i for i, line in enumerate(lines) if ": U3 2" in line)
    file.write_text("\n".join([*lines[:place], "backward worker 0: U3 7", *lines[place + 1 :]]))
    with pytest.raises(ValueError, match=rf"replay: after {place} steps the recording continues with .*U3 7"):
        race(fw.AsyncLU(replay=file))
    file.write_text("\n".join(lines[:20]))
    with pytest.raises(ValueError, match="replay: after 20 steps the recording has no further step"):
        race(fw.AsyncLU(replay=file))


# ---- networks ----


class Shared(nn.Module):
    """Uses one layer twice, and skips another in some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.seldom, self.last = (nn.Linear(6, 6) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(6))
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        h = self.twice(self.twice(self.first(x)).tanh()) * self.scale
        return self.last(self.seldom(h) if len(x) == 9 else h)


@pytest.mark.parametrize("method", ["async-lu", "async-bu"])
def test_layers_used_twice_or_not_at_all(method: str):
    torch.manual_seed(0)
    model, data = Shared(), batches(14)
    expected = by_hand(deepcopy(model), data, OPTIMIZERS["momentum"])
    make = OPTIMIZERS["momentum"]
    history = trainer([model], fw.method(method, backward_workers=1, queue=0), optimizer=make).fit(data, 2)
    assert same_bits(tensors(model), tensors(expected))
    counts = {name: sum(epoch.layers[name].finished for epoch in history.epochs) for name in history.epochs[0].layers}
    assert counts == {"Shared": 28, "first": 28, "twice": 28, "last": 28, "seldom": 24}


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_layers_learn_from_their_own_leaves(name: str):
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = {"lstm": nn.LSTM, "gru": nn.GRU}[name](2, 5, num_layers=2, batch_first=True)
            self.last = nn.Linear(5, 3)

        def forward(self, x):
            return self.last(self.cells(x.view(len(x), 3, 2))[0][:, -1])

    torch.manual_seed(0)
    model, data = Reads(), batches(10)
    expected = by_hand(deepcopy(model), data, OPTIMIZERS["adam"])
    trainer([model], ALONE["async-lu"], optimizer=OPTIMIZERS["adam"]).fit(data, 2)
    assert same_bits(tensors(model), tensors(expected))


class Edits(nn.Module):
    """Changes in place what its own backward needs."""

    def forward(self, x):
        y = x.exp()
        y.mul_(2)
        return y


@pytest.mark.parametrize("method", ["async-lu", "hogwild"])
def test_autograd_still_catches_an_inplace_edit(method: str):
    with pytest.raises(fw.StageError, match="modified by an inplace operation"):
        trainer([nn.Sequential(nn.Linear(6, 3), Edits())], method).fit(batches(4))


def test_frozen_weights_stay():
    model, data = net(), batches(8)
    model[0].requires_grad_(False)
    before = tensors(model[0])
    history = trainer([model], "async-lu").fit(data)
    assert same_bits(before, tensors(model[0]))
    assert list(history.epochs[0].layers) == ["1", "3", "5"]
