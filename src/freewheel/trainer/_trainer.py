"""The trainer: stages, a method, an optimizer and a runtime, put to work on a loader."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from freewheel._cores import intra_op_threads, share
from freewheel._errors import unknown, whole_number
from freewheel.checkpoint import Found, find, full_names
from freewheel.methods import Method, Racing
from freewheel.methods import method as find_method
from freewheel.racing import runtime_of
from freewheel.runtime import (
    RUNTIMES,
    TRANSPORTS,
    Abroad,
    Transport,
    check_started,
    device_mesh,
    joined_job,
    rank_and_size,
)
from freewheel.split import Stages
from freewheel.stage import ForwardStage, HeadedStage, Loss
from freewheel.tangents import check_patterns
from freewheel.trainer._blueprint import SchedulerFactory
from freewheel.trainer._checks import OptimizerFactory, check_fit, check_race, check_seconds, check_stages
from freewheel.trainer._evaluate import Metric, accuracy, evaluate
from freewheel.trainer._fit import Callback, Chain, fit
from freewheel.trainer._history import History, Score
from freewheel.trainer._resume import look_up, take_up
from freewheel.trainer._saving import Every, Resumed, Saving, check_folder, check_saving
from freewheel.trainer._setup import set_up


class Trainer:
    """Trains a network in stages, asynchronously, to the same weights bit for bit on every runtime.

    Args:
        stages: The network in order: `fw.split(model, k, example=x)`, or any list of modules, each taking what the
            one before returns.
        method: A method, or its name: `fw.FDG(shrink=0.5)`, `"fdg"`, `fw.Pipeline(delays=(2, 0))`. Those that race on
            shared weights (`"async-lu"`) take the stages as one network: see docs/shared-memory.md.
        loss: Gets the last stage's output and the target, gives one number, the mean over the batch.
        optimizer: A factory called with each stage's parameters; or a dict of factories by stage.
        scheduler: A factory called with each stage's optimizer; stepped once per update.
        runtime: `threads` (a thread a stage), `processes` (a process a stage), `torchrun` (this process has one of the
            stages, torchrun has started the others) or `simulate` (all in one thread).
        seed: Fixes everything that is drawn while training: dropout, shuffling by torch's and Python's generators.
        clip: Largest norm of a gradient.
        clip_scope: Whether that is the norm over a `stage`, or the `global` one over all (synchronous methods only).
        autocast: `torch.bfloat16` runs forwards in it.
        metric: Gets output and target, gives a number, or None; accuracy by default where the target is a class.
        threads: Intra-op threads of each stage; the cores shared out evenly by default. Results depend on it, and on
            nothing else of the machine.
        slack: Extra length of the queues between stages; never changes the result.
        timeout: Seconds after which a process that gives no sign of life, or a stage that is still at the same action,
            is taken for lost (`processes`, `torchrun`).
        transport: How messages travel between processes: `shared` memory, `gloo`, `nccl` between stages on GPUs, or
            `auto`: NCCL between different GPUs, else shared memory between processes on one host.
        interface: The network interface of gloo's sockets, such as `eth0`; loopback by default on one host.
        replicas: Copies of the whole pipeline that learn together, each from its own part of every batch; see
            docs/replicas.md.
        slow: Stragglers, for study: `{1: (0.3, 0.5)}` makes 3 in 10 batches take half as long again at stage 1, drawn
            from the seed; never changes the result.

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

    def __init__(
        self,
        stages: Sequence[nn.Module],
        *,
        method: str | Method = "pipedream",
        loss: Loss,
        optimizer: OptimizerFactory | Mapping[int, OptimizerFactory],
        scheduler: SchedulerFactory | None = None,
        runtime: str = "threads",
        seed: int = 0,
        clip: float | None = None,
        clip_scope: Literal["stage", "global"] = "stage",
        autocast: torch.dtype | None = None,
        metric: Metric = accuracy,
        threads: int | None = None,
        slack: int = 0,
        timeout: float = 300.0,
        transport: Transport = "auto",
        interface: str | None = None,
        replicas: int = 1,
        slow: Mapping[int, tuple[float, float]] | None = None,
    ) -> None:
        modules = check_stages(stages)
        for kind, value, known in (("runtime", runtime, RUNTIMES), ("transport", transport, TRANSPORTS)):
            if value not in known:
                raise unknown(kind, value, known)
        for name, value in (("loss", loss), ("metric", metric)):
            if not callable(value):
                raise TypeError(f"{name}={value!r}: give a function of the output and the target")
        if scheduler is not None and not callable(scheduler):
            raise TypeError(f"scheduler={scheduler!r}: give a factory, such as partial(StepLR, step_size=1000)")
        self.method = find_method(method)
        self.runtime = runtime
        self.metric = metric
        self.replicas = whole_number("replicas", replicas, least=1)
        if isinstance(self.method, Racing):
            check_race(
                self.method,
                runtime,
                replicas=replicas != 1,
                clip=clip is not None,
                autocast=autocast is not None,
                slack=slack != 0,
                slow=bool(slow),
            )
        places = self.method.total_workers if isinstance(self.method, Racing) else len(modules) * self.replicas
        self.threads = whole_number("threads", threads, least=1) if threads is not None else share(places)
        self.seed = whole_number("seed", seed, least=0)
        self._model = stages.model if isinstance(stages, Stages) else Chain(modules)
        setup = set_up(
            modules,
            self._model,
            self.method,
            optimizer,
            scheduler,
            loss=loss,
            seed=self.seed,
            clip=clip,
            clip_scope=clip_scope,
            autocast=autocast,
            slack=slack,
            replicas=self.replicas,
            slow=slow,
        )
        self.plan, self._options, drawn = setup.plan, setup.options, setup.blueprints
        self._stages = [blueprint.build() for blueprint in drawn[: len(modules)]]
        self._abroad = Abroad(
            orders=[blueprint.build for blueprint in drawn],
            timeout=check_seconds("timeout", timeout),
            transport=transport,
            interface=interface,
        )
        if runtime == "torchrun":
            check_started(len(modules), self.replicas)
        if runtime == "processes":
            for blueprint in drawn[: len(modules)]:
                blueprint.check_travels()
        self._runs = RUNTIMES[runtime]
        if isinstance(self.method, Racing):
            self._runs = runtime_of(self.method, runtime, drawn)
        self._check_scale(range(1))
        self._batches = self._epochs = 0
        self._running = False
        self._resumed: Resumed | None = None
        self.resumed_from: Path | None = None  # the checkpoint that it was last taken up from
        self._run = uuid.uuid4().hex  # tells its checkpoints from those of others

    @classmethod
    def resume(cls, path: str | Path, stages: Sequence[nn.Module], **arguments: Any) -> Trainer:
        """A trainer that goes on from a checkpoint: see docs/checkpoints.md.

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
        found = look_up(path)
        trainer = cls(stages, **arguments)
        trainer._take_up(found)
        return trainer

    def _take_up(self, found: Found) -> None:
        manifest, self.resumed_from = found.manifest, found.folder
        self._resumed = take_up(found, self._stages, self._names, self.threads)
        if self._resumed is not None and isinstance(self.method, Racing):
            raise ValueError(
                f"resume with {self.method.name} from {found.folder}: it was saved in the middle of a fit, and a race "
                "begins with one; finish that fit first, with its own method"
            )
        self._run, self._batches, self._epochs = manifest.run, manifest.batches_before, manifest.epochs_before
        if self._resumed is None:
            self._batches += manifest.batches
            self._epochs += len(manifest.history["epochs"]) if manifest.history else 0

    def _join_job(self, folder: Path) -> None:
        """Under torchrun, all processes save one run; one that was started again goes on from its last checkpoint."""
        if self._resumed is not None:
            return
        self._run, restarted = joined_job(self._run)
        found = find(folder, run=self._run) if restarted else None
        if found is not None and found.manifest.progress is not None:
            self._take_up(found)

    @property
    def unfinished(self) -> int | None:
        """The epochs of the fit in whose middle this trainer was resumed; the next `fit` goes on with that one."""
        return None if self._resumed is None else self._resumed.epochs

    @property
    def _names(self) -> list[dict[str, str]]:
        return full_names(self._model, self.stages)

    def save(self, path: str | Path) -> None:
        """Saves the trainer, as it is between two calls of `fit`, as a checkpoint in this folder; see `resume`.

        Under `torchrun` every process may call it; rank 0 writes.
        """
        if self._running:
            raise RuntimeError("save while fit is running: give fit save_to and save_every, which save as it goes on")
        if self._resumed is not None:
            raise RuntimeError(
                "save of a trainer that was resumed in the middle of a fit: call fit first, to go on with it"
            )
        folder = check_folder("path", path)
        if not self._follows:
            self._saving(folder, "epoch").idle()

    @property
    def _follows(self) -> bool:
        """Whether another process of torchrun puts checkpoints together."""
        return self.runtime == "torchrun" and rank_and_size()[0] > 0

    def _saving(self, folder: Path, every: Every, epochs: int = 0) -> Saving:
        return Saving(
            folder,
            every,
            self._stages,
            self._names,
            plan=self.plan,
            threads=self.threads,
            run=self._run,
            before=(self._batches, self._epochs),
            epochs=epochs,
            follows=self._follows,
        )

    def _check_scale(self, epochs: range) -> None:
        """Refuses name patterns that fit nothing in these epochs, before any of them begins."""
        names = [names for stage in self._stages if isinstance(stage, ForwardStage) for names in stage.names]
        check_patterns(self._options.tangents.scale, epochs, names)

    @property
    def stages(self) -> list[nn.Module]:
        """The stages, as they were handed in."""
        return [stage.module for stage in self._stages]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer | None]:
        """Each stage's optimizer, None for a stage with nothing to train."""
        return [stage.optimizer for stage in self._stages]

    @property
    def heads(self) -> list[nn.Module | None]:
        """Each stage's head (`dgl`) or predictor of gradients (`dni`); None where there is none, or none yet."""
        owned = [stage.owned if isinstance(stage, HeadedStage) else None for stage in self._stages]
        return [None if own is None else own.module for own in owned]

    def model(self) -> nn.Module:
        """The trained network: the model that was split, with its own parameter names, or the stages in a row."""
        return self._model

    def mesh(self) -> DeviceMesh:
        """Under `torchrun`, its processes as a mesh of R replicas by K stages, for collectives of one's own."""
        if self.runtime != "torchrun":
            raise RuntimeError(f"mesh with runtime={self.runtime!r}: only the processes of 'torchrun' form a mesh")
        return device_mesh(len(self._stages), self.replicas, timeout=self._abroad.timeout)

    def evaluate(self, loader: Iterable[Any]) -> Score:
        """The loss and the metric on a loader, in eval mode; nothing is changed."""
        with intra_op_threads(self.threads):
            return evaluate(
                self.stages,
                loader,
                loss=self._options.loss,
                metric=self.metric,
                autocast=self._options.autocast,
            )

    def fit(
        self,
        loader: Iterable[Any],
        epochs: int = 1,
        *,
        validate: Iterable[Any] | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        save_to: str | Path | None = None,
        save_every: Every | None = None,
    ) -> History:
        """Trains for a number of passes over the loader, and returns what happened.

        Between epochs the pipeline runs on; `validate` and the callbacks see a copy of the network as it was after
        exactly so many batches. A callback that returns True ends the training with the weights of that copy. At the
        end the pipeline drains: after N batches every stage has made N updates. Ctrl-C ends it in the same way, after
        the batches that are under way.

        Args:
            loader: Anything that gives (input, target) pairs and can be iterated once per epoch.
            epochs: Passes over it.
            validate: A loader to score the network on after every epoch.
            callbacks: Functions of an `EpochEnd`.
            progress: Whether to show a progress bar; by default where standard error is a terminal.
            save_to: A folder for checkpoints, of which the last two are kept; one is saved at the end, too.
            save_every: After how many batches one is saved; `epoch`, the default, for the end of each. The pipeline
                does not drain for it, and no stage waits for another.
        """
        check_fit(loader, epochs, callbacks, unfinished=self.unfinished)
        if self._running:
            raise RuntimeError("fit is already running on this trainer: wait for it, or make another trainer")
        self._check_scale(range(self._epochs, self._epochs + epochs))
        where = check_saving(save_to, save_every)
        if where is not None and isinstance(self.method, Racing):
            raise ValueError(
                f"save_to with {self.method.name}: a race cannot be taken up in its middle; call trainer.save between "
                "two calls of fit"
            )
        if where is not None and self.runtime == "torchrun":
            self._join_job(where[0])
        resumed, self._resumed = self._resumed, None
        self._running = True
        try:
            history = fit(
                self._stages,
                loader,
                epochs,
                runtime=self._runs,
                abroad=self._abroad,
                threads=self.threads,
                metric=self.metric,
                validate=validate,
                callbacks=callbacks,
                progress=progress,
                batches_before=self._batches,
                epochs_before=self._epochs,
                saving=self._saving(*where, epochs) if where else None,
                resumed=resumed,
            )
        finally:
            self._running = False
        self._batches += history.batches
        self._epochs += len(history.epochs)
        return history
