"""`dgl`: every stage learns from a loss of its own.

Paper: Belilovsky, Eickenberg and Oyallon, Decoupled greedy learning of CNNs, 2019.

Each stage but the last owns a head c_k, a small network that guesses the target from the stage's output. No gradient
passes from stage to stage; a stage learns as soon as it has its input (stages counted from 0):

    h_{k+1} = f_k(h_k; w_k),    (w_k, c_k) ← (w_k, c_k) - lr · ∂/∂(w_k, c_k) loss(c_k(h_{k+1}), y),    h_k fixed

    plan dgl: credit=local delays=0,0,0 taught=yes batches=4
    time     0     1      2      3      4      5      6      7      8      9
    stage 0  F0@0  B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!  .      .
    stage 1  .     F0@0   B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!  .
    stage 2  .     .      F0@0   B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!

With one stage it is plain training. Stages that need not be in step may keep the last inputs and learn from one of
these (the paper's replay buffer), while they pass on what they make of the newest:

    a stage behind the first has kept the inputs of n-2, n-1, n     F(n) a(n)>     F, B of one of them     U(n)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.methods._method import Method, Pipeline
from freewheel.stage import Draw, Heads
from freewheel.stage._forms import MakeOptimizer


@dataclass(frozen=True, kw_only=True)
class DGL(Method):
    """Each stage learns from a head of its own. No lock remains.

    Args:
        pool: Images are averaged to a grid of so many by so many before the head's perceptron.
        hidden: Width of its hidden layers.
        layers: How many hidden layers it has.
        classes: How many outputs it has; by default those of the network's last linear or convolutional layer.
        optimizer: A factory for the heads; by default the trainer's.
        replay: How many of the last batches stages behind the first keep to learn from; 0 keeps none.
        draw: Which of them they learn from: `fifo`, `lifo` or `random`.

    Example:
        >>> import freewheel as fw
        >>> plan = fw.plan(fw.DGL(), k=3)
        >>> plan.delays, plan.locks
        ((0, 0, 0), frozenset())
    """

    name: ClassVar[str] = "dgl"

    pool: int = 2
    hidden: int = 128
    layers: int = 1
    classes: int | None = None
    optimizer: MakeOptimizer | None = None
    replay: int = 0
    draw: Draw = "random"

    def __post_init__(self) -> None:
        self._heads()

    def _heads(self) -> Heads:
        return Heads(
            pool=self.pool,
            hidden=self.hidden,
            layers=self.layers,
            classes=self.classes,
            optimizer=self.optimizer,
            replay=self.replay,
            draw=self.draw,
        )

    def pipeline(self, k: int) -> Pipeline:
        """Zero delays, heads."""
        return Pipeline(title=self.name, credit="local", delays=(0,) * k, heads=self._heads())
