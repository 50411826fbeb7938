"""Stale files of killed runs are removed by the next run, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import freewheel as fw
from checkpoints import run_saved
from freewheel.checkpoint import _lock
from freewheel.checkpoint._lock import writer_lock

WRITES = """
    import sys
    from pathlib import Path
    from freewheel.checkpoint._lock import writer_lock

    folder = Path({folder!r})
    with writer_lock(folder, "elsewhere"):
        (folder / ".unfinished-elsewhere-3").mkdir()
        (folder / ".unfinished-elsewhere-3" / "stage-0.pt").write_bytes(b"half")
        print("writing", flush=True)
        sys.stdin.read()
"""


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def left(folder: Path, token: str, boot: bytes | None) -> None:
    """Leave the files of a run of this boot; None for one without a writer lock."""
    (folder / f".unfinished-{token}-7").mkdir()
    (folder / f".unfinished-{token}-7" / "stage-0.pt").write_bytes(b"half")
    if boot is not None:
        (folder / f".writer-{token}").write_bytes(boot)


def save(folder: Path) -> None:
    run_saved(folder, fw.PipeDream(), 2)


def test_files_of_another_process_are_removed_once_it_is_dead(tmp_path):
    script = textwrap.dedent(WRITES).format(folder=str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            save(tmp_path)
            alive = hidden(tmp_path)
        finally:
            process.kill()
        process.wait()
        assert alive == [".unfinished-elsewhere-3", ".writer-elsewhere"]
        assert hidden(tmp_path) == alive
        save(tmp_path)
        assert hidden(tmp_path) == []


def test_two_runs_of_one_process_leave_each_other_alone(tmp_path):
    with writer_lock(tmp_path, "one"):
        (tmp_path / ".unfinished-one-1").mkdir()
        with writer_lock(tmp_path, "two"):
            assert hidden(tmp_path) == [".unfinished-one-1", ".writer-one", ".writer-two"]
        assert hidden(tmp_path) == [".unfinished-one-1", ".writer-one"]
    assert hidden(tmp_path) == []


def test_files_of_writers_that_may_be_alive_stay(tmp_path):
    """Of a run on another host, one whose lock has no boot id yet, and one without a lock."""
    left(tmp_path, "remote", b"00000000-0000-0000-0000-000000000000")
    left(tmp_path, "no-boot", b"")
    left(tmp_path, "no-lock", None)
    before = hidden(tmp_path)
    save(tmp_path)
    assert hidden(tmp_path) == before
    left(tmp_path, "here", _lock._BOOT.read_bytes().strip())
    save(tmp_path)
    assert hidden(tmp_path) == before


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_lock.fcntl, "flock", flock)


def no_fcntl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lock, "fcntl", None)


def no_boot_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lock, "_BOOT", Path("/nowhere/boot_id"))


@pytest.mark.parametrize("missing", [no_locks, no_fcntl, no_boot_ids])
def test_without_locks_or_boot_ids_a_run_removes_only_its_own_files(missing, tmp_path, monkeypatch):
    left(tmp_path, "here", _lock._BOOT.read_bytes().strip())
    before = hidden(tmp_path)
    missing(monkeypatch)
    save(tmp_path)
    assert hidden(tmp_path) == before
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
