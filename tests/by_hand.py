"""Fixed random feedback computed by hand: layer by layer, without autograd, without stages, in float64.

A network is a row of layers. Each weighted layer has its own delay, and so its own versions:

    h_0 = x,  a_l = W_l h_l + b_l,  h_{l+1} = f_l(a_l),  output = a_{L-1},  loss = cross entropy
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ByHand:
    """The trajectory of one method, with SGD and momentum.

    Args:
        net: Linear, Conv2d, Tanh, ReLU, AvgPool2d and Flatten layers in a row.
        method: `bp`, `fa`, `dfa`, `sdfa` or `drtp`.
        feedback: B_l by the layer's number.
        delays: That of each weighted layer.
    """

    def __init__(
        self,
        net: nn.Sequential,
        method: str,
        feedback: dict[int, Tensor],
        delays: Sequence[int],
        lr: float,
        momentum: float,
    ) -> None:
        self.net, self.method, self.feedback, self.delays = net, method, feedback, delays
        self.lr, self.momentum = lr, momentum
        weighted = [layer for layer in net if isinstance(layer, (nn.Linear, nn.Conv2d))]
        self.versions = [[(m.weight.detach().clone(), m.bias.detach().clone())] for m in weighted]
        self.velocity = [(torch.zeros_like(m.weight), torch.zeros_like(m.bias)) for m in weighted]

    def train(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The weights and biases after all batches."""
        for n, (x, y) in enumerate(batches):
            for at, gradient in enumerate(self.gradients(n, x, y)):
                moved = tuple(self.momentum * v + g for v, g in zip(self.velocity[at], gradient))
                self.velocity[at] = moved
                self.versions[at].append(tuple(w - self.lr * v for w, v in zip(self.versions[at][-1], moved)))
        return [t for versions in self.versions for t in versions[-1]]

    def gradients(self, n: int, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Those of batch n, each at the version that its layer forwards it with."""
        seen = [versions[max(0, n - late)] for versions, late in zip(self.versions, self.delays)]
        values, numbers, at = [x], [], 0
        for layer in self.net:
            numbers.append(at)
            if isinstance(layer, nn.Linear):
                values.append(values[-1] @ seen[at][0].T + seen[at][1])
            elif isinstance(layer, nn.Conv2d):
                values.append(convolved(layer, *seen[at], values[-1]))
            else:
                values.append(layer(values[-1]).detach())
            at += isinstance(layer, (nn.Linear, nn.Conv2d))
        size, classes = len(x), values[-1].shape[1]
        one_hot = torch.eye(classes, dtype=x.dtype)[y]
        e = (values[-1].softmax(1) - one_hot) / size
        signal = {"dfa": e, "sdfa": e.sign() / size, "drtp": one_hot / size}.get(self.method)
        found: list[tuple[Tensor, Tensor]] = []
        g = e
        for layer, at, before, after in reversed(list(zip(self.net, numbers, values, values[1:]))):
            if not isinstance(layer, (nn.Linear, nn.Conv2d)):
                g = through(layer, before, after, g)
                continue
            if isinstance(layer, nn.Linear):
                found.append((g.T @ before, g.sum(0)))
            else:
                patches = F.unfold(before, layer.kernel_size, padding=layer.padding, stride=layer.stride)
                own = torch.einsum("nop,nip->oi", g.flatten(2), patches).view(layer.weight.shape)
                found.append((own, g.sum((0, 2, 3))))
            if signal is not None and at:
                g = torch.einsum("nc,cj->nj", signal, self.feedback[at].flatten(1)).view(before.shape)
            elif at:
                back = self.feedback[at] if self.method == "fa" else seen[at][0]
                g = g @ back if isinstance(layer, nn.Linear) else convolved_back(layer, back, before, g)
        return found[::-1]


def convolved(layer: nn.Conv2d, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    patches = F.unfold(x, layer.kernel_size, padding=layer.padding, stride=layer.stride)
    sides = [
        (s + 2 * p - k) // t + 1 for s, p, k, t in zip(x.shape[2:], layer.padding, layer.kernel_size, layer.stride)
    ]
    return (weight.flatten(1) @ patches + bias[:, None]).view(len(x), -1, *sides)


def convolved_back(layer: nn.Conv2d, weight: Tensor, x: Tensor, g: Tensor) -> Tensor:
    patches = weight.flatten(1).T @ g.flatten(2)
    return F.fold(patches, x.shape[2:], layer.kernel_size, padding=layer.padding, stride=layer.stride)


def through(layer: nn.Module, before: Tensor, after: Tensor, g: Tensor) -> Tensor:
    """The derivative of a layer without weights."""
    if isinstance(layer, nn.Tanh):
        return g * (1 - after**2)
    if isinstance(layer, nn.ReLU):
        return g * (after > 0)
    if isinstance(layer, nn.Flatten):
        return g.view(before.shape)
    assert isinstance(layer, nn.AvgPool2d)
    k = layer.kernel_size
    return g.repeat_interleave(k, 2).repeat_interleave(k, 3) / k**2
