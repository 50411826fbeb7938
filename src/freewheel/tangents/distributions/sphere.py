"""The sphere of radius √d."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from freewheel.tangents.distributions._counted import normal
from freewheel.tangents.distributions._distribution import Distribution


class Sphere(Distribution):
    """Uniform on the sphere of radius √d, d the size of the tensor."""

    def draw(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a normal tensor and scale it to the radius."""
        out.normal_(generator=generator)
        return out.mul_(math.sqrt(out.numel()) / torch.linalg.vector_norm(out)) if out.numel() else out

    @staticmethod
    def counted(seed: Tensor, shape: Sequence[int]) -> Tensor:
        """Draw a normal tensor and scale it to the radius."""
        out = normal(seed, shape)
        return out * (math.sqrt(out.numel()) / torch.linalg.vector_norm(out)) if out.numel() else out
