"""`dni`: every stage learns from a predicted gradient.

Paper: Jaderberg et al., Decoupled neural interfaces using synthetic gradients, 2017.

Each stage but the last owns a predictor M_k, a small network that predicts the gradient of the stage's output from
that output (and optionally the label). The stage learns from the prediction at once and sends the gradient of its
input back (stages counted from 0, N samples per batch, ĝ_K the true gradient of the loss):

    h_{k+1} = f_k(h_k; w_k),    ĝ_{k+1} = M_k(h_{k+1}, y) / N,    w_k ← w_k - lr · ∂h_{k+1}/∂w_k · ĝ_{k+1}
    g_k = ∂h_{k+1}/∂h_k · ĝ_{k+1}    goes to stage k-1

The predictor of stage k is fitted to g_{k+1} when it arrives, by default one batch later, so no stage waits:

    M_k ← M_k - lr · ∂/∂M_k mean (M_k(h_{k+1}, y) - N · g_{k+1})²

With `layers=2, norm=True` predictors of images have two hidden convolutions of 5x5 with BatchNorm, as in the paper.

    plan dni: credit=synthetic delays=0,0,0 batches=4
    time     0     1      2      3      4          5          6          7          8      9      10
    stage 0  F0@0  B0@0!  F1@1   B1@1!  S0@0 F2@2  B2@2!      S1@1 F3@3  B3@3!      S2@2   S3@3   .
    stage 1  .     F0@0   B0@0!  F1@1   B1@1!      S0@0 F2@2  B2@2!      S1@1 F3@3  B3@3!  S2@2   S3@3
    stage 2  .     .      F0@0   B0@0!  F1@1       B1@1!      F2@2       B2@2!      F3@3   B3@3!  .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.credit import PredictorOptions, Synthetic
from freewheel.methods._method import Method, Pipeline, shared_options


@dataclass(frozen=True, kw_only=True)
class DNI(PredictorOptions, Method):
    """Synthetic gradients: each stage predicts its gradient. No lock remains. See `PredictorOptions` for the options.

    Example:
        >>> import freewheel as fw
        >>> plan = fw.plan(fw.DNI(), k=3)
        >>> plan.delays, plan.locks
        ((0, 0, 0), frozenset())
    """

    name: ClassVar[str] = "dni"

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, predictors."""
        return Pipeline(title=self.name, credit=Synthetic(**shared_options(self, PredictorOptions)), delays=(0,) * k)
