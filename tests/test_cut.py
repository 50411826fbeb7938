"""Cutting plans in two: the second part is what is left, nothing in flight is lost, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

import freewheel as fw
from freewheel.plan import ACTIVATION, GRADIENT, Action, Op, Schedule, in_flight, rest, stream
from freewheel.plan._clock import march
from rows import ROWS
from spread import rarely, spread

BATCHES = 16
ALSO = {
    "steps": lambda k: fw.AsyncFGD(steps=3),
    "late steps": lambda k: fw.Pipeline(credit="forward", delays=(2,) * (k - 1) + (1,), micro=2, along=1),
}
METHODS = {**{row.name: row.make for row in ROWS}, **ALSO}


def parts(schedule: Schedule, stage: int, batches: int) -> tuple[list[Action], list[Action]]:
    """A stage's stream of the whole run, cut after its update number `batches` - 1."""
    actions = list(stream(schedule, stage, range(BATCHES)))
    end = next(i for i, a in enumerate(actions) if a.op is Op.UPDATE and a.batch == batches - 1)
    return actions[: end + 1], actions[end + 1 :]


def messages(actions: Sequence[Action], op: Op) -> list[tuple[int, int | None]]:
    return [(a.batch, a.micro) for a in actions if a.op is op]


def check(schedule: Schedule, batches: int) -> None:
    before, after = zip(*(parts(schedule, k, batches) for k in range(schedule.stages)))
    streams = []
    for k in range(schedule.stages):
        forwarded = len({a.batch for a in before[k] if a.op is Op.FORWARD})
        again = in_flight(schedule, k, batches, forwarded)
        left = list(rest(schedule, k, batches, range(batches - 1, BATCHES)))
        streams.append([*again, *left])
        for message in (message for message in schedule.messages if message.way):
            op, ends = message.send, [k + message.way]
            if message.broadcast:
                ends = range(k) if k == schedule.stages - 1 else []
            for receiver in ends:
                if receiver not in range(schedule.stages):
                    continue
                heard = messages(before[receiver], message.receive)
                sent = messages(before[k], op)
                assert messages(again, op) == sent[len(heard) :]
                assert messages(left, op) == messages(after[k], op)[max(0, len(heard) - len(sent)) :]
        others = [a for a in left if not a.op.is_send]
        assert others == [a for a in after[k] if not a.op.is_send]
        assert [a for a in after[k] if a in left] == left
        broadcast = {message.send for message in schedule.messages if message.broadcast and schedule.delays[-1]}
        late = {GRADIENT.send} if schedule.credit.name == "synthetic" else {ACTIVATION.send, *broadcast}
        assert {a.op for a in again} <= late
    assert sum(1 for _ in march(schedule, streams)) == sum(map(len, streams))


@spread(name=METHODS, k=[2, 3, 4, rarely(1)])
def test_every_method_is_cut_where_it_says(name, k):
    pipeline = METHODS[name](k).pipeline(k)
    for norms in (False, True) if not pipeline.schedule().asynchronous else (False,):
        for batches in (1, 2, 5, 8, 13, 15, 16):
            check(pipeline.schedule(norms=norms), batches)


@given(
    delays=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(lambda d: tuple(sorted(d, reverse=True))),
    order=st.sampled_from(["forward", "backward"]),
    weights=st.sampled_from(["stash", "recompute", "current", "predict"]),
    turns=st.booleans(),
    slack=st.integers(0, 2),
    short=st.booleans(),
    batches=st.integers(1, BATCHES),
)
def test_random_plans_are_cut_where_they_say(delays, order, weights, turns, slack, short, batches):
    queues = ((1, 1),) * (len(delays) - 1) if short else ()
    pipeline = fw.Pipeline(delays=delays, order=order, weights=weights, turns=turns, queues=queues)
    schedule = pipeline.schedule(slack=slack)
    try:
        fw.Plan.build(schedule, BATCHES)
    except fw.PlanError:
        return  # such a plan never runs
    check(schedule, batches)


@given(lag=st.integers(0, 5), k=st.integers(1, 4), slack=st.integers(0, 2), batches=st.integers(1, BATCHES))
def test_gradients_that_predictors_wait_for_are_in_flight(lag, k, slack, batches):
    schedule = fw.DNI(lag=lag).pipeline(k).schedule(slack=slack)
    fw.Plan.build(schedule, BATCHES)
    check(schedule, batches)
    for stage in range(1, k):
        flying = [a.batch for a in in_flight(schedule, stage, batches)]
        assert flying == list(range(max(0, batches - 1 - lag), batches))


def test_a_drawing_of_the_two_parts():
    schedule = fw.method("ddg").pipeline(2).schedule()
    assert " ".join(map(str, stream(schedule, 1, range(3)))) == (
        ">a0 F0@0 t0> B0@0 g0> U0@0 >a1 F1@1 t1> B1@1 g1> U1@1 >a2 F2@2 t2> B2@2 g2> U2@2"
    )
    # Stage 0 has sent a1 and received turn 1 before its update 0: both belong to the time after the cut at stage 1.
    assert " ".join(map(str, stream(schedule, 0, range(3)))).startswith("F0@0 a0> >t0 F1@0 a1> >t1 >g0 B0@0 U0@0 F2@1")
    assert [str(action) for action in in_flight(schedule, 0, 1)] == ["a1>"]
    assert " ".join(map(str, rest(schedule, 1, 1, range(3)))) == (">a1 F1@1 B1@1 g1> U1@1 >a2 F2@2 t2> B2@2 g2> U2@2")
