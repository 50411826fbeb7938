"""How far apart two computations may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

CLOSE = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-3, torch.complex64: 1e-3}
LOW = 0.1  # in types of lower precision


def far_apart(ours: Tensor, theirs: Tensor, scale: float = 0.0, coarse: bool = False) -> bool:
    """Return whether two tensors differ by more than rounding.

    Args:
        ours: One tensor.
        theirs: The other, which sets the scale.
        scale: A norm to compare the difference with, if that is larger than the norm of `theirs`.
        coarse: Whether the computation is of low precision.

    Example:
        >>> far_apart(torch.ones(3), torch.ones(3) + 1e-6), far_apart(torch.ones(3), torch.zeros(3))
        (False, True)
    """
    if ours.shape != theirs.shape:
        return True
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return not torch.equal(ours.to(theirs.device), theirs)
    ours, theirs = ours.to_dense(), theirs.to_dense()
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    a, b = ours.detach().to("cpu", wide), theirs.detach().to("cpu", wide)
    if not torch.equal(a.isfinite(), b.isfinite()):
        return True
    keep = b.isfinite()
    a, b = a[keep], b[keep]
    close = LOW if coarse else CLOSE.get(theirs.dtype, LOW)
    return torch.linalg.vector_norm(a - b).item() > close * max(torch.linalg.vector_norm(b).item(), scale) + 1e-30


def norm(gradients: Sequence[Tensor | None]) -> float:
    """Return the norm of all gradients together."""
    norms = [torch.linalg.vector_norm(g.detach().to_dense()).item() for g in gradients if g is not None]
    return math.hypot(*[n for n in norms if math.isfinite(n)])
