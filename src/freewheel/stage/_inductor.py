"""Compiling a function of tensors, and its backward, by AOTAutograd and Inductor.

The function is traced by calling it: there are no guards, and nothing falls back to eager execution in silence. Code
is the same in every process, so that it gives the same bits: no kernel is chosen by measuring it.
"""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import config as autograd_config
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode

from freewheel.stage._random import compiled_draws, saves_states, unseeded
from freewheel.stage._trees import tensors_among

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the compiler's own
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V
    from torch.utils._triton import has_triton

if multiprocessing.parent_process() is not None:
    with suppress(AttributeError):  # the compiler's progress bars take a semaphore that a worker would leave behind
        torch.hub.tqdm.set_lock(threading.RLock())  # pyright: ignore[reportPrivateImportUsage]

Function = Callable[..., Sequence[Tensor]]
_one_at_a_time = threading.Lock()  # tracing and compiling change global state of torch
# Random numbers are drawn by the operations of eager execution, from the generators that these draw from.
_SETTINGS = {
    "fallback_random": True,
    "deterministic": True,
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "combo_kernels_autotune": 0,
}


def compiled(function: Function, inputs: Sequence[Tensor], *, recomputes: bool, donates: bool) -> Function:
    """Compile a function for tensors like these inputs, and its backward if one of them requires a gradient.

    Args:
        function: A function of tensors that returns tensors. It is called a few times, with tensors without values.
        inputs: Example inputs.
        recomputes: Whether the backward may compute again what is cheap to compute; else everything is saved that eager
            execution would save.
        donates: Whether the backward may overwrite what was saved for it.
    """
    partition = partial(_partition, recomputes=recomputes)
    with _tracing(cse=False, donated_buffer=donates), nullcontext() if recomputes else _without_hooks():
        return aot_module_simplified(
            _Traced(function),  # pyright: ignore[reportArgumentType]
            list(inputs),
            fw_compiler=_forward,
            bw_compiler=partial(_inductor, is_backward=True),
            inference_compiler=_inference,
            partition_fn=partition,
            decompositions={**select_decomp_table(), **compiled_draws()},
            keep_inference_input_mutations=True,
        )


def check_compiler(device: torch.device) -> None:
    """Reject a machine without the compiler that Inductor needs for a device."""
    if device.type == "cuda" and not has_triton():
        raise ValueError("compile=True needs Triton for a GPU, which is missing: install it, or leave compile out")
    try:
        get_cpp_compiler()
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"compile=True needs a C++ compiler ({reason}): install g++, give one by CXX, or leave compile out"
        ) from error


class _Traced(nn.Module):
    """The function as a module without weights."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Sequence[Tensor]:
        return self._function(*inputs)


def _partition(joint: fx.GraphModule, inputs: Any, *, recomputes: bool, **options: Any) -> Any:
    draws = _draws(joint)
    if draws and saves_states():
        raise RuntimeError(
            "it uses torch.utils.checkpoint and draws random numbers, which its backward would not repeat"
        )
    with unseeded():
        joint = joint_graph_passes(joint) or joint
        if not recomputes:
            return default_partition(joint, inputs, **options)
        # Two draws from the same distribution look like the same computation.
        with autograd_config.patch(cse=not draws):
            return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)


def _draws(graph: fx.GraphModule) -> bool:
    """Whether a graph draws random numbers."""
    targets = [node.target for node in graph.graph.nodes]
    return any(isinstance(t, OpOverload) and torch.Tag.nondeterministic_seeded in t.tags for t in targets)


def _inductor(gm: fx.GraphModule, example_inputs: Sequence[Any], **kind: Any) -> Any:
    """Compile a graph; on a CPU into one C++ function, which lets other threads run Python while it runs."""
    on_cpu = all(t.device.type == "cpu" for t in tensors_among(example_inputs))
    with unseeded(), inductor_config.patch({"cpp_wrapper": on_cpu}):
        return compile_fx_inner(gm, example_inputs, cpp_wrapper=on_cpu, **kind)


def _forward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    metadata = TracingContext.get().fw_metadata
    assert metadata is not None
    first = metadata.num_mutated_inp_runtime_indices
    _keep_strides(gm, range(first, first + metadata.num_outputs))
    return _inductor(gm, example_inputs)


def _inference(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    with unseeded():
        gm = joint_graph_passes(gm) or gm
    _keep_strides(gm, None)
    return _inductor(gm, example_inputs, is_inference=True)


def _keep_strides(gm: fx.GraphModule, outputs: range | None) -> None:
    """Let these outputs, or all, have the strides of eager execution: dropout draws in the order of memory."""
    node = gm.graph.output_node()
    found = node.args[0]
    assert isinstance(found, (list, tuple))
    wanted = range(len(found)) if outputs is None else outputs
    node.meta["user_visible_output_idxs"] = [i for i in wanted if isinstance(found[i], fx.Node)]


@contextmanager
def compiling(**settings: bool) -> Iterator[None]:
    """Compile inside the context, one thread at a time, with these settings of Inductor."""
    with _one_at_a_time, warnings.catch_warnings(), inductor_config.patch({**_SETTINGS, **settings}):
        warnings.simplefilter("ignore")  # the compiler's own
        yield


@contextmanager
def _tracing(**autograd: bool) -> Iterator[None]:
    """Trace and compile inside the context."""
    mode = FakeTensorMode()
    with ExitStack() as stack:
        stack.enter_context(compiling())
        # A backward that is compiled when it is first called would be compiled outside of the lock.
        stack.enter_context(autograd_config.patch({"force_non_lazy_backward_lowering": True, **autograd}))
        stack.enter_context(V.set_fake_mode(mode))
        stack.enter_context(tracing(TracingContext(mode)))
        yield


@contextmanager
def _without_hooks() -> Iterator[None]:
    """Call no hook on what autograd saves inside the context: those in place are for the compiled function."""
    autograd = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    autograd._saved_tensors_hooks_disable("what is saved is replaced", False)
    try:
        yield
    finally:
        autograd._saved_tensors_hooks_enable()
