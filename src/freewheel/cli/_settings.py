"""What `freewheel train` is asked for: checked before anything is loaded, with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch

from freewheel._bfloat16 import check_cpu_bfloat16
from freewheel._config import check_stragglers
from freewheel._cores import cores, share
from freewheel._devices import find_device
from freewheel._errors import one_of, whole_number
from freewheel.cli._defaults import RECURRENT, SETTINGS, network_defaults, optimizer_defaults
from freewheel.cli._end import end_defaults
from freewheel.cli._method_options import complete_options, find_method, options_of, read_slow
from freewheel.cli._options import flag
from freewheel.cli._output import check_file
from freewheel.cli._own import absolute, check_own, is_own
from freewheel.cli._places import check_places
from freewheel.cli._recipe import chosen_recipe
from freewheel.cli._step_sizes import check_warmup, schedule_defaults, step_sizes
from freewheel.cli._train_options import TrainOptions
from freewheel.cli._traits import uses_forward_gradients
from freewheel.cli._transfer import check_transfer, transfer_defaults
from freewheel.methods import Method, Pipeline
from freewheel.recipes import OPTIMIZERS, LRSchedule
from freewheel.runtime import RUNTIMES, check_started, is_one_of_several, is_started, rank_and_size

AT_LEAST_1 = (
    *("epochs", "stages", "replicas", "threads", "limit", "test_limit"),
    *("size", "resize", "hidden", "seeds"),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a run, and what they name."""

    options: TrainOptions  # with every default filled in that does not depend on the data
    method: Method  # `--transfer` is added once the network is built
    pipeline: Pipeline  # of the method, for these stages
    devices: tuple[torch.device, ...]  # of each stage
    schedule: LRSchedule

    @property
    def forward(self) -> bool:
        """Whether the run learns from forward gradients."""
        return uses_forward_gradients(self.pipeline)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.devices)

    @property
    def stragglers(self) -> dict[int, tuple[float, float]]:
        """The stages that are slowed down, as `Trainer` takes them."""
        return read_slow(self.options.slow)

    def model_options(self, vocabulary: int) -> dict[str, int]:
        """Options of the network beside its shapes; `vocabulary` is the number of words in the data."""
        given = {"resize": self.options.resize, "hidden": self.options.hidden}
        out = {name: value for name, value in given.items() if value is not None}
        embedded = self.options.data.lower() == "imdb" and str(self.options.model).lower() in RECURRENT
        return {**out, "vocabulary": vocabulary} if embedded else out

    def optimizer_settings(self) -> dict[str, float]:
        """The settings of the optimizer."""
        return {name: getattr(self.options, name) for name in SETTINGS[str(self.options.optimizer)]}

    def optimizer_factory(self) -> Any:
        """A function that makes an optimizer of some parameters."""
        return partial(OPTIMIZERS[str(self.options.optimizer)], **self.optimizer_settings())  # pyright: ignore[reportArgumentType]


def resolve(options: TrainOptions) -> Settings:
    """Check the options, and fill in what was not given; what is filled in stays when it is resolved again."""
    for name in AT_LEAST_1:
        if getattr(options, name) is not None:
            whole_number(flag(name), getattr(options, name), least=1)
    whole_number("--seed", options.seed, least=0)
    check_own(options, flag)
    options = replace(
        options,
        data=absolute(options.data),
        model=absolute(options.model),
        loss=absolute(options.loss),
        compare=options.compare and not is_own(options.data) and options.loss is None,
    )
    method = find_method(options.method, options.option)
    options = replace(
        options, option=complete_options(options.method, options.option), **_runtime_defaults(options, method)
    )
    assert options.stages is not None
    pipeline = method.over(options.replicas).stage_pipeline(options.stages)
    options = replace(
        options,
        split=_balanced_by(options, pipeline),
        threads=options.threads or share(method.total_workers(options.stages * options.replicas)),
        **network_defaults(options, pipeline),
        **optimizer_defaults(options, pipeline),
        **schedule_defaults(options),
        **transfer_defaults(options),
        **end_defaults(options),
    )
    options = replace(options, recipe=chosen_recipe(options))
    schedule = step_sizes(options)
    check_warmup(options)
    check_transfer(options, forward=uses_forward_gradients(pipeline), method_options=options_of(method))
    devices = tuple(
        find_device(f"--device {name}", name.strip())
        for _, name in zip(range(options.stages or 0), cycle(options.device.split(",")))
    )
    if options.bf16 and any(device.type == "cpu" for device in devices):
        check_cpu_bfloat16("--bf16")
    check_stragglers("--slow", read_slow(options.slow), len(devices))
    check_places(options, method)
    for name in ("json", "save", "write_config"):
        check_file(flag(name), getattr(options, name))
    return Settings(options=options, method=method, pipeline=pipeline, devices=devices, schedule=schedule)


def _runtime_defaults(options: TrainOptions, method: Method) -> dict[str, Any]:
    """The runtime and the number of stages; refuses those that this process cannot run, and contradicting cuts."""
    several = is_one_of_several()
    runtime = options.runtime or ("torchrun" if several else _default_runtime(options, method))
    one_of("runtime", runtime, RUNTIMES)
    if runtime == "torchrun" and not is_started():
        raise ValueError(
            "--runtime torchrun: torchrun has not started this; run torchrun --nproc-per-node "
            f"{options.stages or 2} -m freewheel.cli train, or give --runtime processes"
        )
    if runtime != "torchrun" and several:
        raise ValueError(
            f"--runtime {runtime} under torchrun: every process would train all stages; leave --runtime out"
        )
    stages = _stage_count(options, method, runtime)
    if runtime == "torchrun":
        check_started(stages, options.replicas)
    # Whether to compile depends on the data, too, where the trainer chooses the runtime.
    compiles = False if options.compile is None and runtime != "auto" else options.compile
    return {"runtime": runtime, "stages": stages, "compile": compiles}


def _default_runtime(options: TrainOptions, method: Method) -> str:
    """The runtime where none is asked for: on a GPU, one that the trainer chooses by the stages' devices."""
    return "auto" if method.planned and "cuda" in options.device else method.default_runtime


def _stage_count(options: TrainOptions, method: Method, runtime: str) -> int:
    """The number of stages: as asked for, or one per process of a replica, or two to four by cores; one for a race."""
    cuts = {"at": options.at, "balance": options.balance, "split": options.split}
    given = [f"{flag(name)} {value if name == 'split' else value[0]}" for name, value in cuts.items() if value]
    if len(given) > 1:
        raise ValueError(f"{given[1]} with {given[0]}: both say where to cut, give one")
    count = len(options.at) + 1 if options.at else len(options.balance)
    if count and options.stages not in (None, count):
        what = f"{len(options.at)} --at: each --at starts one more stage" if options.at else f"--balance of {count}"
        raise ValueError(f"--stages {options.stages} with {what}, so that makes {count}; leave --stages out")
    if count or options.stages is not None:
        return count or options.stages or 0
    if not method.planned:
        return 1  # the workers of a race share the whole network
    return max(1, rank_and_size()[1] // options.replicas) if runtime == "torchrun" else max(2, min(4, cores()))


def _balanced_by(options: TrainOptions, pipeline: Pipeline) -> str | None:
    """What the stages are balanced by: as asked for, or the time of the method's steps; None where the cut is given."""
    if options.at or options.balance or options.split is not None:
        return options.split
    return "forward" if uses_forward_gradients(pipeline) else "time"
