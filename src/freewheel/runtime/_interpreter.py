"""The interpreter of plans: it runs one stage's stream of actions, on every runtime.

A runtime only decides who calls `execute` (one thread for all stages, or one each) and what the channels are.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from freewheel.checkpoint import Counts, Restart, Saved, Saver
from freewheel.plan import Action, Op, in_flight, rest, stream
from freewheel.runtime._channels import Channel, ClosedError, Receiver
from freewheel.runtime._errors import StageError
from freewheel.runtime._feed import Announced
from freewheel.runtime._layout import compact
from freewheel.runtime._losses import Losses
from freewheel.runtime._pieces import cut_in_samples, cut_in_time
from freewheel.runtime._replicas import Peers
from freewheel.runtime._straggler import Straggler
from freewheel.stage import ChainStage, FeedbackStage, ForwardStage, Gradients, Stage, SyntheticStage, load_buffers

Unit = tuple[int, int]
NOT_FINITE = "lower the learning rate, clip gradients (clip=1.0), or look for broken values in the data"


@dataclass
class Part:
    """What one stage gives to a cut: the network after a number of batches; or where it has saved itself then."""

    stage: int
    batches: int
    busy: float  # seconds of work since the cut before
    staleness: float  # mean number of updates between a forward and its own, since the cut before
    losses: list[tuple[Tensor, int]] = field(default_factory=list)
    state: dict[str, Any] | None = None
    updates: int = 0  # since the cut before
    saved: Saved | None = None
    replica: int = 0
    layers: dict[str, tuple[int, int, float]] = field(default_factory=dict)  # updates begun, done, staleness: of races

    @property
    def counts(self) -> Counts:
        """What the stage has counted since the cut before."""
        return Counts(self.busy, round(self.staleness * self.updates), self.updates, self.losses)


class Interpreter:
    """Runs the actions of one stage.

    Args:
        stage: The stage.
        feed: Announces the batches.
        inputs: Where the first stage finds its batches.
        targets: Where a stage that gets them finds its targets.
        links: The channels to the neighbours and to the other replicas, by the op that uses them.
        on_part: Gets this stage's part of every cut.
        states: Whether the parts hold a copy of the stage's state.
        saver: Writes the stage's part of checkpoints.
        restart: The checkpoint that the run goes on from.
    """

    def __init__(
        self,
        stage: Stage,
        feed: Announced,
        *,
        inputs: Receiver | None,
        targets: Receiver | None,
        links: Mapping[Op, Any],
        on_part: Callable[[Part], None],
        states: bool,
        saver: Saver | None = None,
        restart: Restart | None = None,
    ) -> None:
        self.stage = stage
        self._saver, self._restart = saver, restart
        stage.keeps = saver is not None
        self._feed, self._inputs, self._targets, self._links = feed, inputs, targets, links
        self._on_part, self._states = on_part, states
        self._schedule = stage.options.schedule
        self._straggler = Straggler.of(stage)
        self._received: dict[Unit, Any] = {}  # activations, and at the first stage the batches
        self._expected: dict[Unit, tuple[Any, int, float]] = {}  # targets, sizes and shares of the replica's samples
        self._weight = 1.0  # of the batch that is being forwarded: the share of it that these samples are
        self._activation: Any = None  # to send
        self._again: deque[Any] = deque()  # messages that were in flight, to send once more
        flying = in_flight(self._schedule, stage.index, 1 + self._schedule.lag) if saver else ()
        most = Counter(action.op for action in flying)
        # Those that may be in flight, for checkpoints.
        self._sent: dict[Op, deque[tuple[Unit, Any]]] = {op: deque(maxlen=count) for op, count in most.items()}
        self._backed: Gradients = ()  # to send
        self._gradients: Gradients | None = None  # received
        self._norms = torch.zeros(0)  # of the gradients of all later stages
        self._norm: Tensor | None = None  # over all stages
        self._busy, self._gaps, self._updates, self._losses = 0.0, 0, 0, Losses(stage)
        self.doing: tuple[Action, float] | None = None  # the work under way, and since when
        self._seen: dict[int, int] = {}  # batch -> version that its forward saw
        self._verbs: dict[Op, Callable[[Unit], None]] = {
            Op.FORWARD: self._forward,
            Op.UPDATE: self._update,
            Op.SEND_ACTIVATION: lambda unit: links[Op.SEND_ACTIVATION].put(self._handed_over(unit, Op.SEND_ACTIVATION)),
            Op.RECEIVE_ACTIVATION: lambda unit: self._received.update({unit: links[Op.RECEIVE_ACTIVATION].get()}),
            Op.SEND_TURN: lambda unit: links[Op.SEND_TURN].put(unit),
            Op.RECEIVE_TURN: lambda unit: links[Op.RECEIVE_TURN].get(),
            Op.SEND_NORMS: lambda unit: links[Op.SEND_NORMS].put(self._all_norms()),
            Op.RECEIVE_NORMS: self._receive_norms,
            Op.SEND_CLIP: lambda unit: links[Op.SEND_CLIP].put(self._norm),
            Op.RECEIVE_CLIP: self._receive_clip,
            Op.SEND_SHARE: lambda unit: links[Op.SEND_SHARE].put(stage.share()),
            Op.RECEIVE_SHARES: lambda unit: stage.gather(links[Op.RECEIVE_SHARES].get()),
            **(self._chain(stage) if isinstance(stage, ChainStage) else {}),
            **(self._predicted(stage) if isinstance(stage, SyntheticStage) else {}),
            **(self._derived(stage) if isinstance(stage, ForwardStage) else {}),
            **(self._fed_back(stage) if isinstance(stage, FeedbackStage) else {}),
        }

    def _chain(self, stage: ChainStage) -> dict[Op, Callable[[Unit], None]]:
        """What the chain rule adds: gradients come from the next stage and go to the one before."""

        def backward(unit: Unit) -> None:
            self._backed = stage.backward(unit, self._gradients)
            self._gradients = None

        def receive(unit: Unit) -> None:
            self._gradients = self._links[Op.RECEIVE_GRADIENT].get()

        return {
            Op.RECOMPUTE: stage.recompute,
            Op.BACKWARD: backward,
            Op.SEND_GRADIENT: lambda unit: self._links[Op.SEND_GRADIENT].put(self._handed_over(unit, Op.SEND_GRADIENT)),
            Op.RECEIVE_GRADIENT: receive,
        }

    def _predicted(self, stage: SyntheticStage) -> dict[Op, Callable[[Unit], None]]:
        """What predicted gradients add: those that come later are for the predictor."""

        def fit(unit: Unit) -> None:
            assert self._gradients is not None
            stage.fit(unit, self._gradients)
            self._gradients = None

        return {Op.FIT: fit}

    def _derived(self, stage: ForwardStage) -> dict[Op, Callable[[Unit], None]]:
        """What forward gradients add: directional derivatives go from the last stage to all."""

        def update(unit: Unit) -> None:
            stage.derivatives(unit[0])
            self._update(unit)

        def receive(unit: Unit) -> None:
            stage.learn(unit[0], self._links[Op.RECEIVE_DERIVATIVE].get())

        return {
            Op.UPDATE: update,
            Op.SEND_DERIVATIVE: lambda unit: self._links[Op.SEND_DERIVATIVE].put(stage.derivatives(unit[0])),
            Op.RECEIVE_DERIVATIVE: receive,
        }

    def _fed_back(self, stage: FeedbackStage) -> dict[Op, Callable[[Unit], None]]:
        """What feedback adds: the error at the output goes from the last stage to all."""
        return {
            Op.SEND_ERROR: lambda unit: self._links[Op.SEND_ERROR].put(stage.error(unit)),
            Op.RECEIVE_ERROR: lambda unit: stage.take_error(unit, self._links[Op.RECEIVE_ERROR].get()),
        }

    def actions(self) -> Iterator[Action]:
        """The stage's stream, for as many batches as the feed announces."""
        if self._restart is not None:
            return self._go_on(self._restart)
        return stream(self._schedule, self.stage.index, self._feed.numbers())

    def _go_on(self, restart: Restart) -> Iterator[Action]:
        """The rest of a stream that a checkpoint has cut, with everything in flight put back first."""
        stage, schedule = self.stage, self._schedule
        part = restart.read(stage.index, stage.replica)
        if part.buffers is not None:
            load_buffers(stage.module, part.buffers)
        self._busy, self._gaps, self._updates, losses, later = part.counts
        self._losses.restore(restart.batches, losses, later)
        if part.pending is None:
            stage.epoch = restart.epoch
            yield from stream(schedule, stage.index, self._feed.numbers(restart.batches))
            return
        stage.restore(part.pending)
        self._seen = part.seen
        self._again.extend(stage.unpacked(message) for _, _, message in part.sent)
        yield from (Action(Op(f"{letter}>"), batch, None, micro) for letter, (batch, micro), _ in part.sent)
        yield from rest(schedule, stage.index, restart.batches, self._feed.numbers(restart.batches - 1))

    def ready(self, action: Action) -> bool:
        """Whether `execute` would not have to wait."""
        channel = self._links.get(action.op)
        if not isinstance(channel, Channel | Peers):
            return True
        return channel.has_item if action.op.is_receive else channel.has_room

    def run(self) -> None:
        """Executes the whole stream, waiting where it must; gives up at the next action once the run is closed."""
        if self.stage.device.type == "cuda":
            torch.cuda.set_device(self.stage.device)  # a thread begins without a GPU of its own
        for action in self.actions():
            if self._feed.closed:
                raise ClosedError
            self.execute(action)

    def execute(self, action: Action) -> None:
        """Does one action."""
        op, unit = action.op, (action.batch, action.micro or 0)
        if op in self._links:
            self._verbs[op](unit)
            self._losses.note(action.batch)
            return
        if op is Op.FORWARD and unit[1] == 0:
            self._fetch(unit[0])
        started = time.perf_counter()
        self.doing = action, started
        try:
            self._verbs[op](unit)
        except Exception as error:
            replica = self.stage.replica if self._schedule.replicas > 1 else None
            raise StageError(self.stage.index, action, error, replica=replica) from error
        if self._straggler is not None:
            self._straggler.hold_up(action.batch, started)
        self.doing = None
        self._losses.note(action.batch)
        self._busy += time.perf_counter() - started
        if op is Op.UPDATE:
            self._after(action.batch)

    def _after(self, batch: int) -> None:
        """Gives this stage's part where a cut is due, and where a checkpoint is."""
        ends = self._feed.is_cut(batch)
        if ends:
            self._on_part(self.part(batch + 1, until=batch + 1))
        if self._saver is not None and self._saver.due(batch + 1, epoch_ends=ends):
            self._on_part(self._save(self._saver, batch + 1))

    def _fetch(self, batch: int) -> None:
        """Takes a batch from the feed, in micro-batches: its input at the first stage, its target where it is told."""
        along, micro = self._schedule.along, self._schedule.micro
        if self._inputs is not None:
            x, size = self._inputs.get()
            pieces = cut_in_time(x, size, micro, "input") if along else cut_in_samples(x, size, micro, "input")
            for j, (piece, _, _) in enumerate(pieces):
                self._received[batch, j] = piece
        if self._targets is not None:
            y, size, length, self._weight = self._targets.get()
            pieces = (
                cut_in_time(y, size, micro, "target", length) if along else cut_in_samples(y, size, micro, "target")
            )
            for j, piece in enumerate(pieces):
                self._expected[batch, j] = piece

    def _forward(self, unit: Unit) -> None:
        if unit[1] == 0 and unit[0] and self._feed.is_cut(unit[0] - 1):
            self.stage.epoch += 1
        self._seen[unit[0]] = self.stage.version
        x = self._received.pop(unit)
        target, size, share = self._expected.pop(unit, (None, 0, 1.0))
        out = self.stage.forward(unit, x, target, size, share, self._weight)
        if not self.stage.is_last:
            self._activation = out
        elif out is not None and out.device.type == "cpu" and not math.isfinite(out.item()):
            raise FloatingPointError(f"the loss is {out.item()}: {NOT_FINITE}")

    def _handed_over(self, unit: Unit, op: Op) -> Any:
        """The activation or gradient to send, which from here on is the neighbour's alone."""
        if self._again:
            message = self._again.popleft()
        elif op is Op.SEND_GRADIENT:
            message = self._backed
        else:
            message, self._activation = compact(self._activation), None
        if op in self._sent:
            self._sent[op].append((unit, message))
        return message

    def _update(self, unit: Unit) -> None:
        self._gaps += self.stage.version - self._seen.pop(unit[0])
        self._updates += 1
        if self._schedule.norms and self.stage.index == 0:
            self._norm = torch.linalg.vector_norm(self._all_norms())
        self.stage.update(self._norm)

    def _receive_norms(self, unit: Unit) -> None:
        self._norms = self._links[Op.RECEIVE_NORMS].get()

    def _receive_clip(self, unit: Unit) -> None:
        self._norm = self._links[Op.RECEIVE_CLIP].get()

    def _all_norms(self) -> Tensor:
        norms = self.stage.norms()
        return torch.cat([norms, self._norms.to(norms)])

    def part(self, batches: int, *, state: bool = False, until: int | None = None) -> Part:
        """This stage's part of the cut after a number of batches; what it counts starts anew.

        Losses of batch `until` and later ones stay for the cuts to come.
        """
        stage = self.stage
        copy = stage.state() if (self._states or state) and stage.replica == 0 else None
        mean = self._gaps / max(1, self._updates)
        losses = self._losses.take(until)
        part = Part(stage.index, batches, self._busy, mean, losses, copy, self._updates, replica=stage.replica)
        self._busy, self._gaps, self._updates = 0.0, 0, 0
        return part

    def _save(self, saver: Saver, batches: int) -> Part:
        """Writes all that this stage is and holds after its update number `batches` - 1; nobody waits for it."""
        stage = self.stage
        assert not {**self._received, **self._expected}, "a batch is forwarded in part"
        flying = in_flight(self._schedule, stage.index, batches, batches + len(self._seen))
        held = {(op, unit): message for op, each in self._sent.items() for unit, message in each}
        units = [(action.op, (action.batch, action.micro or 0)) for action in flying]
        assert held.keys() >= set(units), "a message in flight was not held on to"
        sent = [(op.channel, unit, stage.packed(held[op, unit])) for op, unit in units]
        counts = Counts(self._busy, self._gaps, self._updates, *self._losses.apart(batches))
        saved = saver.write(stage, batches, counts=counts, seen=self._seen, sent=sent)
        return Part(stage.index, batches, 0.0, 0.0, saved=saved, replica=stage.replica)
