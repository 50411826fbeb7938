"""Stage snapshots: what one stage writes to a checkpoint, by the names of the whole network, and reads again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from freewheel.checkpoint._files import File, plain, read_tensors, write_tensors
from freewheel.stage import Stage, load_tensors, tensors_of, to_device

Names = dict[str, str]  # of a stage's tensors: in the stage -> in the whole network
Message = tuple[str, tuple[int, int], Any]  # letter, (batch, micro-batch), content


class Counts(NamedTuple):
    """What a stage has counted since the last epoch ended."""

    busy: float = 0.0  # seconds of work
    gaps: int = 0  # updates between each forward and its own, added up
    updates: int = 0
    losses: Sequence[tuple[Tensor, int]] = ()
    later: Sequence[tuple[int, Tensor, int]] = ()  # losses of a late stage's later batches, with their batch


@dataclass(frozen=True, kw_only=True)
class StageSnapshot:
    """One stage in a checkpoint: the content of its file. Tensors have their names in the whole network."""

    stage: int
    replica: int = 0
    epoch: int  # of the batch that it forwarded last, earlier fits included
    counts: Counts = field(default_factory=Counts)
    pending: dict[str, Any] | None = None  # of batches that it has forwarded and not learned from; None if drained
    seen: dict[int, int] = field(default_factory=dict)  # pending batch -> version that its forward saw
    sent: Sequence[Message] = ()  # messages in flight
    names: Names = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)  # parameters and buffers
    optimizer: dict[str, Any] | None = None  # its kind, state and groups
    scheduler: tuple[str, dict[str, Any]] | None = None  # its kind and state
    corrections: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)  # accumulated ones
    head: dict[str, Any] | None = None  # of a head or a predictor

    @classmethod
    def of(
        cls,
        stage: Stage,
        names: Names,
        counts: Counts,
        seen: dict[int, int] | None = None,
        sent: Sequence[Message] = (),
    ) -> StageSnapshot:
        """The snapshot of a stage, by reference; `seen` and `sent` are those of a stage in a run."""
        parameters = _parameter_names(stage, names)
        scheduler = stage.scheduler
        return cls(
            stage=stage.index,
            replica=stage.replica,
            epoch=stage.epoch,
            counts=counts,
            pending=None if seen is None else stage.pending(),
            seen=seen or {},
            sent=sent,
            names=names,
            tensors={names[name]: tensor for name, tensor in tensors_of(stage.module).items()},
            optimizer=_optimizer(stage.optimizer, parameters),
            scheduler=None if scheduler is None else (type(scheduler).__name__, scheduler.state_dict()),
            corrections=stage.corrections.state(),
            gradients={parameters[id(w)]: w.grad for w in stage.weights.live if w.grad is not None},
            head=stage.head_state(),
        )

    @classmethod
    def read(cls, folder: Path, file: File) -> StageSnapshot:
        """Read a snapshot that was written to a file."""
        content = read_tensors(folder, file)
        return cls(**{**content, "counts": Counts(*content["counts"])})

    def write(self, folder: Path, batches: int) -> File:
        """Write the snapshot of a stage after its update with a number of batches."""
        counts = (*self.counts[:3], list(self.counts.losses), list(self.counts.later))
        content = {**vars(self), "counts": counts}
        ready = {name: plain(value, f"stage {self.stage} ({name})") for name, value in content.items()}
        file = write_tensors(folder, file_name(self.stage, self.replica), ready)
        return file._replace(forwarded=batches + len(self.seen), in_flight=bool(self.sent))

    @property
    def buffers(self) -> dict[str, Tensor] | None:
        """The buffers of a later replica; None for replica 0, which `load_state` loads."""
        return {name: self.tensors[full] for name, full in self.names.items()} if self.replica else None

    def without_state(self) -> StageSnapshot:
        """What a drained stage resumes from once its state is loaded."""
        return StageSnapshot(stage=self.stage, epoch=self.epoch, counts=self.counts)


def file_name(stage: int, replica: int = 0) -> str:
    """The file of a stage; the one of replica 0 has the state of all replicas.

    Example:
        >>> file_name(1), file_name(1, replica=2)
        ('stage-1.pt', 'stage-1-2.pt')
    """
    return f"stage-{stage}-{replica}.pt" if replica else f"stage-{stage}.pt"


def full_names(model: nn.Module, stages: Sequence[nn.Module]) -> list[Names]:
    """For each stage, the names of its parameters and buffers in the whole network."""
    known = tensors_of(model)
    names = {id(tensor): name for name, tensor in known.items()}

    def full(k: int, name: str, tensor: Tensor) -> str:
        if name in known and known[name].shape == tensor.shape:
            return names.get(id(tensor), name)  # a stage's copy of a buffer that several read
        return names.get(id(tensor), f"stage {k}: {name}")

    return [
        {name: full(k, name, tensor) for name, tensor in tensors_of(stage).items()} for k, stage in enumerate(stages)
    ]


def load_state(
    stages: Sequence[Stage],
    names: Sequence[Names],
    snapshots: Sequence[StageSnapshot],
    *,
    corrections: bool,
    heads: bool,
) -> None:
    """Load the state of a checkpoint into the stages that were saved, or into others of the same network.

    `corrections` says whether the stages have the corrections of the checkpoint, `heads` whether its heads and
    predictors.
    """
    tensors = _union(snapshot.tensors for snapshot in snapshots)
    gradients = _union(snapshot.gradients for snapshot in snapshots)
    _check_tensors(stages, names, tensors)
    for k, (stage, own) in enumerate(zip(stages, names)):
        load_tensors(stage.module, {name: tensors[full] for name, full in own.items()})
        parameters = _parameter_names(stage, own)
        _load_optimizer(stage, parameters, snapshots)
        for weight in stage.weights.live:
            weight.grad = to_device(gradients.get(parameters[id(weight)]), stage.device)
        stage.collects = any(weight.grad is not None for weight in stage.weights.live)
        if corrections:
            stage.corrections.load(to_device(snapshots[k].corrections, stage.device))
        stage.load_head(snapshots[k].head if heads else None)


def _union(dicts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for each in dicts for name, value in each.items()}


def _parameter_names(stage: Stage, names: Names) -> dict[int, str]:
    return {id(p): names[name] for name, p in stage.module.named_parameters()}


def _check_tensors(stages: Sequence[Stage], names: Sequence[Names], tensors: dict[str, Tensor]) -> None:
    """Refuse stages of another network."""
    wanted = {full: tensors_of(s.module)[name] for s, own in zip(stages, names) for name, full in own.items()}
    hint = (
        "give the network that was saved; stages given as a list must be cut as they were, those of fw.split need not"
    )
    for name in wanted:
        if name not in tensors:
            raise ValueError(f"the checkpoint has no {name!r}, which the stages have: {hint}")
    for name, tensor in tensors.items():
        if name not in wanted:
            raise ValueError(f"the checkpoint has {name!r}, which the stages do not: {hint}")
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            came, here = (f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in (tensor, wanted[name]))
            raise ValueError(f"the checkpoint has {name!r} as {came}, the stages as {here}: {hint}")


# -- optimizers and schedulers ----------------------------------------------------------------------------------------


def _optimizer(optimizer: torch.optim.Optimizer | None, names: dict[int, str]) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    state = optimizer.state_dict()
    groups = [{**_settings(g), "params": [order[i] for i in g["params"]]} for g in state["param_groups"]]
    return {
        "kind": type(optimizer).__name__,
        "state": {order[i]: value for i, value in state["state"].items()},
        "groups": groups,
    }


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _load_optimizer(stage: Stage, names: dict[int, str], snapshots: Sequence[StageSnapshot]) -> None:
    """Assemble the state of a stage's optimizer, and of its scheduler, from the snapshots that have its parameters."""
    optimizer = stage.optimizer
    if optimizer is None:
        return
    saved = [(snapshot, snapshot.optimizer) for snapshot in snapshots if snapshot.optimizer is not None]
    home = {
        name: (snapshot, content["kind"], _settings(group))
        for snapshot, content in saved
        for group in content["groups"]
        for name in group["params"]
    }
    states = _union(content["state"] for _, content in saved)
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    sources: list[StageSnapshot] = []
    for group, packed in zip(optimizer.param_groups, optimizer.state_dict()["param_groups"]):
        own = [names[id(p)] for p in group["params"]]
        for name in own:
            if name not in home:
                raise ValueError(f"optimizer: {name!r} was not trained when the checkpoint was saved; freeze it first")
            snapshot, kind, settings = home[name]
            _check_kind("optimizer", kind, type(optimizer).__name__)
            if settings != home[own[0]][2]:
                raise ValueError(
                    f"optimizer: {own[0]!r} and {name!r} had different settings (such as the learning rate) when the "
                    "checkpoint was saved, and share a group now; put them in separate groups, or keep the stages"
                )
            if name in states:
                state[len(sources)] = states[name]
            sources.append(snapshot)
        groups.append({**packed, **(home[own[0]][2] if own else {})})
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    _load_scheduler(stage, sources)


def _load_scheduler(stage: Stage, sources: Sequence[StageSnapshot]) -> None:
    scheduler = stage.scheduler
    for kind in {None if source.scheduler is None else source.scheduler[0] for source in sources}:
        _check_kind("scheduler", kind, None if scheduler is None else type(scheduler).__name__)
    states = [source.scheduler[1] for source in sources if source.scheduler is not None]
    if scheduler is None or not states:
        return
    if any(state != states[0] for state in states):
        raise ValueError(
            f"scheduler: the saved stages that stage {stage.index} consists of had schedulers in different states; "
            "keep the stages as they were"
        )
    scheduler.load_state_dict(states[0])


def _check_kind(what: str, saved: str | None, given: str | None) -> None:
    if saved != given:
        raise ValueError(
            f"{what} is {given or 'none'} now and was {saved or 'none'} when the checkpoint was saved: give the same"
        )
