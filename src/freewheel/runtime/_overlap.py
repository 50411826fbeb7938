"""Forwards beside backwards: a stage that recomputes forwards new batches on a second thread.

::

    forwards     >a F4 a>       >a F5 a>       >a F6 a>
    the rest     R1 >g B1 | U1  R2 >g B2 | U2  R3 >g B3 | U3
                         [1]            [1]            [1]

[1] The update waits for the forward: both threads read the weights of one version. Everything else is in the order
    of the plan, so that the result is the same.

The two passes have a module each, on the same weights. That is right only if a forward leaves nothing behind that
another one reads, besides its results. The first forward of a run is alone, and shows that.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.instancenorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d

from freewheel.plan import ACTIVATION, Action, Op
from freewheel.runtime._channels import ClosedError
from freewheel.runtime._fixed import Fingerprint, fingerprint_of
from freewheel.stage import versions

if TYPE_CHECKING:
    from freewheel.runtime._interpreter import Interpreter

FORWARDS = frozenset({Op.FORWARD, ACTIVATION.receive, ACTIVATION.send})
# Norms that do not read their running statistics while they train.
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
LATE = (
    "the forward of stages[{stage}] changes {changed}, for the first time in {batch}: another may run beside it; leave "
    "overlap out"
)
IN_TURN = "stages[{stage}] forwards and recomputes in turn, not side by side (overlap=True): {reason}"

Execute = Callable[[Action], None]
Fail = Callable[[BaseException], object]


@contextmanager
def overlapped(interpreter: Interpreter, fail: Fail) -> Iterator[Execute]:
    """A context with a function that executes the actions of a stage in order, forwards beside the rest if it may.

    `fail` is called with an error of the second thread, and closes the wires.
    """
    if not interpreter.stage.overlaps:
        yield interpreter.execute
        return
    thread = _ForwardThread(interpreter, fail)
    overlap = _Overlap(interpreter, thread)
    try:
        yield lambda action: overlap.execute(action)
        thread.wait()
        overlap.check()
    except ClosedError:
        raise
    except BaseException as error:
        fail(error)  # the second thread may wait at a wire
        raise
    finally:
        thread.end()


class _Overlap:
    """Executes forwards on the second thread, once the first one has shown that they may be there."""

    def __init__(self, interpreter: Interpreter, thread: _ForwardThread) -> None:
        self._interpreter, self._thread = interpreter, thread
        self._stage = interpreter.stage
        self.execute = self._until_first
        self._read = _Read(self._stage.module)
        self._first: Fingerprint | None = None  # after the first forward

    def _until_first(self, action: Action) -> None:
        """Execute the actions up to the first forward, and decide then."""
        if action.op is not Op.FORWARD:
            self._interpreter.execute(action)
            return
        module, before = self._stage.module, fingerprint_of(self._stage)
        self._interpreter.execute(action)
        after = fingerprint_of(self._stage)
        changed = before.changed(after) or self._read.changed()
        reason = f"its forward changes {changed}" if changed else _hooked(module)
        if reason:
            warnings.warn(IN_TURN.format(stage=self._stage.index, reason=reason), stacklevel=2)
            self.execute = self._interpreter.execute
            return
        self._interpreter.use(self._stage.beside_forwards())
        self.execute, self._first = self._side_by_side, after

    def check(self) -> None:
        """Reject, at the end of a run, a module that its forwards have begun to change after the first one."""
        changed = "" if self._first is None else self._first.changed(fingerprint_of(self._stage))
        if changed:
            raise ValueError(LATE.format(stage=self._stage.index, changed=changed, batch="a later batch"))

    def _side_by_side(self, action: Action) -> None:
        if action.op in FORWARDS:
            self._thread.put(action)
            return
        if action.op is Op.UPDATE:
            self._thread.wait()
            changed = self._read.changed()
            if changed:
                batch = f"batch {action.batch + 1} or a later one"
                raise ValueError(LATE.format(stage=self._stage.index, changed=changed, batch=batch))
            self._interpreter.execute(action)
            self._read.update()
            return
        self._interpreter.execute(action)


class _Read:
    """The tensors that forwards read: weights and buffers, but not what norms that normalize by the batch count."""

    def __init__(self, module: nn.Module) -> None:
        weights = dict(module.named_parameters())
        self._names, self._weights = list(weights), list(weights.values())
        self._buffers = [
            (f"{name}.{key}".strip("."), child._buffers, key, buffer, versions([buffer]))
            for name, child in module.named_modules()
            if not (type(child) in _NORMS and child.training)
            for key, buffer in child._buffers.items()
            if buffer is not None
        ]
        self.update()

    def update(self) -> None:
        """From now on the weights are as an update has left them."""
        self._versions = versions(self._weights)

    def changed(self) -> str:
        """Name one that is not as it was."""
        for name, buffers, key, buffer, before in self._buffers:
            if buffers.get(key) is not buffer or versions([buffer]) != before:
                return f"the buffer {name!r}"
        for name, before, now in zip(self._names, self._versions, versions(self._weights)):
            if before != now:
                return f"the weight {name!r}"
        return ""


class _ForwardThread:
    """The second thread of a stage."""

    def __init__(self, interpreter: Interpreter, fail: Fail) -> None:
        self._interpreter, self._fail = interpreter, fail
        self._actions: queue.Queue[Action | None] = queue.Queue()
        self._failed = False
        name = f"freewheel-forwards-{interpreter.stage.index}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, action: Action) -> None:
        """Execute an action after those before it."""
        self._actions.put(action)

    def wait(self) -> None:
        """Wait until all are executed; raise `ClosedError` if that has failed."""
        self._actions.join()
        if self._failed:
            raise ClosedError

    def end(self) -> None:
        """End the thread after the action under way."""
        self._actions.put(None)
        self._thread.join()

    def _work(self) -> None:
        torch.set_num_threads(self._interpreter.stage.config.threads or 1)
        while (action := self._actions.get()) is not None:
            try:
                if not self._failed:
                    self._interpreter.execute(action)
            except ClosedError:
                self._failed = True
            except BaseException as error:
                self._failed = True
                self._fail(error)
            finally:
                self._actions.task_done()


def _hooked(module: nn.Module) -> str:
    """Why a copy of a module may compute something else than the module, as far as that can be seen."""
    for name, child in module.named_modules():
        if any(getattr(child, hooks) for hooks in _HOOKS):
            return f"module {name or type(child).__name__!r} has hooks"
        if "_orig_mod" in child._modules or child._compiled_call_impl is not None:
            return f"module {name or type(child).__name__!r} is compiled by torch.compile"
    return ""
