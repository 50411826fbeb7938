"""`freewheel bench`: measurements that anyone can repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from freewheel._errors import whole_number
from freewheel.cli import _bench_tables as tables
from freewheel.cli._gpu_table import show_gpu
from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import INTERRUPTED, check_file, print_line, write_json

bench = App(name="bench", help="Measure, on this machine.", sort_key=4)

Repeats = Annotated[int, declare(OPTIONS, "N", "Repetitions of each measurement.")]
Json = Annotated[Path | None, declare(OPTIONS, "FILE", "Write the result to this file.")]


def _run(name: str, show: Callable[[Any], None], json: Path | None, *, counts: dict[str, int], **options: Any) -> Any:
    """Run a function of `freewheel.bench`, then print and write its result; `counts` must be 1 or more."""
    for key, count in counts.items():
        whole_number(f"--{key}", count, least=1)
    check_file("--json", json)
    from freewheel import bench

    result = getattr(bench, name)(**counts, **options, log=partial(print_line, error=True))
    show(result)
    for line in write_json(result, json):
        print_line(line)
    return result


def _interrupted(result: Mapping[str, Any]) -> int:
    """The exit code of a command that Ctrl-C ends with the results so far."""
    if not result["interrupted"]:
        return 0
    print_line("interrupted", error=True)
    return INTERRUPTED


@bench.command(name="speed")
def bench_speed(*, repeats: Repeats = 5, json: Json = None) -> None:
    """Compare the speed of training with and without stages."""
    _run("speed", tables.show_speed, json, counts={"repeats": repeats})


@bench.command(name="forward")
def bench_forward(*, repeats: Repeats = 5, json: Json = None) -> None:
    """Compare the speed of forward gradients with backpropagation and with JAX."""
    _run("forward", tables.show_forward, json, counts={"repeats": repeats})


@bench.command(name="memory")
def bench_memory(
    *,
    sweep: Annotated[
        tuple[str, ...],
        declare(
            OPTIONS,
            "NAME",
            "Only fc-depth, rnn-length, conv-depth, conv-width, conv-batch or resnet18-batch; repeatable.",
        ),
    ] = (),
    device: Annotated[str, declare(OPTIONS, "cpu|cuda", "Where to train.")] = "cpu",
    json: Json = None,
    picture: Annotated[Path | None, declare(OPTIONS, "FILE", "Draw the result: svg, png or pdf.")] = None,
) -> int:
    """Compare the memory of backpropagation and forward gradients.

    Ctrl-C ends it with the results so far.
    """
    check_file("--picture", picture)
    from freewheel.bench._memory_picture import check_picture, save_picture

    if picture is not None:
        check_picture(picture)
    result = _run("memory", tables.show_memory, json, counts={}, sweeps=sweep, device=device)
    if picture is not None:
        save_picture(result["sweeps"], picture)
        print_line(f"wrote {picture}")
    return _interrupted(result)


@bench.command(name="gpu")
def bench_gpu(
    *,
    case: Annotated[tuple[str, ...], declare(OPTIONS, "NAME", "Only this case, by its name; repeatable.")] = (),
    sweep: Annotated[
        bool, declare(OPTIONS, "", "Measure asyncfgd over K and the batch size instead, as the paper does.")
    ] = False,
    repeats: Repeats = 1,
    json: Json = None,
) -> int:
    """Compare methods on one GPU, as CUDA graphs and compiled, with PyTorch's and JAX's best.

    It takes less than 9 minutes. Ctrl-C ends it with the results so far.
    """
    result = _run("gpu", show_gpu, json, counts={"repeats": repeats}, cases=case, sweep=sweep)
    return _interrupted(result)


@bench.command(name="straggler")
def bench_straggler(
    *,
    repeats: Repeats = 3,
    batches: Annotated[int, declare(OPTIONS, "N", "Batches of each measurement.")] = 480,
    json: Json = None,
) -> None:
    """Compare how much methods lose to stages that are slow at random."""
    _run("straggler", tables.show_straggler, json, counts={"repeats": repeats, "batches": batches})


@bench.command(name="transport")
def bench_transport(*, repeats: Repeats = 5, json: Json = None) -> None:
    """Compare the latency of messages between processes and between threads."""
    _run("transport", tables.show_transport, json, counts={"repeats": repeats})


@bench.command(name="async")
def bench_async(
    *,
    repeats: Repeats = 3,
    epochs: Annotated[int, declare(OPTIONS, "N", "The most epochs for each method.")] = 20,
    target: Annotated[float, declare(OPTIONS, "X", "The test accuracy to reach.")] = 0.97,
    json: Json = None,
) -> None:
    """Compare methods that race on shared weights with each other and with plain SGD."""
    if not 0 < target <= 1:
        raise ValueError(f"--target {target:g}: give an accuracy above 0 and up to 1")
    counts = {"repeats": repeats, "epochs": epochs}
    _run("asynchronous", tables.show_async, json, counts=counts, target=target)
