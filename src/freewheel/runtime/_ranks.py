"""The processes that torchrun has started: rank and size, and what they must agree on before a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from freewheel.checkpoint import difference, settings_of
from freewheel.runtime._run import Run
from freewheel.runtime._world import prefixed

TIMEOUT = 300.0
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CUT = "cut"
_jobs = count()
_broadcasts = count()


def is_started() -> bool:
    """Whether torchrun, or something that sets the same variables, has started this process."""
    return set(ENVIRONMENT) <= os.environ.keys()


def is_one_of_several() -> bool:
    """Whether torchrun has started several processes."""
    return is_started() and rank_and_size()[1] > 1


def rank_and_size() -> tuple[int, int]:
    """The rank of this process, and the number of processes."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_started(stages: int, replicas: int = 1) -> None:
    """Refuse a process that torchrun has not started, or a number of processes that does not match the stages."""
    wanted = stages * replicas
    if not is_started():
        raise ValueError(
            f"runtime='torchrun' in a process that torchrun has not started: run torchrun --nproc-per-node {wanted} "
            "SCRIPT, or use runtime='processes'"
        )
    _, size = rank_and_size()
    if size == wanted:
        return
    of = f" in each of {replicas} replicas" if replicas > 1 else ""
    other = f", or cut the model into {size // replicas}" if size % replicas == 0 else ""
    raise ValueError(
        f"torchrun started {size} processes for {stages} stages{of}: each stage needs one, so start {wanted} "
        f"(--nproc-per-node {wanted} on one host){other}"
    )


def joined_job(run: str) -> tuple[str, bool]:
    """The name of a run that all processes of the job share, restarted ones too; and whether this is a restarted one.

    The first process to call it decides. The store is that of torchrun's agent, which outlives its processes.
    """
    name = f"freewheel/job/{next(_jobs)}"
    store = shared_store(TIMEOUT)
    while isinstance(store, PrefixStore):  # torchrun gives every attempt a prefix
        store = store.underlying_store
    joined = store.compare_set(name, "", run).decode()
    return joined, _attempt() != "0"


def _attempt() -> str:
    """The number of times that torchrun has restarted the processes."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def store_of(name: str, timeout: float = TIMEOUT) -> Any:
    """A view of the store that all processes share; a different one after torchrun has restarted them."""
    return prefixed(f"freewheel/{_attempt()}/{name}", shared_store(timeout))


@cache
def shared_store(timeout: float) -> Any:
    """The store that torchrun's agent serves, or that rank 0 does."""
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    return store


def of_rank_0(name: str, make: Callable[[], Any]) -> Any:
    """Broadcast plain data that rank 0 makes. Every process makes the same calls in the same order."""
    store = store_of(f"broadcast/{next(_broadcasts)}")
    if rank_and_size()[0] == 0:
        value = make()
        store.set(name, json.dumps(value))
        return value
    return json.loads(store.get(name))


def declare(store: Any, rank: int, run: Run) -> None:
    """Publish what this process is about to train; see `check_same`."""
    options = run.stages[0].options
    tensors = [{name: tuple(t.shape) for name, t in s.module.state_dict().items()} for s in run.stages]
    begin = {"batches": run.spec.before.batches + run.feed.announced}
    store.set(f"trains/{rank}", json.dumps({**settings_of(options), **begin, CUT: tensors}))


def check_same(store: Any, size: int) -> None:
    """Refuse processes that are about to train different things; all must have called `declare`."""
    first, *others = [json.loads(store.get(f"trains/{rank}")) for rank in range(size)]
    for rank, other in enumerate(others, 1):
        found = difference(first, other)
        if found is None:
            continue
        name, wanted, given = found
        if name != CUT:
            raise ValueError(
                f"{name}={given!r} on rank {rank}, but {wanted!r} on rank 0: every process must make the same trainer; "
                f"give the same {name} everywhere"
            )
        raise ValueError(
            f"the stages of rank {rank} are not those of rank 0: fw.split measures, and may cut elsewhere in each "
            "process; use by='parameters', or give balance= or at="
        )
