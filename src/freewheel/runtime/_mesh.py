"""The processes of `torchrun` as a `torch.distributed` mesh, for collectives of one's own."""

from __future__ import annotations

import os

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from freewheel.runtime._ranks import shared_store
from freewheel.runtime._world import prefixed

DIMENSIONS = ("replica", "stage")


def device_mesh(stages: int, replicas: int, *, timeout: float) -> DeviceMesh:
    """The ranks of a run in R rows of K, on the default group; a gloo group is made where there is none.

    All processes call it. Runs themselves do without: their messages travel on wires of their own.
    """
    if not dist.is_initialized():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=prefixed("mesh", shared_store(timeout)), rank=rank, world_size=size)
    return init_device_mesh("cpu", (replicas, stages), mesh_dim_names=DIMENSIONS)
