"""Callbacks that write down what happens: a CSV file, and TensorBoard."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from freewheel.trainer._callbacks import BatchEnd, EpochEnd
from freewheel.trainer._history import Epoch


def numbers_of(epoch: Epoch) -> dict[str, float]:
    """The numbers of an epoch by name, those of the validation as `validation/NAME`."""
    score = epoch.validation
    found: dict[str, float | None] = {"loss": epoch.loss}
    if score is not None:
        found |= {"validation/loss": score.loss, **{f"validation/{n}": value for n, value in score.metrics.items()}}
    found |= {"seconds": epoch.seconds, "images_per_second": epoch.images_per_second}
    return {name: value for name, value in found.items() if value is not None}


class CSVLogger:
    """Write a line for each epoch to a CSV file; a first epoch begins the file anew.

    Args:
        path: The file.

    Example:
        >>> import tempfile, torch, torch.nn.functional as F
        >>> from functools import partial
        >>> import freewheel as fw
        >>> path = Path(tempfile.mkdtemp()) / "log.csv"
        >>> trainer = fw.Trainer([torch.nn.Linear(4, 2)], method="bp", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> loader = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))]
        >>> _ = trainer.fit(loader, epochs=2, validate=loader, callbacks=[fw.CSVLogger(path)])
        >>> path.read_text().splitlines()[0]
        'epoch,batches,loss,validation/loss,validation/accuracy,seconds,images_per_second'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __call__(self, end: EpochEnd) -> None:
        """Write the line of an epoch."""
        row = {"epoch": end.record.epoch, "batches": end.record.batches, **numbers_of(end.record)}
        first = end.record.epoch == 0
        with self.path.open("w" if first else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if first:
                writer.writeheader()
            writer.writerow(row)


class TensorBoard:
    """Write the numbers of each epoch for TensorBoard, and those of each batch through `on_batch`.

    It needs the package `tensorboard`.

    Args:
        folder: The folder of the run.
        options: Those of `torch.utils.tensorboard.SummaryWriter`.

    Example:
        `board = fw.TensorBoard("runs/1")`, then
        `trainer.fit(loader, callbacks=[board], batch_callbacks=[board.on_batch], gradient_norms=True)`.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("fw.TensorBoard needs the package tensorboard: pip install tensorboard") from None
        self.writer: Any = SummaryWriter(str(folder), **options)

    def __call__(self, end: EpochEnd) -> None:
        """Write the numbers of an epoch, at its number of batches."""
        for name, value in numbers_of(end.record).items():
            self.writer.add_scalar(f"epoch/{name}", value, end.record.batches)
        self.writer.flush()

    def on_batch(self, end: BatchEnd) -> None:
        """Write the loss of a batch, and the norm of its gradient where it was measured."""
        self.writer.add_scalar("batch/loss", end.loss, end.step)
        if end.gradient_norms:
            self.writer.add_scalar("batch/gradient_norm", end.gradient_norm, end.step)
