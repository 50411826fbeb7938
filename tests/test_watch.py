"""`freewheel watch`: what it serves and to whom, what it waits for, and what it draws in a terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from rich.console import Console

import freewheel as fw
from browser import browser as browser
from command_line import freewheel, good
from freewheel.cli._dashboard import dashboard
from freewheel.report import report_data
from freewheel.runs import _lock, newest_run, stamp_of
from freewheel.runs._lock import is_locked
from freewheel.watch import PageServer, Watched
from rows import batches, network, trainer
from spread import exhaustive, rarely

DEADLINE = 240.0  # seconds: for what hangs


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FREEWHEEL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@contextmanager
def going_on(folder: Path, method: str = "fdg") -> Iterator[fw.RunRecorder]:
    """A run that is being written; each call of it trains and writes one more epoch."""
    made = trainer(network(2), method)
    with fw.RunRecorder(folder, made, {"epochs": 9}) as recorder:
        made.fit(batches(3), epochs=2, validate=batches(2), callbacks=[recorder])
        recorder.progress(6, 27)
        yield recorder


def recorded(folder: Path) -> Path:
    with going_on(folder) as recorder:
        recorder.finish(fw.History(fw.Run.open(folder).epochs))
    return folder


@contextmanager
def served(*folders: Path) -> Iterator[PageServer]:
    with PageServer(Watched(folders, rest=0), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: PageServer, path: str, **headers: str):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=DEADLINE)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def drawn(folder: Path, columns: int = 80, **more) -> str:
    console = Console(width=columns, file=io.StringIO(), color_system=None)
    console.print(dashboard({**report_data([fw.Run.open(folder)]), "note": "", **more}, str(folder)))
    return console.file.getvalue()


# ---- what is known of a run


def test_the_data_are_those_of_the_report_and_made_again_when_they_change(tmp_path):
    with going_on(tmp_path / "run") as recorder:
        watched = Watched([tmp_path / "run"], rest=0)
        view = watched.look()
        assert view.data == {**report_data([fw.Run.open(tmp_path / "run")]), "note": ""}
        assert view.goes_on
        assert watched.look() is view, "nothing has changed"
        recorder.finish(fw.History(fw.Run.open(tmp_path / "run").epochs))
    ended = watched.look()
    assert (ended.status, ended.goes_on) == ("complete", False)
    assert ended.version != view.version
    assert watched.look() is ended


def test_a_process_that_ends_without_a_word_is_noticed(tmp_path):
    with going_on(tmp_path / "run"):
        before = stamp_of(tmp_path / "run")
    (tmp_path / "run" / "final.json").unlink()
    assert stamp_of(tmp_path / "run") != before
    assert Watched([tmp_path / "run"]).look().status == "lost"


def test_the_files_rest_after_a_look(tmp_path):
    folder = recorded(tmp_path / "run")
    watched = Watched([folder], rest=1e9)
    view = watched.look()
    (folder / "history.jsonl").write_text("")
    assert watched.look() is view


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    folder = recorded(tmp_path / "run")
    whole = (folder / "history.jsonl").read_text()
    (folder / "history.jsonl").write_text(whole[:-20])
    watched = Watched([folder], rest=0)
    assert watched.look().data["runs"][0]["curves"]["epochs"] == [1]
    (folder / "history.jsonl").write_text(whole)
    assert watched.look().data["runs"][0]["curves"]["epochs"] == [1, 2]


def test_a_run_that_has_not_begun_is_waited_for(tmp_path):
    watched = Watched([tmp_path / "first", tmp_path / "second"], rest=0)
    assert watched.look().note == (
        f"No run has begun in {tmp_path / 'first'}, {tmp_path / 'second'} yet; it is shown once it begins."
    )
    recorded(tmp_path / "second")
    view = watched.look()
    assert view.note == f"No run has begun in {tmp_path / 'first'} yet; it is shown once it begins."
    assert [run["name"] for run in view.data["runs"]] == ["second"]
    assert view.goes_on
    recorded(tmp_path / "first")
    assert watched.look().note == ""
    assert not watched.look().goes_on


def test_without_a_name_it_is_the_newest_run_and_after_its_end_a_newer_one(runs):
    watched = Watched(rest=0)
    assert watched.look().note == f"No run has begun in {runs} yet; it is shown once it begins."
    with going_on(runs / "one"):
        assert watched.look().data["title"] == "one"
        recorded(runs / "two")
        os.utime(runs / "one" / "run.json", (1, 1))
        assert newest_run(runs) == runs / "two"
        assert watched.look().data["title"] == "one", "it goes on"
    assert watched.look().data["title"] == "one"
    assert watched.look().data["title"] == "two"


def test_what_cannot_be_read_is_said_and_the_last_data_stay(tmp_path):
    folder = recorded(tmp_path / "run")
    watched = Watched([folder], rest=0)
    before = watched.look()
    whole = (folder / "history.jsonl").read_text()
    (folder / "history.jsonl").write_text("{}\n")
    view = watched.look()
    assert view.note.startswith(f"It cannot be read: {folder / 'history.jsonl'}: that is not what Freewheel has")
    assert view.data["runs"] == before.data["runs"]
    (folder / "history.jsonl").write_text(whole)
    assert watched.look() == before


def test_a_run_goes_on_while_somebody_asks_whether_it_does(tmp_path, monkeypatch):
    folder = recorded(tmp_path / "run")
    somebody = (folder / ".lock").open("rb")
    fcntl.flock(somebody, fcntl.LOCK_SH)

    def is_locked_then_they_leave(asked: Path) -> bool:
        found = is_locked(asked)
        somebody.close()
        return found

    monkeypatch.setattr(_lock, "is_locked", is_locked_then_they_leave)
    with fw.RunRecorder(folder, goes_on=True):
        assert somebody.closed


# ---- what is served


def test_the_page_and_its_data_are_served_and_nothing_else(tmp_path):
    with going_on(tmp_path / "run"), served(tmp_path / "run") as server:
        answer, text = ask(server, "/data.json")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert json.loads(text)["runs"][0]["status"]["name"] == "running"
        tag = answer.headers["ETag"]
        answer, nothing = ask(server, "/data.json", If_None_Match=tag)
        assert (answer.status, nothing, answer.headers["ETag"]) == (304, "", tag)
        answer, html = ask(server, "/?from=bookmark")
        assert answer.status == 200
        assert "connect-src 'self'" in html
        assert text.strip("{}") in html
        for path in ("/run.json", "/../run.json", f"/{tmp_path}/run/run.json", "/data.json/"):
            assert ask(server, path)[0].status == 404
    with served(tmp_path / "run") as server:
        answer, text = ask(server, "/data.json", If_None_Match=tag)
        assert answer.status == 200
        assert json.loads(text)["runs"][0]["status"]["name"] == "interrupted"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:9999", 200),  # through a tunnel
        ("LOCALHOST", 200),
        ("evil.example:{port}", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_only_this_host_is_answered(host, status, tmp_path):
    with served(recorded(tmp_path / "run")) as server:
        for path in ("/", "/data.json"):
            assert ask(server, path, Host=host.format(port=server.server_port))[0].status == status


def test_it_listens_on_loopback_alone(tmp_path):
    with served(tmp_path / "run") as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


# ---- the command


def test_ctrl_c_ends_it_with_a_line(tmp_path):
    folder = recorded(tmp_path / "run")
    code = "import sys; from freewheel.cli import main; sys.argv[1:] = %r; main()"
    typed = ["watch", str(folder), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", code % (typed,)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        port = int(line.split(":")[-1].split("/")[0])
        assert line == f"watching {folder}: http://127.0.0.1:{port}/ (Ctrl-C ends)\n"
        idle = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)  # a browser that keeps its connection
        connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        connection.request("GET", "/data.json")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
        idle.close()
        connection.close()
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (0, f"\nstopped watching {folder}: complete\n", "")


def test_what_is_refused_is_one_line(tmp_path, runs):
    folder = recorded(runs / "one")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, message in (
            ((str(folder), "--port", str(port)), f"--port {port}: it cannot be opened (Address already in use)"),
            ((str(folder), "--port", "70000"), "--port 70000: give a number up to 65535"),
            ((str(folder), "--text", "--port", "0"), "--port 0 with --text: there is no page then"),
            ((str(folder), "--text", "--open"), "--open with --text: there is no page then"),
            ((str(folder), str(folder)), f"{folder}: that run is given twice"),
            ((__file__,), f"{__file__}: that is a file, give the folder of a run"),
            ((str(runs),), f"{runs}: that is a folder of runs; name one of them, such as {folder}"),
        ):
            result = freewheel("watch", *arguments)
            assert result.exit_code == 2
            assert result.stderr.startswith(f"error: {message}")
            assert result.stderr.count("\n") == 1


# ---- in a terminal


def test_lines_follow_a_run_until_its_end(runs):
    said = io.StringIO()
    with going_on(runs / "one"):
        code = "import sys; from freewheel.cli import main; sys.argv[1:] = ['watch', '--text']; main()"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(3):
                said.write(process.stdout.readline())
        except BaseException:
            process.kill()
            process.communicate()
            raise
    out, _ = process.communicate(timeout=DEADLINE)
    first, *epochs = said.getvalue().splitlines()
    assert first == f"watching {runs / 'one'}"
    assert [line.split(":")[0] for line in epochs] == ["epoch 1", "epoch 2"]
    assert epochs[0].startswith("epoch 1: loss ")
    assert epochs[0].endswith(" samples/s")
    assert out.startswith("interrupted: ")
    assert process.returncode == 0


def test_lines_of_several_runs_name_them(tmp_path):
    said = good("watch", str(recorded(tmp_path / "one")), str(recorded(tmp_path / "two")), "--text").splitlines()
    assert [line.split(": ")[:2] for line in said[1:]] == [
        [name, what] for name in ("one", "two") for what in ("epoch 1", "epoch 2", "complete")
    ]


def test_the_dashboard_fits_a_terminal(tmp_path):
    with going_on(tmp_path / "run"):
        text = drawn(tmp_path / "run")
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[::2] == ["Running", "22%"]
    for found in ("Epochs", "2 of 9", "training loss", "▁", "stage 0", "stage 1", "computing", "staleness", "planned"):
        assert found in text


@exhaustive
def test_the_dashboard_of_several_runs_is_a_table(tmp_path):
    good("train", "--epochs", "1", "--limit", "40", "--no-compare", "-q", "--seeds", "2", "--run-dir", f"{tmp_path}/s")
    text = drawn(tmp_path / "s", columns=100)
    assert "s: 2 of 2 runs  Complete" in text
    assert "seed-0" in text
    assert "seed-1" in text
    assert "Accuracy" in text


@pytest.mark.parametrize("method", ["hogwild", rarely("async-lu")])
def test_the_dashboard_draws_races_and_traces(method, tmp_path):
    arguments = (
        "--epochs",
        "1",
        "--limit",
        "100",
        "--threads",
        "1",
        "--no-compare",
        "-q",
        "--trace",
        "--runtime",
        "simulate",
    )
    good("train", *arguments, "--method", method, "--run-dir", f"{tmp_path}/run")
    text = drawn(tmp_path / "run")
    assert max(map(len, text.splitlines())) <= 80
    for found in (
        "worker 0",
        "before  after  other",
        "before: waits for the stage before, after:",
        "staleness  conv1 0.",
    ):
        assert found in text


def test_the_dashboard_waits(tmp_path):
    console = Console(width=80, file=io.StringIO())
    console.print(dashboard(Watched([tmp_path / "run"]).look().data, "run"))
    assert "No run has begun in" in console.file.getvalue()
    with fw.RunRecorder(tmp_path / "run", trainer(network(2), "bp")):
        assert "The first epoch has not ended yet." in drawn(tmp_path / "run")


# ---- in the browser


def test_the_page_follows_a_run(tmp_path, browser):
    with served(tmp_path / "run") as server:
        page = browser.new_context().new_page()
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(f"{error}"))
        page.goto(server.url)
        page.get_by_text("No run has begun").wait_for()
        with going_on(tmp_path / "run") as recorder:
            page.get_by_text("Live: the page follows the run.").wait_for()
            page.locator("#curves svg").first.wait_for()
            page.locator("#planned-timeline").press("+")
            zoomed = page.locator("#planned-timeline").get_attribute("data-window")
            page.evaluate("() => (window.kept = document.querySelector('#curves svg'))")
            epochs = fw.Run.open(tmp_path / "run").epochs
            more = fw.History([*epochs, *(fw.Epoch(**{**vars(each), "epoch": each.epoch + 2}) for each in epochs)])
            recorder.finish(more)
        page.get_by_text("The run has ended; these are its final figures.").wait_for()
        assert page.locator("#curves figure").first.locator(".chart").get_attribute("aria-label").startswith("Loss")
        assert "4 of 9" in page.locator("#overview").inner_text()
        assert page.evaluate("() => window.kept.isConnected")
        assert page.locator("#planned-timeline").get_attribute("data-window") == zoomed
        assert page.title() == "run · Freewheel"
        assert said == []
        page.context.set_offline(True)
        page.get_by_text("The server has gone").wait_for()
        page.context.close()
