"""The places of a module tree that hold its weights, and copies that take their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

Slot = tuple[Any, Any]  # a list or dict, and the index or key of an item


def slots_of(module: nn.Module, live: Sequence[nn.Parameter]) -> list[list[Slot]]:
    """Return, for each weight, every slot of the module tree that holds it, in plain lists and dicts, too."""
    slots: dict[int, list[Slot]] = {id(p): [] for p in live}
    for child in module.modules():
        lists = [value for value in vars(child).values() if type(value) is list]
        dicts = [value for value in vars(child).values() if type(value) is dict]  # `_parameters` is one of them
        for holder, items in [*((d, d.items()) for d in dicts), *((each, enumerate(each)) for each in lists)]:
            for key, value in items:
                if id(value) in slots:
                    slots[id(value)].append((holder, key))
    return [slots[id(p)] for p in live]


def tensor_slots(modules: Iterable[nn.Module]) -> list[list[Slot]]:
    """Return, for each tensor of these modules, every slot that holds it: attributes, and items of lists and dicts.

    Tensors that forwards compute and keep as an attribute, such as the weight of `torch.nn.utils.prune`, are left out.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> layer.again = [layer.bias]
        >>> [[key for _, key in places] for places in tensor_slots([layer])]
        [['weight'], ['bias', 0]]
    """
    slots: dict[int, list[Slot]] = {}
    for child in modules:
        computed = computed_by_hooks(child)
        values = list(vars(child).values())
        dicts = [vars(child), *(value for value in values if type(value) is dict)]
        lists = [value for value in values if type(value) is list]
        for holder, items in [*((d, d.items()) for d in dicts), *((each, enumerate(each)) for each in lists)]:
            for key, value in items:
                if (
                    isinstance(value, Tensor)
                    and value.grad_fn is None
                    and not (holder is vars(child) and key in computed)
                ):
                    slots.setdefault(id(value), []).append((holder, key))
    return list(slots.values())


def computed_by_hooks(module: nn.Module) -> set[str]:
    """Return the attributes that hooks of `torch.nn.utils` compute anew in each forward: pruned and normed weights.

    Example:
        >>> from torch.nn.utils import prune
        >>> computed_by_hooks(prune.l1_unstructured(nn.Linear(2, 1), "weight", amount=1))
        {'weight'}
    """
    hooks = [hook for hook in module._forward_pre_hooks.values() if type(hook).__module__.startswith("torch.nn.utils.")]
    return {getattr(hook, "_tensor_name", getattr(hook, "name", "")) for hook in hooks}


def fill(slots: Sequence[Sequence[Slot]], tensors: Sequence[Any]) -> None:
    """Put a tensor into the slots of each weight."""
    for places, tensor in zip(slots, tensors):
        for holder, key in places:
            holder[key] = tensor


def hooked(copy: Tensor, weight: nn.Parameter) -> Tensor:
    """Give a copy the gradient hooks of its weight."""
    for hook in (weight._backward_hooks or {}).values():
        copy.register_hook(hook)
    return copy
