"""Recurrent networks: a stack of layers that can be cut between any two, and read in pieces of a sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from freewheel._errors import whole_number
from freewheel.stage import Recurrent

_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class ClassesFirst(nn.Module):
    """(samples, steps, classes) to (samples, classes, steps), which `F.cross_entropy` takes."""

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
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

    Sequences of vectors, `in_shape` (steps, features), get one class at their end. Sequences of whole numbers below
    `num_classes`, `in_shape` (steps,), get one at every step, as for predicting the next. With a `vocabulary` they are
    below that, such as the numbers of words, 0 is padding, and they get one class at their end.

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


def sequence_shape(value: object) -> tuple[int, ...]:
    """Return `value` as (steps, features) or (steps,), else raise naming `in_shape`.

    Example:
        >>> sequence_shape([8, 8])
        (8, 8)
    """
    wanted = "in_shape must be (steps, features), or (steps,) for whole numbers"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{wanted}, got {value!r}")
    if len(value) not in (1, 2):
        raise ValueError(f"{wanted}, got {tuple(value)!r}; 'digits-rows' is 'digits' row by row")
    return tuple(whole_number(f"in_shape[{i}]", size, least=1) for i, size in enumerate(value))
