"""`freewheel bench forward`: the speed of forward gradients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from freewheel._errors import whole_number
from freewheel.cli._output import as_json, check_file, say, show, table

PARTS = {
    "compiled_over_bp": "A compiled step takes {:.2f} of the time of backpropagation",
    "eager_over_bp": "An eager step takes {:.2f} of the time of backpropagation",
    "compiled_over_bp_compiled": "A compiled step takes {:.2f} of the time of compiled backpropagation",
    "eager_over_func_jvp": "An eager step takes {:.2f} of the time of torch.func.jvp",
    "compiled_over_jax": "A compiled step takes {:.2f} of the time of JAX's jit(jvp)",
    "asyncfgd_eager": "Two stages on two cores are {:.2f} times as fast as one, eager",
    "asyncfgd_compiled": "Two stages on two cores are {:.2f} times as fast as one, compiled",
}


def forward(
    repeats: Annotated[int, typer.Option(metavar="N", help="How often each is measured.")] = 5,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result there.")] = None,
) -> None:
    """Compare the speed of forward gradients with backpropagation and with JAX."""
    whole_number("--repeats", repeats, least=1)
    check_file("--json", json)
    from freewheel.bench import forward as measure

    result = measure(repeats=repeats, say=partial(say, error=True))
    for batch_size, part in result.items():
        _show(batch_size, part)
    if json is not None:
        json.write_text(as_json(result) + "\n", encoding="utf-8")
        say(f"wrote {json}")


def _show(batch_size: str, part: Mapping[str, Any]) -> None:
    numbers = ("seconds a step", "images/s")
    shown = table("", *numbers, right=numbers, title=f"batches of {batch_size} images")
    for row in part["rows"]:
        shown.add_row(row["name"], f"{row['seconds']:.4f}", f"{row['images_per_second']:,.0f}")
    show(shown)
    for name, value in {**part["ratios"], **part["speed_ups"]}.items():
        say(PARTS[name].format(value) + ".")
    if "compiled_over_jax" not in part["ratios"]:
        say("JAX is not installed, so it was left out: pip install 'freewheel[bench]'")
    say()
