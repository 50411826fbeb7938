"""A training run put together: data, network, stages and trainer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import freewheel
from freewheel.cli._ranks import as_rank_0, follows
from freewheel.cli._settings import Settings
from freewheel.cli._transfer import with_schedule
from freewheel.data import Data
from freewheel.models import Pretrained


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that is ready to be trained; `untrained` is a copy of the network as it began."""

    settings: Settings
    data: Data
    stages: freewheel.Stages
    trainer: freewheel.Trainer
    untrained: nn.Module
    pretrained: Pretrained | None
    transfer: freewheel.Transfer | None

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.untrained.parameters())


def prepare(settings: Settings) -> Job:
    """Loads the data, builds and cuts the network, and makes the trainer."""
    data = _load(settings)
    torch.manual_seed(settings.seed)
    options = settings.model_options(len(data.vocabulary))
    model = freewheel.models.build(settings.model_name, num_classes=data.classes, in_shape=data.in_shape, **options)
    pretrained = None if settings.pretrained is None else freewheel.models.load_pretrained(model, settings.pretrained)
    method = settings.chosen_method
    transfer = settings.transfer_flags.schedule(model) if settings.transfer else None
    if transfer is not None:
        method = with_schedule(method, transfer)
    untrained = copy.deepcopy(model)
    example, _ = next(data.train.epoch(0))
    example = example.to(settings.devices[0])
    if follows():
        settings = as_rank_0(settings)
    stages = freewheel.split(
        model.to(settings.devices[0]),
        None if settings.at or settings.balance else settings.stage_count,
        example=example,
        by=settings.balanced_by,
        at=settings.at or None,
        balance=settings.balance,
        threads=settings.stage_threads,
    )
    if not follows():
        as_rank_0(settings, cut_of(settings, stages))
    for stage, device in zip(stages, settings.devices):
        stage.to(device)
    make = freewheel.Trainer if settings.resume is None else partial(freewheel.Trainer.resume, settings.resume)
    trainer = make(
        stages,
        method=method,
        loss=F.cross_entropy,
        optimizer=settings.optimizer_factory(),
        scheduler=_scheduler(settings, updates=settings.epochs * len(data.train)),
        runtime=settings.runtime_name,
        replicas=settings.replicas,
        seed=settings.seed,
        clip=settings.clip,
        autocast=torch.bfloat16 if settings.bf16 else None,
        threads=settings.stage_threads,
        slack=settings.slack,
        slow=settings.stragglers,
    )
    return Job(
        settings=settings,
        data=data,
        stages=stages,
        trainer=trainer,
        untrained=untrained,
        pretrained=pretrained,
        transfer=transfer,
    )


def cut_of(settings: Settings, stages: freewheel.Stages) -> list[int] | None:
    """How many parts of the network each stage has, for another process to cut it there too; None with `--at`."""
    return [len(names) for names in stages.report.names] if not settings.at and len(stages) > 1 else None


def _load(settings: Settings) -> Data:
    try:
        return freewheel.data.load(
            settings.data,
            root=settings.data_root,
            batch_size=settings.samples,
            seed=settings.seed,
            augment=settings.augment,
            train_limit=settings.limit,
            test_limit=settings.test_limit,
            steps=settings.steps,
            words=settings.words,
        )
    except ValueError as error:
        raise ValueError(str(error).replace("pass root=", "give --data-root")) from error


def _scheduler(settings: Settings, *, updates: int):
    if settings.schedule == "constant":
        return None
    return partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=updates)
