"""Forwards on a second thread beside recomputations and backwards: the same bits, or in turn, or refused."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import freewheel as fw
from checkpoints import goes_on
from freewheel.checkpoint import _writer
from freewheel.plan import Plan
from freewheel.trace import TraceEvent
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer
from spread import exhaustive, rarely, spread

RECOMPUTE = [row for row in ROWS if row.name in ("dsp", "dsp-3", "recompute-late")]
IN_TURN = "forwards and recomputes in turn"
WAIT = 30  # seconds for what hangs


def trained(stages: list[nn.Module], method: Any = "dsp", count: int = 12, **options: Any) -> list[torch.Tensor]:
    trainer(stages, method, **options).fit(batches(count), epochs=2)
    return tensors(*stages)


@spread(row=RECOMPUTE, k=[2, 3, 4], optimizer=OPTIMIZERS, runtime=["threads", "simulate", rarely("processes")])
def test_it_changes_no_weight(row, k, optimizer, runtime):
    """Dropout, running statistics of BatchNorm and a smaller batch included."""
    options = {"method": row.make(k), "optimizer": OPTIMIZERS[optimizer], "clip": 1.0}
    wanted = trained(network(k), **options)
    assert same_bits(wanted, trained(network(k), **options, runtime=runtime, overlap=True))


def test_it_changes_no_weight_in_processes_and_with_replicas():
    wanted = trained(network(3))
    assert same_bits(wanted, trained(network(3), runtime="processes", overlap=True))
    wanted = trained(network(3), replicas=2)
    assert same_bits(wanted, trained(network(3), replicas=2, runtime="threads", overlap=True))


class Meets(nn.Module):
    """A layer whose fifth forward and third recomputation wait for each other, before and after they compute."""

    calls: list[tuple[bool, int]] = []  # noqa: RUF012  # of all: an attribute of the module would count as its setting
    barrier: threading.Barrier | None = None

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 12), nn.BatchNorm1d(12)

    def forward(self, x):
        again = torch.is_grad_enabled()
        self.calls.append((again, threading.get_ident()))
        meets = self.barrier is not None and [each for each, _ in self.calls].count(again) == (3 if again else 5)
        if meets:
            self.barrier.wait(WAIT)
        out = self.norm(self.linear(x))
        if meets:
            self.barrier.wait(WAIT)
        return out


def test_a_forward_and_a_recomputation_run_at_the_same_time(monkeypatch):
    """With a delay of two batches, the fifth forward is followed by the third recomputation."""

    def stages():
        torch.manual_seed(0)
        Meets.calls.clear()
        return [Meets(), nn.Linear(12, 3)]

    wanted = trained(stages())
    monkeypatch.setattr(Meets, "barrier", threading.Barrier(2))
    assert same_bits(wanted, trained(stages(), runtime="threads", overlap=True))
    forwards, others = ([thread for again, thread in Meets.calls if again is kind] for kind in (False, True))
    assert len(forwards) == len(others) == 24
    assert len({forwards[0], *others}) == 1  # the first forward is alone, on the thread of the stage
    assert len(set(forwards[1:])) == 1
    assert forwards[1] != forwards[0]


class Slow(nn.Linear):
    """A layer whose forwards take longer than everything else."""

    def forward(self, x):
        if not torch.is_grad_enabled():
            threading.Event().wait(0.02)  # nobody sets it
        return super().forward(x)


def test_an_update_waits_for_the_forward_before_it():
    def stages():
        torch.manual_seed(0)
        return [Slow(6, 12), nn.Linear(12, 3)]

    assert same_bits(trained(stages()), trained(stages(), runtime="threads", overlap=True))


@pytest.mark.parametrize("runtimes", [("threads", "simulate"), ("simulate", "threads")])
def test_what_is_in_flight_is_saved_and_resumed(runtimes, tmp_path, monkeypatch):
    monkeypatch.setattr(_writer, "RETAINED", 99)
    goes_on(tmp_path, fw.DSP, partial(network, 3), runtimes=runtimes, overlap=True)


@exhaustive
def test_compiled_stages_overlap():
    wanted = trained(network(2), compile=True)
    assert same_bits(wanted, trained(network(2), compile=True, runtime="threads", overlap=True))


# ---- modules whose forwards cannot be beside each other ----


class Counts(nn.Module):
    """Depends on how often it was called; from which call on it counts is given."""

    calls = 0

    def __init__(self, after: int, what: str) -> None:
        super().__init__()
        self.linear, self.after, self.what = nn.Linear(6, 12), after, what
        if what == "a number":
            self.count = 0.0
        else:
            self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        Counts.calls += 1
        if Counts.calls > self.after:
            if self.what == "a weight":
                with torch.no_grad():
                    self.linear.bias.mul_(1.01)
            elif self.what == "a buffer":
                self.count += 1
            else:
                self.count = self.count + 1
        return self.linear(x) * (1 + 0.1 * self.count)


def hooked() -> nn.Module:
    layer = nn.Linear(6, 12)
    layer.register_forward_hook(lambda module, args, out: out * 2)
    return layer


ALONE = {
    "spectral norm": (lambda: spectral_norm(nn.Linear(6, 12)), "changes the buffer 'parametrizations.weight.0._u'"),
    "a buffer": (partial(Counts, 0, "a buffer"), "changes the buffer 'count'"),
    "a new buffer": (partial(Counts, 0, "a new buffer"), "changes the buffer 'count'"),
    "a number": (partial(Counts, 0, "a number"), "changes count"),
    "a weight": (partial(Counts, 0, "a weight"), "changes the weight 'linear.bias'"),
    "a hook": (hooked, "module 'Linear' has hooks"),
    "compiled": (lambda: torch.compile(nn.Linear(6, 12), backend="eager"), "is compiled by torch.compile"),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_depends_on_earlier_forwards_runs_in_turn_and_says_so(name):
    make, reason = ALONE[name]

    def stages():
        torch.manual_seed(0)
        Counts.calls = 0
        return [make(), nn.Linear(12, 3)]

    wanted = trained(stages())
    with pytest.warns(UserWarning, match=IN_TURN) as found:
        assert same_bits(wanted, trained(stages(), runtime="threads", overlap=True))
    assert reason in str(found[0].message)


@pytest.mark.parametrize("what", ["a buffer", "a number", "a weight"])
def test_what_begins_to_depend_on_them_is_refused(what):
    Counts.calls = 0
    line = r"the forward of stages\[0\] changes .*(count|bias).*for the first time in.*overlap"
    with pytest.raises(ValueError, match=line):
        trained([Counts(7, what), nn.Linear(12, 3)], runtime="threads", overlap=True)


# ---- errors ----


class Breaks(nn.Linear):
    """A layer whose eighth forward, or recomputation, fails."""

    calls = 0

    def __init__(self, *, again: bool) -> None:
        super().__init__(6, 12)
        self.again = again

    def forward(self, x):
        if torch.is_grad_enabled() == self.again:
            Breaks.calls += 1
            if Breaks.calls % 8 == 0:
                raise RuntimeError("broken")
        return super().forward(x)


@spread(again=[False, True], runtime=["threads", rarely("processes")])
def test_an_error_names_its_action(again, runtime):
    Breaks.calls = 0
    stages = [Breaks(again=again), nn.Linear(12, 3)]
    action = "recomputation" if again else "forward"
    with pytest.raises(fw.StageError, match=f"stage 0.* failed in the {action} of batch 7: .*broken"):
        trained(stages, runtime=runtime, overlap=True)
    if runtime == "threads":
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("freewheel")]
        Breaks.calls = 0
        trained(stages, runtime="threads", overlap=True, count=3)  # they can be trained again


class OwnChain(fw.Chain):
    """A credit of somebody else's."""


REFUSED = {
    "pipedream": ("pipedream", "takes a method that recomputes"),
    "fr": ("fr", "takes a method that recomputes"),
    "bp": ("bp", "takes a method that recomputes"),
    "backward first": (fw.Pipeline(delays=(2, 0), weights="recompute", order="backward"), "takes a method that"),
    "aligned": (fw.Pipeline(delays=(2, 0), weights="recompute", credit=fw.Aligned()), "credit='aligned'"),
    "own": (fw.Pipeline(delays=(2, 0), weights="recompute", credit=OwnChain()), "credit='chain'"),
    "asyncfgd": ("asyncfgd", "credit='forward'"),
    "dgl": ("dgl", "credit='local'"),
    "async-lu": ("async-lu", "with async-lu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_overlap_is_refused(name):
    method, reason = REFUSED[name]
    with pytest.raises(ValueError, match=f"overlap.*{reason}"):
        trainer(network(2), method, overlap=True)


def test_a_wrong_value_is_refused():
    with pytest.raises(TypeError, match=r"overlap='yes'.*give True or False"):
        trainer(network(2), "dsp", overlap="yes")


# ---- what is recorded ----


def test_a_trace_has_a_row_for_the_forwards(tmp_path):
    """Each of the two rows has the order of the plan, and does one thing at a time."""
    made = trainer(network(3), "dsp", runtime="threads", overlap=True)
    trace = made.fit(batches(9), trace=True).trace
    trace.save(tmp_path / "trace.json.gz")
    assert fw.Trace.load(tmp_path / "trace.json.gz").meta["overlaps"] == [0, 1]
    plan = Plan.build(made.plan.schedule, 9)
    beside = ("F", ">a", "a>")
    for stage in range(3):
        planned = [(a.op.value, a.batch) for a in plan.streams[stage]]
        done = [event for event in trace.events if event.stage == stage and event.name != "data"]
        for forwards in (True, False):
            row = [event for event in done if (event.name in beside) == forwards]
            assert [(e.name, e.batch) for e in row] == [each for each in planned if (each[0] in beside) == forwards]
            assert all(a.end <= b.begin + 1e-9 for a, b in pairwise(row))
    loaded = fw.Trace.load(tmp_path / "trace.json.gz")
    assert [e[:6] for e in loaded.events if e.stage == 1] == [e[:6] for e in trace.events if e.stage == 1]


def test_two_things_at_once_count_once():
    """Computing counts before waiting."""
    found = [("F", 0.0, 4.0), (">g", 1.0, 3.0), ("B", 3.0, 6.0), (">g", 6.0, 10.0)]
    events = [TraceEvent(0, 0, name, 0, 0, None, begin, end) for name, begin, end in found]
    [shares] = fw.Trace(events, {"ways": {"g": -1}, "rows": ["stage 0"], "overlaps": [0]}).shares()
    assert shares == {"compute": 0.6, "before": 0.0, "after": 0.4, "replicas": 0.0, "data": 0.0, "other": 0.0}


def test_gradients_under_delays_are_measured_as_without_it():
    found = []
    for options in ({}, {"runtime": "threads", "overlap": True}):
        made = trainer(network(3), "dsp", **options)
        made.fit(batches(6))
        found.append(fw.gradient_difference(made, batches(7, seed=5)))
    assert found[0] == found[1]
