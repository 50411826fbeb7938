"""Forward gradients: `fgd`, its pipeline `asyncfgd`, and the parallel baselines of the paper.

Papers: Zhao et al., Accelerated on-device forward neural network training with module-wise descending asynchronism,
2023; on forward gradients, Baydin et al., Gradients without backpropagation, 2022.

One pass of dual numbers (h, o) through the stages, with tangents u_k ~ N(0, I) on the weights and o_0 = 0 (eq. 3, 4):

    h_{k+1} = f_k(h_k; w_k),    o_{k+1} = ∂f_k/∂h · o_k + ∂f_k/∂w · u_k

The last stage forms the directional derivative d = ⟨∂loss/∂h_K, o_K⟩, and every stage takes d·u_k as its gradient. Its
expectation is the true one (lemma 3.1):

    w_k ← w_k - lr · d(n) · u_k(n)

There is no backward, and only the seed of u_k is stored between the forward and the update. In `asyncfgd` stage k
forwards batch n at version max(0, n - (K-1-k)) (lemma 5.3; eq. 6 counts from the time a batch leaves the last stage):

| stage | 0   | … | k     | … | K-1 |
| m_k   | K-1 | … | K-1-k | … | 0   |

    plan asyncfgd: credit=forward delays=2,1,0 batches=4
    time     0     1     2          3          4          5
    stage 0  F0@0  F1@0  F2@0 U0@0  F3@1 U1@1  U2@2       U3@3
    stage 1  .     F0@0  F1@0 U0@0  F2@1 U1@1  F3@2 U2@2  U3@3
    stage 2  .     .     F0@0!      F1@1!      F2@2!      F3@3!

`fgd` and `fgd-mp` have the same plan with zero delays; in `fgd-mp` each stage is on its own worker:

    plan fgd: credit=forward delays=0,0 batches=3
    time     0     1      2     3      4     5
    stage 0  F0@0  U0@0   F1@1  U1@1   F2@2  U2@2
    stage 1  .     F0@0!  .     F1@1!  .     F2@2!

`fgd-sync` is a synchronous pipeline of micro-batches that share the batch's tangents, so its result equals `fgd`. In
`fgd-dp` each micro-batch has its own tangents, like the replicas of data parallelism, which exchange only a seed and a
number each:

    plan fgd-sync: credit=forward delays=0,0 micro=3 batches=2
    time     0       1       2       3        4       5       6       7
    stage 0  F0.0@0  F0.1@0  F0.2@0  U0@0     F1.0@1  F1.1@1  F1.2@1  U1@1
    stage 1  .       F0.0@0  F0.1@0  F0.2@0!  .       F1.0@1  F1.1@1  F1.2@1!

Recurrent nets (appendix G.3): with `steps`, sequences are split along time. Each stage keeps the state (s, o_s) of its
layers (`fw.Recurrent`), and tangents are drawn once per sequence. Loss and d are averaged over the sequence, or summed
with `over_time="sum"` (eq. 15). All steps of a sequence see the same version; the pipeline runs over steps, so a delay
of one sequence suffices for up to `steps` + 1 stages:

    plan asyncfgd: credit=forward delays=1,0 micro=3 along=1 batches=2
    time     0       1       2       3        4       5            6
    stage 0  F0.0@0  F0.1@0  F0.2@0  F1.0@0   F1.1@0  F1.2@0 U0@0  U1@1
    stage 1  .       F0.0@0  F0.1@0  F0.2@0!  F1.0@1  F1.1@1       F1.2@1!
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from freewheel._errors import whole_number
from freewheel.credit import Forward
from freewheel.methods._method import Method, Pipeline, shared_options
from freewheel.plan import OverTime
from freewheel.tangents import TangentOptions


@dataclass(frozen=True, kw_only=True)
class _ForwardMethod(TangentOptions, Method):
    def _pipeline(self, each: Literal["batch", "micro"] = "batch", **choices: Any) -> Pipeline:
        credit = Forward(each=each, **shared_options(self, TangentOptions))
        return Pipeline(title=self.name, credit=credit, **choices)


@dataclass(frozen=True, kw_only=True)
class _RecurrentMethod(_ForwardMethod):
    steps: int = 1
    over_time: OverTime = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("steps", self.steps, least=1)
        self.pipeline(1)  # which checks `over_time`

    def _along_time(self) -> dict[str, Any]:
        return {"micro": self.steps, "along": int(self.steps > 1), "over_time": self.over_time}


@dataclass(frozen=True, kw_only=True)
class FGD(_RecurrentMethod):
    """Forward gradients, one stage at a time. The forward and the update lock remain.

    All methods of this family also take the options of `TangentOptions`.

    Args:
        steps: Micro-batches along time that sequences are split into; 1 does not split.
        over_time: With `steps`, whether the loss of a sequence is the `mean` or the `sum` (eq. 15) over time.
    """

    name: ClassVar[str] = "fgd"

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays."""
        return self._pipeline(delays=(0,) * k, **self._along_time())


@dataclass(frozen=True, kw_only=True)
class FGDMP(_ForwardMethod):
    """Forward gradients with each stage on its own worker, one stage at a time: the plan of `fgd`."""

    name: ClassVar[str] = "fgd-mp"

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays."""
        return self._pipeline(delays=(0,) * k)


@dataclass(frozen=True, kw_only=True)
class FGDSync(_ForwardMethod):
    """Forward gradients in a synchronous pipeline of micro-batches. The update lock remains.

    Args:
        micro: Micro-batches M per batch.
    """

    name: ClassVar[str] = "fgd-sync"

    micro: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("micro", self.micro, least=1)

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, micro-batches with the batch's tangents."""
        return self._pipeline(delays=(0,) * k, micro=self.micro)


@dataclass(frozen=True, kw_only=True)
class FGDDP(_ForwardMethod):
    """Data-parallel forward gradients: each micro-batch has its own tangents. The update lock remains.

    One pipeline processes all micro-batches in turn. With `fw.Trainer(replicas=R)` each has its own pipeline; leave
    `replicas` of the method at its default then, or set it to R.

    Args:
        replicas: Micro-batches R per batch.
    """

    name: ClassVar[str] = "fgd-dp"

    replicas: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("replicas", self.replicas, least=1)
        if self.direction is not None:
            raise ValueError("direction with 'fgd-dp': every replica has its own tangents; use 'fgd-sync' or 'fgd'")

    def over(self, replicas: int) -> FGDDP:
        """One micro-batch per replica."""
        if replicas == 1:
            return self
        if self.replicas not in (replicas, FGDDP.replicas):
            raise ValueError(
                f"replicas={self.replicas} of 'fgd-dp' and replicas={replicas} of the trainer differ: leave the "
                "method's out"
            )
        return replace(self, replicas=1)

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, micro-batches with their own tangents."""
        return self._pipeline("micro", delays=(0,) * k, micro=self.replicas)


@dataclass(frozen=True, kw_only=True)
class AsyncFGD(_RecurrentMethod):
    """Forward gradients, pipelined with stale weights. No lock remains.

    Args:
        steps: Micro-batches along time that sequences are split into; 1 does not split.
        over_time: With `steps`, whether the loss of a sequence is the `mean` or the `sum` (eq. 15) over time.
    """

    name: ClassVar[str] = "asyncfgd"

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k; along time, one sequence at every stage but the last."""
        delays = (1,) * (k - 1) + (0,) if self.steps > 1 else tuple(range(k - 1, -1, -1))
        return self._pipeline(delays=delays, **self._along_time())
