"""Recurrent layers that go on from one piece of a sequence to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Recurrent(nn.Module):
    """An `nn.RNN`, `nn.GRU` or `nn.LSTM` that passes on its outputs, and keeps its state between pieces in a pipeline.

    In a run that cuts sequences along time (`steps=…`) the layer goes on from where the piece before ended, its state a
    dual number like everything else; a new sequence starts from zero. Called in any other way, as for evaluation, it
    starts from zero every time.

    Args:
        layer: The layer, with `batch_first=True`, one direction.
        last: Whether to pass on the output of the last step only, to classify a sequence.

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
        if not isinstance(layer, nn.RNNBase):
            raise TypeError(f"layer is a {type(layer).__name__}: give an nn.RNN, nn.GRU or nn.LSTM")
        if not layer.batch_first or layer.bidirectional:
            raise ValueError("layer must have batch_first=True and one direction, since time comes in pieces")
        self.layer, self.last = layer, last
        self.state: Any = None
        self._streams = self._called = False
        self._after: Callable[[], None] | None = None

    def stream(self, on: bool) -> None:
        """Whether the state is kept from one call to the next; forgets it."""
        self._streams = on
        self.go_on(None)

    def go_on(self, state: Any, after: Callable[[], None] | None = None) -> None:
        """The next call starts from this state, None being zero, and calls `after` at its end."""
        self.state, self._called, self._after = state, False, after

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all steps, or of the last."""
        if x.dim() != 3:
            raise ValueError(f"a Recurrent layer takes (samples, steps, features), got {tuple(x.shape)}")
        if self._called:
            raise RuntimeError(
                "a Recurrent layer is called twice in one pass: with steps=…, use one layer for each call"
            )
        out, state = self.layer(x, self.state)
        if self._streams:
            self.state, self._called = state, True
        if self._after is not None:
            self._after()
        return out[:, -1] if self.last else out

    def extra_repr(self) -> str:
        """The option."""
        return f"last={self.last}"


def recurrent_layers(module: nn.Module, *, in_pieces: bool) -> list[Recurrent]:
    """The layers of a module that have a state; refuses those that would lose theirs where time comes in pieces."""
    found = [part for part in module.modules() if isinstance(part, Recurrent)]
    kept = {id(layer.layer) for layer in found}
    for name, part in module.named_modules():
        if in_pieces and isinstance(part, nn.RNNBase) and id(part) not in kept:
            raise TypeError(
                f"{name!r} would start anew with every piece of a sequence: with steps=…, use "
                f"fw.Recurrent(nn.{type(part).__name__}(...)) in its place"
            )
    return found
