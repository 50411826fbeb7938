"""An independent computation of every chain method, straight from its definition.

There is no schedule here, no queue and no optimizer of torch: each quantity is a memoised function of a stage and a
batch (or a version), and asks for what it is made of.

    weights(k, v)  = weights(k, v-1) stepped along gradient(k, v-1)        batch n's gradient is update number n
    input(k, n)    = the batch itself, or output(k-1, n)
    output(k, n)   = stage k on input(k, n) at forward_weights(k, n)
    gradient(k, n) = what batch n gives stage k, and the cotangent that it sends to stage k-1

Stages, batches and versions count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn.grad import conv2d_input, conv2d_weight

Tensors = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


class Rule(Protocol):
    """An optimizer as a pure function: weights, gradient, its own state (None at first), number of steps made."""

    def __call__(
        self, weights: Tensors, gradient: Tensors, state: object, steps: int, scale: float
    ) -> tuple[Tensors, object]: ...


@dataclass(frozen=True)
class SGD:
    """v = μ v + g, w = w - lr v; the first v is g."""

    lr: float
    momentum: float = 0.0

    def __call__(
        self, weights: Tensors, gradient: Tensors, state: object, steps: int, scale: float
    ) -> tuple[Tensors, object]:
        before = state if isinstance(state, dict) else {name: torch.zeros_like(w) for name, w in weights.items()}
        v = {name: self.momentum * before[name] + gradient[name] for name in weights}
        return {name: w - self.lr * scale * v[name] for name, w in weights.items()}, v


@dataclass(frozen=True)
class Adam:
    """m = a m + (1-a) g, v = b v + (1-b) g², w = w - lr (m / (1-a^t)) / (√(v / (1-b^t)) + ε)."""

    lr: float
    a: float = 0.9
    b: float = 0.999
    epsilon: float = 1e-8

    def __call__(
        self, weights: Tensors, gradient: Tensors, state: object, steps: int, scale: float
    ) -> tuple[Tensors, object]:
        zeros = {name: torch.zeros_like(w) for name, w in weights.items()}
        m, v = state if isinstance(state, tuple) else (zeros, zeros)
        m = {name: self.a * m[name] + (1 - self.a) * gradient[name] for name in weights}
        v = {name: self.b * v[name] + (1 - self.b) * gradient[name] ** 2 for name in weights}
        t = steps + 1

        def move(name: str) -> Tensor:
            return (m[name] / (1 - self.a**t)) / ((v[name] / (1 - self.b**t)).sqrt() + self.epsilon)

        return {name: w - self.lr * scale * move(name) for name, w in weights.items()}, (m, v)


class Version(NamedTuple):
    """A stage after some number of batches."""

    weights: Tensors
    state: object  # the optimizer's
    steps: int  # those the optimizer has made
    drift: Tensors  # δ, the decaying mean of the moves
    pending: list[Tensors]  # gradients that wait for a step


class Gradient(NamedTuple):
    """What a batch gives a stage, and what the stage passes on."""

    weights: Tensors
    input: Tensor


class Reference:
    """The trajectory of one method on given stages and batches.

    Args:
        stages: Modules that map one tensor to one tensor; copied, and left as they are.
        batches: (input, target) pairs, all of them.
        delays: m_k.
        order: `forward` or `backward` first.
        weights: `stash`, `recompute`, `current` (for the layers that `layer_back` knows) or `predict`.
        shrink: β.
        anneal: T of the staleness-scaled step, 0 for none.
        decay: That of the discrepancy correction, None for none.
        compensation: λ.
        every: Batches a step.
        schedule: A factor of the step size, of a number of batches.
        leads: Whether that number is the batch which the stage forwards in the round (FDG, eq. 11).
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        batches: Sequence[tuple[Tensor, Tensor]],
        *,
        loss: Loss,
        rule: Rule,
        delays: Sequence[int],
        order: str = "forward",
        weights: str = "stash",
        shrink: float = 1.0,
        anneal: float = 0,
        decay: float | None = None,
        compensation: float = 0.0,
        every: int = 1,
        schedule: Callable[[int], float] = lambda n: 1.0,
        leads: bool = False,
    ) -> None:
        assert len(delays) == len(stages)
        self.stages = [without_statistics(stage) for stage in stages]
        self.batches, self.loss, self.rule = batches, loss, rule
        self.delays, self.order, self.kind = tuple(delays), order, weights
        self.shrink, self.anneal, self.decay = shrink, anneal, decay
        self.compensation, self.every = compensation, every
        self.schedule, self.leads = schedule, leads
        for name in ("version", "input", "output", "gradient"):
            setattr(self, name, cache(getattr(self, name)))

    def train(self) -> list[Tensors]:
        """The weights of every stage after all batches."""
        for n in range(len(self.batches)):  # in order, so that no recursion goes deep
            for k in reversed(range(len(self.stages))):
                self.version(k, n + 1)
        return [self.weights(k, len(self.batches)) for k in range(len(self.stages))]

    # Which version is seen, by section 2 of the design. -----------------------------------------------------------

    def forward_version(self, k: int, n: int) -> int:
        late = self.delays[k]
        if self.order == "backward" and late > 0:
            return max(0, n - late + 1)
        return max(0, n - late)

    def backward_version(self, k: int, n: int) -> int:
        return n

    # The weights. -------------------------------------------------------------------------------------------------

    def weights(self, k: int, v: int) -> Tensors:
        return self.version(k, v).weights

    def forward_weights(self, k: int, n: int) -> Tensors:
        v = self.forward_version(k, n)
        now = self.weights(k, v)
        if self.kind != "predict" or not self.delays[k]:
            return now
        steps = self.delays[k] if self.order == "forward" else self.delays[k] - 1
        before = self.weights(k, max(0, v - 1))
        return {name: w + steps * (w - before[name]) for name, w in now.items()}

    def version(self, k: int, v: int) -> Version:
        if v == 0:
            first = {name: p.detach().clone() for name, p in self.stages[k].named_parameters()}
            return Version(first, None, 0, {name: torch.zeros_like(w) for name, w in first.items()}, [])
        n, old = v - 1, self.version(k, v - 1)
        gradient = self.gradient(k, n).weights
        if self.compensation and self.delays[k]:
            then = self.forward_weights(k, n)
            gradient = {
                name: g + self.compensation * g * g * (old.weights[name] - then[name]) for name, g in gradient.items()
            }
        pending = [*old.pending, gradient]
        if len(pending) < self.every:
            return old._replace(pending=pending)
        mean = {name: torch.stack([g[name] for g in pending]).mean(0) for name in gradient}
        at = min(n + self.delays[k], len(self.batches)) if self.leads else n
        scale = self.step_scale(k, n) * self.schedule(at)
        new, state = self.rule(old.weights, mean, old.state, old.steps, scale)
        return Version(new, state, old.steps + 1, self.drift(k, old, new), [])

    def step_scale(self, k: int, t: int) -> float:
        if not self.anneal or not self.delays[k]:
            return 1.0
        return self.delays[k] ** -(1 - min(t / self.anneal, 1))

    def drift(self, k: int, old: Version, new: Tensors) -> Tensors:
        if self.decay is None or not self.delays[k]:
            return old.drift
        gamma = self.decay ** (1 / self.delays[k])
        return {name: gamma * old.drift[name] + (1 - gamma) * (new[name] - w) for name, w in old.weights.items()}

    # The passes. --------------------------------------------------------------------------------------------------

    def input(self, k: int, n: int) -> Tensor:
        return self.batches[n][0] if k == 0 else self.output(k - 1, n)

    def output(self, k: int, n: int) -> Tensor:
        return functional_call(self.stages[k], self.forward_weights(k, n), (self.input(k, n),)).detach()

    def gradient(self, k: int, n: int) -> Gradient:
        if self.kind == "current":
            return self.mixed_gradient(k, n)
        if self.kind == "recompute":
            weights = self.weights(k, self.backward_version(k, n))
        else:
            weights = self.forward_weights(k, n)
        last = k == len(self.stages) - 1
        if last and self.kind == "recompute":  # the loss is that of the forward (eq. 5 of DSP)
            _, pull = vjp(lambda w, x: functional_call(self.stages[k], w, (x,)), weights, self.input(k, n))
            return Gradient(*pull(self.received(k, n)))

        def run(weights: Tensors, x: Tensor) -> Tensor:
            y = functional_call(self.stages[k], weights, (x,))
            return self.loss(y, self.batches[n][1]) if last else y

        y, pull = vjp(run, weights, self.input(k, n))
        return Gradient(*pull(torch.ones_like(y) if last else self.received(k, n)))

    def received(self, k: int, n: int) -> Tensor:
        """What comes from the next stage, shrunk; at the last stage the loss's own derivative, as it is."""
        if k < len(self.stages) - 1:
            return self.shrink * self.gradient(k + 1, n).input
        y, pull = vjp(lambda y: self.loss(y, self.batches[n][1]), self.output(k, n))
        return pull(torch.ones_like(y))[0]

    def mixed_gradient(self, k: int, n: int) -> Gradient:
        """The activations of the forward with the weights of the backward, layer by layer, by hand."""
        then, late = self.forward_weights(k, n), self.version(k, self.backward_version(k, n))
        layers = list(self.stages[k].named_children())
        held = [self.input(k, n)]  # what goes into each layer, and what comes out of the last
        for name, layer in layers:
            held.append(functional_call(layer, part(then, name), (held[-1],)))
        used = {name: w - self.delays[k] * late.drift[name] for name, w in late.weights.items()}
        found: Tensors = {}
        g = self.received(k, n)
        for (name, layer), x, y in reversed(list(zip(layers, held, held[1:]))):
            own, g = layer_back(layer, part(used, name).get("weight"), x, y, g)
            found |= {f"{name}.{p}": d for p, d in own.items()}
        return Gradient(found, g)


def part(weights: Tensors, name: str) -> Tensors:
    """Those of one layer, by their names in it."""
    return {key.removeprefix(f"{name}."): w for key, w in weights.items() if key.startswith(f"{name}.")}


def layer_back(layer: nn.Module, weight: Tensor | None, x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensors, Tensor]:
    """The derivatives of a layer by its parameters and by its input x, with the given weight for the latter."""
    if isinstance(layer, nn.Tanh):
        return {}, g * (1 - y**2)
    if isinstance(layer, nn.Flatten):
        return {}, g.reshape(x.shape)
    assert weight is not None
    if isinstance(layer, nn.Linear):
        return {"weight": g.T @ x, "bias": g.sum(0)}, g @ weight
    if isinstance(layer, nn.Conv2d):
        own = conv2d_weight(x, list(weight.shape), g, padding=layer.padding)
        back = conv2d_input(list(x.shape), weight, g, padding=layer.padding)
        return {"weight": own, "bias": g.sum((0, 2, 3))}, back
    assert isinstance(layer, nn.BatchNorm1d)
    scale = (x.var(0, correction=0) + layer.eps).sqrt()
    z = (x - x.mean(0)) / scale
    return {"weight": (g * z).sum(0), "bias": g.sum(0)}, weight / scale * (g - g.mean(0) - z * (g * z).mean(0))


def without_statistics(stage: nn.Module) -> nn.Module:
    """A copy whose BatchNorm layers keep no running statistics: what they compute in training is the same."""
    stage = deepcopy(stage)
    for module in stage.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return stage


def distance(stages: Sequence[nn.Module] | Sequence[Tensors], weights: Sequence[Tensors]) -> float:
    """The largest difference of any weight of any stage."""
    worst = 0.0
    for stage, expected in zip(stages, weights, strict=True):
        found = dict(stage.named_parameters()) if isinstance(stage, nn.Module) else stage
        assert found.keys() == expected.keys()
        for name, w in expected.items():
            difference = (found[name].detach() - w).abs().max().item()
            worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst
