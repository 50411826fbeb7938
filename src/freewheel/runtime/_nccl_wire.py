"""Wires between GPUs: tensors travel directly through NCCL, their layout over a wire between the hosts.

::

    sender     layout ── host wire ──▶  receiver
               packet ── NCCL ───────▶              on a stream of its own, while both GPUs compute

The host wire also counts the messages in flight, and notices a lost peer.
Every wire has a communicator of two ranks: NCCL handles the messages of one communicator in order, and those of one
direction must not wait for those of the other. Only the end of a run waits for a GPU.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from freewheel.runtime._channels import SHUTDOWN_SECONDS, ClosedError, Receiver, Sender
from freewheel.runtime._layout import Layout, Node, described

AVAILABLE = dist.is_nccl_available()
_OTHER = {0: 1, 1: 0}
_SENDER, _RECEIVER = 0, 1


class _End:
    """One end of a wire: the host wire beside it, a communicator, and the packets in flight."""

    def __init__(self, store: Any, host: Any, role: int, device: torch.device) -> None:
        # The messages of a communicator are serialized on purpose; no warning is needed.
        os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
        options = dist.ProcessGroupNCCL.Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = timedelta(days=1)  # waiting is no error: the host wire notices a lost peer
        self._group: Any = dist.ProcessGroupNCCL(store, role, 2, options)  # pyright: ignore
        self._host, self._peer, self._device = host, _OTHER[role], device
        self._in_flight: deque[tuple[Any, Tensor]] = deque()
        self._layout: Layout | None = None
        self._closed = False
        self._group.eager_connect_single_device(device)  # at the first message, one would wait for the other

    def _pass(self, packet: Tensor, role: int) -> Any:
        """Send or receive a packet; only the stream of this thread waits for it, where it calls `wait`."""
        with torch.cuda.device(self._device):
            act = self._group.send if role == _SENDER else self._group.recv
            work = act([packet], self._peer, 0)
        self._in_flight.append((work, packet))
        return work

    def _packet(self) -> Tensor:
        assert self._layout is not None
        return torch.empty(self._layout.size, dtype=torch.uint8, device=self._device)

    def close(self) -> None:
        """Wake every waiting thread; give packets in flight a moment to arrive, and abort the rest."""
        self._host.close()
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        while time.monotonic() < deadline and not all(work.is_completed() for work, _ in self._in_flight):
            time.sleep(0.01)
        with suppress(RuntimeError):
            self._group.abort()
        self._in_flight.clear()

    def release(self) -> None:
        """Free system resources."""
        self._host.release()


class NcclSender(_End):
    """The sending end; messages that are not on a GPU go over `host`."""

    def __init__(self, store: Any, host: Sender, device: torch.device, capacity: int) -> None:
        super().__init__(store, host, _SENDER, device)
        self._capacity = capacity
        self._node: Node | None = None
        self._text = ""

    def put(self, item: Any) -> None:
        """Copy an item into a packet and send it, waiting while too many are unread."""
        node, tensors = described(item)
        if not tensors or not all(t.is_cuda for t in tensors):
            self._host.put({"item": item})
            return
        if node != self._node:
            self._node, self._layout = node, Layout(node)
            self._text = self._layout.text
        assert self._layout is not None
        self._host.put({"layout": self._text})
        if self._closed:
            raise ClosedError
        packet = None
        if len(self._in_flight) >= self._capacity:
            work, packet = self._in_flight.popleft()
            with torch.cuda.device(self._device):
                work.wait()
        if packet is None or packet.numel() != self._layout.size:
            packet = self._packet()
        self._layout.write(packet, tensors)
        self._pass(packet, _SENDER)

    def flush(self) -> None:
        """Wait until everything has arrived."""
        self._host.flush()
        while self._in_flight:
            with torch.cuda.device(self._device):
                self._in_flight.popleft()[0].wait()
        torch.cuda.current_stream(self._device).synchronize()


class NcclReceiver(_End):
    """The receiving end."""

    def __init__(self, store: Any, host: Receiver, device: torch.device) -> None:
        super().__init__(store, host, _RECEIVER, device)
        self._text = ""
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def get(self) -> Any:
        """The next item, in memory of its own."""
        message = self._host.get()
        if "item" in message:
            return message["item"]
        if self._closed:
            raise ClosedError
        if message["layout"] != self._text:
            self._text, self._layout = message["layout"], Layout.read(message["layout"])
            self._buffer = self._packet()
        assert self._layout is not None
        self._in_flight.clear()  # the one before has arrived
        with torch.cuda.device(self._device):
            self._pass(self._buffer, _RECEIVER).wait()
            return self._layout.take(self._buffer)
