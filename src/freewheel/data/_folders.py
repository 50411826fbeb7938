"""Data sets in folders of image files: ImageNet, Tiny-ImageNet and one's own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from freewheel._cores import cores
from freewheel._errors import whole_number
from freewheel._torchvision import import_torchvision
from freewheel.data._images import NEEDS, FileLoader, ImageFiles, read_image
from freewheel.data._reviews import interleave_classes
from freewheel.data._sources import DataSet, Limits, Samples, Source, data_root
from freewheel.data._transform import Compose, Normalize, RandomCrop, RandomFlip, Transform

WORKERS = 4
TINY_SIDE = 64
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

Files = tuple[list[str], list[int]]  # paths and labels


@dataclass(frozen=True, kw_only=True)
class FileSamples(Source):
    """Training and test samples that stay in their files."""

    train: Files
    test: Files
    size: int
    workers: int

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image."""
        return (3, self.size, self.size)

    def loaders(
        self, augmentation: tuple[Transform, ...], limits: Limits, *, batch_size: int, seed: int
    ) -> tuple[FileLoader, FileLoader]:
        """Loaders of both; with augmentation, random parts of the images are resized."""

        def loader(files: Files, limit: int | None, transforms: tuple[Transform, ...], *, train: bool) -> FileLoader:
            paths, labels = first(files, limit)
            images = ImageFiles(
                paths=paths, labels=labels, size=self.size, random=train and bool(augmentation), seed=seed
            )
            return FileLoader(
                images,
                workers=self.workers,
                batch_size=batch_size,
                shuffle=train,
                seed=seed,
                transform=Compose((*transforms, *self.last)),
            )

        return (
            loader(self.train, limits[0], augmentation, train=True),
            loader(self.test, limits[1], (), train=False),
        )


def first(files: Files, limit: int | None) -> Files:
    """The first files, with the classes in turn; without a limit all, in their order.

    Example:
        >>> first((["a1", "a2", "b1"], [0, 0, 1]), 2)
        (['a1', 'b1'], [0, 1])
    """
    if limit is None:
        return files
    paths, labels = files
    chosen = interleave_classes(labels)[:limit]
    return [paths[i] for i in chosen], [labels[i] for i in chosen]


def class_folders(folder: Path) -> tuple[Files, tuple[str, ...]]:
    """The image files of a folder that has a folder for each class, and the names of the classes in order."""
    datasets = import_torchvision(NEEDS, "torchvision.datasets")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing: put a folder for each class there, with its images")
    try:
        found = datasets.ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{folder} must have a folder for each class, with its images: {str(error).splitlines()[0]}"
        ) from None
    paths, labels = zip(*found.samples)
    return (list(paths), list(labels)), tuple(found.classes)


def image_folder(root: Path | None, *, name: str, size: int = 224, workers: int = WORKERS) -> FileSamples:
    """Image files in `train` and `val` (or `test`), each with a folder for every class.

    Args:
        root: the folder of both, or one whose folder `name` has them.
        name: the name of the data set.
        size: rows and columns of the images that are made of them.
        workers: the processes that read, decode and crop.
    """
    whole_number("size", size, least=1)
    whole_number("workers", workers, least=0)
    root = data_root(name, root, "train and val, with a folder of images for each class")
    root = root / name if (root / name).is_dir() else root
    train, names = class_folders(root / "train")
    test, tested = class_folders(next((root / f for f in ("val", "test") if (root / f).is_dir()), root / "val"))
    if strange := sorted(set(tested) - set(names)):
        raise ValueError(f"{root} has the class {strange[0]!r} to test, but not to train: give both the same classes")
    index = {label: names.index(each) for label, each in enumerate(tested)}
    return FileSamples(
        train=train,
        test=(test[0], [index[label] for label in test[1]]),
        size=size,
        workers=workers,
        classes=len(names),
        class_names=names,
        normalize=IMAGENET,
    )


def tiny_imagenet(root: Path | None, *, limits: Limits = (None, None)) -> Samples:
    """Tiny-ImageNet, decoded into memory: 200 classes of 64x64 images.

    The images for testing are those of `val`, whose classes are in `val_annotations.txt`, or which somebody has sorted
    into a folder for each class.
    """
    root = data_root("tiny-imagenet", root, "tiny-imagenet-200/train and tiny-imagenet-200/val")
    root = root / "tiny-imagenet-200" if (root / "tiny-imagenet-200").is_dir() else root
    train, names = class_folders(root / "train")
    annotations = root / "val" / "val_annotations.txt"
    if annotations.is_file():
        test = _annotated(annotations, names)
    else:
        test, tested = class_folders(root / "val")
        if tested != names:
            raise ValueError(f"{root / 'val'} has {len(tested)} classes, not the {len(names)} of train: restore it")
    return Samples(
        train=_decoded(first(train, limits[0])),
        test=_decoded(first(test, limits[1])),
        classes=len(names),
        class_names=names,
        normalize=Normalize(mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821)),
    )


def _annotated(annotations: Path, names: Sequence[str]) -> Files:
    """The files of a list of file, class and four numbers, in its order."""
    index = {name: i for i, name in enumerate(names)}
    files: Files = [], []
    for number, line in enumerate(annotations.read_text().splitlines(), start=1):
        file, *rest = line.split("\t")
        if not rest or rest[0] not in index:
            raise ValueError(
                f"{annotations}, line {number}, must be a file, its class and a box between tabs, with a class of "
                f"train, got {line!r:.80}: restore it"
            )
        files[0].append(str(annotations.parent / "images" / file))
        files[1].append(index[rest[0]])
    if not files[0]:
        raise ValueError(f"{annotations} is empty: restore it")
    return files


def _decoded(files: Files) -> tuple[Tensor, Tensor]:
    paths, labels = files
    images = torch.empty(len(paths), 3, TINY_SIDE, TINY_SIDE, dtype=torch.uint8)
    to_tensor = import_torchvision(NEEDS, "torchvision.transforms.functional").pil_to_tensor

    def decode(row: int) -> None:
        image = read_image(paths[row])
        if image.size != (TINY_SIDE, TINY_SIDE):
            sides = "x".join(map(str, image.size))
            raise ValueError(f"{paths[row]} is {sides}: images of tiny-imagenet are 64x64; use 'folder' for others")
        images[row] = to_tensor(image)

    with ThreadPoolExecutor(cores()) as threads:  # PIL decodes without Python's lock
        for _ in threads.map(decode, range(len(paths))):
            pass
    return images, torch.tensor(labels)


FOLDERS: dict[str, DataSet] = {
    "tiny-imagenet": DataSet(
        read=tiny_imagenet,
        options=("limits",),
        augmentation=(RandomCrop(padding=4), RandomFlip()),
        augment=True,
    ),
    **{
        name: DataSet(
            read=partial(image_folder, name=name),
            options=("size", "workers"),
            augmentation=(RandomFlip(),),
            augment=True,
        )
        for name in ("imagenet", "folder")
    },
}
