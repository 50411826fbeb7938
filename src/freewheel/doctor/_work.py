"""What is tried, each in a process of its own: a function that returns a word on what it found, or raises."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import HashStore

import freewheel
from freewheel._bfloat16 import PROBE

MIB = 1024 * 1024
SHARED = 16 * MIB  # bytes of shared memory that are written


class AbsentError(Exception):
    """What is tried is not here, which is no fault."""


def train(runtime: str) -> str:
    """Train a tiny network in two stages."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2)]
    optimizer = partial(torch.optim.SGD, lr=0.1)
    batches = [(torch.randn(8, 4), torch.arange(8) % 2) for _ in range(4)]
    trainer = freewheel.Trainer(
        stages, method="fdg", loss=F.cross_entropy, optimizer=optimizer, runtime=runtime, threads=1
    )
    history = trainer.fit(batches, progress=False)
    _same(history.batches, 4, "batches")
    return ""


def bfloat16() -> str:
    """Layers forward and backward under bfloat16 autocast."""
    exec(PROBE, {})
    return ""


def compiled() -> str:
    """A compiled layer forward and backward."""
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    torch.compile(layer, dynamic=False)(x).square().sum().backward()
    _close(layer.bias.grad, 2 * layer(x).sum(0))
    return ""


def shared_memory() -> str:
    """Memory for messages between processes, and weights that processes share."""
    from freewheel.runtime._shared_wire import AVAILABLE

    if not AVAILABLE:
        raise AbsentError("this system has no memory files to share; processes talk through gloo")
    descriptor = os.memfd_create("freewheel-doctor")
    os.ftruncate(descriptor, SHARED)
    _same(os.write(descriptor, bytes(SHARED)), SHARED, "bytes of shared memory")
    os.close(descriptor)
    _same(int(torch.empty(SHARED, dtype=torch.uint8).share_memory_().fill_(1).sum()), SHARED, "shared values")
    return ""


def gloo() -> str:
    """A message between two ranks over loopback."""
    store = HashStore()

    def rank(own: int) -> torch.Tensor:
        options: Any = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = timedelta(seconds=30)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        group: Any = dist.ProcessGroupGloo(store, own, 2, options)  # pyright: ignore[reportCallIssue]
        return _summed(group, torch.full((4,), own + 1.0))

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(rank, range(2)):
            _close(found, torch.full((4,), 3.0))
    return ""


def cuda() -> str:
    """A layer forward and backward on each GPU."""
    if not torch.cuda.is_available():
        raise AbsentError(
            "no GPU that this PyTorch can use" if torch.version.cuda else "this PyTorch is built without CUDA"
        )
    for number in range(torch.cuda.device_count()):
        layer, x = nn.Linear(64, 64).to(f"cuda:{number}"), torch.randn(32, 64, device=f"cuda:{number}")
        layer(x).square().sum().backward()
        _close(layer.bias.grad, 2 * layer(x).sum(0))
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return ", ".join(f"{each.name} {each.total_memory / 1024**3:.0f} GiB" for each in found)


def cuda_graphs() -> str:
    """A layer captured, and replayed on other values."""
    layer, x = nn.Linear(64, 64).cuda(), torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        x.copy_(torch.randn(32, 64))
        graph.replay()
        torch.cuda.synchronize()
        _close(y, layer(x))
    return ""


def nccl() -> str:
    """A sum over the GPUs, two at most."""
    if not dist.is_nccl_available():
        raise AbsentError("this PyTorch is built without NCCL")
    size, store = min(2, torch.cuda.device_count()), HashStore()

    def rank(own: int) -> torch.Tensor:
        torch.cuda.set_device(own)
        group: Any = dist.ProcessGroupNCCL(store, own, size)  # pyright: ignore
        return _summed(group, torch.ones(4, device=f"cuda:{own}")).cpu()

    with ThreadPoolExecutor(size) as pool:
        for found in pool.map(rank, range(size)):
            _close(found, torch.full((4,), float(size)))
    return "with one GPU" if size == 1 else ""


def _summed(group: Any, values: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks of a group."""
    group.allreduce([values]).wait()
    return values


def _close(found: torch.Tensor | None, expected: torch.Tensor) -> None:
    if found is None or not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
        raise RuntimeError("the values it computes are wrong")


def _same(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise RuntimeError(f"{found} {what}, not {expected}")


WORK: dict[str, Callable[[], str]] = {
    "training": partial(train, "simulate"),
    "processes": partial(train, "processes"),
    "bfloat16": bfloat16,
    "torch.compile": compiled,
    "shared memory": shared_memory,
    "gloo": gloo,
    "CUDA": cuda,
    "CUDA graphs": cuda_graphs,
    "NCCL": nccl,
}
