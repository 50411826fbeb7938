"""`freewheel bench memory`: how much memory a training step needs beyond weights, optimizer and batch.

Every contender trains the same networks in a fresh process, for as many batches as fill its pipeline and two more. The
result is the peak of the whole run, including messages in flight between stages. It is measured twice: as bytes of
tensors, counted block by block, and as growth of the resident set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from freewheel._errors import one_of
from freewheel.bench._machine import machine
from freewheel.bench._memory_contenders import contenders_for
from freewheel.bench._memory_nets import Net
from freewheel.bench._memory_process import Template

DEVICES = ("cpu", "cuda")
EXPECTED = (  # a ratio: contender, sweep and value of both sides, and the largest value it should have
    ("32 fully connected layers, AsyncFGD to BP", ("AsyncFGD", "fc-depth", 32), ("BP", "fc-depth", 32), 1 / 3),
    ("16 convolutions, AsyncFGD to BP", ("AsyncFGD", "conv-depth", 16), ("BP", "conv-depth", 16), 1 / 3),
    ("AsyncFGD, 64 fully connected layers to 8", ("AsyncFGD", "fc-depth", 64), ("AsyncFGD", "fc-depth", 8), 1.05),
    ("ResNet-18, batches of 64, FGD to BP", ("FGD", "resnet18-batch", 64), ("BP", "resnet18-batch", 64), 0.3),
)


@dataclass(frozen=True)
class Sweep:
    """A network with one size that varies."""

    name: str
    title: str
    axis: Literal["depth", "width", "batch", "length"]
    unit: str
    values: tuple[int, ...]
    net: Net
    large: bool = False  # for a GPU, unless it is asked for by name

    def nets(self) -> list[Net]:
        """The networks, one per value."""
        return [replace(self.net, **{self.axis: value}) for value in self.values]


_CONV = Net(kind="conv", depth=18, width=3)
_BN = "with BatchNorm and ReLU on 32x32 images"
SWEEPS = (
    Sweep(
        "fc-depth", "fully connected layers of 512, batches of 64", "depth", "layers", (2, 4, 8, 16, 32, 64),
        Net(kind="fc", depth=2, width=512),
    ),
    Sweep(
        "rnn-length", "2 recurrent layers of 128, batches of 64", "length", "time steps", (8, 16, 32, 64, 128),
        Net(kind="rnn", depth=2, width=128),
    ),
    Sweep("conv-depth", f"convolutions of 3 channels {_BN}, batches of 64", "depth", "units", (2, 4, 8, 16, 32), _CONV),
    Sweep("conv-width", f"18 convolutions {_BN}, batches of 64", "width", "channels", (3, 6, 12), _CONV),
    Sweep("conv-batch", f"18 convolutions of 3 channels {_BN}", "batch", "images in a batch", (16, 32, 64, 128), _CONV),
    Sweep(
        "resnet18-batch", "ResNet-18 on 224x224 images", "batch", "images in a batch", (16, 32, 64),
        Net(kind="resnet18", depth=9, width=64), large=True,
    ),
)  # fmt: skip


def memory(
    *,
    sweeps: Sequence[str] = (),
    device: str = "cpu",
    log: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measure all contenders on every network; Ctrl-C ends it with the results so far.

    Args:
        sweeps: Names of sweeps; by default all, on a CPU without that of ResNet-18 on large images.
        device: `cpu` or `cuda`; on a GPU the allocator counts.
        log: Called with a line of progress.

    Returns:
        `sweeps`, a list: `name`, `title`, `axis`, `unit`, `net` and `rows` of each (a row per value and contender:
        `value`, `contender`, `extra` bytes of tensors, `resident` bytes of the process or None). `findings`, a list:
        what is expected (`about`, `limit`) and what was `found`. `device`, `machine`; `interrupted`.
    """
    names = [sweep.name for sweep in SWEEPS]
    for name in sweeps:
        one_of("sweep", name, names)
    one_of("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda': torch finds no GPU here; use device='cpu'")
    chosen = [
        sweep for sweep in SWEEPS if sweep.name in sweeps or (not sweeps and (device != "cpu" or not sweep.large))
    ]
    found: list[dict[str, Any]] = []
    template, interrupted = Template(), False
    try:
        known: dict[tuple[str, Net], dict[str, Any]] = {}
        for sweep in chosen:
            found.append({**asdict(sweep), "rows": []})
            for value, net in zip(sweep.values, sweep.nets()):
                names = contenders_for(net, device)
                for name in names:
                    known[name, net] = known.get((name, net)) or template.measure(name, net, device)
                    found[-1]["rows"].append({"value": value, "contender": name, **known[name, net]})
                log(f"{sweep.name}, {value} {sweep.unit}: {len(names)} contenders")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        template.stop()
    return {
        "sweeps": found,
        "findings": findings(found),
        "device": device,
        "machine": machine(),
        "interrupted": interrupted,
    }


def findings(sweeps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The expected ratios that were measured, and what was found."""
    extra = {(row["contender"], sweep["name"], row["value"]): row["extra"] for sweep in sweeps for row in sweep["rows"]}
    return [
        {"about": about, "found": extra[ours] / extra[theirs], "limit": limit}
        for about, ours, theirs, limit in EXPECTED
        if ours in extra and theirs in extra
    ]
