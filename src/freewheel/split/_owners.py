"""Which stages use which parameters and buffers; what forward changes may belong to one only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx, nn

from freewheel.split._line import Line
from freewheel.split._tracer import MANUAL_SPLIT
from freewheel.split._tree import tensors


@dataclass(frozen=True)
class Owned:
    """A tensor of the model, and the submodule (empty for an attribute read on its own) whose call uses it."""

    tensor: Tensor
    name: str
    module: str

    @property
    def kind(self) -> str:
        """What it is, in errors."""
        return "parameter" if isinstance(self.tensor, nn.Parameter) else "buffer"


def check_owners(line: Line, spans: list[tuple[int, int]]) -> None:
    """Reject a split in which two stages would use a tensor that forward changes, such as running statistics."""
    owners: dict[int, tuple[int, Owned]] = {}
    for stage, nodes in enumerate(stage_nodes(line, spans)):
        for owned in (o for node in nodes for o in owned_by(line, node)):
            first, other = owners.setdefault(id(owned.tensor), (stage, owned))
            if first != stage and id(owned.tensor) in line.written:
                raise ValueError(_shared_tensor(owned, stage, other, first))


def parameter_counts(line: Line) -> list[int]:
    """The number of parameters of each unit; shared ones count for the first unit that uses them."""
    seen: set[int] = set()
    counts = []
    for unit in line.units:
        used = {id(o.tensor): o.tensor for o in owned_by(line, unit) if o.kind == "parameter"}
        counts.append(sum(tensor.numel() for key, tensor in used.items() if key not in seen))
        seen |= set(used)
    return counts


def unused(line: Line) -> tuple[str, ...]:
    """The parameters and saved buffers that no unit uses."""
    nodes = [node for stage in stage_nodes(line, [(0, len(line.units))]) for node in stage]
    used = {id(owned.tensor) for node in nodes for owned in owned_by(line, node)}
    named = [*line.model.named_parameters(), *line.model.named_buffers()]
    return tuple(name for name, tensor in named if id(tensor) not in used and name in line.traced.saved)


def stage_nodes(line: Line, spans: list[tuple[int, int]]) -> Iterator[list[fx.Node]]:
    """Return the nodes of each stage that are not free; the output belongs to the last stage."""
    for start, end in spans:
        nodes = [node for node, place in line.position.items() if start <= place < end]
        yield nodes if end < len(line.units) else [*nodes, line.traced.graph.output_node()]


def owned_by(line: Line, node: fx.Node) -> Iterator[Owned]:
    """Return the parameters and buffers that a node uses."""
    for needed in line.attributes(node):
        target = str(needed.target)
        value = line.traced.fetch(target)
        if isinstance(value, nn.Module):
            for named in (value.named_parameters, value.named_buffers):
                yield from (Owned(t, f"{target}.{name}", target) for name, t in named(remove_duplicate=False))
        elif target not in line.traced.constants:
            yield from (Owned(tensor, target, "") for tensor in tensors(value))


def _shared_tensor(owned: Owned, stage: int, other: Owned, first: int) -> str:
    if owned.name != other.name:
        what = f"'{other.name}' (stage {first}) and '{owned.name}' (stage {stage}) are one shared {owned.kind}"
        way = "untie them"
    elif owned.module and owned.module == other.module:
        what = f"the submodule '{owned.module}' is used in stage {first} and in stage {stage}"
        way = "give each use its own copy"
    else:
        what = f"the {owned.kind} '{owned.name}' is used in stage {first} and in stage {stage}"
        way = "use it in one place"
    return (
        f"model: {what}, and forward changes it, which only one stage can do: {way}, "
        f"choose cuts that keep them together with at=[...], {MANUAL_SPLIT}"
    )
