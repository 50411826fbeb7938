"""Plans against the papers: their figures and tables, written out from the text."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import freewheel as fw
import freewheel.methods

Cells = list[list[list[str]]]  # stage, column, words


def cells(plan: fw.Plan) -> Cells:
    """What is drawn, stage by stage and column by column; an idle cell holds no word."""
    _, time, *rows = str(plan).splitlines()
    columns = [int(t) for t in time.split()[1:]]
    assert columns == list(range(len(columns)))
    found = []
    for k, row in enumerate(rows):
        label, *texts = re.split(r"\s{2,}", row.strip())
        assert label == f"stage {k}"
        assert len(texts) == len(columns)
        found.append([[] if text == "." else text.split() for text in texts])
    return found


def works(plan: fw.Plan, stage: int) -> list[str]:
    """The work of a stage in order, versions left out: `F0`, `B0`."""
    return [word.split("@")[0] for cell in cells(plan)[stage] for word in cell]


# FDG, figure 1 and section III-A. ---------------------------------------------------------------------------------


def fdg_table(modules: int, batches: int, order: str) -> Cells:
    """The whole figure by the paper's formulas; its modules, iterations and batches count from 1, the drawing's from 0.

    At iteration t, module k forwards batch t - k + 1, and learns from batch t - 2K + k + 1.
    """
    table: Cells = []
    for k in range(1, modules + 1):
        updates, seen, row = 0, {}, []
        for t in range(1, batches + 2 * modules - 1):
            forward, backward = t - k + 1, t - 2 * modules + k + 1
            last = k == modules  # there the batch is the same one, and its forward must come first
            words = []
            for kind in "FB" if order == "forward" or last else "BF":
                if kind == "F" and 1 <= forward <= batches:
                    seen[forward] = updates
                    words.append(f"F{forward - 1}@{updates}")
                if kind == "B" and 1 <= backward <= batches:
                    words.append(f"B{backward - 1}@{seen[backward]}!")
                    updates += 1
            row.append(words)
        table.append(row)
    return table


@pytest.mark.parametrize("order", ["backward", "forward"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_fdg_figure_1(k: int, order: str) -> None:
    plan = fw.plan("fdg", k=k, batches=12, order=order)
    assert cells(plan) == fdg_table(k, 12, order)


def test_fdg_figure_1_by_hand() -> None:
    """K = 3: module 1 generates an activation at iteration 1, and the gradient of this batch arrives at iteration 5."""
    drawn = cells(fw.plan("fdg", k=3, batches=7))
    assert drawn[0][1 - 1] == ["F0@0"]
    assert drawn[0][5 - 1] == ["B0@0!", "F4@1"]
    assert [words for row in drawn for words in row[:4] if any(word.startswith("B0") for word in words)] == [
        ["B0@0!", "F2@1"],  # module 2 at iteration 4
        ["F0@0", "B0@0!"],  # module 3 at iteration 3
    ]
    assert drawn[0][:7] == [
        ["F0@0"],
        ["F1@0"],
        ["F2@0"],
        ["F3@0"],
        ["B0@0!", "F4@1"],
        ["B1@0!", "F5@2"],
        ["B2@0!", "F6@3"],
    ]
    assert drawn[1][:6] == [
        [],
        ["F0@0"],
        ["F1@0"],
        ["B0@0!", "F2@1"],
        ["B1@0!", "F3@2"],
        ["B2@1!", "F4@3"],
    ]
    assert drawn[2][:5] == [[], [], ["F0@0", "B0@0!"], ["F1@1", "B1@1!"], ["F2@2", "B2@2!"]]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
def test_fdg_delay_is_twice_the_distance_to_the_end(k: int) -> None:
    """Section III-A: a delay of 2(K - k) in module k, k from 1."""
    assert fw.plan("fdg", k=k).delays == tuple(2 * (k - module) for module in range(1, k + 1))


# DSP, figure 2 and appendix A. ------------------------------------------------------------------------------------


def test_dsp_figure_2() -> None:
    """DSP(1,1,0;4,2,0): worker 0 forwards t and learns from t-4, worker 1 t-1 and t-3, worker 2 t-2 and t-2."""
    batches, forwards, backwards = 10, (0, 1, 2), (4, 3, 2)
    drawn = cells(fw.plan("dsp", k=3, p=(1, 1, 0), m=(4, 2, 0), batches=batches))
    assert len(drawn[0]) == batches + 4
    for worker, (lag, late) in enumerate(zip(forwards, backwards)):
        staleness = late - lag
        for t, words in enumerate(drawn[worker]):
            expected = []
            n = t - lag
            if 0 <= n < batches:
                expected.append(f"F{n}@{max(0, n - staleness)}")
            n = t - late
            if 0 <= n < batches:
                expected += [f"R{n}@{n}", f"B{n}@{n}!"] if staleness else [f"B{n}@{n}!"]
            assert words == expected, f"worker {worker} at time {t}"


def test_dsp_staleness_of_figure_2() -> None:
    plan = fw.plan("dsp", k=3, p=(1, 1, 0), m=(4, 2, 0))
    assert plan.delays == (4, 2, 0)
    assert plan.delays == fw.plan("fdg", k=3).delays


@pytest.mark.parametrize(
    ("p", "m", "q"),
    [
        ((1, 1, 0), (4, 2, 0), (0, 1, 1)),
        ((2, 2, 0), (6, 3, 0), (0, 1, 1)),
        ((3, 3, 0), (10, 5, 0), (0, 2, 2)),
        ((1, 1, 1, 0), (6, 4, 2, 0), (0, 1, 1, 1)),
    ],
)
def test_dsp_queues(p: tuple[int, ...], m: tuple[int, ...], q: tuple[int, ...]) -> None:
    """Appendix A: an output queue of 1 + p_k out of stage k, a gradient queue of 1 + q_k out of stage k."""
    plan = fw.plan("dsp", k=len(m), p=p, m=m)
    assert plan.delays == m
    assert plan.schedule.queues == tuple((1 + out, 1 + back) for out, back in zip(p[:-1], q[1:]))


@pytest.mark.parametrize(
    ("p", "m", "line"),
    [
        ((1, 1, 0), (4, 3, 0), "q_1"),
        ((1, 2, 0), (4, 2, 0), "q_2"),
        ((0, 1, 0), (4, 2, 0), "p_0"),
        ((1, 1, 1), (4, 2, 0), "p_2"),
        ((1, 1, 0), (5, 3, 1), "m_2"),
    ],
)
def test_dsp_refuses_by_line(p: tuple[int, ...], m: tuple[int, ...], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        fw.plan("dsp", k=3, p=p, m=m)


# PipeDream: start, steady state, end. -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_pipedream_program(k: int) -> None:
    """Stage s admits K - s forwards, then alternates a backward and a forward, then drains."""
    batches = 2 * k + 4
    plan = fw.plan("pipedream", k=k, batches=batches)
    for s in range(k):
        admitted = k - s
        program = [f"F{n}" for n in range(admitted)]
        for n in range(batches - admitted):
            program += [f"B{n}", f"F{n + admitted}"]
        program += [f"B{n}" for n in range(batches - admitted, batches)]
        assert [word.rstrip("!") for word in works(plan, s)] == program


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_pipedream_keeps_every_stage_busy(k: int) -> None:
    """From the first backward of the first stage to its last forward."""
    batches = 3 * k + 4
    drawn = cells(fw.plan("pipedream", k=k, batches=batches))
    first = next(t for t, words in enumerate(drawn[0]) if words and words[0].startswith("B"))
    last = max(t for t, words in enumerate(drawn[0]) if words and words[0].startswith("F"))
    assert first == 2 * k - 1
    assert all(words for row in drawn for words in row[first : last + 1])


@pytest.mark.parametrize("k", [2, 3, 4])
def test_pipedream_has_the_least_such_delay(k: int) -> None:
    """With one batch less in flight at any stage but the last, some stage idles."""
    full = tuple(range(k - 1, -1, -1))
    for s in range(k - 1):
        less = tuple(min(m, full[s] - 1) if i >= s else m for i, m in enumerate(full))
        drawn = cells(fw.plan(fw.Pipeline(delays=less), k=k, batches=8 * k))
        middle = [words for row in drawn for words in row[6 * k : 8 * k]]
        assert not all(middle), f"delays {less}"


# FDG, table II: the time of a batch in steady state, with a tick for each pass of each stage. ----------------------


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize(
    ("name", "ticks"),
    [
        ("bp", lambda k: k + k),  # T_f + T_b
        ("ddg", lambda k: k + 1),  # T_f + T_b / K
        ("fr", lambda k: k + 2),  # T_f + (T_f + T_b) / K
        ("pipedream", lambda k: 2),  # (T_f + T_b) / K
        ("pipemare", lambda k: 2),
        ("fdg", lambda k: 1),  # a column of it is a round of two passes
        ("dsp", lambda k: 1),
    ],
)
def test_time_of_a_batch(name: str, ticks: object, k: int) -> None:
    assert callable(ticks)
    drawn = cells(fw.plan(name, k=k, batches=4 * k))
    middle = range(2 * k, 3 * k)
    for row in drawn:
        at = {word.split("@")[0]: t for t, words in enumerate(row) for word in words}
        assert {at[f"F{n + 1}"] - at[f"F{n}"] for n in middle} == {ticks(k)}
        assert {at[f"B{n + 1}"] - at[f"B{n}"] for n in middle} == {ticks(k)}


@pytest.mark.parametrize("name", ["ddg", "fr"])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_forward_in_turns_then_backward_at_once(name: str, k: int) -> None:
    drawn = cells(fw.plan(name, k=k, batches=4 * k))
    for n in range(2 * k, 3 * k):
        forwards = [find(drawn, s, f"F{n}") for s in range(k)]
        assert forwards == list(range(forwards[0], forwards[0] + k))
        learns = [find(drawn, s, f"B{n - (k - 1 - s)}") for s in range(k)]
        passes = learns[:-1] if name == "fr" else learns  # the last stage redoes nothing, and need not wait
        assert len(set(passes)) == 1
        assert min(learns) > forwards[-1]


def find(drawn: Cells, stage: int, work: str) -> int:
    return next(t for t, words in enumerate(drawn[stage]) if any(w.split("@")[0] == work for w in words))


# The table of chain methods. --------------------------------------------------------------------------------------

ONE = [(0,), (1, 0), (2, 1, 0), (3, 2, 1, 0), (4, 3, 2, 1, 0), (5, 4, 3, 2, 1, 0)]
TWO = [(0,), (2, 0), (4, 2, 0), (6, 4, 2, 0), (8, 6, 4, 2, 0), (10, 8, 6, 4, 2, 0)]
NONE = [(0,) * k for k in range(1, 7)]

TABLE = {  # name: delays for K = 1 to 6, order, weights, locks left
    "bp": (NONE, "forward", "stash", {"forward", "backward", "update"}),
    "gpipe": (NONE, "forward", "stash", {"update"}),
    "1f1b": (NONE, "forward", "stash", {"update"}),
    "ddg": (ONE, "forward", "stash", {"forward"}),
    "fr": (ONE, "forward", "recompute", {"forward"}),
    "pipedream": (ONE, "forward", "stash", set()),
    "fdg": (TWO, "backward", "stash", set()),
    "dsp": (TWO, "forward", "recompute", set()),
    "pipemare": (ONE, "forward", "current", set()),
    "fa": (NONE, "forward", "stash", {"forward", "backward", "update"}),
}


def test_table_is_complete() -> None:
    """A new chain method needs its line here."""
    assert TABLE.keys() == {name for name, cls in fw.METHODS.items() if cls().pipeline(2).credit.family == "chain"}


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", TABLE)
def test_delays(name: str, k: int) -> None:
    assert fw.plan(name, k=k).delays == TABLE[name][0][k - 1]


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", TABLE)
def test_locks_left(name: str, k: int) -> None:
    assert fw.plan(name, k=k, batches=2 * k + 8).locks == TABLE[name][3]


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6])
def test_fdg_breaks_all_locks_in_either_order(k: int) -> None:
    assert fw.plan("fdg", k=k, order="forward", batches=20).locks == set()


def forward_version(n: int, m: int, order: str) -> int:
    if order == "backward":
        return max(0, n - m + 1) if m > 0 else n
    return max(0, n - m)


def assert_versions(plan: fw.Plan, delays: tuple[int, ...], order: str, weights: str) -> None:
    """The forward's version, and that of the weights that the backward sees: its forward's if stashed, else its own."""
    for stage, m in enumerate(delays):
        for n in range(plan.batches):
            forward = forward_version(n, m, order)
            backward = forward if weights in ("stash", "predict") else n
            assert plan.versions(stage=stage, batch=n) == (forward, backward)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", TABLE)
def test_versions(name: str, k: int) -> None:
    delays, order, weights, _ = TABLE[name]
    assert_versions(fw.plan(name, k=k, batches=3 * k + 4), delays[k - 1], order, weights)


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("weights", ["stash", "recompute", "current", "predict"])
@pytest.mark.parametrize("delays", [(3, 1, 0), (4, 4, 0), (5, 2, 1), (2,), (7, 3, 3, 0)])
def test_versions_of_free_combinations(delays: tuple[int, ...], weights: str, order: str) -> None:
    method = fw.Pipeline(delays=delays, order=order, weights=weights)
    assert_versions(fw.plan(method, k=len(delays), batches=14), delays, order, weights)


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_versions_of_fdg_in_either_order(k: int, order: str) -> None:
    assert_versions(fw.plan("fdg", k=k, order=order, batches=14), TWO[k - 1], order, "stash")


def test_versions_by_hand() -> None:
    """F(7) at stage 0 of DSP(1,1,0;4,2,0) sees version 3, of FDG with K=3 version 4; PipeDream's with K=4 version 4."""
    assert fw.plan("dsp", k=3, p=(1, 1, 0), m=(4, 2, 0)).versions(stage=0, batch=7) == (3, 7)
    assert fw.plan("fdg", k=3).versions(stage=0, batch=7) == (4, 4)
    assert fw.plan("fdg", k=3, order="forward").versions(stage=0, batch=7) == (3, 3)
    assert fw.plan("pipedream", k=4).versions(stage=0, batch=7) == (4, 4)
    assert fw.plan("fr", k=4).versions(stage=0, batch=7) == (4, 7)


# The drawings beside the methods. ---------------------------------------------------------------------------------


def drawings() -> Iterator[tuple[str, str, str]]:
    """File, name of what is documented, and drawing, for each block that begins with `plan NAME`."""
    for file in sorted(Path(freewheel.methods.__file__).parent.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            for block in re.split(r"\n\s*\n", text or ""):
                if re.match(r"\s+plan [\w-]+(:|\s*$|\s*\n)", block):
                    yield file.name, getattr(node, "name", "module"), dedent(block.rstrip())


DRAWINGS = list(drawings())
OPTIONS = {
    "gpipe": ("micro",),
    "1f1b": ("micro",),
    "fgd-sync": ("micro",),
    "fdg": ("order",),
}  # the drawn ones that its header tells


@pytest.mark.parametrize(("file", "owner", "block"), DRAWINGS, ids=[f"{f}:{o}" for f, o, _ in DRAWINGS])
def test_drawing_in_docstring(file: str, owner: str, block: str) -> None:
    """It reads as a plan, is drawn the same again, and is the plan of the method that it stands beside."""
    drawn = fw.Plan.parse(block)
    assert str(drawn) == block
    name = drawn.schedule.name
    options = {option: getattr(drawn.schedule, option) for option in OPTIONS.get(name, ())}
    if drawn.schedule.along == 1:
        options = {"steps": drawn.schedule.micro}
    if drawn.schedule.credit.name == "feedback" and drawn.schedule.asynchronous:
        options = {"pipelined": True}
    if name == "dsp":
        options = {"p": (1, 1, 0), "m": (4, 2, 0)}
    assert str(fw.plan(name, k=len(drawn.delays), batches=drawn.batches, **options)) == block


def test_every_method_is_drawn_where_its_file_opens() -> None:
    drawn = {(file, fw.Plan.parse(block).schedule.name) for file, owner, block in DRAWINGS if owner == "module"}
    files = {name: Path(sys.modules[fw.METHODS[name].__module__].__file__ or "").name for name in TABLE}
    assert {(files[name], name) for name in TABLE} <= drawn


def test_placeholder_is_no_drawing() -> None:
    with pytest.raises(ValueError, match="plan ddg"):
        fw.Plan.parse("plan ddg")
