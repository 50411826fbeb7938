"""Two processes that exchange messages over every kind of wire, and a thread for comparison."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from freewheel.runtime._channels import Channel, ClosedError, Receiver, Sender
from freewheel.runtime._errors import LostError
from freewheel.runtime._shared_wire import AVAILABLE
from freewheel.runtime._workers import worker_context
from freewheel.runtime._world import Transport, Wire, World, fresh_store, joined_store, prefixed

TIMEOUT = 60.0
ROLES = ("the benchmark", "its partner")
SHARED, GLOO, BARE, CHANNEL = "shared-memory wire", "gloo wire", "gloo alone (send, recv)", "a thread's channel"
WIRES: dict[str, Transport] = {**({SHARED: "shared"} if AVAILABLE else {}), GLOO: "gloo"}


class Pair:
    """This process's ends of the wires: `there` from the benchmark to its partner, `back` to the benchmark."""

    def __init__(self, store: Any, rank: int, alive: Callable[[], object] = lambda: None) -> None:
        self._rank = rank
        self._group: Any = None
        self._wires: dict[str, tuple[Sender, Receiver]] = {}
        ways = [Wire("there", 0, 1, 1), Wire("back", 1, 0, 1)]
        for name, transport in WIRES.items():
            own = prefixed(transport, store)
            world = World(own, rank, ROLES, transport=transport, timeout=TIMEOUT, check_alive=alive)
            senders, receivers = world.join(ways)
            self._wires[name] = next(iter(senders.values())), next(iter(receivers.values()))
            if transport == "gloo":
                self._group = world.gloo

    def send(self, name: str, message: Tensor) -> None:
        """Send a message to the other process."""
        if name == BARE:
            self._group.send([message], 1 - self._rank, len(ROLES)).wait()
        else:
            self._wires[name][0].put(message)

    def receive(self, name: str, room: Tensor) -> Tensor:
        """Receive the next message of the other process; gloo alone receives it into `room`."""
        if name == BARE:
            self._group.recv([room], 1 - self._rank, len(ROLES)).wait()
            return room
        return self._wires[name][1].get()

    def close(self) -> None:
        """Close all wires."""
        for ends in self._wires.values():
            for end in ends:
                end.close()
                end.release()


class Partner:
    """A context in which another process and a thread send back what they receive."""

    names = (*WIRES, BARE, CHANNEL)

    def __enter__(self) -> Partner:
        context = worker_context()
        store, port = fresh_store(TIMEOUT)
        for transport in WIRES.values():
            prefixed(transport, store).set("token", secrets.token_hex(8))
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_echo, args=(theirs, port), daemon=True)
        self._there, self._back = Channel(1), Channel(1)
        self._thread = threading.Thread(target=_echo_here, args=(self._there, self._back), daemon=True)
        self._thread.start()
        self._process.start()
        theirs.close()
        try:
            self._pair = Pair(store, 0, self._check_alive)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._pair.close()
        self._end()

    def trip(self, name: str, message: Tensor, count: int) -> Callable[[], Tensor]:
        """A function that sends the message and returns it when it is back; it must be called `count` times."""
        room = torch.empty_like(message)

        def here() -> Tensor:
            self._there.put(message)
            return self._back.get()

        def elsewhere() -> Tensor:
            self._pair.send(name, message)
            return self._pair.receive(name, room)

        if name == CHANNEL:
            return here
        self._connection.send((name, message.numel(), count))
        return elsewhere

    def _check_alive(self) -> None:
        if self._process.exitcode is not None:
            raise LostError(ROLES[1], f"ended with exit code {self._process.exitcode}; its error is above")

    def _end(self) -> None:
        self._connection.close()
        self._there.close()
        self._back.close()
        self._process.join(2)
        if self._process.is_alive():  # it waits for a message
            self._process.kill()
            self._process.join()
        self._thread.join()


def _echo(connection: Connection, port: int) -> None:
    """The main function of the other process: send back messages until the connection is closed."""
    torch.set_num_threads(1)
    pair = Pair(joined_store(port, TIMEOUT), 1)
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            name, size, count = connection.recv()
            room = torch.empty(size, dtype=torch.uint8)
            for _ in range(count):
                pair.send(name, pair.receive(name, room))


def _echo_here(there: Channel, back: Channel) -> None:
    with suppress(ClosedError):
        while True:
            back.put(there.get())
