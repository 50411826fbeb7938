"""The contenders of the benchmark of forward gradients: one network, steps by dual numbers and by backpropagation."""

from __future__ import annotations

import torch

from freewheel.bench._contenders import backprop, timed_steps, timed_trainer
from freewheel.bench._jvp import jvp_step
from freewheel.bench._network import OPTIMIZER, Cut, compiled_cut, network, stages_of
from freewheel.bench._team import Turn
from freewheel.methods import FGD, AsyncFGD

# A step size at which noisy gradients keep the weights finite throughout a turn.
SMALL = 1e-5


def freewheel_steps(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Freewheel: on one core, and in two stages on two cores, eager and compiled."""
    out: dict[str, Turn] = {}
    for kind, compiled in (("eager", False), ("compiled", True)):
        out[f"fgd, {kind}"] = timed_trainer([network()], FGD(), "simulate", compile=compiled, lr=SMALL)
        if compiled:
            cut = compiled_cut(cut, batch_size, AsyncFGD(), lr=SMALL)
        for runtime in ("threads", "processes"):
            stages, options = stages_of(cut), {"compile": compiled, "lr": SMALL}
            out[f"asyncfgd K=2, {kind}, {runtime}"] = timed_trainer(stages, AsyncFGD(), runtime, **options)
    return out


def pytorch_steps(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Plain PyTorch on one core: backpropagation, eager and compiled, and `torch.func.jvp`."""
    eager, compiled = network(), torch.compile(network())
    return {"bp, eager": backprop(eager, lr=SMALL), "bp, compiled": backprop(compiled, lr=SMALL), "func.jvp": _jvp()}


def _jvp() -> Turn:
    model = network()
    return timed_steps(jvp_step(model, OPTIMIZER(model.parameters(), lr=SMALL)))
