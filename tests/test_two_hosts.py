"""torchrun across two hosts: the same bits over a slow, lossy link; with the link cut, both sides name the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spread import exhaustive
from two_hosts import ADDRESSES, DEVICE, TwoHosts, allowed

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(
        not allowed(), reason="no right to make network namespaces (needs root, iproute2 and /dev/net/tun)"
    ),
    exhaustive,
]


def start(hosts: TwoHosts, script: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    """torchrun on both hosts, a process each; outputs are piped."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": DEVICE}
    out = []
    for host in range(2):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={host}"]
        where = ["--nproc-per-node=1", f"--master-addr={ADDRESSES[0]}", "--master-port=29511"]
        command = hosts.command(host, *torchrun, *where, str(script), *arguments)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        out.append(subprocess.Popen(command, env=env, start_new_session=True, **pipes))
    return out


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(("delay", "loss"), [(0.0, 0.0), (0.05, 0.01)])
def test_two_hosts_give_the_bits_of_simulate(delay, loss):
    with TwoHosts(delay=delay, loss=loss) as hosts:
        processes = start(hosts, HERE / "torchrun_rows.py", "auto", "5", "fdg", "asyncfgd")
        try:
            told = [process.communicate(timeout=200)[0] for process in processes]
        finally:
            end(processes)
    for rank, text in enumerate(told):
        assert re.findall(r"rank \d(?: done|: .*)", text) == [f"rank {rank} done"], f"{hosts.kind}: {text[-3000:]}"


CUT = """
import os, time
from rows import batches, network, trainer

class Loader:
    def __iter__(self):
        for n, batch in enumerate(batches(4000)):
            if n == 30:
                print("under way", flush=True)
            yield batch
            time.sleep(0.01)

try:
    trainer(network(2), "pipedream", runtime="torchrun", timeout=10).fit(Loader())
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(3)
"""


def test_both_sides_of_a_cut_link_name_the_other(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CUT)
    with TwoHosts() as hosts:
        processes = start(hosts, script)
        try:
            lines = [iter(process.stdout) for process in processes]  # pyright: ignore
            assert any(line == "under way\n" for line in lines[0])
            hosts.cut()
            told = [next((line for line in each if "Error: " in line), "nothing") for each in lines]
        finally:
            end(processes)
    assert re.match(r"LostError: stage 1 \(rank 1, pid \d+ on \S+\) has sent no heartbeat for 7 s", told[0]), told
    assert re.match(
        r"LostError: stage 0 \(rank 0, pid \d+ on \S+\) or the agent of torchrun beside it has not answered for 7 s",
        told[1],
    ), told
