"""The order of ending: the first error is where all can read it before anything of the failing process is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from freewheel.plan import Action
from freewheel.runtime import LostError, StageError, _faults, _workers, diagnosed
from freewheel.runtime._faults import Faults
from freewheel.runtime._heartbeat import Heartbeat
from freewheel.runtime._workers import LOST
from freewheel.runtime._world import fresh_store

TITLES = {rank: f"stage {rank} (rank {rank}, pid 1{rank} on here)" for rank in range(3)}


@pytest.fixture
def store():
    return fresh_store(60)[0]


def faults(store, rank):
    return Faults(store.clone(), rank, TITLES)


def boom(stage=1):
    return StageError(stage, Action.parse("F4@0"), KeyError("boom"))


def test_a_closed_wire_is_explained_by_the_error_behind_it(store):
    own = boom()
    assert faults(store, 1).settle(own) is own
    for rank in (0, 2):
        found = faults(store, rank).settle(LostError(TITLES[1]))
        assert str(found) == f"stage 1{TITLES[1][7:]} failed in the forward of batch 4: KeyError: 'boom'"
        assert "KeyError: 'boom'" in str(found.__cause__), "the traceback of the process that failed"
        assert (found.stage, found.batch) == (1, 4)


def test_the_first_loss_is_the_one_that_all_report(store):
    """Rank 1 was killed; rank 0 ends because of that, and rank 2 finds the wires of both closed."""
    lost = LostError(TITLES[1])
    assert faults(store, 0).settle(lost) is lost
    assert str(faults(store, 2).settle(LostError(TITLES[0]))) == str(lost)


def test_an_own_error_is_raised_even_if_it_is_not_the_first(store):
    first, second = boom(1), boom(2)
    faults(store, 1).settle(first)
    assert faults(store, 2).settle(second) is second
    assert faults(store, 0).first().stage == 1


def test_other_errors_name_the_process(store):
    faults(store, 0).settle(OSError("disk gone"))
    assert str(faults(store, 1).first()) == f"{TITLES[0]}: OSError: disk gone"


def test_a_full_disk_is_an_error_of_the_system_here_too(store):
    """`freewheel train` tells it in one line then, as it does where the stages are threads."""
    faults(store, 1).settle(OSError("stage-1.pt: it cannot be written"))
    with pytest.raises(OSError, match=r"^stage 1 .*: OSError: stage-1\.pt: it cannot be written$"):
        raise faults(store, 2).first()


def test_a_failing_process_stays_until_all_have_read_its_error(store):
    failing, reading, finished = (faults(store, rank) for rank in range(3))
    failing.settle(boom(0))
    over = threading.Event()
    leaving = threading.Thread(target=lambda: (failing.wait_until_read(), over.set()))
    leaving.start()
    finished.leave()
    assert not over.wait(0.2)  # rank 1 has not read it
    assert reading.first() is not None
    leaving.join()


def test_nobody_waits_for_the_process_that_is_lost(store, monkeypatch):
    staying, reading = faults(store, 0), faults(store, 2)
    staying.settle(LostError(TITLES[1]))
    reading.settle(LostError(TITLES[1]))
    clock = SimpleNamespace(monotonic=iter([0.0, 1.0]).__next__, sleep=time.sleep)  # one look, and no more
    monkeypatch.setattr(_faults, "time", clock)
    staying.wait_until_read()


def test_a_store_that_is_gone_leaves_the_error_as_it_is(store):
    class Gone:
        def compare_set(self, *_):
            raise RuntimeError("Connection reset by peer")

        set = check = compare_set

    own = LostError(TITLES[1])
    here = Faults(Gone(), 0, TITLES)
    assert here.settle(own) is own
    assert here.first() is None


def test_a_heartbeat_brings_the_error_of_another_process(store):
    found = []
    beating = Heartbeat(store, 0, TITLES, 60, server="the caller", on_fault=found.append)
    beating.start()
    failing = faults(store, 1)
    failing.settle(boom())
    faults(store, 2).leave()
    failing.wait_until_read()  # that is, until rank 0 has
    for thread in beating._threads:
        thread.join()
    beating.stop()
    assert [(type(error), error.stage) for error in found] == [(StageError, 1)]


def test_a_stage_that_hangs_is_reported_by_its_own_process(store):
    found = threading.Event()
    beating = Heartbeat(store, 1, TITLES, 60, server="the caller", on_fault=lambda error: found.set())
    beating.doing = lambda: (Action.parse("B3@1"), time.perf_counter() - 100)
    beating.start()
    found.wait()
    beating.stop()
    words = "hangs: it has been in the backward of batch 3 for more than 60 s; a longer timeout lets it take its time"
    assert str(faults(store, 0).first()) == f"{TITLES[1]} {words}"


def test_the_exit_code_of_a_killed_worker_may_come_last(monkeypatch):
    """Its peers have noticed, and have ended too, before the system says what became of it."""
    peer, killed, late = (SimpleNamespace(exitcode=code, pid=7, sentinel=object()) for code in (LOST, None, None))

    def wait(sentinels, timeout):
        ended = late if late.exitcode is None else killed
        ended.exitcode = LOST if ended is late else -signal.SIGKILL
        return [ended.sentinel]

    monkeypatch.setattr(_workers, "wait", wait)
    found = diagnosed(LostError("a worker"), [peer, killed, late], ["stage 0", "stage 1", "stage 2"], None)
    place = rf"stage 1 (rank 1, pid 7 on {os.uname().nodename})"
    assert str(found).startswith(f"{place} was ended by signal 9 (SIGKILL)")
