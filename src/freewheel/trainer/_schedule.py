"""Schedulers: those that wait for a plateau, and those that look as if they counted epochs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from freewheel.stage import Stage
from freewheel.trainer._callbacks import BatchEnd, EpochEnd
from freewheel.trainer._history import Epoch, History
from freewheel.trainer._request import FitRequest

LENGTHS = ("step_size", "T_max", "T_0", "total_iters", "milestones")  # attributes of torch's schedulers


def waits_for_plateau(stages: Sequence[Stage]) -> bool:
    """Whether the schedulers are stepped with a number at the end of each epoch."""
    return any(isinstance(stage.scheduler, ReduceLROnPlateau) for stage in stages)


def fit_by_epochs(fit: Callable[[FitRequest], History], stages: Sequence[Stage], request: FitRequest) -> History:
    """Train epoch by epoch, and step the schedulers with the validation loss, or the training loss without one.

    The pipeline drains after each epoch: the step size of the next one depends on its score.
    """
    if request.save_to is not None:
        raise ValueError(
            "save_to with ReduceLROnPlateau: it trains epoch by epoch; call trainer.save between fits of your own"
        )
    if request.trace is not None:
        raise ValueError("trace with ReduceLROnPlateau: it trains epoch by epoch; trace a fit with another scheduler")
    whole = History()
    for _ in range(request.epochs):
        before = History(epochs=list(whole.epochs))
        steps = None if request.max_steps is None else request.max_steps - before.batches
        part = fit(
            replace(
                request,
                epochs=1,
                max_steps=steps,
                callbacks=[_later(callback, before) for callback in request.callbacks],
                batch_callbacks=[_later_batch(callback, len(before.epochs)) for callback in request.batch_callbacks],
                on_progress=request.on_progress and _later_progress(request, before.batches),
            )
        )
        whole = History(epochs=_joined(before, part.epochs), interrupted=part.interrupted, stopped=part.stopped)
        if part.interrupted or part.stopped or not part.epochs[-1].complete or whole.batches == request.max_steps:
            break
        score = part.epochs[-1].validation
        for stage in stages:
            stage.step_on_plateau(part.epochs[-1].loss if score is None else score.loss)
    return whole


def _joined(before: History, epochs: Sequence[Epoch]) -> list[Epoch]:
    return [
        *before.epochs,
        *(replace(e, epoch=e.epoch + len(before.epochs), batches=e.batches + before.batches) for e in epochs),
    ]


def _later(callback: Callable[[EpochEnd], Any], before: History) -> Callable[[EpochEnd], Any]:
    def call(end: EpochEnd) -> Any:
        epochs = _joined(before, end.history.epochs)
        return callback(replace(end, record=epochs[-1], history=History(epochs=epochs)))

    return call


def _later_batch(callback: Callable[[BatchEnd], Any], epochs: int) -> Callable[[BatchEnd], Any]:
    return lambda end: callback(replace(end, epoch=end.epoch + epochs))


def _later_progress(request: FitRequest, before: int) -> Callable[[int, int | None], object]:
    def call(batch: int, batches: int | None) -> object:
        assert request.on_progress is not None
        whole = request.max_steps if batches is None else batches * request.epochs
        whole = min(whole, request.max_steps) if whole and request.max_steps else whole
        return request.on_progress(before + batch, whole)

    return call


def warn_of_epochs(stages: Sequence[Stage], request: FitRequest) -> None:
    """Warn of a scheduler that is stepped after each batch, and would be over within a few of them."""
    try:
        batches = len(request.loader)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return
    scheduler = next((stage.scheduler for stage in stages if stage.scheduler is not None), None)
    by_batch = stages[0].config.scheduler_every == "batch"
    if scheduler is None or not by_batch or request.epochs < 2 or batches < 2:
        return
    for name in LENGTHS:
        value = vars(scheduler).get(name)
        longest = max(value, default=0) if name == "milestones" and value else value
        if isinstance(longest, int) and 1 < longest <= request.epochs:
            kind, times = type(scheduler).__name__, request.epochs * batches
            warnings.warn(
                f"scheduler: {kind} with {name}={longest} is stepped after each of {times} batches, in a fit of "
                f"{request.epochs} epochs; if it counts epochs, give scheduler_every='epoch'",
                stacklevel=4,
            )
            return
