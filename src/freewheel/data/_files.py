"""Readers of the MNIST (idx), CIFAR-10 and CIFAR-100 (binary) file formats.

The magic number, size and labels of a file are checked.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from freewheel._errors import one_of

# An idx file begins with two zero bytes, the type of its items (8: unsigned byte) and its number of
# dimensions, followed by a big-endian 32-bit size for each dimension and the items.
_IDX_BYTE = 8

_CIFAR_SHAPE = (3, 32, 32)
CIFAR100_LABELS = {"coarse": 20, "fine": 100}  # the label bytes of a row, in this order, and their classes


def _read_bytes(path: Path, *, wanted: str) -> bytearray:
    """The bytes of `path` or, if it does not exist, of the decompressed `path`.gz."""
    packed = path.with_name(path.name + ".gz")
    if path.is_file():
        content = path.read_bytes()
    elif packed.is_file():
        path = packed
        try:
            content = gzip.decompress(packed.read_bytes())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{packed} is not a complete gzip file ({error}): download it again") from None
    else:
        raise FileNotFoundError(f"{path} is missing: put {wanted} there")
    if not content:
        raise ValueError(f"{path} is empty: put {wanted} there")
    return bytearray(content)


def _check_labels(path: Path, labels: Tensor, classes: int) -> Tensor:
    highest = int(labels.max())
    if highest >= classes:
        raise ValueError(f"{path} contains the label {highest}: labels must be from 0 to {classes - 1}")
    return labels.to(torch.int64)


def read_idx(path: Path | str, *, dims: int) -> Tensor:
    """Read an idx file of unsigned bytes, the format of MNIST.

    Args:
        path: the file; if it does not exist, the same name with `.gz`.
        dims: the expected number of dimensions: 3 for images, 1 for labels.

    Returns:
        A uint8 tensor.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "labels"
        ...     _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 2, 1]))
        ...     read_idx(file, dims=1)
        tensor([7, 2, 1], dtype=torch.uint8)
    """
    path = Path(path)
    content = _read_bytes(path, wanted=f"an idx{dims}-ubyte file, plain or .gz,")
    magic = bytes([0, 0, _IDX_BYTE, dims])
    if content[:4] != magic:
        raise ValueError(f"{path} begins with {content[:4].hex()}: an idx{dims}-ubyte file begins with {magic.hex()}")
    header = 4 + 4 * dims
    if len(content) < header:
        raise ValueError(f"{path} is truncated: its header has {len(content)} of {header} bytes")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    wanted = header + math.prod(shape)
    if len(content) != wanted:
        what = "is truncated" if len(content) < wanted else "is too long"
        raise ValueError(f"{path} {what}: it has {len(content)} bytes, its header says {wanted}")
    if 0 in shape:
        raise ValueError(f"{path} has no items: its header says {' x '.join(map(str, shape))}")
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).view(shape)


def read_mnist(folder: Path | str, split: str) -> tuple[Tensor, Tensor]:
    """Read the images and labels of MNIST or of a data set in the same format.

    Args:
        folder: contains `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two `t10k-` files, plain
            or as `.gz`.
        split: `"train"` or `"t10k"`.

    Returns:
        uint8 images of (count, 1, height, width), and int64 labels.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     header = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2])
        ...     _ = (Path(folder) / "t10k-images-idx3-ubyte").write_bytes(header + bytes([0, 1, 2, 3]))
        ...     _ = (Path(folder) / "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 9]))
        ...     images, labels = read_mnist(folder, "t10k")
        >>> images.shape, labels
        (torch.Size([1, 1, 2, 2]), tensor([9]))
    """
    if split not in ("train", "t10k"):
        raise ValueError(f"split must be 'train' or 't10k', got {split!r}")
    images_path = Path(folder) / f"{split}-images-idx3-ubyte"
    labels_path = Path(folder) / f"{split}-labels-idx1-ubyte"
    images, labels = read_idx(images_path, dims=3), read_idx(labels_path, dims=1)
    if len(images) != len(labels):
        raise ValueError(f"{images_path} has {len(images)} images, {labels_path.name} has {len(labels)} labels")
    return images.unsqueeze(1), _check_labels(labels_path, labels, 10)


def read_cifar10(path: Path | str) -> tuple[Tensor, Tensor]:
    """Read one batch file of the binary version of CIFAR-10: rows of a label byte and 3072 pixel bytes.

    Returns:
        uint8 images of (count, 3, 32, 32), and int64 labels.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "test_batch.bin"
        ...     _ = file.write_bytes(bytes([3]) + bytes(3072))
        ...     images, labels = read_cifar10(file)
        >>> images.shape, labels
        (torch.Size([1, 3, 32, 32]), tensor([3]))
    """
    labels, images = _read_cifar(Path(path), 1, wanted="a batch of the binary version of CIFAR-10")
    return images, _check_labels(Path(path), labels[:, 0], 10)


def read_cifar100(path: Path | str, *, labels: str = "fine") -> tuple[Tensor, Tensor]:
    """Read `train.bin` or `test.bin` of the binary version of CIFAR-100: rows of two label bytes and 3072 pixel bytes.

    Args:
        path: the file.
        labels: which of the two labels to return, `"fine"` for the 100 classes or `"coarse"` for their 20 superclasses.

    Returns:
        uint8 images of (count, 3, 32, 32), and int64 labels.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "test.bin"
        ...     _ = file.write_bytes(bytes([11, 98]) + bytes(3072))
        ...     read_cifar100(file)[1], read_cifar100(file, labels="coarse")[1]
        (tensor([98]), tensor([11]))
    """
    one_of("labels", labels, CIFAR100_LABELS)
    both, images = _read_cifar(Path(path), len(CIFAR100_LABELS), wanted="a file of the binary version of CIFAR-100")
    checked = {
        kind: _check_labels(Path(path), column, classes)
        for (kind, classes), column in zip(CIFAR100_LABELS.items(), both.unbind(1))
    }
    return images, checked[labels]


def _read_cifar(path: Path, labels: int, *, wanted: str) -> tuple[Tensor, Tensor]:
    """The label bytes and the images of a file of rows."""
    content = _read_bytes(path, wanted=wanted)
    row = labels + math.prod(_CIFAR_SHAPE)
    if len(content) % row:
        raise ValueError(f"{path} is truncated: it has {len(content)} bytes, not a multiple of a row's {row}")
    rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, row)
    return rows[:, :labels], rows[:, labels:].reshape(-1, *_CIFAR_SHAPE)
