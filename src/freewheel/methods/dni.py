"""`dni`: every stage learns from a gradient that it predicts.

Paper: Jaderberg et al., Decoupled neural interfaces using synthetic gradients, 2017.

Each stage but the last owns a predictor M_k, a small network that says from the stage's output (and the label, if
asked for) what gradient that output is going to get. The stage learns from the prediction at once, and passes the
gradient of its own input on (stages counted from 0, N samples a batch, L the loss, ĝ_K its true gradient):

    h_{k+1} = f_k(h_k; w_k),    ĝ_{k+1} = M_k(h_{k+1}, y) / N,    w_k ← w_k - lr · ∂h_{k+1}/∂w_k · ĝ_{k+1}
    g_k = ∂h_{k+1}/∂h_k · ĝ_{k+1}    goes to stage k-1

The predictor of stage k is fitted to g_{k+1} once it is there, by default one batch later, so that nobody waits:

    M_k ← M_k - lr · ∂/∂M_k mean (M_k(h_{k+1}, y) - N · g_{k+1})²

    plan dni: credit=synthetic delays=0,0,0 lag=1 batches=4
    time     0     1      2      3      4          5          6          7          8      9      10
    stage 0  F0@0  B0@0!  F1@1   B1@1!  S0@0 F2@2  B2@2!      S1@1 F3@3  B3@3!      S2@2   S3@3   .
    stage 1  .     F0@0   B0@0!  F1@1   B1@1!      S0@0 F2@2  B2@2!      S1@1 F3@3  B3@3!  S2@2   S3@3
    stage 2  .     .      F0@0   B0@0!  F1@1       B1@1!      F2@2       B2@2!      F3@3   B3@3!  .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.methods._method import Method, Pipeline
from freewheel.stage import Predictors
from freewheel.stage._forms import MakeOptimizer


@dataclass(frozen=True, kw_only=True)
class DNI(Method):
    """Each stage learns from a gradient that it predicts. No lock remains.

    Args:
        hidden: Width of the predictors' hidden layers; by default that of what they predict the gradient of.
        layers: How many hidden layers they have; with 0 they are linear.
        labels: Whether they see the label, too.
        classes: How many labels there are; by default the outputs of the network's last linear or convolutional layer.
        optimizer: A factory for the predictors; by default the trainer's.
        lag: How many batches later a predictor is fitted; 0 waits for the next stage.

    Example:
        >>> import freewheel as fw
        >>> plan = fw.plan(fw.DNI(), k=3)
        >>> plan.delays, plan.locks
        ((0, 0, 0), frozenset())
    """

    name: ClassVar[str] = "dni"

    hidden: int | None = None
    layers: int = 0
    labels: bool = False
    classes: int | None = None
    optimizer: MakeOptimizer | None = None
    lag: int = 1

    def __post_init__(self) -> None:
        self._predictors()

    def _predictors(self) -> Predictors:
        return Predictors(
            hidden=self.hidden,
            layers=self.layers,
            labels=self.labels,
            classes=self.classes,
            optimizer=self.optimizer,
            lag=self.lag,
        )

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, predictors."""
        return Pipeline(title=self.name, credit="synthetic", delays=(0,) * k, predictors=self._predictors())
