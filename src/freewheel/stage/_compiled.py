"""The computation of a stage, compiled once for each form of its arguments.

A module computes with tensors that it holds: parameters, which a late stage replaces by an earlier version, buffers,
and plain attributes. All of them become arguments of what is compiled, next to input and target. Everything else that a
module holds is a constant of the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.stage._code import CompiledCode, CompiledForm, filled, template_of
from freewheel.stage._held import ChangedError, Held, Holders, form_of
from freewheel.stage._hooks import check_no_forward_hooks, check_no_module_hooks, check_not_compiled
from freewheel.stage._trees import Shape, flatten, tensors_among, unflatten

VALUES = (
    "it depends on the values of a tensor, as item(), a condition, a mask used as an index, and a BatchNorm with "
    "momentum=None do"
)
HIDDEN = "it uses a tensor that is neither an argument nor held by a module of the stage, its lists or its dicts"


class CompiledFunction:
    """A function of trees of tensors that calls modules, compiled for each form of its arguments.

    Args:
        function: The function. It must return all that it computes.
        holders: Returns what holds the tensors that it uses. If a setting of a module changes, the function is compiled
            again.
        stage: The number of its stage.
        code: Where the compiled code is kept.
        options: Those of `freewheel.stage._inductor.compiled`.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> double, options = lambda x: 2 * layer(x), {"recomputes": True, "donates": True}
        >>> double = CompiledFunction(double, lambda: Holders({"": layer}), 0, CompiledCode(), **options)
        >>> double.refresh()
        >>> x = torch.ones(3, 2)
        >>> torch.allclose(double(x), 2 * layer(x))
        True
    """

    def __init__(
        self,
        function: Callable[..., Any],
        holders: Callable[[], Holders],
        stage: int,
        code: CompiledCode,
        **options: bool,
    ) -> None:
        self._function, self._holders, self._stage = function, holders, stage
        self._code, self._options = code, options
        self._held = Held(Holders({}), stage)
        self._number, self._settings = 0, dict[str, Any]()

    def check(self, device: torch.device) -> None:
        """Reject what cannot be compiled, or would be called only once."""
        from freewheel.stage._inductor import check_compiler

        check_compiler(device)
        for module in self._holders().modules.values():
            check_not_compiled(module, self._stage, "compile=True")
            check_no_module_hooks(module, self._stage, "compile=True", "leave compile out")
            check_no_forward_hooks(module, self._stage)
            for name, child in module.named_modules() if device.type == "cpu" else ():
                if isinstance(child, nn.LSTM):
                    raise ValueError(
                        f"module {name or type(child).__name__!r} of stages[{self._stage}] is an nn.LSTM, which cannot "
                        "be compiled for a CPU: leave compile out"
                    )

    def refresh(self) -> None:
        """Read the settings of the modules, and where tensors are, before a run."""
        self._held = Held(self._holders(), self._stage)
        self._number, self._settings = self._code.number(self._held.form()), self._held.settings()

    def check_unchanged(self) -> None:
        """Reject modules whose settings have changed since then."""
        self._held.check_same(self._settings)

    def __call__(self, *trees: Any) -> Any:
        """Call the compiled function."""
        held, (leaves, shape) = self._held.tensors(), flatten(trees)
        form = tuple(form_of(t) if isinstance(t, Tensor) else (type(t), t) for t in leaves)
        key = form, shape, self._number, torch.is_grad_enabled(), torch.get_num_threads()
        ready = self._code.get(key, lambda: self._compile(held, leaves, shape))
        return ready.result(ready.run(*held, *tensors_among(leaves)))

    def _compile(self, held: Sequence[Tensor], leaves: Sequence[Any], shape: Shape) -> CompiledForm:
        from freewheel.stage._inductor import compiled  # takes a second or two

        template = template_of(leaves)
        results: list[tuple[list[Any], Shape]] = []

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            arguments = unflatten(filled(template, tensors[len(held) :]), shape)
            with self._held.replaced(tensors[: len(held)]):
                results.append(flatten(self._function(*arguments)))
            return tensors_among(results[-1][0])

        try:
            function = compiled(run, [*held, *tensors_among(leaves)], **self._options)
        except ChangedError:
            raise
        except Exception as error:
            raise ValueError(
                f"stages[{self._stage}] cannot be compiled ({_reason(error)}): leave compile out"
            ) from error
        out, out_shape = results[-1]
        return CompiledForm(function, template_of(out), out_shape)


def _reason(error: Exception) -> str:
    """Say why something cannot be compiled, in the words of what users write where that is known."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return VALUES
    reason = str(error).strip().split("\n")[0]
    if ".numpy() is not supported" in reason:
        return VALUES
    return HIDDEN if "FakeTensorMode with 'allow_non_fake_inputs'" in reason else reason
