"""What users have done to modules and parameters: gradient hooks, which copies get too, backward hooks, compiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

Hooks = Mapping[str, Sequence[Callable[..., Any]]]  # by the name of the parameter
M = TypeVar("M", bound=nn.Module)
_CHAIN = "use a method of the chain rule, such as 'pipedream'"


def gradient_hooks(module: nn.Module) -> Hooks:
    """Return the functions that `register_hook` has put on each parameter.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.register_hook(lambda gradient: 2 * gradient)
        >>> list(gradient_hooks(layer))
        ['weight']
    """
    found = {name: p._backward_hooks for name, p in module.named_parameters()}
    return {name: list(hooks.values()) for name, hooks in found.items() if hooks}


def with_hooks(module: M, hooks: Hooks) -> M:
    """Put hooks on the parameters of a module, which has none."""
    parameters = dict(module.named_parameters())
    for name, functions in hooks.items():
        for function in functions:
            parameters[name].register_hook(function)
    return module


def check_hooks(module: nn.Module, stage: int) -> None:
    """Reject hooks that wait for a gradient to be accumulated, and parameters that have no shape yet."""
    for name, p in module.named_parameters():
        if is_lazy(p):
            raise ValueError(
                f"parameter {name!r} of stages[{stage}] has no shape yet (a lazy module): run the network on one batch "
                "before you make the trainer"
            )
        if getattr(p, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"parameter {name!r} of stages[{stage}] has a post-accumulate-grad hook, which would not be called: "
                "change gradients by register_hook, and leave the steps to the trainer's optimizer"
            )


def check_not_compiled(module: nn.Module, stage: int, method: str) -> None:
    """Reject modules that the user has compiled, where the pass is not the one that was compiled."""
    for name, child in module.named_modules():
        if "_orig_mod" in child._modules or child._compiled_call_impl is not None:
            raise ValueError(
                f"module {name or type(child).__name__!r} of stages[{stage}] is compiled by torch.compile, which "
                f"{method} does not support: give the module itself, and compile=True to the trainer"
            )


def check_no_module_hooks(module: nn.Module, stage: int, method: str, otherwise: str = _CHAIN) -> None:
    """Reject backward hooks of modules whose gradients are not computed, or pass by them."""
    for name, child in module.named_modules():
        if child._backward_hooks or child._backward_pre_hooks:
            raise ValueError(
                f"module {name or type(child).__name__!r} of stages[{stage}] has a backward hook, which {method} would "
                f"not call: remove it, or {otherwise}"
            )


def check_no_hooks(module: nn.Module, stage: int, method: str) -> None:
    """Reject hooks on gradients that are not computed, or whose changes would be lost."""
    check_hooks(module, stage)
    for name in gradient_hooks(module):
        raise ValueError(
            f"parameter {name!r} of stages[{stage}] has a gradient hook (register_hook), which {method} would not "
            "call: remove it, or use a method of the chain rule, such as 'pipedream'"
        )


def check_no_forward_hooks(module: nn.Module, stage: int) -> None:
    """Reject hooks that compiled code would not call, other than those that compute a weight."""
    for name, child in module.named_modules():
        for hook in [*child._forward_hooks.values(), *child._forward_pre_hooks.values()]:
            if not (getattr(hook, "__module__", None) or "").startswith("torch."):
                raise ValueError(
                    f"module {name or type(child).__name__!r} of stages[{stage}] has a forward hook, which compiled "
                    "code would not call: put it into the module's forward, or leave compile out"
                )
