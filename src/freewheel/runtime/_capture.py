"""CUDA graphs of a stage's computations: each is captured once for every slot, and replayed for every later batch.

::

    batches      0    1    2    3    4    5   …     delays 2, 1, 0: three slots
    slots        0    1    2    0    1    2
    stage 0     F0   F1   F2   B0   F0   B1  …      a graph each, at the same places in memory every time
    stage 1          F0   F1   B0   F2   B1  …      reads the output of stage 0 where it is

A slot has the input of a batch, a copy of each late stage's weights, the activations that autograd has saved, and the
gradients. It is used again only after the update of its batch. A graph is captured by calling the function that other
runtimes call for every batch, so that it computes the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from freewheel._plain import is_plain
from freewheel._trees import tensors_of
from freewheel.plan import Unit
from freewheel.runtime._captured import CapturedCall, CapturedCalls
from freewheel.runtime._channels import Channel
from freewheel.runtime._drawing import DrawingLauncher
from freewheel.runtime._drawn import Sources
from freewheel.runtime._fixed import NotCapturedError, StepSizes, fingerprint_of, may_capture_updates
from freewheel.runtime._places import FixedTree, Form, Recorded, forms_of, is_dense
from freewheel.runtime._recording import recording
from freewheel.runtime._repeat import Script
from freewheel.runtime._warm_up import held_by, leaving_no_trace
from freewheel.stage import NotYetError, Stage, has_state, repeat_lead

T = TypeVar("T")


class CapturingLauncher(DrawingLauncher):
    """Captures the computations of a stage and replays them.

    Args:
        stage: The stage.
        script: What is launched for each batch.
        recorded: The results of all stages.
        strict: Whether what cannot be captured is refused; else it is computed without a graph, where that is safe.
    """

    fixed = True

    def __init__(self, stage: Stage, script: Script, recorded: Recorded, *, strict: bool) -> None:
        super().__init__()
        self._strict, self._eager = strict, set[str]()  # the functions that are not captured
        self._stage, self._script, self.recorded = stage, script, recorded
        self._slots = script.slots  # the number of batches that have places in memory
        self.stream = torch.cuda.Stream(stage.device)
        self.caller = torch.cuda.current_stream(stage.device)  # that the loader works on
        self.next: CapturingLauncher | None = None  # of the stage that reads this one's output
        self._ordered = stage.schedule.waits_for_gradients  # a stage reads a slot before the one before it writes again
        self._fingerprint = fingerprint_of(stage)
        self._fetched = torch.cuda.Event()
        self._calls = CapturedCalls(recorded)
        self._pools: dict[tuple[int, int], Any] = {}
        self._read: dict[int, torch.cuda.Event] = {}  # when all of a slot's input has been read
        self._last: dict[int, tuple[Form, ...]] = {}  # of the batch before, by micro-batch
        self._updated = False
        self._sizes: StepSizes | None = None
        self._inputs: Channel | None = None
        self._targets: Channel | None = None
        self._on_loss: Callable[[int, Tensor, int], None] | None = None
        self._kept: dict[int, Tensor] = {}  # results that are kept, by id
        self._forwarded = self._size = 0  # the last batch, and its samples

    def connect(
        self, inputs: Channel | None, targets: Channel | None, on_loss: Callable[[int, Tensor, int], None]
    ) -> None:
        """Say where the stage's inputs and targets come from and its losses go to, when the script is repeated.

        The stage begins after what the caller has launched: weights and whatever else a resumed run has loaded.
        """
        self._inputs, self._targets, self._on_loss = inputs, targets, on_loss
        self.stream.wait_stream(self.caller)

    def check_unchanged(self) -> None:
        """Reject a stage that has been changed since its functions were captured."""
        if "forward" not in self._eager:
            self._fingerprint.check_same(fingerprint_of(self._stage), self._stage.index)
        for call in self._calls:
            call.check_unchanged(self._stage.index)

    def close(self) -> None:
        """Free all graphs and what they refer to, which is kept alive by autograd's cycles otherwise."""
        self._calls.clear()
        self._kept.clear()
        self._pools.clear()
        self.recorded.clear()
        self.next = None

    def __call__(
        self, name: str, unit: Unit, function: Callable[..., T], *arguments: Any, fed: Sequence[Any] = ()
    ) -> T:
        """Replay the function for this slot; capture it if it has not been, and call it if it cannot be."""
        slot, script = unit[0] % self._slots, self._script
        if name == "update":
            script.note(repeat_lead, self._stage)
        if name == "forward":
            self._forwarded = unit[0]
            if self.next is not None and slot in self.next._read:
                script.do(self.stream.wait_event, self.next._read[slot])
        call = self._calls.find(name, (slot, unit[1]), arguments, fed, self._stage.epoch)
        if call is not None:
            self._feed(name, call, unit, fed)
        else:
            script.break_off()
            call = self._captured(name, unit, function, arguments, fed)
        if call is None:
            result = self._called(name, unit, function, arguments, fed)
        else:
            result = call.replay(self._stage, unit, script)
        if name == "update":
            script.note(self._stage.repeat_update)
            if not self._ordered:
                if slot not in self._read:
                    self._read[slot] = torch.cuda.Event()
                script.do(self._read[slot].record, self.stream)
        return result

    def _feed(self, name: str, call: CapturedCall, unit: Unit, fed: Sequence[Any]) -> None:
        """Copy what a call is fed to its places."""
        copied, script = call.copy(fed), self._script
        known = (self._inputs is not None) + (self._targets is not None) if name == "forward" else 0
        if copied > known:
            script.break_off()
        elif known:
            script.note(self._feed_again, call)
        if name == "forward" and self._stage.index == 0:  # the loader may overwrite it then
            self._last[unit[1]] = call.forms
            script.do(self._fetched.record, self.stream)
            script.do(self.caller.wait_event, self._fetched)

    def _feed_again(self, call: CapturedCall) -> None:
        """Receive the next input and target, and copy them to the places of a call."""
        fed = [] if self._inputs is None else [self._inputs.get()[0]]
        if self._targets is not None:
            target, self._size, *_ = self._targets.get()
            fed.append(target)
        call.copy(fed)

    def _called(
        self, name: str, unit: Unit, function: Callable[..., T], arguments: Sequence[Any], fed: Sequence[Any]
    ) -> T:
        """Call a function as other runtimes do."""
        with self._recorded_draws((name, tuple(Form.of(tree) for tree in fed))):
            result = function(unit, *arguments, *fed)
        if fed and self._stage.index == 0:
            for tensor in tensors_of(fed):
                if tensor.is_cuda:
                    tensor.record_stream(self.stream)
            self.caller.wait_stream(self.stream)
        return result

    def _captured(
        self, name: str, unit: Unit, function: Callable[..., T], arguments: Sequence[Any], fed: Sequence[Any]
    ) -> CapturedCall | None:
        """Capture a function if it can be, and pays; return None if not."""
        call, place = None, (unit[0] % self._slots, unit[1])
        if name not in self._eager and self._may_capture(name, unit, arguments, fed):
            fixed = [FixedTree(tree, self._stage.device, recorded=tree in self.recorded) for tree in fed]
            try:
                call = self._calls.add(name, place, self._capture(name, unit, function, arguments, fixed))
                call.epoch = self._stage.epoch
            except NotYetError:  # an update: the optimizer makes a state first, or other tangents are drawn
                if name != "update":
                    self._give_up(name, "it draws other random numbers in every call")
            except NotCapturedError as error:
                if self._strict or name == "backward":  # which may have freed its graph
                    raise
                self._give_up(name, str(error))
            self.caller.wait_stream(self.stream)
        self._updated = self._updated or name == "update"
        if name == "forward":
            self._last[unit[1]] = tuple(Form.of(tree) for tree in fed)
        return call

    def _give_up(self, name: str, reason: str) -> None:
        """Capture no more functions of this name, and say so."""
        self._eager.add(name)
        warnings.warn(
            f"the {name} of stages[{self._stage.index}] is computed without a CUDA graph, which takes longer: {reason}",
            stacklevel=2,
        )

    def _may_capture(self, name: str, unit: Unit, arguments: Sequence[Any], fed: Sequence[Any]) -> bool:
        """Whether a function of these arguments can be repeated, and is likely to be."""
        if not all(is_plain(a) or a in self.recorded for a in arguments):
            return False
        if name == "update":  # the first one makes the state of the optimizer
            dense = all(t.layout is torch.strided for t in tensors_of(arguments))
            return self._updated and dense and may_capture_updates(self._stage)
        if not all(map(is_dense, tensors_of(fed))):
            return False
        if name == "forward" and not self._calls.make_room((unit[0] % self._slots, unit[1]), self._stage.epoch):
            return False
        if name != "forward" or self._stage.index > 0:
            return True
        # The last batch of an epoch often has forms of its own, which do not pay.
        return self._last.get(unit[1]) in (None, tuple(Form.of(tree) for tree in fed))

    def _capture(
        self, name: str, unit: Unit, function: Callable[..., Any], arguments: Sequence[Any], fixed: Sequence[FixedTree]
    ) -> CapturedCall:
        kind, place = (name, forms_of(fixed)), (unit[0] % self._slots, unit[1])

        def call() -> Any:
            return function(unit, *arguments, *(each.tree for each in fixed))

        if name != "update" and kind not in self._drawn:  # an update cannot be called twice; the one before is known
            self._warm_up(kind, call)
        try:
            return CapturedCall(arguments, fixed, held_by(self._stage), *self._record(kind, place, call))
        except NotYetError:
            if name == "update":
                raise
        self._warm_up(kind, call)  # the second call draws less than the first, which has found out what is used twice
        return CapturedCall(arguments, fixed, held_by(self._stage), *self._record(kind, place, call))

    def _record(
        self, kind: tuple[str, tuple[Form, ...]], place: tuple[int, int], call: Callable[[], Any]
    ) -> tuple[torch.cuda.CUDAGraph, Sources, StepSizes | None, Any]:
        """Return the graph of a call, the random numbers and step sizes that it reads, and its result."""
        graph, name = torch.cuda.CUDAGraph(), kind[0]
        self._sources = sources = Sources(self._drawn.get(kind, ()), graph, self._stage.device, self._slots)
        self._sizes = sizes = StepSizes(self._stage) if name == "update" else None
        self.captures = True
        pool = self._pools.get(place) or torch.cuda.graph_pool_handle()
        try:
            with recording(graph, pool, f"the {name} of stages[{self._stage.index}]"):
                sources.begin()
                result = call()
        finally:
            self._sizes, self._sources, self.captures = None, None, False
        self._pools[place] = pool  # one whose only capture has failed cannot be used again
        self.recorded.add(result)
        return graph, sources, sizes, result

    def _warm_up(self, kind: tuple[str, tuple[Form, ...]], call: Callable[[], Any]) -> None:
        """Make a call before it is captured, to find out which random numbers it draws.

        Libraries are loaded by the first call, and what the stage detects in its first batch is known after it.
        """
        self.warms_up = True
        try:
            with leaving_no_trace(self._stage), self._recorded_draws(kind):
                call()
        finally:
            self.warms_up = False

    def kept(self, tensor: Tensor) -> Tensor:
        """Return a copy: the next batch of the slot has its result there."""
        if tensor in self.recorded:
            self._kept[id(tensor)] = tensor
            self._script.note(self._keep_again, id(tensor), self._forwarded - self._script.batch)
        return tensor.clone()

    def _keep_again(self, key: int, ahead: int) -> None:
        assert self._on_loss is not None
        self._on_loss(self._script.batch + ahead, self._kept[key].clone(), self._size)

    @contextmanager
    def sized(self, optimizer: torch.optim.Optimizer, scale: float) -> Iterator[None]:
        """Scale the step size; a captured step reads it from the device."""
        if self._sizes is None:
            with super().sized(optimizer, scale):
                yield
            return
        weights = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not has_state(optimizer, weights):
            raise NotYetError
        with self._sizes.on_device(scale):
            yield
