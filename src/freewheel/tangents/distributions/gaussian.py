"""N(0, I)."""

import torch
from torch import Tensor

from freewheel.tangents.distributions._counted import normal
from freewheel.tangents.distributions._distribution import Distribution


class Gaussian(Distribution):
    """Independent normal elements, as in the paper."""

    counted = staticmethod(normal)

    def draw(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Draw normal elements."""
        return out.normal_(generator=generator)
