"""Stragglers: slow at random, the same batches in every run, and no influence on the result."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

import freewheel as fw
from freewheel import _naps
from freewheel.runtime import _straggler
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._straggler import Straggler, is_slow
from rows import LOCAL, ROWS, batches, network, same_bits, tensors, trainer

SLOW = {0: (1 / 3, 1.5), 1: (0.5, 0.5), 2: (1, 1)}
CHOSEN = [row for row in ROWS if row.name in ("dsp", "fdg", "pipedream", "fr", "gpipe", "asyncfgd")]


def run(row, runtime, **options):
    stages = network(3)
    history = trainer(stages, row.make(3), runtime=runtime, **options).fit(batches(12), epochs=2)
    return tensors(*stages), history.losses


@pytest.mark.parametrize("row", CHOSEN, ids=str)
def test_stragglers_change_no_bit_on_any_runtime(row):
    expected, losses = run(row, "simulate")
    for runtime in LOCAL:
        found, after = run(row, runtime, slow=SLOW)
        assert same_bits(expected, found), runtime
        assert losses == after, runtime


def test_a_third_of_the_batches_is_slow_and_keys_differ():
    count = 3000
    drawn = {
        key: [is_slow(*key, batch, 1 / 3) for batch in range(count)] for key in ((0, 0), (0, 1), (0, 2), (1, 0), (7, 1))
    }
    spread = math.sqrt(1 / 3 * 2 / 3 / count)
    for one, here in drawn.items():
        assert abs(sum(here) / count - 1 / 3) < 5 * spread, one
        for other, there in drawn.items():
            both = sum(a and b for a, b in zip(here, there)) / count
            if one != other:
                assert abs(both - 1 / 9) < 5 * math.sqrt(1 / 9 * 8 / 9 / count), (one, other)


def naps_of(monkeypatch, runtime, method="dsp", fits=(12,), **options):
    """The actions that were slowed, as (stage, op, batch), in each fit."""
    found, now = [], []
    execute = Interpreter.execute

    def watched(self, action):
        straggler = self._lanes[-1].straggler
        straggler and setattr(straggler._naps, "take", lambda s: now.append((self.stage.index, action, s)))
        execute(self, action)

    monkeypatch.setattr(Interpreter, "execute", watched)
    made = trainer(network(3), method, runtime=runtime, **options)
    for count in fits:
        now.clear()
        made.fit(batches(count, small=9))
        found.append(sorted((k, a.op.value, a.batch) for k, a, _ in now))
        assert all(seconds > 0 for _, _, seconds in now)
    monkeypatch.setattr(Interpreter, "execute", execute)
    return found


@pytest.mark.parametrize("runtime", LOCAL)
@pytest.mark.parametrize("method", ["dsp", "pipedream", "gpipe", "asyncfgd"])
def test_every_compute_action_of_a_slow_batch_is_slowed(monkeypatch, method, runtime):
    (found,) = naps_of(monkeypatch, runtime, method, slow={1: (1, 0.5)})
    plan = fw.plan(method, k=3, batches=12)
    expected = [(1, a.op.value, a.batch) for a in plan.streams[1] if a.op.is_compute]
    assert found == sorted(expected)


def test_the_same_batches_are_slow_everywhere_and_later_fits_go_on(monkeypatch):
    split = naps_of(monkeypatch, "simulate", fits=(5, 7), slow=SLOW)
    whole = [naps_of(monkeypatch, runtime, fits=(12,), slow=SLOW)[0] for runtime in LOCAL]
    assert whole[0] == whole[1]
    assert sorted(split[0] + [(k, op, batch + 5) for k, op, batch in split[1]]) == whole[0]
    for k, (probability, _) in SLOW.items():
        slow = {batch for batch in range(12) if is_slow(3, k, batch, probability)}  # 3: the seed of the tests' trainer
        assert {batch for stage, _, batch in whole[0] if stage == k} == slow
        assert {op for stage, op, _ in whole[0] if stage == k} == ({"F", "R", "B", "U"} if k < 2 else {"F", "B", "U"})


def test_nothing_is_slowed_unless_asked(monkeypatch):
    assert naps_of(monkeypatch, "simulate") == [[]]
    assert naps_of(monkeypatch, "simulate", slow={0: (0, 2.0)}) == [[]]


class Clock:
    """A time that passes only in sleep, and then a little more than was asked for."""

    def __init__(self, late: float) -> None:
        self.now, self.late = 100.0, late

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + self.late


@pytest.mark.parametrize("late", [0.0, 0.25, 2.5])
def test_what_is_overslept_is_left_out_of_the_next_naps(monkeypatch, late):
    clock = Clock(late)
    monkeypatch.setattr(_naps, "time", clock)
    naps = _naps.Naps()
    for n in range(1, 41):
        naps.take(1.0)
        assert n - 1e-9 <= clock.now - 100.0 <= n + late + 1e-9


@pytest.mark.parametrize("factor", [0.2, 1.5])
def test_a_slow_action_takes_so_much_longer(monkeypatch, factor):
    clock = Clock(0.0)
    monkeypatch.setattr(_naps, "time", clock)
    monkeypatch.setattr(_straggler, "time", clock)
    config = SimpleNamespace(seed=0, slow={2: (1.0, factor)})
    stage = SimpleNamespace(index=2, first_batch=0, config=config, device=SimpleNamespace(type="cpu"))
    straggler = Straggler.of(stage)  # pyright: ignore[reportArgumentType]
    assert straggler is not None
    started = clock.now
    clock.now += 4.0
    straggler.hold_up(7, started)
    assert clock.now - started == pytest.approx(4.0 * (1 + factor))
