"""Recurrent layers step by step, for kernels without a forward derivative: all on GPUs, the LSTM also on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import _VF, Tensor

State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Tensor, Tensor | None], State]  # input product, state, hidden weight and bias

# Arguments of torch's kernels: input, states, weights, has biases, layers, dropout, training, bidirectional, batch
# first. Packed sequences have other arguments and always use the kernels.


def _lstm_step(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    h, c = state
    i, f, g, o = (x + F.linear(h, w, b)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    (h,) = state
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), F.linear(h, w, b).chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return ((1 - z) * n + z * h,)


def _layers(
    step: Step,
    x: Tensor,
    states: State,
    weights: list[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, State]:
    """Run a stack of recurrent layers; `states` are (layers·directions, batch, size) each."""
    if batch_first:
        x = x.transpose(0, 1)
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    projected = each % 2 == 1  # an LSTM with `proj_size`
    last_states: list[State] = []
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            n = layer * directions + direction
            group = weights[n * each : (n + 1) * each]
            w_in, w_hidden = group[0], group[1]
            b_in, b_hidden = (group[2], group[3]) if has_biases else (None, None)
            state = tuple(s[n] for s in states)
            steps: list[Tensor] = []
            products = F.linear(x, w_in, b_in).unbind(0)
            for product in reversed(products) if direction else products:
                state = step(product, state, w_hidden, b_hidden)
                if projected:
                    state = (F.linear(state[0], group[-1]), *state[1:])
                steps.append(state[0])
            last_states.append(state)
            outs.append(torch.stack(steps[::-1] if direction else steps))
        x = torch.cat(outs, -1) if directions == 2 else outs[0]
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout)
    if batch_first:
        x = x.transpose(0, 1)
    return x, tuple(torch.stack(s) for s in zip(*last_states))


def _native(args: tuple[Any, ...]) -> bool:
    """Whether to use torch's kernel."""
    return args[0].device.type == "cpu" or _packed(args)


def _packed(args: tuple[Any, ...]) -> bool:
    return not isinstance(args[3], bool)


def lstm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run `torch.lstm` step by step on every device."""
    if _packed(args):
        return _VF.lstm(*args)
    out, (h, c) = _layers(_lstm_step, args[0], tuple(args[1]), *args[2:])
    return out, h, c


def gru(*args: Any) -> tuple[Tensor, Tensor]:
    """Run `torch.gru`, step by step on GPUs."""
    if _native(args):
        return _VF.gru(*args)
    out, (h,) = _layers(_gru_step, args[0], (args[1],), *args[2:])
    return out, h


def rnn(activation: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `torch.rnn_tanh` or `torch.rnn_relu`, step by step on GPUs."""
    kernel = _VF.rnn_tanh if activation is torch.tanh else _VF.rnn_relu

    def step(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
        return (activation(x + F.linear(state[0], w, b)),)

    def run(*args: Any) -> tuple[Tensor, Tensor]:
        if _native(args):
            return kernel(*args)
        out, (h,) = _layers(step, args[0], (args[1],), *args[2:])
        return out, h

    return run
