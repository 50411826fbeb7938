"""Methods without a schedule: workers race on shared weights. The trainer asks them for their runner."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from freewheel._config import RunConfig
from freewheel._cores import intra_op_threads
from freewheel._errors import of_type
from freewheel.methods._method import Method, Pipeline
from freewheel.methods.backprop import BP
from freewheel.racing._interleaving import (
    CALLER,
    Drawn,
    Free,
    Interleaving,
    Replayed,
    read_recording,
    write_recording,
)
from freewheel.racing._pool import BuildPool
from freewheel.runtime import Outcome, Run
from freewheel.stage import check_no_hooks, check_not_compiled


@dataclass(frozen=True, kw_only=True)
class Racing(Method):
    """Asynchronous SGD on shared weights: the order in which workers read and update them depends on timing.

    Under `runtime="simulate"`, one worker at a time makes a step (the forward, backward or update of a layer), in an
    order drawn from the trainer's seed, so two runs agree bit for bit.

    Args:
        record: A file to which `fit` writes the order of steps.
        replay: A recording that `simulate` follows instead of the seed.
    """

    planned: ClassVar[bool] = False
    runtimes: ClassVar[tuple[str, ...]] = ("simulate", "threads")

    record: str | Path | None = None
    replay: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("record", "replay"):
            if getattr(self, name) is not None:
                of_type(name, getattr(self, name), (str, Path), "give the name of a file")
        if self.record is not None and not Path(self.record).parent.is_dir():
            raise FileNotFoundError(f"record={str(self.record)!r}: there is no folder {Path(self.record).parent}")
        if self.replay is not None and not Path(self.replay).is_file():
            raise FileNotFoundError(f"replay={str(self.replay)!r}: there is no such file; record=FILE writes one")

    @property
    @abstractmethod
    def worker_names(self) -> list[str]:
        """The names of all workers, in recordings and errors."""

    @abstractmethod
    def pool(self, runtime: str) -> BuildPool:
        """What builds the workers on this runtime."""

    def pipeline(self, k: int) -> Pipeline:
        """Refused: there is no plan."""
        raise ValueError(
            f"{self.name} has no plan: its workers race on shared weights, and the order of their steps is a matter of "
            "timing"
        )

    def stage_pipeline(self, k: int) -> Pipeline:
        """The single-worker equivalent: backpropagation."""
        return BP().pipeline(k)

    def total_workers(self, stages: int) -> int:
        """All workers, whatever the number of stages."""
        return len(self.worker_names)

    def check_run(self, config: RunConfig) -> None:
        """Refuse other runtimes, replay outside of `simulate`, and options that only make sense with a plan."""
        runtime = config.runtime
        if runtime not in self.runtimes:
            raise ValueError(
                f"runtime={runtime!r} with {self.name}: it runs on {' or '.join(map(repr, self.runtimes))}"
            )
        if self.replay is not None and runtime != "simulate":
            raise ValueError(f"replay with runtime={runtime!r}: recordings are replayed under runtime='simulate' only")
        given = {
            "replicas": config.replicas != 1,
            "clip": config.clip is not None,
            "slack": config.slack != 0,
            "accumulate": config.accumulate != 1,
            "slow": bool(config.slow),
            "overlap": config.overlap,
            "compile": config.compile,
        }
        for name, is_given in given.items():
            if is_given:
                raise ValueError(f"{name} with {self.name}: methods on shared weights do not support it; leave it out")

    def check_batch_callbacks(self) -> None:
        """Refused: batches have no order."""
        raise ValueError(
            f"batch_callbacks with {self.name}: its batches end in no fixed order; use callbacks, for whole epochs"
        )

    @property
    def rows(self) -> Sequence[str]:
        """The workers."""
        return self.worker_names

    def check_trace(self, devices: Iterable[torch.device]) -> None:
        """Refuse GPUs, where a worker's computation ends long after it was launched."""
        for device in devices:
            if device.type == "cuda":
                raise ValueError(f"trace with {self.name} on {device}: races are traced on a CPU only; leave it out")

    def check_checkpoints(self, what: str) -> None:
        """Refuse checkpoints in the middle of a fit."""
        raise ValueError(
            f"{what} with {self.name}: a race cannot be saved or resumed in the middle of a fit; call trainer.save "
            "between two fits, and finish an interrupted fit with its own method"
        )

    def runner(self, runtime: str, blueprints: Sequence[Any]) -> Callable[[Run], Outcome]:
        """Run the workers freely, or one step at a time under `simulate`."""

        def race(run: Run) -> Outcome:
            for stage in run.stages:
                check_no_hooks(stage.module, stage.index, f"method={self.name!r}")
                check_not_compiled(stage.module, stage.index, f"method={self.name!r}")
            with run.begun(), intra_op_threads(run.threads):
                pool = self.pool(runtime)(run, self._interleaving(runtime, run.spec.seed))
                with pool.running():
                    outcome = Outcome(pool.lead(), pool.cut())
                    if self.record is not None:
                        write_recording(self.record, pool.recorded())
                    return outcome

        return race

    def _interleaving(self, runtime: str, seed: int) -> Interleaving:
        workers, recording = [*self.worker_names, CALLER], self.record is not None
        if runtime != "simulate":
            return Free(recording=recording)
        if self.replay is not None:
            return Replayed(workers, read_recording(self.replay), recording=recording)
        return Drawn(workers, seed, recording=recording)
