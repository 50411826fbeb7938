"""The processes of a run, and the wires between them."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from freewheel._config import Transport
from freewheel.runtime import _nccl_wire as nccl
from freewheel.runtime._channels import Channel, Receiver, Sender
from freewheel.runtime._errors import LostError
from freewheel.runtime._gloo_wire import GlooReceiver, GlooSender
from freewheel.runtime._nccl_wire import NcclReceiver, NcclSender
from freewheel.runtime._shared_wire import AVAILABLE, SharedReceiver, SharedSender

START_SECONDS = 60.0  # a process has at least this long to start: it loads torch, perhaps on a busy machine
_POLL_SECONDS = 0.01
_NAME_BYTES = 64  # of a wire's name, the first message of its socket


class Wire(NamedTuple):
    """A channel between two processes; one between two stages may connect their GPUs."""

    name: str
    sender: int
    receiver: int
    capacity: int
    joins_stages: bool = False


class World:
    """One process's view of all processes of a run.

    Args:
        store: The store of the run, shared by its processes alone.
        rank: This process.
        roles: The role of each process, by rank: `stage 0`, …, `the caller`.
        transport: How messages travel; see `RunConfig`, as for `interface`.
        timeout: Seconds to wait for the others, but at least `START_SECONDS`.
        interface: The network interface of gloo's sockets.
        check_alive: Called while this process waits for others; raises if they cannot come any more.
        device: The device of this process's stage, if it has one.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        roles: Sequence[str],
        *,
        transport: Transport,
        timeout: float,
        interface: str | None = None,
        check_alive: Callable[[], object] = lambda: None,
        device: torch.device | None = None,
    ) -> None:
        self._check_alive, self._device = check_alive, device
        self.store, self.rank, self.size, self.timeout = store, rank, len(roles), start_timeout(timeout)
        self._roles, self._transport, self._interface = roles, transport, interface
        self._listener: socket.socket | None = None

    def join(
        self, wires: Sequence[Wire], check: Callable[[], object] = lambda: None
    ) -> tuple[dict[str, Sender], dict[str, Receiver]]:
        """Wait for all processes; return this process's ends of all wires, by name.

        Every process gives the same list of wires. `check` is called when all have joined, before a wire is made.
        """
        try:
            self._barrier()
            check()
            return self._connect(wires)
        finally:
            if self._listener is not None:
                self._listener.close()

    def _barrier(self) -> None:
        """Publish host and process id, and wait until all others have done so."""
        if AVAILABLE and self._transport != "gloo":
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(self._address(self.rank))
            self._listener.listen(256)
            self._listener.settimeout(_POLL_SECONDS)
        here = {"host": socket.gethostname(), "memory": _memory(), "pid": os.getpid(), "gpu": _gpu(self._device)}
        self.store.set(f"process/{self.rank}", json.dumps(here))
        deadline = time.monotonic() + self.timeout
        for rank in range(self.size):
            while not self.store.check([f"process/{rank}"]):
                self._check_alive()
                if time.monotonic() > deadline:
                    raise LostError(f"{self._roles[rank]} (rank {rank})", f"has not joined in {self.timeout:g} s")
                time.sleep(_POLL_SECONDS)
        self._processes = [json.loads(self.store.get(f"process/{rank}")) for rank in range(self.size)]

    @property
    def titles(self) -> dict[int, str]:
        """The name of each process in errors."""
        pairs = enumerate(zip(self._roles, self._processes))
        return {rank: f"{role} (rank {rank}, pid {p['pid']} on {p['host']})" for rank, (role, p) in pairs}

    def _connect(self, wires: Sequence[Wire]) -> tuple[dict[str, Sender], dict[str, Receiver]]:
        own = [wire for wire in wires if wire.sender == wire.receiver == self.rank]
        channels = {wire.name: Channel(wire.capacity) for wire in own}
        senders: dict[str, Sender] = {**channels}
        receivers: dict[str, Receiver] = {**channels}
        wires = [wire for wire in wires if wire.sender != wire.receiver]
        shared = {wire.name for wire in wires if self._is_shared(wire)}
        for tag, wire in enumerate(wires):
            if wire.sender == self.rank:
                peer = self.titles[wire.receiver]
                if wire.name in shared:
                    senders[wire.name] = SharedSender(self._dial(wire), wire.capacity, peer)
                else:
                    senders[wire.name] = GlooSender(self.gloo, wire.receiver, tag, wire.capacity, peer)
            elif wire.receiver == self.rank and wire.name not in shared:
                receivers[wire.name] = GlooReceiver(self.gloo, wire.sender, tag, self.titles[wire.sender])
        expected = {wire.name: wire for wire in wires if wire.receiver == self.rank and wire.name in shared}
        while len(expected) > sum(name in receivers for name in expected):
            name, line = self._accept(expected)
            receivers[name] = SharedReceiver(line, self.titles[expected[name].sender])
        if len(shared) < len(wires):
            self.gloo  # noqa: B018 - every process takes part in making the group
        self._connect_gpus(wires, senders, receivers)
        return senders, receivers

    def _connect_gpus(self, wires: Sequence[Wire], senders: dict[str, Sender], receivers: dict[str, Receiver]) -> None:
        """Make wires between GPUs out of those between their hosts, in the same order in every process."""
        for wire in wires:
            if self.rank not in (wire.sender, wire.receiver) or not self._is_nccl(wire):
                continue
            assert self._device is not None
            store = prefixed(f"nccl/{wire.name}", self.store)
            try:
                if wire.sender == self.rank:
                    senders[wire.name] = NcclSender(store, senders[wire.name], self._device, wire.capacity)
                else:
                    receivers[wire.name] = NcclReceiver(store, receivers[wire.name], self._device)
            except RuntimeError as error:
                reason = str(error).strip().split("\n")[-1]
                raise RuntimeError(
                    f"NCCL cannot connect {self.titles[wire.sender]} and {self.titles[wire.receiver]} ({reason}): give "
                    "each stage a GPU of its own, or use transport='gloo' or 'shared'"
                ) from error

    def _is_nccl(self, wire: Wire) -> bool:
        if not wire.joins_stages or self._transport not in ("auto", "nccl"):
            return False
        gpus = [self._processes[rank]["gpu"] for rank in (wire.sender, wire.receiver)]
        if self._transport == "auto":
            return nccl.AVAILABLE and "" not in gpus and gpus[0] != gpus[1]
        for rank, gpu in zip((wire.sender, wire.receiver), gpus):
            if not gpu:
                raise ValueError(
                    f"transport='nccl': {self.titles[rank]} is not on a GPU; put all stages on GPUs, or use 'auto'"
                )
        return True

    def _is_shared(self, wire: Wire) -> bool:
        together = self._processes[wire.sender]["memory"] == self._processes[wire.receiver]["memory"] != ""
        if self._transport == "shared" and not together:
            raise ValueError(
                f"transport='shared': {self.titles[wire.sender]} and {self.titles[wire.receiver]} share no memory; "
                "use 'auto' or 'gloo'"
            )
        return together and self._transport != "gloo"

    @cached_property
    def gloo(self) -> Any:
        """The gloo process group of all processes, made when the first wire needs it.

        Its interface is the one given, GLOO_SOCKET_IFNAME, loopback on one host, or that of the host's name.
        """
        options = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = timedelta(days=1)  # waiting is no error: heartbeats tell when a peer is lost
        interface = self._interface or os.environ.get("GLOO_SOCKET_IFNAME")
        if interface:
            device = dist.ProcessGroupGloo.create_device(interface=interface)
        elif len({process["host"] + process["memory"] for process in self._processes}) == 1:
            device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
        else:
            device = dist.ProcessGroupGloo.create_default_device()
        options._devices = [device]
        store = prefixed("gloo", self.store)
        return dist.ProcessGroupGloo(store, self.rank, self.size, options)  # pyright: ignore[reportCallIssue]

    @cached_property
    def _token(self) -> str:
        return self.store.get("token").decode()

    def _address(self, rank: int) -> str:
        return f"\0freewheel-{self._token}-{rank}"  # in the abstract namespace: no file, and gone with the process

    def _dial(self, wire: Wire) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(self._address(wire.receiver))
        except OSError:
            raise LostError(self.titles[wire.receiver]) from None
        line.sendall(wire.name.ljust(_NAME_BYTES).encode())
        return line

    def _accept(self, expected: dict[str, Wire]) -> tuple[str, socket.socket]:
        assert self._listener is not None
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                line, _ = self._listener.accept()
            except TimeoutError:
                self._check_alive()
                if time.monotonic() < deadline:
                    continue
                missing = next(self.titles[wire.sender] for wire in expected.values())
                raise LostError(missing, f"has not connected in {self.timeout:g} s") from None
            line.settimeout(self.timeout)
            name = _read(line, _NAME_BYTES).decode().strip()
            if name in expected and _is_same_user(line):
                line.settimeout(None)
                return name, line
            line.close()


def _read(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := line.recv(count - len(data))):
        data += chunk
    return data


def _is_same_user(line: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") == os.getuid()


def _memory() -> str:
    """An id that two processes share if they can share memory; empty where none can."""
    if not AVAILABLE:
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/net')} {os.readlink('/proc/self/ns/ipc')}"
    except OSError:
        return ""


def _gpu(device: torch.device | None) -> str:
    """The id of a GPU; empty for any other device."""
    if device is None or device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def start_timeout(timeout: float) -> float:
    """How long to wait for a process that starts."""
    return max(timeout, START_SECONDS)


def fresh_store(timeout: float) -> tuple[Any, int]:
    """A store that this process serves on the loopback interface, and its port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    port = listener.getsockname()[1]
    return _store(port, timeout, is_master=True, master_listen_fd=listener.detach()), port


def joined_store(port: int, timeout: float) -> Any:
    """The store that another process on this host serves."""
    return _store(port, timeout, is_master=False)


def prefixed(prefix: str, store: Any) -> Any:
    """A view of a store in which every key has a prefix."""
    return dist.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]


def _store(port: int, timeout: float, **options: Any) -> Any:
    wait = timedelta(seconds=start_timeout(timeout))
    make = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    return make("127.0.0.1", port, timeout=wait, wait_for_workers=False, **options)
