"""The page of a run in every state: what is missing is said, how it has ended is said, and nothing in it is loaded."""

from __future__ import annotations

import errno
import json
import shutil
import signal
from pathlib import Path

import pytest

import freewheel as fw
from command_line import freewheel
from freewheel.report import page, report_data
from freewheel.report._words import moment
from report_runs import GPU, lines_of, recorded, shown
from rows import batches, network, trainer
from spread import exhaustive, spread


def test_a_run_without_trace_and_scores_says_so(tmp_path):
    [found] = shown(recorded(tmp_path / "run", epochs=1, trace=False, validate=None))
    assert found["measured"] == {"missing": "This run has no trace; --trace or fit(trace=True) records one."}
    assert found["curves"]["metric"] is None
    assert found["curves"]["validation_loss"] is None
    assert [part["text"] for part in found["shares"]["parts"]] == ["computing", "not computing"]
    line = lines_of(tmp_path / "run")[-1]
    assert [value for value, _ in found["shares"]["values"]] == pytest.approx(line["busy"], abs=1e-5)
    assert found["staleness"]["mean"] == pytest.approx(line["staleness"], abs=1e-3)
    assert found["configuration"]["repeat"] is None


def test_without_a_trace_it_is_not_known_what_a_gpu_computes(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(GPU, folder, ignore=shutil.ignore_patterns("trace*"))
    facts = json.loads((folder / "run.json").read_text())
    facts["arguments"]["trace"] = False
    (folder / "run.json").write_text(json.dumps(facts))
    [found] = shown(folder)
    why = "This run has no trace; --trace or fit(trace=True) records one."
    assert found["shares"] == {"missing": f"{why} Without it, the share of computing is not known on a GPU."}
    assert "busy" not in {figure["key"] for figure in found["figures"]}


@spread(status=["running", "interrupted", "failed", "lost"])
def test_how_a_run_has_ended_is_said(status, tmp_path):
    made = trainer(network(2), "fdg")
    found = []

    def stop(end):
        [seen] = shown(tmp_path / "run")
        found.append(seen)
        if status == "failed":
            raise ValueError("no more\n disk")

    try:
        with fw.RunRecorder(tmp_path / "run", made, {"arguments": {"trace": True}}) as recorder:
            made.fit(batches(4), callbacks=[recorder, stop])
    except ValueError:
        assert status == "failed"
    if status == "lost":
        (tmp_path / "run" / "final.json").unlink()
    if status != "running":
        found = shown(tmp_path / "run")
    [seen] = found
    assert seen["status"]["name"] == status
    assert len(seen["curves"]["epochs"]) == 1
    assert ("no more disk" in seen["status"]["sentence"]) == (status == "failed")
    said = "The trace is written when the run ends"
    for part in ("measured", "shares"):
        why = seen[part]["missing" if part == "measured" else "note"]
        assert why.startswith(f"{said}." if status == "running" else f"{said}, and this one was broken off."), part


def test_an_epoch_that_was_broken_off_does_not_count(tmp_path):
    """The page said 2 of 4 epochs where `freewheel train` had said one."""

    def stop(end):
        if end.step == 12:
            signal.raise_signal(signal.SIGINT)

    made = trainer(network(2), "pipedream", runtime="simulate")
    with fw.RunRecorder(tmp_path / "run", made, {"epochs": 4}) as recorder:
        history = made.fit(batches(10), epochs=4, callbacks=[recorder], batch_callbacks=[stop])
        recorder.finish(history)
    assert [line["complete"] for line in lines_of(tmp_path / "run")] == [True, False]
    [found] = shown(tmp_path / "run")
    [epochs] = [figure for figure in found["figures"] if figure["key"] == "epochs"]
    assert epochs["text"] == "1 of 4"
    assert epochs["note"] == f"{history.batches} batches"


def test_a_trace_of_no_batch_is_empty(tmp_path):
    [found] = shown(recorded(tmp_path / "run", trace=range(1000, 1010)))
    assert found["measured"]["missing"] == "The trace is empty: no batch of this run was recorded."
    assert found["shares"]["note"].startswith(found["measured"]["missing"])


def test_what_has_not_begun_is_said(tmp_path):
    made = trainer(network(2), "fdg")
    with fw.RunRecorder(tmp_path / "run", made):
        [found] = shown(tmp_path / "run")
    assert found["curves"] == {"missing": "The first epoch has not ended yet."}
    assert "once an epoch has ended" in found["shares"]["missing"]
    assert "once an epoch has ended" in found["staleness"]["missing"]


@exhaustive
def test_a_long_trace_is_drawn_in_part_and_counted_whole(tmp_path):
    folder = recorded(tmp_path / "run", "pipedream", count=800)
    [found] = shown(folder)
    assert len(found["measured"]["row"]) == 12_000
    assert found["measured"]["note"].startswith("The first 12,000 of ")
    assert sum(times for _, times in found["staleness"]["counts"][0]) == 1600
    twenty = shown(*(recorded(tmp_path / f"run-{i}", count=200, epochs=1) for i in range(20)))
    assert sum(len(each["measured"]["row"]) for each in twenty) <= 12_000
    assert len(page(report_data([fw.Run.open(folder)])).encode()) < 2_000_000


def test_infinite_and_undefined_losses_leave_gaps(tmp_path):
    folder = recorded(tmp_path / "run", trace=False)
    lines = lines_of(folder)
    lines[0]["loss"], lines[1]["validation"]["loss"] = float("inf"), float("nan")
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [found] = shown(folder)
    assert found["curves"]["loss"][0] is None
    assert found["curves"]["validation_loss"][1] is None


# ---- the page


def test_nothing_in_the_data_ends_the_script_or_loads_anything(tmp_path):
    made = trainer(network(2), "fdg")
    folder = tmp_path / "a & b"
    with fw.RunRecorder(folder, made, {"command": "</script><script>alert(1)</script><!--", "repeat": "@style@"}):
        pass
    html = page(report_data([fw.Run.open(folder)]))
    assert "alert(1)" in html
    assert "</script><script>alert" not in html
    assert html.count("<title>a &amp; b · Freewheel</title>") == 1
    text = html.split('id="data">', 1)[1].split("</script>", 1)[0]
    assert json.loads(text)["runs"][0]["configuration"]["repeat"] == "@style@"
    assert "connect-src 'none'" in html
    assert not [line for line in html.splitlines() if "<link" in line and 'href="data:,"' not in line]


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    folders = [recorded(tmp_path / parent / "run", epochs=1, trace=False) for parent in ("one", "two")]
    assert [found["name"] for found in shown(*folders)] == [str(folder) for folder in folders]


def test_where_the_page_goes(tmp_path):
    folder = recorded(tmp_path / "run", epochs=1, trace=False)
    result = freewheel("report", str(folder))
    assert result.exit_code == 0
    assert (folder / "report.html").exists()
    (folder / "report.html").unlink()
    for arguments, message in (
        ((str(folder), str(folder)), "that run is given twice; name each once"),
        ((str(tmp_path / "none"),), "there is no such folder"),
        ((str(folder), "--out", str(tmp_path)), "--out"),
    ):
        result = freewheel("report", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_moment_is_told_in_utc():
    assert moment("2026-03-01T23:30:12-02:00") == "2026-03-02 01:30 UTC"


def test_a_page_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    """Not the new file that was to take its place."""
    folder = tmp_path / "run"
    with fw.RunRecorder(folder) as recorder:
        recorder.finish()
    out = tmp_path / "page.html"

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    assert freewheel("report", str(folder), "--out", str(out)).stderr == (
        f"error: {out}: it cannot be written (Read-only file system)\n"
    )
