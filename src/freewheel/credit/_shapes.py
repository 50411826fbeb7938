"""Building blocks of heads and predictors: kinds of activations, perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, fx, nn

from freewheel._errors import check_callable
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


def perceptron(inputs: int, hidden: int, layers: int, outputs: int) -> nn.Sequential:
    """Build linear layers with ReLU between them, `layers` of them hidden.

    Example:
        >>> [tuple(p.shape) for p in perceptron(4, 8, 1, 2).parameters()]
        [(8, 4), (8,), (2, 8), (2,)]
    """
    widths = [inputs, *[hidden] * layers]
    modules = [module for a, b in pairwise(widths) for module in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*modules, nn.Linear(widths[-1], outputs))


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
