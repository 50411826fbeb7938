"""Methods without a schedule: workers that race on shared weights. They have no plan; `freewheel.racing` runs them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from freewheel._config import RunConfig
from freewheel.methods._method import Method, Pipeline
from freewheel.methods.backprop import BP


@dataclass(frozen=True, kw_only=True)
class Racing(Method):
    """Asynchronous SGD on shared weights: when an update meets a forward is a matter of timing.

    Under `runtime="simulate"` one worker at a time makes a step (the forward of a layer, the backward of a layer, the
    update of a layer), in an order drawn from the trainer's seed, so that two runs agree bit for bit.

    Args:
        record: A file to which `fit` writes the order of steps that came about.
        replay: Such a file: `simulate` then follows it, in place of the seed.
    """

    runtimes: ClassVar[tuple[str, ...]]

    record: str | Path | None = None
    replay: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("record", "replay"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | Path):
                raise TypeError(f"{name}={value!r}: give the name of a file")
        if self.record is not None and not Path(self.record).parent.is_dir():
            raise FileNotFoundError(f"record={str(self.record)!r}: there is no folder {Path(self.record).parent}")
        if self.replay is not None and not Path(self.replay).is_file():
            raise FileNotFoundError(f"replay={str(self.replay)!r}: there is no such file; record=FILE writes one")

    @property
    @abstractmethod
    def total_workers(self) -> int:
        """How many workers compute at the same time."""

    planned: ClassVar[bool] = False

    def stage_pipeline(self, k: int) -> Pipeline:
        return BP().pipeline(k)

    def workers(self, stages: int) -> int:
        return self.total_workers

    def check_run(self, config: RunConfig) -> None:
        """Workers that race have no stages to shape and no order of updates to promise anything about."""
        if config.runtime not in self.runtimes:
            raise ValueError(
                f"runtime={config.runtime!r} with {self.name}: it runs on {' or '.join(map(repr, self.runtimes))}"
            )
        if self.replay is not None and config.runtime != "simulate":
            raise ValueError(
                f"replay with runtime={config.runtime!r}: a recording is followed under runtime='simulate' alone"
            )
        given = {
            "replicas": config.replicas != 1,
            "clip": config.clip is not None,
            "autocast": config.autocast is not None,
            "slack": config.slack != 0,
            "slow": bool(config.slow),
        }
        for name, is_given in given.items():
            if is_given:
                raise ValueError(
                    f"{name} with {self.name}: a method that races on shared weights has none; leave it out"
                )

    def check_checkpoints(self, what: str) -> None:
        raise ValueError(f"{what} with {self.name}: a race cannot be taken up in its middle")

    def runner(self, runtime, blueprints):
        from freewheel.racing import runtime_of

        return runtime_of(self, runtime, blueprints)

    def pipeline(self, k: int) -> Pipeline:
        """Refused: there is nothing to plan."""
        raise ValueError(
            f"{self.name} has no plan: its workers race on shared weights, and when they do what is a matter of timing"
        )


def unraced(method: Method) -> Method:
    """The method itself; for one that races, what is left of it where a single worker does all: backpropagation."""
    return BP() if isinstance(method, Racing) else method
