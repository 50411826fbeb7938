"""The layers that feedback weights belong to: found, numbered, and refused where feedback has no meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

from freewheel.feedback._hooks import Layer, padding_of
from freewheel.split._stages import GraphStage

# Modules that may have parameters beside Linear and Conv2d. No gradient passes an embedding.
OTHERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU, nn.Embedding)
SIZES = (
    "size",
    "dim",
    "ndim",
    "numel",
    "shape",
    "dtype",
    "device",
)  # what a graph asks of a tensor, which is no tensor
ELSE = "use a method of the chain rule, such as 'pipedream'"


class Entry(NamedTuple):
    """A module, or a function (None), in its place in a stack."""

    name: str
    module: nn.Module | None

    @property
    def layer(self) -> Layer | None:
        """The module, if feedback weights belong to it."""
        return self.module if isinstance(self.module, Layer) else None


class StageLayers(NamedTuple):
    """Which Linear and Conv2d layers a stage has, out of those of the whole network."""

    numbers: Mapping[str, int]  # by their names in the stage
    after: int  # the number of the next stage's first one
    outputs: int  # of the network

    def of(self, module: nn.Module) -> list[tuple[Layer, int]]:
        """The layers of the stage's module, with their numbers."""
        return [(module.get_submodule(name), number) for name, number in self.numbers.items()]  # pyright: ignore


def number_all_layers(modules: Sequence[nn.Module]) -> tuple[StageLayers, ...]:
    """Numbers the Linear and Conv2d layers, wherever they are in the network."""
    for k, module in enumerate(modules):
        _check_kinds(f"stages[{k}]", module, through=True)
    return _numbered([[Entry(name, part) for name, part in module.named_modules()] for module in modules])


def number_stacked_layers(modules: Sequence[nn.Module]) -> tuple[tuple[StageLayers, ...], bool]:
    """Numbers the layers of stacks; also tells whether a block of layers goes on in the next stage.

    Example:
        >>> stages = [nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Sequential(nn.Linear(3, 2))]
        >>> number_stacked_layers(stages)[0][1], number_stacked_layers(stages)[1]
        (StageLayers(numbers={'0': 1}, after=2, outputs=2), False)
    """
    for k, module in enumerate(modules):
        _check_kinds(f"stages[{k}]", module, through=False)
    stacks = [list(_line(module, "", f"stages[{k}]")) for k, module in enumerate(modules)]
    _check_shared(stacks)
    return _numbered(stacks), _cuts_a_block(modules, stacks)


def _numbered(stacks: Sequence[Sequence[Entry]]) -> tuple[StageLayers, ...]:
    found = [{entry.name: entry.layer for entry in stack if entry.layer is not None} for stack in stacks]
    if not any(found):
        raise ValueError(f"no stage has a Linear or Conv2d layer: there is nothing that feedback belongs to; {ELSE}")
    last = [layer for layers in found for layer in layers.values()][-1]
    outputs = last.weight.shape[0]
    out, count = [], 0
    for layers in found:
        numbers = {name: number for number, name in enumerate(layers, start=count)}
        count += len(numbers)
        out.append(StageLayers(numbers, count, outputs))
    return tuple(out)


def _cuts_a_block(modules: Sequence[nn.Module], lines: Sequence[Sequence[Entry]]) -> bool:
    """Whether any stage goes on with what belongs to a layer of an earlier one."""
    learns = False
    for module, line in zip(modules, lines):
        if learns and line and line[0].layer is None:
            return True
        learns = learns or any(True for _ in module.parameters())
    return False


def _check_kinds(where: str, module: nn.Module, *, through: bool) -> None:
    for name, part in module.named_modules():
        place = f"{where}.{name}" if name else where
        if any(p is not None for p in part._parameters.values()) and not isinstance(part, (Layer, *OTHERS)):
            raise TypeError(
                f"{place} is a {type(part).__name__}: feedback weights are for Linear and Conv2d, beside which there "
                f"may be norms, activations and pools; {ELSE}"
            )
        if through and isinstance(part, nn.Conv2d) and padding_of(part) is None:
            raise ValueError(
                f"{place} is padded with other things than zeros, or unevenly: its feedback is not known; give it "
                "zeros, as many on both sides"
            )


def _check_shared(lines: Sequence[Sequence[Entry]]) -> None:
    owner: dict[int, str] = {}
    for k, line in enumerate(lines):
        for entry in line:
            here = f"stages[{k}].{entry.name}"
            parameters = [] if entry.layer is None else list(entry.layer.parameters())
            for p in parameters:
                if id(p) in owner:
                    raise ValueError(
                        f"{here} shares its weights with {owner[id(p)]}: a layer that is used twice has no one "
                        f"feedback; give each use its own layer, or use 'fa' or {ELSE.removeprefix('use ')}"
                    )
            owner.update({id(p): here for p in parameters})


def _line(module: nn.Module, name: str, where: str) -> Iterator[Entry]:
    """The modules in the order in which one tensor goes through them."""
    if isinstance(module, GraphStage):
        yield from _along(module._fw_graph, module, name, where)
    elif isinstance(module, nn.Sequential):
        for key, child in module._modules.items():
            assert child is not None
            yield from _line(child, f"{name}.{key}" if name else key, where)
    elif not any(True for _ in module.children()) or not any(True for _ in module.parameters()):
        yield Entry(name, module)
    else:
        try:
            graph = _Tracer().trace(module)
        except Exception as error:  # whatever the module does with what is not a tensor
            reason = (
                f"it cannot be traced ({str(error).strip().splitlines()[0] if str(error).strip() else type(error)})"
            )
            raise _refused(module, name, where, reason) from None
        yield from _along(graph, module, name, where)


def _along(graph: fx.Graph, module: nn.Module, name: str, where: str) -> Iterator[Entry]:
    """The pieces of a graph, if it is a line."""
    tensor: fx.Node | None = None
    sizes: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = [given for given in node.all_input_nodes if given not in sizes]
        if node.op == "placeholder" and tensor is None:
            tensor = node
        elif (node.all_input_nodes and not inputs) or (inputs and _asks_size(node)):
            sizes.add(node)
        elif inputs != [tensor]:
            raise _refused(
                module, name, where, f"at '{node.name}' it is not one tensor that goes on, as in a residual net"
            )
        elif node.op != "output":
            tensor = node
            if node.op == "call_module":
                inner = f"{name}.{node.target}" if name else str(node.target)
                yield from _line(module.get_submodule(str(node.target)), inner, where)
            else:
                yield Entry("", None)


def _asks_size(node: fx.Node) -> bool:
    asked = (
        node.args[1] if node.op == "call_function" and node.target is getattr and len(node.args) > 1 else node.target
    )
    return asked in SIZES


def _refused(module: nn.Module, name: str, where: str, reason: str) -> ValueError:
    place = f"{where}.{name}" if name else where
    return ValueError(
        f"{place} ({type(module).__name__}) is not a plain stack of layers: {reason}; the error goes straight to the "
        f"layers of stacks alone: use 'fa', {ELSE.removeprefix('use ')}, or write it as nn.Sequential"
    )


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(True for _ in m.children()) or super().is_leaf_module(m, module_qualified_name)
