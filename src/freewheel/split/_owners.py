"""Which stage owns which parameter and buffer; none may belong to two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx, nn

from freewheel.split._line import Line
from freewheel.split._trace import BY_HAND


@dataclass(frozen=True)
class _Owned:
    tensor: Tensor
    name: str
    part_of: str  # the submodule that is called as a whole, empty for an attribute read on its own


def check_owners(line: Line, parts: list[tuple[int, int]]) -> None:
    """Refuse a split in which two stages would train the same parameter.

    A buffer that is only read as an attribute may appear in several stages.
    """
    owners: dict[int, tuple[int, _Owned]] = {}
    for stage, nodes in enumerate(_nodes(line, parts)):
        for owned in (o for node in nodes for o in _owned(line, node)):
            first, other = owners.setdefault(id(owned.tensor), (stage, owned))
            if first != stage and not _may_be_shared(line, owned, other):
                raise ValueError(_explain(owned, stage, other, first))


def parameter_counts(line: Line) -> list[int]:
    """The parameters of each unit; one that several units use counts for the first."""
    seen: set[int] = set()
    counts = []
    for unit in line.units:
        mine = {id(o.tensor): o.tensor for o in _owned(line, unit) if isinstance(o.tensor, nn.Parameter)}
        counts.append(sum(tensor.numel() for key, tensor in mine.items() if key not in seen))
        seen |= set(mine)
    return counts


def unused(line: Line) -> tuple[str, ...]:
    """The parameters and saved buffers that no unit touches."""
    nodes = [node for part in _nodes(line, [(0, len(line.units))]) for node in part]
    used = {id(owned.tensor) for node in nodes for owned in _owned(line, node)}
    saved = set(line.model.state_dict())
    named = [*line.model.named_parameters(), *line.model.named_buffers()]
    return tuple(name for name, tensor in named if id(tensor) not in used and name in saved)


def _nodes(line: Line, parts: list[tuple[int, int]]) -> Iterator[list[fx.Node]]:
    """The nodes of each stage that are not free; the output belongs to the last."""
    for start, end in parts:
        nodes = [node for node, place in line.position.items() if start <= place < end]
        yield nodes if end < len(line.units) else [*nodes, line.traced.graph.output_node()]


def _owned(line: Line, node: fx.Node) -> Iterator[_Owned]:
    for needed in line.attributes(node):
        target = str(needed.target)
        value = line.traced.fetch(target)
        if isinstance(value, Tensor) and target not in line.traced.constants:
            yield _Owned(value, target, "")
        elif isinstance(value, nn.Module):
            for name, tensor in [
                *value.named_parameters(remove_duplicate=False),
                *value.named_buffers(remove_duplicate=False),
            ]:
                yield _Owned(tensor, f"{target}.{name}", target)


def _may_be_shared(line: Line, one: _Owned, two: _Owned) -> bool:
    """Whether a tensor is a buffer that both stages read as an attribute and neither changes."""
    buffer = not isinstance(one.tensor, nn.Parameter)
    return buffer and not one.part_of and not two.part_of and one.name not in line.written


def _explain(owned: _Owned, stage: int, other: _Owned, first: int) -> str:
    kind = "parameter" if isinstance(owned.tensor, nn.Parameter) else "buffer"
    if owned.name != other.name:
        what = f"'{other.name}' (stage {first}) and '{owned.name}' (stage {stage}) are one shared {kind}"
        way = "untie them"
    elif owned.part_of and owned.part_of == other.part_of:
        what = f"the submodule '{owned.part_of}' is used in stage {first} and in stage {stage}"
        way = "give each use its own copy"
    else:
        what = f"the {kind} '{owned.name}' is used in stage {first} and in stage {stage}"
        way = "use it in one place"
    return (
        f"model: {what}, and a {kind} can belong to one stage only: {way}, "
        f"choose cuts that keep them together with at=[...], {BY_HAND}"
    )
