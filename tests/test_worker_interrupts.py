"""Ctrl-C on a terminal, which goes to every process on it, while worker processes are being started."""

from __future__ import annotations

import subprocess
import sys

EARLY = """
import multiprocessing, os, signal
from multiprocessing import forkserver
from freewheel.runtime import unblock_interrupts, worker_context

def hear(connection):
    connection.send("begun")
    reading, writing = os.pipe()
    signal.signal(signal.SIGINT, lambda *_: os.write(writing, b"!"))
    unblock_interrupts()
    os.read(reading, 1)  # until then the signal may come earlier or later
    connection.send("heard")

if __name__ == "__main__":
    context = worker_context()
    forkserver.ensure_running()
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGINT)  # which is loading torch
    ours, theirs = multiprocessing.Pipe()
    worker = context.Process(target=hear, args=(theirs,))
    worker.start()
    os.kill(worker.pid, signal.SIGINT)  # which is loading this script
    print(ours.recv(), ours.recv())
    worker.join()
    print(worker.exitcode)
"""


def test_workers_start_although_ctrl_c_comes_while_they_load(tmp_path):
    """The server that starts them ended with a traceback, and the run failed with `Broken pipe`."""
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    assert (result.stderr, result.stdout) == ("", "begun heard\n0\n")
