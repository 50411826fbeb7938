"""Backpropagation in stages: sequential (`bp`) or with micro-batches (`gpipe`, `1f1b`).

Papers: Huang et al., GPipe, 2019; Narayanan et al., PipeDream, 2019 (its 1F1B order, here flushed at every batch).

Update of stage k with batch n, all weights at version n (with M micro-batches, each weighted by its share):

    w_k ← w_k - lr · ∂loss(n; w_0 … w_{K-1}) / ∂w_k

| stage | 0 | … | K-1 |
| m_k   | 0 | … | 0   |

With M = 1, both pipelines equal `bp` bit for bit; with more, BatchNorm sees micro-batches.

    plan bp: delays=0,0 batches=2
    time     0     1     2      3      4     5     6      7
    stage 0  F0@0  .     .      B0@0!  F1@1  .     .      B1@1!
    stage 1  .     F0@0  B0@0!  .      .     F1@1  B1@1!  .

    plan gpipe: delays=0,0 micro=3 ahead=3,3 batches=1
    time     0       1       2       3       4       5       6        7
    stage 0  F0.0@0  F0.1@0  F0.2@0  .       .       B0.0@0  B0.1@0   B0.2@0!
    stage 1  .       F0.0@0  F0.1@0  F0.2@0  B0.0@0  B0.1@0  B0.2@0!  .

    plan 1f1b: delays=0,0 micro=4 ahead=1,0 batches=1
    time     0       1       2       3       4       5       6       7       8        9
    stage 0  F0.0@0  F0.1@0  .       B0.0@0  F0.2@0  B0.1@0  F0.3@0  B0.2@0  .        B0.3@0!
    stage 1  .       F0.0@0  B0.0@0  F0.1@0  B0.1@0  F0.2@0  B0.2@0  F0.3@0  B0.3@0!  .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel._errors import whole_number
from freewheel.methods._method import Method, Pipeline


@dataclass(frozen=True, kw_only=True)
class BP(Method):
    """Plain backpropagation, one stage at a time. All locks remain."""

    name: ClassVar[str] = "bp"

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays."""
        return Pipeline(title=self.name, delays=(0,) * k)


@dataclass(frozen=True, kw_only=True)
class _MicroBatches(Method):
    micro: int = 4

    def __post_init__(self) -> None:
        whole_number("micro", self.micro, least=1)


@dataclass(frozen=True, kw_only=True)
class GPipe(_MicroBatches):
    """Micro-batches: all forwards of a batch, then all backwards, then one update. The update lock remains.

    Args:
        micro: Micro-batches M per batch.
    """

    name: ClassVar[str] = "gpipe"

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, every stage all forwards ahead."""
        return Pipeline(title=self.name, delays=(0,) * k, micro=self.micro, ahead=(self.micro,) * k)


@dataclass(frozen=True, kw_only=True)
class OneFOneB(_MicroBatches):
    """Micro-batches, one forward and one backward in turn: fewer graphs in memory than `gpipe`, the same result.

    Args:
        micro: Micro-batches M per batch.
    """

    name: ClassVar[str] = "1f1b"

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, stage k ahead by the number of later stages."""
        return Pipeline(title=self.name, delays=(0,) * k, micro=self.micro, ahead=tuple(range(k - 1, -1, -1)))
