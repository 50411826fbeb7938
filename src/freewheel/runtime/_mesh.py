"""The processes of `torchrun` as a `torch.distributed` mesh, for users' collectives."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from freewheel.runtime._ranks import rank_and_size, shared_store
from freewheel.runtime._world import prefixed

DIMENSIONS = ("replica", "stage")


def device_mesh(stages: int, replicas: int, *, timeout: float) -> DeviceMesh:
    """The ranks of a run as an R x K mesh, on the default process group; a gloo group is made where there is none.

    All processes must call it. Runs do not use it: their messages travel on wires.
    """
    if not dist.is_initialized():
        rank, size = rank_and_size()
        dist.init_process_group("gloo", store=prefixed("mesh", shared_store(timeout)), rank=rank, world_size=size)
    return init_device_mesh("cpu", (replicas, stages), mesh_dim_names=DIMENSIONS)
