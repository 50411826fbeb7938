"""Fixed random feedback: `fa` from layer to layer; `dfa`, `sdfa` and `drtp` directly to every layer.

Papers: Lillicrap et al., Random synaptic feedback weights support error backpropagation for deep learning, 2016 (`fa`);
Nøkland, Direct feedback alignment provides learning in deep neural networks, 2016 (`dfa`); Frenkel et al., Learning
without feedback, 2021 (`sdfa`, `drtp`). Baselines in table 1 of the AsyncFGD paper.

Layers l = 0..L-1 are the Linear and Conv2d layers, with input h_l and output a_l. A block is a layer and the norms,
activations and pools f_l up to the next layer: h_{l+1} = f_l(a_l). The loss is the mean over N samples, and
e = ∂loss/∂output has a row per sample.

    backpropagation    ∂loss/∂h_l := W_lᵀ · ∂loss/∂a_l       (for Conv2d, the transposed convolution with W_l)
    fa                 ∂loss/∂h_l := B_lᵀ · ∂loss/∂a_l       B_l in the shape of W_l, fixed
    dfa                ∂loss/∂h_l := B_lᵀ · e                B_l: outputs of the network × a sample's h_l, fixed
    sdfa               ∂loss/∂h_l := B_lᵀ · sign(e) / N
    drtp               ∂loss/∂h_l := B_lᵀ · t / N            t the one-hot target, or a target of floats itself

All else is exact: autograd backpropagates from h_l through f_{l-1} to the weights and biases of layer l-1 and the norms
of its block. The last layer learns from e itself. Division by N makes the step independent of the batch size, like the
mean in the loss. B_l is drawn from (seed, l), uniformly in ±√(6/n), He's bound as in Frenkel et al.; n is the number of
weights in B_l that share a first index.

`fa` has the plan of `bp`:

    plan fa: credit=aligned delays=0,0 batches=2
    time     0     1     2      3      4     5     6      7
    stage 0  F0@0  .     .      B0@0!  F1@1  .     .      B1@1!
    stage 1  .     F0@0  B0@0!  .      .     F1@1  B1@1!  .

In `dfa` and `sdfa` the last stage sends the error to all others. With zero delays, as in the papers, the forward and
the update lock remain:

    plan dfa: credit=feedback delays=0,0 batches=2
    time     0     1     2      3     4     5
    stage 0  F0@0  .     B0@0!  F1@1  .     B1@1!
    stage 1  .     F0@0  B0@0!  .     F1@1  B1@1!

`pipelined=True` uses the delays K-1-k, which remove all locks:

    plan dfa: credit=feedback delays=1,0 batches=3
    time     0     1     2      3     4      5     6
    stage 0  F0@0  F1@0  B0@0!  F2@1  B1@0!  .     B2@1!
    stage 1  .     F0@0  B0@0!  F1@1  B1@1!  F2@2  B2@2!

`drtp` needs only targets. No stage waits for a later one, and no lock remains even with zero delays:

    plan drtp: credit=feedback signal=target delays=0,0 batches=3
    time     0     1      2      3      4      5      6
    stage 0  F0@0  B0@0!  F1@1   B1@1!  F2@2   B2@2!  .
    stage 1  .     F0@0   B0@0!  F1@1   B1@1!  F2@2   B2@2!
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel._errors import of_type
from freewheel.credit import Aligned, Credit, Feedback, Signal
from freewheel.feedback import FeedbackOptions
from freewheel.methods._method import Method, Pipeline, shared_options


@dataclass(frozen=True, kw_only=True)
class _FeedbackMethod(FeedbackOptions, Method):
    signal: ClassVar[Signal]

    def _credit(self) -> Credit:
        return Feedback(signal=self.signal, **shared_options(self, FeedbackOptions))

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays."""
        return Pipeline(title=self.name, credit=self._credit(), delays=(0,) * k)


@dataclass(frozen=True, kw_only=True)
class _Pipelined(_FeedbackMethod):
    pipelined: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        of_type("pipelined", self.pipelined, bool, "give True or False")

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, or K-1-k."""
        delays = tuple(range(k - 1, -1, -1)) if self.pipelined else (0,) * k
        return Pipeline(title=self.name, credit=self._credit(), delays=delays)


@dataclass(frozen=True, kw_only=True)
class FA(_Pipelined):
    """Feedback alignment: gradients pass each layer through fixed random weights. All locks remain.

    Args:
        bound, own: See `FeedbackOptions`.
        pipelined: Whether stage k is K-1-k batches late, which removes all locks.
    """

    name: ClassVar[str] = "fa"

    def _credit(self) -> Credit:
        return Aligned(**shared_options(self, FeedbackOptions))


@dataclass(frozen=True, kw_only=True)
class DFA(_Pipelined):
    """Direct feedback alignment: every layer receives the output error. The forward and the update lock remain.

    Args:
        bound, own: See `FeedbackOptions`.
        pipelined: Whether stage k is K-1-k batches late, which removes all locks.
    """

    name: ClassVar[str] = "dfa"
    signal = "error"


@dataclass(frozen=True, kw_only=True)
class SDFA(_Pipelined):
    """Direct feedback alignment with the sign of the error. The forward and the update lock remain.

    Args:
        bound, own: See `FeedbackOptions`.
        pipelined: Whether stage k is K-1-k batches late, which removes all locks.
    """

    name: ClassVar[str] = "sdfa"
    signal = "sign"


@dataclass(frozen=True, kw_only=True)
class DRTP(_FeedbackMethod):
    """Direct random target projection: every layer receives the target. No lock remains. See `FeedbackOptions`."""

    name: ClassVar[str] = "drtp"
    signal = "target"
