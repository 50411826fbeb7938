"""An independent interpreter of recorded races: the arithmetic of every step for a small network, in float64.

The network is Linear, Tanh, Linear with cross-entropy. It uses neither autograd nor torch's optimizers: each step is
identified by its text and computed with the current weights.

    F7 0       the forward of the first layer, for batch 7
    F7 2       the forward of the second layer
    B7         the gradients of layer 2 and of its input
    U7 2       the update of layer 2
    B7 2       the gradient of layer 0; belongs to B7 if layer 2 is not updated
    S7 2 1     layer 2 of device 1 becomes that of the worker's device
    drained 7  a barrier, at which the copies of all groups or devices are averaged
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batches(count: int = 12, seed: int = 1, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 4, generator=g, dtype=torch.float64), torch.randint(3, (size,), generator=g))
        for _ in range(count)
    ]


@dataclass
class Weights:
    """One copy of the weights: a matrix and a vector for each layer."""

    matrix: dict[str, Tensor]
    vector: dict[str, Tensor]

    @classmethod
    def of(cls, net: nn.Sequential) -> Weights:
        layers = {name: net.get_submodule(name) for name in ("0", "2")}
        return cls(
            {name: layer.get_parameter("weight").detach().clone() for name, layer in layers.items()},
            {name: layer.get_parameter("bias").detach().clone() for name, layer in layers.items()},
        )


@dataclass
class Flight:
    """What is known of a batch in flight."""

    hidden: Tensor = field(default_factory=lambda: torch.zeros(0))
    scores: Tensor = field(default_factory=lambda: torch.zeros(0))
    below: Tensor = field(default_factory=lambda: torch.zeros(0))  # the gradient of `hidden`
    gradients: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Reader:
    """Executes the lines of a recording.

    Args:
        net: The network before the race.
        data: The batches of all epochs in a row.
        lr: The step size.
        momentum: The momentum of SGD.
        shared: Whether the workers of a copy share the momentum buffers, or each has its own.
        groups: The number of copies of the weights, of groups or devices.
    """

    def __init__(
        self,
        net: nn.Sequential,
        data: Sequence[tuple[Tensor, Tensor]],
        *,
        lr: float,
        momentum: float = 0.0,
        shared: bool = True,
        groups: int = 1,
    ) -> None:
        self.copies = [Weights.of(net) for _ in range(groups)]
        self._data, self._lr, self._momentum, self._shared = data, lr, momentum, shared
        self._flights: dict[int, Flight] = {}
        self._velocity: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def read(self, lines: Sequence[str]) -> Weights:
        self._texts = {line.partition(": ")[2] for line in lines}
        for line in lines:
            worker, _, text = line.partition(": ")
            verb, _, rest = text.partition(" ")
            if verb == "drained":
                self._average()
            elif verb[0] in "FBUS" and verb[1:].isdecimal():
                step = {"F": self._forward, "B": self._backward, "U": self._update, "S": self._send}[verb[0]]
                step(self.copies[copy_of(worker)], worker, int(verb[1:]), rest)
        return self.copies[0]

    def _forward(self, w: Weights, worker: str, n: int, layer: str) -> None:
        x, _ = self._data[n]
        if layer == "0":
            self._flights[n] = Flight(hidden=(x @ w.matrix["0"].T + w.vector["0"]).tanh())
        else:
            self._flights[n].scores = self._flights[n].hidden @ w.matrix["2"].T + w.vector["2"]

    def _backward(self, w: Weights, worker: str, n: int, layer: str) -> None:
        (x, target), flight = self._data[n], self._flights[n]
        if layer == "":
            wrong = flight.scores.softmax(1)
            wrong[range(len(target)), target] -= 1.0
            wrong /= len(target)
            flight.gradients["2"] = wrong.T @ flight.hidden, wrong.sum(0)
            flight.below = wrong @ w.matrix["2"]
        if layer == "2" or (layer == "" and f"B{n} 2" not in self._texts):
            bent = flight.below * (1 - flight.hidden**2)
            flight.gradients["0"] = bent.T @ x, bent.sum(0)

    def _update(self, w: Weights, worker: str, n: int, layer: str) -> None:
        gradients = self._flights[n].gradients[layer]
        key = (str(copy_of(worker)) if self._shared else worker), layer
        before = self._velocity.get(key)
        if before is not None:
            gradients = tuple(self._momentum * v + g for v, g in zip(before, gradients))  # pyright: ignore
        self._velocity[key] = gradients
        w.matrix[layer] = w.matrix[layer] - self._lr * gradients[0]
        w.vector[layer] = w.vector[layer] - self._lr * gradients[1]

    def _send(self, w: Weights, worker: str, n: int, rest: str) -> None:
        layer, to = rest.split()
        self.copies[int(to)].matrix[layer] = w.matrix[layer]
        self.copies[int(to)].vector[layer] = w.vector[layer]

    def _average(self) -> None:
        for layer in ("0", "2"):
            for kind in ("matrix", "vector"):
                mean = sum(getattr(copy, kind)[layer] for copy in self.copies) / len(self.copies)
                for copy in self.copies:
                    getattr(copy, kind)[layer] = mean


def copy_of(worker: str) -> int:
    """The group or device of a worker, by its name."""
    last = worker.split()[-1]
    return int(last) if " of " in worker else 0


def close(net: nn.Sequential, expected: Weights) -> bool:
    """Whether the network has these weights, to 1e-10."""
    found = Weights.of(net)
    pairs = [(getattr(found, kind)[n], getattr(expected, kind)[n]) for kind in ("matrix", "vector") for n in ("0", "2")]
    return all(torch.allclose(a, b, rtol=0, atol=1e-10) for a, b in pairs)
