"""The feed: the batches of a loader, numbered and announced to every stage, with the ends of epochs known in time."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple, Protocol

from freewheel.runtime._channels import ClosedError
from freewheel.runtime._fingerprint import Excerpt, digest, excerpt, fingerprint
from freewheel.runtime._reading import Batch, Reader


class Announced(Protocol):
    """What a stage knows of the batches: their numbers, and where an epoch ends."""

    @property
    def closed(self) -> bool:
        """Whether the run is being stopped."""
        ...

    def numbers(self, number: int = 0) -> Iterator[int]:
        """The batch numbers from this one on, each as soon as it is announced."""
        ...

    def is_cut(self, number: int) -> bool:
        """Whether an epoch ends with this batch."""
        ...


class Start(NamedTuple):
    """Where a feed begins: at this batch, in this epoch, whose first batch has the number `first`.

    `last` is the fingerprint of the batch before, if it belongs to the same epoch.
    """

    batch: int = 0
    epoch: int = 0
    first: int = 0
    last: str = ""


START = Start()
LOOK_BACK = 4096  # more batches than are ever in flight


class Feed:
    """Numbers the batches of `epochs` passes over a loader, and announces them to every stage.

    A batch is announced once the one after it has been read, so that it is known whether its epoch ends there. The
    epoch of `start` is iterated from the beginning, and earlier batches are dropped. `read` makes a batch of its number
    and what the loader gave; `ahead` may read some before they are pulled. The feed ends after `limit` batches.
    `on_batch` is called for each batch that is pulled, `remember` at the beginning of each epoch; `place` returns its
    result.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        epochs: int,
        *,
        read: Callable[[int, Any], Batch] | None = None,
        ahead: Callable[[Iterator[Batch]], Iterator[Batch]] = lambda source: source,
        limit: int | None = None,
        on_batch: Callable[[], object] = lambda: None,
        start: Start = START,
        remember: Callable[[], Any] | None = None,
    ) -> None:
        make = read or Reader().batch
        self._source: Iterator[Batch] = ahead(_batches(loader, epochs, make, start, limit, self._begin))
        self._on_batch = on_batch
        self._remember = remember
        self._start = start
        self._begun: list[tuple[Start, Any]] = []
        self._excerpts: deque[tuple[int, Excerpt]] = deque(maxlen=LOOK_BACK)  # of the last batches
        self._changed = threading.Condition()
        self._announced = start.batch
        self._over = False
        self._closed = False
        self._cuts: set[int] = {start.batch - 1} if start.first == start.batch else set()
        self._pump: Callable[[], object] | None = None
        self.stopped = False

    @property
    def announced(self) -> int:
        """The number of batches announced."""
        return self._announced

    def peek(self) -> Batch | None:
        """Return the next batch without announcing it; `pull` returns it again."""
        batch = next(self._source, None)
        if batch is not None:
            self._source = chain([batch], self._source)
        return batch

    def pull(self) -> Batch | None:
        """Announce and return the next batch; None when there is none or `stop` was called."""
        batch = None if self.stopped else next(self._source, None)
        with self._changed:
            if batch is None:
                self._over = True
            else:
                if batch.cut:
                    self._cuts.add(batch.number)
                self._announced = batch.number + 1  # last: it is read without the lock
            self._changed.notify_all()
        if batch is not None:
            self._on_batch()
            if self._remember is not None:
                self._excerpts.append((batch.number, excerpt(batch[1:3])))
        return batch

    def _begin(self, epoch: int, first: int) -> None:
        if self._remember is not None:
            self._begun.append((Start(first, epoch, first), self._remember()))

    def place(self, batches: int) -> tuple[Start, Any]:
        """Where a feed must begin to continue after this many batches, and the result of `remember` there.

        Only the thread that pulls may call it, and never with fewer batches than the time before.
        """
        assert self._remember is not None
        self.forget(batches)
        start, remembered = self._begun[0] if self._begun else (self._start, self._remember())
        if self.is_cut(batches - 1) and start.first < batches:  # the next epoch has not begun: nothing has been drawn
            return Start(batches, start.epoch + 1, batches), self._remember()
        last = dict(self._excerpts).get(batches - 1)
        return start._replace(batch=batches, last="" if last is None else digest(last)), remembered

    def forget(self, batches: int) -> None:
        """Drop what `place` would need for fewer batches than this."""
        while len(self._begun) > 1 and self._begun[1][0].first <= batches:
            del self._begun[0]

    def stop(self) -> None:
        """Pull no further batch: the pipeline drains."""
        self.stopped = True

    def finish(self) -> None:
        """Announce no further batch."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the run is being stopped."""
        return self._closed

    def close(self) -> None:
        """Wake every stage that waits; each gives up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def numbers(self, number: int = 0) -> Iterator[int]:
        """The batch numbers from this one on, each as soon as it is announced.

        Where one is not, it waits for the thread that delivers batches; under `on_demand` it delivers one itself.
        """
        while True:
            if self._pump is not None and self._announced <= number and not self._over:
                self._pump()
            if self._announced <= number or self._closed:
                with self._changed:
                    while self._announced <= number and not self._over and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        raise ClosedError
                    if self._announced <= number:
                        return
            yield number
            number += 1

    def on_demand(self, deliver: Callable[[], object]) -> None:
        """Call this where a batch is needed that has not been announced: for a run in one thread."""
        self._pump = deliver

    def is_cut(self, number: int) -> bool:
        """Whether an epoch ends with this batch."""
        return number in self._cuts


def _batches(
    loader: Iterable[Any],
    epochs: int,
    read: Callable[[int, Any], Batch],
    start: Start,
    limit: int | None,
    on_epoch: Callable[[int, int], object],
) -> Iterator[Batch]:
    number = start.first
    for epoch in range(start.epoch, epochs):
        on_epoch(epoch, number)
        pending: Batch | None = None
        for item in loader:
            if pending is not None and pending.number >= start.batch:
                yield pending
                if number == limit:
                    return
            pending = read(number, item)._replace(epoch=epoch)
            number += 1
            if number == start.batch and start.last not in ("", fingerprint(pending[1:3])):
                warnings.warn(
                    f"loader gives a different batch {number - 1} than before the checkpoint: training continues, but "
                    "not to the same bits; the data and their order must be the same, and drawn from torch's, Python's "
                    "or NumPy's generators",
                    stacklevel=2,
                )
        if pending is None:
            again = " a second time: give a loader that can be iterated once per epoch (a list, a DataLoader)"
            raise ValueError(f"loader gave no batches{again if epoch else ': it is empty'}")
        if pending.number < start.batch:
            raise ValueError(
                f"loader gave {number - start.first} batches in epoch {epoch + 1}, which had more before batch "
                f"{start.batch}, where the checkpoint is: give the loader that the run began with"
            )
        yield pending._replace(cut=True)
        if number == limit:
            return
