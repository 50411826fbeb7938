"""Finding and numbering the layers that have feedback weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

from freewheel.feedback._hooks import Layer, padding_of
from freewheel.split._stages import GraphStage
from freewheel.split._undisturbed import undisturbed

# Modules with parameters that may accompany Linear and Conv2d. No gradient passes an embedding.
OTHERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU, nn.Embedding)
SIZES = ("size", "dim", "ndim", "numel", "shape", "dtype", "device")  # attributes of a tensor that are not tensors
ELSE = "use a method of the chain rule, such as 'pipedream'"


class Entry(NamedTuple):
    """A module, or a function (None), of a stack."""

    name: str
    module: nn.Module | None

    @property
    def layer(self) -> Layer | None:
        """The module, if it has feedback weights."""
        return self.module if isinstance(self.module, Layer) else None


class StageLayers(NamedTuple):
    """The Linear and Conv2d layers of a stage, numbered through the whole network."""

    numbers: Mapping[str, int]  # by their names in the stage
    after: int  # the number of the next stage's first layer
    outputs: int  # of the network

    def of(self, module: nn.Module) -> list[tuple[Layer, int]]:
        """Return the layers of the stage's module, with their numbers."""
        return [(module.get_submodule(name), number) for name, number in self.numbers.items()]  # pyright: ignore


def number_all_layers(modules: Sequence[nn.Module]) -> tuple[StageLayers, ...]:
    """Number the Linear and Conv2d layers of any network."""
    for k, module in enumerate(modules):
        _check_kinds(f"stages[{k}]", module, through=True)
    return _numbered([[Entry(name, child) for name, child in module.named_modules()] for module in modules])


def number_stacked_layers(modules: Sequence[nn.Module]) -> tuple[tuple[StageLayers, ...], bool]:
    """Number the layers of stacks, and return whether a block spans a boundary.

    Example:
        >>> stages = [nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Sequential(nn.Linear(3, 2))]
        >>> number_stacked_layers(stages)[0][1], number_stacked_layers(stages)[1]
        (StageLayers(numbers={'0': 1}, after=2, outputs=2), False)
    """
    for k, module in enumerate(modules):
        _check_kinds(f"stages[{k}]", module, through=False)
    stacks = [list(_stack(module, "", f"stages[{k}]")) for k, module in enumerate(modules)]
    _check_shared(stacks)
    return _numbered(stacks), _splits_a_block(modules, stacks)


def _numbered(stacks: Sequence[Sequence[Entry]]) -> tuple[StageLayers, ...]:
    found = [{entry.name: entry.layer for entry in stack if entry.layer is not None} for stack in stacks]
    if not any(found):
        raise ValueError(f"no stage has a Linear or Conv2d layer, so there is no feedback; {ELSE}")
    last = [layer for layers in found for layer in layers.values()][-1]
    outputs = last.weight.shape[0]
    out, count = [], 0
    for layers in found:
        numbers = {name: number for number, name in enumerate(layers, start=count)}
        count += len(numbers)
        out.append(StageLayers(numbers, count, outputs))
    return tuple(out)


def _splits_a_block(modules: Sequence[nn.Module], stacks: Sequence[Sequence[Entry]]) -> bool:
    """Whether any stage continues a block of an earlier one."""
    learns = False
    for module, stack in zip(modules, stacks):
        if learns and stack and stack[0].layer is None:
            return True
        learns = learns or any(True for _ in module.parameters())
    return False


def _check_kinds(where: str, module: nn.Module, *, through: bool) -> None:
    for name, child in module.named_modules():
        path = f"{where}.{name}" if name else where
        if any(p is not None for p in child._parameters.values()) and not isinstance(child, (Layer, *OTHERS)):
            raise TypeError(
                f"{path} is a {type(child).__name__}: feedback supports Linear, Conv2d, norms, activations and pools; "
                f"{ELSE}"
            )
        if through and isinstance(child, nn.Conv2d) and padding_of(child) is None:
            raise ValueError(f"{path} has non-zero or uneven padding: feedback needs equal zero padding on both sides")


def _check_shared(stacks: Sequence[Sequence[Entry]]) -> None:
    owner: dict[int, str] = {}
    for k, stack in enumerate(stacks):
        for entry in stack:
            here = f"stages[{k}].{entry.name}"
            parameters = [] if entry.layer is None else list(entry.layer.parameters())
            for p in parameters:
                if id(p) in owner:
                    raise ValueError(
                        f"{here} shares its weights with {owner[id(p)]}: feedback is defined for one use of a layer; "
                        f"give each use its own layer, or use 'fa' or {ELSE.removeprefix('use ')}"
                    )
            owner.update({id(p): here for p in parameters})


def _stack(module: nn.Module, name: str, where: str) -> Iterator[Entry]:
    """Yield the modules in the order in which one tensor passes through them."""
    if isinstance(module, GraphStage):
        yield from _chain(module._fw_graph, module, name, where)
    elif isinstance(module, nn.Sequential):
        for key, child in module._modules.items():
            assert child is not None
            yield from _stack(child, f"{name}.{key}" if name else key, where)
    elif not any(True for _ in module.children()) or not any(True for _ in module.parameters()):
        yield Entry(name, module)
    else:
        try:
            with undisturbed(module):
                graph = _Tracer().trace(module)
        except Exception as error:  # tracing raises anything
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error)
            raise _not_a_stack(module, name, where, f"it cannot be traced ({first_line})") from None
        yield from _chain(graph, module, name, where)


def _chain(graph: fx.Graph, module: nn.Module, name: str, where: str) -> Iterator[Entry]:
    """Yield the modules of a graph, if it is a chain."""
    tensor: fx.Node | None = None
    sizes: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = [given for given in node.all_input_nodes if given not in sizes]
        if node.op == "placeholder" and tensor is None:
            tensor = node
        elif (node.all_input_nodes and not inputs) or (inputs and _asks_size(node)):
            sizes.add(node)
        elif inputs != [tensor]:
            reason = f"at '{node.name}' it has a branch, as in a residual net"
            raise _not_a_stack(module, name, where, reason)
        elif node.op != "output":
            tensor = node
            if node.op == "call_module":
                inner = f"{name}.{node.target}" if name else str(node.target)
                yield from _stack(module.get_submodule(str(node.target)), inner, where)
            else:
                yield Entry("", None)


def _asks_size(node: fx.Node) -> bool:
    reads_attribute = node.op == "call_function" and node.target is getattr
    return any(asked in SIZES for asked in (node.args[1:2] if reads_attribute else [node.target]))


def _not_a_stack(module: nn.Module, name: str, where: str, reason: str) -> ValueError:
    path = f"{where}.{name}" if name else where
    return ValueError(
        f"{path} ({type(module).__name__}) is not a plain stack of layers: {reason}; direct feedback needs a stack: "
        f"use 'fa', {ELSE.removeprefix('use ')}, or write it as nn.Sequential"
    )


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(True for _ in m.children()) or super().is_leaf_module(m, module_qualified_name)
