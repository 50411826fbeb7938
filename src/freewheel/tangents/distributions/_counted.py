"""Random numbers of a counter-based generator, drawn inside compiled kernels: element i of a seed is f(seed, i).

A kernel that uses them draws them in registers, and draws the same ones again wherever they are needed. They can only
be traced: `torch.compile`'s own operations stand for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def normal(seed: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw normal elements, in float32."""
    return _random(seed, shape, "randn")


def uniform(seed: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw elements between 0 and 1, in float32."""
    return _random(seed, shape, "rand")


def _random(seed: Tensor, shape: Sequence[int], kind: str) -> Tensor:
    from torch._inductor import inductor_prims  # loads the compiler

    return inductor_prims.random(list(shape), seed, kind)
