"""A stage that learns from a directional derivative: it runs forwards only, on dual numbers.

::

    stage 0   (x, 0) ──F──▶ (h_1, o_1)          tangents u_k are drawn within F, and once more for the update
    stage 1                 (h_1, o_1) ──F──▶ (loss, d)
    d ──▶ every stage: its gradient is d·u_k
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import make_dual, unpack_dual

from freewheel.stage._compiled import Apart, CompiledPass
from freewheel.stage._corrections import Gradients
from freewheel.stage._recurrent import recurrent_layers
from freewheel.stage._stage import Stage, Tree, Unit, add
from freewheel.stage._state import kept_buffers, scratch_buffers
from freewheel.stage._trees import Shape, flatten, to_device, unflatten
from freewheel.stage._weights import Live, Weights
from freewheel.tangents import (
    Derivatives,
    Directions,
    DualMode,
    Mover,
    Source,
    Waiting,
    enter_level,
    explained,
    leave_level,
)

# Optimizers that treat each parameter by itself, so that it makes no difference how many of them a step is for.
ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


class Dual(NamedTuple):
    """What a stage passes on: activations, and for each tangent theirs (None for a leaf that has none)."""

    values: Tree
    tangents: list[list[Tensor | None]]


class Found(NamedTuple):
    """What the last stage finds out about a micro-batch: its part of the loss, and the derivative by each tangent."""

    micro: int
    loss: Tensor
    size: int
    derivatives: Tensor


class ForwardStage(Stage):
    """Forward and update are its only verbs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tangents = self.options.tangents
        self._names: Mapping[int, str] = {}
        self._cuts_time = self.options.schedule.along == 1
        self._recurrent = recurrent_layers(self.module, in_pieces=self._cuts_time)
        self._directions = self._make_directions()
        self._compiled: dict[Any, CompiledPass] = {}  # by what is trained
        self._compiles = self.tangents.compile and not self._recurrent
        self._forget()

    def name_parameters(self, names: Mapping[int, str]) -> None:
        """Tells which names parameters have in the whole network, by their id: patterns may use these too."""
        self._names = names
        self._directions = self._make_directions()

    def _make_directions(self) -> Directions:
        named = [
            ((name, f"{self.index}.{name}", *([self._names[id(p)]] if id(p) in self._names else [])), p)
            for name, p in self.module.named_parameters()
        ]
        groups = self.optimizer.param_groups if self.optimizer else ()
        alphas = {id(p): float(group.get("alpha", 1.0)) for group in groups for p in group["params"]}
        tables = [m for m in self.module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        padding = {id(m.weight): m.padding_idx for m in tables if m.padding_idx is not None}
        return Directions(self.tangents, (self.options.seed, self.index), named, alphas, padding, self.device)

    def _make_weights(self) -> Weights:
        return Live(self.module)

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Starts a run; tensors may carry tangents from here on."""
        super().begin(batches_before, epochs_before)
        enter_level()
        self._directions = self._make_directions()
        self._largest = max((p.numel() for p in self.weights.live), default=0)
        self._scrubs = True  # whether the module puts tangents into its buffers, as its first forward shows
        for layer in self._recurrent:
            layer.stream(self._cuts_time)

    def end(self) -> None:
        """Ends it."""
        for layer in self._recurrent:
            layer.stream(False)
        super().end()
        leave_level()

    def _forget(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._found: dict[int, list[Found]] = {}
        self._states: list[list[Any]] = []  # of recurrent layers, for each tangent
        self._learns: tuple[Waiting, Derivatives] | None = None
        self._gradients: Gradients = []

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0) -> Tree:
        """One pass of dual numbers for each tangent. A share of 0 has no loss: a sequence that is not at its end."""
        batch, micro = unit
        if batch not in self._waiting:
            self._waiting[batch] = self._directions.start(self.first_batch + batch, self.epoch)
        if x is None:
            return None
        given = to_device(x, self.device)
        values, tangents = given if isinstance(given, Dual) else (given, [])
        leaves, shape = flatten(values)
        self._share = share
        moved: list[list[Tensor | None]] = tangents or [[None] * len(leaves)] * self.tangents.tangents
        out = self._run_compiled(unit, leaves, moved, shape, target) if self._compiles else None
        if out is None:
            out = [self._run(unit, p, leaves, moved[p], shape, target) for p in range(self.tangents.tangents)]
        if not self.is_last:
            return Dual(out[0][0], [o for _, o in out])
        loss = out[0][0]
        found = Found(micro, loss * share, size, torch.stack([d for _, (d,) in out]) * share)  # pyright: ignore
        self._found.setdefault(batch, []).append(found)
        return loss

    def _run(
        self, unit: Unit, p: int, leaves: list[Any], moved: list[Tensor | None], shape: Shape, target: Tree
    ) -> Apart:
        """One dual pass: values and their tangents; at the last stage, the loss and its derivative."""
        waiting = self._waiting[unit[0]]
        # Whether the module edits its input is found out on a copy, the first time; then only editors get one.
        used = [t.clone() if isinstance(t, Tensor) else t for t in leaves] if self._edits else leaves
        duals = [t if o is None else make_dual(t, o) for t, o in zip(used, moved)]
        with self._pass(unit, p, waiting, still=all(o is None for o in moved)):
            result = self._call_apart(unit, unflatten(duals, shape), target)
        self._edits = self._edits and any(isinstance(t, Tensor) and t._version > 0 for t in used)
        return result

    def _call_apart(self, unit: Unit, x: Tree, target: Tree) -> Apart:
        result = self._call(unit, x, target)
        return (result[0], [result[1]]) if self.is_last else _taken_apart(result)

    def _run_compiled(
        self, unit: Unit, leaves: list[Any], moved: list[list[Tensor | None]], shape: Shape, target: Tree
    ) -> list[Apart] | None:
        """The passes of all tangents, compiled; None where there is no compiled pass for such an input.

        A pass is compiled for the first form of input that is met, and anew when other parameters are trained.
        """
        batch, micro = unit
        waiting = self._waiting[batch]
        if waiting.frozen and all(o is None for o in moved[0]):
            return None
        key = tuple(alpha > 0 for alpha in waiting.alphas), self._share > 0
        given, target_shape = flatten(to_device(target, self.device))
        ready = self._compiled.get(key)
        if ready is not None and not ready.fits(leaves, moved[0], given):
            return None
        used = self._probe(unit, waiting, leaves, moved[0], shape, target) if ready is None else ready.used
        if ready is None and self._draws:
            warnings.warn(f"stage {self.index} draws random numbers (dropout?): it is not compiled", stacklevel=1)
            self._compiles = False
            return None
        which = micro if self.tangents.each == "micro" else 0
        sources = [Source(self._directions, waiting, (which, p)) for p in range(self.tangents.tangents)]
        us = {index: torch.stack([source.tangent(index) for source in sources]) for index in used}  # pyright: ignore
        if ready is None:
            with kept_buffers(self.module):
                ready = self._compiled[key] = CompiledPass(
                    lambda x, y: self._call_apart(unit, x, y),
                    self._directions.index_of,
                    (leaves, shape),
                    moved,
                    (given, target_shape),
                    us,
                )
        values = [t.clone() if isinstance(t, Tensor) else t for t in leaves] if self._edits else leaves
        return ready(values, moved, given, list(us.values()))

    def _probe(
        self, unit: Unit, waiting: Waiting, leaves: list[Any], moved: list[Tensor | None], shape: Shape, target: Tree
    ) -> list[int]:
        """Runs a pass for what it shows: which parameters take part, and whether random numbers are drawn."""
        trial = replace(waiting, used=set())
        duals = [t if o is None else make_dual(t.clone(), o) for t, o in zip(leaves, moved)]
        with scratch_buffers(self.module), self._pass(unit, 0, trial, still=False):
            self._call(unit, unflatten(duals, shape), target)
        return sorted(trial.used)

    @contextmanager
    def _pass(self, unit: Unit, p: int, waiting: Waiting, *, still: bool) -> Iterator[None]:
        """Inside, the module runs on dual numbers. Only the first tangent's pass changes its buffers."""
        micro = unit[1]
        with ExitStack() as stack:
            if p:
                stack.enter_context(scratch_buffers(self.module))
            if still and waiting.frozen and not self._recurrent:
                stack.enter_context(torch.no_grad())
                yield
                return
            if self._cuts_time:
                if micro == 0 and p == 0:
                    self._states = [[None] * len(self._recurrent) for _ in range(self.tangents.tangents)]
                for layer, state in zip(self._recurrent, self._states[p]):
                    layer.go_on(state)
            place = micro if self.tangents.each == "micro" else 0, p
            source = Source(self._directions, waiting, place)
            mover = None
            if self.tangents.perturb == "activations":
                mover = Mover(self._directions, waiting, (micro, p))
            try:
                with torch.enable_grad(), DualMode(source, mover.rules if mover else {}):
                    yield
            except (NotImplementedError, RuntimeError) as error:
                reason = explained(error)
                raise reason from (None if reason is error else error)
            if mover:
                waiting.moves[micro, p] = mover.moves
            if self._cuts_time:
                self._states[p] = [layer.state for layer in self._recurrent]
            if self._scrubs:
                self._scrubs = self._scrub()

    def _scrub(self) -> bool:
        """Takes tangents off the module's buffers; tells whether there were any."""
        found = False
        for child in self.module.modules():
            for name, buffer in child._buffers.items():
                if buffer is not None and unpack_dual(buffer).tangent is not None:
                    child._buffers[name], found = unpack_dual(buffer).primal, True
        return found

    def _finish(self, out: Tree, target: Tree) -> tuple[Tensor, Tensor]:
        """The loss and its directional derivative; for moved activations one for each sample."""
        values, tangents = _taken_apart(out)
        first = next(t for t in flatten(values)[0] if isinstance(t, Tensor))
        samples = first.new_zeros(first.shape[0] if self.tangents.perturb == "activations" else ())
        if not self._share:
            return first.new_zeros(()), samples
        if self.tangents.perturb == "weights":
            loss, d = unpack_dual(self._loss(out, target))
            return loss, torch.zeros_like(loss) if d is None else d
        leaves, shape = flatten(values)
        leaves = [v if o is None else v.detach().requires_grad_() for v, o in zip(leaves, tangents)]
        loss = self._loss(unflatten(leaves, shape), target)
        moved = [(v, o) for v, o in zip(leaves, tangents) if o is not None]
        for g, (_, o) in zip(
            torch.autograd.grad(loss, [v for v, _ in moved], allow_unused=True) if moved else (), moved
        ):
            samples = samples if g is None else samples + (g * o).flatten(1).sum(1)
        return loss.detach(), samples

    # -- update ----------------------------------------------------------------------------------------------------

    def learn(self, batch: int, derivatives: Derivatives) -> None:
        """Takes the directional derivatives of a batch; the update that follows uses them."""
        self._learns = self._waiting.pop(batch), to_device(derivatives, self.device)

    def derivatives(self, batch: int) -> Derivatives:
        """The directional derivatives that the next update uses; the last stage makes them from what it found."""
        if self._learns is None:
            self.learn(batch, self._derived(self._found.pop(batch)))
        assert self._learns is not None
        return self._learns[1]

    def _derived(self, found: list[Found]) -> Derivatives:
        self.losses.append((torch.stack([f.loss for f in found]).sum(0), sum(f.size for f in found)))
        own_samples = self.tangents.perturb == "activations" and not self._cuts_time
        if self.tangents.each == "micro" or own_samples:
            return {f.micro: f.derivatives for f in found}
        return {0: torch.stack([f.derivatives for f in found]).sum(0)}

    def norms(self) -> Tensor:
        """The norm of each weight's gradient, for clipping by the norm over all stages."""
        self._gradients = self._all_gradients()
        norms = [torch.linalg.vector_norm(g) for g in self._gradients if g is not None]
        return torch.stack(norms) if norms else torch.zeros(0, device=self.device)

    def update(self, norm: Tensor | None = None) -> None:
        """Applies d·u. Where nothing needs all gradients at once, they are made and used a few at a time.

        So no more of them are held than the largest parameter takes.
        """
        assert self._learns is not None
        if self._needs_all():
            gradients = self._gradients or self._all_gradients()
            self._apply(gradients, self.weights.live, norm)
        else:
            self._trickle()
        self._gradients, self._learns = [], None

    def _needs_all(self) -> bool:
        """Whether anything looks at all gradients of a batch together."""
        optimizer = self.optimizer
        apart = type(optimizer) in ELEMENTWISE and not optimizer._optimizer_step_pre_hooks  # pyright: ignore
        apart = apart and not optimizer._optimizer_step_post_hooks  # pyright: ignore
        return bool(self.hooks) or self.options.clip is not None or self.tangents.perturb == "activations" or not apart

    @torch.no_grad()
    def _trickle(self) -> None:
        assert self._learns is not None
        held = 0
        for index, weight in enumerate(self._directions.parameters):
            weight.grad = self._directions.gradient(*self._learns, index)
            held += 0 if weight.grad is None else weight.numel()
            if held >= self._largest:
                self._step()
                held = 0
        if held:
            self._step()
        self._stepped()
        self._updated()

    @torch.no_grad()
    def _all_gradients(self) -> Gradients:
        assert self._learns is not None
        moved = self._directions.moved_gradients(*self._learns)
        of_weights = (
            (i, self._directions.gradient(*self._learns, i))
            for i, p in enumerate(self._directions.parameters)
            if p.requires_grad
        )
        return [add(g, moved.get(i)) for i, g in of_weights]


def _taken_apart(tree: Tree) -> tuple[Tree, list[Tensor | None]]:
    """A tree without its tangents, and the tangents of its leaves."""
    leaves, shape = flatten(tree)
    if any(isinstance(t, Tensor) and t.requires_grad for t in leaves):
        # Parameters take part without their own requires_grad, so one of them went past the dual pass.
        raise TypeError(
            "a parameter was used where its tangent cannot be seen, in an autograd.Function or a scripted module: give "
            "the function parameter * 1, and the trainer modules that are not scripted"
        )
    pairs = [unpack_dual(t) if isinstance(t, Tensor) else (t, None) for t in leaves]
    return unflatten([value for value, _ in pairs], shape), [tangent for _, tangent in pairs]
