"""`freewheel bench`: measurements that anyone can repeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from freewheel.cli._bench_async import asynchronous
from freewheel.cli._bench_forward import forward
from freewheel.cli._bench_memory import memory
from freewheel.cli._bench_run import Json, Repeats, measure, show_speeds, write
from freewheel.cli._bench_straggler import straggler
from freewheel.cli._bench_transport import transport
from freewheel.cli._output import say

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
def speed(repeats: Repeats = 5, json: Json = None) -> None:
    """Compare the speed of training with and without stages."""
    result = measure("speed", json, counts={"repeats": repeats})
    for batch_size, part in result.items():
        _show(batch_size, part)
    write(result, json)


bench.command()(memory)


def _show(batch_size: str, part: Mapping[str, Any]) -> None:
    show_speeds(part["rows"], batch_size, "seconds a batch")
    say("The fastest on threads is")
    for name, ratio in part["ratios"].items():
        say(f"  {ratio:.2f} times as fast as {AGAINST.get(name, name)}")
    say(f"In processes a method is {part['processes']:.2f} times as fast as on threads.")
    say(f"Running the plan, as against a loop written by hand, takes {part['bookkeeping']:.1%} of a sequential step.")
    say()


bench.command()(forward)
bench.command()(straggler)
bench.command()(transport)
bench.command(name="async")(asynchronous)
