"""Transforms of whole batches, `transform(images, generator) -> images`, without a loop over images.

Those here work in two steps, so that a loader can draw the random numbers of a whole epoch before it applies any: the
numbers come from a generator of the CPU, wherever the images are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from freewheel._errors import number, whole_number

Transform = Callable[[Tensor, torch.Generator], Tensor]


class TwoStepTransform(ABC):
    """A transform whose random numbers can be drawn before there are images."""

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Tensor | None:
        """Draw the random numbers of a batch, if any; the last dimension is that of the images."""

    @abstractmethod
    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Transform a batch; `drawn` is on its device."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Transform a batch."""
        drawn = self.draw(len(images), generator)
        return self.apply(images, None if drawn is None else drawn.to(images.device))


def _batch_of_images(transform: str, images: Tensor) -> tuple[int, int, int, int]:
    if images.dim() != 4:
        raise ValueError(f"{transform} takes images of (count, channels, height, width), got {tuple(images.shape)}")
    count, channels, height, width = images.shape
    return count, channels, height, width


@dataclass(frozen=True, kw_only=True)
class RandomCrop(TwoStepTransform):
    """Pad each image with zeros on every side and crop it to its original size at a random position.

    The row and column are drawn uniformly from 0 to 2 * `padding` for each image.

    Example:
        >>> crop = RandomCrop(padding=1)
        >>> crop(torch.ones(1, 1, 3, 3), torch.Generator().manual_seed(2))[0, 0]
        tensor([[0., 0., 0.],
                [0., 1., 1.],
                [0., 1., 1.]])
    """

    padding: int = 4

    def __post_init__(self) -> None:
        whole_number("padding", self.padding, least=0)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the row and column of each image."""
        return torch.randint(2 * self.padding + 1, (2, count), generator=generator)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Crop a batch."""
        count, _, height, width = _batch_of_images("RandomCrop", images)
        assert drawn is not None
        # A view of all windows: (count, channels, row, column, height, width). Each image selects one.
        windows = F.pad(images, [self.padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(count, device=images.device), :, drawn[0], drawn[1]]


@dataclass(frozen=True, kw_only=True)
class RandomFlip(TwoStepTransform):
    """Mirror each image left to right with probability `p`.

    Example:
        >>> RandomFlip(p=1.0)(torch.arange(3.0).view(1, 1, 1, 3), torch.Generator())
        tensor([[[[2., 1., 0.]]]])
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if number("p", self.p, least=0, hint="a probability from 0 to 1") > 1:
            raise ValueError(f"p={self.p}: give a probability from 0 to 1")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw which images are mirrored."""
        return torch.rand(count, generator=generator) < self.p

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Flip a batch."""
        _batch_of_images("RandomFlip", images)
        assert drawn is not None
        return torch.where(drawn.view(-1, 1, 1, 1), images.flip(-1), images)


@dataclass(frozen=True, kw_only=True)
class Normalize(TwoStepTransform):
    """Convert pixels of any type to float: (pixel / scale - mean) / std, with one mean and std per channel.

    No random numbers are drawn.

    Example:
        >>> black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
        >>> Normalize(mean=(0.5,), std=(0.5,))(black_and_white, torch.Generator())
        tensor([[[[-1.,  1.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean and std must have the same length, got {len(self.mean)} and {len(self.std)} channels"
            )
        if self.scale <= 0 or min(self.std, default=1) <= 0:
            raise ValueError(f"std and scale must be above 0, got std={self.std} and scale={self.scale}")

    def draw(self, count: int, generator: torch.Generator) -> None:
        """Draw nothing."""

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Normalize a batch."""
        _, channels, *_ = _batch_of_images("Normalize", images)
        if channels != len(self.mean):
            raise ValueError(f"Normalize has {len(self.mean)} channels, the images have {channels}")
        scale, mean, std = _constants(self.scale, tuple(self.mean), tuple(self.std), images.device)
        return (images.to(torch.float32) / scale - mean) / std


@lru_cache(maxsize=32)
def _constants(scale: float, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> Sequence[Tensor]:
    """The constants of a normalization, on a device; a GPU would multiply by the inverse of a plain number."""
    channels = (torch.tensor(each, dtype=torch.float32).view(-1, 1, 1) for each in (mean, std))
    return tuple(each.to(device) for each in (torch.tensor(scale, dtype=torch.float32), *channels))


@dataclass(frozen=True)
class Compose:
    """Transforms applied in sequence.

    Example:
        >>> standard = Compose([RandomCrop(padding=4), RandomFlip()])
        >>> standard(torch.zeros(2, 3, 32, 32), torch.Generator()).shape
        torch.Size([2, 3, 32, 32])
    """

    transforms: Sequence[Transform]

    def __post_init__(self) -> None:
        for transform in self.transforms:
            if not callable(transform):
                raise TypeError(f"transforms must be functions of (images, generator), got {transform!r}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Apply the transforms to a batch."""
        for transform in self.transforms:
            images = transform(images, generator)
        return images


def steps_of(transform: Transform | None) -> list[TwoStepTransform] | None:
    """The transforms that one consists of, if the random numbers of all can be drawn before there are images.

    Example:
        >>> steps_of(Compose([RandomCrop(), RandomFlip()]))
        [RandomCrop(padding=4), RandomFlip(p=0.5)]
        >>> steps_of(lambda images, generator: images)
    """
    if transform is None:
        return []
    if isinstance(transform, Compose) and type(transform) is Compose:
        parts = [steps_of(part) for part in transform.transforms]
        known = [part for part in parts if part is not None]
        return list(chain.from_iterable(known)) if len(known) == len(parts) else None
    whole = type(transform).__call__ is TwoStepTransform.__call__  # a subclass may have its own
    return [transform] if isinstance(transform, TwoStepTransform) and whole else None
