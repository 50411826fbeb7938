"""What stages pass on: trees of tensors, and the devices they are on."""

from __future__ import annotations

from collections.abc import Sequence
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
    return tree_map(lambda t: t.to(device) if isinstance(t, Tensor) and t.device != device else t, tree)


def flatten(tree: Any) -> tuple[list[Any], TreeSpec | None]:
    """The leaves of a tree and its shape; the shape of a tensor by itself, the usual case, is None."""
    return ([tree], None) if isinstance(tree, Tensor) else tree_flatten(tree)


def unflatten(leaves: list[Any], shape: TreeSpec | None) -> Any:
    """The tree of these leaves."""
    return leaves[0] if shape is None else tree_unflatten(leaves, shape)
