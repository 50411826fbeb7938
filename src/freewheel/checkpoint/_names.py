"""State by the names of the whole network, so that a checkpoint can be taken up by other stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from freewheel.stage import Stage, load_tensors, tensors_of, to_device

Content = dict[str, Any]  # of one stage's file


def full_names(model: nn.Module, stages: Sequence[nn.Module]) -> list[dict[str, str]]:
    """For each stage, the name in the whole network of each of its parameters and buffers."""
    names = {id(tensor): name for name, tensor in tensors_of(model).items()}
    return [
        {name: names.get(id(tensor), f"stage {k}: {name}") for name, tensor in tensors_of(stage).items()}
        for k, stage in enumerate(stages)
    ]


def state_by_name(stage: Stage, names: dict[str, str]) -> Content:
    """All that a version of a stage is, by reference."""
    tensors = {names[name]: tensor for name, tensor in tensors_of(stage.module).items()}
    parameters = _parameter_names(stage, names)
    return {
        "tensors": tensors,
        "optimizer": _optimizer(stage.optimizer, parameters),
        "scheduler": None
        if stage.scheduler is None
        else (type(stage.scheduler).__name__, stage.scheduler.state_dict()),
        "corrections": stage.corrections.state(),
        "gradients": {parameters[id(w)]: w.grad for w in stage.weights.live if w.grad is not None},
        "head": stage.head_state(),
    }


def spread(
    stages: Sequence[Stage], names: Sequence[dict[str, str]], contents: Sequence[Content], *, same: bool, heads: bool
) -> None:
    """Gives the state of a checkpoint to stages: to the same ones, or to others of the same network.

    Args:
        stages: The stages.
        names: Their tensors' names in the whole network.
        contents: What each stage of the checkpoint has written.
        same: Whether the corrections of these stages are those of the checkpoint.
        heads: Whether their heads and predictors are.
    """
    tensors = _union(content["tensors"] for content in contents)
    gradients = _union(content["gradients"] for content in contents)
    _check_tensors(stages, names, tensors)
    for k, (stage, own) in enumerate(zip(stages, names)):
        load_tensors(stage.module, {name: tensors[full] for name, full in own.items()})
        parameters = _parameter_names(stage, own)
        _load_optimizer(stage, parameters, contents)
        for weight in stage.weights.live:
            weight.grad = to_device(gradients.get(parameters[id(weight)]), stage.device)
        stage.collects = any(weight.grad is not None for weight in stage.weights.live)
        if same:
            stage.corrections.load(to_device(contents[k]["corrections"], stage.device))
        stage.load_head(contents[k].get("head") if heads else None)


def _union(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _parameter_names(stage: Stage, names: dict[str, str]) -> dict[int, str]:
    return {id(p): names[name] for name, p in stage.module.named_parameters()}


def _check_tensors(stages: Sequence[Stage], names: Sequence[dict[str, str]], tensors: dict[str, Any]) -> None:
    """Refuses a network that is not the one that was saved."""
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


def _optimizer(optimizer: torch.optim.Optimizer | None, names: dict[int, str]) -> Content | None:
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


def _load_optimizer(stage: Stage, names: dict[int, str], contents: Sequence[Content]) -> None:
    """Puts an optimizer's state together from those that had its parameters, and so its scheduler's."""
    optimizer = stage.optimizer
    if optimizer is None:
        return
    saved = [content for content in contents if content["optimizer"] is not None]
    home = {name: c for c in saved for group in c["optimizer"]["groups"] for name in group["params"]}
    owner = {name: group for c in saved for group in c["optimizer"]["groups"] for name in group["params"]}
    states = _union(content["optimizer"]["state"] for content in saved)
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    position = 0
    sources: list[Content] = []
    for now, packed in zip(optimizer.param_groups, optimizer.state_dict()["param_groups"]):
        own = [names[id(p)] for p in now["params"]]
        for name in own:
            if name not in owner:
                raise ValueError(f"optimizer: {name!r} was not trained when the checkpoint was saved; freeze it first")
            _check_kind("optimizer", home[name]["optimizer"]["kind"], type(optimizer).__name__)
            if _settings(owner[name]) != _settings(owner[own[0]]):
                raise ValueError(
                    f"optimizer: {own[0]!r} and {name!r} had different settings (a step size, say) when the checkpoint "
                    "was saved, and are in one group now; give them groups of their own, or the stages as they were"
                )
            if name in states:
                state[position] = states[name]
            position += 1
            sources.append(home[name])
        groups.append({**packed, **(_settings(owner[own[0]]) if own else {})})
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    _load_scheduler(stage, sources)


def _load_scheduler(stage: Stage, sources: Sequence[Content]) -> None:
    scheduler = stage.scheduler
    kinds = {None if c["scheduler"] is None else c["scheduler"][0] for c in sources}
    for kind in kinds:
        _check_kind("scheduler", kind, None if scheduler is None else type(scheduler).__name__)
    if scheduler is None or not sources:
        return
    states = [content["scheduler"][1] for content in sources]
    if any(state != states[0] for state in states):
        raise ValueError(
            f"scheduler: those of the stages that stage {stage.index} is made of were not at one: keep them"
        )
    scheduler.load_state_dict(states[0])


def _check_kind(what: str, saved: str | None, given: str | None) -> None:
    if saved != given:
        raise ValueError(
            f"{what} is {given or 'none'} now and was {saved or 'none'} when the checkpoint was saved: give the same"
        )
