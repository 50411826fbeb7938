"""Loaders: batches in an order that a seed determines, from tensors in memory."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self, TypedDict, Unpack, cast

import torch
from torch import Tensor

from freewheel._devices import find_device, moved
from freewheel._errors import of_type, whole_number
from freewheel.data._transform import Transform, TwoStepTransform, steps_of

BLOCK = 64  # batches whose random numbers are drawn and copied together


def generator_for(*keys: object) -> torch.Generator:
    """A separate generator for every combination of keys, such as a seed and an epoch.

    The keys are hashed, because torch's generator uses only 32 bits of a seed, and sums such as seed + epoch would
    give epoch 1 of seed 0 the order of epoch 0 of seed 1.

    Example:
        >>> generator_for(0, 1).initial_seed() == generator_for(1, 0).initial_seed()
        False
    """
    digest = hashlib.blake2b("/".join(map(str, keys)).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


class LoaderOptions(TypedDict, total=False):
    """The options of every `Loader`."""

    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    transform: Transform | None


class Loader(ABC):
    """A sized loader of images and labels that can be iterated repeatedly.

    Epoch `e` of seed `s` always has the same order and the same augmentation, independently of what was
    iterated before. `epoch(e)` iterates that epoch; a plain `for` iterates the next one, starting at 0.

    Args:
        samples: the number of images.
        batch_size: images in a batch.
        shuffle: whether each epoch has its own order.
        seed: determines the order and the random numbers of the transform.
        drop_last: whether to skip a last batch that is smaller than the others.
        transform: applied to the images of each batch, together with a generator.
        device: where batches are made.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch_size: int = 64,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        transform: Transform | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.samples = samples
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.shuffle = of_type("shuffle", shuffle, bool, "give True or False")
        self.seed = whole_number("seed", seed, least=0)
        self.drop_last = of_type("drop_last", drop_last, bool, "give True or False")
        self.transform = transform
        self.device = device or torch.device("cpu")
        self._next_epoch = 0
        if len(self) == 0:
            raise ValueError(
                f"batch_size={batch_size} with drop_last=True leaves no batch of {samples} images: "
                "lower batch_size or pass drop_last=False"
            )

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory of all samples, where they are held in memory."""

    @abstractmethod
    def _copied_to(self, device: torch.device) -> Loader:
        """A copy whose batches are made on a device."""

    @abstractmethod
    def subset(self, rows: Tensor, *, like: Loader | None = None) -> Loader:
        """Return a loader of some of the samples, which treats them as `like` treats its own, or as this one does."""

    @abstractmethod
    def _read(self, epoch: int, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch in this order, on the loader's device, before the transform."""

    def __len__(self) -> int:
        full, rest = divmod(self.samples, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The next epoch."""
        epoch = self._next_epoch
        self._next_epoch += 1
        return self._batches(epoch)

    def state_dict(self) -> dict[str, int]:
        """The next epoch, for checkpoints."""
        return {"epoch": self._next_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with that epoch."""
        self._next_epoch = whole_number("epoch", state["epoch"], least=0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of a given epoch, counted from 0, without advancing `iter`.

        Example:
            >>> loader = TensorLoader(torch.zeros(3, 1), torch.tensor([4, 5, 6]), batch_size=2)
            >>> [labels.tolist() for _, labels in loader.epoch(7)]
            [[4, 5], [6]]
        """
        return self._batches(whole_number("epoch", epoch, least=0))

    def to(self, device: str | torch.device) -> Self:
        """The same loader with batches made on a device: they are the same bit for bit.

        Random numbers are drawn on the CPU and copied for many batches at once if the transform consists of those of
        `freewheel.data`. No batch waits for the device.

        Example:
            >>> loader = TensorLoader(torch.zeros(3, 1), torch.tensor([4, 5, 6]), batch_size=2)
            >>> [labels.tolist() for _, labels in loader.to("cpu")]
            [[4, 5], [6]]
        """
        copy = self._copied_to(find_device(f"device={device!r}", device))
        copy.load_state_dict(self.state_dict())
        return cast(Self, copy)

    @property
    def options(self) -> LoaderOptions:
        """The options it was made with."""
        return {
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "transform": self.transform,
        }

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = generator_for(self.seed, epoch)
        order = torch.randperm(self.samples, generator=generator) if self.shuffle else torch.arange(self.samples)
        order = order[: len(self) * self.batch_size]
        steps = steps_of(self.transform)
        sizes = [len(part) for part in order.split(self.batch_size)]
        ahead = _drawn(steps or [], sizes, generator, self.device)
        for (images, labels), drawn in zip(self._read(epoch, order), ahead):
            if steps is None and self.transform is not None:
                images = self.transform(images, generator)
            for step, numbers in zip(steps or [], drawn):
                images = step.apply(images, numbers)
            yield images, labels


class TensorLoader(Loader):
    """A `Loader` over tensors in memory.

    Args:
        images: a tensor whose first dimension is the number of images.
        labels: a tensor with a label for each image.
        options: those of `Loader`: `batch_size`, `shuffle`, `seed`, `drop_last`, `transform`.

    Example:
        >>> images, labels = torch.arange(5.0).view(5, 1), torch.arange(5)
        >>> loader = TensorLoader(images, labels, batch_size=2, shuffle=True)
        >>> len(loader)
        3
        >>> first, second = ([y.tolist() for _, y in loader] for _ in range(2))
        >>> first == [y.tolist() for _, y in loader.epoch(0)]
        True
        >>> first == second
        False
    """

    def __init__(self, images: Tensor, labels: Tensor, **options: Unpack[LoaderOptions]) -> None:
        for argument, value in (("images", images), ("labels", labels)):
            if not isinstance(value, Tensor) or value.dim() == 0:
                raise TypeError(f"{argument} must be a tensor with a row for each image, got {value!r:.80}")
        if len(images) != len(labels):
            raise ValueError(f"images and labels must have the same length, got {len(images)} and {len(labels)}")
        if len(images) == 0:
            raise ValueError("images must not be empty, got none")
        self.images = images
        self.labels = labels
        super().__init__(len(images), device=images.device, **options)

    @property
    def nbytes(self) -> int:
        """The memory of all samples."""
        return self.images.nbytes + self.labels.nbytes

    def _copied_to(self, device: torch.device) -> TensorLoader:
        return TensorLoader(self.images.to(device), self.labels.to(device), **self.options)

    def subset(self, rows: Tensor, *, like: Loader | None = None) -> TensorLoader:
        """Return a loader of these rows."""
        images, labels = (t.index_select(0, rows.to(t.device)) for t in (self.images, self.labels))
        return TensorLoader(images, labels, **(like or self).options)

    def _read(self, epoch: int, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.images, self.labels
        rows = moved(order, images.device)
        label_rows = rows if labels.device == images.device else moved(order, labels.device)
        for part, label_part in zip(rows.split(self.batch_size), label_rows.split(self.batch_size)):
            yield images.index_select(0, part), labels.index_select(0, label_part)


def _drawn(
    steps: Sequence[TwoStepTransform], sizes: Sequence[int], generator: torch.Generator, device: torch.device
) -> Iterator[list[Tensor | None]]:
    """The random numbers of batches of these sizes, on a device; they are those of a batch after the other."""
    for first in range(0, len(sizes), BLOCK):
        block = sizes[first : first + BLOCK]
        batches = [[step.draw(size, generator) for step in steps] for size in block]
        drawn = [[numbers for numbers in each if numbers is not None] for each in zip(*batches)]
        parts = [moved(torch.cat(each, dim=-1), device).split(block, dim=-1) if each else None for each in drawn]
        for i in range(len(block)):
            yield [None if each is None else each[i] for each in parts]
