"""Transforms of whole batches, `transform(images, generator) -> images`, without a loop over images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from freewheel._errors import number, whole_number

Transform = Callable[[Tensor, torch.Generator], Tensor]


def _batch_of_images(transform: str, images: Tensor) -> tuple[int, int, int, int]:
    if images.dim() != 4:
        raise ValueError(f"{transform} takes images of (count, channels, height, width), got {tuple(images.shape)}")
    count, channels, height, width = images.shape
    return count, channels, height, width


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
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

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Crop a batch."""
        count, _, height, width = _batch_of_images("RandomCrop", images)
        places = torch.randint(2 * self.padding + 1, (2, count), generator=generator).to(images.device)
        # A view of all windows: (count, channels, row, column, height, width). Each image selects one.
        windows = F.pad(images, [self.padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(count, device=images.device), :, places[0], places[1]]


@dataclass(frozen=True, kw_only=True)
class RandomFlip:
    """Mirror each image left to right with probability `p`.

    Example:
        >>> RandomFlip(p=1.0)(torch.arange(3.0).view(1, 1, 1, 3), torch.Generator())
        tensor([[[[2., 1., 0.]]]])
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if number("p", self.p, least=0, hint="a probability from 0 to 1") > 1:
            raise ValueError(f"p={self.p}: give a probability from 0 to 1")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Flip a batch."""
        count, *_ = _batch_of_images("RandomFlip", images)
        flipped = (torch.rand(count, generator=generator) < self.p).to(images.device)
        return torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Convert pixels of any type to float: (pixel / scale - mean) / std, with one mean and std per channel.

    The generator is not used.

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

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Normalize a batch."""
        _, channels, *_ = _batch_of_images("Normalize", images)
        if channels != len(self.mean):
            raise ValueError(f"Normalize has {len(self.mean)} channels, the images have {channels}")
        mean = torch.tensor(self.mean, dtype=torch.float32, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float32, device=images.device).view(-1, 1, 1)
        return (images.to(torch.float32) / self.scale - mean) / std


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
