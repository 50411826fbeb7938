"""Whole epochs in the GPU benchmark: images on the device, cropped and flipped there, and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from freewheel.bench._gpu_cases import Case, Ours
from freewheel.bench._gpu_contender import CLASSES, Batches, Contender
from freewheel.bench._gpu_ours import Cuts, Training, measure_cuts
from freewheel.data import Compose, Normalize, RandomCrop, RandomFlip, TensorLoader, Transform

NORMALIZE = Normalize(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
AUGMENT = (RandomCrop(padding=4), RandomFlip())  # as for CIFAR-10
TEST_SHARE = 5  # training images for each test image


class Epochs(Training):
    """A trainer whose turns are epochs over random images of bytes, each with an evaluation."""

    def __init__(self, case: Case, ours: Ours, cuts: Cuts, batches: Batches, device: str) -> None:
        super().__init__(case, ours, cuts, batches, device)
        self._train = _loader(case, case.images, device, *AUGMENT, NORMALIZE)
        self._test = _loader(case, case.images // TEST_SHARE, device, NORMALIZE)

    def turns(self, steps: int, count: int) -> list[float]:
        """The seconds of each epoch; the first and the last, in which the pipeline fills and drains, do not count."""
        history = self._trainer.fit(self._train, count + 2, validate=self._test, progress=False)
        return [epoch.seconds for epoch in history.epochs[1:-1]]


def _loader(case: Case, count: int, device: str, *transforms: Transform) -> TensorLoader:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *case.shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shuffle = len(transforms) > 1
    loader = TensorLoader(images, labels, batch_size=case.batch, shuffle=shuffle, transform=Compose(transforms))
    return loader.to(device)


def freewheel_makers(case: Case, batches: Batches, device: str) -> dict[str, Callable[[], Contender]]:
    """The contenders of a case, by name; where to cut is measured first."""
    cuts, make = measure_cuts(case, batches, device), Epochs if case.images else Training
    return {str(ours): partial(make, case, ours, cuts, batches, device) for ours in case.ours}
