"""A training run put together: data, network, stages and trainer."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import freewheel
from freewheel.cli._compiling import Compiling, choose_compiling
from freewheel.cli._own import OwnData, is_own, own_data, own_function, own_model, sized
from freewheel.cli._places import stored_checkpoints
from freewheel.cli._ranks import as_rank_0, follows
from freewheel.cli._settings import Settings
from freewheel.cli._train_options import TrainOptions
from freewheel.cli._traits import with_transfer
from freewheel.cli._transfer import transfer_schedule
from freewheel.data import Data
from freewheel.models import Pretrained
from freewheel.runtime import RUNTIMES
from freewheel.stage import to_device

SHARE = 1 / 8  # of a GPU's free memory, which data may take


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to start."""

    settings: Settings
    data: Data | OwnData
    stages: freewheel.Stages
    trainer: freewheel.Trainer
    untrained: nn.Module  # a copy of the network
    pretrained: Pretrained | None
    transfer: freewheel.Transfer | None
    cut: tuple[int, ...]  # the number of units in each stage; empty with `--at` and for one stage
    compiling: Compiling

    @property
    def scored(self) -> Any:
        """The loader that is scored after every epoch: held-out samples if there are any, else the test samples."""
        return self.data.validation or self.data.test

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(p.numel() for p in self.untrained.parameters())


def prepare(settings: Settings) -> Job:
    """Load the data, build and cut the network, and make the trainer."""
    options = settings.options
    data = own_data(options.data) if is_own(options.data) else _load(options)
    torch.manual_seed(options.seed)
    model = _build(settings, data)
    pretrained = None if options.pretrained is None else freewheel.models.load_pretrained(model, options.pretrained)
    transfer = transfer_schedule(options, model)
    untrained = copy.deepcopy(model)
    settings, stages, cut = _cut(settings, model, data.example())
    method = settings.method if transfer is None else with_transfer(settings.method, transfer)
    batches = _batches(settings, data)
    trainer = _trainer(settings, stages, method, batches=batches)
    compiling = choose_compiling(settings, trainer, options.epochs * (batches or 0))
    settings = replace(settings, options=replace(settings.options, compile=compiling.compiles))
    if compiling.compiles != trainer.config.compile:
        trainer = _trainer(settings, stages, method, batches=batches)
    if trainer.method.planned and RUNTIMES[trainer.config.runtime].local:
        data = _near(data, settings.devices[0])
    return Job(
        settings=settings,
        data=data,
        stages=stages,
        trainer=trainer,
        untrained=untrained,
        pretrained=pretrained,
        transfer=transfer,
        cut=cut,
        compiling=compiling,
    )


def _near(data: Data | OwnData, device: torch.device) -> Data | OwnData:
    """The data on the GPU of the first stage, if they take little of its memory."""
    if device.type != "cuda" or data.nbytes > torch.cuda.mem_get_info(device)[0] * SHARE:
        return data
    return data.to(device)


def _build(settings: Settings, data: Data | OwnData) -> nn.Module:
    name = str(settings.options.model)
    if is_own(name):
        return own_model(name, data.shapes)
    choices: dict[str, Any] = settings.model_options(len(data.vocabulary))
    return freewheel.models.build(name, **data.shapes, **choices)


def _batches(settings: Settings, data: Data | OwnData) -> int | None:
    """The batches of an epoch, which a schedule by batch must know."""
    if sized(data.train):
        return len(data.train)
    if settings.schedule.every == "batch" and not settings.schedule.fixed:
        raise ValueError(
            f"--schedule {settings.options.schedule}: the loader of {data.name} has no length; give constant, or "
            "--schedule-every epoch"
        )
    return None


def _load(options: TrainOptions) -> Data:
    try:
        return freewheel.data.load(
            options.data,
            root=options.data_root,
            batch_size=options.batch_size or 0,
            seed=options.seed,
            augment=options.augment,
            train_limit=options.limit,
            test_limit=options.test_limit,
            steps=options.steps,
            words=options.words,
            labels=options.labels,
            size=options.size,
            workers=options.workers,
            validation=options.validation or 0.0,
        )
    except ValueError as error:
        text = str(error).replace("pass root=", "give --data-root").replace("validation=", "--validation ")
        raise ValueError(text) from error


def _cut(settings: Settings, model: nn.Module, example: Any) -> tuple[Settings, freewheel.Stages, tuple[int, ...]]:
    """Cut the network where it is asked for, and under torchrun where rank 0 cuts it."""
    if follows():
        settings = as_rank_0(settings)
    options, device = settings.options, settings.devices[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unbalanced split")  # the report is printed
        stages = freewheel.split(
            model.to(device),
            None if options.at or options.balance else settings.stages,
            example=to_device(example, device),
            by=options.split or "time",
            at=options.at or None,
            balance=options.balance or None,
            threads=options.threads,
        )
    cut = () if options.at or len(stages) == 1 else stages.report.balance
    if not follows():
        as_rank_0(settings, cut)
    for stage, device in zip(stages, settings.devices):
        stage.to(device)
    return settings, stages, cut


def _trainer(
    settings: Settings, stages: freewheel.Stages, method: freewheel.Method, *, batches: int | None
) -> freewheel.Trainer:
    options = settings.options
    loss = F.cross_entropy if options.loss is None else own_function("--loss", options.loss)
    make = (
        freewheel.Trainer
        if options.resume is None
        else partial(freewheel.Trainer.resume, stored_checkpoints(options.resume))
    )
    return make(
        stages,
        method=method,
        loss=loss,
        optimizer=settings.optimizer_factory(),
        scheduler=settings.schedule.factory(options.epochs, batches),
        scheduler_every=settings.schedule.every,
        runtime=str(options.runtime),
        replicas=options.replicas,
        seed=options.seed,
        clip=options.clip,
        autocast=torch.bfloat16 if options.bf16 else None,
        check=options.check,
        compile=bool(options.compile),
        threads=options.threads,
        slack=options.slack,
        overlap=options.overlap,
        slow=settings.stragglers,
    )
