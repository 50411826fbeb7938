"""The networks and data sets of the papers, and what stands for them where they are missing or too large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from freewheel import data, models
from freewheel.data import Data
from freewheel.split import Stages, split
from freewheel.stage import to_device


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set.

    Args:
        title: The paper's name of it.
        name: The name for `fw.data.load`.
        options: Further arguments of `load`.
        files: What to put into the folder of `--data-root`.
    """

    title: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def load(self, root: Path | None, **options: Any) -> Data:
        """Load it; a missing file is named, with what to do."""
        try:
            return data.load(
                self.name, root=None if self.name in SHIPPED else root, **{**dict(self.options), **options}
            )
        except ValueError as error:
            raise ValueError(f"{self.title}: {str(error).replace('pass root=', 'give --data-root')}") from error
        except FileNotFoundError as error:
            text = str(error)
            if root is not None and not root.is_dir():
                text = text.replace("root ", "--data-root ", 1).replace(": pass ", ": give ", 1)
            else:
                text += "; or give another --data-root"
            raise FileNotFoundError(f"{self.title}: {text}") from error

    def check(self, root: Path | None) -> None:
        """Refuse data that are not there."""
        if self not in _CHECKED:
            self.load(root)
            _CHECKED.add(self)


_CHECKED: set[Source] = set()
SHIPPED = ("digits", "digits-rows", "synthetic")
DIGITS = Source(title="scikit-learn's digits", name="digits")
ROWS = Source(title="the rows of scikit-learn's digits", name="digits-rows")


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A network with weights in a file.

    Args:
        model: The name for `fw.models.build`.
        file: The file, in `weights` of the folder of `--data-root`.
    """

    model: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Net:
    """A network.

    Args:
        title: The paper's name of it.
        model: The name for `fw.models.build`.
        options: Further arguments of `build`.
        published: Whether the paper says where to cut it; otherwise stages have equal numbers of layers.
        pretrained: Networks whose weights it can start from, the first of which there is a file.
        small: Whether it is small enough for `--quick`.
    """

    title: str
    model: str
    options: tuple[tuple[str, Any], ...] = ()
    published: bool = False
    pretrained: tuple[Pretrained, ...] = ()
    small: bool = False

    def found(self, root: Path | None) -> Pretrained | None:
        """The first of the pretrained networks whose file is there; refuses if none is."""
        if not self.pretrained:
            return None
        folder = (root or Path("DATA_ROOT")) / "weights"
        for each in self.pretrained:
            if (folder / each.file).is_file():
                return each
        wanted = " or ".join(f"{folder / each.file}" for each in self.pretrained)
        raise FileNotFoundError(
            f"{self.title}: no ImageNet weights; put a state dict of {self.pretrained[0].model} at {wanted}, and give "
            "--data-root, the folder of `weights`"
        )

    def build(self, root: Path | None, shapes: dict[str, Any], seed: int) -> nn.Sequential:
        """Build it with the weights of this seed, and load the pretrained ones over them."""
        found = self.found(root)
        torch.manual_seed(seed)
        model = models.build(self.model if found is None else found.model, **shapes, **dict(self.options))
        if found is not None:
            assert root is not None
            models.load_pretrained(model, root / "weights" / found.file)
        return model

    def cut(self, model: nn.Sequential, root: Path | None, k: int, device: str) -> Stages:
        """The network in k stages on a device: where the paper cuts it, or into equal numbers of layers."""
        model.to(device)
        if k == 1:
            return split(model, 1)
        found = self.found(root)
        name = self.model if found is None else found.model
        if self.published and len(at := _published(name)) == k - 1:
            return split(model, at=at)
        return split(model, at=_begins(model, k))


def _published(name: str) -> tuple[str, ...]:
    try:
        return models.paper_cuts(name)
    except ValueError:
        return ()


def _begins(model: nn.Sequential, k: int) -> list[str]:
    """The layers at which the second and later of k stages begin, each with as many layers that have weight matrices.

    A residual block counts once. Norms, activations and pools do not count, and stay with the layer before them.
    """
    layers = list(_layers(model))
    heavy = [name for name, layer in layers if any(weight.dim() > 1 for weight in layer.parameters())]
    names = heavy if len(heavy) >= k else [name for name, _ in layers]
    return [names[len(names) * i // k] for i in range(1, k)]


def _layers(model: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """The layers by name, those of nested Sequentials singly, and a residual block as one."""
    for name, child in model.named_children():
        inner = _layers(child) if type(child) is nn.Sequential else [("", child)]
        yield from ((f"{name}.{rest}" if rest else name, layer) for rest, layer in inner)


DIGITS_NET = Net(title="digits-cnn", model="digits-cnn", small=True)
ROWS_NET = Net(title="LSTM of 32", model="lstm", options=(("hidden", 32),), small=True)


def on(values: Any, device: str) -> Any:
    """Move the tensors to a device."""
    return to_device(values, torch.device(device))
