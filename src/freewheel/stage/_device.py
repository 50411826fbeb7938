"""Where stages live, and moving what they pass on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


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
    return tree_map(lambda t: t.to(device) if isinstance(t, Tensor) and t.device != device else t, tree)
