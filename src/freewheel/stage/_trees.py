"""What stages pass on: trees of tensors, and the devices they are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten


def homes(modules: Sequence[nn.Module]) -> list[torch.device]:
    """The device of each module: that of its tensors; one that has none is where the module before it is.

    Example:
        >>> homes([nn.Flatten(), nn.Linear(2, 2), nn.ReLU()])
        [device(type='cpu'), device(type='cpu'), device(type='cpu')]
    """
    own = [next((t.device for t in [*m.parameters(), *m.buffers()]), None) for m in modules]
    known = next((device for device in own if device is not None), torch.device("cpu"))
    out: list[torch.device] = []
    for device in own:
        known = device or known
        out.append(known)
    return out


def to_device(tree: Any, device: torch.device) -> Any:
    """The same tree with its tensors on a device."""
    if isinstance(tree, Tensor):
        return tree if tree.device == device else tree.to(device)
    if type(tree) is tuple:
        return tuple([to_device(part, device) for part in tree])
    return tree_map(lambda t: t.to(device) if isinstance(t, Tensor) and t.device != device else t, tree)


# The shape of a tree. The usual ones, a tensor and a tuple of tensors, go without torch's general tree machinery.
Shape = type[Tensor] | type[tuple] | TreeSpec


def flatten(tree: Any) -> tuple[list[Any], Shape]:
    """The leaves of a tree and its shape.

    Example:
        >>> leaves, shape = flatten((torch.zeros(1), torch.ones(1)))
        >>> len(leaves), unflatten(leaves, shape)
        (2, (tensor([0.]), tensor([1.])))
    """
    if isinstance(tree, Tensor):
        return [tree], Tensor
    if type(tree) is tuple and all(isinstance(part, Tensor) for part in tree):
        return list(tree), tuple
    return tree_flatten(tree)


def unflatten(leaves: list[Any], shape: Shape) -> Any:
    """The tree of these leaves."""
    if shape is Tensor:
        return leaves[0]
    if shape is tuple:
        return tuple(leaves)
    assert isinstance(shape, TreeSpec)
    return tree_unflatten(leaves, shape)


def tensors_among(leaves: Iterable[Any]) -> list[Tensor]:
    """The leaves that are tensors."""
    return [t for t in leaves if isinstance(t, Tensor)]


def map_tensors(function: Callable[[Tensor], Any], leaves: Iterable[Any]) -> list[Any]:
    """Applies a function to the leaves that are tensors; the others stay as they are."""
    return [function(t) if isinstance(t, Tensor) else t for t in leaves]


def copies(leaves: Sequence[Any]) -> list[Any]:
    """The leaves, each tensor a copy."""
    return map_tensors(Tensor.clone, leaves)


def versions(leaves: Sequence[Any]) -> list[int]:
    """How often each tensor has been changed in place."""
    return [t._version for t in tensors_among(leaves)]


def memory(leaves: Sequence[Any]) -> set[int]:
    """Where the memory of some tensors begins; two that share theirs have the same. Sparse ones have no such place.

    Example:
        >>> x = torch.zeros(2, 3)
        >>> memory([x]) == memory([x[1:].t()]), memory([x]) == memory([x.clone()]), memory([None, torch.zeros(0)])
        (True, False, set())
        >>> memory([torch.eye(2).to_sparse()])
        set()
    """
    dense = [t for t in tensors_among(leaves) if t.layout is torch.strided and t.numel()]
    return {t.untyped_storage().data_ptr() for t in dense}
