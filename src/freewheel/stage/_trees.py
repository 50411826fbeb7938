"""Trees of tensors, the messages between stages, and their devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from freewheel._trees import check_leaf


def homes(modules: Sequence[nn.Module]) -> list[torch.device]:
    """Return the device of each module; one without tensors has the device of the module before it.

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
    """Return the tree with its tensors on a device."""
    leaves, shape = flatten(tree)
    return unflatten(map_tensors(lambda t: t if t.device == device else t.to(device), leaves), shape)


# The shape of a tree. A tensor and a tuple of tensors, the usual ones, bypass torch's general tree machinery.
Shape = type[Tensor] | type[tuple] | TreeSpec


def flatten(tree: Any) -> tuple[list[Any], Shape]:
    """Return the leaves of a tree and its shape.

    Example:
        >>> leaves, shape = flatten((torch.zeros(1), torch.ones(1)))
        >>> len(leaves), unflatten(leaves, shape)
        (2, (tensor([0.]), tensor([1.])))
    """
    if isinstance(tree, Tensor):
        return [tree], Tensor
    if type(tree) is tuple and len(tensors_among(tree)) == len(tree):
        return list(tree), tuple
    leaves, shape = tree_flatten(tree)
    for leaf in leaves:
        check_leaf(leaf)
    return leaves, shape


def unflatten(leaves: list[Any], shape: Shape) -> Any:
    """Return the tree of these leaves."""
    if shape is Tensor:
        return leaves[0]
    if shape is tuple:
        return tuple(leaves)
    return tree_unflatten(leaves, shape)  # pyright: ignore[reportArgumentType]


def tensors_among(leaves: Iterable[Any]) -> list[Tensor]:
    """Return the leaves that are tensors."""
    return [t for t in leaves if isinstance(t, Tensor)]


def map_tensors(function: Callable[[Tensor], Any], leaves: Iterable[Any]) -> list[Any]:
    """Apply a function to the leaves that are tensors; the others are unchanged."""
    return [function(t) if isinstance(t, Tensor) else t for t in leaves]


def described(value: object) -> str:
    """Describe a value in an error: a tensor by dtype and shape, anything else by type.

    Example:
        >>> described(torch.zeros(2, 3)), described([1])
        ('a torch.float32 tensor of shape (2, 3)', 'a list')
    """
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def copies(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with each tensor cloned."""
    return map_tensors(Tensor.clone, leaves)


def versions(leaves: Sequence[Any]) -> list[int]:
    """Return autograd's version counter of each tensor: the number of its in-place changes."""
    return [0 if t.is_inference() else t._version for t in tensors_among(leaves)]


def memory(leaves: Sequence[Any]) -> set[int]:
    """Return the storage addresses of dense tensors; tensors that share memory have the same address.

    Example:
        >>> x = torch.zeros(2, 3)
        >>> memory([x]) == memory([x[1:].t()]), memory([x]) == memory([x.clone()]), memory([None, torch.zeros(0)])
        (True, False, set())
        >>> memory([torch.eye(2).to_sparse()])
        set()
    """
    dense = [t for t in tensors_among(leaves) if t.layout is torch.strided and t.numel()]
    return {t.untyped_storage().data_ptr() for t in dense}
