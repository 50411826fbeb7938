"""torchvision, which other libraries import. One built for another device has no operators: those are declared."""

from __future__ import annotations

import importlib

import torch


def declare_operators() -> None:
    """Declare the operators that torchvision asks for when it is imported, where its own cannot be loaded."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # there is none, and nobody will ask
    except RuntimeError:
        for name in ("torchvision::nms", "torchvision::qnms"):
            torch.library.define(name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
