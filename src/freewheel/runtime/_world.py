"""The processes of a run: who and where they are, and the wires between them."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist

from freewheel.runtime import _nccl_wire as nccl
from freewheel.runtime._channels import Receiver, Sender
from freewheel.runtime._errors import LostError
from freewheel.runtime._gloo_wire import GlooReceiver, GlooSender
from freewheel.runtime._nccl_wire import NcclReceiver, NcclSender
from freewheel.runtime._shared_wire import AVAILABLE, SharedReceiver, SharedSender

Transport = Literal["auto", "shared", "gloo", "nccl"]
TRANSPORTS: tuple[Transport, ...] = ("auto", "shared", "gloo", "nccl")


class Wire(NamedTuple):
    """A channel between two processes; one between two stages may join their GPUs."""

    name: str
    sender: int
    receiver: int
    capacity: int
    joins_stages: bool = False


class World:
    """One process's view of all of them.

    Args:
        store: What all processes of the run, and only they, write to and read.
        rank: This process.
        roles: What each process is, by its rank: `stage 0`, …, `caller`.
        transport: How messages travel: `shared` memory, `gloo`, or by itself the first where it can be; between stages
            on different GPUs by itself, and with `nccl` between any on GPUs, through NCCL.
        timeout: Seconds to wait for the others.
        interface: The network interface of gloo's sockets; by default that of GLOO_SOCKET_IFNAME, or loopback where all
            are on one host, and the one that the host's name belongs to otherwise.
        alive: Called now and then while waiting for others; raises where that is in vain.
        device: Where this process's stage is, if it has one.
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
        alive: Callable[[], object] = lambda: None,
        device: torch.device | None = None,
    ) -> None:
        self._alive, self._device = alive, device
        self.store, self.rank, self.size, self.timeout = store, rank, len(roles), timeout
        self._roles, self._transport, self._interface = roles, transport, interface
        self._listener: socket.socket | None = None

    def join(
        self, wires: Sequence[Wire], met: Callable[[], object] = lambda: None
    ) -> tuple[dict[str, Sender], dict[str, Receiver]]:
        """Meets all others; gives this process's ends of all wires, by name. Everybody has the same list of wires.

        `met` is called when all are there, before the first wire is made.
        """
        try:
            self._meet()
            met()
            return self._connect(wires)
        finally:
            if self._listener is not None:
                self._listener.close()

    def _meet(self) -> None:
        """Says where this process is, and waits until all others have."""
        if AVAILABLE and self._transport != "gloo":
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(self._address(self.rank))
            self._listener.listen(256)
            self._listener.settimeout(_GLANCE)
        here = {"host": socket.gethostname(), "place": _place(), "pid": os.getpid(), "gpu": _gpu(self._device)}
        self.store.set(f"place/{self.rank}", json.dumps(here))
        deadline = time.monotonic() + self.timeout
        for rank in range(self.size):
            while not self.store.check([f"place/{rank}"]):
                self._alive()
                if time.monotonic() > deadline:
                    raise LostError(f"{self._roles[rank]} (rank {rank})", f"has not joined in {self.timeout:g} s")
                time.sleep(_GLANCE)
        self._places = [json.loads(self.store.get(f"place/{rank}")) for rank in range(self.size)]

    @property
    def titles(self) -> dict[int, str]:
        """What each process is called in errors."""
        told = zip(self._roles, self._places)
        return {rank: f"{role} (rank {rank}, pid {p['pid']} on {p['host']})" for rank, (role, p) in enumerate(told)}

    def _connect(self, wires: Sequence[Wire]) -> tuple[dict[str, Sender], dict[str, Receiver]]:
        shared = {wire.name for wire in wires if self._is_shared(wire)}
        senders: dict[str, Sender] = {}
        receivers: dict[str, Receiver] = {}
        for tag, wire in enumerate(wires):
            if wire.sender == self.rank:
                peer = self.titles[wire.receiver]
                if wire.name in shared:
                    senders[wire.name] = SharedSender(self._call(wire), wire.capacity, peer)
                else:
                    senders[wire.name] = GlooSender(self.gloo, wire.receiver, tag, wire.capacity, peer)
            elif wire.receiver == self.rank and wire.name not in shared:
                receivers[wire.name] = GlooReceiver(self.gloo, wire.sender, tag, self.titles[wire.sender])
        awaited = {wire.name: wire for wire in wires if wire.receiver == self.rank and wire.name in shared}
        while len(awaited) > sum(name in receivers for name in awaited):
            name, line = self._answer(awaited)
            receivers[name] = SharedReceiver(line, self.titles[awaited[name].sender])
        if len(shared) < len(wires):
            self.gloo  # noqa: B018 - everybody takes part in making the group
        self._join_gpus(wires, senders, receivers)
        return senders, receivers

    def _join_gpus(self, wires: Sequence[Wire], senders: dict[str, Sender], receivers: dict[str, Receiver]) -> None:
        """Gives the wires between GPUs a way of their own, one after the other in the same order everywhere."""
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
                    f"NCCL cannot join {self.titles[wire.sender]} and {self.titles[wire.receiver]} ({reason}): give "
                    "each stage a GPU of its own, or use transport='gloo' or 'shared'"
                ) from error

    def _is_nccl(self, wire: Wire) -> bool:
        if not wire.joins_stages or self._transport not in ("auto", "nccl"):
            return False
        gpus = [self._places[rank]["gpu"] for rank in (wire.sender, wire.receiver)]
        if self._transport == "auto":
            return nccl.AVAILABLE and "" not in gpus and gpus[0] != gpus[1]
        for rank, gpu in zip((wire.sender, wire.receiver), gpus):
            if not gpu:
                raise ValueError(
                    f"transport='nccl': {self.titles[rank]} is not on a GPU; put all stages on GPUs, or use 'auto'"
                )
        return True

    def _is_shared(self, wire: Wire) -> bool:
        together = self._places[wire.sender]["place"] == self._places[wire.receiver]["place"] != ""
        if self._transport == "shared" and not together:
            raise ValueError(
                f"transport='shared': {self.titles[wire.sender]} and {self.titles[wire.receiver]} share no memory; "
                "use 'auto' or 'gloo'"
            )
        return together and self._transport != "gloo"

    @cached_property
    def gloo(self) -> Any:
        """torch.distributed's group of all processes, made when the first wire needs it."""
        options = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = timedelta(days=1)  # waiting is no error: a lost peer is noticed by its missing pulse
        interface = self._interface or os.environ.get("GLOO_SOCKET_IFNAME")
        if interface:
            device = dist.ProcessGroupGloo.create_device(interface=interface)
        elif len({place["host"] + place["place"] for place in self._places}) == 1:
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

    def _call(self, wire: Wire) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(self._address(wire.receiver))
        except OSError:
            raise LostError(self.titles[wire.receiver]) from None
        line.sendall(wire.name.ljust(_NAME).encode())
        return line

    def _answer(self, awaited: dict[str, Wire]) -> tuple[str, socket.socket]:
        assert self._listener is not None
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                line, _ = self._listener.accept()
            except TimeoutError:
                self._alive()
                if time.monotonic() < deadline:
                    continue
                missing = next(self.titles[wire.sender] for wire in awaited.values())
                raise LostError(missing, f"has not called in {self.timeout:g} s") from None
            line.settimeout(self.timeout)
            name = _read(line, _NAME).decode().strip()
            if name in awaited and _is_ours(line):
                line.settimeout(None)
                return name, line
            line.close()


_GLANCE = 0.01  # seconds between two looks at whether waiting makes sense
_NAME = 64  # bytes of a wire's name on the line


def _read(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := line.recv(count - len(data))):
        data += part
    return data


def _is_ours(line: socket.socket) -> bool:
    """Whether the caller belongs to the same user."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") == os.getuid()


def _place() -> str:
    """What two processes have in common if they can reach each other without a network; empty where none can."""
    if not AVAILABLE:
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/net')} {os.readlink('/proc/self/ns/ipc')}"
    except OSError:
        return ""


def _gpu(device: torch.device | None) -> str:
    """What tells one GPU from all others; empty for anything else."""
    if device is None or device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


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
    """The part of a store whose keys begin so."""
    return dist.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]


def _store(port: int, timeout: float, **options: Any) -> Any:
    wait = timedelta(seconds=timeout)
    make = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    return make("127.0.0.1", port, timeout=wait, wait_for_workers=False, **options)
