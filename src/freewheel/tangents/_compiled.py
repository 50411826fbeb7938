"""Compiling a dual pass into one function.

The pass is traced once with real tensors into a graph of plain operations on values and tangents, without dual numbers,
that references parameters and buffers. Several tangents are batched with `vmap`, so values are computed once. The graph
goes directly to Inductor, so a call has no guards and does not affect stages in other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from freewheel.tangents._convolution import SHORT
from freewheel.tangents._counters import count_together
from freewheel.tangents._late_draws import draw_late

# A GPU computes again what is cheaper than to write and read, as BatchNorm before pooling.
_WIDE = {"realize_opcount_threshold": 300, "realize_reads_threshold": 12, "realize_acc_reads_threshold": 64}
_UNSPLIT = {"split_reductions": False}  # for short kernels: one takes less time than two in turn

DualFunction = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


class FixedTangents:
    """Given tangents, by the index of the parameter."""

    def __init__(self, index_of: Callable[[Tensor], int | None], tangents: dict[int, Tensor]) -> None:
        self.index_of, self._tangents = index_of, tangents

    def tangent(self, index: int) -> Tensor | None:
        """Return the tangent of a parameter, None if it has none."""
        return self._tangents.get(index)


def compiled(
    run: DualFunction, values: list[Tensor], given: list[Tensor], tangents_of: Callable[[list[Tensor]], list[Tensor]]
) -> DualFunction:
    """Compile a function of values and tangents for tensors like these.

    Args:
        run: The function for one tangent. Its in-place changes of buffers are compiled, too.
        values: Example values.
        given: Examples of what the tangents are computed from.
        tangents_of: Computes the tangents, stacked in the first dimension, inside the compiled function.
    """
    from torch._inductor import config  # takes a second or two

    on_gpu, short = any(t.is_cuda for t in values), all(t.numel() <= SHORT for t in values)
    with _compiling(), config.patch((_WIDE if on_gpu else {}) | (_UNSPLIT if on_gpu and short else {})):
        every = tangents_of(given)
        if every and every[0].shape[0] == 1:
            single = _traced(lambda v, g: run(v, [t[0] for t in tangents_of(g)]), values, given)
            draw_late(single.graph, [n for n in single.graph.nodes if n.op == "placeholder"][len(values) :])
            single.recompile()
            count_together(single)
            function = _inductor(single, values, given)
            return lambda v, g: _stacked(function(v, g))
        graph = _traced(run, values, [t[0] for t in every])
        batched = torch.func.vmap(graph, in_dims=(None, 0), out_dims=(None, 0))  # pyright: ignore
        return _inductor(lambda v, g: batched(v, tangents_of(g)), values, given)


def compiled_function(run: Callable[..., Any], *inputs: list[Tensor], fake: bool = False) -> Callable[..., Any]:
    """Compile a function of lists of tensors for tensors like these.

    With `fake`, tracing computes nothing and changes none of them. On a GPU, independent small kernels are combined.
    """
    from torch._inductor import config  # takes a second or two

    on_gpu = any(t.is_cuda for each in inputs for t in each)
    with _compiling(), config.patch(combo_kernels=on_gpu):
        return _inductor(run, *inputs, fake=fake)


@contextmanager
def _compiling() -> Iterator[None]:
    """Explain errors inside the context, in which one thread may be at a time."""
    from freewheel.stage._inductor import compiling  # takes a second or two

    with compiling(fallback_random=False):
        try:
            yield
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise RuntimeError(f"compile=True: the pass cannot be compiled ({reason}); leave compile out") from error


def _traced(run: Callable[..., Any], *inputs: Any, fake: bool = False) -> GraphModule:
    graph = make_fx(run, tracing_mode="fake" if fake else "real")(*inputs)
    for node in graph.graph.find_nodes(op="placeholder"):
        node.meta.pop("val", None)  # a fake tensor of a mode of its own, which the compiler would take for its input
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _inductor(run: Callable[..., Any], *inputs: list[Tensor], fake: bool = False) -> Callable[..., Any]:
    """Compile a function; on a CPU into one C++ function, which lets other threads run Python while it runs."""
    from torch._inductor import config  # takes a second or two

    flat, shape = tree_flatten(inputs)
    shapes: list[TreeSpec] = []  # of the result

    def flat_run(*tensors: Tensor) -> tuple[Tensor, ...]:
        out, found = tree_flatten(run(*tree_unflatten(tensors, shape)))
        shapes.append(found)
        return tuple(out)

    on_cpu = not any(t.is_cuda for t in flat)
    with torch.no_grad(), config.patch(cpp_wrapper=on_cpu):
        function = torch._inductor.compile(_traced(flat_run, *flat, fake=fake), flat)  # pyright: ignore
    return lambda *given: tree_unflatten(function(*tree_leaves(given)), shapes[0])  # pyright: ignore


def _stacked(out: tuple[Sequence[Tensor], Sequence[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    values, tangents = out
    return list(values), [t.unsqueeze(0) for t in tangents]
