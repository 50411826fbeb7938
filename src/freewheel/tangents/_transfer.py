"""The schedule of efficient transfer learning: the classifier first, then a few layers of the network with it.

Paper: Zhao et al., Accelerated on-device forward neural network training with module-wise descending asynchronism,
2023 (section 6.1, appendix I.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freewheel._errors import whole_number


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The scale α of tangents in each epoch, for a network that has learned something else before.

    ::

        α  classifier  1     1     1  …  1           1           1           1  …
           layers      0     0     0  …  1·α*/ramp   2·α*/ramp   3·α*/ramp   …  α*  α*  …
           the rest    0     0     0  …  0           0           0           0  …
           epoch       0     1     2  …  warmup      warmup+1    warmup+2    …

    It is a function of the epoch and of nothing else. Several batches are under way at a time, and around the end of an
    epoch they belong to two; each gets the α of its own, at every stage and on every runtime. A callback that changed α
    between epochs would come at a time that depends on the machine.

    Args:
        classifier: Patterns of the parameters that are trained from the start, at α = 1.
        layers: Patterns of those that follow; the classifier's own are not among them.
        warmup: Epochs in which only the classifier is trained.
        ramp: Epochs in which α grows to its peak, the last of them included.
        peak: α*, from then on.

    Example:
        >>> alpha = Transfer(classifier="fc.*", warmup=10, ramp=20, peak=0.15)
        >>> alpha(9)
        {'fc.*': 1.0, '*.bias': 0.0, '*': 0.0}
        >>> [alpha(epoch)["*.bias"] for epoch in (10, 11, 29, 30)]
        [0.0075, 0.015, 0.15, 0.15]
    """

    classifier: str | Sequence[str] = "classifier.*"
    layers: str | Sequence[str] = "*.bias"
    warmup: int = 10
    ramp: int = 20
    peak: float = 0.15

    def __post_init__(self) -> None:
        for name in ("classifier", "layers"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))
        both = next((pattern for pattern in self.layers if pattern in self.classifier), None)
        if both is not None:
            raise ValueError(f"layers has {both!r}, and so has classifier: name in layers what is trained later")
        whole_number("warmup", self.warmup, least=0)
        whole_number("ramp", self.ramp, least=1)
        if isinstance(self.peak, bool) or not isinstance(self.peak, (int, float)):
            raise TypeError(f"peak={self.peak!r}: give a number from 0 on, such as 0.15")
        if not 0 <= self.peak < float("inf"):
            raise ValueError(f"peak={self.peak!r}: give a number from 0 on; 0 trains the classifier alone")

    def __call__(self, epoch: int) -> dict[str, float]:
        """α by pattern in an epoch, counted from 0."""
        after = min(max(0, epoch - self.warmup + 1), self.ramp)  # t in appendix I.1
        alpha = self.peak * (after / self.ramp)
        out = {**dict.fromkeys(self.classifier, 1.0), **dict.fromkeys(self.layers, alpha)}
        return {**out, "*": out.get("*", 0.0)}


def _patterns(name: str, given: object) -> tuple[str, ...]:
    """One pattern or several, as a tuple."""
    known = (given,) if isinstance(given, str) else given
    if not isinstance(known, Sequence) or not all(isinstance(pattern, str) for pattern in known):
        raise TypeError(f"{name}={given!r}: give a pattern of parameter names such as '*.bias', or a list of them")
    if not known or not all(known):
        raise ValueError(f"{name}={given!r}: give at least one pattern, and no empty one, such as '*.bias'")
    if "*" in known and name == "classifier":
        raise ValueError("classifier='*': that is the whole network; for one scale for all, give a number as scale")
    return tuple(known)
