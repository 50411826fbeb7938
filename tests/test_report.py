"""The data of a run's page equal what is computed from the files of the run alone; what is missing is said."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from statistics import fmean, median

import pytest
from torch import nn

import freewheel as fw
from freewheel.report._timelines import measured_timeline
from report_runs import GPU, lines_of, recorded, shown
from rows import network
from spread import rarely

BEFORE = (">a", "g>")  # waits for the stage before


def slices_of(folder):
    """What the file of a trace says was done: the stage, the action, its arguments, its begin and end in µs."""
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        entries = json.load(file)["traceEvents"]
    made = [(e["tid"], e["args"]["op"], e["args"], e["ts"], e["ts"] + e["dur"]) for e in entries if e["ph"] == "X"]
    return sorted(made, key=lambda each: each[3])


def union(intervals):
    """The length of what is covered by any of them."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("report") / "run", "fdg", count=8, runtime="threads")


@pytest.fixture(params=["threads", rarely("gpu")])
def run(request, folder):
    return GPU if request.param == "gpu" else folder


def test_curves_are_those_of_the_history(run):
    [found], lines = shown(run), lines_of(run)
    curves = found["curves"]
    assert curves["epochs"] == [line["epoch"] + 1 for line in lines]
    assert curves["loss"] == pytest.approx([line["loss"] for line in lines], rel=1e-5)
    assert curves["validation_loss"] == pytest.approx([line["validation"]["loss"] for line in lines], rel=1e-5)
    assert curves["metric"] == pytest.approx([line["validation"]["metric"] for line in lines], rel=1e-5, nan_ok=True)
    assert curves["rate"] == pytest.approx([line["images_per_second"] for line in lines], rel=1e-5)
    ends = [sum(line["seconds"] for line in lines[: i + 1]) for i in range(len(lines))]
    assert curves["seconds"] == pytest.approx(ends, abs=1e-5)


def test_headline_figures_are_those_of_the_files(run):
    [found] = shown(run)
    figures = {figure["key"]: figure for figure in found["figures"]}
    facts, final = (json.loads((run / name).read_text()) for name in ("run.json", "final.json"))
    lines = lines_of(run)
    assert figures["metric"]["value"] == final["score"]["metric"]
    assert figures["metric"]["text"] == f"{100 * final['score']['metric']:.2f}%"
    assert figures["loss"]["value"] == final["score"]["loss"]
    assert figures["train_loss"]["text"] == f"{lines[-1]['loss']:.4f}"
    assert figures["epochs"]["value"] == len(lines)
    on_gpus = [each["allocated"] for each in final["memory"]["devices"].values()]
    assert figures["memory"]["value"] == (sum(on_gpus) if on_gpus else final["memory"]["host"])
    slices = slices_of(run)
    computed = sum(end - begin for _, op, _, begin, end in slices if op.isupper())
    busy = computed / facts["stages"] / max(end for *_, end in slices)
    assert figures["busy"]["value"] == pytest.approx(busy, abs=2e-3)
    assert figures["seconds"]["value"] == pytest.approx(sum(line["seconds"] for line in lines))
    assert figures["rate"]["value"] == final["images_per_second"]
    assert figures["delays"]["text"] == ", ".join(map(str, facts["method"]["delays"]))
    assert figures["stages"]["value"] == facts["stages"]
    assert figures["parameters"]["value"] == facts["model"]["parameters"]


def test_the_timeline_is_that_of_the_trace(run):
    [found], slices = shown(run), slices_of(run)
    measured = found["measured"]
    assert measured["rows"] == [f"stage {stage}" for stage in range(1 + max(each[0] for each in slices))]
    drawn = Counter(
        (row, measured["ops"][op]["name"], batch, version)
        for row, op, batch, version in zip(*(measured[name] for name in ("row", "op", "batch", "version")))
        if measured["ops"][op]["computes"]
    )
    assert drawn == Counter((stage, op, a["batch"], a["version"]) for stage, op, a, *_ in slices if op.isupper())
    for row, op, batch, begin, size in zip(*(measured[n] for n in ("row", "op", "batch", "begin", "length"))):
        name = measured["ops"][op]["name"]
        [(from_, to)] = [e[3:] for e in slices if (e[0], e[1], e[2]["batch"]) == (row, name, batch)]
        assert (begin, begin + size) == pytest.approx((from_, to), abs=1.1)
    assert measured["end"] == pytest.approx(max(each[4] for each in slices), abs=1.1)


def test_a_timeline_opens_where_batches_take_their_usual_time():
    """The first ones of a GPU took up to 80 ms, a later one about 1 ms: there was nothing to be seen of these."""
    [found], slices = shown(GPU), slices_of(GPU)
    begins = [min(begin for _, _, a, begin, _ in slices if a["batch"] == n) for n in range(76)]
    taken = [after - before for before, after in pairwise(begins)]
    opens = found["measured"]["opens"]
    assert max(taken[opens : opens + 4]) < 3 * median(taken) < taken[opens - 1]
    assert not any(max(taken[n : n + 4]) < 3 * median(taken) for n in range(opens))
    assert found["measured"]["note"] == f"It opens at batch {opens}, where batches take as long as most do."
    assert found["planned"]["opens"] == 0


@pytest.mark.parametrize(
    ("begins", "opens"),
    [([0, 1, 2, 3, 4, 5], 40), ([0, 9, 10, 11, 12, 13], 41), ([0, 90, 91, 92, 93, 190], 40), ([0], 40), ([0, 9], 40)],
)
def test_where_a_timeline_opens_by_hand(begins, opens):
    """Of a trace that begins with batch 40."""
    events = [fw.TraceEvent(0, 0, "F", 40 + n, 0, n, begin, begin + 0.5) for n, begin in enumerate(begins)]
    found = measured_timeline(fw.Trace(events, {"rows": ["stage 0"]}))
    assert found["opens"] == opens
    assert found["note"] == ("" if opens == 40 else "It opens at batch 41, where batches take as long as most do.")


def test_the_planned_timeline_is_that_of_the_plan(run):
    [found] = shown(run)
    facts = json.loads((run / "run.json").read_text())
    plan = fw.plan(facts["method"]["name"], k=facts["stages"], batches=facts["timeline"]["batches"])
    planned = found["planned"]
    cells = zip(*(planned[name] for name in ("row", "op", "batch", "version")))
    assert {(row, planned["ops"][op]["name"], batch, version) for row, op, batch, version in cells} == {
        (stage, a.op.value, a.batch, a.version) for stage, s in enumerate(plan.streams) for a in s if a.op.value in "FB"
    }


def test_shares_of_the_time_are_those_of_the_trace(run):
    [found], slices = shown(run), slices_of(run)
    whole = max(each[4] for each in slices)
    parts = [part["key"] for part in found["shares"]["parts"]]
    for stage, values in enumerate(found["shares"]["values"]):
        spent = defaultdict(float)
        for tid, op, _, begin, end in slices:
            if tid == stage:
                kind = "compute" if op.isupper() else "data" if op == "data" else "before" if op in BEFORE else "after"
                spent[kind] += (end - begin) / whole
        spent["other"] = 1 - sum(spent.values())
        assert dict(zip(parts, values)) == pytest.approx({part: spent[part] for part in parts}, abs=2e-3)
        assert sum(values) == pytest.approx(1, abs=1e-3)
    assert ("data" in parts) == any(op == "data" for _, op, *_ in slices), "what is not recorded is not told as nothing"


def test_staleness_is_the_number_of_updates_between_forward_and_update(run):
    [found], slices = shown(run), slices_of(run)
    facts = json.loads((run / "run.json").read_text())
    for stage in range(facts["stages"]):
        own = [(op, a["batch"]) for tid, op, a, *_ in slices if tid == stage and op in ("F", "U")]
        late = [
            sum(op == "U" for op, _ in own[own.index(("F", n)) : own.index(("U", n))]) for op, n in own if op == "U"
        ]
        assert found["staleness"]["counts"][stage] == [[gap, late.count(gap)] for gap in sorted(set(late))]
        assert found["staleness"]["mean"][stage] == pytest.approx(fmean(late), abs=1e-3)
        assert late[-1] == found["staleness"]["planned"][stage]


def test_memory_is_that_of_the_run_and_its_plan(run):
    [found] = shown(run)
    facts, final = (json.loads((run / name).read_text()) for name in ("run.json", "final.json"))
    peaks = {each["name"]: each["bytes"] for each in found["memory"]["peaks"]}
    assert peaks.pop("this process") == final["memory"]["host"]
    gpus = final["memory"]["devices"]
    assert peaks == {f"{device}, {kind}": value for device, each in gpus.items() for kind, value in each.items()}
    wanted = fw.plan(facts["method"]["name"], k=facts["stages"]).memory()
    assert found["memory"]["kept"] == [[each.inputs, each.graphs, each.weights] for each in wanted]


# ---- two threads, replicas, races


def test_a_stage_with_two_threads_has_two_rows_and_one_share(tmp_path):
    folder = recorded(tmp_path / "run", "dsp", runtime="threads", overlap=True)
    [found] = shown(folder)
    measured = found["measured"]
    overlaps = fw.Run.open(folder).trace().meta["overlaps"]
    lanes = [(k, name) for k in range(3) for name in ("", ", forwards") if not name or k in overlaps]
    assert overlaps
    assert measured["rows"] == [f"stage {k}{name}" for k, name in lanes]
    for place, name in enumerate(measured["rows"]):
        own = [i for i, row in enumerate(measured["row"]) if row == place]
        ops = {measured["ops"][measured["op"][i]]["name"] for i in own}
        assert ("F" in ops) == (name.endswith("forwards") or int(name[6:]) not in overlaps)
        spans = sorted((measured["begin"][i], measured["begin"][i] + measured["length"][i]) for i in own)
        assert all(end <= begin + 2 for (_, end), (begin, _) in pairwise(spans)), "a row does one thing at a time"
    slices, rows = slices_of(folder), len(found["shares"]["rows"])
    assert rows == 3
    whole = max(each[4] for each in slices)
    for stage, (busy, *_) in enumerate(found["shares"]["values"]):
        computed = union((begin, end) for tid, op, _, begin, end in slices if tid % 3 == stage and op.isupper())
        assert busy == pytest.approx(computed / whole, abs=2e-3), "what overlaps counts once"


def test_replicas_are_rows(tmp_path):
    [found] = shown(recorded(tmp_path / "run", replicas=2, stages=network(2)))
    assert found["measured"]["rows"] == [f"stage {k} · replica {r}" for r in range(2) for k in range(2)]
    assert len(found["shares"]["rows"]) == 2
    keys = [part["key"] for part in found["shares"]["parts"]]
    assert keys == ["compute", "before", "after", "replicas", "data", "other"]
    assert all(values[keys.index("replicas")] > 0 for values in found["shares"]["values"])


def test_workers_of_a_race_are_rows_without_a_plan(tmp_path):
    stages = [nn.Linear(6, 12), nn.Sequential(nn.Tanh(), nn.Linear(12, 3))]
    [found] = shown(recorded(tmp_path / "run", fw.AsyncLU(), stages=stages, runtime="threads"))
    assert found["measured"]["rows"] == ["forward worker 0", "backward worker 0", "backward worker 1"]
    assert found["planned"]["missing"].startswith("This method has no plan")
    assert found["memory"]["kept_note"] == "A race has no plan that says what each stage keeps."
    assert [f["text"] for f in found["figures"] if f["key"] == "delays"] == ["not planned"]
    assert found["staleness"]["planned"] is None
    assert found["shares"]["of"] == "worker"
    assert "of the time, mean of all workers" in [figure["note"] for figure in found["figures"]]


def test_micro_batches_have_numbers_and_updates_have_none(tmp_path):
    [found] = shown(recorded(tmp_path / "run", fw.GPipe(micro=3)))
    measured = found["measured"]
    micros = defaultdict(set)
    for op, micro in zip(measured["op"], measured["micro"]):
        micros[measured["ops"][op]["name"]].add(micro)
    assert (micros["F"], micros["B"], micros["U"]) == ({0, 1, 2}, {0, 1, 2}, {-1})
