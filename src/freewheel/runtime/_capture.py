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

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from freewheel._seeds import seed_of
from freewheel.plan import Unit
from freewheel.runtime._fixed import Fingerprint, StepSizes, fingerprint_of, may_capture_updates
from freewheel.stage import Launcher, SeededDraws, Stage, flatten, scratch_buffers, unflatten

T = TypeVar("T")
FORMS = 4  # of batches that are captured; further ones are computed as by other runtimes
SPARSE = 16  # times the elements that a tensor has: one that spans more memory is not captured
_PLAIN = (int, float, bool, str)


class Recorded:
    """What captured functions have returned: the same objects for every batch of a slot."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def add(self, value: Any) -> None:
        """Add a result and all it consists of."""
        self._known[id(value)] = value
        if isinstance(value, (list, tuple)):
            for child in value:
                self.add(child)

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._known


class Form(NamedTuple):
    """The form of what the loader has fed: its structure, and of each leaf all but the contents of a tensor."""

    shapes: tuple[Any, ...]
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, fed: Sequence[Any]) -> Form:
        """Return the form of a batch."""
        shapes = tuple(flatten(each)[1] for each in fed)
        return cls(shapes, tuple(_form(leaf) for leaf in _leaves(fed)))


def _form(leaf: Any) -> Any:
    return (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _leaves(fed: Sequence[Any]) -> Sequence[Any]:
    if all(isinstance(each, Tensor) for each in fed):
        return fed
    return [leaf for each in fed for leaf in flatten(each)[0]]


class FixedInput:
    """What the loader has fed, copied to a fixed place of the device."""

    def __init__(self, fed: Sequence[Any], device: torch.device) -> None:
        self.form = Form.of(fed)
        self._leaves = [_placed(leaf, device) if isinstance(leaf, Tensor) else leaf for leaf in _leaves(fed)]
        counts = [len(flatten(each)[0]) for each in fed]
        ends = list(accumulate(counts))
        parts = [self._leaves[end - count : end] for end, count in zip(ends, counts)]
        self.trees = [unflatten(part, shape) for part, shape in zip(parts, self.form.shapes)]
        self.copy(fed)  # for the call before the capture

    def takes(self, fed: Sequence[Any]) -> bool:
        """Whether this batch has the same form."""
        leaves = _leaves(fed)
        if leaves is fed and len(fed) == len(self._leaves):
            return self.form.leaves == tuple([(t.shape, t.stride(), t.dtype) for t in fed])
        return self.form == Form.of(fed)

    def copy(self, fed: Sequence[Any]) -> None:
        """Copy a batch of the same form, on the stream of the stage."""
        for place, leaf in zip(self._leaves, _leaves(fed)):
            if isinstance(place, Tensor):
                place.copy_(leaf, non_blocking=leaf.is_cuda or not leaf.is_pinned())


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _is_dense(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor):
        return True
    span = 1 + sum((n - 1) * step for n, step in zip(leaf.shape, leaf.stride()))
    return leaf.layout is torch.strided and span <= SPARSE * max(1, leaf.numel())


class CapturedCall:
    """A captured function with its arguments and result."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        arguments: Sequence[Any],
        fed: FixedInput,
        generators: Sequence[torch.Generator],
        sizes: StepSizes | None,
        result: Any,
    ) -> None:
        self._graph, self._arguments, self.fed = graph, arguments, fed
        self._generators, self._sizes, self.result = generators, sizes, result

    def takes(self, arguments: Sequence[Any], fed: Sequence[Any]) -> bool:
        """Whether it computes the function of these arguments."""
        for a, b in zip(arguments, self._arguments):
            if a is not b and (type(a) not in _PLAIN or a != b):
                return False
        if self._sizes is not None and not self._sizes.holds():
            return False
        return not fed or self.fed.takes(fed)

    def replay(self, stage: Stage, unit: Unit) -> Any:
        """Compute it, with the random numbers of a unit."""
        if self._generators:
            seed = seed_of(*stage.key_of(unit))
            for generator in self._generators:
                generator.manual_seed(seed)
        if self._sizes is not None:
            self._sizes.fill()
        self._graph.replay()
        return self.result


class CapturingLauncher(Launcher):
    """Captures the computations of a stage and replays them.

    Args:
        stage: The stage.
        slots: The number of batches that have places in memory.
        recorded: The results of all stages.
    """

    fixed = True

    def __init__(self, stage: Stage, slots: int, recorded: Recorded) -> None:
        self._stage, self._slots, self.recorded = stage, slots, recorded
        self.stream = torch.cuda.Stream(stage.device)
        self.caller = torch.cuda.current_stream(stage.device)  # that the loader works on
        self.next: CapturingLauncher | None = None  # of the stage that reads this one's output
        self._ordered = stage.schedule.waits_for_gradients  # a stage reads a slot before the one before it writes again
        self._fingerprint: Fingerprint | None = None
        self._fetched = torch.cuda.Event()
        self._forget()

    def _forget(self) -> None:
        self._calls: dict[tuple[str, int, int], list[CapturedCall]] = {}
        self._pools: dict[tuple[int, int], Any] = {}
        self._read: dict[tuple[int, int], torch.cuda.Event] = {}  # when a slot's input has been read for the last time
        self._drawn: dict[tuple[str, Form], list[bool]] = {}  # which contexts of random numbers are used
        self._last: dict[int, Form] = {}  # of the batch before, by micro-batch
        self._updated = False
        self._contexts: list[SeededDraws] = []
        self._generators: Iterator[torch.Generator | None] | None = None
        self._sizes: StepSizes | None = None

    def begin(self, caller: torch.cuda.Stream) -> None:
        """Start a run, whose loader works on this stream."""
        self.caller, self._read = caller, {}
        self.refresh(begins=True)

    def refresh(self, *, begins: bool) -> None:
        """Forget what was captured of a module that has changed since; called between two batches and at the end."""
        now, before = fingerprint_of(self._stage), self._fingerprint
        self._fingerprint = now
        if before is None or now == before:
            return
        if begins:
            self._forget()
        elif now.module != before.module:  # batches in flight still need their backwards
            self._calls = {key: calls for key, calls in self._calls.items() if key[0] in ("backward", "update")}
            self._drawn, self._last = {}, {}

    def __call__(
        self, name: str, unit: Unit, function: Callable[..., T], *arguments: Any, fed: Sequence[Any] = ()
    ) -> T:
        """Replay the function for this slot; capture it if it has not been, and call it if it cannot be."""
        place = unit[0] % self._slots, unit[1]
        if self.next is not None and name == "forward" and place in self.next._read:
            self.stream.wait_event(self.next._read[place])
        call = next((call for call in self._calls.get((name, *place), ()) if call.takes(arguments, fed)), None)
        if call is None:
            call = self._captured(name, unit, function, arguments, fed)
        elif fed:
            call.fed.copy(fed)
            self._last[unit[1]] = call.fed.form
            if self._stage.index == 0:  # the loader may overwrite it then
                self._fetched.record(self.stream)
                self.caller.wait_event(self._fetched)
        result = self._called(function, unit, arguments, fed) if call is None else call.replay(self._stage, unit)
        if name == "backward" and not self._ordered:
            self._read.setdefault(place, torch.cuda.Event()).record(self.stream)
        return result

    def _called(self, function: Callable[..., T], unit: Unit, arguments: Sequence[Any], fed: Sequence[Any]) -> T:
        """Call a function as other runtimes do."""
        for leaf in _leaves(fed):
            if isinstance(leaf, Tensor) and leaf.is_cuda:
                leaf.record_stream(self.stream)
        result = function(unit, *arguments, *fed)
        if fed and self._stage.index == 0:
            self.caller.wait_stream(self.stream)
        return result

    def _captured(
        self, name: str, unit: Unit, function: Callable[..., T], arguments: Sequence[Any], fed: Sequence[Any]
    ) -> CapturedCall | None:
        """Capture a function if it can be, and pays; return None if not."""
        calls = self._calls.setdefault((name, unit[0] % self._slots, unit[1]), [])
        pays = len(calls) < FORMS and self._may_capture(name, unit, arguments, fed)
        if pays:
            calls.append(self._capture(name, unit, function, arguments, FixedInput(fed, self._stage.device)))
            self.caller.wait_stream(self.stream)
        self._updated = self._updated or name == "update"
        if name == "forward":
            self._last[unit[1]] = Form.of(fed)
        return calls[-1] if pays else None

    def _may_capture(self, name: str, unit: Unit, arguments: Sequence[Any], fed: Sequence[Any]) -> bool:
        """Whether a function of these arguments can be repeated, and is likely to be."""
        if not all(a is None or type(a) in _PLAIN or a in self.recorded for a in arguments):
            return False
        if name == "update":  # the first one makes the state of the optimizer
            dense = all(g is None or g.layout is torch.strided for g in arguments[0])
            return self._updated and dense and may_capture_updates(self._stage)
        if not all(_is_dense(leaf) for leaf in _leaves(fed)):
            return False
        # The last batch of an epoch often has a form of its own, which does not pay.
        return name != "forward" or self._stage.index > 0 or self._last.get(unit[1]) in (None, Form.of(fed))

    def _capture(
        self, name: str, unit: Unit, function: Callable[..., Any], arguments: Sequence[Any], fixed: FixedInput
    ) -> CapturedCall:
        place, kind = (unit[0] % self._slots, unit[1]), (name, fixed.form)
        if name != "update" and kind not in self._drawn:
            self._drawn[kind] = self._warm_up(unit, function, arguments, fixed)
        used = self._drawn.get(kind, [])
        generators = [torch.Generator(self._stage.device) if each else None for each in used]
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            if generator is not None:
                graph.register_generator_state(generator)
        self._sizes = StepSizes(self._stage) if name == "update" else None
        self._generators = iter(generators)
        pool = self._pools.setdefault(place, torch.cuda.graph_pool_handle())
        try:
            with _recording(graph, pool, f"the {name} of stages[{self._stage.index}]"):
                result = function(unit, *arguments, *fixed.trees)
        finally:
            self._generators = None
        sizes, self._sizes = self._sizes, None
        self.recorded.add(result)
        return CapturedCall(graph, arguments, fixed, [g for g in generators if g is not None], sizes, result)

    def _warm_up(
        self, unit: Unit, function: Callable[..., Any], arguments: Sequence[Any], fed: FixedInput
    ) -> list[bool]:
        """Call a function before it is captured; return which contexts of random numbers it has used.

        Libraries are loaded by the first call, and what the stage detects in its first batch is known after it.
        """
        before, self._contexts, self.warms_up = fingerprint_of(self._stage), [], True
        try:
            with scratch_buffers(self._stage.module):
                function(unit, *arguments, *fed.trees)
        finally:
            self.warms_up = False
        before.check_repeatable(fingerprint_of(self._stage), self._stage.index)
        return [draws.used for draws in self._contexts]

    def kept(self, tensor: Tensor) -> Tensor:
        """Return a copy: the next batch of the slot has its result in the same place."""
        return tensor.clone()

    def draws(self, *key: int) -> SeededDraws:
        """Return random numbers whose seed a replay can set."""
        if self._generators is not None:
            return SeededDraws(*key, generator=next(self._generators, None))
        draws = SeededDraws(*key)
        if self.warms_up:
            self._contexts.append(draws)
        return draws

    @contextmanager
    def sized(self, optimizer: torch.optim.Optimizer, scale: float) -> Iterator[None]:
        """Scale the step size; a captured step reads it from the device."""
        if self._sizes is None:
            with super().sized(optimizer, scale):
                yield
            return
        with self._sizes.on_device(scale):
            yield


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, what: str) -> Iterator[None]:
    """Capture what is called inside the context, on the current stream."""
    collects = gc.isenabled()
    gc.disable()  # a graph that is collected in a capture would break it
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{what} cannot be captured as a CUDA graph ({reason}): use runtime='threads', or leave out what makes the "
            "CPU wait for the GPU or depends on values, such as item(), nonzero() or a mask as an index"
        ) from error
    finally:
        if collects:
            gc.enable()
