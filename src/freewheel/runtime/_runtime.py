"""What a runtime is: who runs a stage, and how messages travel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from freewheel._config import RunConfig
from freewheel.runtime._run import Outcome, Run
from freewheel.stage import Blueprint


class RuntimeChoice(NamedTuple):
    """The name of a runtime, and why it was chosen; without a reason, it was asked for."""

    name: str
    reason: str = ""


class Runtime(ABC):
    """Runs the stages of a fit. All runtimes share one interpreter, and so give the same weights bit for bit."""

    local: ClassVar[bool] = False  # whether all stages are in this process, which copies batches to their GPUs

    @abstractmethod
    def run(self, run: Run) -> Outcome:
        """Run to the end, or to the cut at which `on_cut` asks to stop."""

    def check(self, config: RunConfig, blueprints: Sequence[Blueprint]) -> None:  # noqa: B027
        """Refuse what this runtime cannot run, before anything starts."""

    def choose(self, config: RunConfig, blueprints: Sequence[Blueprint], seconds: Sequence[float]) -> RuntimeChoice:
        """The runtime that takes this one's place; `seconds` are those of each stage's step, where they are known."""
        return RuntimeChoice(config.runtime)

    @property
    def leads(self) -> bool:
        """Whether this process shows progress and completes checkpoints; False if another one does."""
        return True

    def join_job(self, name: str) -> tuple[str, bool]:
        """The name that all processes use for a run, and whether this process continues a run that was restarted."""
        return name, False

    def mesh(self, config: RunConfig, stages: int) -> DeviceMesh:
        """The processes as a mesh of replicas by stages, where the user has started them."""
        raise RuntimeError(f"mesh with runtime={config.runtime!r}: only the processes of 'torchrun' form a mesh")
