"""Lists of blocks: where people expect a model to be cut."""

from __future__ import annotations

from torch import nn


def has_blocks(module: nn.Module) -> bool:
    """Whether a module contains a list of blocks, at which it can be cut: submodules that are no layers of torch.

    Example:
        >>> has_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), has_blocks(nn.ModuleList([nn.Sequential()] * 2))
        (False, True)
    """
    lists = [list(m._modules.values()) for m in module.modules() if type(m) in (nn.ModuleList, nn.Sequential)]
    return any(
        child is not None and not _is_layer(child) for children in lists if len(children) > 1 for child in children
    )


def _is_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn") and type(module) is not nn.Sequential
