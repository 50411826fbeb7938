"""Traces of a GPU: its stages measure from one moment, and have the order of their plan."""

from __future__ import annotations

from itertools import count, pairwise
from types import SimpleNamespace

import torch

import freewheel as fw
from freewheel.plan import Plan
from freewheel.runtime._repeat import Script
from freewheel.trace import StreamTracer, TimeBase, _stream
from freewheel.trace._recording import Row
from report_runs import GPU
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer
from spread import needs_cuda, spread
from stand_in import stand_in as stand_in
from test_trace import check_times, done, planned, traced


@spread(row=[row for row in ROWS if row.name in ("pipedream", "fdg", "fr", "asyncfgd", "bp")], optimizer=OPTIMIZERS)
def test_batches_that_a_graph_repeats_are_traced_too(row, optimizer, monkeypatch, stand_in):
    repeat, repeated = Script.repeat, []
    monkeypatch.setattr(Script, "repeat", lambda script, batch: repeated.append(batch) or repeat(script, batch))
    stages = network(3)
    made = trainer(stages, row.make(3), runtime="graph", optimizer=OPTIMIZERS[optimizer])
    given = [*batches(40, small=9), *batches(1, 2, size=6)]
    trace = made.fit(given, epochs=2, trace=True).trace
    assert len(repeated) >= 10
    plan = Plan.build(made.plan.schedule, 82)
    for stage in range(3):
        assert done(trace, stage) == planned(plan, stage)
    again = network(3)
    trainer(again, row.make(3), optimizer=OPTIMIZERS[optimizer]).fit(given, epochs=2)
    assert same_bits(tensors(*stages), tensors(*again))


def test_the_stages_of_a_graph_measure_from_one_moment(monkeypatch, stand_in):
    """The host learns of an event later than it happens, and each time by another while."""
    late = count(1000.0)  # a second later at each look
    monkeypatch.setattr(_stream, "time", SimpleNamespace(perf_counter=lambda: next(late)))
    made, trace, _ = traced(ROWS[5], 3, "graph")
    check_times(trace, made.plan.schedule)


def check_order(trace, plan):
    """A trace has the order of its plan, and no stage begins before what it needs is computed."""
    for stage in range(trace.stages):
        assert done(trace, stage) == planned(plan, stage)
    times = {(e.name, e.stage, e.batch): e for e in trace.events}
    for (name, stage, batch), each in times.items():
        before = times.get((name, stage + {"F": -1, "B": 1}.get(name, trace.stages), batch))
        assert before is None or before.end <= each.begin, (name, stage, batch)


def test_a_recorded_run_on_a_gpu_has_the_order_of_its_plan():
    check_order(fw.Trace.load(GPU / "trace.json.gz"), fw.plan("pipedream", k=4, batches=76))


@needs_cuda
def test_a_run_on_a_gpu_has_the_order_of_its_plan():
    made = trainer([stage.cuda() for stage in network(3)], "pipedream", runtime="graph")
    trace = made.fit(batches(40), trace=True).trace
    check_order(trace, Plan.build(made.plan.schedule, 40))
    check_times(trace, made.plan.schedule)


def test_events_of_a_gpu_are_measured_from_near_ones():
    """A time between two events is a 32-bit float: after an hour it would be exact to a quarter of a millisecond."""

    class Event:
        def __init__(self, moment):
            self.moment = moment

        def elapsed_time(self, other):
            return torch.tensor(1e3 * (other.moment - self.moment), dtype=torch.float32).item()

        def synchronize(self):
            pass

    base = TimeBase(Event(0.0), 50.0)
    for stage in range(2):
        tracer = StreamTracer(stage, 0, range(10_000), base)
        moments = [0.6123457 * n for n in range(6001)]
        tracer._rows = [Row("F", n, 0, n, Event(a), Event(b)) for n, (a, b) in enumerate(pairwise(moments))]
        [recording] = tracer.take()
        wanted = torch.tensor([[50 + a, 50 + b] for a, b in pairwise(moments)], dtype=torch.float64)
        assert (recording.rows[:, 4:] - wanted).abs().max() < 5e-5
    assert base.event not in tracer._spare, "the other stages measure from it"
