"""Real races: every batch is trained and counted, errors and Ctrl-C end all workers; and bad arguments."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import freewheel as fw
import races
from freewheel.checkpoint import find
from rows import batches, same_bits, tensors, trainer
from spread import rarely
from test_racing import OPTIMIZERS, by_hand, net, steps_of, warm_up_and_cosine

WHOLE_BATCH = {
    "hogwild": fw.Hogwild(workers=2),
    "lap-sgd": fw.LAPSGD(groups=2, average_every=3),
    "lpp-sgd": fw.LPPSGD(groups=2, average_every=3),
}


def nobody_left() -> bool:
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("freewheel-")]
    return not ours and not multiprocessing.active_children()


class Naps(torch.autograd.Function):
    """Sleeps for a random time in its forward and in its backward."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(random.random() * 2e-4)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(random.random() * 4e-4)
        return gradient


class Napping(nn.Linear):
    def forward(self, x):
        return Naps.apply(super().forward(x))


@pytest.mark.parametrize(
    ("method", "locked", "epochs"),
    [rarely(fw.AsyncLU, False, 4), rarely(fw.AsyncBU, False, 4), (fw.AsyncLU, False, 1), (fw.AsyncLU, True, 1)],
)
def test_ten_thousand_updates_of_four_workers_are_all_counted(method, locked: bool, epochs: int):
    torch.manual_seed(0)
    hidden = [Napping(6, 16), nn.BatchNorm1d(16), nn.ReLU(), Napping(16, 16), nn.Dropout(0.1), Napping(16, 16)]
    model, data = nn.Sequential(*hidden, nn.Linear(16, 3)), batches(500, size=8)
    chosen = method(backward_workers=4, forward_workers=2, queue=2, locked=locked)
    history = trainer([model], chosen, optimizer=partial(torch.optim.SGD, lr=0.01), runtime="threads").fit(data, epochs)
    counts = [layer for epoch in history.epochs for layer in epoch.layers.values()]
    assert [(layer.started, layer.finished) for layer in counts] == [(500, 500)] * 5 * epochs
    assert sum(layer.finished for layer in counts) == 2500 * epochs
    assert history.batches == 500 * epochs
    assert all(tensor.isfinite().all() for tensor in tensors(model))
    assert any(layer.staleness > 0 for layer in counts)
    assert nobody_left()


@pytest.mark.parametrize("method", ["hogwild", "lap-sgd", "lpp-sgd"])
def test_threads_of_whole_batches_train_every_batch(method: str):
    model = net()
    history = trainer([model], WHOLE_BATCH[method], runtime="threads").fit(batches(40), 2)
    done = [layer.finished for epoch in history.epochs for layer in epoch.layers.values()]
    assert sum(done) == (80 * 4 if method != "lpp-sgd" else 80 * 2)
    assert all(tensor.isfinite().all() for tensor in tensors(model))
    assert nobody_left()


# ---- processes ----


@pytest.mark.parametrize(("optimizer", "every"), [("momentum", "batch"), ("adam", "epoch")])
def test_one_process_is_plain_sgd_bit_for_bit(optimizer: str, every: str):
    data, model, make = batches(12), net(), OPTIMIZERS[optimizer]
    expected = by_hand(deepcopy(model), data, make, warm_up_and_cosine, 3, every)
    options = {"optimizer": make, "scheduler": warm_up_and_cosine, "scheduler_every": every}
    made = trainer([model], fw.Hogwild(workers=1), **options, runtime="processes")
    made.fit(data, 2)
    made.fit(data)  # momentum and schedule continue
    assert same_bits(tensors(model), tensors(expected))
    assert nobody_left()


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_processes_race_on_one_memory_and_can_be_replayed(name: str, tmp_path: Path):
    file, method = tmp_path / "steps", WHOLE_BATCH[name]
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    chosen = {key: value for key, value in vars(method).items() if key not in ("record", "replay")}
    model, replayed = races.network(), races.network()
    recorder = fw.method(name, **chosen, record=file)
    history = trainer([model], recorder, optimizer=make, runtime="processes").fit(races.batches(30), 2)
    assert history.batches == 60
    done = sum(layer.finished for epoch in history.epochs for layer in epoch.layers.values())
    assert done == (60 if name == "lpp-sgd" else 120)
    assert {line.partition(": ")[0] for line in steps_of(file)} >= {"caller", next(iter(workers(method)))}
    trainer([replayed], fw.method(name, **chosen, replay=file), optimizer=make).fit(races.batches(30), 2)
    reader = races.Reader(
        races.network(), races.batches(30) * 2, lr=0.1, momentum=0.9, shared=False, groups=getattr(method, "groups", 1)
    )
    expected = reader.read(steps_of(file))
    assert races.close(replayed, expected)
    assert all(tensor.isfinite().all() for tensor in tensors(model))
    assert not same_bits(tensors(model), tensors(races.network()))
    if name != "hogwild":  # with one worker in each group, there is no race
        assert races.close(model, expected)
    assert nobody_left()


def workers(method) -> list[str]:
    return ["worker 0"] if method.name == "hogwild" else ["worker 0 of group 0"]


class Breaks(nn.Module):
    """Raises, or ends its process, at its seventh forward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        if self.calls >= 7 and self.training:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("I am broken")
        return x


def test_an_error_in_another_process_is_named_and_all_end():
    model = nn.Sequential(net(), Breaks("raises"))
    before = tensors(model)
    with pytest.raises(fw.StageError, match=r"worker \d.* failed in the forward of batch \d+: ValueError: I am broken"):
        trainer([model], "hogwild", runtime="processes").fit(batches(30))
    assert same_bits(before, tensors(model)), "the weights are those from before the fit"
    assert nobody_left()


def test_a_killed_process_is_named_and_all_end():
    model = nn.Sequential(net(), Breaks("killed"))
    with pytest.raises(fw.LostError, match=r"worker \d .*was ended by signal 9"):
        trainer([model], "hogwild", runtime="processes").fit(batches(30))
    assert nobody_left()


# ---- errors and interruptions ----


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no way back")


class Stuck(nn.Module):
    def forward(self, x):
        return Raises.apply(x)


class Refuses(torch.optim.SGD):
    """Refuses to update the last layer."""

    def step(self, closure=None):
        if any(p.grad is not None and p.shape == (3, 12) for group in self.param_groups for p in group["params"]):
            raise ValueError("not this one")
        return super().step(closure)


@pytest.mark.parametrize("runtime", ["simulate", "threads"])
@pytest.mark.parametrize("method", ["async-lu", "async-bu", "hogwild"])
def test_an_error_names_the_worker_and_ends_all(method: str, runtime: str):
    run = partial(trainer, method=method, runtime=runtime)
    first = "worker" if method == "hogwild" else "forward worker"
    second = "worker" if method == "hogwild" else "backward worker"
    number = (
        r"\d+" if method == "hogwild" else "6"
    )  # two workers increment one counter without a lock, and may lose some increments
    place = rf"{first} \d failed in the forward of batch {number}: ValueError: I am broken"
    with pytest.raises(fw.StageError, match=place):
        run([nn.Sequential(Breaks("raises"), net())]).fit(batches(30))
    assert nobody_left()
    with pytest.raises(fw.StageError, match=rf"{second} \d failed in the backward of batch \d: ValueError: no way"):
        run([nn.Sequential(net()[:4], Stuck(), nn.Linear(12, 3))]).fit(batches(9))
    assert nobody_left()
    place = rf"{second} \d, layer '5', failed in the update of batch \d: ValueError: not this one"
    with pytest.raises(fw.StageError, match=place):
        run([net()], optimizer=partial(Refuses, lr=0.1)).fit(batches(9))
    assert nobody_left()


@pytest.mark.parametrize("runtime", ["simulate", "threads"])
def test_an_error_on_one_device_ends_all(runtime: str):
    place = r"backward worker 0 of device \d, layer '5', failed in the update of batch \d: ValueError: not this one"
    method = fw.AsyncLU(devices=3, backward_workers=1)
    with pytest.raises(fw.StageError, match=place):
        trainer([net()], method, optimizer=partial(Refuses, lr=0.1), runtime=runtime).fit(batches(9))
    assert nobody_left()


@pytest.mark.parametrize("runtime", ["simulate", "threads"])
def test_a_loss_that_is_not_finite_is_refused(runtime: str):
    data = batches(9)
    data[4][0].fill_(float("nan"))
    with pytest.raises(fw.StageError, match=r"the forward of batch 4: FloatingPointError: the loss is nan"):
        trainer([net()], "async-lu", runtime=runtime).fit(data)


class Interrupts:
    """A loader that raises SIGINT, as Ctrl-C does, once or twice."""

    def __init__(self, times: int) -> None:
        self._times = times

    def __iter__(self):
        for i, batch in enumerate(batches(40)):
            if i == 10:
                for _ in range(self._times):
                    signal.raise_signal(signal.SIGINT)
            yield batch


@pytest.mark.parametrize(
    ("method", "runtime"),
    [("async-lu", "threads"), ("async-bu", "simulate"), ("hogwild", "threads"), ("hogwild", "processes")],
)
def test_ctrl_c_finishes_the_batches_in_flight(method: str, runtime: str):
    model = net()
    history = trainer([model], method, runtime=runtime).fit(Interrupts(1), 3)
    assert history.interrupted
    (epoch,) = history.epochs
    assert not epoch.complete
    assert 9 <= history.batches <= 11
    assert {layer.finished for layer in epoch.layers.values()} == {history.batches}
    assert all(tensor.isfinite().all() for tensor in tensors(model))
    assert nobody_left()


@pytest.mark.parametrize(("method", "runtime"), [("async-lu", "threads"), ("hogwild", "processes")])
def test_a_second_ctrl_c_stops_at_once(method: str, runtime: str):
    with pytest.raises(KeyboardInterrupt):
        trainer([net()], method, runtime=runtime).fit(Interrupts(2), 3)
    deadline = time.monotonic() + 60
    while not nobody_left() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert nobody_left()


def test_a_callback_stops_at_the_end_of_an_epoch():
    model, data = net(), batches(8)
    made = trainer([model], "async-lu", runtime="threads")
    seen: list[list[torch.Tensor]] = []

    def stop(end: fw.EpochEnd) -> bool:
        seen.append(tensors(*end.stages))
        return len(seen) == 2

    history = made.fit(data, 5, callbacks=[stop])
    assert history.stopped
    assert history.batches == 16
    assert same_bits(seen[-1], tensors(model))


@pytest.mark.parametrize("method", [fw.AsyncLU(backward_workers=1, queue=0), fw.AsyncLU(devices=2)], ids=str)
def test_save_and_resume_between_two_fits(method: fw.Method, tmp_path: Path):
    data = batches(8)
    through, first, second = net(), net(), net(5)
    whole = trainer([through], method, optimizer=OPTIMIZERS["adam"])
    whole.fit(data)
    whole.fit(data)
    half = trainer([first], method, optimizer=OPTIMIZERS["adam"])
    half.fit(data)
    half.save(tmp_path / "half")
    assert half.plan is None
    assert find(tmp_path / "half").manifest.plan == "async-lu"
    rest = trainer([second], method, make=partial(fw.Trainer.resume, tmp_path / "half"), optimizer=OPTIMIZERS["adam"])
    rest.fit(data)
    assert same_bits(tensors(through), tensors(second))


def test_a_race_does_not_begin_in_the_middle_of_a_fit(tmp_path: Path):
    interrupted = trainer([net()], "bp").fit(Interrupts(1), 3, save_to=tmp_path / "run")
    assert interrupted.interrupted
    with pytest.raises(ValueError, match=r"resume from .* with async-lu: .* in the middle of a fit"):
        trainer([net()], "async-lu", make=partial(fw.Trainer.resume, tmp_path / "run"))


# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"method": "async-lu", "runtime": "processes"},
            r"runtime='processes' with async-lu: it runs on 'simulate' or 'th",
        ),
        ({"method": "hogwild", "runtime": "torchrun"}, r"runtime='torchrun' with hogwild: it runs on"),
        ({"method": "async-lu", "clip": 1.0}, r"clip with async-lu: .*leave it out"),
        ({"method": "hogwild", "replicas": 2}, r"replicas with hogwild"),
        ({"method": "hogwild", "slack": 2}, r"slack with hogwild"),
        ({"method": "hogwild", "slow": {0: (0.5, 0.5)}}, r"slow with hogwild"),
        ({"method": "async-bu", "accumulate": 2}, r"accumulate with async-bu"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        trainer([net()], **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fw.AsyncLU(backward_workers=0), "backward_workers=0: give 1 or more"),
        (lambda: fw.AsyncBU(queue=-1), "queue=-1: give 0 or more"),
        (lambda: fw.AsyncLU(devices=0), "devices=0: give 1 or more"),
        (lambda: fw.LAPSGD(average_every=0), "average_every=0: give 1 or more"),
        (lambda: fw.LPPSGD(order="backward"), "unknown order 'backward'"),
        (lambda: fw.method("hogwild", queue=3), "unknown option of method 'hogwild': 'queue'"),
        (lambda: fw.plan("async-lu", k=2), "async-lu has no plan"),
        (lambda: trainer([net()], fw.LPPSGD(partitions=9)).fit(batches(2)), "partitions=9: the network has 4 layers"),
        (lambda: trainer([net()], "async-lu").fit(batches(2), save_to="x"), "save_to with async-lu"),
    ],
)
def test_bad_arguments_are_named(make, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        make()


def test_recordings_are_replayed_under_simulate_only(tmp_path: Path):
    file = tmp_path / "steps"
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        fw.AsyncLU(replay=file)
    with pytest.raises(FileNotFoundError, match=r"record='.*steps/more': there is no folder"):
        fw.AsyncLU(record=file / "more")
    trainer([net()], fw.AsyncLU(record=file)).fit(batches(3))
    with pytest.raises(ValueError, match="replay with runtime='threads'"):
        trainer([net()], fw.AsyncLU(replay=file), runtime="threads")
