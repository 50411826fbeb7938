"""`freewheel bench forward`: the speed of forward gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.cli._bench_run import Json, Repeats, measure, show_speeds, write
from freewheel.cli._output import say

PARTS = {
    "compiled_over_bp": "A compiled step takes {:.2f} of the time of backpropagation",
    "eager_over_bp": "An eager step takes {:.2f} of the time of backpropagation",
    "compiled_over_bp_compiled": "A compiled step takes {:.2f} of the time of compiled backpropagation",
    "eager_over_func_jvp": "An eager step takes {:.2f} of the time of torch.func.jvp",
    "compiled_over_jax": "A compiled step takes {:.2f} of the time of JAX's jit(jvp)",
    **{
        f"asyncfgd_{kind}_{runtime}": f"Two stages on two cores are {{:.2f}} times as fast as one, {kind}, in {runtime}"
        for kind in ("eager", "compiled")
        for runtime in ("threads", "processes")
    },
}


def forward(repeats: Repeats = 5, json: Json = None) -> None:
    """Compare the speed of forward gradients with backpropagation and with JAX."""
    result = measure("forward", json, counts={"repeats": repeats})
    for batch_size, part in result.items():
        _show(batch_size, part)
    write(result, json)


def _show(batch_size: str, part: Mapping[str, Any]) -> None:
    show_speeds(part["rows"], batch_size, "seconds a step")
    for name, value in {**part["ratios"], **part["speed_ups"]}.items():
        say(PARTS[name].format(value) + ".")
    if "compiled_over_jax" not in part["ratios"]:
        say("JAX is not installed, so it was left out: pip install 'freewheel[bench]'")
    say()
