"""The interpreter of plans: it runs the actions of one stage, on every runtime.

A runtime only decides who calls `execute` (one thread for all stages, or one each) and what the channels are.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from freewheel.checkpoint import Checkpoint, CheckpointWriter, Counts, StageSnapshot
from freewheel.plan import ACTIVATION, TURN, Action, Op, Unit, in_flight, rest, stream
from freewheel.runtime._arrivals import Arrivals
from freewheel.runtime._channels import ClosedError
from freewheel.runtime._cut import Snapshot
from freewheel.runtime._errors import StageError
from freewheel.runtime._feed import Announced
from freewheel.runtime._lane import lanes_of
from freewheel.runtime._layout import compact
from freewheel.runtime._losses import Losses
from freewheel.runtime._overlap import FORWARDS, Fail, overlapped
from freewheel.runtime._spec import RunSpec
from freewheel.runtime._wiring import links_of
from freewheel.stage import Stage, Verbs, lead, load_buffers
from freewheel.trace import Tracer

NOT_FINITE = "lower the learning rate, clip gradients (clip=1.0), or look for broken values in the data"


class Interpreter:
    """Runs the actions of one stage.

    Args:
        stage: The stage.
        feed: Announces the batches.
        ends: The stage's ends of wires, by name; others are ignored.
        spec: The options of the run.
        on_snapshot: Called with this stage's snapshot at every cut.
        tracer: Records what the stage does; by default as `spec` asks for.
    """

    def __init__(
        self,
        stage: Stage,
        feed: Announced,
        ends: Mapping[str, Any],
        spec: RunSpec,
        on_snapshot: Callable[[Snapshot], None],
        tracer: Tracer | None = None,
    ) -> None:
        self.stage, self._feed, self._spec, self._on_snapshot = stage, feed, spec, on_snapshot
        self._lanes = lanes_of(stage, tracer, spec.trace)  # the last one for all but forwards
        self._writer = spec.writer
        stage.retains, stage.measures = spec.writer is not None, spec.norms
        self.arrivals = Arrivals(stage, ends)
        self._links = links_of(stage, ends)
        self._schedule = stage.schedule
        self._activation: Any = None  # to send
        self._resend: dict[tuple[Op, Unit], Any] = {}  # messages that were in flight at the checkpoint
        flying = in_flight(self._schedule, stage.index, 1 + self._schedule.credit.lag) if spec.writer else ()
        most = Counter(action.op for action in flying)
        # Messages that may be in flight, for checkpoints.
        self._in_flight: dict[Op, deque[tuple[Unit, Any]]] = {op: deque(maxlen=count) for op, count in most.items()}
        self._gaps, self._updates, self._losses = 0, 0, Losses(stage)
        self._skipped = 0  # batches before those that are interpreted, and between them
        self._drained = 0  # batches before a checkpoint with none in flight, after which versions begin anew
        self._seen: dict[int, int] = {}  # batch -> version that its forward saw
        self._gap = 0  # of the last update
        self._verbs: Verbs = {
            **stage.verbs(),
            Op.FORWARD: self._forward,
            ACTIVATION.send: self._take_activation,
            ACTIVATION.receive: self.arrivals.add,
            TURN.send: lambda unit: unit,
            TURN.receive: lambda unit, turn: None,
        }

    @property
    def doing(self) -> tuple[Action, float] | None:
        """The work under way that began first, and since when."""
        found = [lane.doing for lane in self._lanes]
        return min((doing for doing in found if doing is not None), key=itemgetter(1), default=None)

    def use(self, verbs: Verbs) -> None:
        """Execute these ops by these functions from now on."""
        self._verbs |= verbs

    def actions(self) -> Iterator[Action]:
        """The stage's stream, for as many batches as the feed announces."""
        if self._spec.checkpoint is not None:
            return self._resume(self._spec.checkpoint)
        return stream(self._schedule, self.stage.index, self._numbers())

    def _numbers(self, number: int = 0) -> Iterator[int]:
        return self._lanes[-1].tracer.numbers(self._feed.numbers(number))

    def _resume(self, checkpoint: Checkpoint) -> Iterator[Action]:
        """The rest of a stream after a checkpoint; everything in flight is restored first."""
        stage, schedule, batches = self.stage, self._schedule, checkpoint.manifest.batches
        snapshot = checkpoint.snapshot(stage.index, stage.replica)
        if snapshot.buffers is not None:
            load_buffers(stage.module, snapshot.buffers)
        self._lanes[-1].busy, self._gaps, self._updates, losses, later = snapshot.counts
        self._losses.restore(batches, losses, later)
        if snapshot.pending is None:
            stage.epoch, self._drained = snapshot.epoch, batches
            yield from stream(schedule, stage.index, self._numbers(batches))
            return
        stage.restore(snapshot.pending)
        self._seen = snapshot.seen
        sent = [(Op(f"{letter}>"), unit, message) for letter, unit, message in snapshot.sent]
        self._resend = {(op, (batch, micro)): stage.decode(message) for op, (batch, micro), message in sent}
        yield from (Action(op, batch, None, micro) for op, (batch, micro), _ in sent)
        yield from rest(schedule, stage.index, batches, self._numbers(batches - 1))

    def ready(self, action: Action) -> bool:
        """Whether `execute` would not wait."""
        op = action.op
        channel = self._links.get(op)
        if channel is None:
            return True
        return channel.has_item if op.is_receive else channel.has_room

    def run(self, fail: Fail) -> None:
        """Execute the whole stream, waiting where needed; give up at the next action once the run is closed.

        `fail` is called with an error of another thread of this stage, and closes the wires.
        """
        if self.stage.device.type == "cuda":
            torch.cuda.set_device(self.stage.device)  # a thread begins without a GPU of its own
        with overlapped(self, fail) as execute:
            for action in self.actions():
                if self._feed.closed:
                    raise ClosedError
                execute(action)

    def execute(self, action: Action) -> None:
        """Execute one action."""
        op, batch, version, micro = action
        unit, lane = (batch, micro or 0), self._lanes[0 if op in FORWARDS else -1]
        if not op.is_compute:
            lane.tracer.begin(op.value, *unit)
            self._exchange(op, unit)
            lane.tracer.end()
            if self.stage.losses:
                self._losses.note(batch + self._skipped)
            return
        if op is Op.FORWARD and not unit[1]:
            self.arrivals.fetch(batch)
        started = time.perf_counter()
        lane.doing = action, started
        lane.tracer.begin(op.value, *unit, self._version(op, version))
        try:
            if op is Op.UPDATE:
                self._count_update(batch)
            self._verbs[op](unit)
        except Exception as error:
            replica = self.stage.replica if self._schedule.replicas > 1 else None
            action = action._replace(batch=batch + self._skipped)
            raise StageError(self.stage.index, action, error, replica=replica) from error
        if lane.straggler is not None:
            lane.straggler.hold_up(batch, started)
        lane.tracer.end()
        lane.doing = None
        if self.stage.losses:
            self._losses.note(batch + self._skipped)
        lane.busy += time.perf_counter() - started
        if op is Op.UPDATE:
            self._after(batch)

    def _version(self, op: Op, planned: int | None) -> int | None:
        """The version of the weights that a computation sees; between forward and update it is that of the plan."""
        known = self.stage.version if op in (Op.FORWARD, Op.UPDATE) else planned
        return None if known is None else known + self._skipped + self._drained

    def _exchange(self, op: Op, unit: Unit) -> None:
        """Send or receive one message."""
        verb, link = self._verbs[op], self._links[op]
        if op.is_receive:
            verb(unit, link.get())
            return
        message = self._resend.pop((op, unit)) if (op, unit) in self._resend else verb(unit)
        if op in self._in_flight:
            self._in_flight[op].append((unit, message))
        link.put(message)

    def _after(self, batch: int) -> None:
        """Take a snapshot where a cut is due, and where a checkpoint is."""
        ends, batches = self._feed.is_cut(batch), batch + self._skipped + 1
        if ends:
            self.stage.end_epoch()
        if self._spec.steps:
            self._on_snapshot(self._report(batch))
        if ends:
            self._on_snapshot(self.snapshot(batches, until=batches))
        if self._writer is not None and self._writer.due(batches, epoch_ends=ends):
            self._on_snapshot(self._save(self._writer, batches))

    def skip(self, batches: int) -> None:
        """Count batches that were launched without being interpreted, as those interpreted before them."""
        self._skipped += batches
        for lane in self._lanes:
            lane.tracer.skipped += batches
        self._gaps += batches * self._gap
        self._updates += batches
        self.stage.shift(batches)

    def add_loss(self, batch: int, loss: Tensor, size: int) -> None:
        """Add the loss of such a batch, numbered as those that are interpreted."""
        self._losses.add(batch + self._skipped, loss, size)

    def _forward(self, unit: Unit) -> None:
        if unit[1] == 0 and unit[0] and self._feed.is_cut(unit[0] - 1):
            self.stage.epoch += 1
        self._seen[unit[0]] = self.stage.version
        out = self.stage.forward(unit, *self.arrivals.take(unit))
        if not self.stage.is_last:
            self._activation = out
        elif out is not None and out.device.type == "cpu" and not math.isfinite(out.item()):
            raise FloatingPointError(f"the loss is {out.item()}: {NOT_FINITE}")

    def _take_activation(self, unit: Unit) -> Any:
        """The activation to send; this stage does not use it any more."""
        message, self._activation = compact(self._activation), None
        return message

    def _count_update(self, batch: int) -> None:
        lead(self.stage, len(self._seen), lambda ahead: self._feed.is_cut(batch + ahead))
        self._gap = self.stage.version - self._seen.pop(batch)
        self._gaps += self._gap
        self._updates += 1

    def snapshot(self, batches: int, *, state: bool = False, until: int | None = None) -> Snapshot:
        """This stage's snapshot after a number of batches; its counts are reset.

        Losses of batch `until` and later ones are retained for later cuts.
        """
        stage = self.stage
        stage.check_unchanged()
        copy = stage.state() if (self._spec.states or state) and stage.replica == 0 else None
        counts = self._taken_busy(), self._gaps, self._losses.take(until)
        recordings = tuple(each for lane in self._lanes for each in lane.tracer.take(whole=until is None))
        taken = Snapshot(
            stage.index, batches, *counts, copy, self._updates, replica=stage.replica, recordings=recordings
        )
        self._gaps, self._updates = 0, 0
        return taken

    def _taken_busy(self) -> float:
        """The seconds of work since the cut before, which begin at zero again."""
        busy = sum(lane.busy for lane in self._lanes)
        for lane in self._lanes:
            lane.busy = 0.0
        return busy

    def _report(self, batch: int) -> Snapshot:
        """The report of an update."""
        stage, losses = self.stage, self._losses.of(batch)
        return Snapshot(
            stage.index, batch + 1, 0.0, 0, losses, replica=stage.replica, step=True, norm=stage.gradient_norm
        )

    def _save(self, writer: CheckpointWriter, batches: int) -> Snapshot:
        """Write the stage and what it has in flight after its update number `batches` - 1; no other stage waits."""
        stage = self.stage
        assert not self.arrivals, "a batch is half forwarded"
        flying = in_flight(self._schedule, stage.index, batches, batches + len(self._seen))
        held = {(op, unit): message for op, each in self._in_flight.items() for unit, message in each}
        units = [(action.op, action.unit) for action in flying]
        assert held.keys() >= set(units), "a message in flight was not retained"
        sent = [(op.channel, unit, stage.encode(held[op, unit])) for op, unit in units]
        busy = sum(lane.busy for lane in self._lanes)
        counts = Counts(busy, self._gaps, self._updates, *self._losses.split(batches))
        file = writer.write(batches, StageSnapshot.of(stage, writer.names[stage.index], counts, self._seen, sent))
        return Snapshot(stage.index, batches, 0.0, 0, saved=(file,), replica=stage.replica)
