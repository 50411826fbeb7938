"""The computation of a stage, compiled once for each form of its arguments.

A module computes with tensors that it holds: parameters, which a late stage replaces by an earlier version, buffers,
and plain attributes. All of them become arguments of what is compiled, next to input and target. Everything else that a
module holds is a constant of the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._plain import PLAIN, is_same
from freewheel.stage._code import CompiledCode, CompiledForm, filled, template_of
from freewheel.stage._hooks import check_no_forward_hooks, check_no_module_hooks, check_not_compiled
from freewheel.stage._slots import Slot, fill, tensor_slots
from freewheel.stage._trees import Shape, flatten, tensors_among, unflatten

Holders = Callable[[], tuple[Sequence[nn.Module], Sequence[dict[Any, Tensor]]]]
_CACHES = ("_flat_weights", "_flat_weight_refs")  # of `nn.RNNBase`
_FUNCTIONS = (FunctionType, BuiltinFunctionType, type)


class ChangedError(ValueError):
    """A module has changed what it holds."""


class CompiledFunction:
    """A function of trees of tensors that calls modules, compiled for each form of its arguments.

    Args:
        function: The function. It must return all that it computes.
        holders: Returns the modules that it calls, and dicts of other tensors that it uses. If a setting of a module
            changes, the function is compiled again.
        stage: The number of its stage.
        code: Where the compiled code is kept.
        options: Those of `freewheel.stage._inductor.compiled`.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> double, options = lambda x: 2 * layer(x), {"recomputes": True, "donates": True}
        >>> double = CompiledFunction(double, lambda: ([layer], []), 0, CompiledCode(), **options)
        >>> double.refresh()
        >>> x = torch.ones(3, 2)
        >>> torch.allclose(double(x), 2 * layer(x))
        True
    """

    def __init__(
        self,
        function: Callable[..., Any],
        holders: Holders,
        stage: int,
        code: CompiledCode,
        **options: bool,
    ) -> None:
        self._function, self._holders, self._stage = function, holders, stage
        self._code, self._options = code, options
        self._dicts: list[tuple[str, dict[str, Any]]] = []
        self._slots: list[list[Slot]] = []
        self._number = 0

    def check(self, device: torch.device) -> None:
        """Reject what cannot be compiled, or would be called only once."""
        from freewheel.stage._inductor import check_compiler

        check_compiler(device)
        for module in self._holders()[0]:
            check_not_compiled(module, self._stage, "compile=True")
            check_no_module_hooks(module, self._stage, "compile=True")
            check_no_forward_hooks(module, self._stage)
            for name, child in module.named_modules() if device.type == "cpu" else ():
                if isinstance(child, nn.LSTM):
                    raise ValueError(
                        f"module {name or type(child).__name__!r} of stages[{self._stage}] is an nn.LSTM, which cannot "
                        "be compiled for a CPU: leave compile out"
                    )

    def refresh(self) -> None:
        """Read the settings of the modules, and where tensors are, before a run."""
        roots, others = self._holders()
        modules = [pair for root in roots for pair in root.named_modules()]
        self._dicts = [(name, vars(module)) for name, module in modules]
        more: list[list[Slot]] = [[(tensors, key)] for tensors in others for key in tensors]
        self._slots = [*tensor_slots(module for _, module in modules), *more]
        trained = tuple(t.requires_grad for t in self._held())
        settings = tuple((name, key, _setting(v)) for name, values in self._dicts for key, v in values.items())
        self._number = self._code.number((trained, tuple(type(module) for _, module in modules), settings))

    def __call__(self, *trees: Any) -> Any:
        """Call the compiled function."""
        held, (leaves, shape) = self._held(), flatten(trees)
        form = tuple(
            (t.shape, t.stride(), t.dtype, t.device, t.requires_grad) if isinstance(t, Tensor) else (type(t), t)
            for t in leaves
        )
        key = form, shape, self._number, torch.is_grad_enabled(), torch.get_num_threads()
        ready = self._code.get(key, lambda: self._compile(held, leaves, shape))
        return ready.result(ready.run(*held, *tensors_among(leaves)))

    def _held(self) -> list[Tensor]:
        """Return the tensors that the modules hold now."""
        return [holder[key] for (holder, key), *_ in self._slots]

    def _compile(self, held: Sequence[Tensor], leaves: Sequence[Any], shape: Shape) -> CompiledForm:
        from freewheel.stage._inductor import compiled  # takes a second or two

        template = template_of(leaves)
        results: list[tuple[list[Any], Shape]] = []

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            arguments = unflatten(filled(template, tensors[len(held) :]), shape)
            with self._holding(tensors[: len(held)]):
                results.append(flatten(self._function(*arguments)))
            return tensors_among(results[-1][0])

        try:
            function = compiled(run, [*held, *tensors_among(leaves)], **self._options)
        except ChangedError:
            raise
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            if "FakeTensorMode with 'allow_non_fake_inputs'" in reason:
                reason = "it uses a tensor that is neither an argument nor held by a module, its lists or its dicts"
            raise ValueError(f"stages[{self._stage}] cannot be compiled ({reason}): leave compile out") from error
        out, out_shape = results[-1]
        return CompiledForm(function, template_of(out), out_shape)

    @contextmanager
    def _holding(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Let the modules hold these tensors inside the context, and refuse other changes to what they hold."""
        before, held = [dict(values) for _, values in self._dicts], self._held()
        fill(self._slots, tensors)
        filled = [dict(values) for _, values in self._dicts]
        try:
            yield
            for (name, values), old in zip(self._dicts, filled):
                for key, value in values.items():
                    if value is not old.get(key) and key not in _CACHES and not _constant(value, old.get(key)):
                        raise ChangedError(
                            f"module {name or 'itself'!r} of stages[{self._stage}] sets its attribute {key!r} in "
                            "forward, which compiled code would do only once: make it a buffer and change that in "
                            "place, or leave compile out"
                        )
        finally:
            for (_, values), old in zip(self._dicts, before):
                for key in values.keys() - old.keys():
                    del values[key]
                values.update(old)
            fill(self._slots, held)


def _setting(value: Any) -> Any:
    """Return what a compiled function depends on: a value or a function, and of anything else its type."""
    if type(value) in (list, tuple):
        return tuple(map(_setting, value))
    return (type(value), value if type(value) in (*PLAIN, *_FUNCTIONS) else None)


def _constant(value: Any, before: Any) -> bool:
    """Whether the value of an attribute says nothing about earlier calls."""
    if isinstance(before, Tensor):
        return before.grad_fn is not None  # every forward computes it
    return type(value) in PLAIN and is_same(value, before)
