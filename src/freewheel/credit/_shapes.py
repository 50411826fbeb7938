"""Building blocks of heads and predictors: kinds of activations, perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from torch import Tensor, fx, nn

from freewheel._errors import check_callable, of_type
from freewheel.split._stages import GraphStage
from freewheel.split._undisturbed import undisturbed

Kind = tuple[int, int]  # dimensions, width: channels of images, features of positions, otherwise all elements


def kind_of(tensor: Tensor) -> Kind:
    """Return the number of dimensions and the width of a tensor whose first dimension is the samples.

    Example:
        >>> import torch
        >>> kind_of(torch.zeros(5, 3, 8, 8)), kind_of(torch.zeros(5, 7, 16)), kind_of(torch.zeros(5, 2, 2, 2, 2))
        ((4, 3), (3, 16), (2, 16))
    """
    if tensor.is_complex():
        raise TypeError(
            "a stage passes on complex numbers, which heads and predictors cannot take: pass on torch.view_as_real(x), "
            "or train with a method of the chain rule, such as 'pipedream'"
        )
    if tensor.dim() == 4:
        return 4, tensor.shape[1]
    if tensor.dim() == 3:
        return 3, tensor.shape[2]
    return 2, tensor[:1].numel()


class FeatureNorm(nn.BatchNorm1d):
    """BatchNorm of vectors, over all samples and all positions.

    Example:
        >>> import torch
        >>> FeatureNorm(4)(torch.randn(6, 5, 4)).mean((0, 1)).abs().max() < 1e-6
        tensor(True)
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the last dimension."""
        return super().forward(input.flatten(0, -2)).view(input.shape)


def perceptron(inputs: int, hidden: int, layers: int, outputs: int, *, norm: bool = False) -> nn.Sequential:
    """Build linear layers with ReLU between them, `layers` of them hidden, and with `norm` with BatchNorm before it.

    Example:
        >>> [tuple(p.shape) for p in perceptron(4, 8, 1, 2).parameters()]
        [(8, 4), (8,), (2, 8), (2,)]
    """
    widths = [inputs, *[hidden] * layers]
    hidden_layers = [_hidden(nn.Linear(a, b), FeatureNorm(b) if norm else None) for a, b in pairwise(widths)]
    return nn.Sequential(*chain.from_iterable(hidden_layers), nn.Linear(widths[-1], outputs))


def convolutions(
    inputs: int, hidden: int, layers: int, outputs: int, *, kernel: int, norm: bool = False
) -> nn.Sequential:
    """Build size-preserving convolutions like the layers of `perceptron`.

    Example:
        >>> [tuple(p.shape) for p in convolutions(4, 8, 1, 2, kernel=5).parameters()]
        [(8, 4, 5, 5), (8,), (2, 8, 5, 5), (2,)]
    """
    widths = [inputs, *[hidden] * layers, outputs]
    *before, last = [nn.Conv2d(a, b, kernel, padding=kernel // 2) for a, b in pairwise(widths)]
    hidden_layers = [_hidden(conv, nn.BatchNorm2d(conv.out_channels) if norm else None) for conv in before]
    return nn.Sequential(*chain.from_iterable(hidden_layers), last)


def reduced(channels: int, layers: int, *, norm: bool) -> nn.Sequential:
    """Build 1x1 convolutions with ReLU, for images of which a quarter of the rows and columns is left.

    Example:
        >>> [tuple(p.shape) for p in reduced(4, 2, norm=False).parameters()]
        [(4, 4, 1, 1), (4,), (4, 4, 1, 1), (4,)]
    """
    convs = [nn.Conv2d(channels, channels, 1, bias=not norm) for _ in range(layers)]
    return nn.Sequential(
        *chain.from_iterable(_hidden(conv, nn.BatchNorm2d(channels) if norm else None) for conv in convs)
    )


def _hidden(layer: nn.Module, norm: nn.Module | None) -> tuple[nn.Module, ...]:
    return (layer, nn.ReLU()) if norm is None else (layer, norm, nn.ReLU())


def check_norm(norm: object, hidden_layers: int) -> None:
    """Reject a `norm` that is not True or False, or that has nothing to normalize."""
    if of_type("norm", norm, bool, "give True or False") and not hidden_layers:
        raise ValueError("norm=True with layers=0: BatchNorm is for hidden layers; give layers=1 or more")


def check_factory(optimizer: object) -> None:
    """Reject an optimizer of heads or predictors that is neither a factory nor None."""
    if optimizer is not None:
        hint = "give a factory such as functools.partial(torch.optim.Adam, lr=0.001), or None for the trainer's"
        check_callable("optimizer", optimizer, hint)


def network_outputs(stages: Sequence[nn.Module]) -> int:
    """Return the number of outputs of the last linear or convolutional layer that the network runs.

    Example:
        >>> network_outputs([nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 5), nn.Softmax(1))])
        5
    """
    width = next(filter(None, map(_outputs, reversed(stages))), None)
    if width is None:
        raise ValueError("classes=None: no layer of the network has a known number of outputs; give classes")
    return width


def _outputs(module: nn.Module) -> int | None:
    """Return the number of outputs of the last such layer of a module, None without one."""
    own = getattr(module, "out_features", getattr(module, "out_channels", None))
    if own is not None:
        return own
    return next(filter(None, map(_outputs, reversed(_children_as_run(module)))), None)


def _children_as_run(module: nn.Module) -> list[nn.Module]:
    """Return the modules that a module calls, in this order if it can be traced, else as they are registered."""
    if isinstance(module, nn.Sequential):
        return list(module)
    try:
        with undisturbed(module):
            graph = module._fw_graph if isinstance(module, GraphStage) else fx.Tracer().trace(module)
    except Exception:  # tracing raises anything
        return list(module.children())
    return [module.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"]
