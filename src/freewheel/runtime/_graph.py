"""`graph`: the stages of one GPU as CUDA graphs, on a stream each; events order them, and no thread waits.

One Python thread walks through the plan as `simulate` does, but what it executes is the launch of a graph: the GPU runs
the stages beside each other. See `CapturingLauncher` for the graphs.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from freewheel._config import RunConfig
from freewheel._cores import intra_op_threads
from freewheel._trees import map_tensors, tensors_of
from freewheel.plan import Schedule
from freewheel.runtime._capture import CapturingLauncher
from freewheel.runtime._channels import Channel
from freewheel.runtime._places import Recorded
from freewheel.runtime._reading import Batch
from freewheel.runtime._repeat import RepeatingFeed, Script
from freewheel.runtime._run import Cut, LocalRun, Outcome, Run
from freewheel.runtime._runtime import Runtime
from freewheel.runtime._simulate import Stepper, take_turns
from freewheel.runtime._traced_script import tracers
from freewheel.runtime._wiring import input_name
from freewheel.runtime._world import Wire
from freewheel.stage import Blueprint, Launcher


class Graphs(Runtime):
    """All stages on one GPU, as CUDA graphs."""

    local = True

    def check(self, config: RunConfig, blueprints: Sequence[Blueprint]) -> None:
        """Reject stages elsewhere, replicas, and credits whose computations are not captured."""
        devices = {blueprint.device for blueprint in blueprints}
        if len(devices) > 1 or next(iter(devices)).type != "cuda":
            places = ", ".join(sorted(map(str, devices)))
            raise ValueError(
                f"runtime='graph' with stages on {places}: it needs all stages on one CUDA device; use 'threads'"
            )
        schedule = blueprints[0].options.schedule
        if schedule.replicas > 1:
            raise ValueError(f"runtime='graph' with replicas={schedule.replicas}: it has one replica; use 'processes'")
        blueprints[0].options.credit.check_captured(schedule)

    def run(self, run: Run) -> Outcome:
        """Run to the end, or to the cut at which `on_cut` asks to stop."""
        with torch.cuda.device(run.stages[0].device):  # streams choose it, and the caller gets its own back
            try:
                return self._run(run)
            finally:
                gc.collect()  # autograd's cycles
                torch.cuda.empty_cache()  # the memory of the graphs, which a later capture could not take

    def _run(self, run: Run) -> Outcome:
        script = Script(slots_of(run.schedule))
        launchers = attach(run, script)
        caller = torch.cuda.current_stream(launchers[0].stream.device)

        def channel(wire: Wire) -> Channel:
            receiver = launchers[wire.receiver].stream
            if wire.joins_stages:
                sender = launchers[wire.sender].stream
                return StageChannel(wire.capacity, sender, receiver, script, launchers[0].recorded)
            kind = InputChannel if wire.name == input_name(0) else TargetChannel
            return kind(wire.capacity, caller, receiver)

        def advance(stepper: Stepper) -> bool:
            script.do(torch.cuda.set_stream, launchers[stepper.interpreter.stage.index].stream)
            return stepper.advance()

        def distribute(batch: Batch) -> None:
            run.distribute(batch, local.channels)

        def skip(batches: int) -> None:
            for interpreter in local.interpreters:
                interpreter.skip(batches)

        def on_cut(cut: Cut) -> bool:
            torch.cuda.set_stream(caller)
            torch.cuda.synchronize(caller.device)
            stops = run.on_cut(replace(cut, time=time.perf_counter()))  # it is over when the GPU has computed it
            caller.synchronize()  # what a callback has launched comes before the next batches
            if not (cut.step or cut.saved):
                for launcher in launchers:
                    launcher.check_unchanged()
                feed.on_cut()
            return stops

        def begin() -> torch.cuda.Stream:
            stage = torch.cuda.current_stream(caller.device)
            torch.cuda.set_stream(caller)
            return stage

        feed = RepeatingFeed(run.feed, script, begin, torch.cuda.set_stream, distribute, skip, enabled=may_repeat(run))
        try:
            with run.begun() as stages, intra_op_threads(run.threads):
                local = LocalRun(run, stages, channel, feed, tracers(script, run.spec.trace, caller.device))
                for launcher, interpreter in zip(launchers, local.interpreters):
                    arrivals = interpreter.arrivals
                    launcher.connect(arrivals.inputs, arrivals.targets, interpreter.add_loss)
                stopped_at = take_turns(run, local, advance, on_cut)
                torch.cuda.set_stream(caller)
                torch.cuda.synchronize(caller.device)
                for launcher in launchers:
                    launcher.check_unchanged()
                return local.outcome(stopped_at)
        finally:
            torch.cuda.set_stream(caller)
            torch.cuda.synchronize(caller.device)
            for stage, launcher in zip(run.stages, launchers):
                stage.launch = Launcher()
                launcher.close()


# Schedulers that change step sizes and nothing else.
STEP_SIZES_ALONE = (
    *(lr_scheduler.LambdaLR, lr_scheduler.MultiplicativeLR, lr_scheduler.StepLR, lr_scheduler.MultiStepLR),
    *(lr_scheduler.ConstantLR, lr_scheduler.LinearLR, lr_scheduler.ExponentialLR, lr_scheduler.PolynomialLR),
    *(lr_scheduler.CosineAnnealingLR, lr_scheduler.CosineAnnealingWarmRestarts),
)


def may_repeat(run: Run) -> bool:
    """Whether the stages do nothing for a batch that launchers and channels do not see."""
    schedule, spec, config = run.schedule, run.spec, run.config
    if schedule.micro > 1 or schedule.norms or not run.stages[0].credit.repeats:
        return False
    if spec.writer is not None or spec.steps or spec.norms or config.slow:
        return False
    schedulers = [stage.scheduler for stage in run.stages if config.scheduler_every == "batch"]
    return all(each is None or _changes_step_sizes_alone(each) for each in schedulers)


def _changes_step_sizes_alone(scheduler: lr_scheduler.LRScheduler) -> bool:
    if type(scheduler) is lr_scheduler.SequentialLR:
        return all(map(_changes_step_sizes_alone, scheduler._schedulers))
    return type(scheduler) in STEP_SIZES_ALONE


def slots_of(schedule: Schedule) -> int:
    """Return how many batches need places in memory at once.

    A stage forwards at most its delay beyond the batch that it learns from. Where it does not wait for gradients, the
    next stage may be behind by what the queue holds, one batch that it has received, and one that it computes.
    """
    own = max(schedule.delays) + 1
    if schedule.waits_for_gradients or schedule.stages == 1:
        return own
    behind = max(-(-activations // schedule.micro) for activations, _ in schedule.lengths())
    return max(own, max(schedule.delays[1:]) + 2 + behind)


def attach(run: Run, script: Script) -> list[CapturingLauncher]:
    """Give every stage a launcher for this run: graphs refer to memory that a stage frees at its end."""
    gc.collect()  # autograd's nodes of earlier runs, which would go on with the streams of these
    recorded = Recorded()
    made = [CapturingLauncher(stage, script, recorded, strict=run.strict) for stage in run.stages]
    for stage, launcher, following in zip(run.stages, made, [*made[1:], None]):
        stage.launch, launcher.next = launcher, following
    return made


class StageChannel(Channel):
    """A channel between two stages of one thread: what is received is used after what was sent is computed.

    Args:
        capacity: The most items that it holds.
        sender: The stream that computes them.
        receiver: The stream that uses them.
        script: What is launched for each batch.
        recorded: What needs no care, since its memory is never freed.
    """

    def __init__(
        self, capacity: int, sender: torch.cuda.Stream, receiver: torch.cuda.Stream, script: Script, recorded: Recorded
    ) -> None:
        super().__init__(capacity)
        self._sender, self._receiver, self._script, self._recorded = sender, receiver, script, recorded
        # Each batch of a slot has the same event.
        self._events = deque(torch.cuda.Event() for _ in range(max(script.slots, capacity)))

    def put(self, item: Any) -> None:
        """Append an item with an event of the sender's stream."""
        event = self._events[0]
        self._events.rotate(-1)
        self._script.do(event.record, self._sender)
        self._items.append((item, event))

    def get(self) -> Any:
        """Take the oldest item; the receiver's stream waits for its event."""
        item, event = self._items.popleft()
        self._script.do(self._receiver.wait_event, event)
        if item not in self._recorded and tensors_of(item):
            self._script.break_off()
            _hand_over(item, self._receiver)
        return item


class InputChannel(Channel):
    """A channel for inputs, from the stream of the loader to that of the first stage."""

    def __init__(self, capacity: int, sender: torch.cuda.Stream, receiver: torch.cuda.Stream) -> None:
        super().__init__(capacity)
        self._sender, self._receiver = sender, receiver
        self._spare: deque[torch.cuda.Event] = deque()

    def put(self, item: Any) -> None:
        """Append an item with an event of the sender's stream."""
        event = self._spare.popleft() if self._spare else torch.cuda.Event()
        event.record(self._sender)
        self._items.append((item, event))

    def get(self) -> Any:
        """Take the oldest item; the receiver's stream waits for its event."""
        item, event = self._items.popleft()
        self._receiver.wait_event(event)
        self._spare.append(event)
        _hand_over(item, self._receiver)
        return item


def _hand_over(item: Any, receiver: torch.cuda.Stream) -> None:
    """Keep memory of another stream, which may be freed before it is used, until the receiver has used it."""
    for tensor in tensors_of(item):
        if tensor.is_cuda:
            tensor.record_stream(receiver)


class TargetChannel(InputChannel):
    """A channel for targets, which are copied to the device at once: a late stage uses them much later."""

    def put(self, item: Any) -> None:
        """Append it with a copy on the device, made on the sender's stream."""
        target, *rest = item
        super().put((self._there(target) if isinstance(target, Tensor) else map_tensors(self._there, target), *rest))

    def _there(self, tensor: Tensor) -> Tensor:
        if tensor.device == self._sender.device:
            return tensor
        copy = torch.empty_like(tensor, device=self._sender.device)
        return copy.copy_(tensor, non_blocking=tensor.is_cuda or not tensor.is_pinned())
