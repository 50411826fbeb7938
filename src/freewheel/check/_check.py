"""The check: on copies, and on a few samples of the first batch.

::

    the network as a whole      x ──▶ output                 the same output?   else the split is wrong
    its stages in a row         x ──▶ output
    ... without cuts            loss.backward()              the same gradients?
    ... as they will be trained F, B, U of each stage        else something is lost between stages
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from freewheel._compare import far_apart
from freewheel.check._copies import Network, Samples, some_of
from freewheel.check._graph import check_leaves
from freewheel.check._parts import check_parts
from freewheel.check._plain import MismatchError, Plain
from freewheel.check._recorder import Recorder, nudge
from freewheel.check._shared import check_loss, check_shared
from freewheel.plan import Plan, Schedule
from freewheel.runtime import RUNTIMES, Batch, Before, Feed, Run, RunSpec, StageError, seeded, split_samples
from freewheel.stage import Blueprint, StageOptions

SAMPLES = 4
WAVERS = (
    "the network computes something else each time it sees the same batch: keep counters and generators in its "
    "modules, not in global variables"
)
ADVICE = "if this is intended, or the fault is ours, train with check=False"


def check_network(
    model: nn.Module,
    blueprints: Sequence[Blueprint],
    batch: Batch,
    before: Before,
    *,
    sequential: bool,
    planned: bool,
) -> None:
    """Refuse a network whose stages compute something else than the whole, before a weight has changed.

    Args:
        model: The network as a whole.
        blueprints: Its stages.
        batch: The first batch.
        before: What was trained earlier.
        sequential: Whether `model` is nothing but its stages in a row.
        planned: Whether the result must not depend on timing.
    """
    options = blueprints[0].options
    network = Network(model, [blueprint.module for blueprint in blueprints], options.config.loss)
    few = max(SAMPLES, 2 * options.schedule.micro * options.schedule.replicas)
    with seeded(options.config.seed):
        # What is compiled for the whole batch is what will be trained with.
        for count in (batch.size,) if options.config.compile else (few, batch.size):
            plain, ours = network.copy(), network.copy()
            if plain is None or ours is None:
                return
            check = _Check(network, plain, ours, blueprints, some_of(batch, count), before, planned=planned)
            try:
                if not sequential:
                    check.outputs()
                expected = check.expected()
                check.state(options.schedule)
            except MismatchError:
                raise
            except Exception:  # it needs the whole batch, or it fails in plain PyTorch, too: training says how
                continue
            try:
                check.gradients(expected)
                return
            except StageError:  # it may need the whole batch
                if count == batch.size:
                    raise


class _Check:
    """One check, on a few samples."""

    def __init__(
        self,
        network: Network,
        plain: Network,
        ours: Network,
        blueprints: Sequence[Blueprint],
        samples: Samples,
        before: Before,
        *,
        planned: bool,
    ) -> None:
        options = blueprints[0].options
        self._network, self._samples, self._before, self._blueprints = network, samples, before, blueprints
        self._schedule = replace(options.schedule, credit=options.credit.probe(), norms=False, replicas=1)
        self._config = replace(options.config, loss=ours.loss, clip=None, clip_scope="stage", slow=None, replicas=1)
        self._ours = ours
        self._runs = partial(Plain, config=options.config, first_batch=before.batches, planned=planned)
        self._plain = self._runs(plain)
        self._planned, self._exact = planned, options.credit.exact
        self._coarse = options.config.autocast is not None
        # Weights that move show whether a late backward uses those of its forward.
        self._moves = self._schedule.weights == "stash" and options.credit.exact and self._schedule.asynchronous
        self._batches = 2 if self._schedule.asynchronous else 1

    def outputs(self) -> None:
        """Compare the output of the whole network with that of its stages in a row.

        Each copy makes one forward, so that those with a state of their own remain alike.
        """
        plain, ours = self._plain.network, self._ours
        whole, layers = self._plain.outputs(plain, plain.model, self._samples)
        staged, ours = self._plain.outputs(ours, nn.Sequential(*ours.stages), self._samples)
        if len(whole) == len(staged) and not any(map(self._differ, staged, whole)):
            return
        wrong = [name for name, out in layers.items() if name in ours and any(map(self._differ, ours[name], out))]
        where = f"from {wrong[0]!r} on" if wrong else "in its output"
        raise MismatchError(
            f"the stages compute something else than the whole network, {where}: split it again, or elsewhere; {ADVICE}"
        )

    def expected(self) -> list[dict[int, Tensor | None]]:
        """Return what plain PyTorch finds for each batch, at the weights that the stages' forwards see."""
        if self._schedule.along:
            return []
        plan = Plan.build(self._schedule, self._batches)
        expected = []
        for number in range(self._batches):
            if self._moves:
                self._move([plan.versions(k, number).forward for k in range(self._schedule.stages)])
            x, target = self._samples.fresh()
            size, micro = self._samples.size, self._schedule.micro
            inputs, targets = (split_samples(tree, size, micro, "batch") for tree in (x, target))
            pieces = [(x, y, share) for (x, n, share), (y, _, _) in zip(inputs, targets) if n]
            on_loss = partial(check_leaves, network=self._network, schedule=self._schedule)
            expected.append(self._plain.gradients(number, pieces, on_loss))
            self._check_made()
        return expected

    def _check_made(self) -> None:
        """Refuse parameters that a forward has made, which no optimizer has."""
        known = set(self._network.names.values())
        made = [name for name in self._plain.network.names.values() if name not in known]
        if made:
            raise MismatchError(
                f"{made[0]!r} is made in forward, after the optimizers, which would not train it: run the network on "
                "one batch before you make the trainer"
            )

    def state(self, schedule: Schedule) -> None:
        """Compare the loss of a batch with those of its parts, and look for state that workers would not share."""
        if not self._exact and self._wavers():  # of others the gradients are compared
            raise MismatchError(f"{WAVERS}; {ADVICE}")
        if not self._planned:
            check_shared(self._network.copy(), self._runs, self._samples)
        if not self._planned or schedule.credit.needs_targets:
            check_loss(self._network.copy(), self._runs, self._samples)
        if schedule.micro > 1 or schedule.replicas > 1:
            check_parts(self._network.copy(), self._runs, self._samples, schedule)

    def _move(self, versions: Sequence[int]) -> None:
        """Set the weights of each stage to a version."""
        for stage, own, version in zip(self._plain.network.stages, self._network.stages, versions):
            for ours, original in zip(stage.parameters(), own.parameters()):
                if ours.requires_grad:
                    weight = original.detach().clone()
                    for _ in range(version):
                        weight += nudge(original)
                    ours.detach().copy_(weight)

    def gradients(self, expected: list[dict[int, Tensor | None]]) -> None:
        """Compare the gradients that the stages find with the expected ones."""
        recorders = self._run()
        names = self._ours.names
        pairs = list(zip(self._ours.parameters, self._plain.network.parameters, strict=True))
        known = {key for recorder in recorders for step in recorder.steps for key in step}
        for number, theirs in enumerate(expected):
            found: dict[int, Tensor | None] = {}
            for recorder in recorders:
                found |= recorder.steps[number] if number < len(recorder.steps) else {}
            ours = [found.get(id(p)) for p, _ in pairs]
            wanted = [theirs[id(p)] for _, p in pairs]
            for (p, _), want in zip(pairs, wanted):
                if id(p) not in known and want is not None and want.any():
                    raise MismatchError(f"no stage trains {names[id(p)]!r}, which plain PyTorch does; {ADVICE}")
            tolerance = {"coarse": self._coarse, "compiled": self._config.compile}
            wrong = self._schedule.credit.wrong_gradient(ours, wanted, **tolerance)  # pyright: ignore
            if wrong is not None:
                index, how = wrong
                name = names[id(pairs[index][0])]
                raise MismatchError(f"the gradient of {name!r} {how} in plain PyTorch{self._reason()}; {ADVICE}")

    def _reason(self) -> str:
        """A likely reason, if one is known."""
        if self._wavers():
            return f" ({WAVERS})"
        if self._schedule.weights != "recompute" or not self._schedule.asynchronous:
            return ""
        return " (weights='recompute' runs a stage twice for each batch: a module must not count or remember its calls)"

    def _wavers(self) -> bool:
        """Whether two copies of the network have different losses for the same samples."""
        copies = (self._network.copy() for _ in range(2))
        losses = [self._runs(each).loss((0, 0), *self._samples.fresh()) for each in copies if each is not None]
        return self._differ(losses[0], losses[-1])

    def _run(self) -> list[Recorder]:
        """Train the copies for a few batches, with optimizers that record."""
        factory = partial(Recorder, moves=self._moves)
        options = StageOptions(
            schedule=self._schedule, config=replace(self._config, optimizer=factory)
        )  # of heads, too
        blueprints = [
            replace(each, module=module, options=options, optimizer=each.optimizer and factory, scheduler=None)
            for each, module in zip(self._blueprints, self._ours.stages)
        ]
        stages = [blueprint.build() for blueprint in blueprints]
        feed = Feed([self._samples.fresh() for _ in range(self._batches)], 1)
        spec = RunSpec(seed=self._config.seed, before=self._before, states=False, writer=None, checkpoint=None)
        run = Run(self._config, stages, blueprints, feed, spec, lambda cut: False, lambda outcome: {})
        RUNTIMES["simulate"].run(run)
        return [stage.optimizer for stage in stages if isinstance(stage.optimizer, Recorder)]

    def _differ(self, ours: Tensor, theirs: Tensor) -> bool:
        return far_apart(ours, theirs, coarse=self._coarse)
