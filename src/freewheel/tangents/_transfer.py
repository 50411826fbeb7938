"""The schedule of efficient transfer learning: first the classifier, then some layers of the network, too.

Paper: Zhao et al., Accelerated on-device forward neural network training with module-wise descending asynchronism,
2023 (section 6.1, appendix I.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freewheel._errors import number, of_type, whole_number


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The scale α of tangents in each epoch, for a pretrained network.

    ::

        α  classifier  1     1     1  …  1           1           1           1  …
           layers      0     0     0  …  1·α*/ramp   2·α*/ramp   3·α*/ramp   …  α*  α*  …
           the rest    0     0     0  …  0           0           0           0  …
           epoch       0     1     2  …  warmup      warmup+1    warmup+2    …

    It is a function of the epoch alone, so each batch in flight has the α of its epoch at every stage and on every
    runtime. The timing of a callback that changed α would depend on the machine.

    Args:
        classifier: Patterns of the parameters that are trained from the start, at α = 1.
        layers: Patterns of the parameters that are trained later, except the classifier's.
        warmup: Epochs in which only the classifier is trained.
        ramp: Epochs in which α grows to its peak, inclusive.
        peak: α* after the ramp.

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
            raise ValueError(f"both layers and classifier have {both!r}: give in layers only what is trained later")
        whole_number("warmup", self.warmup, least=0)
        whole_number("ramp", self.ramp, least=1)
        number("peak", self.peak, least=0, hint="the final α of layers, such as 0.15")

    def __call__(self, epoch: int) -> dict[str, float]:
        """Return α by pattern in an epoch, counted from 0."""
        after = min(max(0, epoch - self.warmup + 1), self.ramp)  # t in appendix I.1
        alpha = self.peak * (after / self.ramp)
        out = {**dict.fromkeys(self.classifier, 1.0), **dict.fromkeys(self.layers, alpha)}
        return {**out, "*": out.get("*", 0.0)}


def _patterns(name: str, given: object) -> tuple[str, ...]:
    """Return one pattern or several as a tuple."""
    hint = "give a pattern of parameter names such as '*.bias', or a list of them"
    known = tuple(of_type(name, (given,) if isinstance(given, str) else given, Sequence, hint))
    for pattern in known:
        of_type(f"{name}={given!r}: pattern", pattern, str, hint)
    if not known or not all(known):
        raise ValueError(f"{name}={given!r}: give at least one pattern, and no empty one, such as '*.bias'")
    if "*" in known and name == "classifier":
        raise ValueError("classifier='*' is the whole network: to scale all parameters alike, use a number as scale")
    return known
