"""What the runtime `graph` does before the first batch, and when a capture fails: with stand-ins for CUDA, on a CPU."""

from __future__ import annotations

import pytest
import torch

import freewheel as fw
from checkpoints import resume, saved_at
from freewheel.runtime._fixed import NotCapturedError
from freewheel.runtime._recording import recording
from rows import batches, network, same_bits, tensors, trainer
from stand_in import Races, stand_in as stand_in


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("method", ["pipedream", "dsp", "pipemare", fw.AsyncFGD(scale=0.1)], ids=str)
def test_a_resumed_run_begins_after_what_was_loaded(method, tmp_path):
    made = trainer(network(3), method, runtime="graph")
    made.fit(batches(30), save_to=tmp_path, save_every=11)
    path = next(iter(saved_at(tmp_path).values()))
    with Races() as races:
        again = resume(path, network(3, seed=77), method, runtime="graph")
        again.fit(batches(30))
    assert same_bits(tensors(*made.stages), tensors(*again.stages))
    assert not races.found


class Broken:
    """A graph whose capture has become invalid, which torch 2.11 notices before it lets go of the memory."""

    def capture_begin(self, pool, capture_error_mode):
        pass

    def capture_end(self):
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.mark.parametrize("left", [False, True], ids=["torch 2.11", "later"])
@pytest.mark.parametrize("words", ["operation not permitted", None])
def test_the_allocator_leaves_a_capture_that_fails(words, left, monkeypatch):
    def end(device, pool):
        ended.append((device, pool))
        if left:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    ended = []
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)

    def capture():
        with recording(Broken(), (0, 7), "the forward"):
            if words:
                raise RuntimeError(words)

    with pytest.raises(NotCapturedError, match=f"the forward cannot be captured .*{words or 'previous error'}"):
        capture()
    assert ended == [(3, (0, 7))]


def test_a_capture_for_which_there_is_no_memory_says_so(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: None, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(torch.OutOfMemoryError, match="tried"), recording(Broken(), (0, 7), "the forward"):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")
