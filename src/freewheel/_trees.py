"""Trees of tensors: tuples, lists, dicts, named tuples, and every class in torch's pytree registry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from functools import reduce
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES, tree_flatten, tree_leaves, tree_map

# Leaves without tensors.
PLAIN = (NoneType, bool, int, float, complex, str, bytes, Enum, slice, range, torch.dtype, torch.device, torch.layout)


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree, in order.

    Example:
        >>> len(tensors_of([torch.zeros(1), {"a": (torch.zeros(2), None)}]))
        2
    """
    if isinstance(tree, Tensor):
        return [tree]
    if tree is None:
        return []
    if type(tree) in (tuple, list) or isinstance(tree, tuple):  # the usual ones bypass torch's general tree machinery
        return [tensor for child in tree for tensor in tensors_of(child)]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return the same tree with a function applied to its tensors."""
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def differentiable(tensor: Tensor) -> bool:
    """Return whether a tensor can have a gradient.

    Example:
        >>> [differentiable(torch.zeros(1, dtype=dtype)) for dtype in (torch.float16, torch.complex64, torch.int64)]
        [True, True, False]
    """
    return tensor.is_floating_point() or tensor.is_complex()


def check_leaf(leaf: Any) -> None:
    """Refuse an object that may hide tensors.

    Example:
        >>> class Features:
        ...     pass
        >>> check_leaf(Features())
        Traceback (most recent call last):
        TypeError: a Features between stages: register its class (torch.export.register_dataclass for a dataclass, ...
    """
    if not isinstance(leaf, (Tensor, *PLAIN)):
        raise TypeError(
            f"a {type(leaf).__name__} between stages: register its class (torch.export.register_dataclass for a "
            "dataclass, torch.utils._pytree.register_pytree_node for others) so that its tensors are found, or pass "
            "a tuple or dict"
        )


def children_of(tree: Any) -> tuple[str, Any, list[Any]] | None:
    """Return the class name, context and children of a registered class or a named tuple; None for anything else.

    Example:
        >>> from collections import deque
        >>> children_of(deque([1, 2], maxlen=3))
        ('collections.deque', 3, [1, 2])
    """
    children, spec = tree_flatten(tree, is_leaf=lambda node: node is not tree)
    if len(children) == 1 and children[0] is tree:
        return None
    named = type(tree) not in SUPPORTED_NODES  # a named tuple: pytree's context is its class
    return f"{type(tree).__module__}.{type(tree).__qualname__}", None if named else spec.context, children


def rebuild(name: str, context: Any, children: list[Any]) -> Any:
    """Invert `children_of`, for classes of modules that this process has imported."""
    node = next((n for cls, n in SUPPORTED_NODES.items() if f"{cls.__module__}.{cls.__qualname__}" == name), None)
    if node is not None:
        return node.unflatten_fn(children, context)
    parts = name.split(".")
    heads = [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]
    module = next((head for head in heads if head in sys.modules), "")
    cls = reduce(
        lambda found, part: getattr(found, part, None), parts[module.count(".") + 1 :], sys.modules.get(module)
    )
    if not isinstance(cls, type) or not issubclass(cls, tuple):
        raise TypeError(f"{name} is not registered in this process: register it at the top of the module that has it")
    return cls(*children)
