"""The promise: asynchronous, and still the same weights bit for bit on every runtime."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from rows import LOCAL, OPTIMIZERS, ROWS, batches, network, often, same_bits, tensors, trainer
from spread import rarely, spread


class Slow(nn.Module):
    """Takes a random while, and changes nothing."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def forward(self, x):
        if self.random.random() < 0.3:
            time.sleep(0.002)
        return x


def run(row, k, runtime, optimizer="sgd", slow=None, slack=0, count=16):
    stages = network(k)
    if slow is not None:
        stages[slow] = nn.Sequential(Slow(slow), stages[slow])
    made = trainer(stages, row.make(k), optimizer=OPTIMIZERS[optimizer], runtime=runtime, slack=slack)
    history = made.fit(batches(count), epochs=2, validate=batches(3, seed=9))
    return tensors(*stages), history


@spread(row=ROWS, k=[2, 3, 4, rarely(1)], optimizer=OPTIMIZERS)
def test_threads_equal_simulate_bit_for_bit(row, k, optimizer):
    expected, before = run(row, k, "simulate", optimizer)
    found, after = run(row, k, "threads", optimizer)
    assert same_bits(expected, found)
    assert before.losses == after.losses
    assert before.metrics == after.metrics
    assert [e.staleness for e in before.epochs] == [e.staleness for e in after.epochs]


@spread(row=often(ROWS), slow=[0, 1, 2], slack=[0, 3, 1])
def test_a_randomly_slow_stage_and_longer_queues_change_nothing(row, slow, slack):
    expected, _ = run(row, 3, "simulate", count=8)
    found, _ = run(row, 3, "threads", slow=slow, slack=slack, count=8)
    assert same_bits(expected, found)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_training_does_change_the_weights_and_seeds_matter(row):
    after = []
    for seed in (3, 4):
        stages = network(3)
        trainer(stages, row.make(3), seed=seed).fit(batches(4))
        after.append(tensors(*stages))
    assert not same_bits(after[0], tensors(*network(3)))
    assert not same_bits(*after)  # dropout draws from the trainer's seed


@spread(row=often(ROWS), runtime=LOCAL)
def test_a_cut_is_the_network_after_exactly_so_many_batches_and_watching_changes_nothing(row, runtime):
    """Each cut has the parameters of a shorter run, which has forwarded nothing beyond its last batch."""
    cuts, watched = [], network(3)
    options = {"runtime": runtime, "optimizer": OPTIMIZERS["adam"]}
    made = trainer(watched, row.make(3), **options)
    see = [lambda end: cuts.append(parameters(end.stages))]
    made.fit(batches(5), epochs=3, validate=batches(3, seed=9), callbacks=see)
    for epochs, cut in enumerate(cuts, start=1):
        shorter = network(3)
        trainer(shorter, row.make(3), **options).fit(batches(5), epochs=epochs)
        assert same_bits(cut, parameters(shorter)), epochs
    assert len(cuts) == 3
    assert same_bits(tensors(*watched), tensors(*shorter))
    steps = {int(s["step"]) for o in made.optimizers if o for s in o.state.values()}
    assert steps == {15 // 3 if row.name in ("accumulated", "late-forward") else 15}, "one update for each batch"


def parameters(stages):
    return [p.detach().clone() for stage in stages for p in stage.parameters()]


@pytest.mark.parametrize("runtime", LOCAL)
def test_a_callback_stops_at_its_cut(runtime):
    states = []
    for _ in range(2):
        stages = network(3)
        made = trainer(stages, fw.FDG(), runtime=runtime, optimizer=OPTIMIZERS["adam"])
        history = made.fit(batches(8), epochs=5, callbacks=[lambda end: end.record.epoch == 1])
        assert history.stopped
        assert history.batches == 16
        assert len(history.epochs) == 2
        made.fit(batches(4), epochs=1)  # goes on from there, optimizer state included
        states.append(tensors(*stages))
    assert same_bits(*states)


@pytest.mark.parametrize("runtime", LOCAL)
def test_a_failing_stage_is_named_and_nothing_is_left_running(runtime):
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, x):
            self.count += 1
            if self.count == 6:
                raise KeyError("boom")
            return x

    stages = network(3)
    stages[1] = nn.Sequential(stages[1], Fails())
    made = trainer(stages, "pipedream", runtime=runtime)
    with pytest.raises(fw.StageError, match="stage 1 failed in the forward of batch 5: KeyError: 'boom'") as caught:
        made.fit(batches())
    assert (caught.value.stage, caught.value.batch) == (1, 5)
    assert isinstance(caught.value.__cause__, KeyError)
    assert not [t for t in threading.enumerate() if t.name.startswith("freewheel")]


def test_stopping_at_a_cut_waits_for_a_stage_that_is_busy():
    """A stage that is still computing when training stops must not touch the weights that are put back."""

    class Slow(nn.Module):
        count = 0

        def forward(self, x):
            self.count += 1
            if self.count == 8:  # batch 7, which the first stage has sent before its update 6 completes the cut
                time.sleep(2.0)  # longer than an error would be waited with
            return x

    def stop(end):
        kept.extend(tensors(*end.stages))
        return True

    kept: list[torch.Tensor] = []
    stages = [nn.Linear(6, 6), nn.Sequential(Slow(), nn.Linear(6, 3))]
    history = trainer(stages, "fdg", runtime="threads").fit(batches(7), epochs=3, callbacks=[stop])
    assert not [t for t in threading.enumerate() if t.name.startswith("freewheel")]
    assert history.batches == 7
    assert same_bits(kept, tensors(*stages))


def test_an_error_does_not_wait_for_a_stage_that_is_stuck():
    """One stage fails while another is deep in a long operation: the caller hears of it all the same."""
    entered, released = threading.Event(), threading.Event()

    class Stuck(nn.Module):
        count = 0

        def forward(self, x):
            self.count += 1
            if self.count == 2:
                entered.set()
                assert released.wait(60)
            return x

    class Fails(nn.Module):
        def forward(self, x):
            assert entered.wait(60)
            raise OSError("gone")

    stages = [nn.Sequential(nn.Linear(6, 6), Stuck()), nn.Sequential(Fails(), nn.Linear(6, 3))]
    with pytest.raises(fw.StageError, match="stage 1 failed in the forward of batch 0: OSError: gone"):
        trainer(stages, "fdg", runtime="threads").fit(batches())
    left = [t for t in threading.enumerate() if t.name == "freewheel-stage-0"]
    assert left  # it is still stuck, and so fit did not wait for it
    released.set()
    for thread in left:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("runtime", LOCAL)
@pytest.mark.parametrize("when", ["loader", "callback", "validate"])
def test_an_error_around_the_stages_stops_them_too(runtime, when):
    def broken():
        yield from batches(6)
        raise OSError("disk gone")

    class Loader:
        def __iter__(self):
            return broken()

    def callback(end):
        raise OSError("disk gone")

    made = trainer(network(3), "fdg", runtime=runtime)
    arguments = {"loader": (Loader(), {}), "callback": (batches(6), {"callbacks": [callback]})}
    loader, options = arguments.get(when, (batches(6), {"validate": Loader()}))
    with pytest.raises(OSError, match="disk gone"):
        made.fit(loader, epochs=2, **options)
    assert not [t for t in threading.enumerate() if t.name.startswith("freewheel")]


@pytest.mark.parametrize("runtime", LOCAL)
def test_ctrl_c_drains_and_leaves_a_consistent_network(runtime, capsys):
    class Loader:
        def __iter__(self):
            for n, batch in enumerate(batches(40)):
                if n == 12:
                    signal.raise_signal(signal.SIGINT)
                yield batch

    before = signal.getsignal(signal.SIGINT)
    stages = network(3)
    made = trainer(stages, "fdg", runtime=runtime, optimizer=OPTIMIZERS["adam"])
    history = made.fit(Loader(), epochs=2)
    assert history.interrupted
    assert not history.epochs[-1].complete
    assert "interrupted" in capsys.readouterr().err
    steps = {int(s["step"]) for o in made.optimizers if o for s in o.state.values()}
    assert steps == {history.batches}
    # Exactly the weights of an undisturbed run over the batches that went in.
    other = network(3)
    trainer(other, "fdg", optimizer=OPTIMIZERS["adam"]).fit(batches(40)[: history.batches])
    assert same_bits(tensors(*stages), tensors(*other))
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_twice_stops_at_once():
    class Loader:
        def __iter__(self):
            for n, batch in enumerate(batches(40)):
                if n == 12:
                    signal.raise_signal(signal.SIGINT)
                    signal.raise_signal(signal.SIGINT)
                yield batch

    with pytest.raises(KeyboardInterrupt):
        trainer(network(2), "fdg", runtime="threads").fit(Loader())
    assert not [t for t in threading.enumerate() if t.name.startswith("freewheel")]


@pytest.mark.parametrize("runtime", LOCAL)
def test_a_loader_without_a_length_works(runtime):
    class Stream:
        def __iter__(self):
            return iter(batches())

    expected, found = network(3), network(3)
    trainer(expected, "dsp").fit(batches(), epochs=2)
    trainer(found, "dsp", runtime=runtime).fit(Stream(), epochs=2)
    assert same_bits(tensors(*expected), tensors(*found))


class Pair(nn.Module):
    """Takes a dict or a tuple, gives a dict with a passenger that no gradient goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        a, ids = (x["a"], x["ids"]) if isinstance(x, dict) else x
        h = self.linear(a)
        return {"h": h, "skip": [h * 2], "ids": ids}


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        return self.out(torch.tanh(x["h"] + x["skip"][0] + self.table(x["ids"])))


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_inputs_may_be_trees_and_equal_plain_training(kind):
    g = torch.Generator().manual_seed(0)
    loader = []
    for n in (8, 8, 5):
        a, ids = torch.randn(n, 4, generator=g), torch.randint(7, (n,), generator=g)
        loader.append(((a, ids) if kind == "tuple" else {"a": a, "ids": ids}, torch.randint(2, (n,), generator=g)))
    torch.manual_seed(0)
    plain = nn.Sequential(Pair(), Join())
    torch.manual_seed(0)
    stages = [Pair(), Join()]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    for runtime in LOCAL:
        torch.manual_seed(0)
        stages = [Pair(), Join()]
        trainer(stages, "bp", runtime=runtime, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).fit(loader)
        assert same_bits(tensors(plain), tensors(*stages))
        trainer([Pair(), Join()], "fr", runtime=runtime).fit(loader)


def test_micro_batches_of_a_small_last_batch():
    stages = [nn.Linear(6, 5), nn.Linear(5, 3)]
    loader = [*batches(3), (torch.randn(2, 6), torch.tensor([0, 1]))]
    for runtime in LOCAL:
        history = trainer(stages, fw.GPipe(micro=4), runtime=runtime).fit(loader)
        assert history.epochs[0].samples == 29


def test_global_generators_are_left_alone():
    made = trainer(network(2), "fdg", runtime="threads")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    made.fit(batches(5))
    assert torch.equal(torch.rand(3), expected)


def test_the_seed_fixes_shuffling_by_the_global_generator():
    data = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randint(3, (40,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    results = []
    for _ in range(2):
        stages = network(2)
        torch.manual_seed(random.randrange(1000))
        trainer(stages, "pipedream", runtime="threads").fit(loader, epochs=2)
        results.append(tensors(*stages))
    assert same_bits(*results)
