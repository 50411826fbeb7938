"""Copies of modules."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


def copied(modules: T, memo: dict[int, Any] | None = None) -> T:
    """Copy modules, or a tree of them, also those that hold tensors with a graph.

    `torch.nn.utils.prune` and the older `weight_norm` keep the weight that they have computed as an attribute, which
    `copy.deepcopy` refuses. The next forward computes it anew, so that its value is enough.

    Args:
        modules: The modules.
        memo: What takes the place of objects, by their id.

    Example:
        >>> from torch.nn.utils import prune
        >>> layer = prune.l1_unstructured(nn.Linear(2, 2), "weight", amount=1)
        >>> torch.equal(copied(layer).weight, layer.weight)
        True
    """
    roots = [leaf for leaf in tree_leaves(modules) if isinstance(leaf, nn.Module)]
    held = [value for root in roots for module in root.modules() for value in vars(module).values()]
    computed = {id(t): t.detach().clone() for t in held if torch.is_tensor(t) and t.grad_fn is not None}
    return deepcopy(modules, {**computed, **(memo or {})})
