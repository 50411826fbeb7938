"""Traces: every stage has done what its plan says, in that order; and what the events add up to."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

import freewheel as fw
from freewheel.plan import Plan
from freewheel.trace import Recording
from freewheel.trace._recording import Row
from rows import LOCAL, ROWS, batches, network, often, same_bits, tensors, trainer
from spread import exhaustive, rarely, spread

WAYS = {"a": 1, "g": -1}


def traced(row, k, runtime, trace=True, count=9, epochs=2, **options):
    stages = network(k)
    made = trainer(stages, row.make(k), runtime=runtime, **options)
    history = made.fit(batches(count), epochs=epochs, trace=trace)
    return made, history.trace, tensors(*stages)


def done(trace, stage, replica=0):
    """What a stage has done, in order, but for its waits for data."""
    return [
        (event.name, event.batch, event.micro, event.version)
        for event in trace.events
        if (event.stage, event.replica) == (stage, replica) and event.name != "data"
    ]


def planned(plan, stage):
    return [(a.op.value, a.batch, a.micro or 0, a.version) for a in plan.streams[stage]]


@spread(row=often(ROWS), k=[3, 2, rarely(1), rarely(4)], runtime=[*LOCAL, rarely("processes")])
def test_every_stage_has_done_what_the_plan_says_in_that_order(row, k, runtime):
    made, trace, _ = traced(row, k, runtime)
    plan = Plan.build(made.plan.schedule, 18)
    assert trace.stages == k
    assert trace.replicas == plan.schedule.replicas
    for stage in range(k):
        for replica in range(trace.replicas):
            assert done(trace, stage, replica) == planned(plan, stage)
    for stage, found in enumerate(trace.staleness()):
        updates = [a for a in plan.streams[stage] if a.op.value == "U"]
        gaps = [a.version - plan.versions(stage, a.batch).forward for a in updates] * trace.replicas
        assert found == {gap: gaps.count(gap) for gap in set(gaps)}


def test_processes_are_traced_by_one_clock():
    made, trace, _ = traced(ROWS[6], 3, "processes")
    plan = Plan.build(made.plan.schedule, 18)
    assert all(done(trace, stage) == planned(plan, stage) for stage in range(3))
    check_times(trace, made.plan.schedule)


def check_times(trace, schedule):
    for lane in {(event.stage, event.replica) for event in trace.events}:
        own = [event for event in trace.events if (event.stage, event.replica) == lane]
        assert all(event.begin <= event.end for event in own)
        assert all(a.end <= b.begin + 1e-9 for a, b in pairwise(own)), "a stage does one thing at a time"
    pairs = trace.messages()
    received = [event for event in trace.events if event.name in (">a", ">g")]
    assert {id(receipt) for _, receipt in pairs} >= {id(event) for event in received}
    assert all(send.begin <= receipt.end for send, receipt in pairs), "nothing is received before it is sent"


@spread(row=often(ROWS), runtime=LOCAL)
def test_a_stage_does_one_thing_at_a_time_and_receives_what_was_sent(row, runtime):
    made, trace, _ = traced(row, 3, runtime)
    check_times(trace, made.plan.schedule)


@spread(row=often(ROWS), runtime=[*LOCAL, rarely("processes")])
def test_tracing_changes_no_weight(row, runtime):
    _, trace, found = traced(row, 3, runtime)
    _, none, wanted = traced(row, 3, runtime, trace=False)
    assert same_bits(wanted, found)
    assert trace is not None
    assert none is None


@pytest.mark.parametrize("runtime", LOCAL)
def test_only_the_batches_that_were_asked_for_are_traced(runtime):
    _, whole, _ = traced(ROWS[5], 3, runtime)
    _, part, _ = traced(ROWS[5], 3, runtime, trace=range(4, 7))
    for stage in range(3):
        assert done(part, stage) == [each for each in done(whole, stage) if each[1] in (4, 5, 6)]


def test_a_wait_for_the_loader_is_one_for_data():
    """The loader gives a batch only when the stages have nothing left to do."""
    given = batches(6)
    idle = threading.Event()

    class Waits(list):
        def __iter__(self):
            for batch in given:
                idle.wait(0.02)  # nobody sets it
                yield batch

    stages = network(2)
    trace = trainer(stages, "pipedream", runtime="threads").fit(Waits(given), trace=True).trace
    waited = sum(event.seconds for event in trace.events if event.name == "data" and event.stage == 0)
    assert waited > 0.5 * 0.02 * len(given)
    assert trace.shares()[0]["data"] > trace.shares()[0]["before"]


def test_a_resumed_fit_traces_what_is_left(tmp_path):
    given = batches(9)
    whole = trainer(network(3), "fdg").fit(given, epochs=2, trace=True).trace
    trainer(network(3), "fdg").fit(given, epochs=2, max_steps=9, save_to=tmp_path)
    made = trainer(network(3), "fdg", make=partial(fw.Trainer.resume, tmp_path))
    trace = made.fit(given, epochs=2, trace=True).trace
    for stage in range(3):
        rest = [each for each in done(trace, stage) if each[0] in "FBU"]
        assert rest == [each for each in done(whole, stage) if each[0] in "FBU"][-len(rest) :]
        assert rest[-1] == ("U", 17, 0, 17)


def test_versions_count_on_after_ctrl_c(tmp_path):
    """The pipeline has drained then: numbers of batches went on in the trace, versions began with 0 again."""
    stop = lambda end: signal.raise_signal(signal.SIGINT) if end.step == 7 else None  # noqa: E731
    first = trainer(network(3), "fdg").fit(batches(9), epochs=2, save_to=tmp_path, batch_callbacks=[stop])
    assert first.interrupted
    made = trainer(network(3), "fdg", make=partial(fw.Trainer.resume, tmp_path))
    trace = made.fit(batches(9), epochs=2, trace=True).trace
    for stage in range(3):
        updates = [(event.batch, event.version) for event in trace.events if event.name == "U" and event.stage == stage]
        assert updates == [(n, n) for n in range(first.batches, 18)]
        seen = [event.version for event in trace.events if event.name == "F" and event.stage == stage]
        delay = made.plan.staleness[stage]
        assert seen == [max(first.batches, n - delay) for n in range(first.batches, 18)]


@pytest.mark.parametrize("runtime", LOCAL)
def test_a_fit_that_ends_early_is_traced_to_its_end(runtime):
    history = trainer(network(3), "fdg", runtime=runtime).fit(
        batches(8), epochs=5, trace=True, callbacks=[lambda end: end.record.epoch == 1]
    )
    assert history.stopped
    updates = [event.batch for event in history.trace.events if event.name == "U" and event.stage == 2]
    assert updates[:16] == list(range(16))


def test_ctrl_c_loses_no_event():
    class Interrupts(list):
        def __iter__(self):
            for n, batch in enumerate(list.__iter__(self)):
                if n == 7:
                    signal.raise_signal(signal.SIGINT)
                yield batch

    made = trainer(network(3), "pipedream", runtime="threads")
    history = made.fit(Interrupts(batches(40)), trace=True)
    assert history.interrupted
    for stage in range(3):
        updates = [event.batch for event in history.trace.events if event.name == "U" and event.stage == stage]
        assert updates == list(range(history.batches))


@spread(method=[fw.AsyncLU(), fw.AsyncBU(devices=2), fw.Hogwild()], runtime=LOCAL)
def test_workers_of_a_race_are_rows(method, runtime):
    made = trainer([nn.Linear(6, 12), nn.Sequential(nn.Tanh(), nn.Linear(12, 3))], method, runtime=runtime)
    check_race(made.fit(batches(10), epochs=2, trace=True).trace, method)


def check_race(trace, method):
    assert trace.meta["rows"] == method.worker_names
    for name, each in (("F", 1), ("B", 1), ("U", 2)):  # two layers
        found = sorted(event.batch for event in trace.events if event.name == name)
        assert found == sorted(list(range(20)) * each)
    assert trace.stages <= len(method.worker_names)


@exhaustive
def test_workers_in_processes_are_rows():
    stages = [nn.Linear(6, 12), nn.Sequential(nn.Tanh(), nn.Linear(12, 3))]
    method = fw.Hogwild()
    made = trainer(stages, method, runtime="processes")
    check_race(made.fit(batches(10), epochs=2, trace=True).trace, method)


def event(stage, name, begin, end, batch=0, version=None, replica=0):
    return fw.TraceEvent(stage, replica, name, batch, 0, version, begin, end)


def test_shares_by_hand():
    """Two stages for ten seconds: stage 0 computes for 4, waits 3 for stage 1, 2 for data; 1 is left."""
    events = [
        event(0, "data", 0, 2),
        event(0, "F", 2, 4),
        event(0, "a>", 4, 5),  # the queue to stage 1 is full
        event(0, ">g", 5, 7),
        event(0, "B", 7, 9),
        event(1, ">a", 0, 5),
        event(1, "F", 5, 6),
        event(1, "B", 6, 9),
        event(1, "U", 8, 8.5),  # within the backward, as under a race
        event(1, "g>", 9, 10),
    ]
    first, second = fw.Trace(events, {"ways": WAYS}).shares()
    assert first == pytest.approx({"compute": 0.4, "before": 0, "after": 0.3, "replicas": 0, "data": 0.2, "other": 0.1})
    assert second == pytest.approx({"compute": 0.4, "before": 0.6, "after": 0, "replicas": 0, "data": 0, "other": 0})


def test_replicas_share_the_time_by_hand():
    """Of two replicas for ten seconds one computes for 8, and the other for 6 and waits 3 for the first."""
    events = [event(0, "B", 0, 8), event(0, "B", 0, 5, replica=1), event(0, ">r", 5, 8, replica=1)]
    events += [event(0, "r>", 8, 9), event(0, "U", 9, 10, replica=1)]
    assert fw.Trace(events, {"ways": {**WAYS, "r": 0}}).shares()[0] == pytest.approx(
        {"compute": 0.7, "before": 0, "after": 0, "replicas": 0.2, "data": 0, "other": 0.1}
    )


def test_clocks_of_two_hosts_are_compared_by_the_time_of_day():
    def recording(stage, host, offset, begin):
        made = Recording.of(stage, 0, [Row("F", 0, 0, 0, begin, begin + 1.0)])
        return Recording(stage, 0, host, offset, made.names, made.rows)

    here, there = recording(0, "a", 1000.0, 5.0), recording(1, "b", 400.0, 607.5)  # at 1005 and 1007.5 by the day
    later = recording(0, "a", 1000.5, 9.0)  # the clock of the day has been set meanwhile; the host's own counts
    trace = fw.Trace.of([here, there, later], {})
    assert [(each.stage, each.begin) for each in trace.events] == [(0, 0.0), (1, 2.5), (0, 4.0)]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_is_read_back_as_it_was(name, tmp_path):
    _, trace, _ = traced(ROWS[1], 3, "threads")
    trace.save(tmp_path / name)
    found = fw.Trace.load(tmp_path / name)
    assert found.meta == trace.meta
    assert sorted(each[:6] for each in found.events if each.version is not None) == sorted(
        each[:6] for each in trace.events if each.version is not None
    )
    assert len(found.events) == len(trace.events)
    for a, b in zip(sorted(found.events, key=str), sorted(trace.events, key=str)):
        assert a.name == b.name
    assert found.seconds == pytest.approx(trace.seconds, abs=1e-8)
    assert found.staleness() == trace.staleness()
    for a, b in zip(found.shares(), trace.shares()):
        assert a == pytest.approx(b, abs=1e-5)


def test_the_file_has_what_chrome_and_perfetto_draw(tmp_path):
    _, trace, _ = traced(ROWS[6], 3, "threads")
    trace.save(tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        entries = json.load(file)["traceEvents"]
    of = {kind: [entry for entry in entries if entry["ph"] == kind] for kind in "MXsfC"}
    assert len(of["X"]) == len(trace.events)
    assert all(entry["dur"] >= 0 and entry["ts"] >= 0 for entry in of["X"])
    rows = {entry["tid"]: entry["args"]["name"] for entry in of["M"] if entry["name"] == "thread_name"}
    assert rows == {0: "stage 0", 1: "stage 1", 2: "stage 2"}
    # 18 batches: an activation and a gradient at each of two boundaries.
    assert len(of["s"]) == len(of["f"]) == 18 * 2 * 2
    slices = {(entry["tid"], entry["name"]): entry for entry in of["X"]}
    ends = {entry["id"]: entry for entry in of["f"]}
    for start in of["s"]:
        end, letter = ends[start["id"]], start["name"]
        assert end["tid"] - start["tid"] == WAYS[letter]
        assert start["ts"] <= end["ts"]
        assert any(slices[start["tid"], f"{letter}> {n}"]["ts"] == start["ts"] for n in range(18)), (
            "an arrow begins in the slice of a send"
        )
    queues = {name: [] for name in ("a to stage 1", "a to stage 2", "g to stage 0", "g to stage 1")}
    for entry in of["C"]:
        if entry["name"] in queues:
            queues[entry["name"]].append(entry["args"]["pending"])
    for name, pending in queues.items():
        assert pending[-1] == 0, f"{name}: all messages have been received"
        assert min(pending) == 0
        assert all(abs(a - b) == 1 for a, b in pairwise(pending))
    late = [entry["args"]["updates"] for entry in of["C"] if entry["name"] == "staleness of stage 0"]
    assert late == [0, 1, 2, *[3] * 15]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b'{"traceEvents": []}', b"\x1f\x8b broken"])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_that_is_no_trace_is_refused(content, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match="that is not a whole trace") as found:
        fw.Trace.load(path)
    said = "that is not a whole trace that Freewheel has written; remove it, or record it again"
    assert str(found.value) == f"{path}: {said}"


def test_half_a_file_is_refused(tmp_path):
    path = tmp_path / "trace.json.gz"
    _, trace, _ = traced(ROWS[0], 2, "simulate", count=3)
    trace.save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="not a whole trace"):
        fw.Trace.load(path)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        fw.Trace.load(tmp_path / "none.json")


def test_what_cannot_be_traced_is_refused():
    with pytest.raises(TypeError, match=r"^trace=7: give True, or the numbers of batches such as range\(100, 200\)$"):
        trainer(network(2), "bp").fit(batches(2), trace=7)
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=1)
    with pytest.raises(ValueError, match=r"^trace with ReduceLROnPlateau"):
        trainer(network(2), "bp", scheduler=plateau).fit(batches(2), trace=True)
    with pytest.raises(ValueError, match=r"^trace with async-lu on cuda:0: races are traced on a CPU only"):
        fw.AsyncLU().check_trace([torch.device("cuda:0")])


def test_a_trace_is_written_as_a_whole_or_not_at_all(tmp_path):
    """One that a kill or a full disk had cut short made `freewheel report` refuse the whole run."""
    path = tmp_path / "trace.json.gz"
    meta = {"rows": ["stage 0"], "ways": {}}
    fw.Trace([event(0, "F", 0, 1, version=0)], meta).save(path)
    with pytest.raises(TypeError):
        fw.Trace([event(0, "F", 0, 1, version=0), event(0, "B", 1, 2, version={0})], meta).save(path)
    assert [each.name for each in fw.Trace.load(path).events] == ["F"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(json.loads(pipe.read_text())))
    reader.start()
    fw.Trace([event(0, "F", 0, 1, version=0)], {"rows": ["stage 0"]}).save(pipe)
    reader.join(60)
    assert [each["name"] for each in found[0]["traceEvents"] if each["ph"] == "X"] == ["F 0"]
    assert pipe.is_fifo()
