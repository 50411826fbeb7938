"""The layers of a network, and copies of it that share its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layer:
    """A module with weights of its own: where it is, and what they are called there."""

    index: int
    stage: int
    path: str
    name: str
    parameters: tuple[str, ...]

    def module(self, stages: Sequence[nn.Module]) -> nn.Module:
        """The layer in these stages."""
        return stages[self.stage].get_submodule(self.path)

    def weights(self, stages: Sequence[nn.Module]) -> list[nn.Parameter]:
        """Its trainable weights in these stages."""
        module = self.module(stages)
        return [module.get_parameter(name) for name in self.parameters]


def layers_of(stages: Sequence[nn.Module]) -> list[Layer]:
    """All layers in the order of the network; a weight that several modules share belongs to the first of them.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))
        >>> [(layer.name, layer.parameters) for layer in layers_of([net])]
        [('0', ('weight', 'bias')), ('2', ('weight', 'bias')), ('3', ('weight',))]
    """
    found: list[Layer] = []
    seen: set[int] = set()
    for k, stage in enumerate(stages):
        for path, module in stage.named_modules():
            own = [(name, p) for name, p in module.named_parameters(recurse=False) if p.requires_grad]
            names = tuple(name for name, p in own if id(p) not in seen)
            seen.update(id(p) for _, p in own)
            if names:
                name = ".".join(part for part in (str(k) if len(stages) > 1 else "", path) if part)
                found.append(Layer(len(found), k, path, name or type(module).__name__, names))
    return found


def aliased(stages: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies of modules whose weights, leaves of their own, and whose buffers lie in the same memory.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> (alias,) = aliased([net])
        >>> alias.weight is net.weight, alias.weight.data_ptr() == net.weight.data_ptr()
        (False, True)
    """
    return on_tensors(stages, _same_memory)


def _same_memory(tensor: Tensor) -> Tensor:
    """A tensor of its own on the memory of another.

    It counts its own changes alone, as a tensor whose memory another process shares: updates of other workers change
    the weights under way, which is the method, while a module that edits what its own backward needs is still noticed.
    """
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(tensor.untyped_storage(), int(tensor.storage_offset()), tensor.size(), tensor.stride())


def on_tensors(stages: Sequence[nn.Module], tensor_of: Callable[[Tensor], Tensor]) -> list[nn.Module]:
    """Copies of modules on other tensors: `tensor_of` gives one for each weight and buffer."""
    memo: dict[int, Tensor] = {}
    for stage in stages:
        memo |= {id(p): nn.Parameter(tensor_of(p), requires_grad=p.requires_grad) for p in stage.parameters()}
        memo |= {id(b): tensor_of(b) for b in stage.buffers()}
    wanted = [[memo[id(p)] for p in stage.parameters()] for stage in stages]
    copies = [copy.deepcopy(stage, memo) for stage in stages]
    for k, (made, weights) in enumerate(zip(copies, wanted)):
        if [id(p) for p in made.parameters()] != [id(p) for p in weights]:
            raise TypeError(
                f"stages[{k}] ({type(made).__name__}) has a __deepcopy__ that copies its weights: methods that race on "
                "shared weights need copies of the module that share them"
            )
    return copies


def in_parts(count: int, parts: int) -> list[range]:
    """So many layers in parts as even as can be, the larger ones first.

    Example:
        >>> in_parts(5, 2)
        [range(0, 3), range(3, 5)]
    """
    size, more = divmod(count, parts)
    ends = [size * (i + 1) + min(i + 1, more) for i in range(parts)]
    return [range(start, end) for start, end in zip([0, *ends], ends)]
