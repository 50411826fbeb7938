"""Proof that a change changed no number: trains every method in two checkouts and compares digests of all they learned.

    python tests/same.py BASE                     # this checkout against the commit BASE
    python tests/same.py BASE --runtimes simulate threads

Each checkout trains its own `tests/rows.py` (and the methods that race, under `simulate`) on every runtime, for two
networks and two optimizers, 20 batches each. A digest covers weights, buffers, optimizer states and heads.
Digests differ between kinds of CPU, so none is stored: both sides run on this machine, one after the other.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RUNTIMES = ("simulate", "threads", "processes")
BATCHES = 20


def digest(value: Any, into: Any = None) -> str:
    """A digest of nested containers of tensors, numbers and texts."""
    import torch

    into = into or hashlib.sha256()
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous()
        into.update(f"{flat.dtype}{tuple(flat.shape)}".encode())
        into.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            into.update(repr(key).encode())
            digest(value[key], into)
    elif isinstance(value, (list, tuple)):
        into.update(str(len(value)).encode())
        for item in value:
            digest(item, into)
    else:
        into.update(repr(value).encode())
    return into.hexdigest()


def pictures(k: int) -> list[Any]:
    """A convolutional network in k stages: another form of data, another kind of layer."""
    import torch
    from torch import nn

    torch.manual_seed(4)
    blocks = [
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.Tanh(), nn.Dropout(0.1)),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
    ]
    cuts = {2: (0, 1, 3), 3: (0, 1, 2, 3)}[k]
    return [nn.Sequential(*blocks[a:b]) for a, b in pairwise(cuts)]


def trainings(runtimes: list[str]):
    """Every training of this checkout: its key, and what trains it and returns the trainer."""
    import torch

    import freewheel as fw
    from rows import OPTIMIZERS, ROWS, batches, network, trainer

    g = torch.Generator().manual_seed(5)
    images = [(torch.randn(6, 1, 8, 8, generator=g), torch.randint(3, (6,), generator=g)) for _ in range(BATCHES)]
    nets = {"mlp": (network, batches(BATCHES), 3), "conv": (pictures, images, 2)}
    races = list(fw.RACES) if "simulate" in runtimes else []
    methods = [(row.name, row.make, runtime) for runtime in runtimes for row in ROWS]
    methods += [(name, lambda k, name=name: name, "simulate") for name in races]
    for method, make, runtime in methods:
        for net, (build, data, k) in nets.items():
            for optimizer, factory in OPTIMIZERS.items():
                key = f"{method} {runtime} {net} {optimizer}"

                def train(build=build, data=data, k=k, make=make, runtime=runtime, factory=factory):
                    made = trainer(build(k), make(k), runtime=runtime, optimizer=factory)
                    made.fit(data[: BATCHES // 2], epochs=2, progress=False)
                    return made

                yield key, train


def learned(trainer: Any) -> list[Any]:
    """All that a trainer has learned."""
    modules = [*trainer.stages, *(head for head in trainer.heads if head is not None)]
    tensors = [[*module.named_parameters(), *module.named_buffers()] for module in modules]
    states = [None if optimizer is None else optimizer.state_dict()["state"] for optimizer in trainer.optimizers]
    return [tensors, states]


def train_all(runtimes: list[str], out: Path) -> None:
    """Trains everything in this process's checkout and writes the digests."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for key, train in trainings(runtimes):
        found[key] = digest(learned(train()))
        if sys.stderr.isatty():
            print(f"\r{len(found)} {key}".ljust(70), end="", file=sys.stderr, flush=True)
    out.write_text(json.dumps(found))


def digests_of(checkout: Path, runtimes: list[str], out: Path) -> dict[str, str]:
    """The digests of a checkout, made in a process of its own."""
    path = os.pathsep.join([str(checkout / "src"), str(checkout / "tests")])
    command = [sys.executable, "-P", str(HERE), "--digests", str(out), "--runtimes", *runtimes]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, cwd=checkout)
    return json.loads(out.read_text())


def main() -> int:
    """Compares, and says which trainings differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="the commit to compare with")
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=RUNTIMES)
    parser.add_argument("--digests", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.digests is not None:
        train_all(arguments.runtimes, arguments.digests)
        return 0
    if arguments.base is None:
        parser.error("give the commit to compare with")
    root = HERE.parents[1]
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", base, arguments.base], check=True, cwd=root)
        try:
            before = digests_of(base, arguments.runtimes, Path(folder) / "before.json")
            after = digests_of(root, arguments.runtimes, Path(folder) / "after.json")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", base], check=True, cwd=root)
    shared = [key for key in before if key in after]
    other = [key for key in shared if before[key] != after[key]]
    for key in other:
        print(f"differs: {key}")
    for name, keys in (("gone", before.keys() - after.keys()), ("new", after.keys() - before.keys())):
        if keys:
            print(f"{name}: {', '.join(sorted(keys))}")
    print(f"{len(shared) - len(other)} of {len(shared)} trainings have the same digests as {arguments.base}")
    return int(bool(other) or not shared or bool(before.keys() - after.keys()))


if __name__ == "__main__":
    sys.exit(main())
