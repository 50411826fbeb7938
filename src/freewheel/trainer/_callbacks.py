"""What callbacks see at the end of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from freewheel.runtime import Before
from freewheel.trainer._history import Epoch, History


class StageSequence(nn.Module):
    """Stages run one after the other."""

    def __init__(self, stages: Iterable[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Any) -> Any:
        """Pass the input through all stages."""
        for stage in self.stages:
            x = stage(x)
        return x


@dataclass
class Position:
    """The states of all stages at a cut, while the callbacks run, and what has been trained until then."""

    states: Sequence[dict[str, Any] | None]
    before: Before


@dataclass(frozen=True, kw_only=True)
class EpochEnd:
    """What a callback sees: the record of the epoch, and the network as it was after exactly that many batches.

    Args:
        record: The record of the epoch.
        history: Those of all epochs until now.
        stages: Copies of the stages at the cut.
        network: The same as one network; `model()` has it in eval mode.
        position: For `fw.gradient_difference`.
    """

    record: Epoch
    history: History
    stages: Sequence[nn.Module]
    network: nn.Module
    position: Position | None = field(default=None, repr=False, compare=False)

    def model(self) -> nn.Module:
        """The network at the cut, in eval mode and with the names of its own parameters.

        It changes after the callback returns, so copy what is to be kept.
        """
        return self.network.eval()


@dataclass(frozen=True, kw_only=True)
class BatchEnd:
    """What a callback for batches sees, once every stage has made its update with a batch.

    Args:
        step: The number of batches trained, earlier fits included.
        epoch: The number of the epoch in this fit, from 0.
        loss: The loss of the batch, from its forward.
        samples: Its number of samples.
        gradient_norms: The norm of each stage's gradient before clipping, where `gradient_norms` was asked for.
    """

    step: int
    epoch: int
    loss: float
    samples: int
    gradient_norms: tuple[float, ...] = ()

    @property
    def gradient_norm(self) -> float:
        """The norm over all stages."""
        return math.hypot(*self.gradient_norms)


Callback = Callable[[EpochEnd], Any]
BatchCallback = Callable[[BatchEnd], Any]


def asks_to_stop(answer: Any) -> bool:
    """Whether a callback has returned True: Python's, NumPy's or a tensor's.

    Example:
        >>> import torch
        >>> [asks_to_stop(answer) for answer in (None, True, torch.tensor(True), torch.tensor(0.5), 1)]
        [False, True, True, False, False]
    """
    return answer is True or (str(getattr(answer, "dtype", "")) in ("bool", "torch.bool") and bool(answer))
