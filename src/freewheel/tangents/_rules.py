"""Forward derivatives of single functions, for speed or because torch's kernel has none.

A rule has the signature of its function. Each of its tensors may be dual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import _VF, Tensor

from freewheel.tangents._cells import gru, lstm, rnn
from freewheel.tangents._convolution import convolution, joint_conv2d, split_dual
from freewheel.tangents._level import dual
from freewheel.tangents._pooling import max_pool2d

# With few rows, the product with a large matrix is bound by reading it: read it once for values and tangents.
_FEW_ROWS, _LARGE = 16, 2**17


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute y = x·Wᵀ + b; y' = x'·Wᵀ + x·W'ᵀ + b'."""
    (x, dx), (w, dw), (b, db) = split_dual(input), split_dual(weight), split_dual(bias)
    if (dx is None and dw is None) or w.dim() != 2 or x.dim() < 2 or torch.is_autocast_enabled(x.device.type):
        return F.linear(input, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    if dx is None:
        y, dy = F.linear(rows, w, b), F.linear(rows, dw, db)  # pyright: ignore[reportArgumentType]
    else:
        d_rows = dx.reshape(-1, dx.shape[-1])
        if count <= _FEW_ROWS and w.numel() >= _LARGE:
            both = torch.cat([rows, d_rows]) @ w.t()
            y, dy = both[:count], both[count:]
            if b is not None:
                y = y.add_(b)
            if db is not None:
                dy = dy.add_(db)
        else:
            y, dy = F.linear(rows, w, b), F.linear(d_rows, w, db)
        if dw is not None:
            dy = torch.addmm(dy, rows, dw.t())
    shape = (*x.shape[:-1], w.shape[0])
    return dual(y.reshape(shape), dy.reshape(shape))


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Look up values and tangents; padding has none, as in torch's backward, even if its row of the weight has."""
    w, dw = split_dual(weight)
    if dw is None or padding_idx is None:
        return F.embedding(input, weight, padding_idx, *args, **kwargs)
    padding = (input == padding_idx % w.shape[0]).unsqueeze(-1)
    return dual(F.embedding(input, w, padding_idx, *args, **kwargs), F.embedding(input, dw).masked_fill(padding, 0.0))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute y' = J·x' + W'·x̂ + b' with batch statistics.

    The Jacobian J with respect to the input is symmetric, so the backward kernel computes J·x'.
    """
    (x, dx), (w, dw), (b, db) = split_dual(input), split_dual(weight), split_dual(bias)
    if not training or (dx is None and dw is None and db is None) or x.shape[0] * x[0, 0].numel() < 2:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    stats = running_mean, running_var
    y, mean, rstd = torch.native_batch_norm(x, w, b, *stats, True, momentum, eps)
    if dx is not None:
        dy = torch.ops.aten.native_batch_norm_backward(dx, x, w, *stats, mean, rstd, True, eps, [True, False, False])[0]
    else:
        dy = torch.zeros_like(y)
    view = (1, -1, *[1] * (x.dim() - 2))
    if dw is not None:
        by_x = dw * rstd
        add = dy.addcmul_ if dx is not None and dy.dtype == by_x.dtype else dy.addcmul
        dy = add(x, by_x.view(view))
        shift = -by_x * mean
        dy = dy.add_((shift if db is None else shift + db).view(view))
    elif db is not None:
        dy = dy + db.view(view)
    return dual(y, dy.to(y.dtype))  # under autocast, weights are wider than inputs


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute softmax(q·kᵀ·scale + mask)·v step by step: the fused kernels have no forward derivative."""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:  # the kernels return 0 for a query whose keys are all masked
        masked = (scores == -math.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(masked, 0.0).softmax(-1).masked_fill(masked, 0.0)
    return F.dropout(weights, dropout_p) @ value


# torch's function, with the attention above in place of the fused kernels.
multi_head_attention = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "scaled_dot_product_attention": attention, "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Compute v·g/‖v‖, the norm over all dimensions but one."""
    over = [i for i in range(v.dim()) if i != dim % v.dim()] if dim != -1 else None
    return v * (g / torch.linalg.vector_norm(v, dim=over, keepdim=True))


RULES: dict[Any, Callable[..., Any]] = {
    F.linear: linear,
    F.conv1d: convolution(F.conv1d),
    F.conv2d: convolution(F.conv2d),
    F.conv3d: convolution(F.conv3d),
    F.batch_norm: batch_norm,
    F.embedding: embedding,
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head_attention,
    _VF._weight_norm: weight_norm,
    _VF.lstm: lstm,
    _VF.gru: gru,
    _VF.rnn_tanh: rnn(torch.tanh),
    _VF.rnn_relu: rnn(torch.relu),
}
# For compiled passes on a GPU.
FUSED_RULES: dict[Any, Callable[..., Any]] = {
    **RULES,
    F.conv2d: joint_conv2d,
    F.max_pool2d: max_pool2d,
}
