"""Loss, metric and speed over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from freewheel.report._figures import is_share, metric_name
from freewheel.trainer import Epoch


def curves_of(epochs: Sequence[Epoch], status: str) -> dict[str, Any]:
    """The curves; `seconds` is the training time at the end of each epoch."""
    if not epochs:
        said = "The first epoch has not ended yet." if status == "running" else "No epoch has ended."
        return {"missing": said}
    scores = [epoch.validation for epoch in epochs]
    name = metric_name(epochs)
    return {
        "epochs": [epoch.epoch + 1 for epoch in epochs],
        "complete": [epoch.complete for epoch in epochs],
        "seconds": [round(each, 6) for each in accumulate(epoch.seconds for epoch in epochs)],
        "loss": [_number(epoch.loss) for epoch in epochs],
        "validation_loss": _known([None if score is None else _number(score.loss) for score in scores]),
        "metric": _known([None if score is None else _number(score.metric) for score in scores]),
        "metric_name": name,
        "metric_is_share": is_share(name),
        "rate": [_number(epoch.images_per_second) for epoch in epochs],
    }


def _known(values: list[float | None]) -> list[float | None] | None:
    return values if any(value is not None for value in values) else None


def _number(value: float | None) -> float | None:
    """What a curve draws; None for infinity and for what is no number."""
    return None if value is None or value != value or abs(value) == float("inf") else float(f"{value:.6g}")
