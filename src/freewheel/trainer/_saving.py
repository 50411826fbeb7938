"""The checkpoints that a fit writes, and the end of one that it goes on from."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from freewheel._errors import whole_number
from freewheel.checkpoint import (
    Counts,
    Manifest,
    Progress,
    Restart,
    Saved,
    Saver,
    publish,
    settings_of,
    write_generators,
    writing,
)
from freewheel.runtime import Cut, Feed, Start
from freewheel.stage import Stage
from freewheel.trainer._history import History

Every = int | Literal["epoch"]


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A fit that goes on from a checkpoint.

    Args:
        epochs: The passes that it was asked for.
        start: Where its feed begins.
        generators: What the epoch that goes on draws from.
        seconds: Time since the last epoch ended.
        history: The epochs so far.
        restart: What its stages need to know.
    """

    epochs: int
    start: Start
    generators: dict[str, Any]
    seconds: float
    history: History
    restart: Restart


def check_saving(save_to: object, save_every: object) -> tuple[Path, Every] | None:
    """The folder and the interval, if they make sense; the folder is made."""
    if save_to is None:
        if save_every is not None:
            raise ValueError(f"save_every={save_every!r} without save_to: give the folder of the checkpoints as well")
        return None
    if save_every not in (None, "epoch"):
        if isinstance(save_every, str):
            raise ValueError(f"save_every={save_every!r}: give a number of batches, or 'epoch'")
        whole_number("save_every", save_every, least=1)
    return check_folder("save_to", save_to), save_every or "epoch"  # pyright: ignore[reportReturnType]


def check_folder(name: str, path: object) -> Path:
    """The folder, made if it is not there."""
    if not isinstance(path, str | Path):
        raise TypeError(f"{name}={path!r}: give the folder of the checkpoints")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{name}={str(path)!r}: that is a file, give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Saving:
    """Puts together the checkpoints of one trainer, out of the files that its stages write.

    Args:
        folder: The folder of checkpoints.
        every: When one is due.
        stages: The stages.
        names: Their tensors' names in the whole network.
        plan: The plan's heading.
        threads: Intra-op threads of each stage.
        run: The run that the checkpoints belong to.
        before: Batches and epochs of earlier fits.
        epochs: The passes that the fit was asked for.
        follows: Whether another process puts them together, and this one's stage only writes its part.
    """

    def __init__(
        self,
        folder: Path,
        every: Every,
        stages: Sequence[Stage],
        names: Sequence[dict[str, str]],
        *,
        plan: str,
        threads: int,
        run: str,
        before: tuple[int, int],
        epochs: int = 0,
        follows: bool = False,
    ) -> None:
        self.saver = Saver(folder=folder, token=uuid.uuid4().hex[:16], every=every, names=tuple(names))
        self._stages, self._epochs = stages, epochs
        self._plan, self._threads, self._run, self._before = plan, threads, run, before
        self._over = False  # whether the end of the fit has been saved
        self._follows = follows

    def complete(self, cut: Cut, feed: Feed, history: History, *, since: float) -> None:
        """Every stage has written its part of a checkpoint: adds the rest, and gives it its name.

        Where the last batch has come through and messages are still under way, the drained end is saved instead.
        """
        parts = [part.saved for part in cut.parts if part.saved is not None]
        place = feed.place(cut.batches)
        if place[0].epoch >= self._epochs and any(saved.flying for saved in parts):
            return
        self._publish(
            self.saver.unfinished(cut.batches),
            parts,
            cut.batches,
            history=history,
            place=place,
            seconds=cut.time - since,
        )

    def end(
        self,
        batches: int,
        counts: Sequence[Counts],
        history: History,
        *,
        place: tuple[Start, Any] | None = None,
        since: float = 0.0,
    ) -> None:
        """The fit is over and drained; `place` is where it would go on if it was interrupted."""
        if not self._over:
            self._write(batches, counts, history=history, place=place, seconds=time.perf_counter() - since)

    def idle(self) -> Path:
        """Saves a trainer that is not in a fit."""
        return self._write(0, [Counts()] * len(self._stages), history=None, place=None, seconds=0.0)

    def under_way(self) -> AbstractContextManager[None]:
        """Inside, checkpoints may be written; at its end, what is unfinished is removed."""
        return nullcontext() if self._follows else writing(self.saver.folder, self.saver.token)

    def _write(
        self,
        batches: int,
        counts: Sequence[Counts],
        *,
        history: History | None,
        place: tuple[Start, Any] | None,
        seconds: float,
    ) -> Path:
        folder = self.saver.unfinished(batches).with_name(self.saver.unfinished(batches).name + "-end")
        with self.under_way():
            parts = [
                self.saver.write(stage, batches, counts=counted, seen=None, sent=[], into=folder)
                for stage, counted in zip(self._stages, counts)
            ]
            return self._publish(folder, parts, batches, history=history, place=place, seconds=seconds)

    def _publish(
        self,
        folder: Path,
        parts: Sequence[Saved],
        batches: int,
        *,
        history: History | None,
        place: tuple[Start, Any] | None,
        seconds: float,
    ) -> Path:
        files = [file for saved in parts for file in (saved.file, *saved.others)]
        progress = None
        if place is not None and place[0].epoch < self._epochs:
            start, generators = place
            files.append(write_generators(folder, generators))
            fetched = tuple(saved.fetched for saved in parts)
            progress = Progress(
                epochs=self._epochs,
                epoch=start.epoch,
                first=start.first,
                last=start.last,
                seconds=seconds,
                fetched=fetched,
            )
        self._over = progress is None
        manifest = Manifest(
            freewheel=_version(),
            torch=torch.__version__,
            run=self._run,
            plan=self._plan,
            settings=settings_of(self._stages[0].options, self._threads),
            batches=batches,
            batches_before=self._before[0],
            epochs_before=self._before[1],
            drained=all(saved.fetched == batches and not saved.flying for saved in parts),
            progress=progress,
            history=None if history is None else history.as_dict(),
            files=tuple(files),
        )
        return publish(folder, manifest)


def _version() -> str:
    from freewheel import __version__

    return __version__
