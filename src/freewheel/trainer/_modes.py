"""Train mode and eval mode: what `fit` does with the modes that it finds."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


class Modes:
    """The modes of a network.

    Where a network is in eval mode as a whole, `fit` puts it in train mode, as a loop does with `model.train()`. Where
    any of its modules is in train mode, all keep their modes: one that you have put in eval mode, such as a frozen
    BatchNorm, stays there. It stays there, too, if you put the whole network in eval mode between two fits.

    Args:
        roots: The model that was split, or each of the stages that were handed in.
        stages: The stages.
    """

    def __init__(self, roots: Sequence[nn.Module], stages: Sequence[nn.Module]) -> None:
        self._roots, self._stages = roots, stages
        self._frozen: set[nn.Module] = set()  # in eval mode at the last fit, while others were in train mode

    def train(self) -> None:
        """Set the modes for a fit."""
        for root in self._roots:
            modules = set(root.modules())
            if any(module.training for module in modules):
                self._frozen = (self._frozen - modules) | {module for module in modules if not module.training}
            elif any(parameter.requires_grad for parameter in root.parameters()):
                for module in modules:
                    module.training = module not in self._frozen
        self._follow()

    def _follow(self) -> None:
        """Give the containers that `fw.split` has made the modes of those that they stand for."""
        if list(self._roots) == list(self._stages):
            return
        originals = dict(self._roots[0].named_modules())
        for stage in self._stages:
            for name, module in stage.named_modules():
                module.training = originals[name].training if name in originals else module.training
