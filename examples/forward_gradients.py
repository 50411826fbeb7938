"""Learning without a backward pass: forward gradients on real handwritten digits, synchronous and asynchronous.

`python examples/forward_gradients.py` takes minutes, with `--quick` seconds.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import mean

import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw

METHODS = {
    "fgd": fw.FGD(),
    "asyncfgd": fw.AsyncFGD(),
    "asyncfgd, perturbed activations": fw.AsyncFGD(perturb="activations"),
}


def stages() -> list[nn.Module]:
    """A small network in three stages: delays 2, 1 and 0 under `asyncfgd`."""
    return [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh()),
        nn.Sequential(nn.Linear(64, 64), nn.Tanh()),
        nn.Linear(64, 10),
    ]


def train(method: fw.Method, seed: int, epochs: int) -> float:
    """Train with a method; returns the test accuracy."""
    data = fw.data.load("digits", seed=seed)
    torch.manual_seed(seed)
    trainer = fw.Trainer(
        stages(),
        method=method,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.Adam, lr=2.5e-3),
        scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs * len(data.train)),
        runtime="simulate",  # gives the same weights as threads, which layers this small would not keep busy
        seed=seed,
        threads=1,
    )
    trainer.fit(data.train, epochs, progress=False)
    return trainer.evaluate(data.test).metric or 0.0


def main() -> None:
    """Train with every method and seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method")
    parser.add_argument("--epochs", type=int, default=400, help="passes over the 1,437 images")
    parser.add_argument("--quick", action="store_true", help="one seed, 10 epochs")
    chosen = parser.parse_args()
    seeds, epochs = (1, 10) if chosen.quick else (chosen.seeds, chosen.epochs)
    print(f"{'test accuracy':33}{'mean':>8}{'lowest':>8}{'highest':>8}{'seconds per run':>17}")
    for name, method in METHODS.items():
        begun = time.perf_counter()
        found = [train(method, seed, epochs) for seed in range(seeds)]
        seconds = (time.perf_counter() - begun) / seeds
        print(f"{name:33}{mean(found):8.1%}{min(found):8.1%}{max(found):8.1%}{seconds:17.0f}", flush=True)


if __name__ == "__main__":
    main()
