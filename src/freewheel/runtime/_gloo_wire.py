"""Wires between hosts: packets of bytes, sent and asked for without blocking through torch.distributed.

::

    packet   | header (64 bytes) | tensors, as their layout says |
    header   0: a message        1: the layout changes; its text follows, then a packet of the new size

Both ends know the size of the next packet, so that the receiver asks for it beforehand and it arrives while the stage
computes. The sender has as many packets as the wire's capacity, and waits only when all are on their way.
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
    """One end of a wire: a group, the other rank, and a tag that tells wires apart."""

    def __init__(self, group: Any, rank: int, tag: int, peer: str) -> None:
        self._group, self._rank, self._tag, self._peer = group, rank, tag, peer
        self._layout: Layout | None = None
        self._closed = False

    def close(self) -> None:
        """Nobody waits here again; who waits now is left alone, since gloo has no way to wake him."""
        self._closed = True

    def release(self) -> None:
        """Gives back what it holds of the system: the group does, with its last wire."""

    def _packet(self) -> Tensor:
        """Room for a header and what the layout says."""
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
        self._under_way: deque[tuple[Any, Tensor]] = deque()
        self._spare: Tensor | None = None

    def put(self, item: Any) -> None:
        """Copies an item into a packet and sends it off, waiting while too many are on their way."""
        node, tensors = described(item)
        while len(self._under_way) >= self._capacity:
            work, packet = self._under_way.popleft()
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
        """Waits until everything has arrived."""
        while self._under_way:
            self._wait(self._under_way.popleft()[0])

    def close(self) -> None:
        """Nobody waits here again."""
        super().close()
        self._under_way.clear()

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
            self._under_way.append((self._group.send([packet], self._rank, self._tag), packet))
        except RuntimeError as error:
            raise LostError(self._peer) from error


class GlooReceiver(_End):
    """The receiving end."""

    def __init__(self, group: Any, rank: int, tag: int, peer: str) -> None:
        super().__init__(group, rank, tag, peer)
        self._asked: Any = None
        self._buffer = self._packet()
        self._ask()

    def get(self) -> Any:
        """The next item, in memory of its own."""
        while True:
            self._wait(self._asked)
            kind, length = self._buffer[:16].view(torch.int64).tolist()
            if kind == _MESSAGE:
                break
            text = torch.empty(length, dtype=torch.uint8)
            self._wait(self._request(text))
            self._layout = Layout.read(bytes(text.tolist()).decode())
            self._buffer = self._packet()
            self._ask()
        assert self._layout is not None
        item = self._layout.take(self._buffer[_HEADER:])
        self._ask()
        return item

    def _ask(self) -> None:
        self._asked = self._request(self._buffer)

    def _request(self, packet: Tensor) -> Any:
        try:
            return self._group.recv([packet], self._rank, self._tag)
        except RuntimeError as error:
            raise LostError(self._peer) from error
