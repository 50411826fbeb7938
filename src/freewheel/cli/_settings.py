"""What `freewheel train` was asked for, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import torch

from freewheel._config import check_stragglers
from freewheel._cores import cores, share
from freewheel._errors import unknown, whole_number
from freewheel.cli._options import find_method, read_options, read_slow
from freewheel.cli._output import check_file
from freewheel.cli._transfer import TransferFlags
from freewheel.methods import Method, Pipeline
from freewheel.runtime import RUNTIMES, check_started, is_one_of_several, is_started, rank_and_size

# Each optimizer's settings where none are given; those of sgd are tried on digits with delays of up to three batches.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}),
    "adam": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.0}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 1e-2}),
}
# Forward gradients are noisy: the step sizes of these settings, tried on digits, by what the tangents move.
FORWARD_LR: dict[str, dict[str, float]] = {
    "weights": {"sgd": 1e-4, "adam": 3e-3, "adamw": 3e-3},
    "activations": {"sgd": 3e-4, "adam": 3e-4, "adamw": 3e-4},
}
# Feedback gives gradients of other sizes than the true ones: step sizes that suit all four methods on digits.
FEEDBACK_LR: dict[str, float] = {"sgd": 0.02, "adam": 2e-3, "adamw": 2e-3}
SEQUENCES = ("digits-rows", "text", "imdb")
SUITABLE = {"digits": "digits-cnn", "digits-rows": "rnn", "text": "rnn", "imdb": "lstm"}  # networks for their forms
BATCH_SIZE = 64
# What the Async LU paper gives for IMDb (section 4.2, table 10), where nothing else is asked for.
IMDB_BATCH_SIZE, IMDB_HIDDEN = 75, 256
RECURRENT = ("rnn", "gru", "lstm")
SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `freewheel train`, under their own names."""

    data: str
    data_root: Path | None
    limit: int | None
    test_limit: int | None
    augment: bool | None
    steps: int | None
    words: int | None
    batch_size: int | None
    model: str | None
    resize: int | None
    hidden: int | None
    pretrained: Path | None
    stages: int | None
    split: str | None
    at: list[str] | None
    method: str
    option: list[str] | None
    transfer: bool
    transfer_layers: list[str] | None
    transfer_warmup: int | None
    transfer_ramp: int | None
    transfer_peak: float | None
    runtime: str | None
    replicas: int
    threads: int | None
    slack: int
    device: str
    slow: list[str] | None
    epochs: int
    optimizer: str | None
    lr: float | None
    momentum: float | None
    weight_decay: float | None
    schedule: str
    clip: float | None
    bf16: bool
    seed: int
    save_to: Path | None
    save_every: str | None
    resume: Path | None
    compare: bool
    json: Path | None
    save: Path | None
    quiet: bool
    balance: list[int] | None = None  # of a run that goes on: how it was cut

    def __post_init__(self) -> None:
        whole_number("--epochs", self.epochs, least=1)
        whole_number("--seed", self.seed, least=0)
        for flag, value in (
            ("--stages", self.stages),
            ("--replicas", self.replicas),
            ("--threads", self.threads),
            ("--limit", self.limit),
            ("--test-limit", self.test_limit),
            ("--resize", self.resize),
            ("--hidden", self.hidden),
        ):
            if value is not None:
                whole_number(flag, value, least=1)
        if self.hidden is not None and self.model_name.lower() not in RECURRENT:
            raise ValueError(f"--hidden {self.hidden}: {self.model_name} has none, it is for {', '.join(RECURRENT)}")
        self._check_runtime()
        if self.at and self.split is not None:
            raise ValueError(f"--split {self.split} with --at {self.at[0]}: both say where to cut, give one")
        if self.at and self.stages is not None and self.stages != len(self.at) + 1:
            raise ValueError(
                f"--stages {self.stages} with {len(self.at)} --at: each --at begins one more stage, so that makes "
                f"{len(self.at) + 1}; leave --stages out"
            )
        if self.pretrained is not None and self.model is None:
            raise ValueError(f"--pretrained {self.pretrained} without --model: say which network the weights are of")
        if self.optimizer_name not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer_name, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        _, takes = OPTIMIZERS[self.optimizer_name]
        if self.momentum is not None and "momentum" not in takes:
            raise ValueError(f"--momentum {self.momentum:g}: {self.optimizer_name} has none, it is for sgd")
        self.transfer_flags.check(
            asked=self.transfer,
            method=self.method,
            forward=self.forward,
            options=read_options(self.option),
            epochs=self.epochs,
        )
        self.devices  # noqa: B018
        check_stragglers("--slow", self.stragglers, self.stage_count)
        if self.save_every is not None and self.save_to is None:
            raise ValueError(
                f"--save-every {self.save_every} without --save-to: name the folder of the checkpoints too"
            )
        if self.save_to is not None and not self.chosen_method.planned:
            raise ValueError(
                f"--save-to {self.save_to} with {self.method}: a race cannot be taken up in its middle; --save FILE "
                "writes the trained weights"
            )
        if self.save_to is not None and self.save_to.exists() and not self.save_to.is_dir():
            raise NotADirectoryError(f"--save-to {self.save_to}: that is a file, give a folder")
        _ = self.interval
        check_file("--json", self.json)
        check_file("--save", self.save)

    @property
    def interval(self) -> int | Literal["epoch"] | None:
        """After how many batches checkpoints are saved."""
        if self.save_every is None or self.save_every == "epoch":
            return self.save_every
        if not self.save_every.isdecimal() or int(self.save_every) < 1:
            raise ValueError(f"--save-every {self.save_every}: give a number of batches, 1 or more, or epoch")
        return int(self.save_every)

    def _check_runtime(self) -> None:
        if self.runtime_name not in RUNTIMES:
            raise unknown("runtime", self.runtime_name, RUNTIMES)
        if self.runtime_name == "torchrun":
            if not is_started():
                raise ValueError(
                    "--runtime torchrun: torchrun has not started this; run torchrun --nproc-per-node "
                    f"{self.stages or 2} -m freewheel.cli train, or give --runtime processes"
                )
            check_started(self.stage_count)
        elif is_one_of_several():
            raise ValueError(
                f"--runtime {self.runtime_name} under torchrun: every process would train all stages; leave --runtime "
                "out"
            )

    @property
    def runtime_name(self) -> str:
        """The runtime: as asked for, or torchrun where that has started this process, or what suits the method."""
        if self.runtime is None and is_one_of_several():
            return "torchrun"
        return self.runtime or self.chosen_method.default_runtime

    @property
    def stage_count(self) -> int:
        """The number of stages K: as asked for, or one for each process, or for each core, from two to four."""
        if self.at:
            return len(self.at) + 1
        if self.stages is not None:
            return self.stages
        if not self.chosen_method.planned:
            return 1  # its workers take the network as a whole
        return rank_and_size()[1] if self.runtime_name == "torchrun" else max(2, min(4, cores()))

    @property
    def stage_threads(self) -> int:
        """Intra-op threads of each stage, or worker: as asked for, or the cores shared out."""
        workers = self.chosen_method.total_workers(self.stage_count * self.replicas)
        return share(workers) if self.threads is None else self.threads

    @property
    def stragglers(self) -> dict[int, tuple[float, float]]:
        """The stages that are slowed down, as `Trainer` takes them."""
        return read_slow(self.slow)

    @cached_property
    def devices(self) -> list[torch.device]:
        """The device of each stage: those asked for, in turn."""
        return [_device(name) for _, name in zip(range(self.stage_count), cycle(self.device.split(",")))]

    @cached_property
    def chosen_method(self) -> Method:
        """The method with its options, as typed; `--transfer` comes on top, once the network is there."""
        return find_method(self.method, self.option)

    @cached_property
    def pipeline(self) -> Pipeline:
        """What it comes to for these stages; refused here if it is not made for so many."""
        return self.chosen_method.over(self.replicas).stage_pipeline(self.stage_count)

    @property
    def forward(self) -> bool:
        """Whether it is a method of forward gradients."""
        return self.pipeline.credit.name == "forward"

    @property
    def fed(self) -> bool:
        """Whether it is a method of fixed random feedback."""
        return self.pipeline.credit.name in ("aligned", "feedback")

    @property
    def transfer_flags(self) -> TransferFlags:
        """Those of `--transfer`."""
        return TransferFlags(
            layers=self.transfer_layers,
            warmup=self.transfer_warmup,
            ramp=self.transfer_ramp,
            peak=self.transfer_peak,
        )

    @property
    def balanced_by(self) -> str:
        """What the stages are balanced by: as asked for, or the time of the steps that the method takes."""
        if self.at or self.balance:
            return "time"  # nothing is balanced, and split wants to hear nothing else
        if self.split is not None:
            return self.split
        return "forward" if self.forward else "time"

    @property
    def model_name(self) -> str:
        """The network: as asked for, or one that suits the images and the method."""
        data = self.data.lower()
        if (self.forward or self.fed) and self.model is None and data not in SEQUENCES:
            return "fcs-tanh"  # deep networks learn from forward gradients and from feedback slowly, or not at all
        return self.model or SUITABLE.get(data, "resnet-20")

    @property
    def samples(self) -> int:
        """The samples in a batch: as asked for, or as many as suit the data."""
        suits = IMDB_BATCH_SIZE if self.data.lower() == "imdb" else BATCH_SIZE
        return suits if self.batch_size is None else self.batch_size

    def model_options(self, vocabulary: int) -> dict[str, int]:
        """What the network is built with, beside its shapes; `vocabulary` is how many words the data has."""
        given = {"resize": self.resize, "hidden": self.hidden}
        options = {name: value for name, value in given.items() if value is not None}
        if self.data.lower() == "imdb" and self.model_name.lower() in RECURRENT:
            return {"hidden": IMDB_HIDDEN, **options, "vocabulary": vocabulary}
        return options

    @property
    def optimizer_name(self) -> str:
        """The optimizer: as asked for, or one that suits the method and the data."""
        adaptive = self.pipeline.credit.name in ("forward", "synthetic") or self.fed or self.data.lower() == "imdb"
        return ("adam" if adaptive else "sgd") if self.optimizer is None else self.optimizer

    def optimizer_settings(self) -> dict[str, float]:
        """What the optimizer is made with."""
        _, takes = OPTIMIZERS[self.optimizer_name]
        if self.forward:
            takes = {**takes, "lr": FORWARD_LR[self.pipeline.credit.perturb][self.optimizer_name]}
        if self.fed:
            takes = {**takes, "lr": FEEDBACK_LR[self.optimizer_name]}
        given = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return {**takes, **{name: value for name, value in given.items() if value is not None}}

    def optimizer_factory(self) -> Any:
        """Makes an optimizer of some parameters."""
        return partial(OPTIMIZERS[self.optimizer_name][0], **self.optimizer_settings())  # pyright: ignore[reportArgumentType]


def _device(name: str) -> torch.device:
    """A device that is there."""
    try:
        device = torch.device(name.strip())
    except RuntimeError:
        raise ValueError(f"--device {name}: give cpu, cuda, or a list of devices such as cuda:0,cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ValueError(
            f"--device {name}: torch sees {found} GPUs here" + ("; leave --device out" if not found else "")
        )
    return device
