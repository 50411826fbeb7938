"""Stages in processes of their own: the same bits, clear errors, nothing left behind."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from freewheel.runtime._layout import Layout, compact, described
from freewheel.tangents import Dual
from rows import OPTIMIZERS, ROWS, batches, network, often, same_bits, tensors, trainer
from spread import exhaustive, rarely, spread

HERE = Path(__file__).parent


def pair(row, k, optimizer="sgd", **options):
    """Both runs of a row: weights and histories."""
    out = []
    for runtime in ("simulate", "processes"):
        stages = network(k)
        made = trainer(stages, row.make(k), optimizer=OPTIMIZERS[optimizer], runtime=runtime, **options)
        history = made.fit(batches(16), epochs=2, validate=batches(3, seed=9))
        states = [o.state_dict() for o in made.optimizers if o is not None]
        out.append((tensors(*stages), history, states))
    return out


@spread(row=often(ROWS), k=[2, 4])
def test_processes_equal_simulate_bit_for_bit(row, k):
    (expected, before, there), (found, after, here) = pair(row, k, "adam" if k == 2 else "sgd", timeout=60)
    assert same_bits(expected, found)
    assert before.losses == after.losses
    assert before.metrics == after.metrics
    assert [e.staleness for e in before.epochs] == [e.staleness for e in after.epochs]
    assert str(there) == str(here)  # the optimizers' state came back too


@pytest.mark.parametrize("transport", ["gloo", "shared"])
def test_every_transport_gives_the_same_bits(transport):
    row = next(row for row in ROWS if row.name == "fdg")
    (expected, _, _), (found, _, _) = pair(row, 3, transport=transport, timeout=60)
    assert same_bits(expected, found)


def test_a_second_fit_goes_on_where_the_first_ended():
    out = []
    for runtime in ("simulate", "processes"):
        stages = network(2)
        scheduler = partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[10, 20])
        made = trainer(
            stages, fw.Pipeline(delays=(1, 0), corrections=[fw.Accumulate(4)]), runtime=runtime, scheduler=scheduler
        )
        made.fit(batches(9))
        made.fit(batches(14, seed=5))
        out.append(tensors(*stages))
    assert same_bits(*out)


def test_a_callback_stops_at_its_cut():
    out = []
    for runtime in ("simulate", "processes"):
        stages = network(3)
        made = trainer(stages, fw.FDG(), runtime=runtime, optimizer=OPTIMIZERS["adam"])
        history = made.fit(batches(8), epochs=5, callbacks=[lambda end: end.record.epoch == 1])
        assert history.stopped
        assert history.batches == 16
        assert not history.interrupted
        out.append(tensors(*stages))
    assert same_bits(*out)


def test_ctrl_c_drains_and_leaves_a_consistent_network(capsys):
    class Loader:
        def __iter__(self):
            for n, batch in enumerate(batches(40)):
                if n == 12:
                    signal.raise_signal(signal.SIGINT)
                yield batch

    stages = network(3)
    history = trainer(stages, "fdg", runtime="processes").fit(Loader(), epochs=2)
    assert history.interrupted
    assert "interrupted" in capsys.readouterr().err
    other = network(3)
    trainer(other, "fdg").fit(batches(40)[: history.batches])
    assert same_bits(tensors(*stages), tensors(*other))


# -- what can travel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tree",
    [
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(1).expand(4, 7),
        torch.zeros(0, 3),
        torch.tensor(3, dtype=torch.int16),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.float64)[1:],
        torch.randn(3, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.complex64),
        (torch.ones(2), [None, 3, -1.5, "text", True], {"a": {1: torch.zeros(1)}}),
        Dual(torch.ones(2), [[torch.zeros(2), None]]),
        {"inf": float("inf"), "counts": Counter({3: 1}), "ordered": OrderedDict(b=1, a=torch.ones(1))},
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_a_tree_comes_out_as_it_went_in(tree):
    node, leaves = described(tree)
    layout = Layout.read(Layout(node).text)
    packet = torch.empty(layout.size, dtype=torch.uint8)
    layout.write(packet, leaves)
    found = layout.take(packet)
    assert type(found) is type(tree)
    back, others = described(found)
    assert back == node  # structure, shapes, strides, types and plain values
    assert all(torch.equal(a, b) for a, b in zip(leaves, others))
    packet.zero_()
    assert all(torch.equal(a, b) for a, b in zip(leaves, others))  # in memory of its own


def test_what_cannot_travel_is_named():
    for tree, words in ((object(), "a object"), ({1, 2}, "a set"), (torch.zeros(2).to_sparse(), "sparse")):
        with pytest.raises(TypeError, match=words):
            described({"x": [tree]})


def test_sparse_views_of_large_tensors_are_copied_before_they_are_sent():
    large = torch.randn(4, 50, 3)
    assert compact(large[:, -1]).untyped_storage().nbytes() == 4 * 3 * 4
    assert compact(large.transpose(1, 2)).data_ptr() == large.data_ptr()
    kept, cut = compact((large, {"h": large[:, 0]}))
    assert kept is large
    assert cut["h"].is_contiguous()


class Odd(nn.Module):
    """Passes on something else with every batch: other shapes, other plain values, strided tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        h = self.linear(x).unsqueeze(1).expand(-1, 3, -1)
        return {"h": h[:, :, ::2], "more": [h.transpose(0, 2)] if self.calls % 3 else [], "call": self.calls}


class Even(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        out = self.linear(x["h"].sum(1)) * (1 + x["call"] % 2)
        return out + sum(t.mean() for t in x["more"])


@pytest.mark.parametrize("transport", ["gloo", "shared"])
def test_messages_may_change_their_form_with_every_batch(transport):
    out = []
    for runtime in ("simulate", "processes"):
        torch.manual_seed(0)
        stages = [Odd(), Even()]
        trainer(stages, fw.Pipeline(delays=(2, 0)), runtime=runtime, transport=transport, timeout=60).fit(batches(20))
        out.append(tensors(*stages))
    assert same_bits(*out)


# -- faults --------------------------------------------------------------------------------------------------------


class Trouble(nn.Module):
    """Does something at its fifth forward."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.calls = what, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 5 and self.training:
            if self.what == "raises":
                raise KeyError("boom")
            if self.what == "hangs":
                time.sleep(1000)
            os.kill(os.getpid(), {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[self.what])
        return x


def children(parent: int | None) -> set[int]:
    """The processes that a process has started."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/stat"):
        with suppress(OSError):
            if int(Path(path).read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(Path(path).parent.name))
    return found


def workers() -> set[int]:
    """The processes of stages that this one has started, through multiprocessing's server."""
    return children(forkserver._forkserver._forkserver_pid)


@pytest.mark.parametrize(
    ("what", "stage", "timeout", "error", "words"),
    [
        ("raises", 0, 60, fw.StageError, "failed in the forward of batch 4: KeyError: 'boom'"),
        ("raises", 2, 60, fw.StageError, "failed in the forward of batch 4: KeyError: 'boom'"),
        ("dies", 0, 60, fw.LostError, r"was ended by signal 9 \(SIGKILL\)"),
        ("dies", 2, 60, fw.LostError, r"was ended by signal 9 \(SIGKILL\)"),
        rarely("stops", 0, 6, fw.LostError, "has sent no heartbeat for 4.2 s", id="stops-0"),
        ("hangs", 2, 6, fw.LostError, "hangs: it has been in the forward of batch 4 for more than 6 s"),
    ],
    ids=lambda value: value if value in ("raises", "dies", "stops", "hangs", 0, 2) else "",
)
def test_a_worker_in_trouble_is_named_and_nothing_is_left(what, stage, timeout, error, words):
    stages = network(3)
    weights = tensors(*stages)
    stages[stage] = nn.Sequential(stages[stage], Trouble(what))
    made = trainer(stages, "pipedream", runtime="processes", timeout=timeout)
    place = rf"stage {stage} \(rank {stage}, pid \d+ on \S+\)"
    with pytest.raises(error, match=f"{place} {words}") as caught:
        made.fit(batches(30))
    if what == "raises":
        assert 'raise KeyError("boom")' in str(caught.value.__cause__), "the worker's traceback"
    assert not workers()
    assert not [t for t in threading.enumerate() if t.name.startswith("freewheel")]
    assert same_bits(tensors(*stages), weights)  # as before the run
    stages[stage][1].what = "nothing"
    stages[stage][1].calls = 10
    made.fit(batches(3))  # and it can go on


class Opaque(nn.Linear):
    """Passes on what cannot travel."""

    def forward(self, x):
        return slice(1, 2)


def test_what_a_stage_cannot_pass_on_is_named():
    made = trainer([Opaque(6, 4), nn.Linear(4, 3)], "bp", runtime="processes")
    words = r"^stage 0 \(rank 0, pid \d+ on \S+\): TypeError: a slice cannot travel between processes: pass on tensors"
    with pytest.raises(RuntimeError, match=words):
        made.fit(batches(3))


def test_an_error_of_the_loader_ends_the_workers():
    def broken():
        yield from batches(5)
        raise OSError("disk gone")

    class Loader:
        def __iter__(self):
            return broken()

    with pytest.raises(OSError, match="disk gone"):
        trainer(network(2), "pipedream", runtime="processes").fit(Loader())
    assert not workers()


def test_workers_end_with_their_caller(tmp_path):
    """The caller is killed; within the timeout none of its workers is there any more."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from rows import batches, network, trainer\n"
        "class Loader:\n"
        "    def __iter__(self):\n"
        "        for n, batch in enumerate(batches(40)):\n"
        "            if n == 20:\n"
        "                print('here', flush=True)\n"
        "                time.sleep(1000)\n"
        "            yield batch\n"
        "if __name__ == '__main__':\n"
        "    trainer(network(2), 'pipedream', runtime='processes', timeout=6).fit(Loader())\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "here\n"
        theirs = {pid for child in children(caller.pid) for pid in children(child)}
        assert len(theirs) == 2
        caller.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in theirs) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in theirs if Path(f"/proc/{pid}").exists()]


@exhaustive
def test_workers_end_with_a_caller_that_is_killed_while_they_start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from multiprocessing import active_children, forkserver\n"
        "from freewheel.runtime import _processes\n"
        "from rows import batches, network, trainer\n"
        "def killed(*arguments, **options):\n"
        "    print(forkserver._forkserver._forkserver_pid, *(worker.pid for worker in active_children()), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    _processes.World = killed\n"
        "    trainer(network(2), 'pipedream', runtime='processes').fit(batches(3))\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pids = caller.stdout.readline().split()
        assert len(pids) == 3
        caller.stdout.read()  # until the last of them has closed it
        assert caller.wait() == -signal.SIGKILL


@exhaustive
def test_a_script_without_a_guard_is_told_about_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "from rows import batches, network, trainer\n"
        "trainer(network(2), 'pipedream', runtime='processes', timeout=60).fit(batches(3))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "must begin its work under `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1, "the workers say nothing"


# -- bad input -----------------------------------------------------------------------------------------------------


def local_loss(out, target):
    return F.cross_entropy(out, target)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": lambda out, target: out.sum()}, r"^loss cannot be sent to another process \(.*lambda.*\): define"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}, "^optimizer cannot be sent to another process"),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.ConstantLR(o)}, "^scheduler cannot be sent to another"),
        ({"method": fw.AsyncFGD(direction=lambda n, k, w: w)}, "^method cannot be sent to another process"),
        ({"timeout": 0}, "^timeout=0: give the seconds to wait, a number above 0"),
        ({"timeout": "soon"}, "^timeout='soon': give the seconds to wait, a number above 0"),
        ({"transport": "pigeon"}, "^unknown transport 'pigeon'"),
        ({"runtime": "torchrun"}, "^runtime='torchrun' in a process that torchrun has not started: run torchrun"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input(options, words):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=words):
        trainer(network(2), **{"method": "pipedream", "runtime": "processes", **options})


def test_a_module_that_cannot_be_taken_along_is_named():
    class Hidden(nn.Linear):
        pass

    with pytest.raises(TypeError, match=r"^stages\[1\] cannot be sent to another process \(.*Hidden"):
        trainer([nn.Linear(6, 4), Hidden(4, 3)], "bp", runtime="processes")
