"""`dgl`: every stage learns from a local loss.

Paper: Belilovsky, Eickenberg and Oyallon, Decoupled greedy learning of CNNs, 2019.

Each stage but the last owns a head c_k, a small network that predicts the target from the stage's output. No gradient
passes between stages; a stage learns as soon as it has its input (stages counted from 0):

    h_{k+1} = f_k(h_k; w_k),    (w_k, c_k) ← (w_k, c_k) - lr · ∂/∂(w_k, c_k) loss(c_k(h_{k+1}), y),    h_k fixed

    plan dgl: credit=local delays=0,0,0 batches=4
    time     0     1      2      3      4      5      6      7      8      9
    stage 0  F0@0  B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!  .      .
    stage 1  .     F0@0   B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!  .
    stage 2  .     .      F0@0   B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!

With one stage it is plain training. The paper's MLP-SR-aux heads are `convs=3, layers=3, hidden=None, norm=True`. With
its replay buffer, a stage after the first forwards the newest input and learns from one of its last inputs:

    replay buffer: inputs of n-2, n-1, n     F(n) a(n)>     F, B of one of them     U(n)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.credit import HeadOptions, Local
from freewheel.methods._method import Method, Pipeline, shared_options


@dataclass(frozen=True, kw_only=True)
class DGL(HeadOptions, Method):
    """Local losses: each stage learns from an auxiliary head. No lock remains. See `HeadOptions` for the options.

    Example:
        >>> import freewheel as fw
        >>> plan = fw.plan(fw.DGL(), k=3)
        >>> plan.delays, plan.locks
        ((0, 0, 0), frozenset())
    """

    name: ClassVar[str] = "dgl"

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, heads."""
        return Pipeline(title=self.name, credit=Local(**shared_options(self, HeadOptions)), delays=(0,) * k)
