"""`freewheel bench forward`: the speed of forward gradients, compared with other ways to make the same step.

Every contender makes complete training steps of the same ResNet-20-shaped network with SGD and momentum, drawing
tangents and updating weights included; on one core, except for those in two stages. They take
turns, and the medians over the turns count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from freewheel.bench._forward_contenders import freewheel_steps, pytorch_steps
from freewheel.bench._jax import jax_steps
from freewheel.bench._speed import run_teams
from freewheel.bench._team import Team

# The time of the first divided by the time of the second.
RATIOS = {
    "compiled_over_bp": ("freewheel: fgd, compiled", "PyTorch: bp, eager"),
    "eager_over_bp": ("freewheel: fgd, eager", "PyTorch: bp, eager"),
    "compiled_over_bp_compiled": ("freewheel: fgd, compiled", "PyTorch: bp, compiled"),
    "eager_over_func_jvp": ("freewheel: fgd, eager", "PyTorch: func.jvp"),
    "compiled_over_jax": ("freewheel: fgd, compiled", "JAX: jit(jvp)"),
}
# The speed of two stages on two cores relative to one.
SPEED_UPS = {
    f"asyncfgd_{kind}_{runtime}": (f"freewheel: fgd, {kind}", f"freewheel: asyncfgd K=2, {kind}, {runtime}")
    for kind in ("eager", "compiled")
    for runtime in ("threads", "processes")
}


def forward(
    *,
    batch_sizes: Sequence[int] = (64, 4),
    repeats: int = 5,
    seconds: float = 2.5,
    log: Callable[[str], Any] = print,
) -> dict[str, dict[str, Any]]:
    """Measure all contenders for each batch size.

    Args:
        batch_sizes: The batch sizes.
        repeats: Turns of each contender.
        seconds: The length of a turn, roughly.
        log: Called with a line of progress.

    Returns:
        For each batch size its `rows` (one per contender), its `ratios` of times, and its `speed_ups` of two stages on
        two cores over one.
    """
    log("compiling takes a minute or two at each batch size")
    teams = [Team("freewheel", freewheel_steps), Team("PyTorch", pytorch_steps), Team("JAX", jax_steps)]
    return run_teams(teams, batch_sizes, repeats, seconds, log, _compare, by="forward")


def _compare(rows: list[dict[str, Any]]) -> dict[str, Any]:
    took = {row["name"]: row["seconds"] for row in rows}
    return {"ratios": _ratios(took, RATIOS), "speed_ups": _ratios(took, SPEED_UPS)}


def _ratios(took: Mapping[str, float], pairs: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    return {name: took[a] / took[b] for name, (a, b) in pairs.items() if a in took and b in took}
