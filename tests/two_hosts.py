"""Two hosts on one machine: network namespaces with a link between them that can be slow, lossy or cut.

The link is a pair of virtual Ethernet devices. Where it is to be slow and the kernel has no netem, two TAP devices take
their place, and a thread carries frames between them, late, and drops some.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress

ADDRESSES = ("10.213.0.1", "10.213.0.2")
DEVICE = "fw0"


def allowed() -> bool:
    """Whether this user may make network namespaces and devices."""
    name = f"fw-probe-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=True)
    return made and os.access("/dev/net/tun", os.W_OK)


class TwoHosts:
    """A context in which there are two hosts.

    Args:
        delay: Seconds that every frame is late.
        loss: The share of frames that are lost.
    """

    def __init__(self, *, delay: float = 0.0, loss: float = 0.0) -> None:
        self._delay, self._loss = delay, loss
        self._names = [f"fw-{os.getpid()}-{side}" for side in "ab"]
        self._stack = ExitStack()
        self.kind = "veth"

    def __enter__(self) -> TwoHosts:
        for name in self._names:
            _ip("netns", "add", name)
            self._stack.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        self._link()
        for name, address in zip(self._names, ADDRESSES):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
            _ip("-n", name, "link", "set", DEVICE, "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _link(self) -> None:
        a, b = self._names
        _ip("link", "add", DEVICE, "netns", a, "type", "veth", "peer", "name", DEVICE, "netns", b)
        if not self._delay and not self._loss:
            return
        netem = f"netem delay {self._delay * 1000:g}ms loss {self._loss * 100:g}%".split()
        slow = [["tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", *netem] for name in self._names]
        if all(subprocess.run(command, capture_output=True).returncode == 0 for command in slow):
            self.kind = "veth with netem"
            return
        _ip("-n", a, "link", "del", DEVICE)
        relay = Relay([_tap(name) for name in self._names], self._delay, self._loss)
        self._stack.callback(relay.stop)
        self.kind = "TAP devices and a relay"

    def command(self, host: int, *words: str) -> list[str]:
        """A command line that runs on one of the hosts."""
        return ["ip", "netns", "exec", self._names[host], *words]

    def cut(self) -> None:
        """Cuts the link."""
        for name in self._names:
            _ip("-n", name, "link", "set", DEVICE, "down")


class Relay:
    """A thread that carries frames between two TAP devices, late, and loses some."""

    def __init__(self, taps: list[int], delay: float, loss: float) -> None:
        self._taps, self._delay, self._loss = taps, delay, loss
        self.carried = self.lost = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._over.set()
        self._thread.join()
        for tap in self._taps:
            os.close(tap)

    def _run(self) -> None:
        draw = random.Random(0)
        waiting: deque[tuple[float, int, bytes]] = deque()  # when, to whom, what
        while not self._over.is_set():
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.05
            for tap in select.select(self._taps, [], [], min(pause, 0.05))[0]:
                frame = os.read(tap, 65536)
                if draw.random() < self._loss:
                    self.lost += 1
                    continue
                other = self._taps[1 - self._taps.index(tap)]
                waiting.append((time.monotonic() + self._delay, other, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, tap, frame = waiting.popleft()
                with suppress(OSError):  # the device is down
                    os.write(tap, frame)
                self.carried += 1


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _tap(namespace: str) -> int:
    """A TAP device that is moved to a namespace; what is written to the descriptor arrives there."""
    no_header, tap, set_name = 0x1000, 0x0002, 0x400454CA
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    temporary = f"fwt{os.getpid() % 100000}"
    fcntl.ioctl(descriptor, set_name, struct.pack("16sH", temporary.encode(), tap | no_header))
    _ip("link", "set", temporary, "netns", namespace, "name", DEVICE)
    return descriptor
