"""What `freewheel train` was asked for, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from freewheel._cores import cores, share
from freewheel._errors import unknown, whole_number
from freewheel.cli._output import check_file

# Each optimizer's settings where none are given; those of sgd are tried on digits with delays of up to three batches.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}),
    "adam": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.0}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 1e-2}),
}
SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `freewheel train`, under their own names."""

    data: str
    data_root: Path | None
    limit: int | None
    augment: bool | None
    batch_size: int
    model: str | None
    stages: int | None
    split: str | None
    at: list[str] | None
    method: str
    option: list[str] | None
    runtime: str
    threads: int | None
    slack: int
    epochs: int
    optimizer: str
    lr: float | None
    momentum: float | None
    weight_decay: float | None
    schedule: str
    clip: float | None
    bf16: bool
    seed: int
    compare: bool
    json: Path | None
    save: Path | None
    quiet: bool

    def __post_init__(self) -> None:
        whole_number("--epochs", self.epochs, least=1)
        whole_number("--seed", self.seed, least=0)
        for flag, value in (("--stages", self.stages), ("--threads", self.threads), ("--limit", self.limit)):
            if value is not None:
                whole_number(flag, value, least=1)
        if self.at and self.split is not None:
            raise ValueError(f"--split {self.split} with --at {self.at[0]}: both say where to cut, give one")
        if self.at and self.stages is not None and self.stages != len(self.at) + 1:
            raise ValueError(
                f"--stages {self.stages} with {len(self.at)} --at: each --at begins one more stage, so that makes "
                f"{len(self.at) + 1}; leave --stages out"
            )
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        _, takes = OPTIMIZERS[self.optimizer]
        if self.momentum is not None and "momentum" not in takes:
            raise ValueError(f"--momentum {self.momentum:g}: {self.optimizer} has none, it is for sgd")
        check_file("--json", self.json)
        check_file("--save", self.save)

    @property
    def stage_count(self) -> int:
        """The number of stages K: as asked for, or one for each core, from two to four."""
        if self.at:
            return len(self.at) + 1
        return max(2, min(4, cores())) if self.stages is None else self.stages

    @property
    def stage_threads(self) -> int:
        """Intra-op threads of each stage: as asked for, or the cores shared out."""
        return share(self.stage_count) if self.threads is None else self.threads

    @property
    def model_name(self) -> str:
        """The network: as asked for, or one that suits the images."""
        return self.model or ("digits-cnn" if self.data.lower() == "digits" else "resnet-20")

    def optimizer_settings(self) -> dict[str, float]:
        """What the optimizer is made with."""
        _, takes = OPTIMIZERS[self.optimizer]
        given = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return {**takes, **{name: value for name, value in given.items() if value is not None}}

    def optimizer_factory(self) -> Any:
        """Makes an optimizer of some parameters."""
        return partial(OPTIMIZERS[self.optimizer][0], **self.optimizer_settings())  # pyright: ignore[reportArgumentType]
