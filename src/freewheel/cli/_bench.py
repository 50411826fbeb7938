"""`freewheel bench`: measurements that anyone can repeat."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from freewheel._errors import whole_number
from freewheel.cli._bench_forward import forward
from freewheel.cli._bench_memory import memory
from freewheel.cli._output import as_json, check_file, say, show, table

bench = typer.Typer(help="Measure, on this machine.", no_args_is_help=True)

AGAINST = {
    "sequential": "the same stages one at a time",
    "bp_all_cores": "plain PyTorch on all cores",
    "bp_best": "plain PyTorch on its best number of cores",
    "torch_pipelining": "torch.distributed.pipelining at its best",
}


@bench.callback()
def _group() -> None:
    """Keeps `speed` a command of its own while it is the only one."""


@bench.command()
def speed(
    repeats: Annotated[int, typer.Option(metavar="N", help="How often each is measured.")] = 5,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result there.")] = None,
) -> None:
    """Compare the speed of training with and without stages."""
    whole_number("--repeats", repeats, least=1)
    check_file("--json", json)
    from freewheel.bench import speed as measure

    result = measure(repeats=repeats, say=partial(say, error=True))
    for batch_size, part in result.items():
        _show(batch_size, part)
    if json is not None:
        json.write_text(as_json(result) + "\n", encoding="utf-8")
        say(f"wrote {json}")


bench.command()(memory)


def _show(batch_size: str, part: Mapping[str, Any]) -> None:
    numbers = ("seconds a batch", "images/s")
    shown = table("", *numbers, right=numbers, title=f"batches of {batch_size} images")
    for row in part["rows"]:
        shown.add_row(row["name"], f"{row['seconds']:.4f}", f"{row['images_per_second']:,.0f}")
    show(shown)
    say("The fastest on threads is")
    for name, ratio in part["ratios"].items():
        say(f"  {ratio:.2f} times as fast as {AGAINST.get(name, name)}")
    say(f"Running the plan, as against a loop written by hand, takes {part['bookkeeping']:.1%} of a sequential step.")
    say()


bench.command()(forward)
