"""The trainer: stages, a method, an optimizer and a runtime, put to work on a loader."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from freewheel._config import RunConfig
from freewheel._cores import intra_op_threads
from freewheel.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Every,
    Manifest,
    check_folder,
    check_saving,
    find,
    find_latest,
    full_names,
    settings_of,
)
from freewheel.methods import Method
from freewheel.plan import Plan
from freewheel.runtime import RUNTIMES, Before, RuntimeChoice
from freewheel.split import Stages
from freewheel.stage import retrained, without_loss
from freewheel.trace import traced_batches
from freewheel.trainer._callbacks import BatchCallback, Callback, StageSequence
from freewheel.trainer._evaluate import evaluate, predict
from freewheel.trainer._fit import Fit
from freewheel.trainer._history import History, Score
from freewheel.trainer._modes import Modes
from freewheel.trainer._request import FitRequest, passes
from freewheel.trainer._schedule import fit_by_epochs, waits_for_plateau, warn_of_epochs
from freewheel.trainer._setup import check_stages, set_up, takes_options


class Trainer:
    """Trains a network in stages, asynchronously, to the same weights bit for bit on every runtime.

    Args:
        stages: The network in order: `fw.split(model, k, example=x)`, or any list of modules, each taking what the
            one before returns.
        options: Those of `fw.RunConfig`; `loss` and `optimizer` are needed.

    Example:
        >>> from functools import partial
        >>> import torch.nn.functional as F
        >>> import freewheel as fw
        >>> stages = [nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2)]
        >>> trainer = fw.Trainer(stages, method="pipedream", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1), runtime="threads", seed=0)
        >>> loader = [(torch.randn(16, 4), torch.randint(2, (16,))) for _ in range(5)]
        >>> history = trainer.fit(loader, epochs=2)
        >>> len(history.epochs), history.batches, history.epochs[1].staleness
        (2, 10, (1.0, 0.0))
    """

    @takes_options(RunConfig)
    def __init__(self, stages: Sequence[nn.Module], config: RunConfig) -> None:
        modules = check_stages(stages)
        is_split = isinstance(stages, Stages)
        self._model = stages.model if is_split else StageSequence(modules)
        self._setup = setup = set_up(modules, self._model, config, stages.report.seconds if is_split else ())
        self._stages = [blueprint.build() for blueprint in setup.blueprints[: len(modules)]]
        self._runtime = RUNTIMES[setup.config.runtime]
        self._runtime.check(setup.config, setup.blueprints)
        setup.options.credit.check_epochs(self._stages, range(1))
        self._modes = Modes([stages.model] if is_split else modules, modules)
        if waits_for_plateau(self._stages) and not self.method.planned:
            raise ValueError(
                f"scheduler: ReduceLROnPlateau with {self.method.name}, which has no step size for an epoch"
            )
        self._before, self._running, self._names = Before(), False, self._named()
        self._resumed: Checkpoint | None = None  # in the middle of a fit
        self.resumed_from: Path | None = None  # the checkpoint that it was last resumed from
        self._run = uuid.uuid4().hex  # tells its checkpoints from those of others

    @property
    def config(self) -> RunConfig:
        """The options, with the method found and the threads counted."""
        return self._setup.config

    @property
    def runtime(self) -> RuntimeChoice:
        """The name of the runtime, and why it was chosen."""
        return self._setup.choice

    @property
    def method(self) -> Method:
        """The method."""
        return self._setup.method

    @property
    def plan(self) -> Plan | None:
        """The method's plan; None for a method that has none."""
        return self._setup.plan

    @classmethod
    def resume(cls, path: str | Path, stages: Sequence[nn.Module], **arguments: Any) -> Trainer:
        """A trainer that goes on from a checkpoint: see docs/guides/checkpoints.md.

        Where the checkpoint was saved in the middle of a fit, the next `fit`, with the same loader and the same number
        of epochs, goes on with that one, to the same bits as if nothing had happened. Batches in flight can only be
        taken up by a trainer with the same arguments (the runtime aside); with none in flight, the number of stages,
        the method, the seed and so on may change.

        Args:
            path: A folder that `save_to` or `save` has named, of which the last good checkpoint is taken; or one
                checkpoint in it.
            stages: The network; what its weights are does not matter.
            arguments: Those of `Trainer`.
        """
        checkpoint = find(path)
        trainer = cls(stages, **arguments)
        trainer._resume_from(checkpoint)
        return trainer

    def _resume_from(self, checkpoint: Checkpoint) -> None:
        manifest, self.resumed_from = checkpoint.manifest, checkpoint.folder
        loaded = checkpoint.load(self._stages, self._named())
        self._resumed = loaded if manifest.unfinished else None
        if self._resumed is not None:
            self.method.check_checkpoints(f"resume from {checkpoint.folder}")
        self._run, self._before = manifest.run, Before(manifest.batches_before, manifest.epochs_before)
        if self._resumed is None:
            epochs = len(manifest.history["epochs"]) if manifest.history else 0
            self._before = Before(self._before.batches + manifest.batches, self._before.epochs + epochs)

    def _join_job(self, folder: Path) -> None:
        """Under torchrun, all processes save one run; one that was started again goes on from its last checkpoint."""
        if self._resumed is not None:
            return
        self._run, restarted = self._runtime.join_job(self._run)
        latest = find_latest(folder, self._run) if restarted else None
        if latest is not None and latest.manifest.unfinished:
            self._resume_from(latest)

    @property
    def unfinished(self) -> int | None:
        """The epochs of the fit in whose middle this trainer was resumed; the next `fit` goes on with that one."""
        return None if self._resumed is None else self._resumed.position.epochs

    def _at_rest(self, what: str, instead: str) -> None:
        """Refuse what meets the stages, while they run."""
        if self._running:
            raise RuntimeError(f"{what} while fit is running on this trainer: {instead}")

    def _named(self) -> list[dict[str, str]]:
        """For each stage, the names of its tensors in the whole network."""
        return full_names(self._model, [stage.module for stage in self._stages])

    def save(self, path: str | Path) -> None:
        """Save the trainer, as it is between two calls of `fit`, as a checkpoint in this folder; see `resume`.

        Under `torchrun` every process may call it; rank 0 writes.
        """
        self._at_rest("save", "give fit save_to and save_every, which save as it goes on")
        if self._resumed is not None:
            raise RuntimeError(
                "save of a trainer that was resumed in the middle of a fit: call fit first, to go on with it"
            )
        folder = check_folder("path", path)
        writer = self._writer(folder, "epoch")
        if writer.completes:
            writer.save(self._stages)

    def _writer(self, folder: Path, every: Every) -> CheckpointWriter:
        manifest = Manifest(
            run=self._run,
            plan=self.method.name if self.plan is None else str(self.plan).splitlines()[0].rpartition(" batches=")[0],
            settings=settings_of(self._setup.options),
            batches_before=self._before.batches,
            epochs_before=self._before.epochs,
        )
        leads = self._runtime.leads
        return CheckpointWriter(folder=folder, every=every, names=self._named(), manifest=manifest, completes=leads)

    @property
    def stages(self) -> list[nn.Module]:
        """The stages, as they were handed in."""
        return [without_loss(stage.module) for stage in self._stages]

    @property
    def devices(self) -> list[torch.device]:
        """Each stage's device."""
        return [stage.device for stage in self._stages]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer | None]:
        """Each stage's optimizer, None for a stage with nothing to train."""
        return [stage.optimizer for stage in self._stages]

    @property
    def heads(self) -> list[nn.Module | None]:
        """Each stage's head (`dgl`) or predictor of gradients (`dni`); None where there is none, or none yet."""
        return [stage.head for stage in self._stages]

    def model(self) -> nn.Module:
        """The trained network: the model that was split, with its own parameter names, or the stages in a row."""
        return self._model

    def mesh(self) -> DeviceMesh:
        """Under `torchrun`, its processes as a mesh of R replicas by K stages, for collectives of one's own."""
        return self._runtime.mesh(self.config, len(self._stages))

    def evaluate(self, loader: Iterable[Any]) -> Score:
        """Compute the loss and the metric on a loader, in eval mode; nothing is changed."""
        self._at_rest("evaluate", "give fit validate, or score end.model() in a callback")
        with intra_op_threads(self._setup.threads):
            return evaluate(self.stages, loader, self.config)

    def predict(self, loader: Iterable[Any]) -> list[Any]:
        """Return the network's output for each batch of a loader, in eval mode and on the CPU.

        The loader gives inputs, or what `fit` takes; targets are not used.
        """
        self._at_rest("predict", "use end.model() in a callback")
        with intra_op_threads(self._setup.threads):
            return predict(self.stages, loader, self.config)

    def fit(
        self,
        loader: Iterable[Any],
        epochs: int | None = None,
        *,
        max_steps: int | None = None,
        validate: Iterable[Any] | None = None,
        callbacks: Sequence[Callback] = (),
        batch_callbacks: Sequence[BatchCallback] = (),
        gradient_norms: bool = False,
        progress: bool | None = None,
        save_to: str | Path | None = None,
        save_every: Every | None = None,
        trace: bool | range = False,
        on_progress: Callable[[int, int | None], object] | None = None,
    ) -> History:
        """Trains for a number of passes over the loader, and returns what happened.

        Between epochs the pipeline runs on; `validate` and the callbacks see a copy of the network as it was after
        exactly that many batches. A callback that returns True ends the training with the weights of that copy. At the
        end the pipeline drains: after N batches every stage has made N updates. Ctrl-C ends it in the same way, after
        the batches that are under way.

        Args:
            loader: Anything that gives (input, target) pairs and can be iterated once per epoch.
            epochs: Passes over it: one by default, or as many as `max_steps` takes.
            max_steps: Batches after which the training ends, wherever in an epoch that is.
            validate: A loader to score the network on after every epoch.
            callbacks: Functions of an `EpochEnd`.
            batch_callbacks: Functions of a `BatchEnd`, called for each batch in order; they cannot end the training.
            gradient_norms: Whether a `BatchEnd` has the norm of each stage's gradient.
            progress: Whether to show a progress bar; by default where standard error is a terminal.
            save_to: A folder for checkpoints, of which the last two are kept; one is saved at the end, too.
            save_every: After how many batches one is saved; `epoch`, the default, for the end of each. The pipeline
                does not drain for it, and no stage waits for another.
            trace: Whether `history.trace` has what every stage has done, and when; or the numbers of the batches for
                which it has that. Under `torchrun` rank 0 has it.
            on_progress: A function of the number of batches that have begun and of their total, None if unknown. It is
                called as each begins, so it should be quick.
        """
        request = FitRequest(
            loader=loader,
            epochs=passes(loader, epochs, max_steps),
            max_steps=max_steps,
            validate=validate,
            callbacks=callbacks,
            batch_callbacks=batch_callbacks,
            gradient_norms=gradient_norms,
            progress=progress,
            save_to=save_to,
            save_every=save_every,
            trace=traced_batches(trace),
            on_progress=on_progress,
        )
        if waits_for_plateau(self._stages):
            return fit_by_epochs(self._fit, self._stages, request)
        return self._fit(request)

    def _fit(self, request: FitRequest) -> History:
        epochs = request.epochs
        if self.unfinished not in (None, epochs):
            raise ValueError(
                f"epochs={epochs}: this trainer was resumed in the middle of a fit of {self.unfinished}; give "
                f"epochs={self.unfinished} to go on with it"
            )
        if request.batch_callbacks:
            self.method.check_batch_callbacks()
        if request.trace is not None:
            self.method.check_trace(stage.device for stage in self._stages)
        self._at_rest("fit", "wait for it, or make another trainer")
        trained = self._before.epochs
        self._setup.options.credit.check_epochs(self._stages, range(trained, trained + epochs))
        for stage in self._stages:
            stage.check()
        warn_of_epochs(self._stages, request)
        writer, self._names = self._start_writing(request), self._named()
        resumed, self._resumed = self._resumed, None
        self._running = True
        try:
            self._modes.train()
            self._setup = replace(self._setup, blueprints=retrained(self._stages, self._setup.blueprints))
            history = Fit(self._setup, self._stages, request, self._before, writer, resumed).run()
        finally:
            self._running = False
        self._before = Before(self._before.batches + history.batches, trained + len(history.epochs))
        return history

    def _start_writing(self, request: FitRequest) -> CheckpointWriter | None:
        if (where := check_saving(request.save_to, request.save_every)) is None:
            return None
        self.method.check_checkpoints("save_to")
        self._join_job(where[0])
        return self._writer(*where)
