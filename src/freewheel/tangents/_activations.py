"""Activity perturbation: tangents on the pre-activations of Linear and Conv2d layers instead of their weights.

Paper: Ren et al., Scaling forward gradient with local losses, 2022 (section 3). A layer z = W·x + b moves z by
v ~ N(0, I), and the output's directional derivative is taken per sample, d_s. Then Σ_s d_s·v_s ⊗ x_s estimates the
gradient by W and Σ_s d_s·v_s that by b, with a variance that grows with the number of neurons and not of weights. It is
unbiased where samples do not influence each other; BatchNorm in train mode mixes them, and what passes through its
statistics is left out of d_s. The price is that the inputs x are held until d is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from freewheel.tangents._level import dual

if TYPE_CHECKING:
    from freewheel.tangents._directions import Directions, PendingBatch


class Move(NamedTuple):
    """One use of a layer whose output was moved."""

    weight: int  # the weight's number among the stage's parameters
    bias: int | None
    x: Tensor
    version: int  # of x: how often it had been changed in key
    shape: torch.Size  # of the output
    use: int  # how many uses of the weight came before in the same pass
    conv: tuple[Any, ...] | None  # stride, padding, dilation and groups of a convolution
    lasts: bool = False  # whether later pieces of a sequence feel it, through the state of a recurrent layer


class Mover:
    """Runs Linear and Conv2d layers with moved outputs, and remembers their inputs."""

    def __init__(self, directions: Directions, pending: PendingBatch, key: tuple[int, int]) -> None:
        self._directions, self._pending, self._tangent_key = directions, pending, key
        self._uses: dict[int, int] = {}
        self._moves: list[Move] = []
        self._lasting = 0  # how many of them came before a recurrent layer
        self.rules: dict[Any, Callable[..., Any]] = {F.linear: self._linear, F.conv2d: self._conv2d}

    def recurs(self) -> None:
        """A layer has run that keeps a state for the next piece of a sequence."""
        self._lasting = len(self._moves)

    def moves(self, *, lasting: bool) -> list[Move]:
        """What was moved; `lasting` tells that there are recurrent layers in later stages."""
        return [move._replace(lasts=lasting or i < self._lasting) for i, move in enumerate(self._moves)]

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if input.dim() < 2:
            return NotImplemented
        return self._moved(F.linear, input, weight, bias, None)

    def _conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if isinstance(padding, str) or input.dim() != 4:
            return NotImplemented
        conf = (_pair(stride), _pair(padding), _pair(dilation), groups)
        return self._moved(F.conv2d, input, weight, bias, conf)

    def _moved(self, layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None, conv: tuple[Any, ...] | None) -> Any:
        index = self._directions.index_of(weight)
        other = None if bias is None else self._directions.index_of(bias)
        if index is None or (bias is not None and other is None):
            return NotImplemented  # a weight made from parameters: they have tangents themselves
        plain = None if bias is None else bias.detach()
        value, tangent = unpack_dual(layer(x, weight.detach(), plain, *(conv or ())))
        alpha = self._directions.alpha_of_move(self._pending, index, other)
        if alpha == 0:
            return value if tangent is None else dual(value, tangent)
        use = self._uses.get(index, 0)
        self._uses[index] = use + 1
        move = Move(index, other, unpack_dual(x).primal, x._version, value.shape, use, conv)
        self._moves.append(move)
        v = self._directions.draw_move(self._pending, self._tangent_key, move).mul_(alpha).to(value.dtype)
        return dual(value, v if tangent is None else v.add_(tangent))


def gradients(move: Move, v: Tensor, d: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The estimates by the weight and by the bias: v per sample times d of that sample, with the input."""
    if move.x._version != move.version:
        raise RuntimeError(
            "perturb='activations': the input of a Linear or Conv2d layer was changed in key after the layer had "
            "used it: change a copy, such as x + 1 in key of x.add_(1)"
        )
    g = v * d.to(v).view(-1, *[1] * (v.dim() - 1))
    if move.conv is None:
        rows = g.reshape(-1, g.shape[-1])
        return rows.t() @ move.x.reshape(-1, move.x.shape[-1]).to(rows), rows.sum(0)
    stride, padding, dilation, groups = move.conv
    by_weight = torch.ops.aten.convolution_backward(
        g, move.x.to(g), weight, None, stride, padding, dilation, False, (0, 0), groups, (False, True, False)
    )[1]
    return by_weight, g.sum((0, 2, 3))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
