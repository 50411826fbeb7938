"""Random numbers per batch and stage, independent of threads.

Dropout and similar layers draw from torch's global generator. Concurrent stages would share it, and the order of their
draws would depend on timing. Here every forward of (seed, stage, batch, micro-batch) has its own generator, so it is
reproducible on another runtime and in a recomputation.

Only random operations are intercepted, so a stage that draws nothing pays nothing: torch's dispatcher has a key that
no kernel uses. `SeededDraws` includes it in the keys of its thread, all operations skip it, and the random ones get a
kernel for it, which calls the same operation with a generator. `torch.vmap` handles random operations in the same way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._functorch import config as compiling
from torch._guards import TracingContext
from torch._ops import OpOverload

from freewheel._seeds import seed_of
from freewheel.stage._trees import tensors_among

_KEY = "TESTING_ONLY_GenericMode"
# Kernels that draw on the GPU without a generator; attention step by step takes their place.
_FUSED_ATTENTION = ("flash", "efficient", "cudnn")


class SeededDraws:
    """A context in which the random operations of a thread draw from generators of its own.

    Args:
        key: What the seed is made from.
        generator: The generator of a device whose seed the caller sets, instead of a new one.

    Example:
        >>> def draw():
        ...     with SeededDraws(0, 1, 2) as draws:
        ...         return torch.rand(2), draws.used
        >>> torch.equal(draw()[0], draw()[0]), draw()[1]
        (True, True)
    """

    def __init__(self, *key: int, generator: torch.Generator | None = None) -> None:
        self.used = False  # whether anything was drawn
        self.saved: Literal["", "plain", "reentrant"] = ""  # the kind of checkpoint that has saved a generator's state
        self._key = key
        self._generators: dict[torch.device, torch.Generator] = (
            {} if generator is None else {generator.device: generator}
        )

    def generator(self, device: torch.device) -> torch.Generator:
        """Return the generator of a device; `cuda` without a number is the current GPU."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=device).manual_seed(seed_of(*self._key))
        return self._generators[device]

    def drawn(self, device: torch.device) -> torch.Generator:
        """Return the generator of a device, for a draw."""
        self.used = True
        return self.generator(device)

    def __enter__(self) -> SeededDraws:
        self._outer = _active.draws
        self._guard = torch._C._IncludeDispatchKeyGuard(_registered().key)
        self._guard.__enter__()
        _active.draws = self
        return self

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)
        _active.draws = self._outer


class _Active(threading.local):
    draws: SeededDraws | None = None


_active = _Active()


class _Registered(NamedTuple):
    """The dispatcher's key, and the kernels, which are there as long as their libraries."""

    key: Any
    libraries: tuple[Any, ...]
    compiled: list[Any]


_lock = threading.Lock()


def _registered() -> _Registered:
    """Register the kernels of random operations, once per process, whichever thread is first."""
    with _lock:
        return _register()


@cache
def _register() -> _Registered:
    others, library = torch.library.Library("_", "IMPL", _KEY), torch.library.Library("aten", "IMPL", _KEY)
    others.fallback(torch.library.fallthrough_kernel)
    for schema in torch._C._jit_get_all_schemas():
        names = {argument.name for argument in schema.arguments}
        if not schema.name.startswith("aten::") or names.isdisjoint({"generator", "dropout_p", "dropout", "p"}):
            continue
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
        op = getattr(packet, schema.overload_name or "default")
        if torch.Tag.nondeterministic_seeded in op.tags and (kernel := _kernel(op, names)):
            library.impl(op, partial(kernel, op), _KEY)
    _share_states()
    # A mode that checks the first call of compiled code would hide its draws.
    if "check_custom_op_aliasing" in vars(compiling)["_config"]:
        compiling.check_custom_op_aliasing = False
    return _Registered(torch._C._dispatch_key_parse(_KEY), (others, library), [])  # pyright: ignore


def _share_states() -> None:
    """Let `torch.get_rng_state` and `torch.set_rng_state` be about the thread's own generators inside `SeededDraws`.

    `torch.utils.checkpoint` saves the state in the forward, and sets it when the backward runs the forward again.
    """
    for module, kind in ((torch, "cpu"), (torch.random, "cpu"), (torch.cuda, "cuda"), (torch.cuda.random, "cuda")):
        vars(module)["get_rng_state"] = _reader(module.get_rng_state, kind)
        vars(module)["set_rng_state"] = _writer(module.set_rng_state, kind)


def _reader(read: Callable[..., Tensor], kind: str) -> Callable[..., Tensor]:
    @wraps(read)
    def reads(device: Any = kind) -> Tensor:
        if _active.draws is None:
            return read() if kind == "cpu" else read(device)
        if sys._getframe(1).f_globals["__name__"] == "torch.utils.checkpoint":
            # A reentrant checkpoint is an autograd.Function, whose forward runs without gradients.
            _active.draws.saved = "plain" if torch.is_grad_enabled() else "reentrant"
        return _active.draws.generator(_placed(device)).get_state()

    return reads


def _writer(write: Callable[..., None], kind: str) -> Callable[..., None]:
    @wraps(write)
    def writes(new_state: Tensor, device: Any = kind) -> None:
        if _active.draws is not None:
            _active.draws.generator(_placed(device)).set_state(new_state)
        elif kind == "cpu":
            write(new_state)
        else:
            write(new_state, device)

    return writes


def _placed(device: Any) -> torch.device:
    """Return a device with its number, as tensors have it."""
    return torch.device("cpu") if device == "cpu" else torch.empty(0, device=device).device


def _kernel(op: OpOverload, names: set[str]) -> Callable[..., Any] | None:
    """Return the kernel of a random operation; None if it is made of others that have one."""
    if "generator" in names:
        return _seeded
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return None
    if op is torch.ops.aten.native_dropout.default:
        return _dropout
    fused = [f"aten::_scaled_dot_product_{name}_attention" for name in _FUSED_ATTENTION]
    return _attention if op.name() in fused else _without_generator


def unseeded() -> Any:
    """Return a context that is outside of `SeededDraws`."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_registered().key))


def saves_states() -> bool:
    """Whether a checkpoint has saved the state of a generator inside the present `SeededDraws`."""
    return _active.draws is not None and _active.draws.saved != ""


def _plainly(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Call an operation as outside of `SeededDraws`."""
    with unseeded():
        return op(*args, **kwargs)


def _given(op: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return all arguments by name, defaults included."""
    arguments = op._schema.arguments
    return {a.name: a.default_value for a in arguments} | dict(zip((a.name for a in arguments), args)) | kwargs


def _seeded(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Call an operation with the generator of its device, unless it is given one."""
    given = _given(op, args, kwargs)
    if given["generator"] is not None or _active.draws is None or _traced():
        return _plainly(op, *args, **kwargs)
    known = next((t.device for t in tensors_among(given.values())), given.get("device"))
    device = torch.device(known) if known is not None else torch.get_default_device()
    named = {name: value for name, value in given.items() if name != "self"}
    positional = [given["self"]] if "self" in given else []
    return _plainly(op, *positional, **{**named, "generator": _active.draws.drawn(device)})


def _traced() -> bool:
    """Whether torch.compile is tracing: its code draws when it runs, by random operations of its own."""
    return TracingContext.try_get() is not None


def _dropout(op: OpOverload, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return x * mask * (1 / (1 - p)), mask


def _attention(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Call a fused kernel that has no dropout; else compute attention step by step, with a dropout that is seeded."""
    given = _given(op, args, kwargs)
    if not given["dropout_p"]:
        return _plainly(op, *args, **kwargs)
    inputs = given["query"], given["key"], given["value"], given.get("attn_bias")
    attention = torch.ops.aten._scaled_dot_product_attention_math
    out, _ = attention(*inputs, given["dropout_p"], given["is_causal"], scale=given["scale"])
    rest = [out.new_empty(0) if str(value.type) == "Tensor" else 0 for value in op._schema.returns[1:]]
    return out, *rest


def _without_generator(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Call an operation that takes no generator if it has no dropout."""
    given = _given(op, args, kwargs)
    dropout = next((given[name] for name in ("dropout_p", "dropout", "p") if name in given), 0.0)
    if not dropout or given.get("train") is False or "philox_seed" in given:
        return _plainly(op, *args, **kwargs)
    raise RuntimeError(
        f"{op} draws random numbers but takes no generator, so its result would depend on timing: "
        "set its dropout to 0, or use another kernel"
    )


@cache
def compiled_draws() -> dict[OpOverload, Callable[..., Any]]:
    """Return what takes the place of random operations in compiled code, by operation.

    Inductor computes `bernoulli` in place, in memory that other kernels may have read before, and fails to match the
    pattern of `randperm` when all of it is an index, as in mixup.
    """
    library = torch.library.Library("freewheel", "DEF")
    _registered().compiled.append(library)
    for name, kind in (("bernoulli_p", "float"), ("bernoulli_tensor", "Tensor")):
        library.define(f"{name}(Tensor x, {kind} p) -> Tensor", tags=[torch.Tag.nondeterministic_seeded])
        library.impl(name, _bernoulli, "CompositeExplicitAutograd")
        torch.library.register_fake(f"freewheel::{name}", lambda x, p: torch.empty_like(x), lib=library)
        library.impl(name, partial(_as_a_whole, getattr(torch.ops.freewheel, name).default), _KEY)
    library.define("permutation(int n, str device) -> Tensor", tags=[torch.Tag.nondeterministic_seeded])
    library.impl("permutation", _permutation, "CompositeExplicitAutograd")
    torch.library.register_fake("freewheel::permutation", _permutation, lib=library)
    ours, aten = torch.ops.freewheel, torch.ops.aten
    return {
        aten.bernoulli.p: lambda x, p=0.5, generator=None: ours.bernoulli_p(x, p),
        aten.bernoulli.Tensor: lambda x, p, generator=None: ours.bernoulli_tensor(x, p),
        aten.bernoulli.default: lambda p, generator=None: ours.bernoulli_tensor(p, p),
        aten.randperm.default: lambda n, dtype=None, device=None, **options: ours.permutation(
            n, str(device or "cpu")
        ).to(dtype or torch.int64),
    }


def _bernoulli(x: Tensor, p: Any) -> Tensor:
    return torch.empty_like(x).bernoulli_(p)


def _permutation(n: int, device: str) -> Tensor:
    return torch.randperm(n, device=device)


def _as_a_whole(op: OpOverload, x: Tensor, p: Any) -> Tensor:
    """Draw before any mode sees the operation, which would hide it from the kernels here."""
    return _plainly(op, x, p) if _traced() else _bernoulli(x, p)
