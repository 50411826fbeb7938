"""Repeating the launches of earlier batches, once they are the same for every batch of a slot.

::

    batches    0 1 2 3 4 | 5 6 7 8 9 | 10 11 12 13 14 | 15 16 17 18 19 | 20 …      five slots
               capture     interpret,  interpret,       repeat           repeat
               graphs      note        compare

In a regular run, all that Python decides for batch n it has decided for batch n - slots: which graphs are launched on
which streams, and which events order them. A `Script` notes these calls; when every batch of a whole turn of the slots
has had the calls of the one before, later turns make the same calls without asking the interpreter. The state of the
run is then that of `slots` batches before, with all numbers of batches shifted. After the end of an epoch, a turn with
the calls that were repeated before is enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from freewheel.runtime._channels import ClosedError
from freewheel.runtime._feed import Feed
from freewheel.runtime._places import Form
from freewheel.runtime._reading import Batch

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Script:
    """The calls that launch each batch.

    Args:
        slots: After so many batches, the same places in memory are used again.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.batch = 0  # that is being launched
        self._calls: list[Call] = []  # for this batch
        self._past: deque[list[Call]] = deque()  # those of the last batches, of each slot
        self._equal = 0  # batches in a row that had the calls of the one before in their slot
        self._known: dict[int, list[Call]] = {}  # that have been repeated, by slot
        self._familiar = 0  # batches in a row that had these

    def do(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function, and note that."""
        self._calls.append((function, arguments))
        function(*arguments)

    def note(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Note a call that does what has been done in another way."""
        self._calls.append((function, arguments))

    def break_off(self) -> None:
        """Note that something is not repeatable."""
        self._calls.append((object, (object(),)))
        self._equal = self._familiar = 0

    def turn(self) -> None:
        """End a batch: the next one is launched from now on."""
        before = self._past.popleft() if len(self._past) == self.slots else None
        self._equal = self._equal + 1 if before == self._calls else 0
        self._familiar = self._familiar + 1 if self._known.get(self._slot) == self._calls else 0
        self._past.append(self._calls)
        self._calls = []

    @property
    def regular(self) -> bool:
        """Whether every slot has had the same calls twice, or those that have been repeated before."""
        return max(self._equal, self._familiar) >= self.slots

    def repeat(self, batch: int) -> None:
        """Launch the next batch as the one before in its slot."""
        self.batch = batch
        for function, arguments in self._past[0]:
            function(*arguments)
        self._known[self._slot] = self._past[0]
        self._past.rotate(-1)

    @property
    def _slot(self) -> int:
        return self.batch % self.slots


class RepeatingFeed:
    """A feed for stages in one thread, which repeats the launches of earlier batches where it can.

    The stages number the batches that they interpret; `shift` is how many were repeated besides.

    Args:
        feed: The feed.
        script: The calls of each batch.
        begin: Called before batches are read or sent; returns what `end` is called with afterwards.
        end: Lets the stage that needs a batch go on.
        distribute: Sends a batch to the stages.
        skip: Called after a turn of the slots has been repeated, with the number of its batches.
        enabled: Whether the run is one that may be regular.
    """

    def __init__(
        self,
        feed: Feed,
        script: Script,
        begin: Callable[[], Any],
        end: Callable[[Any], None],
        distribute: Callable[[Batch], None],
        skip: Callable[[int], None],
        *,
        enabled: bool,
    ) -> None:
        self._feed, self._script, self._begin, self._end = feed, script, begin, end
        self._distribute, self._skip = distribute, skip
        self._enabled, self.shift = enabled, 0
        self._given = feed.announced  # batches that the stages have been sent
        self._ahead: deque[Batch] = deque()
        self._error: Exception | None = None  # of the loader, raised after the batches before it
        self._over = False
        self._forms: tuple[Form, Form] | None = None
        self._cuts = 0  # sent and not complete

    @property
    def announced(self) -> int:
        """The number of batches that the stages have been sent."""
        return self._given

    @property
    def closed(self) -> bool:
        """Whether the run is being stopped."""
        return self._feed.closed

    def is_cut(self, number: int) -> bool:
        """Whether an epoch ends with this batch."""
        return self._feed.is_cut(number + self.shift)

    def numbers(self, number: int = 0) -> Iterator[int]:
        """The batch numbers from this one on; a batch is sent to the stages where its number is needed first."""
        while True:
            if self._given <= number + self.shift and not self._over:
                self._deliver()
            if self.closed:
                raise ClosedError
            if self._given <= number + self.shift:
                return
            yield number
            number += 1

    def on_cut(self) -> None:
        """Note that a cut is complete. After it, stages begin an epoch, which the script does not know."""
        self._cuts -= 1
        self._script.break_off()

    def _deliver(self) -> None:
        """Repeat as many batches as possible, then send the next one to be interpreted."""
        self._script.turn()
        stage = self._begin()
        if self._enabled and self._script.regular and not self._cuts:
            self._repeat()
        self._look_ahead(1)
        if not self._ahead:
            if self._error is not None:
                raise self._error
            self._over = True
            self._end(stage)
            return
        batch = self._ahead.popleft()
        forms = Form.of(batch.x), Form.of(batch.target)
        if forms != self._forms:
            self._forms = forms
            self._script.break_off()
        self._cuts += batch.cut
        self._script.batch = batch.number - self.shift
        self._send(batch)
        self._script.do(self._end, stage)

    def _repeat(self) -> None:
        slots = self._script.slots
        while True:
            self._look_ahead(slots)
            if len(self._ahead) < slots or not all(map(self._is_regular, self._ahead)):
                return
            for _ in range(slots):
                batch = self._ahead.popleft()
                self._send(batch)
                self._script.repeat(batch.number - self.shift)
                self._begin()
            self.shift += slots
            self._skip(slots)

    def _is_regular(self, batch: Batch) -> bool:
        return not batch.cut and (Form.of(batch.x), Form.of(batch.target)) == self._forms

    def _send(self, batch: Batch) -> None:
        self._distribute(batch)
        self._given = batch.number + 1

    def _look_ahead(self, count: int) -> None:
        """Read so many batches, but none after the end of an epoch."""
        while len(self._ahead) < count and self._error is None and not (self._ahead and self._ahead[-1].cut):
            try:
                batch = self._feed.pull()
            except Exception as error:
                self._error = error
                return
            if batch is None:
                return
            self._ahead.append(batch)
