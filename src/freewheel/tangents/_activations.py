"""Activity perturbation: tangents on the pre-activations of Linear and Conv2d layers instead of their weights.

Paper: Ren et al., Scaling forward gradient with local losses, 2022 (section 3). The output of a layer z = W·x + b is
perturbed by v ~ N(0, I), and the directional derivative d_s is taken per sample. Σ_s d_s·v_s ⊗ x_s estimates the
gradient of W and Σ_s d_s·v_s that of b, with a variance that grows with the number of neurons, not weights. The
estimate is unbiased if samples are independent; BatchNorm in train mode mixes them, and d_s omits the path through its
statistics. The inputs x must be stored until d is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.modules.utils import _pair

from freewheel.tangents._level import dual

if TYPE_CHECKING:
    from freewheel.tangents._directions import Directions, PendingBatch


class Perturbation(NamedTuple):
    """One use of a layer whose output was perturbed."""

    weight: int  # the weight's index among the stage's parameters
    bias: int | None
    x: Tensor
    version: int  # of x, autograd's counter of in-place changes
    shape: torch.Size  # of the output
    use: int  # earlier uses of the weight in the same pass
    conv: tuple[Any, ...] | None  # stride, padding, dilation and groups of a convolution
    persists: bool = False  # whether it affects later micro-batches of a sequence, through a recurrent state


class Perturber:
    """Runs Linear and Conv2d layers with perturbed outputs, and stores their inputs."""

    def __init__(self, directions: Directions, pending: PendingBatch, key: tuple[int, int]) -> None:
        self._directions, self._pending, self._tangent_key = directions, pending, key
        self._uses: dict[int, int] = {}
        self._perturbations: list[Perturbation] = []
        self._before_recurrent = 0  # the number of perturbations before the last recurrent layer
        self.rules: dict[Any, Callable[..., Any]] = {F.linear: self._linear, F.conv2d: self._conv2d}

    def after_recurrent(self) -> None:
        """Note that a layer has run that carries its state to the next micro-batch."""
        self._before_recurrent = len(self._perturbations)

    def perturbations(self, *, persist: bool) -> list[Perturbation]:
        """Return the perturbations; all persist if a later stage has recurrent layers."""
        before = self._before_recurrent
        return [each._replace(persists=persist or i < before) for i, each in enumerate(self._perturbations)]

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if input.dim() < 2:
            return NotImplemented
        return self._perturbed(F.linear, input, weight, bias, None)

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
        return self._perturbed(F.conv2d, input, weight, bias, conf)

    def _perturbed(
        self, layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None, conv: tuple[Any, ...] | None
    ) -> Any:
        index = self._directions.index_of(weight)
        other = None if bias is None else self._directions.index_of(bias)
        if index is None or (bias is not None and other is None):
            return NotImplemented  # a weight computed from parameters, which have tangents themselves
        plain = None if bias is None else bias.detach()
        value, tangent = unpack_dual(layer(x, weight.detach(), plain, *(conv or ())))
        alpha = self._directions.activation_alpha(self._pending, index, other)
        if alpha == 0:
            return value if tangent is None else dual(value, tangent)
        use = self._uses.get(index, 0)
        self._uses[index] = use + 1
        perturbation = Perturbation(index, other, unpack_dual(x).primal, x._version, value.shape, use, conv)
        self._perturbations.append(perturbation)
        v = self._directions.draw_perturbation(self._pending, self._tangent_key, perturbation)
        v = v.mul_(alpha).to(value.dtype)
        return dual(value, v if tangent is None else v.add_(tangent))


def gradients(perturbed: Perturbation, v: Tensor, d: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the estimated gradients of the weight and the bias from v and d, per sample, and the layer's input."""
    x = perturbed.x
    if x._version != perturbed.version:
        raise RuntimeError(
            "perturb='activations': the input of a Linear or Conv2d layer was changed in place after the layer had "
            "used it: change a copy, such as x + 1 in place of x.add_(1)"
        )
    g = v * d.to(v).view(-1, *[1] * (v.dim() - 1))
    if perturbed.conv is None:
        rows = g.reshape(-1, g.shape[-1])
        return rows.t() @ x.reshape(-1, x.shape[-1]).to(rows), rows.sum(0)
    stride, padding, dilation, groups = perturbed.conv
    by_weight = torch.ops.aten.convolution_backward(
        g, x.to(g), weight, None, stride, padding, dilation, False, (0, 0), groups, (False, True, False)
    )[1]
    return by_weight, g.sum((0, 2, 3))
