"""Recurrent layers that carry their state from one micro-batch of a sequence to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from freewheel._errors import of_type


class Recurrent(nn.Module):
    """An `nn.RNN`, `nn.GRU` or `nn.LSTM` that returns its outputs and carries its state between micro-batches.

    In a run that splits sequences along time (`steps=…`) the layer continues from the state after the previous
    micro-batch; a new sequence starts from zero. Any other call, as in evaluation, starts from zero.

    Args:
        layer: The layer, with `batch_first=True`, unidirectional.
        last: Whether to return the output of the last step only, to classify a sequence.

    Example:
        >>> import torch
        >>> layer = Recurrent(nn.GRU(4, 8, batch_first=True))
        >>> layer(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 5, 8])
        >>> Recurrent(nn.LSTM(4, 8, batch_first=True), last=True)(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 8])
    """

    def __init__(self, layer: nn.RNNBase, *, last: bool = False) -> None:
        super().__init__()
        of_type("layer", layer, nn.RNNBase, "give an nn.RNN, nn.GRU or nn.LSTM")
        if not layer.batch_first or layer.bidirectional:
            raise ValueError("layer must have batch_first=True and be unidirectional, since sequences are split")
        self.layer, self.last = layer, last
        self.state: Any = None
        self._carries = self._called = False
        self._after: Callable[[], None] | None = None

    def carry_state(self, on: bool) -> None:
        """Set whether the state is carried from one call to the next, and reset it."""
        self._carries = on
        self.set_state(None)

    def set_state(self, state: Any, after: Callable[[], None] | None = None) -> None:
        """Set the state for the next call, None for zero, and a function to call at its end."""
        self.state, self._called, self._after = state, False, after

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all steps, or of the last."""
        if x.dim() != 3:
            raise ValueError(f"a Recurrent layer takes (samples, steps, features), got {tuple(x.shape)}")
        if self._called:
            raise RuntimeError("a Recurrent layer is called twice in one pass: with steps=…, use one layer per call")
        out, state = self.layer(x, self.state)
        if self._carries:
            self.state, self._called = state, True
        if self._after is not None:
            self._after()
        return out[:, -1] if self.last else out

    def extra_repr(self) -> str:
        """Show the option."""
        return f"last={self.last}"


def recurrent_layers(module: nn.Module) -> list[Recurrent]:
    """Return the `Recurrent` layers of a module."""
    return [layer for layer in module.modules() if isinstance(layer, Recurrent)]


def check_split_along_time(module: nn.Module) -> None:
    """Reject recurrent layers that would lose their state between the micro-batches of a sequence."""
    wrapped = {id(layer.layer) for layer in recurrent_layers(module)}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase) and id(layer) not in wrapped:
            raise TypeError(
                f"{name!r} would lose its state between the micro-batches of a sequence: with steps=…, use "
                f"fw.Recurrent(nn.{type(layer).__name__}(...)) instead"
            )
