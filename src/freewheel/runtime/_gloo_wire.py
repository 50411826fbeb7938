"""Wires between hosts: packets of bytes, sent and received without blocking through torch.distributed.

::

    packet   | header (64 bytes) | tensors, in their layout |
    header   0: a message        1: the layout changes; its text follows, then a packet of the new size

Both ends know the size of the next packet. So the receiver posts the receive in advance, and the packet arrives while
the stage computes. The sender has as many packets as the wire's capacity, and waits only when all are in flight.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from freewheel.runtime._channels import ClosedError
from freewheel.runtime._errors import LostError
from freewheel.runtime._layout import Layout, Node, described

_HEADER = 64
_MESSAGE, _LAYOUT = 0, 1


class _End:
    """One end of a wire: a group, the other rank, and the tag of the wire."""

    def __init__(self, group: Any, rank: int, tag: int, peer: str) -> None:
        self._group, self._rank, self._tag, self._peer = group, rank, tag, peer
        self._layout: Layout | None = None
        self._closed = False

    def close(self) -> None:
        """Let no thread wait here again; gloo cannot wake one that waits now."""
        self._closed = True

    def release(self) -> None:
        """Nothing to free: the group closes with its last wire."""

    def _packet(self) -> Tensor:
        """An empty packet of the current layout."""
        return torch.zeros(_HEADER + (self._layout.size if self._layout else 0), dtype=torch.uint8)

    def _wait(self, work: Any) -> None:
        if self._closed:
            raise ClosedError
        try:
            work.wait()
        except RuntimeError as error:
            raise (ClosedError() if self._closed else LostError(self._peer)) from error


class GlooSender(_End):
    """The sending end."""

    def __init__(self, group: Any, rank: int, tag: int, capacity: int, peer: str) -> None:
        super().__init__(group, rank, tag, peer)
        self._capacity = capacity
        self._node: Node | None = None
        self._in_flight: deque[tuple[Any, Tensor]] = deque()
        self._spare: Tensor | None = None

    def put(self, item: Any) -> None:
        """Copy an item into a packet and send it, waiting while too many are in flight."""
        node, tensors = described(item)
        while len(self._in_flight) >= self._capacity:
            work, packet = self._in_flight.popleft()
            self._wait(work)
            self._spare = packet
        if node != self._node:
            self._change(node)
        assert self._layout is not None
        packet, self._spare = self._spare, None
        if packet is None or packet.numel() != _HEADER + self._layout.size:
            packet = self._packet()
        packet[:8].zero_()
        self._layout.write(packet[_HEADER:], tensors)
        self._send(packet)

    def flush(self) -> None:
        """Wait until everything has arrived."""
        while self._in_flight:
            self._wait(self._in_flight.popleft()[0])

    def close(self) -> None:
        """Let no thread wait here again."""
        super().close()
        self._in_flight.clear()

    def _change(self, node: Node) -> None:
        notice, layout = self._packet(), Layout(node)
        text = torch.frombuffer(bytearray(layout.text.encode()), dtype=torch.uint8)
        notice[:16].view(torch.int64).copy_(torch.tensor([_LAYOUT, text.numel()]))
        self._send(notice)
        self._send(text)
        self._node, self._layout = node, layout

    def _send(self, packet: Tensor) -> None:
        if self._closed:
            raise ClosedError
        try:
            self._in_flight.append((self._group.send([packet], self._rank, self._tag), packet))
        except RuntimeError as error:
            raise LostError(self._peer) from error


class GlooReceiver(_End):
    """The receiving end."""

    def __init__(self, group: Any, rank: int, tag: int, peer: str) -> None:
        super().__init__(group, rank, tag, peer)
        self._posted: Any = None
        self._buffer = self._packet()
        self._post()

    def get(self) -> Any:
        """The next item, in memory of its own."""
        while True:
            self._wait(self._posted)
            kind, length = self._buffer[:16].view(torch.int64).tolist()
            if kind == _MESSAGE:
                break
            text = torch.empty(length, dtype=torch.uint8)
            self._wait(self._receive(text))
            self._layout = Layout.read(bytes(text.tolist()).decode())
            self._buffer = self._packet()
            self._post()
        assert self._layout is not None
        item = self._layout.take(self._buffer[_HEADER:])
        self._post()
        return item

    def _post(self) -> None:
        self._posted = self._receive(self._buffer)

    def _receive(self, packet: Tensor) -> Any:
        try:
            return self._group.recv([packet], self._rank, self._tag)
        except RuntimeError as error:
            raise LostError(self._peer) from error
