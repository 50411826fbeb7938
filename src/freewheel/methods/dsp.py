"""`dsp`: diversely stale parameters, with user-chosen delays and queue lengths.

Paper: Xu, Huo, Huang, On the acceleration of deep learning model parallelism with staleness, 2020.

In DSP(p_0 … p_{K-1}; m_0 … m_{K-1}) stage k has an input queue of length 1 + m_k, an output queue of length 1 + p_k and
a gradient queue of length 1 + q_k, with q_k = m_{k-1} - p_{k-1} - m_k (appendix A). Update of stage k with batch n, the
forward recomputed on the stored input with the newest weights, version n (eq. 5):

    w_k ← w_k - lr · ∂f_k(h_k; w_k)/∂w_k · g_{k+1}(n),    g_K the derivative of the loss at the output of the forward

| stage | 0        | … | k          | … | K-1 |
| m_k   | d(K-1)   | … | d(K-1-k)   | … | 0   |   for `delay=d`, with p_k = ⌈d/2⌉ and so q_k = ⌊d/2⌋

Figure 2 of the paper, DSP(1,1,0;4,2,0):

    plan dsp: delays=4,2,0 weights=recompute queues=2/2,2/2 cell=round batches=5
    time     0     1     2           3                4                5                6           7           8
    stage 0  F0@0  F1@0  F2@0        F3@0             F4@0 R0@0 B0@0!  R1@1 B1@1!       R2@2 B2@2!  R3@3 B3@3!  R4@4 B4@4!
    stage 1  .     F0@0  F1@0        F2@0 R0@0 B0@0!  F3@1 R1@1 B1@1!  F4@2 R2@2 B2@2!  R3@3 B3@3!  R4@4 B4@4!  .
    stage 2  .     .     F0@0 B0@0!  F1@1 B1@1!       F2@2 B2@2!       F3@3 B3@3!       F4@4 B4@4!  .           .
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from freewheel._errors import whole_number
from freewheel.methods._method import Method, Pipeline, whole_numbers


@dataclass(frozen=True, kw_only=True)
class DSP(Method):
    """Stale gradients by recomputation, with queues between the stages. No lock remains.

    Args:
        p: The output queue of stage k holds 1 + p_k activations; p_k > 0 except for the last stage, which has 0.
        m: The delays; q_k = m_{k-1} - p_{k-1} - m_k must be above 0, and the last delay 0.
        delay: Instead of p and m: the paper's setting m_k = delay·(K-1-k), with 2, 3 and 5 in its tables.
    """

    name: ClassVar[str] = "dsp"

    p: Sequence[int] | None = None
    m: Sequence[int] | None = None
    delay: int | None = None

    def __post_init__(self) -> None:
        if (self.p is None) != (self.m is None):
            raise ValueError(f"p={self.p}, m={self.m}: give both, or neither and a delay")
        if self.p is not None and self.delay is not None:
            raise ValueError(f"delay={self.delay} with p={self.p}, m={self.m}: give either the delay or p and m")
        if self.p is None or self.m is None:
            delay = 2 if self.delay is None else self.delay
            object.__setattr__(self, "delay", whole_number("delay", delay, least=2))
            return
        p, m = whole_numbers("p", self.p), whole_numbers("m", self.m)
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "m", m)
        if len(p) != len(m):
            raise ValueError(f"p={p}, m={m}: they need the same length, one number for each stage")
        self._check(p, m)

    @staticmethod
    def _check(p: tuple[int, ...], m: tuple[int, ...]) -> None:
        name, last = f"DSP({','.join(map(str, p))};{','.join(map(str, m))})", len(p) - 1
        for k in range(last):
            if p[k] <= 0:
                raise ValueError(f"{name}: p_{k} = {p[k]} violates p_k > 0 for k < K-1")
        if p and p[last] != 0:
            raise ValueError(f"{name}: p_{last} = {p[last]} violates p_(K-1) = 0")
        if m and m[last] != 0:
            raise ValueError(f"{name}: m_{last} = {m[last]} violates m_(K-1) = 0")
        for k in range(1, last + 1):
            q = m[k - 1] - p[k - 1] - m[k]
            if q <= 0:
                raise ValueError(
                    f"{name}: q_{k} = m_{k - 1} - p_{k - 1} - m_{k} = {m[k - 1]} - {p[k - 1]} - {m[k]} = {q} "
                    "violates q_k > 0 for k ≥ 1"
                )

    def pipeline(self, k: int) -> Pipeline:
        """The given delays and queues, forwards recomputed."""
        if self.p is not None and self.m is not None:
            p, m = tuple(self.p), tuple(self.m)
            if len(p) != k:
                raise ValueError(f"p={p}, m={m} are for {len(p)} stages, but there are {k}")
        else:
            delay = self.delay or 2
            p = tuple((delay + 1) // 2 if i < k - 1 else 0 for i in range(k))
            m = tuple(delay * (k - 1 - i) for i in range(k))
        q = [m[i - 1] - p[i - 1] - m[i] for i in range(1, k)]
        return Pipeline(
            title=self.name,
            delays=m,
            weights="recompute",
            queues=tuple((1 + p[i], 1 + q[i]) for i in range(k - 1)),
            cell="round",
        )
