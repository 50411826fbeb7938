"""Wires between GPUs: tensors go straight from one to the other through NCCL, their layout over a wire of the hosts.

::

    sender     layout ── wire of the hosts ──▶  receiver
               packet ── NCCL ──────────────▶              on a stream of its own, while both GPUs compute

The wire of the hosts also counts what is under way, and notices a lost peer.
Every wire has a communicator of two ranks: NCCL works off one communicator's messages in order, and those of one
direction must not wait for those of the other. Nothing here waits for a GPU but the end of a run.
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

from freewheel.runtime._channels import ClosedError, Receiver, Sender
from freewheel.runtime._layout import Layout, Node, described

AVAILABLE = dist.is_nccl_available()
_OTHER = {0: 1, 1: 0}
_SENDER, _RECEIVER = 0, 1
GRACE_SECONDS = 1.0  # for messages that are under way when a wire is closed


class _End:
    """One end of a wire: the wire of the hosts beside it, a communicator, and what is under way."""

    def __init__(self, store: Any, role: int, device: torch.device) -> None:
        # That the messages of a communicator come one after the other is meant here, and needs no warning.
        os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
        options = dist.ProcessGroupNCCL.Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = timedelta(days=1)  # waiting is no error: the wire of the hosts notices a lost peer
        self._group: Any = dist.ProcessGroupNCCL(store, role, 2, options)  # pyright: ignore
        self._peer, self._device = _OTHER[role], device
        self._under_way: deque[tuple[Any, Tensor]] = deque()
        self._layout: Layout | None = None
        self._closed = False
        self._group.eager_connect_single_device(device)  # else at the first message, where one would wait for the other

    def _pass(self, packet: Tensor, role: int) -> Any:
        """Sends or receives a packet; the stream of this thread waits for it where it says so, nobody else does."""
        with torch.cuda.device(self._device):
            act = self._group.send if role == _SENDER else self._group.recv
            work = act([packet], self._peer, 0)
        self._under_way.append((work, packet))
        return work

    def _packet(self) -> Tensor:
        assert self._layout is not None
        return torch.empty(self._layout.size, dtype=torch.uint8, device=self._device)

    def _close(self) -> None:
        """Lets what is under way arrive, for a moment, and takes back the rest."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and not all(work.is_completed() for work, _ in self._under_way):
            time.sleep(0.01)
        with suppress(RuntimeError):
            self._group.abort()
        self._under_way.clear()


class NcclSender(_End):
    """The sending end; `host` takes what is not on a GPU."""

    def __init__(self, store: Any, host: Sender, device: torch.device, capacity: int) -> None:
        super().__init__(store, _SENDER, device)
        self._host, self._capacity = host, capacity
        self._node: Node | None = None
        self._text = ""

    def put(self, item: Any) -> None:
        """Copies an item into a packet and sends it off, waiting while too many are unread."""
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
        if len(self._under_way) >= self._capacity:
            work, packet = self._under_way.popleft()
            with torch.cuda.device(self._device):
                work.wait()
        if packet is None or packet.numel() != self._layout.size:
            packet = self._packet()
        self._layout.write(packet, tensors)
        self._pass(packet, _SENDER)

    def flush(self) -> None:
        """Waits until everything has arrived."""
        self._host.flush()
        while self._under_way:
            with torch.cuda.device(self._device):
                self._under_way.popleft()[0].wait()
        torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Turns away whoever waits here."""
        self._host.close()
        self._close()

    def release(self) -> None:
        """Gives back what it holds of the system."""
        self._host.release()


class NcclReceiver(_End):
    """The receiving end."""

    def __init__(self, store: Any, host: Receiver, device: torch.device) -> None:
        super().__init__(store, _RECEIVER, device)
        self._host = host
        self._text = ""
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def get(self) -> Any:
        """The next item, in memory of its own."""
        told = self._host.get()
        if "item" in told:
            return told["item"]
        if self._closed:
            raise ClosedError
        if told["layout"] != self._text:
            self._text, self._layout = told["layout"], Layout.read(told["layout"])
            self._buffer = self._packet()
        assert self._layout is not None
        self._under_way.clear()  # the one before has been waited for
        with torch.cuda.device(self._device):
            self._pass(self._buffer, _RECEIVER).wait()
            return self._layout.take(self._buffer)

    def close(self) -> None:
        """Turns away whoever waits here."""
        self._host.close()
        self._close()

    def release(self) -> None:
        """Gives back what it holds of the system."""
        self._host.release()
