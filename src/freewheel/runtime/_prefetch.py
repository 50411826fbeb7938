"""Copies of batches to GPUs: from pinned memory, on a stream of their own, ahead of their use.

::

    caller         read 0  pin 0    read 1  pin 1    read 2  pin 2    read 3  pin 3   …
    copy stream            copy 0           copy 1           copy 2           copy 3
    stages                                                   F0               F1      …   each waits for its copy alone
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from freewheel._trees import map_tensors, tensors_of
from freewheel.runtime._reading import Batch, is_pinned

AHEAD = 2  # batches that are read and copied before their turn
QUEUED = 2  # batches that the stages may have been given before a GPU comes to them

Copies = list[tuple[torch.cuda.Event, torch.device, list[Tensor]]]


class Prefetcher:
    """Reads batches, and copies them to the GPUs of the stages that use them; on other devices it only reads.

    Args:
        read: Makes a batch in memory that nothing else writes to; what is pinned is copied.
        device: The device of inputs.
        targets: The device of targets.
        first: The first batch that is used; those before it are read only.
    """

    def __init__(
        self, read: Callable[[int, Any], Batch], device: torch.device, targets: torch.device, first: int = 0
    ) -> None:
        self._read, self._devices, self._first = read, (device, targets), first
        self._streams = {gpu: torch.cuda.Stream(gpu) for gpu in self._devices if gpu.type == "cuda"}
        self._copies: dict[int, Copies] = {}
        self._used: deque[list[torch.cuda.Event]] = deque()  # when the stages come to a batch

    def read(self, number: int, item: Any) -> Batch:
        """Make a batch of what a loader gave, and begin to copy it."""
        batch = self._read(number, item)
        if number < self._first or not self._streams:
            return batch
        while len(self._used) > QUEUED:  # without a limit, Python would fill the memory of a slow GPU
            for event in self._used.popleft():
                event.synchronize()
        copies = self._copies[number] = []
        x, target = (self._copied(tree, device, copies) for tree, device in zip(batch[1:3], self._devices))
        return batch._replace(x=x, target=target)

    def ahead(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of a source, which reads them here; the copies of each begin two batches before its turn."""
        return self._ahead(source) if self._streams else source

    def _ahead(self, source: Iterator[Batch]) -> Iterator[Batch]:
        waiting, error, over = deque[Batch](), None, False
        while not over or waiting:
            while not over and len(waiting) <= AHEAD:
                try:
                    waiting.append(next(source))
                except StopIteration:
                    over = True
                except Exception as found:  # its turn is after the batches before it
                    error, over = found, True
            if waiting:
                yield self._arrived(waiting.popleft())
        if error is not None:
            raise error

    def _arrived(self, batch: Batch) -> Batch:
        """Let the current stream wait for the copies of a batch, which is used from now on."""
        copies = self._copies.pop(batch.number, [])
        for event, device, tensors in copies:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(event)
            for tensor in tensors:
                tensor.record_stream(stream)
            event.record(stream)
        if copies:
            self._used.append([event for event, _, _ in copies])
        return batch

    def _copied(self, tree: Any, device: torch.device, copies: Copies) -> Any:
        stream, tensors = self._streams.get(device), list[Tensor]()
        if stream is None or not any(map(is_pinned, tensors_of(tree))):
            return tree

        def copy(tensor: Tensor) -> Tensor:
            if not is_pinned(tensor):
                return tensor
            tensors.append(tensor.to(device, non_blocking=True))
            return tensors[-1]

        with torch.cuda.stream(stream):
            copied = map_tensors(copy, tree)
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        copies.append((event, device, tensors))
        return copied


def common(devices: Iterable[torch.device]) -> torch.device:
    """Return the device that all of these are; the CPU if they differ."""
    first, *others = set(devices)
    return torch.device("cpu") if others else first
