"""The feed: batches out of a loader, numbered, announced to every stage, with the ends of epochs known in time."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.utils._pytree import tree_leaves

from freewheel.runtime._channels import ClosedError
from freewheel.runtime._fingerprint import fingerprint


class Batch(NamedTuple):
    """One batch: its number, what the first stage gets, what the last one gets, and its size.

    `length` is that of the input's second dimension, the number of time steps if it has any.
    """

    number: int
    x: Any
    target: Any
    size: int
    length: int | None
    cut: bool  # whether an epoch ends with it


class Announced(Protocol):
    """What a stage knows of the batches: which there are, and where an epoch ends."""

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
    """Where a feed begins: with this batch, in this epoch, whose first batch has the number `first`.

    `last` tells what the batch before looked like, where it is of the same epoch.
    """

    batch: int = 0
    epoch: int = 0
    first: int = 0
    last: str = ""


START = Start()
LOOK_BACK = 4096  # more batches than are ever under way


class Feed:
    """Numbers the batches of `epochs` passes over a loader and tells every stage which of them there are.

    A batch is announced only when it is known whether its epoch goes on, which takes a look at the one after it.

    Args:
        loader: The batches.
        epochs: How many passes.
        on_batch: Called for each batch that is given out.
        start: Where to begin; its epoch is iterated from the beginning, and the batches before are dropped.
        remember: Called at the beginning of each epoch; `place` gives back what it gave.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        epochs: int,
        *,
        on_batch: Callable[[], object] = lambda: None,
        start: Start = START,
        remember: Callable[[], Any] | None = None,
    ) -> None:
        self._source = _batches(loader, epochs, start, self._begin)
        self._on_batch = on_batch
        self._remember = remember
        self._start = start
        self._begun: list[tuple[Start, Any]] = []
        self._looks: deque[tuple[int, str]] = deque(maxlen=LOOK_BACK)  # of the last batches given out
        self._changed = threading.Condition()
        self._announced = start.batch
        self._over = False
        self._closed = False
        self._cuts: set[int] = {start.batch - 1} if start.first == start.batch else set()
        self._pump: Callable[[], object] | None = None
        self.stopped = False

    @property
    def announced(self) -> int:
        """How many batches the stages know of."""
        return self._announced

    def pull(self) -> Batch | None:
        """The next batch, announced to all stages; None (announced too) when there is none or `stop` was called."""
        batch = None if self.stopped else next(self._source, None)
        with self._changed:
            if batch is None:
                self._over = True
            else:
                self._announced = batch.number + 1
                if batch.cut:
                    self._cuts.add(batch.number)
            self._changed.notify_all()
        if batch is not None:
            self._on_batch()
            if self._remember is not None:
                self._looks.append((batch.number, fingerprint(batch[1:3])))
        return batch

    def _begin(self, epoch: int, first: int) -> None:
        if self._remember is not None:
            self._begun.append((Start(first, epoch, first), self._remember()))

    def place(self, batches: int) -> tuple[Start, Any]:
        """Where a feed must begin to go on after so many batches, and what was remembered there.

        It is asked by the thread that pulls, and never for fewer batches than the time before.
        """
        assert self._remember is not None
        self.forget(batches)
        start, remembered = self._begun[0] if self._begun else (self._start, self._remember())
        if self.is_cut(batches - 1) and start.first < batches:  # the next epoch has not begun: nothing has been drawn
            return Start(batches, start.epoch + 1, batches), self._remember()
        return start._replace(batch=batches, last=dict(self._looks).get(batches - 1, "")), remembered

    def forget(self, batches: int) -> None:
        """Nobody will ask for a place before so many batches."""
        while len(self._begun) > 1 and self._begun[1][0].first <= batches:
            del self._begun[0]

    def stop(self) -> None:
        """Gives out no further batch: the pipeline drains what it has."""
        self.stopped = True

    def finish(self) -> None:
        """Announces no further batch."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the run is being stopped."""
        return self._closed

    def close(self) -> None:
        """Wakes and turns away every stage that waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def numbers(self, number: int = 0) -> Iterator[int]:
        """The batch numbers from this one on, each as soon as it is announced.

        Where one is not, it waits for the thread that delivers batches, or delivers one itself if told how.
        """
        while True:
            if self._pump is not None and self._announced <= number and not self._over:
                self._pump()
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
        """From now on, whoever needs a batch that is not announced calls this: for a run in one thread."""
        self._pump = deliver

    def is_cut(self, number: int) -> bool:
        """Whether an epoch ends with this batch."""
        return number in self._cuts


def _batches(
    loader: Iterable[Any], epochs: int, start: Start, on_epoch: Callable[[int, int], object]
) -> Iterator[Batch]:
    number = start.first
    for epoch in range(start.epoch, epochs):
        on_epoch(epoch, number)
        waiting: Batch | None = None
        for item in loader:
            if waiting is not None and waiting.number >= start.batch:
                yield waiting
            waiting = _batch(number, item)
            number += 1
            if number == start.batch and start.last not in ("", fingerprint(waiting[1:3])):
                warnings.warn(
                    f"loader gives another batch {number - 1} than before the checkpoint: it goes on, but not to the "
                    "same bits; the data and their order must be the same, and drawn from torch's, Python's or NumPy's "
                    "generators",
                    stacklevel=2,
                )
        if waiting is None:
            again = (
                " a second time: give a loader that can be iterated once per epoch (a list, a DataLoader)"
                if epoch
                else ""
            )
            raise ValueError(f"loader gave no batches{again}" + ("" if epoch else ": it is empty"))
        if waiting.number < start.batch:
            raise ValueError(
                f"loader gave {number - start.first} batches in epoch {epoch + 1}, which had more before batch "
                f"{start.batch}, where it goes on: give the loader that the run began with"
            )
        yield waiting._replace(cut=True)


def _batch(number: int, item: Any) -> Batch:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        came = (
            f"{type(item).__name__} of length {len(item)}" if isinstance(item, (tuple, list)) else type(item).__name__
        )
        raise TypeError(f"loader gave a {came} as batch {number}: it must give pairs (input, target)")
    x, target = item
    tensors = [t for t in tree_leaves(x) if isinstance(t, Tensor)]
    if not tensors:
        raise TypeError(f"loader gave an input without any tensor as batch {number} ({type(x).__name__})")
    size = tensors[0].shape[0] if tensors[0].dim() else 1
    if size == 0:
        raise ValueError(f"loader gave an empty batch as batch {number}: drop it")
    length = tensors[0].shape[1] if tensors[0].dim() > 1 else None
    return Batch(number, x, target, size, length, cut=False)
