"""Shared weights: layers, aliases of them within a process, memory between processes, optimizer steps, averages."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.stage import Blueprint, Stage, align_gradient, copied, homes

Memory = dict[torch.dtype, Tensor]  # one flat tensor per type; weights and buffers are views of it


@dataclass(frozen=True)
class Layer:
    """A module with trainable parameters of its own: its place in the stages and the parameters' names."""

    index: int
    stage: int
    path: str
    name: str
    parameters: tuple[str, ...]

    def module(self, stages: Sequence[nn.Module]) -> nn.Module:
        """The layer in these stages."""
        return stages[self.stage].get_submodule(self.path)

    def weights(self, stages: Sequence[nn.Module]) -> list[nn.Parameter]:
        """Its trainable parameters in these stages."""
        module = self.module(stages)
        return [module.get_parameter(name) for name in self.parameters]


def layers_of(stages: Sequence[nn.Module]) -> list[Layer]:
    """All layers in network order; a parameter that several modules share belongs to the first of them.

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
                name = ".".join(word for word in (str(k) if len(stages) > 1 else "", path) if word)
                found.append(Layer(len(found), k, path, name or type(module).__name__, names))
    return found


def all_tensors(stages: Iterable[nn.Module]) -> list[Tensor]:
    """Parameters and buffers, stage by stage."""
    return [tensor for stage in stages for tensor in (*stage.parameters(), *stage.buffers())]


# ---- aliases within a process ----


def aliased(stages: Sequence[nn.Module]) -> list[nn.Module]:
    """Copy modules onto the same memory: the parameters are new leaves, but share storage, as do the buffers.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> (alias,) = aliased([net])
        >>> alias.weight is net.weight, alias.weight.data_ptr() == net.weight.data_ptr()
        (False, True)
    """
    return _copied_onto(stages, _alias)


def _alias(tensor: Tensor) -> Tensor:
    """A new tensor on the storage of another, with a version counter of its own.

    Updates by other workers therefore do not trip autograd's version check: changing weights during a batch is the
    method. A module that modifies what its own backward needs is still caught.
    """
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(tensor.untyped_storage(), int(tensor.storage_offset()), tensor.size(), tensor.stride())


def _copied_onto(stages: Sequence[nn.Module], tensor_for: Callable[[Tensor], Tensor]) -> list[nn.Module]:
    """Copy modules, with each parameter and buffer replaced by the tensor that `tensor_for` returns for it."""
    memo: dict[int, Tensor] = {}
    for stage in stages:
        memo |= {id(p): nn.Parameter(tensor_for(p), requires_grad=p.requires_grad) for p in stage.parameters()}
        memo |= {id(b): tensor_for(b) for b in stage.buffers()}
    wanted = [[memo[id(p)] for p in stage.parameters()] for stage in stages]
    copies = [copied(stage, memo) for stage in stages]
    for k, (made, weights) in enumerate(zip(copies, wanted)):
        if [id(p) for p in made.parameters()] != [id(p) for p in weights]:
            raise TypeError(
                f"stages[{k}] ({type(made).__name__}) has a __deepcopy__ that copies its weights: methods on shared "
                "weights need copies of the module that share them"
            )
    return copies


# ---- memory between processes ----


def shared_copy(stages: Sequence[nn.Module]) -> Memory:
    """Copy all parameters and buffers to shared memory."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in _distinct(stages):
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    memory = {dtype: torch.empty(size, dtype=dtype).share_memory_() for dtype, size in sizes.items()}
    with torch.no_grad():
        for tensor, view in _views(memory, stages):
            view.copy_(tensor)
    return memory


def copy_back(memory: Memory, stages: Sequence[nn.Module]) -> None:
    """Copy the values in shared memory to modules."""
    with torch.no_grad():
        for tensor, view in _views(memory, stages):
            tensor.copy_(view)


def in_memory(memory: Memory, stages: Sequence[nn.Module]) -> list[nn.Module]:
    """Copy modules, with parameters and buffers that are views of shared memory.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> memory = shared_copy([net])
        >>> (there,) = in_memory(memory, [net])
        >>> _ = memory[torch.float32].fill_(5.0)
        >>> there.bias.item()
        5.0
    """
    views = {id(tensor): view for tensor, view in _views(memory, stages)}
    return _copied_onto(stages, lambda tensor: views[id(tensor)])


def as_integers(tensor: Tensor) -> MutableSequence[int]:
    """View an int64 tensor as a sequence that is fast to read and write; the tensor must outlive it."""
    assert tensor.dtype is torch.int64
    assert tensor.is_contiguous()
    array: Any = (ctypes.c_int64 * tensor.numel()).from_address(tensor.data_ptr())
    return array


def _distinct(stages: Sequence[nn.Module]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in all_tensors(stages)}.values())


def _views(memory: Memory, stages: Sequence[nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    offsets = dict.fromkeys(memory, 0)
    for tensor in _distinct(stages):
        start = offsets[tensor.dtype]
        offsets[tensor.dtype] = end = start + tensor.numel()
        yield tensor, memory[tensor.dtype][start:end].view(tensor.shape)


def average(copies: Sequence[Iterable[Tensor]]) -> None:
    """Set the floating-point tensors of all copies to their mean.

    Example:
        >>> copies = [[torch.tensor([1.0]), torch.tensor(1)], [torch.tensor([2.0]), torch.tensor(2)]]
        >>> average(copies)
        >>> copies[0]
        [tensor([1.5000]), tensor(1)]
    """
    if len(copies) < 2:
        return
    with torch.no_grad():
        for tensors in zip(*copies):
            if tensors[0].is_floating_point():
                mean = torch.stack([tensor.to(tensors[0].device) for tensor in tensors]).mean(0)
                for tensor in tensors:
                    tensor.copy_(mean)


# ---- optimizer steps ----


def stages_on(blueprints: Sequence[Blueprint], modules: Iterable[nn.Module]) -> list[Stage]:
    """Build stages like the trainer's on other modules, with optimizers and schedules of their own."""
    own = list(modules)
    built = zip(blueprints, own, homes(own))
    return [replace(blueprint, module=module, device=home).build() for blueprint, module, home in built]


def load_optimizers(stages: Sequence[Stage], sources: Sequence[Stage]) -> None:
    """Let optimizers and schedules start from copies of the states of others."""
    for stage, source in zip(stages, sources):
        state = source.state()
        if stage.optimizer is not None:
            stage.optimizer.load_state_dict(state["optimizer"])
        if stage.scheduler is not None:
            stage.scheduler.load_state_dict(state["scheduler"])


class Stepper:
    """One worker's optimizers on aliases of the shared weights. A step uses the step size of the gradient's batch.

    They start from the optimizer and schedule states of `sources`; if `shared`, state such as momentum stays shared.
    """

    def __init__(
        self, stages: Sequence[Stage], sources: Sequence[Stage], layers: Sequence[Layer], *, shared: bool
    ) -> None:
        self.stages = stages
        self._weights = [layer.weights([stage.module for stage in stages]) for layer in layers]
        self._schedules = [StepSizeSchedule(stage) for stage in stages]
        load_optimizers(stages, sources)
        for stage, source in zip(stages, sources):
            if not shared or stage.optimizer is None or source.optimizer is None:
                continue
            held = {id(p) for group in source.optimizer.param_groups for p in group["params"]}
            for own, live in zip(stage.weights.live, source.weights.live):
                if id(live) in held:  # the same dict, also when filled later
                    stage.optimizer.state[own] = source.optimizer.state[live]

    def weights(self, layer: Layer) -> Sequence[Tensor]:
        """The trainable parameters of a layer."""
        return self._weights[layer.index]

    def update(self, layer: Layer, gradients: Sequence[Tensor | None], number: int, epoch: int) -> None:
        """Update a layer with its gradients from batch `number`, in this epoch."""
        optimizer = self.stages[layer.stage].optimizer
        assert optimizer is not None
        self._schedules[layer.stage].advance(number, epoch)
        for weight, gradient in zip(self._weights[layer.index], gradients):
            weight.grad = align_gradient(gradient, weight)
        optimizer.step()
        for weight in self._weights[layer.index]:
            weight.grad = None


class StepSizeSchedule:
    """A stage's step-size schedule: batch n of epoch e has the step size after n scheduler steps, or after e."""

    def __init__(self, stage: Stage) -> None:
        self._scheduler, self._steps = stage.scheduler, 0
        self._by_epoch = stage.config.scheduler_every == "epoch"
        if stage.scheduler is not None and stage.optimizer is not None:
            stage.optimizer.zero_grad()
            stage.optimizer.step()  # a no-op without gradients; torch warns if a scheduler steps first

    def advance(self, number: int, epoch: int) -> None:
        """Advance to batch `number`, in this epoch; never goes back."""
        while self._scheduler is not None and self._steps < (epoch if self._by_epoch else number):
            self._scheduler.step()
            self._steps += 1
