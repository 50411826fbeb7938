"""One batch on its way through the network and back, on leaves that alias the shared weights.

Gradients of different batches never meet: each pass has leaves, and so gradients, of its own. What autograd saves of a
weight is the shared memory itself, so that a backward sees the weights as they are when it needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from freewheel.credit import ChainStage
from freewheel.racing._layers import Layer, aliased
from freewheel.runtime import Batch
from freewheel.stage import Stage


class Pass:
    """A network that runs one batch at a time; it can be used again after its backward.

    Args:
        stages: The stages whose weights it shares.
        layers: Their layers.
        at: How many batches and epochs there have been in earlier runs.
    """

    def __init__(self, stages: Sequence[Stage], layers: Sequence[Layer], at: tuple[int, int]) -> None:
        modules = aliased([stage.module for stage in stages])
        self._stages = [_bare(stage, module, at) for stage, module in zip(stages, modules)]
        self._layers = layers
        self._weights = [layer.weights(modules) for layer in layers]
        self._missing = [0] * len(layers)  # gradients that a layer still waits for
        self.seen = [0] * len(layers)  # updates that a layer had seen at its forward
        self.number = 0  # of the batch
        self.on_forward: Callable[[Layer], None] = lambda layer: None  # a layer's forward begins
        self.on_gradient: Callable[[Layer], None] = lambda layer: None  # a layer's gradient is complete
        self._loss: Tensor | None = None
        device = self._stages[-1].device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        for layer, weights in zip(layers, self._weights):
            layer.module(modules).register_forward_pre_hook(self._reached(layer))
            for weight in weights:
                weight.register_post_accumulate_grad_hook(self._arrived(layer))

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch; its graph is kept for the backward."""
        self.number, unit = batch.number, (batch.number, 0)
        with self.streamed(), torch.enable_grad():
            out = batch.x
            for stage in self._stages:
                out = stage.through(unit, out, batch.target)
        self._loss = out
        return out.detach()

    def backward(self, part: range) -> None:
        """Takes the loss back to the layers of this part, which are told of one by one."""
        loss, self._loss = self._loss, None
        assert loss is not None
        self._missing = [len(weights) for weights in self._weights]
        some = len(part) < len(self._layers)
        inputs = [weight for layer in part for weight in self._weights[layer]] if some else None
        if loss.requires_grad:
            # On a GPU, autograd's one thread for it would make the workers' hooks wait for each other.
            with self.streamed(), torch.autograd.set_multithreading_enabled(self._stream is None):
                torch.autograd.backward(loss, inputs=inputs)

    def take(self, layer: Layer) -> list[Tensor | None]:
        """The gradients of a layer, which are the caller's from now on."""
        gradients = [weight.grad for weight in self._weights[layer.index]]
        for weight in self._weights[layer.index]:
            weight.grad = None
        return gradients

    def has_gradient(self, layer: Layer) -> bool:
        """Whether there is any that has not been taken."""
        return any(weight.grad is not None for weight in self._weights[layer.index])

    @contextmanager
    def streamed(self) -> Iterator[None]:
        """On a GPU, inside all work is queued on this pass's own stream, behind what was queued before."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def settle(self) -> None:
        """On a GPU, waits until its work is done."""
        if self._stream is not None:
            self._stream.synchronize()

    def _reached(self, layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: object) -> None:
            self.on_forward(layer)

        return hook

    def _arrived(self, layer: Layer) -> Callable[[Tensor], None]:
        def hook(weight: Tensor) -> None:
            self._missing[layer.index] -= 1
            if not self._missing[layer.index]:
                self.on_gradient(layer)

        return hook


def _bare(stage: Stage, module: nn.Module, at: tuple[int, int]) -> ChainStage:
    """A stage without an optimizer, for its forwards alone."""
    options = replace(stage.options, corrections=())
    bare = ChainStage(replace(stage.blueprint, module=module, options=options, optimizer=None, scheduler=None))
    bare.begin(*at)
    return bare
