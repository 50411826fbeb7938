"""The contenders of the benchmark of forward gradients: one network, steps by dual numbers and by backpropagation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel.bench._contenders import backprop, timed_steps, timed_trainer
from freewheel.bench._network import OPTIMIZER, Cut, network, stages_of
from freewheel.bench._team import Turn
from freewheel.methods import FGD, AsyncFGD

# A step size at which noisy gradients keep the weights finite throughout a turn.
SMALL = 1e-5


def freewheel_steps(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Freewheel: on one core, and in two stages on two cores, eager and compiled."""
    out: dict[str, Turn] = {}
    for kind, compiled in (("eager", False), ("compiled", True)):
        out[f"fgd, {kind}"] = timed_trainer([network()], FGD(compile=compiled), "simulate", lr=SMALL)
        # Worker processes live for one run, and would compile again in every turn.
        for runtime in ("threads",) if compiled else ("threads", "processes"):
            method = AsyncFGD(compile=compiled)
            out[f"asyncfgd K=2, {kind}, {runtime}"] = timed_trainer(stages_of(cut), method, runtime, lr=SMALL)
    return out


def pytorch_steps(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Plain PyTorch on one core: backpropagation, eager and compiled, and `torch.func.jvp`."""
    eager, compiled = network(), torch.compile(network())
    return {"bp, eager": backprop(eager, lr=SMALL), "bp, compiled": backprop(compiled, lr=SMALL), "func.jvp": _jvp()}


def _jvp() -> Turn:
    """`torch.func.jvp`, which cannot update running statistics, so that the network has none."""
    model = network()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    weights = dict(model.named_parameters())
    optimizer = OPTIMIZER(weights.values(), lr=SMALL)

    @torch.no_grad()
    def step(x: Tensor, target: Tensor) -> None:
        def loss(values: dict[str, Tensor]) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, values, (x,)), target)

        u = {name: torch.randn_like(w) for name, w in weights.items()}
        d = torch.func.jvp(loss, ({name: w.detach() for name, w in weights.items()},), (u,))[1]
        for name, weight in weights.items():
            weight.grad = u[name] * d
        optimizer.step()

    return timed_steps(step)
