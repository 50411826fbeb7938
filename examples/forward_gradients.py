"""Learning without a backward pass: forward gradients on real handwritten digits, synchronous and asynchronous.

It trains one small network by three methods, each with several seeds, and prints a table of test accuracies.

    python examples/forward_gradients.py       # ten minutes; with --quick a few batches
"""

import sys
import time
from functools import partial
from statistics import mean

import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw

QUICK = "--quick" in sys.argv
SEEDS, EPOCHS = (1, 2) if QUICK else (3, 400)

METHODS = {
    "fgd": fw.FGD(),
    "asyncfgd": fw.AsyncFGD(),
    "asyncfgd, perturbed activations": fw.AsyncFGD(perturb="activations"),
}


def accuracy(method: fw.Method, seed: int) -> float:
    """Train a network of three stages by a method; with `asyncfgd` they are 2, 1 and 0 updates late."""
    data = fw.data.load("digits", seed=seed, train_limit=320 if QUICK else None)
    torch.manual_seed(seed)
    stages = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh()),
        nn.Sequential(nn.Linear(64, 64), nn.Tanh()),
        nn.Linear(64, 10),
    ]
    trainer = fw.Trainer(
        stages,
        method=method,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.Adam, lr=2.5e-3),
        scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=EPOCHS * len(data.train)),
        runtime="simulate",  # gives the same weights as threads, which layers this small would not keep busy
        seed=seed,
        threads=1,
    )
    trainer.fit(data.train, EPOCHS)
    return trainer.evaluate(data.test).metric


print(f"{'test accuracy':33}{'mean':>8}{'lowest':>8}{'highest':>8}{'seconds per run':>17}")
for name, method in METHODS.items():
    begun = time.perf_counter()
    found = [accuracy(method, seed) for seed in range(SEEDS)]
    seconds = (time.perf_counter() - begun) / SEEDS
    print(f"{name:33}{mean(found):8.1%}{min(found):8.1%}{max(found):8.1%}{seconds:17.0f}", flush=True)
