"""`chain`: the gradient comes from the next stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from freewheel.credit._chain_stage import ChainStage
from freewheel.credit._credit import Credit
from freewheel.stage import Blueprint, Stage

if TYPE_CHECKING:
    from freewheel.methods import Pipeline
    from freewheel.plan import Schedule


@dataclass(frozen=True, kw_only=True)
class Chain(Credit):
    """The chain rule: a stage receives the gradient of its output and sends that of its input to the previous stage.

    Example:
        >>> import freewheel as fw
        >>> fw.Pipeline(credit=fw.Chain(), delays=(1, 0)) == fw.Pipeline(delays=(1, 0))
        True
    """

    name: ClassVar[str] = "chain"
    exact: ClassVar[bool] = True
    family: ClassVar[str] = "chain"
    repeats: ClassVar[bool] = True

    def check(self, pipeline: Pipeline) -> None:
        """Reject micro-batches with delays."""
        if pipeline.micro > 1 and any(pipeline.delays):
            raise ValueError(
                f"micro={pipeline.micro}: micro-batches need zero delays, not delays={tuple(pipeline.delays)}"
            )

    def check_captured(self, schedule: Schedule) -> None:
        """Accept."""

    def check_compiled(self) -> None:
        """Accept."""

    def check_overlap(self) -> None:
        """Accept, but for subclasses: the two threads of their stages may share more."""
        if type(self) is not Chain:
            super().check_overlap()

    def build(self, blueprint: Blueprint) -> Stage:
        """Build a `ChainStage`."""
        return ChainStage(blueprint)
