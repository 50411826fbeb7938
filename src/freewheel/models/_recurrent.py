"""Recurrent networks: stacks of layers that can be cut between any two and fed with chunks of a sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from freewheel._errors import whole_number
from freewheel.models._check import sequence_shape
from freewheel.stage import Recurrent

_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class ClassesFirst(nn.Module):
    """Transpose (samples, steps, classes) to (samples, classes, steps), as `F.cross_entropy` expects."""

    def forward(self, x: Tensor) -> Tensor:
        """Transpose."""
        return x.transpose(1, 2)


def recurrent(
    *,
    cell: Literal["rnn", "gru", "lstm"] = "gru",
    layers: int = 2,
    hidden: int = 32,
    num_classes: int = 10,
    in_shape: Sequence[int] = (8, 8),
    vocabulary: int | None = None,
) -> nn.Sequential:
    """A stack of `nn.RNN`, `nn.GRU` or `nn.LSTM` layers, each a unit, with a linear classifier.

    Sequences of vectors, `in_shape` (steps, features), are classified at their end. Sequences of whole numbers below
    `num_classes`, `in_shape` (steps,), are classified at every step, for predicting the next number. With a
    `vocabulary` they are word indices below that, with 0 as padding, and are classified at their end.

    Example:
        >>> list(recurrent(in_shape=(8, 8))._modules), list(recurrent(in_shape=(64,))._modules)
        (['layer1', 'layer2', 'fc'], ['embedding', 'layer1', 'layer2', 'fc', 'classes_first'])
        >>> net = recurrent(cell="lstm", hidden=256, num_classes=2, in_shape=(200,), vocabulary=20_000)
        >>> net.embedding, list(net._modules)
        (Embedding(20000, 256, padding_idx=0), ['embedding', 'layer1', 'layer2', 'fc'])
    """
    numbers = len(sequence_shape(in_shape)) == 1
    whole_number("layers", layers, least=1)
    whole_number("hidden", hidden, least=1)
    whole_number("num_classes", num_classes, least=1)
    if vocabulary is not None:
        whole_number("vocabulary", vocabulary, least=1)
        if not numbers:
            raise ValueError(f"vocabulary={vocabulary} is for sequences of whole numbers: give in_shape=(steps,)")
    at_end = not numbers or vocabulary is not None
    made: OrderedDict[str, nn.Module] = OrderedDict()
    if vocabulary is not None:
        made["embedding"] = nn.Embedding(vocabulary, hidden, padding_idx=0)
    elif numbers:
        made["embedding"] = nn.Embedding(num_classes, hidden)
    features = hidden if numbers else in_shape[1]
    for i in range(1, layers + 1):
        layer = _CELLS[cell](features, hidden, batch_first=True)
        made[f"layer{i}"] = Recurrent(layer, last=i == layers and at_end)
        features = hidden
    made["fc"] = nn.Linear(hidden, num_classes)
    if not at_end:
        made["classes_first"] = ClassesFirst()
    return nn.Sequential(made)
