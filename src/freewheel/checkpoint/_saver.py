"""What a stage writes of itself, and what it reads again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from freewheel.checkpoint._files import File, read_tensors, write_tensors
from freewheel.checkpoint._folder import UNFINISHED
from freewheel.checkpoint._names import state_by_name
from freewheel.checkpoint._plain import plain
from freewheel.stage import Stage

Unit = tuple[int, int]
Sent = tuple[str, Unit, Any]  # the letter of a message, what it is of, and itself


class Counts(NamedTuple):
    """What a stage has counted since the last epoch ended: seconds of work, staleness, updates, losses.

    A late last stage has losses of later batches, too, each with its batch.
    """

    busy: float = 0.0
    gaps: int = 0
    updates: int = 0
    losses: Sequence[tuple[Tensor, int]] = ()
    later: Sequence[tuple[int, Tensor, int]] = ()


class Saved(NamedTuple):
    """A stage's part of a checkpoint is on the disk: all that the caller gets to know."""

    file: File
    fetched: int  # batches that the stage has forwarded
    flying: bool = False  # whether anything that it has sent is still on its way
    others: tuple[File, ...] = ()  # those of the stage's other replicas


class StagePart(NamedTuple):
    """What a stage takes up again, beside its state; `pending` is None where nothing was in flight.

    The state is that of replica 0; another replica has `buffers` of its own.
    """

    counts: Counts
    pending: dict[str, Any] | None
    seen: dict[int, int]
    sent: list[Sent]
    buffers: dict[str, Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Saver:
    """Writes the stages' parts of a run's checkpoints, each from the thread or process that the stage is in.

    Args:
        folder: The folder of checkpoints.
        token: Tells this run's unfinished files from those of others.
        every: After how many batches one is due; `epoch` for the end of each epoch.
        names: For each stage, its tensors' names in the whole network.
    """

    folder: Path
    token: str
    every: int | Literal["epoch"]
    names: tuple[dict[str, str], ...]

    def due(self, batches: int, *, epoch_ends: bool) -> bool:
        """Whether a checkpoint is due after so many batches."""
        return epoch_ends if self.every == "epoch" else batches % self.every == 0

    def unfinished(self, batches: int) -> Path:
        """Where the checkpoint after so many batches is put together."""
        return self.folder / f"{UNFINISHED}{self.token}-{batches}"

    def write(
        self,
        stage: Stage,
        batches: int,
        *,
        counts: Counts,
        seen: dict[int, int] | None,
        sent: list[Sent],
        into: Path | None = None,
    ) -> Saved:
        """Writes a stage: its state, what waits for its update, and what it has sent that is still on its way.

        Args:
            stage: The stage.
            batches: Batches that it has been updated with.
            counts: What it has counted since the last epoch ended.
            seen: For each batch that waits for its update, the version that its forward saw; None for a stage that is
                not in a run.
            sent: The messages on their way.
            into: The folder; that of the checkpoint after so many batches by default.
        """
        folder = into or self.unfinished(batches)
        folder.mkdir(exist_ok=True)
        content = {
            **state_by_name(stage, self.names[stage.index]),
            "epoch": stage.epoch,
            "counts": (*counts[:3], list(counts.losses), list(counts.later)),
            "pending": None if seen is None else stage.pending(),
            "seen": seen or {},
            "sent": sent,
        }
        ready = {name: plain(part, f"stage {stage.index} ({name})") for name, part in content.items()}
        file = write_tensors(folder, file_name(stage.index, stage.replica), ready)
        return Saved(file, batches + len(seen or {}), bool(sent))


def file_name(stage: int, replica: int = 0) -> str:
    """The file of a stage; its first replica's is the one that all can go on from.

    Example:
        >>> file_name(1), file_name(1, replica=2)
        ('stage-1.pt', 'stage-1-2.pt')
    """
    return f"stage-{stage}-{replica}.pt" if replica else f"stage-{stage}.pt"


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The checkpoint that a run goes on from, as its stages need to know it.

    Args:
        batches: Batches that every stage has been updated with.
        epoch: The epoch of the last of them, earlier runs included.
        fetched: How many batches each stage has had.
        folder: Where the files are.
        files: Each stage's, where anything is in flight; by stage and replica.
        counts: For each stage, what it has counted, where nothing is.
        names: For each stage, its tensors' names in the whole network.
    """

    batches: int
    epoch: int
    fetched: tuple[int, ...]
    folder: Path
    files: Mapping[tuple[int, int], File] = field(default_factory=dict)
    counts: tuple[Counts, ...] = ()
    names: tuple[dict[str, str], ...] = ()

    def read(self, stage: int, replica: int = 0) -> StagePart:
        """One stage's part; read by the stage itself."""
        if (stage, replica) not in self.files:  # nothing in flight; what replicas have counted is in replica 0's
            return StagePart(Counts() if replica else self.counts[stage], None, {}, [])
        content = read_tensors(self.folder, self.files[stage, replica])
        own = {name: content["tensors"][full] for name, full in self.names[stage].items()} if replica else None
        return StagePart(Counts(*content["counts"]), content["pending"], content["seen"], content["sent"], own)
