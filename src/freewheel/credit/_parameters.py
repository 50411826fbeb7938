"""What forward gradients need to know about the parameters of a stage."""

from __future__ import annotations

from torch import nn

from freewheel.split import read_directly
from freewheel.stage import Blueprint


def parameter_names(blueprint: Blueprint) -> list[tuple[str, ...]]:
    """Return each parameter's names: in the stage, with the stage's number, in the whole network."""
    own = [name for name, _ in blueprint.module.named_parameters()]
    return [(name, f"{blueprint.index}.{name}", *([full] if full else [])) for name, full in zip(own, blueprint.names)]


def padding_rows(module: nn.Module) -> dict[int, int]:
    """Return the untrained row of each embedding that nothing else uses, its padding, by the weight's id."""
    tables = [m for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    others = {id(p) for m in module.modules() if m not in tables for p in m._parameters.values()}
    others |= read_directly(module)
    return {id(m.weight): m.padding_idx for m in tables if m.padding_idx is not None and id(m.weight) not in others}
