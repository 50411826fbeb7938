"""The configuration of a training run, frozen and passed whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from freewheel._errors import check_callable, number, of_type, one_of, whole_number
from freewheel._metrics import EpochMetric, Metric, accuracy

if TYPE_CHECKING:
    from freewheel.methods import Method

Loss = Callable[[Any, Any], Tensor]
OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
Transport = Literal["auto", "shared", "gloo", "nccl"]
TRANSPORTS: tuple[Transport, ...] = ("auto", "shared", "gloo", "nccl")
Part = str | int  # a key of a batch that is a dict, or a position in one that is a tuple
Parts = Part | Sequence[Part]
Stragglers = Mapping[int, tuple[float, float]]  # stage -> probability, factor


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of a `Trainer`.

    Args:
        method: A method, or its name: `fw.FDG(shrink=0.5)`, `"fdg"`, `fw.Pipeline(delays=(2, 0))`. Racing methods on
            shared weights (`"async-lu"`) treat the stages as one network: see docs/guides/shared-memory.md.
        loss: Maps the last stage's output and the target to the mean loss over the batch.
        optimizer: A factory called with each stage's parameters; or a dict of factories by stage. A factory whose
            argument is called `named_parameters` gets pairs of a parameter's name in the network and the parameter.
        scheduler: A factory called with each stage's optimizer.
        scheduler_every: Whether it is stepped after every update (`batch`) or at the end of every `epoch`. A
            `ReduceLROnPlateau` is stepped at the end of every epoch, once the pipeline has drained, with the validation
            loss (the training loss without `validate`).
        accumulate: Batches per optimizer step, which is made with the mean of their gradients.
        runtime: `threads` (a thread per stage), `processes` (a process per stage), `torchrun` (this process runs one
            stage, torchrun starts the others), `graph` (all on one GPU, as CUDA graphs), `simulate` (all in one
            thread), or `auto`: the one that suits devices and method; `Trainer.runtime` says which, and why.
        seed: Seeds all random numbers of the training: dropout, shuffling by torch's and Python's generators.
        clip: The largest gradient norm.
        clip_scope: Whether that norm is over a `stage` or `global` (synchronous methods only).
        autocast: `torch.bfloat16` runs forwards in it.
        compile: Whether to compile the stages by Inductor, once for each shape of their inputs; see
            docs/guides/compile.md.
        inputs: The key or position of the input in what the loader gives, where that is a dict or a longer tuple; a
            list of them makes the input a tuple.
        targets: Likewise of the target.
        batch_dim: The dimension of the samples; 1 for sequences that come time first.
        metric: Maps output and target to a number or None; accuracy by default if the target is a class. Or anything
            with `update`, `compute` and `reset`, such as a metric of torchmetrics; or a dict of several by name.
        threads: Intra-op threads per stage; the cores divided evenly by default. Results depend on it, and on no other
            property of the machine.
        slack: Extra length of the queues between stages; never changes the result.
        timeout: Seconds without a heartbeat, or at the same action, after which a process counts as lost (`processes`,
            `torchrun`).
        transport: The transport between processes: `shared` memory, `gloo`, `nccl` between stages on GPUs, or `auto`:
            NCCL between different GPUs, else shared memory on one host.
        interface: The network interface of gloo's sockets, such as `eth0`; loopback by default on one host.
        replicas: Copies of the pipeline that learn together, each from its own shard of every batch; see
            docs/guides/replicas.md.
        check: Whether to compare, on copies and a few samples of the first batch of each fit, what the stages compute
            with what the network computes as a whole; see docs/guides/check.md.
        overlap: Whether late stages that recompute run the forward of a new batch on a second thread, beside the
            recomputation and backward of an old one, where each process has the cores for it; never changes the result.
        slow: Simulated stragglers: `{1: (0.3, 0.5)}` makes 30 % of the batches take 50 % longer at stage 1, drawn from
            the seed; never changes the result.
    """

    method: str | Method = "pipedream"
    loss: Loss
    optimizer: OptimizerFactory | Mapping[int, OptimizerFactory]
    scheduler: SchedulerFactory | None = None
    scheduler_every: Literal["batch", "epoch"] = "batch"
    accumulate: int = 1
    runtime: str = "threads"
    seed: int = 0
    clip: float | None = None
    clip_scope: Literal["stage", "global"] = "stage"
    autocast: torch.dtype | None = None
    compile: bool = False
    inputs: Parts | None = None
    targets: Parts | None = None
    batch_dim: int = 0
    metric: Metric | Mapping[str, Metric] = accuracy
    threads: int | None = None
    slack: int = 0
    timeout: float = 300.0
    transport: Transport = "auto"
    interface: str | None = None
    replicas: int = 1
    slow: Stragglers | None = None
    check: bool = True
    overlap: bool = False

    def __post_init__(self) -> None:
        one_of("transport", self.transport, TRANSPORTS)
        check_callable("loss", self.loss, "give a function of the output and the target")
        for value in self.metric.values() if isinstance(self.metric, Mapping) else [self.metric]:
            if not isinstance(value, EpochMetric):
                check_callable("metric", value, "give a function of the output and the target")
        if self.scheduler is not None:
            check_callable("scheduler", self.scheduler, "give a factory, such as partial(StepLR, step_size=1000)")
        one_of("scheduler_every", self.scheduler_every, ("batch", "epoch"))
        whole_number("accumulate", self.accumulate, least=1)
        whole_number("replicas", self.replicas, least=1)
        whole_number("seed", self.seed, least=0)
        whole_number("slack", self.slack, least=0)
        of_type("compile", self.compile, bool, "give True or False")
        of_type("overlap", self.overlap, bool, "give True or False")
        if self.threads is not None:
            whole_number("threads", self.threads, least=1)
        number("timeout", self.timeout, above=0, hint="the seconds to wait", finite=False)
        self._check_clip()
        self._check_parts()
        if self.autocast is not None and self.autocast is not torch.bfloat16:
            raise ValueError(
                f"autocast={self.autocast!r}: only torch.bfloat16 is supported (float16 would need a gradient scaler)"
            )

    def _check_clip(self) -> None:
        if self.clip_scope not in ("stage", "global"):
            raise ValueError(f"clip_scope={self.clip_scope!r}: give 'stage' or 'global'")
        if self.clip is not None:
            number("clip", self.clip, above=0, hint="the largest gradient norm", finite=False)
        elif self.clip_scope == "global":
            raise ValueError("clip_scope='global' without a clip: give the largest norm as well, such as clip=1.0")

    def _check_parts(self) -> None:
        whole_number("batch_dim", self.batch_dim, least=0)
        for name, parts, other in (("inputs", self.inputs, "targets"), ("targets", self.targets, "inputs")):
            if parts is None:
                continue
            hint = f"give the key or position of the {name} in a batch, such as 'image' or 0, or a list of them"
            for part in [parts] if isinstance(parts, str | int) else of_type(name, parts, Sequence, hint):
                of_type(name, part, (str, int), hint)
            if getattr(self, other) is None:
                raise ValueError(f"{name}={parts!r} without {other}: say where in a batch both are")

    @property
    def clips_globally(self) -> bool:
        """Whether gradients are clipped by their norm over all stages."""
        return self.clip is not None and self.clip_scope == "global"

    def casting(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which a stage and the loss compute: autocast, where it is asked for."""
        return torch.autocast(device.type, dtype=self.autocast) if self.autocast is not None else nullcontext()

    def for_workers(self) -> RunConfig:
        """Return the configuration for another process, without the metric, which need not be picklable."""
        return replace(self, metric=accuracy)


def check_stragglers(name: str, slow: object, stages: int) -> dict[int, tuple[float, float]]:
    """Return the stragglers by stage, each a probability and a factor."""
    if slow is None:
        return {}
    form = "give {stage: (probability, factor)}, such as {0: (0.3, 0.5)}"
    out: dict[int, tuple[float, float]] = {}
    for stage, pair in of_type(name, slow, Mapping, form).items():
        if stage not in range(stages) or stage is True or stage is False:
            raise ValueError(f"{name} has stage {stage!r}, but the stages are 0 to {stages - 1}")
        hint = "give a probability and a factor, such as (0.3, 0.5)"
        if len(of_type(f"{name}[{stage}]", pair, Sequence, hint)) != 2:
            raise TypeError(f"{name}[{stage}]={pair!r}: {hint}")
        probability, factor = (number(f"{name}[{stage}]", value) for value in pair)
        if not 0 <= probability <= 1:
            raise ValueError(f"{name}[{stage}]: the probability is {probability:g}, give one from 0 to 1")
        if not factor >= 0:
            raise ValueError(f"{name}[{stage}]: the factor is {factor:g}, give 0 or more (0.5: 50 % longer)")
        out[stage] = probability, factor
    return out
