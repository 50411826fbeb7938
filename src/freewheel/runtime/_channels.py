"""Bounded first-in-first-out channels that can be closed under a waiting thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol


class ClosedError(Exception):
    """The run is being stopped: whoever waits here must give up."""


class Sender(Protocol):
    """The end of a channel that messages go into."""

    def put(self, item: Any) -> None:
        """Appends an item, waiting for room; raises `ClosedError` once the channel is closed."""

    def flush(self) -> None:
        """Waits until no item depends on this process any more."""

    def close(self) -> None:
        """Wakes everybody who waits here, and lets nobody wait again."""

    def release(self) -> None:
        """Gives back what it holds of the system; nobody may be waiting here any more."""


class Receiver(Protocol):
    """The end of a channel that messages come out of."""

    def get(self) -> Any:
        """Takes the oldest item, waiting for one; raises `ClosedError` once the channel is closed."""

    def close(self) -> None:
        """Wakes everybody who waits here, and lets nobody wait again."""

    def release(self) -> None:
        """Gives back what it holds of the system; nobody may be waiting here any more."""


class Channel:
    """A bounded queue between two stages of one process: both ends in one.

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
        """Whether `put` would go through at once."""
        return len(self._items) < self.capacity

    @property
    def has_item(self) -> bool:
        """Whether `get` would go through at once."""
        return len(self._items) > 0

    def put(self, item: Any) -> None:
        """Appends an item, waiting for room; raises `ClosedError` once the channel is closed."""
        with self._changed:
            while len(self._items) >= self.capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            self._items.append(item)
            self._changed.notify()

    def flush(self) -> None:
        """Nothing to wait for: the items are in this process."""

    def get(self) -> Any:
        """Takes the oldest item, waiting for one; raises `ClosedError` once the channel is closed."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            item = self._items.popleft()
            self._changed.notify()
            return item

    def close(self) -> None:
        """Wakes everybody who waits here, and lets nobody wait again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def release(self) -> None:
        """It holds nothing of the system."""
