"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from freewheel._devices import find_device
from freewheel._errors import number, of_type, unknown, whole_number
from freewheel.data._folders import FOLDERS
from freewheel.data._hold_out import hold_out
from freewheel.data._loader import Loader
from freewheel.data._reviews import reviews
from freewheel.data._sources import IMAGES, DataSet, synthetic
from freewheel.data._text import text
from freewheel.data._transform import Transform

DATA_SETS: dict[str, DataSet] = {
    **IMAGES,
    **FOLDERS,
    "text": DataSet(read=text, options=("steps",)),
    "imdb": DataSet(read=reviews, options=("steps", "words", "limits")),
    "synthetic": DataSet(read=synthetic, options=("shape", "classes", "limits", "seed")),
}


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set ready for training.

    Attributes:
        name: the name it was loaded by.
        train: shuffled batches of (images, labels), augmented if requested.
        test: batches in a fixed order, never augmented.
        validation: the same of training samples that were held out, if any were.
        classes: number of classes; labels run from 0 to `classes` - 1.
        in_shape: channels, height and width of an image; steps and features of a sequence, or only its steps.
        vocabulary: the characters of `text` or the words of `imdb`, by their index.
        class_names: the names of the classes by their label, where the data set is folders with such names.
    """

    name: str
    train: Loader
    test: Loader
    classes: int
    in_shape: tuple[int, ...]
    vocabulary: str | tuple[str, ...] = ""
    class_names: tuple[str, ...] = ()
    validation: Loader | None = None

    @property
    def description(self) -> str:
        """What there is of it, in words."""
        shape, count = "x".join(map(str, self.in_shape)), f"{self.train.samples:,} {self.things} to train"
        test, device = f"{self.test.samples:,} to test", self.train.device
        held_out = "" if self.validation is None else f"{self.validation.samples:,} held out, "
        place = "" if device.type == "cpu" or not self.nbytes else f", on {device} ({self.nbytes / 1e6:,.0f} MB)"
        batches = f"batches of {self.train.batch_size}"
        return f"{self.name}: {count}, {held_out}{test}, {shape}, {self.classes} classes, {batches}{place}"

    @property
    def facts(self) -> dict[str, Any]:
        """What there is of it, as plain data."""
        held_out = {} if self.validation is None else {"validation": self.validation.samples}
        return {
            "name": self.name,
            "train": self.train.samples,
            **held_out,
            "test": self.test.samples,
            "classes": self.classes,
            "shape": self.in_shape,
        }

    @property
    def shapes(self) -> dict[str, Any]:
        """The arguments of a network that suit it."""
        return {"num_classes": self.classes, "in_shape": self.in_shape}

    @property
    def nbytes(self) -> int:
        """The memory of all samples, where they are held in memory."""
        return sum(each.nbytes for each in (self.train, self.test, self.validation) if each is not None)

    def to(self, device: str | torch.device) -> Data:
        """The same data on a device, where batches are made, too: they are the same bit for bit."""
        held_out = None if self.validation is None else self.validation.to(device)
        return replace(self, train=self.train.to(device), test=self.test.to(device), validation=held_out)

    def example(self) -> Tensor:
        """The input of the first batch."""
        return next(self.train.epoch(0))[0]

    @property
    def things(self) -> str:
        """The name of its samples: images, or sequences."""
        return "images" if len(self.in_shape) == 3 else "sequences"


def names() -> tuple[str, ...]:
    """The names that `load` accepts.

    Example:
        >>> names()
        ('digits', 'digits-rows', 'mnist', 'fashion-mnist', 'cifar10', 'cifar100', ..., 'imdb', 'synthetic')
    """
    return tuple(DATA_SETS)


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    seed: int = 0,
    augment: bool | None = None,
    train_limit: int | None = None,
    test_limit: int | None = None,
    shape: Sequence[int] | None = None,
    classes: int | None = None,
    steps: int | None = None,
    words: int | None = None,
    labels: str | None = None,
    size: int | None = None,
    workers: int | None = None,
    validation: float = 0.0,
    device: str | torch.device = "cpu",
) -> Data:
    """Load a data set by name. Nothing is downloaded.

    Args:
        name: one of `names()`, in any case. `digits` comes with scikit-learn, and `digits-rows` is the same as
            sequences of rows; `mnist`, `fashion-mnist`, `cifar10` and `cifar100` are read from `root`/MNIST/raw,
            `root`/FashionMNIST/raw (idx files, plain or .gz), `root`/cifar-10-batches-bin and
            `root`/cifar-100-binary (the binary versions); `tiny-imagenet` from `root`/tiny-imagenet-200, into memory;
            `imagenet` from `root`/imagenet, and `folder` from `root`, image by image, with `train` and `val` that have
            a folder for each class; `text` is a text file, with the next character as target at every step; `imdb` is
            reviews, `root`/imdb/train.jsonl and test.jsonl, with one of two classes each; `synthetic` is generated.
        root: the folder of the files, or a text file.
        batch_size: images per batch, of both loaders.
        seed: determines the order and the augmentation, and the images of `synthetic`.
        augment: random crops, and flips where a mirrored image has the same class. By default for
            `cifar10`, `cifar100`, `tiny-imagenet`, `imagenet` and `folder`; the last two take a random part of an
            image and resize it.
        train_limit: use at most this many training images, the first ones; for `synthetic`, generate this many (1024).
        test_limit: the same for the test images (256).
        shape: channels, height and width of a `synthetic` image; by default (3, 32, 32).
        classes: number of classes of `synthetic`; by default 10.
        steps: characters in a sequence of `text`, by default 64; words in one of `imdb`, by default 200.
        words: size of the vocabulary of `imdb`; by default 20,000.
        labels: the labels of `cifar100`, `fine` (100 classes, the default) or `coarse` (20).
        size: rows and columns of an image of `imagenet` and `folder`; by default 224.
        workers: processes that read the images of `imagenet` and `folder`; by default 4. They change no batch.
        validation: share of the training samples that is held out, to choose settings by; the same samples whatever
            the seed. They are never augmented.
        device: where the samples are kept and batches are made, such as `cuda`: crops, flips and normalization take
            place there, with the numbers drawn on the CPU, and give the same batches bit for bit.

    Example:
        >>> data = load("synthetic", shape=(1, 8, 8), batch_size=32)
        >>> images, labels = next(iter(data.train))
        >>> images.shape, labels.shape, data.classes
        (torch.Size([32, 1, 8, 8]), torch.Size([32]), 10)
    """
    key = of_type("name", name, str, "give the name of a data set, such as 'digits'").lower()
    if key not in DATA_SETS:
        raise unknown("data set", name, DATA_SETS)
    if root is not None:
        of_type("root", root, (str, os.PathLike), "give the path of a folder")
    whole_number("batch_size", batch_size, least=1)
    whole_number("seed", seed, least=0)
    number("validation", validation, least=0, hint="the share of the training samples to hold out")
    place = find_device(f"device={device!r}", device)
    for argument, limit in (("train_limit", train_limit), ("test_limit", test_limit)):
        if limit is not None:
            whole_number(argument, limit, least=1)
    data_set = DATA_SETS[key]
    augmentation = _augmentation(key, data_set, augment)
    limits = (train_limit, test_limit)
    given = {"shape": shape, "classes": classes, "steps": steps, "words": words}
    given |= {"labels": labels, "size": size, "workers": workers}
    options = _options(key, data_set, given, {"limits": limits, "seed": seed})
    samples = data_set.read(None if root is None else Path(root), **options)
    train, test = samples.loaders(augmentation, limits, batch_size=batch_size, seed=seed)
    data = Data(
        name=key,
        train=train,
        test=test,
        classes=samples.classes,
        in_shape=samples.in_shape,
        vocabulary=samples.vocabulary,
        class_names=samples.class_names,
    )
    if validation:
        rest, held_out = hold_out(data.train, validation, like=data.test)
        data = replace(data, train=rest, validation=held_out)
    return data if place.type == "cpu" else data.to(place)


def _options(key: str, data_set: DataSet, given: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """The options that a data set reads by; refuses those that others have."""
    for argument, value in given.items():
        if value is not None and argument not in data_set.options:
            owners = " and ".join(repr(n) for n, other in DATA_SETS.items() if argument in other.options)
            raise ValueError(f"{argument} is only for {owners}: leave it out for {key!r}")
    known = {**given, **common}
    return {option: known[option] for option in data_set.options if known[option] is not None}


def _augmentation(name: str, data_set: DataSet, augment: bool | None) -> tuple[Transform, ...]:
    if augment is None:
        return data_set.augmentation if data_set.augment else ()
    if of_type("augment", augment, bool, "give True or False") and not data_set.augmentation:
        raise ValueError(f"augment=True: {name!r} has no augmentation, pass augment=False")
    return data_set.augmentation if augment else ()
