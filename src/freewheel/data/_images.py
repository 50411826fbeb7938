"""Batches from image files, decoded and cropped by worker processes as they are needed.

::

    caller      order of the epoch, keys ──▶ workers      image files ──▶ crops, as bytes
                batches of bytes        ◀──               on the device: flips, normalization
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from freewheel._devices import moved
from freewheel._errors import whole_number
from freewheel._torchvision import import_torchvision
from freewheel.data._loader import Loader, LoaderOptions, generator_for

NEEDS = "reading image files"  # what needs torchvision
SCALE = 256 / 224  # of the image that a test image is cropped from

Key = tuple[int, Sequence[int]]  # an epoch, and the files of a batch


def read_image(path: Path | str) -> Any:
    """Read an image file as three channels, as an image of PIL.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (5, 4)).save(f"{folder}/gray.png")
        ...     image = read_image(f"{folder}/gray.png")
        >>> image.mode, image.size
        ('RGB', (5, 4))
    """
    folder = import_torchvision(NEEDS, "torchvision.datasets.folder")
    try:
        return folder.default_loader(str(path))
    except (OSError, SyntaxError, ValueError) as error:  # of PIL, by format
        raise ValueError(
            f"{path} is not an image that PIL can read ({error}): restore the file, or remove it"
        ) from None


@dataclass(frozen=True, kw_only=True)
class ImageFiles(Dataset[Any]):
    """Image files with their labels, as batches of equally large crops in bytes.

    Args:
        paths: the files.
        labels: the class of each.
        size: rows and columns of a crop.
        random: whether to take a random part of the image, of 8 % to 100 % of its area, and resize it; otherwise its
            center, with the shorter side resized to `size` * 256 / 224 before.
        seed: determines the parts that are taken, together with the epoch and the file.
    """

    paths: Sequence[str]
    labels: Sequence[int]
    size: int
    random: bool
    seed: int

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor] | ValueError:
        """Return a batch, or the error of a file, which the process that asked for the batch raises in one line."""
        epoch, files = key
        try:
            images = [self._crop(epoch, file) for file in files]
        except ValueError as error:
            return error
        return torch.stack(images), torch.tensor([self.labels[file] for file in files])

    def _crop(self, epoch: int, file: int) -> Tensor:
        image = read_image(self.paths[file])
        transforms = import_torchvision(NEEDS, "torchvision.transforms")
        if not self.random:
            larger = transforms.Resize(round(self.size * SCALE))(image)
            return transforms.functional.pil_to_tensor(transforms.CenterCrop(self.size)(larger))
        shared = torch.default_generator  # that torchvision draws from
        before = shared.get_state()
        try:
            shared.set_state(generator_for(self.seed, epoch, file).get_state())
            return transforms.functional.pil_to_tensor(transforms.RandomResizedCrop(self.size)(image))
        finally:
            shared.set_state(before)


class _Keys:
    """The keys of an epoch, which change between the epochs of a `DataLoader` and its workers."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class FileLoader(Loader):
    """A `Loader` over image files: workers decode and crop, flips and normalization take place where batches are made.

    What is cropped depends on the seed, the epoch and the file alone, so the number of workers changes no batch.

    Args:
        files: the files.
        workers: the processes that read; 0 reads in the caller's process.
        device: where batches are made.
        options: those of `Loader`.
    """

    def __init__(
        self,
        files: ImageFiles,
        *,
        workers: int = 0,
        device: torch.device | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self.files = files
        self.workers = whole_number("workers", workers, least=0)
        self._idle: list[tuple[_Keys, DataLoader[Any]]] = []
        super().__init__(len(files.paths), device=device, **options)

    @property
    def nbytes(self) -> int:
        """None of the samples is held in memory."""
        return 0

    def _copied_to(self, device: torch.device) -> FileLoader:
        return FileLoader(self.files, workers=self.workers, device=device, **self.options)

    def subset(self, rows: Tensor, *, like: Loader | None = None) -> FileLoader:
        """Return a loader of these files."""
        treated = like if isinstance(like, FileLoader) else self
        indexes: list[int] = rows.tolist()
        paths, labels = [self.files.paths[i] for i in indexes], [self.files.labels[i] for i in indexes]
        files = replace(self.files, paths=paths, labels=labels, random=treated.files.random)
        return FileLoader(files, workers=self.workers, device=self.device, **(like or self).options)

    def _read(self, epoch: int, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        keys, batches = self._idle.pop() if self._idle else self._start()
        keys.keys = [(epoch, part.tolist()) for part in order.split(self.batch_size)]
        try:
            for batch in batches:
                if isinstance(batch, ValueError):
                    raise batch
                images, labels = batch
                yield moved(images, self.device), moved(labels, self.device)
        finally:
            self._idle.append((keys, batches))  # its workers read the next epoch, too

    def _start(self) -> tuple[_Keys, DataLoader[Any]]:
        import_torchvision(NEEDS)  # before the workers fork
        keys = _Keys()
        batches = DataLoader(
            self.files,
            sampler=keys,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            generator=torch.Generator(),  # so that the process-wide one is left alone
        )
        return keys, batches
