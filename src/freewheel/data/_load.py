"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freewheel._errors import unknown, whole_number
from freewheel.data._check import flag
from freewheel.data._loader import TensorLoader
from freewheel.data._reviews import STEPS as REVIEW_STEPS
from freewheel.data._reviews import WORDS, reviews
from freewheel.data._sources import DATA_SETS, Source, synthetic
from freewheel.data._text import STEPS, text
from freewheel.data._transform import Compose, Transform


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set ready to train on.

    Attributes:
        name: what it was loaded as.
        train: shuffled batches of (images, labels), augmented if asked for.
        test: batches in a fixed order, never augmented.
        classes: number of classes; labels run from 0 to `classes` - 1.
        in_shape: channels, height and width of an image; steps and features of a sequence, or its steps alone.
        vocabulary: the characters of `text` or the words of `imdb`, by their number.
    """

    name: str
    train: TensorLoader
    test: TensorLoader
    classes: int
    in_shape: tuple[int, ...]
    vocabulary: str | tuple[str, ...] = ""

    @property
    def things(self) -> str:
        """What its samples are called: images, or sequences."""
        return "images" if len(self.in_shape) == 3 else "sequences"


def names() -> tuple[str, ...]:
    """The names that `load` knows.

    Example:
        >>> names()
        ('digits', 'digits-rows', 'mnist', 'fashion-mnist', 'cifar10', 'text', 'imdb', 'synthetic')
    """
    return (*DATA_SETS, "text", "imdb", "synthetic")


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
) -> Data:
    """Load a data set by name. Nothing is downloaded.

    Args:
        name: one of `names()`, in any case. `digits` comes with scikit-learn, and `digits-rows` is the same as
            sequences of rows; `mnist`, `fashion-mnist` and `cifar10` are read from `root`/MNIST/raw,
            `root`/FashionMNIST/raw (idx files, plain or .gz) and `root`/cifar-10-batches-bin (the binary
            version); `text` is a text file, with the next character for a target at every step; `imdb` is reviews,
            `root`/imdb/train.jsonl and test.jsonl, with one of two classes each; `synthetic` is made up.
        root: the folder of the files, or a text file.
        batch_size: images in a batch, of both loaders.
        seed: decides the order and the augmentation, and the images of `synthetic`.
        augment: random crops, and flips where a mirrored image is of the same class. If not given, true for
            `cifar10` only.
        train_limit: use no more than the first so many training images; for `synthetic`, make so many (1024).
        test_limit: the same for the test images (256).
        shape: channels, height and width of a `synthetic` image; (3, 32, 32) if not given.
        classes: number of classes of `synthetic`; 10 if not given.
        steps: characters in a sequence of `text`, 64 if not given; words in one of `imdb`, 200 if not given.
        words: size of the vocabulary of `imdb`; 20,000 if not given.

    Example:
        >>> data = load("synthetic", shape=(1, 8, 8), batch_size=32)
        >>> images, labels = next(iter(data.train))
        >>> images.shape, labels.shape, data.classes
        (torch.Size([32, 1, 8, 8]), torch.Size([32]), 10)
    """
    if not isinstance(name, str):
        raise TypeError(f"a data set is named by a str such as 'digits', got {name!r}")
    key = name.lower()
    if key not in names():
        raise unknown("data set", name, names())
    if root is not None and not isinstance(root, str | os.PathLike):
        raise TypeError(f"root must be the path of a folder, got {root!r}")
    whole_number("batch_size", batch_size, least=1)
    whole_number("seed", seed, least=0)
    for argument, limit in (("train_limit", train_limit), ("test_limit", test_limit)):
        if limit is not None:
            whole_number(argument, limit, least=1)
    if augment is not None:
        flag("augment", augment)

    for argument, value, owners in (
        ("shape", shape, ("synthetic",)),
        ("classes", classes, ("synthetic",)),
        ("steps", steps, ("text", "imdb")),
        ("words", words, ("imdb",)),
    ):
        if value is not None and key not in owners:
            whose = " and ".join(map(repr, owners))
            raise ValueError(f"{argument} is for {whose} alone: {key!r} has its own, leave it out")
    data_set = DATA_SETS.get(key)
    augmentation: tuple[Transform, ...] = ()
    if data_set is not None and (data_set.augment if augment is None else augment):
        augmentation = data_set.augmentation
    if augment and not augmentation:
        raise ValueError(f"augment=True: {key!r} has no augmentation, pass augment=False")
    folder = None if root is None else Path(root)
    if data_set is not None:
        source = data_set.read(folder)
    elif key == "text":
        source = text(folder, STEPS if steps is None else steps)
    elif key == "imdb":
        source = reviews(
            folder,
            steps=REVIEW_STEPS if steps is None else steps,
            words=WORDS if words is None else words,
            limits=(train_limit, test_limit),
        )
    else:
        source = synthetic(
            (3, 32, 32) if shape is None else shape,
            10 if classes is None else classes,
            train=1024 if train_limit is None else train_limit,
            test=256 if test_limit is None else test_limit,
            seed=seed,
        )
    return _batched(key, source, augmentation, batch_size, seed, train_limit, test_limit)


def _batched(
    name: str,
    source: Source,
    augmentation: tuple[Transform, ...],
    batch_size: int,
    seed: int,
    train_limit: int | None,
    test_limit: int | None,
) -> Data:
    last = () if source.normalize is None else (source.normalize,)
    train_images, train_labels = (half[:train_limit] for half in source.train)
    test_images, test_labels = (half[:test_limit] for half in source.test)
    return Data(
        name=name,
        train=TensorLoader(
            train_images,
            train_labels,
            batch_size=batch_size,
            shuffle=True,
            seed=seed,
            transform=Compose((*augmentation, *last)) if augmentation or last else None,
        ),
        test=TensorLoader(
            test_images,
            test_labels,
            batch_size=batch_size,
            seed=seed,
            transform=Compose(last) if last else None,
        ),
        classes=source.classes,
        in_shape=tuple(train_images.shape[1:]),
        vocabulary=source.vocabulary,
    )
