"""Devices: finding them by name, and copying tensors to them without waiting."""

from __future__ import annotations

import torch
from torch import Tensor


def find_device(given: str, device: object) -> torch.device:
    """Return the device of this name, if there is one; errors begin with `given`.

    Example:
        >>> find_device("device='cpu'", "cpu")
        device(type='cpu')
    """
    try:
        found = torch.device(device)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (RuntimeError, TypeError):
        raise ValueError(f"{given}: give cpu, cuda, or a GPU by its number, such as cuda:1") from None
    if found.type == "cuda":
        gpus = torch.cuda.device_count()
        if (found.index or 0) >= gpus:
            raise ValueError(f"{given}: torch sees {gpus} GPUs here{'' if gpus else '; use cpu'}")
        return found
    if found.type != "cpu":
        try:
            torch.zeros(1, device=found).item()
        except (AssertionError, NotImplementedError, RuntimeError):
            raise ValueError(f"{given}: torch has no such device with values here; use cpu or cuda") from None
    return found


def devices_from(first: torch.device, count: int) -> list[torch.device]:
    """Return this many devices: the GPUs in turn, beginning with this one; beside a CPU, the CPU again.

    Example:
        >>> devices_from(torch.device("cpu"), 2)
        [device(type='cpu'), device(type='cpu')]
    """
    if first.type != "cuda":
        return [first] * count
    gpus = torch.cuda.device_count()
    return [torch.device("cuda", ((first.index or 0) + i) % gpus) for i in range(count)]


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device; a GPU copies it from pinned memory, and nothing waits for that."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
