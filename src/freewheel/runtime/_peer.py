"""Messages between stages on different GPUs of one process: copied from GPU to GPU on streams of their own.

::

    stage 0    F0    F1    F2   …
    copies        h0    h1    h2        each when its message is computed; neither stage's GPU waits for the other
    stage 1             F0    F1   …    each waits for its message alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel._trees import map_tensors
from freewheel.runtime._channels import Channel
from freewheel.runtime._world import Wire
from freewheel.stage import Stage


def channel_between(stages: Sequence[Stage], wire: Wire) -> Channel:
    """Return the channel of a wire: a `PeerChannel` if it connects two GPUs."""
    if wire.joins_stages:
        source, device = (stages[rank].device for rank in (wire.sender, wire.receiver))
        if source.type == device.type == "cuda" and source != device:
            return PeerChannel(wire.capacity, source, device)
    return Channel(wire.capacity)


class PeerChannel(Channel):
    """A channel whose messages are copied to the receiver's GPU when they are sent.

    Args:
        capacity: The most messages that it holds.
        source: The GPU of the sender.
        device: The GPU of the receiver.
    """

    def __init__(self, capacity: int, source: torch.device, device: torch.device) -> None:
        super().__init__(capacity)
        self._source, self._device = source, device
        self._leaving = torch.cuda.Stream(source)  # torch copies on the stream of the source
        self._arriving = self._leaving if source == device else torch.cuda.Stream(device)

    def put(self, item: Any) -> None:
        """Append a message, and begin to copy it once the sender's stream has computed it."""
        tensors: list[Tensor] = []

        def copy(tensor: Tensor) -> Tensor:
            if tensor.device != self._source or tensor.layout is not torch.strided:
                return tensor  # the receiver moves it
            tensor.record_stream(self._leaving)
            tensors.append(tensor.to(self._device, non_blocking=True, copy=True))
            return tensors[-1]

        self._leaving.wait_stream(torch.cuda.current_stream(self._source))
        with torch.cuda.stream(self._leaving), torch.cuda.stream(self._arriving):
            copied = map_tensors(copy, item)
        super().put((copied, tensors, self._arriving.record_event()))

    def get(self) -> Any:
        """Take the oldest message; the receiver's stream waits for its copy."""
        copied, tensors, event = super().get()
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)
        return copied
