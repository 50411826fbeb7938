"""The files of a checkpoint: plain data, synced to disk when written, verified when read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from freewheel._files import writing

SIMPLE = (type(None), bool, int, float, complex, str, bytes)


class DamagedError(ValueError):
    """A file is missing or differs from what was written."""


class File(NamedTuple):
    """A file of a checkpoint and its digest; that of a stage also records how far the stage was."""

    name: str
    sha256: str
    size: int
    forwarded: int | None = None  # batches that the stage has forwarded
    in_flight: bool = False  # whether messages that the stage has sent are in flight


class _HashingFile:
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Append bytes."""
        self.sha256.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Pass buffered bytes on to the system."""
        self._file.flush()


def write_tensors(folder: Path, name: str, content: Any) -> File:
    """Write plain containers of tensors and sync them to disk."""
    with writing(folder / name), (folder / name).open("wb") as file:
        hashing = _HashingFile(file)
        torch.save(content, hashing)  # pyright: ignore[reportArgumentType]
        _sync(file)
    return File(name, hashing.sha256.hexdigest(), hashing.size)


def write_text(path: Path, text: str) -> None:
    """Write a text file and sync it to disk."""
    with writing(path), path.open("wb") as file:
        file.write(text.encode())
        _sync(file)


def read_tensors(folder: Path, file: File) -> Any:
    """Read what `write_tensors` wrote; raise `DamagedError` for anything else."""
    check_file(folder, file)
    return torch.load(folder / file.name, weights_only=True, map_location="cpu")


def check_file(folder: Path, file: File) -> None:
    """Raise `DamagedError` if a file is missing or has another digest."""
    path = folder / file.name
    try:
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from None
    if found != file.sha256:
        raise DamagedError(f"{path} is damaged: its {path.stat().st_size:,} bytes are not the {file.size:,} written")


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, where the system supports it."""
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


# -- plain data: read again without running anyone's code -------------------------------------------------------------


def plain(value: Any, what: str = "it") -> Any:
    """The same tree in tuples, lists, dicts, tensors, numbers and text; anything else is refused.

    A tensor is copied only if it is a view of a larger storage, which would be written in full.

    Example:
        >>> plain({"size": torch.Size([2, 3]), "x": torch.zeros(9)[:1]})
        {'size': (2, 3), 'x': tensor([0.])}
    """
    if isinstance(value, Tensor):
        return _compact(value)
    if type(value) in SIMPLE:
        return value
    if type(value) in (tuple, torch.Size):
        return tuple([plain(item, what) for item in value])
    if type(value) is list:
        return [plain(item, what) for item in value]
    if type(value) in (dict, OrderedDict, Counter):
        return type(value)({plain(key, what): plain(item, what) for key, item in value.items()})
    raise TypeError(
        f"{what} has a {type(value).__name__} in it: a checkpoint holds tensors, numbers, text, and tuples, lists and "
        "dicts of these; use them instead, or train without save_to"
    )


def _compact(tensor: Tensor) -> Tensor:
    """The tensor without its graph, in a storage of its own size, with the same strides."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return tensor
    if tensor._is_zerotensor() or tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    if tensor.untyped_storage().nbytes() == span * tensor.element_size():
        return tensor
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.size(), tensor.stride(), 0)
