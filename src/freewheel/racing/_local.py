"""Workers as threads of this process, and the queues between them."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from freewheel.racing._interleaving import CALLER, Exchange, Interleaving
from freewheel.racing._pool import Pool, WorkerGroups
from freewheel.racing._worker import Report, Worker
from freewheel.runtime import PREFETCH, SHUTDOWN_SECONDS, Batch, ClosedError, Run, chosen_streams
from freewheel.trace import tracer_for


class Queue(Protocol):
    """What a worker takes batches from."""

    def has(self, number: int | None) -> bool:
        """Whether this batch can be taken, or any if None."""
        ...

    def take(self, number: int | None) -> Any:
        """Remove and return this batch, or the first if None."""
        ...


class BatchQueue:
    """Batches that are pending for a worker."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def has(self, number: int | None) -> bool:
        """Whether this batch is pending, or any if None."""
        return bool(self.items) if number is None else any(item.number == number for item in self.items)

    def take(self, number: int | None) -> Any:
        """Remove and return this batch, or the first if None."""
        if number is None:
            return self.items.popleft()
        item = next(item for item in self.items if item.number == number)
        self.items.remove(item)
        return item


class LocalPool(Pool):
    """Workers that are threads of this process. Subclasses add them to `workers`."""

    def __init__(self, groups: WorkerGroups, run: Run, interleaving: Interleaving) -> None:
        super().__init__(groups, run, interleaving)
        self.workers: list[tuple[Worker, Callable[[], None]]] = []  # and the program that each one's thread runs
        self._dealt = 0
        self._over = False  # whether all batches are dealt
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    @abstractmethod
    def _queue(self, number: int) -> BatchQueue:
        """The queue that a batch goes to."""

    # ---- called by the caller ----

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context in which the threads run."""
        for row, (worker, _) in enumerate(self.workers):
            worker.tracer = tracer_for(row, 0, torch.device("cpu"), self.run.spec.trace)
        self._threads = [self._thread(*each) for each in self.workers]
        for thread in self._threads:
            thread.start()
        try:
            yield
        except ClosedError:  # a worker has failed
            self._stop()
            if self._errors:
                raise self._errors[0] from self._errors[0].__cause__
            raise
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        self.interleaving.close()
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def deal(self, batch: Batch | None) -> None:
        """Put a batch into its queue once there is room."""

        def do(number: int | None) -> Batch | None:
            if batch is None:
                self._over = True
            else:
                self._queue(batch.number).items.append(batch)
                self._dealt += 1
            return batch

        def ready(number: int | None) -> bool:  # a recording may fill queues further: their length is only about memory
            return number is not None or batch is None or len(self._queue(batch.number).items) < PREFETCH

        self.interleaving.exchange(CALLER, Exchange("deal", ready, do))

    def drain(self, last: Batch) -> None:
        """Wait until all batches are done."""
        drained = Exchange("drained", lambda number: self._done == self._dealt, lambda number: last)
        self.interleaving.exchange(CALLER, drained)

    def finish(self) -> None:
        """Join the threads."""
        self.interleaving.leave(CALLER)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def reports(self) -> list[Report]:
        """Their counts; the trainer's stages share the workers' memory."""
        return [worker.report() for worker, _ in self.workers]

    # ---- called by the workers ----

    def take(self, worker: Worker, queue: Queue, over: Callable[[], bool]) -> Any:
        """Take a pending batch once there is one; None when it is `over`."""

        def ready(number: int | None) -> bool:
            return over() or queue.has(number)

        def do(number: int | None) -> Any:
            return None if over() else queue.take(number)

        return self.interleaving.exchange(worker.name, Exchange("take", ready, do))

    def put(self, worker: Worker, verb: str, item: Any, put: Callable[[Any], object]) -> None:
        """Call `put` with a batch or a batch pass, as an exchange."""

        def do(number: int | None) -> Any:
            put(item)
            return item

        self.interleaving.exchange(worker.name, Exchange(verb, lambda number: True, do))

    def done(self, worker: Worker, item: Any, put: Callable[[Any], object] = lambda item: None) -> None:
        """Count a batch as done, and call `put` in the same exchange."""

        def count(item: Any) -> None:
            self._done += 1
            put(item)

        self.put(worker, "done", item, count)

    def _thread(self, worker: Worker, program: Callable[[], None]) -> threading.Thread:
        """A worker's thread; its error, if any, stops all other workers. On a GPU it begins on the caller's stream."""
        streams = chosen_streams()

        def work() -> None:
            try:
                torch.set_num_threads(self.run.threads)
                for stream in streams:
                    torch.cuda.set_stream(stream)
                program()
                self.interleaving.leave(worker.name)
            except ClosedError:
                pass
            except BaseException as error:
                self._errors.append(error)
                self.interleaving.close()

        return threading.Thread(target=work, name=f"freewheel-{worker.name.replace(' ', '-')}", daemon=True)
