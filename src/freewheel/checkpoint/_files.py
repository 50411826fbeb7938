"""Files that are on the disk when they are said to be, and that nobody has changed since."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from freewheel.checkpoint._plain import plain

GENERATORS = "generators.pt"


class DamagedError(ValueError):
    """A file is not what was written."""


class File(NamedTuple):
    """A file, and what it must contain."""

    name: str
    sha256: str
    size: int


class _Hashing:
    """Writes to a file, and hashes what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Appends some bytes."""
        self.sha256.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Hands them to the system."""
        self._file.flush()


def write_tensors(folder: Path, name: str, content: Any) -> File:
    """Writes plain containers of tensors, and waits until they are on the disk."""
    with (folder / name).open("wb") as file:
        hashing = _Hashing(file)
        torch.save(content, hashing)  # pyright: ignore[reportArgumentType]
        _sync(file)
    return File(name, hashing.sha256.hexdigest(), hashing.size)


def write_generators(folder: Path, generators: Any) -> File:
    """Writes what the loader draws from."""
    return write_tensors(folder, GENERATORS, plain(generators, "the loader's state"))


def write_text(path: Path, text: str) -> None:
    """Writes a text file, and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(text.encode())
        _sync(file)


def read_tensors(folder: Path, file: File) -> Any:
    """What `write_tensors` has written; raises `DamagedError` for anything else."""
    check_file(folder, file)
    return torch.load(folder / file.name, weights_only=True, map_location="cpu")


def check_file(folder: Path, file: File) -> None:
    """Raises `DamagedError` where a file is missing or is not what was written."""
    path = folder / file.name
    try:
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from None
    if found != file.sha256:
        raise DamagedError(f"{path} is damaged: its {path.stat().st_size:,} bytes are not the {file.size:,} written")


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk, where the system can tell."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
