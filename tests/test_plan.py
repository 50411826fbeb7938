"""Plans: built, checked, drawn, read back."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from hypothesis import given, strategies as st

import freewheel as fw
from freewheel.plan import Action, Message, Op, Plan, PlanError, Schedule, capacity, parse, save_picture
from rows import ROWS
from spread import rarely, spread


@spread(row=ROWS, k=[2, 3, 4, rarely(1), rarely(5)])
def test_a_drawing_reads_back_as_the_same_plan(row, k):
    for batches in (1, 2, 7, 12):
        plan = fw.plan(row.make(k), k=k, batches=batches)
        assert Plan.parse(str(plan)) == plan
        assert Plan.parse(plan.text()) == plan


def test_tokens_read_back():
    for op in Op.known():
        version = 5 if op.is_compute else None
        for micro in (None, 2):
            action = Action(op, 3, version, micro)
            assert Action.parse(str(action)) == action


@pytest.mark.parametrize("token", ["", "F", "F3", "X3@1", "a3", ">a3>", "F3@1>", ">U3@2", "a3@1>", "F-1@0", "F3.@1"])
def test_nonsense_is_not_an_action(token):
    with pytest.raises(ValueError, match="cannot read the action"):
        Action.parse(token)


# Each edit of a good drawing breaks one rule: (from, to, what the message says, the cell it points at).
BROKEN = [
    ("F1@0", "F2@0", "out of order: the next forward here is of batch 1", "F2@0"),
    ("B0@0!  F2@1", "B0@0!  F2@0", "it must see version 1, the newest", "F2@0"),
    ("B1@0!", "B1@1!", "it must see version 0, as its forward did", "B1@1"),
    ("B0@0!  F2@1", "F2@0  B0@0!", "the declared delay is 1", "B0@0"),
    ("B0@0!  F2@1  B1@0!", "B1@0!  F2@1  B0@0!", "the message waiting there is g0> of stage 1", ">g1"),
    ("F0@0  F1@0", "F0@0  B0@0  F1@0", "has forwarded 0 batches beyond it, but the declared delay is 1", "B0@0"),
    ("F0@0  F1@0", "F0@0  F0@0  F1@0", "it is done a second time", "F0@0"),
    ("B2@1!", "B2@1", "it has 2 of 3 updates", None),
    ("B2@1!", "", "nobody receives it", "g2>"),
    ("F0@0  F1@0", "F0@0  R0@0  F1@0", "only a late stage under weights='recompute'", "R0@0"),
]


@pytest.mark.parametrize(("before", "after", "rule", "cell"), BROKEN)
def test_a_broken_plan_is_refused_at_the_offending_cell(before, after, rule, cell):
    good = " ".join(str(fw.plan("pipedream", k=2, batches=3)).split(" "))
    lines = good.splitlines()
    row = "stage 0  F0@0  F1@0  B0@0!  F2@1  B1@0!  B2@1!"
    assert before in row
    text = "\n".join([lines[0], row.replace(before, after, 1), lines[3]])
    with pytest.raises(PlanError) as caught:
        Plan.parse(text)
    message = str(caught.value).splitlines()
    assert rule in message[0]
    if cell is not None:
        under = next(i for i, line in enumerate(message) if line.strip() and set(line.strip()) == {"^"})
        start = message[under].index("^")
        assert message[under - 1][start : start + len(message[under].strip())] == cell


def test_hand_written_messages_are_kept_and_checked():
    text = fw.plan("pipedream", k=2, batches=2).text()
    assert Plan.parse(text).text() == text
    with pytest.raises(PlanError, match="its activation has not been received"):
        Plan.parse(text.replace(">a0 F0@0", "F0@0 >a0"))
    with pytest.raises(PlanError, match="there is nothing to send"):
        Plan.parse(text.replace("F0@0 a0>", "a0> F0@0", 1))
    with pytest.raises(PlanError, match="there is no stage on that side"):
        Plan.parse(text.replace("stage 0  ", "stage 0  >a0 "))


def test_a_drawing_must_make_sense_as_a_text():
    good = str(fw.plan("fdg", k=2, batches=2))
    for text, rule in [
        ("", "cannot read the first line"),
        ("hello", "cannot read the first line"),
        (good.replace("delays=2,0", "delays=2"), "asks for 1"),
        (good.replace("order=backward", "order=sideways"), "cannot read the first line"),
        (good.replace("stage 1", "stage 0"), "cannot read the line"),
        (good.replace("stage 1", "level 1"), "cannot read the line"),
    ]:
        with pytest.raises(ValueError, match=rule):
            parse(text)


def test_too_short_queues_are_a_deadlock():
    fw.plan(fw.Pipeline(delays=(4, 0), queues=((5, 5),)), k=2)
    with pytest.raises(PlanError, match="the queue to stage 1 stays full"):
        fw.plan(fw.Pipeline(delays=(4, 0), queues=((1, 1),)), k=2)


def test_memory_counts_what_is_held():
    assert fw.plan("bp", k=2).memory() == ((0, 1, 1), (0, 1, 1))
    # A late stage holds one graph more than its delay, each with weights of its own, beside those in training.
    assert fw.plan("pipedream", k=3, batches=12).memory() == ((0, 3, 4), (0, 2, 3), (0, 1, 1))
    # Backward-first frees a graph before it makes one.
    assert fw.plan("fdg", k=3, batches=12).memory() == ((0, 4, 5), (0, 2, 3), (0, 1, 1))
    # Recomputation holds inputs, one graph, one set of weights.
    assert fw.plan("dsp", k=3, batches=12).memory() == ((5, 1, 1), (3, 1, 1), (0, 1, 1))
    assert fw.plan("pipemare", k=3, batches=12).memory() == ((0, 3, 1), (0, 2, 1), (0, 1, 1))
    assert fw.plan("gpipe", k=2, micro=4).memory() == ((0, 4, 1), (0, 4, 1))
    assert fw.plan("1f1b", k=2, micro=4).memory() == ((0, 2, 1), (0, 1, 1))


def test_staleness_is_the_delay_less_the_update_of_the_same_round():
    """Backward first, the update with the batch that is due comes before the forward of its round."""
    for method, expected in {
        "pipedream": (2, 1, 0),
        "dsp": (4, 2, 0),
        "fdg": (3, 1, 0),
        "fr": (2, 1, 0),
        "asyncfgd": (2, 1, 0),
        "bp": (0, 0, 0),
    }.items():
        assert fw.plan(method, k=3, batches=14).staleness == expected
    assert fw.plan("fdg", k=3, batches=2).staleness == (1, 1, 0), "no batch has waited for its full delay yet"


def test_a_plan_answers_only_for_what_it_has():
    plan = fw.plan("fdg", k=2, batches=3)
    with pytest.raises(ValueError, match="stage=2: this plan has stages 0 to 1"):
        plan.versions(stage=2, batch=0)
    with pytest.raises(ValueError, match="batch=3: this plan has batches 0 to 2"):
        plan.versions(stage=0, batch=3)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_forward_plans_never_get_stuck(order, micro, norms):
    """With one activation on its way between two stages, unless updates wait for a norm over all stages."""
    for k in (1, 2, 3, 4):
        for delays in combinations_with_replacement(range(3, -1, -1), k):
            schedule = Schedule(credit=fw.Forward(), delays=delays, order=order, micro=micro, norms=norms)
            assert norms or [up for up, _ in schedule.lengths()] == [1] * (k - 1)
            plan = Plan.build(schedule, 6)
            for stage, delay in enumerate(delays):
                gap = delay - (order == "backward" and delay > 0)
                assert [plan.versions(stage, n)[0] for n in range(6)] == [max(0, n - gap) for n in range(6)]


@pytest.mark.parametrize("micro", [1, 3])
def test_a_broadcast_does_not_get_stuck_in_the_shortest_queues(micro):
    for k in (1, 2, 3, 4):
        for delays in combinations_with_replacement(range(3, -1, -1), k):
            short = Schedule(credit=fw.Forward(), delays=delays, micro=micro, queues=((1, 1),) * (k - 1))
            Plan.build(short, 6)
            long = Schedule(credit=fw.Forward(), delays=delays, micro=micro)
            for stage in range(k - 1):  # when it receives the first, the last stage may have sent so many
                assert capacity(short, "d", stage) == capacity(long, "d", stage) == delays[stage] + 1
                assert capacity(long.with_slack(2), "d", stage) == delays[stage] + 1 + 2 * (k - 1 - stage)


def test_a_broadcast_is_sent_by_the_last_stage_alone():
    text = fw.plan("asyncfgd", k=3, batches=1).text()
    assert text.splitlines()[2] == "stage 1  >a0 F0@0 a0> >d0 U0@0"
    with pytest.raises(PlanError, match=r"stage 1, d0>: .*there is no stage on that side"):
        Plan.parse(text.replace("a0> >d0 U0@0\nstage 2", "a0> >d0 d0> U0@0\nstage 2"))
    with pytest.raises(PlanError, match=r"stage 2, d0>: .*its forward has not been done"):
        Plan.parse(text.replace(">a0 F0@0 d0>", ">a0 d0> F0@0"))
    unread = fw.plan("dfa", k=3, batches=1).text().replace("a0> >e0 B0@0 U0@0\nstage 2", "a0> B0@0 U0@0\nstage 2")
    with pytest.raises(PlanError, match=r"stage 1, B0@0: its error has not been received"):
        Plan.parse(unread)
    with pytest.raises(ValueError, match="broadcast=True with way=1: the last stage sends it to all others; give"):
        Message("z", "nothing", way=1, broadcast=True)


def test_slack_lengthens_queues_only():
    plan = fw.plan("dsp", k=3, p=(1, 1, 0), m=(4, 2, 0))
    longer = fw.plan("dsp", k=3, p=(1, 1, 0), m=(4, 2, 0), slack=3)
    assert plan.schedule.lengths() == ((2, 2), (2, 2))
    assert longer.schedule.lengths() == ((5, 5), (5, 5))
    assert longer.streams == plan.streams
    assert plan.with_slack(3) == longer


schedules = st.integers(1, 5).flatmap(
    lambda k: st.builds(
        Schedule,
        credit=st.just(fw.Chain()),
        delays=st.lists(st.integers(0, 5), min_size=k, max_size=k).map(tuple),
        order=st.sampled_from(["forward", "backward"]),
        weights=st.sampled_from(["stash", "recompute", "current", "predict"]),
        turns=st.booleans(),
        queues=st.one_of(
            st.just(()),
            st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=k - 1, max_size=k - 1).map(tuple),
        ),
        cell=st.sampled_from(["action", "round"]),
    )
)


@given(schedules, st.integers(1, 14))
def test_random_schedules_are_refused_or_keep_their_promises(schedule, batches):
    try:
        plan = Plan.build(schedule, batches)
    except PlanError as error:
        # Refused with a picture. With the default queues only an increasing delay, or a turn that a stage would have
        # to give before it has the batch, is in the way.
        assert str(error).startswith("plan refused at stage")
        if not schedule.queues and not schedule.turns:
            assert any(b > a for a, b in zip(schedule.delays, schedule.delays[1:]))
        return
    assert Plan.parse(str(plan)) == plan
    for stage, delay in enumerate(schedule.delays):
        for n in range(batches):
            forward, backward = plan.versions(stage, n)
            first = schedule.order == "backward" and delay > 0
            assert forward == max(0, n - delay + first)
            late = delay > 0 and schedule.weights in ("stash", "predict")
            assert backward == (forward if late else n)


def test_a_picture_is_saved_in_the_format_of_its_name(tmp_path):
    plans = [fw.plan(row.make(3), k=3, batches=5) for row in ROWS[::5]]
    save_picture(plans, tmp_path / "plans.svg")
    assert (tmp_path / "plans.svg").read_text().count("<g id=") > 100
    save_picture(plans, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "plans.svg").read_bytes()  # without dates, random names
    save_picture(plans[:1], tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
