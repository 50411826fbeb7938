"""Wires between processes on one host: bytes in shared memory, slot numbers through a Unix socket.

::

    sender     copy into slot 0 ── "slot 0" ──▶  receiver  copy out of slot 0
               copy into slot 1 ── "slot 1" ──▶            …
               slot 0 is free   ◀── "read" ──

The memory has no name: its file descriptor travels through the socket, and it is freed when both processes have ended.
A wire of capacity c has c slots: `put` returns as soon as the message is copied, and waits only when c are unread.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from freewheel.runtime._channels import ClosedError
from freewheel.runtime._errors import LostError
from freewheel.runtime._layout import Layout, Node, described, fill

# Kind of message; its slot, or for a layout how many slots of memory come with it; bytes of its text; size of a slot.
_HEADER = struct.Struct("<IIQQ")
_MESSAGE, _LAYOUT = 0, 1
_READ = struct.Struct("<Q")  # memory's number << 32 | slot
AVAILABLE = hasattr(os, "memfd_create") and hasattr(socket, "AF_UNIX") and hasattr(socket, "send_fds")


class _End:
    """A socket that can be closed while a thread waits at it."""

    def __init__(self, line: socket.socket, peer: str) -> None:
        self._line, self._peer = line, peer
        self._closed = False

    def close(self) -> None:
        """Wake every thread that waits here or at the other end."""
        self._closed = True
        with suppress(OSError):  # the other end may be closed already
            self._line.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Free system resources; no thread may be waiting here any more."""
        self._line.close()

    def _receive(self, count: int, fds: int = 0) -> tuple[bytes, list[int]]:
        """Receive `count` bytes, and the file descriptors that come with the first of them."""
        data, found = b"", []
        while len(data) < count:
            try:
                if fds and not data:
                    chunk, found, _, _ = socket.recv_fds(self._line, count, fds)
                else:
                    chunk = self._line.recv(count - len(data))
            except OSError:
                chunk = b""
            if not chunk:
                raise self._gone()
            data += chunk
        return data, found

    def _send(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        try:
            if fds:
                socket.send_fds(self._line, [data], fds)
            else:
                self._line.sendall(data)
        except OSError:
            raise self._gone() from None

    def _gone(self) -> Exception:
        return ClosedError() if self._closed else LostError(self._peer)


class SharedSender(_End):
    """The sending end. `peer` names the other one in errors."""

    def __init__(self, line: socket.socket, capacity: int, peer: str) -> None:
        super().__init__(line, peer)
        self._capacity, self._unread = capacity, 0
        self._node: Node | None = None
        self._memory: list[Tensor] = []  # a packet for each slot
        self._number = 0  # of the memory, counted up when it is replaced
        self._free: deque[int] = deque()
        self._views: list[list[Tensor]] = []

    def put(self, item: Any) -> None:
        """Copy an item into a free slot, waiting for one, and notify the receiver."""
        node, tensors = described(item)
        while self._unread >= self._capacity:
            self._wait_for_read()
        if node != self._node:
            self._change(node)
        slot = self._free.popleft()
        fill(self._views[slot], tensors)
        self._send(_HEADER.pack(_MESSAGE, slot, 0, 0))
        self._unread += 1

    def flush(self) -> None:
        """Return at once: the messages are in shared memory."""

    def _wait_for_read(self) -> None:
        """Wait until a message has been read."""
        read, _ = self._receive(_READ.size)
        number, slot = divmod(_READ.unpack(read)[0], 1 << 32)
        self._unread -= 1
        if number == self._number:
            self._free.append(slot)

    def _change(self, node: Node) -> None:
        """Announce another layout, with new memory where the old is too small."""
        layout = Layout(node)
        text = layout.text.encode()
        if self._memory and layout.size <= self._memory[0].numel():
            self._send(_HEADER.pack(_LAYOUT, 0, len(text), 0) + text)
        else:
            size = -(-max(layout.size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            descriptor = os.memfd_create("freewheel", os.MFD_CLOEXEC)
            try:
                os.ftruncate(descriptor, size * self._capacity)
                self._memory = mapped(descriptor, self._capacity, size)
                self._send(_HEADER.pack(_LAYOUT, self._capacity, len(text), size), (descriptor,))
                self._send(text)
            finally:
                os.close(descriptor)
            self._number += 1
            self._free = deque(range(self._capacity))
        self._node = node
        self._views = [layout.views(packet) for packet in self._memory]


class SharedReceiver(_End):
    """The receiving end."""

    def __init__(self, line: socket.socket, peer: str) -> None:
        super().__init__(line, peer)
        self._layout: Layout | None = None
        self._memory: list[Tensor] = []
        self._views: list[list[Tensor]] = []
        self._number = 0

    def get(self) -> Any:
        """The next item, in memory of its own."""
        while True:
            header, found = self._receive(_HEADER.size, fds=1)
            kind, slot, length, size = _HEADER.unpack(header)
            if kind == _MESSAGE:
                break
            if slot:
                self._memory = mapped(found[0], slot, size)
                os.close(found[0])
                self._number += 1
            self._layout = Layout.read(self._receive(length)[0].decode())
            self._views = [self._layout.views(packet) for packet in self._memory]
        assert self._layout is not None
        item = self._layout.rebuilt(self._views[slot])
        with suppress(LostError):  # the sender may have sent its last message and ended; if not, the next `get` raises
            self._send(_READ.pack(self._number << 32 | slot))
        return item


def mapped(descriptor: int, slots: int, size: int) -> list[Tensor]:
    """The memory of a file descriptor, as a packet of bytes for each slot."""
    memory = torch.frombuffer(mmap.mmap(descriptor, slots * size), dtype=torch.uint8)
    return list(memory.split(size))
