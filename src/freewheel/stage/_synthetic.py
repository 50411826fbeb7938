"""A stage that learns from a predicted gradient, and teaches its predictor the one that comes later.

::

    stage 0   x ──F──▶ h_1 ──▶ predictor ──▶ ĝ_1 ──B──▶ update        at once
    stage 1            h_1 ──F──▶ … ──B──▶ g_1                        by its own prediction, or the loss
    stage 0   predictor fitted to g_1                                 some batches later
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel.stage._chain import Stored
from freewheel.stage._corrections import Gradients
from freewheel.stage._forms import Form
from freewheel.stage._owned import HeadedStage, Owned
from freewheel.stage._predictors import Predictor
from freewheel.stage._stage import Tree, Unit
from freewheel.stage._trees import to_device


class SyntheticStage(HeadedStage):
    """Forward, backward, update, and the fit of the predictor.

    What a predictor gives is the gradient times the number of samples: that of each sample's own loss, where the loss
    is their mean. So it does not depend on the size of a batch. The outputs that it has seen wait for their fit.
    """

    def _network(self, forms: Sequence[Form]) -> nn.Module:
        return Predictor(forms, self.options.predictors, self.options.classes)

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Runs the module, and keeps its output for the predictor."""
        out = super().forward(unit, x, target, size, share, weight)
        graph = self._graphs[unit]
        if not self.is_last and graph.outputs:
            seen = {place: t.detach() for place, t in zip(graph.places, graph.outputs)}
            self._stored[unit] = Stored(seen, target if self.options.predictors.labels else None, 1.0)
        return out

    def backward(self, unit: Unit, gradients: Gradients | None) -> Gradients:
        """Goes back with the predicted gradient; the last stage with that of the loss."""
        stored = self._stored.get(unit)
        if self.is_last or stored is None:
            return super().backward(unit, None)
        places, seen = zip(*stored.inputs.items())
        with torch.no_grad():
            predicted = self._predicted(self._own(seen), seen, stored.target)
        found = {place: g.to(h.dtype) / len(h) for place, g, h in zip(places, predicted, seen)}
        return super().backward(unit, [found.get(place) for place in range(max(places) + 1)])

    def _predicted(self, own: Owned, seen: Sequence[Tensor], target: Tree) -> list[Tensor]:
        dtype = own.weights[0].dtype
        return own.module([h.to(dtype) for h in seen], to_device(target, self.device))

    def fit(self, unit: Unit, gradients: Gradients) -> None:
        """One step of the predictor, as it is now, towards the gradient of an output that it has seen."""
        stored = self._stored.pop(unit, None)
        if stored is None:
            return
        seen = list(stored.inputs.values())
        own = self._own(seen)
        with torch.enable_grad():
            predicted = self._predicted(own, seen, stored.target)
            true = [gradients[place] for place in stored.inputs]
            errors = [
                F.mse_loss(p, (to_device(g, self.device) * len(g)).to(p.dtype))
                for p, g in zip(predicted, true)
                if g is not None
            ]
        if errors:
            own.take(torch.autograd.grad(sum(errors), own.weights, allow_unused=True))  # pyright: ignore
            own.step()
