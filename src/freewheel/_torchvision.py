"""torchvision, which is imported only where it is needed, also where its operators do not fit the installed torch."""

from __future__ import annotations

import importlib
import pickle
from types import ModuleType
from typing import Any

import torch

# What torchvision asks for when it is imported, and gets from its compiled part.
OPERATORS = dict.fromkeys(("nms", "qnms"), "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_declared = False


def import_torchvision(what: str, module: str = "torchvision") -> ModuleType:
    """Import a module of torchvision, which `what` needs.

    A torchvision whose compiled part is for another torch, such as one with CUDA beside a torch without, cannot be
    imported as it is. Its networks and transforms do not use that part, so what it would have declared is declared
    here, without an implementation.

    Example:
        >>> import_torchvision("this example").__name__
        'torchvision'
    """
    try:
        return _imported(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"{what} needs torchvision: pip install 'freewheel[vision]'", name="torchvision"
        ) from None
    except (RuntimeError, AttributeError) as error:
        raise RuntimeError(
            f"{what}: the installed torchvision does not fit the installed torch ({str(error).splitlines()[0]}): "
            "install the two together, pip install --upgrade torch 'freewheel[vision]'"
        ) from None


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except RuntimeError:
        _declare()
        return importlib.import_module(module)


def _declare() -> None:
    global _declared
    for name, schema in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
    _declared = True


class _Declaring:
    """Declares the operators of torchvision where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _declare, ()


def packed(value: Any) -> bytes:
    """Pickle a value for a worker process, which may have to import torchvision for it.

    Example:
        >>> unpacked(packed([1, 2]))
        [1, 2]
    """
    return pickle.dumps((_Declaring() if _declared else None, value))


def unpacked(data: bytes) -> Any:
    """Return the value that was packed."""
    return pickle.loads(data)[1]
