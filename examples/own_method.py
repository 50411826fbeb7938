"""A method and a correction of one's own: how much staleness does a network bear, and does the correction help?

The method makes PipeDream's delays `factor` times as long. The correction lets no late gradient be larger than those
before it were on average. Both work on every runtime, and in plans and checkpoints, without a change to the library.

    python examples/own_method.py              # a minute; with --quick a few batches
"""

import sys
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw

QUICK = "--quick" in sys.argv


@dataclass(frozen=True)
class Calm(fw.Correction):
    """Cap the norm of a late gradient at the running mean of the norms before."""

    decay: float = 0.95

    def applies(self, site):  # a stage without a delay needs no correction
        return site.delay > 0

    def init(self, site, weights):  # the state, which a checkpoint contains; nothing is stored on `self`
        return {"usual": torch.full((), torch.inf)}

    def update(self, step, state):  # between the backward and the step of the optimizer
        norm = torch.stack([g.norm() for g in step.gradients if g is not None]).norm()
        capped = torch.minimum(norm, state["usual"])
        gradients = fw.map_gradients(lambda g: g * (capped / norm), step.gradients)
        usual = torch.where(state["usual"].isinf(), norm, torch.lerp(capped, state["usual"], self.decay))
        return step._replace(gradients=gradients), {"usual": usual}


@dataclass(frozen=True, kw_only=True)
class Later(fw.Method):
    """PipeDream, `factor` times as late."""

    name: ClassVar[str] = "later"
    factor: int = 1
    corrections: tuple[fw.Correction, ...] = ()

    def pipeline(self, k):  # delays, order, weights, credit and corrections of k stages
        delays = tuple(self.factor * (k - 1 - stage) for stage in range(k))
        return fw.Pipeline(title=self.name, delays=delays, corrections=self.corrections)


def accuracy(method: fw.Method, seed: int) -> float:
    """Train a perceptron in four stages on digits."""
    data = fw.data.load("digits", seed=seed, train_limit=128 if QUICK else None)
    torch.manual_seed(seed)
    sizes = [64, 64, 64, 64, 10]
    stages = [nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(a, b)) for a, b in pairwise(sizes)]
    optimizer = partial(torch.optim.SGD, lr=0.1)
    trainer = fw.Trainer(stages, method=method, loss=F.cross_entropy, optimizer=optimizer, runtime="simulate")
    trainer.fit(data.train, epochs=1 if QUICK else 15)
    return trainer.evaluate(data.test).metric


print(fw.plan(Later(factor=2), k=3, batches=4))
print("\ntest accuracy  as it is  with Calm")
for factor in (0, 1) if QUICK else (0, 1, 2, 4, 8):
    plain, calm = (
        mean(accuracy(Later(factor=factor, corrections=corrections), seed) for seed in range(1 if QUICK else 3))
        for corrections in ((), (Calm(),))
    )
    print(f"{factor} times as late {plain:8.1%} {calm:10.1%}", flush=True)
