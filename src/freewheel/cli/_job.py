"""A training run put together: data, network, stages and trainer."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import freewheel
from freewheel.cli._ranks import as_rank_0, follows
from freewheel.cli._settings import Settings
from freewheel.cli._train_options import TrainOptions
from freewheel.cli._traits import with_transfer
from freewheel.cli._transfer import transfer_schedule
from freewheel.data import Data
from freewheel.models import Pretrained


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to start."""

    settings: Settings
    data: Data
    stages: freewheel.Stages
    trainer: freewheel.Trainer
    untrained: nn.Module  # a copy of the network
    pretrained: Pretrained | None
    transfer: freewheel.Transfer | None
    cut: tuple[int, ...]  # the number of units in each stage; empty with `--at` and for one stage

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(p.numel() for p in self.untrained.parameters())


def prepare(settings: Settings) -> Job:
    """Load the data, build and cut the network, and make the trainer."""
    options = settings.options
    data = _load(options)
    torch.manual_seed(options.seed)
    choices: dict[str, Any] = settings.model_options(len(data.vocabulary))
    model = freewheel.models.build(str(options.model), num_classes=data.classes, in_shape=data.in_shape, **choices)
    pretrained = None if options.pretrained is None else freewheel.models.load_pretrained(model, options.pretrained)
    transfer = transfer_schedule(options, model)
    untrained = copy.deepcopy(model)
    example, _ = next(data.train.epoch(0))
    settings, stages, cut = _cut(settings, model, example)
    method = settings.method if transfer is None else with_transfer(settings.method, transfer)
    return Job(
        settings=settings,
        data=data,
        stages=stages,
        trainer=_trainer(settings, stages, method, updates=options.epochs * len(data.train)),
        untrained=untrained,
        pretrained=pretrained,
        transfer=transfer,
        cut=cut,
    )


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
        )
    except ValueError as error:
        raise ValueError(str(error).replace("pass root=", "give --data-root")) from error


def _cut(
    settings: Settings, model: nn.Module, example: torch.Tensor
) -> tuple[Settings, freewheel.Stages, tuple[int, ...]]:
    """Cut the network where it is asked for, and under torchrun where rank 0 cuts it."""
    if follows():
        settings = as_rank_0(settings)
    options, device = settings.options, settings.devices[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unbalanced split")  # the report is printed
        stages = freewheel.split(
            model.to(device),
            None if options.at or options.balance else settings.stages,
            example=example.to(device),
            by=options.split or "time",
            at=options.at or None,
            balance=options.balance or None,
            threads=options.threads,
        )
    cut = () if options.at or len(stages) == 1 else tuple(len(names) for names in stages.report.names)
    if not follows():
        as_rank_0(settings, cut)
    for stage, device in zip(stages, settings.devices):
        stage.to(device)
    return settings, stages, cut


def _trainer(
    settings: Settings, stages: freewheel.Stages, method: freewheel.Method, *, updates: int
) -> freewheel.Trainer:
    options = settings.options
    cosine = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=updates)
    make = freewheel.Trainer if options.resume is None else partial(freewheel.Trainer.resume, options.resume)
    return make(
        stages,
        method=method,
        loss=F.cross_entropy,
        optimizer=settings.optimizer_factory(),
        scheduler=None if options.schedule == "constant" else cosine,
        runtime=str(options.runtime),
        replicas=options.replicas,
        seed=options.seed,
        clip=options.clip,
        autocast=torch.bfloat16 if options.bf16 else None,
        check=options.check,
        threads=options.threads,
        slack=options.slack,
        slow=settings.stragglers,
    )
