"""What plain PyTorch computes: the network's output, its loss and its gradients."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._config import RunConfig
from freewheel._trees import tensors_of
from freewheel.check._copies import Network, Samples
from freewheel.stage import NO_GRAPH, SeededDraws, add, homes, to_device


class MismatchError(ValueError):
    """A network that would be trained wrongly."""


class Plain:
    """Runs copies of a network as plain PyTorch does, without cuts.

    Args:
        network: The copies.
        config: The options of the run.
        first_batch: The number of the first batch, which random numbers depend on.
        planned: Whether the result must not depend on timing.
    """

    def __init__(self, network: Network, config: RunConfig, first_batch: int, *, planned: bool) -> None:
        self.network, self._config, self._first_batch, self._planned = network, config, first_batch, planned
        self._devices = homes(network.stages)

    def outputs(
        self, network: Network, module: nn.Module, samples: Samples
    ) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
        """Return the output of a network, as one module or in stages, and that of each of its layers.

        All draw from one generator, and there is no graph.
        """
        layers: dict[str, list[Tensor]] = {}
        names = {id(m): name for name, m in network.model.named_modules()}
        with ExitStack() as stack:
            for layer in module.modules():
                if id(layer) in names and not list(layer.children()):
                    hook = _noting(layers, names[id(layer)])
                    stack.callback(layer.register_forward_hook(hook).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._casts(self._devices[0]))
            stack.enter_context(SeededDraws(self._config.seed))
            out = module(to_device(samples.fresh()[0], self._devices[0]))
        return tensors_of(out), layers

    def gradients(
        self, batch: int, micro_batches: Sequence[tuple[Any, Any, float]], on_loss: Callable[[Tensor], None]
    ) -> dict[int, Tensor | None]:
        """Return the gradient of each parameter, by its id, with the random numbers of a batch."""
        found: list[Tensor | None] = [None] * len(self.network.parameters)
        for micro, (x, target, share) in enumerate(micro_batches):
            loss = self.loss((batch, micro), x, target) * share
            if not loss.requires_grad:
                raise MismatchError(NO_GRAPH)
            on_loss(loss)
            # A checkpoint draws again in the backward, which must then run in this thread.
            with SeededDraws(self._config.seed), torch.autograd.set_multithreading_enabled(False):
                new = torch.autograd.grad(loss, self.network.parameters, allow_unused=True)
            found = [add(a, b) for a, b in zip(found, new)]
        return {id(p): g for p, g in zip(self.network.parameters, found)}

    def loss(self, unit: tuple[int, int], x: Any, target: Any) -> Tensor:
        """Return the loss of a micro-batch; each stage draws its own random numbers."""
        batch, micro = unit
        last = len(self.network.stages) - 1
        for k, (stage, device) in enumerate(zip(self.network.stages, self._devices)):
            draws = SeededDraws(self._config.seed, k, self._first_batch + batch, micro)
            with torch.enable_grad(), self._casts(device), draws, self._watched(f"stages[{k}]"):
                x = stage(to_device(x, device))
                if k == last:
                    return self.network.loss(x, to_device(target, device))
        raise AssertionError("no stage")

    def _watched(self, what: str) -> AbstractContextManager[None]:
        return _own_generators(what) if self._planned else nullcontext()

    def _casts(self, device: torch.device) -> Any:
        dtype = self._config.autocast
        return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def _noting(layers: dict[str, list[Tensor]], name: str) -> Any:
    def note(module: nn.Module, inputs: Any, out: Any) -> None:
        layers.setdefault(name, [t.detach().clone() for t in tensors_of(out)])

    return note


@contextmanager
def _own_generators(what: str) -> Iterator[None]:
    """Refuse draws from Python's and NumPy's generators, which all stages share, and seeds for torch's."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), _position(numpy)
    state = torch.default_generator.get_state()
    yield
    if not torch.equal(torch.default_generator.get_state(), state):
        raise MismatchError(
            f"{what} seeds torch's generator (torch.manual_seed), which all stages share: remove it; random numbers "
            "are seeded for each stage and batch, from the trainer's seed"
        )
    for name, same in (("random", random.getstate() == before[0]), ("numpy.random", _position(numpy) == before[1])):
        if not same:
            raise MismatchError(
                f"{what} draws from {name}, which all stages share, so that results would depend on timing: draw from "
                "torch instead, such as torch.rand(()), which is seeded for each stage and batch"
            )


def _position(numpy: Any) -> Any:
    if numpy is None:
        return None
    _, keys, position, *_ = numpy.random.get_state()
    return position, int(keys[0]), int(keys[-1])
