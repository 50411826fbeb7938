"""Results on disk: a file for each job and seed, so that interrupted work goes on where it stopped.

RUN_DIR/reproduce-jobs/JOB/seed-0.json    the measures of a job, which all experiments share
RUN_DIR/reproduce-jobs/JOB/seed-0/        what an unfinished job needs to go on: checkpoints
RUN_DIR/reproduce-NAME/                   the report of an experiment
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from freewheel._files import write_json
from freewheel.reproduce.jobs import Job
from freewheel.runs import take_lock

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Store:
    """The results in a folder, of one kind of device, with compiled stages or without."""

    run_dir: Path
    device: str
    compiled: bool = False
    _locks: dict[Path, IO[bytes]] = field(default_factory=dict, repr=False, compare=False)

    def check(self) -> None:
        """Refuse a folder that nothing can be written to, before anything is measured."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.run_dir):
                pass
        except OSError as error:
            raise OSError(
                f"run_dir {self.run_dir}: no file can be written there ({error.strerror}); name another folder"
            ) from None

    def report_folder(self, name: str, *, quick: bool) -> Path:
        """Where the report of an experiment goes."""
        return self.run_dir / f"reproduce-{name}{'-quick' * quick}"

    def work_folder(self, job: Job, seed: int) -> Path:
        """Where an unfinished job leaves what it needs."""
        kind = self.device.partition(":")[0] + "-compiled" * self.compiled
        return self.run_dir / "reproduce-jobs" / f"{job.key}-{kind}" / f"seed-{seed}"

    def hold(self, job: Job, seed: int) -> bool:
        """Take the lock of a job that is about to run; False if another process holds it."""
        folder = self.work_folder(job, seed)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._locks[folder] = take_lock(folder)
        except ValueError:
            return False
        return True

    def release(self, job: Job, seed: int) -> None:
        """Drop the lock of a job that has ended, and its folder if nothing is left there."""
        self._drop(self.work_folder(job, seed))

    def release_all(self) -> None:
        """Drop the locks of jobs that were interrupted."""
        for folder in list(self._locks):
            self._drop(folder)

    def _drop(self, folder: Path) -> None:
        with self._locks.pop(folder) as lock, suppress(OSError):
            Path(lock.name).unlink()
            folder.rmdir()

    def load(self, job: Job, seed: int) -> Record | None:
        """The record of a finished job."""
        path = self._file(job, seed)
        if not path.is_file():
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        return record if record["job"] == repr(job) else None

    def save(self, job: Job, seed: int, record: Record) -> None:
        """Write the record of a finished job, and remove what it needed before."""
        write_json(self._file(job, seed), {**record, "job": repr(job)})
        shutil.rmtree(self.work_folder(job, seed), ignore_errors=True)

    def _file(self, job: Job, seed: int) -> Path:
        return self.work_folder(job, seed).with_suffix(".json")
