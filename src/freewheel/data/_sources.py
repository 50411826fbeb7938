"""The data sets: images and labels as tensors, with their normalization and augmentation.

Images stay bytes in memory (184 MB for CIFAR-10 instead of 737 MB as floats) and are converted batch by batch.
So augmentation precedes normalization, and crops are padded with black.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from freewheel._errors import of_type, one_of, whole_number
from freewheel.data._files import CIFAR100_LABELS, read_cifar10, read_cifar100, read_mnist
from freewheel.data._loader import Loader, TensorLoader, generator_for
from freewheel.data._transform import Compose, Normalize, RandomCrop, RandomFlip, Transform

Limits = tuple[int | None, int | None]  # of the samples to train and to test


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """The training and test samples of a data set, before batching."""

    classes: int
    normalize: Normalize | None
    vocabulary: str | tuple[str, ...] = ""
    class_names: tuple[str, ...] = ()

    @property
    def last(self) -> tuple[Transform, ...]:
        """The transforms of every batch, after augmentation."""
        return () if self.normalize is None else (self.normalize,)

    @property
    @abstractmethod
    def in_shape(self) -> tuple[int, ...]:
        """The shape of a sample."""

    @abstractmethod
    def loaders(
        self, augmentation: tuple[Transform, ...], limits: Limits, *, batch_size: int, seed: int
    ) -> tuple[Loader, Loader]:
        """The loaders for training and testing."""


@dataclass(frozen=True, kw_only=True)
class Samples(Source):
    """Training and test samples in memory, (images, labels) each."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @property
    def in_shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return tuple(self.train[0].shape[1:])

    def loaders(
        self, augmentation: tuple[Transform, ...], limits: Limits, *, batch_size: int, seed: int
    ) -> tuple[TensorLoader, TensorLoader]:
        """Loaders of tensors."""

        def loader(
            samples: tuple[Tensor, Tensor], limit: int | None, transforms: tuple[Transform, ...], shuffle: bool
        ) -> TensorLoader:
            images, labels = (tensor[:limit] for tensor in samples)
            transform = Compose(transforms) if transforms else None
            return TensorLoader(images, labels, transform=transform, shuffle=shuffle, batch_size=batch_size, seed=seed)

        return (
            loader(self.train, limits[0], (*augmentation, *self.last), shuffle=True),
            loader(self.test, limits[1], self.last, shuffle=False),
        )


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One row of the table: `read(root, **options)`, its options, the augmentation, and whether that is the default."""

    read: Callable[..., Source]
    options: tuple[str, ...] = ()
    augmentation: tuple[Transform, ...] = ()
    augment: bool = False


def data_root(name: str, root: Path | None, files: str) -> Path:
    """Check that the folder of a data set exists."""
    if root is None:
        raise ValueError(f"data set {name!r} is read from files: pass root=, the folder that holds {files}")
    if not root.is_dir():
        raise FileNotFoundError(f"root {root} is not a folder: pass the one that holds {files}")
    return root


def _digits(root: Path | None) -> Samples:
    """The 1797 8x8 digits that come with scikit-learn, 1437 for training and 360 for testing."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise ModuleNotFoundError(
            "data set 'digits' needs scikit-learn: pip install 'freewheel[cli]'", name="sklearn"
        ) from None
    pixels, labels = load_digits(return_X_y=True)
    halves = train_test_split(pixels, labels, test_size=360, stratify=labels, random_state=0)
    train_images, test_images = (torch.tensor(x, dtype=torch.uint8).view(-1, 1, 8, 8) for x in halves[:2])
    train_labels, test_labels = (torch.tensor(y, dtype=torch.int64) for y in halves[2:])
    std, mean = torch.std_mean(train_images.double())
    return Samples(
        train=(train_images, train_labels),
        test=(test_images, test_labels),
        classes=10,
        normalize=Normalize(mean=(mean.item(),), std=(std.item(),), scale=1.0),
    )


def _digits_rows(root: Path | None) -> Samples:
    """The digits as sequences of eight rows of eight pixels."""
    source = _digits(root)
    assert source.normalize is not None
    halves = [
        (source.normalize(images, torch.Generator()).squeeze(1), labels)
        for images, labels in (source.train, source.test)
    ]
    return replace(source, train=halves[0], test=halves[1], normalize=None)


def _mnist(root: Path | None, *, name: str, folder: str, mean: float, std: float) -> Samples:
    raw = data_root(name, root, f"{folder}/raw/train-images-idx3-ubyte and the three other files") / folder / "raw"
    train, test = read_mnist(raw, "train"), read_mnist(raw, "t10k")
    if train[0].shape[1:] != test[0].shape[1:]:
        sides = " and ".join("x".join(map(str, images.shape[2:])) for images, _ in (train, test))
        raise ValueError(f"{raw} has train and t10k images of different sizes: {sides}")
    return Samples(train=train, test=test, classes=10, normalize=Normalize(mean=(mean,), std=(std,)))


def _cifar10(root: Path | None) -> Samples:
    folder = data_root("cifar10", root, "cifar-10-batches-bin/data_batch_1.bin and the other files")
    folder = folder / "cifar-10-batches-bin"
    batches = [read_cifar10(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
    images, labels = (torch.cat(tensors) for tensors in zip(*batches))
    return Samples(
        train=(images, labels),
        test=read_cifar10(folder / "test_batch.bin"),
        classes=10,
        normalize=Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    )


def _cifar100(root: Path | None, *, labels: str = "fine") -> Samples:
    one_of("labels", labels, CIFAR100_LABELS)
    folder = data_root("cifar100", root, "cifar-100-binary/train.bin and test.bin") / "cifar-100-binary"
    return Samples(
        train=read_cifar100(folder / "train.bin", labels=labels),
        test=read_cifar100(folder / "test.bin", labels=labels),
        classes=CIFAR100_LABELS[labels],
        normalize=Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    )


def synthetic(
    root: Path | None = None,
    *,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    limits: Limits = (None, None),
    seed: int = 0,
) -> Samples:
    """Images that are the random pattern of their class plus noise of the same variance.

    Example:
        >>> synthetic(shape=(1, 4, 4), classes=3, limits=(7, 2)).train[1]
        tensor([0, 1, 2, 0, 1, 2, 0])
    """
    hint = "give three whole numbers (channels, height, width)"
    if len(of_type("shape", shape, Sequence, hint)) != 3:
        raise ValueError(f"shape={tuple(shape)!r}: {hint}")
    sides = [whole_number(f"shape[{i}]", side, least=1) for i, side in enumerate(shape)]
    generator = generator_for("synthetic", seed)
    patterns = torch.randn(whole_number("classes", classes, least=2), *sides, generator=generator)
    halves: list[tuple[Tensor, Tensor]] = []
    for limit, default in zip(limits, (1024, 256)):
        labels = torch.arange(default if limit is None else limit) % classes
        halves.append((patterns[labels] + torch.randn(len(labels), *sides, generator=generator), labels))
    return Samples(train=halves[0], test=halves[1], classes=classes, normalize=None)


IMAGES: dict[str, DataSet] = {
    "digits": DataSet(read=_digits, augmentation=(RandomCrop(padding=1),)),
    "digits-rows": DataSet(read=_digits_rows),
    "mnist": DataSet(
        read=partial(_mnist, name="mnist", folder="MNIST", mean=0.1307, std=0.3081),
        augmentation=(RandomCrop(padding=2),),
    ),
    "fashion-mnist": DataSet(
        read=partial(_mnist, name="fashion-mnist", folder="FashionMNIST", mean=0.2860, std=0.3530),
        augmentation=(RandomCrop(padding=2), RandomFlip()),
    ),
    "cifar10": DataSet(
        read=_cifar10,
        augmentation=(RandomCrop(padding=4), RandomFlip()),
        augment=True,
    ),
    "cifar100": DataSet(
        read=_cifar100,
        options=("labels",),
        augmentation=(RandomCrop(padding=4), RandomFlip()),
        augment=True,
    ),
}
