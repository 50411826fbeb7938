"""Versions and resources."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import freewheel
from freewheel._cores import cores

EXTRAS = {
    "cli": ("cyclopts", "rich", "tomli-w", "scikit-learn", "numpy"),
    "vision": ("torchvision",),
    "loggers": ("tensorboard",),
    "bench": ("jax", "matplotlib"),
}
SHARED = Path("/dev/shm")
KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Versions, and what there is of cores and memory; None where the system does not tell.

    Args:
        versions: Of freewheel, python and torch.
        extras: The packages of each extra, with their versions; None for one that is not installed.
        system: The operating system.
        cpu: The model of the CPU.
        cores: The cores that this process may use.
        memory: Bytes of memory, all and free.
        shared: Bytes of shared memory, all and free.
    """

    versions: dict[str, str]
    extras: dict[str, dict[str, str | None]]
    system: str
    cpu: str
    cores: int
    memory: tuple[int, int] | None
    shared: tuple[int, int] | None


def facts() -> Facts:
    """Find them; nothing is computed, and no device is touched.

    Example:
        >>> facts().cores >= 1, sorted(facts().versions)
        (True, ['freewheel', 'python', 'torch'])
    """
    versions = {"freewheel": freewheel.__version__, "python": platform.python_version(), "torch": version("torch")}
    return Facts(
        versions=versions,
        extras={extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        system=platform.platform(aliased=True, terse=True),
        cpu=processor(),
        cores=cores(),
        memory=_memory(),
        shared=_shared(),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """The name of the CPU."""
    found = _table(Path("/proc/cpuinfo")).get("model name") or platform.processor()
    return found or platform.machine()


def _memory() -> tuple[int, int] | None:
    """All and free memory: of the system, or of the container if that is less."""
    table = _table(Path("/proc/meminfo"))
    if not {"MemTotal", "MemAvailable"} <= table.keys():
        return None
    whole, free = (int(table[name].split()[0]) * KIB for name in ("MemTotal", "MemAvailable"))
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None or limit >= whole:
        return whole, free
    return limit, min(free, limit - used)


def _shared() -> tuple[int, int] | None:
    if not SHARED.is_dir():
        return None
    found = shutil.disk_usage(SHARED)
    return found.total, found.free


def _table(path: Path) -> dict[str, str]:
    """The first value of each name in a file of `name: value` lines; nothing where there is no such file."""
    if not os.access(path, os.R_OK):
        return {}
    pairs = (line.split(":", 1) for line in path.read_text(errors="replace").splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in reversed(list(pairs))}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
