"""Bounded first-in-first-out channels that can be closed while a thread waits on them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

SHUTDOWN_SECONDS = 2.0  # threads, processes and messages have this long to end by themselves once a run is stopped
WAKE_SECONDS = 1.0  # the caller's waits end so often: a Ctrl-C delivered to another thread is handled then


class ClosedError(Exception):
    """The run is being stopped: threads that wait here give up."""


class End(Protocol):
    """One end of a channel."""

    def close(self) -> None:
        """Wake every waiting thread; no thread waits here again."""

    def release(self) -> None:
        """Free system resources; no thread may be waiting here any more."""


class Sender(End, Protocol):
    """The sending end of a channel."""

    def put(self, item: Any) -> None:
        """Append an item, waiting for room; raise `ClosedError` once the channel is closed."""

    def flush(self) -> None:
        """Wait until no item depends on this process any more."""


class Receiver(End, Protocol):
    """The receiving end of a channel."""

    def get(self) -> Any:
        """Take the oldest item, waiting for one; raise `ClosedError` once the channel is closed."""


class Channel:
    """A bounded queue between two stages of one process; both ends in one.

    Example:
        >>> channel = Channel(capacity=1)
        >>> channel.put("h0")
        >>> channel.has_room, channel.get(), channel.has_room
        (False, 'h0', True)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._items: deque[Any] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._closed = False

    @property
    def has_room(self) -> bool:
        """Whether `put` would not wait."""
        return len(self._items) < self.capacity

    @property
    def has_item(self) -> bool:
        """Whether `get` would not wait."""
        return len(self._items) > 0

    def put(self, item: Any) -> None:
        """Append an item, waiting for room; raise `ClosedError` once the channel is closed."""
        with self._changed:
            while len(self._items) >= self.capacity and not self._closed:
                self._changed.wait(WAKE_SECONDS)
            if self._closed:
                raise ClosedError
            self._items.append(item)
            self._changed.notify()

    def flush(self) -> None:
        """Return at once: the items are in this process."""

    def get(self) -> Any:
        """Take the oldest item, waiting for one; raise `ClosedError` once the channel is closed."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            item = self._items.popleft()
            self._changed.notify()
            return item

    def close(self) -> None:
        """Wake every waiting thread; no thread waits here again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def release(self) -> None:
        """Nothing to free."""


class Broadcast:
    """The channels to several stages as one. `has_room` is for channels within a process."""

    def __init__(self, senders: Sequence[Any]) -> None:
        self._senders = senders

    @property
    def has_room(self) -> bool:
        """Whether `put` would not wait."""
        return all(sender.has_room for sender in self._senders)

    def put(self, item: Any) -> None:
        """Send an item to each."""
        for sender in self._senders:
            sender.put(item)
