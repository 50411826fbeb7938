"""Load pretrained weights for all of a network but its head."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from freewheel._errors import of_type
from freewheel.models._mobile import torchvision_spelling

_DOWNSAMPLE = ".downsample."  # what torchvision calls the projection shortcut of a residual block
_HOW = "write one with torch.save(model.state_dict(), file)"


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """The result of `load_pretrained`.

    Attributes:
        loaded: names of the parameters and buffers loaded from the file.
        new: names in the model that were not loaded.
        ignored: names in the file that were not used.
    """

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        """Summarize in one line.

        Example:
            >>> print(Pretrained(loaded=("conv.weight",), new=("fc.weight", "fc.bias"), ignored=()))
            loaded 1 of 3 tensors; new: fc.weight, fc.bias; ignored: none
        """
        total = len(self.loaded) + len(self.new)
        return f"loaded {len(self.loaded)} of {total} tensors; new: {_few(self.new)}; ignored: {_few(self.ignored)}"


def load_pretrained(
    model: nn.Module, path: str | os.PathLike[str], *, head: str | None = None, strict: bool = True
) -> Pretrained:
    """Load a state dict into a model in place. The head may be missing or have another size.

    The file is read with `torch.load(weights_only=True)`, so no code in it is executed. The model is changed
    only after all checks.

    Args:
        model: the network, not yet trained.
        path: a file written by `torch.save(model.state_dict(), path)`.
        head: the layers that stay new unless the file has them with the same shapes: the name of a submodule
            (`"classifier"`) or a pattern of parameter names (`"*fc*"`); by default the last `nn.Linear`.
        strict: whether file and model must have the same names, except for the head. Shapes must agree
            either way.

    Example:
        >>> import tempfile
        >>> from freewheel.models import build
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "weights.pt"
        ...     torch.save(build("digits-cnn", num_classes=100).state_dict(), file)
        ...     print(load_pretrained(build("digits-cnn", num_classes=10), file))
        loaded 48 of 50 tensors; new: fc.weight, fc.bias; ignored: fc.weight, fc.bias
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a nn.Module, not {type(model).__name__}: load before the model is split")
    own = model.state_dict()
    head_of = _head(model, head, own)
    file = torchvision_spelling(_read_weights(path))
    if not any(_DOWNSAMPLE in key for key in own):
        file = {key.replace(_DOWNSAMPLE, ".shortcut."): value for key, value in file.items()}

    in_head = {key for key in (*own, *file) if head_of(key)}
    fits = all(key in own and key in file and own[key].shape == file[key].shape for key in in_head)
    skipped = set() if fits else in_head
    missing = [key for key in own if key not in file and key not in skipped]
    left = [key for key in file if key not in own and key not in skipped]
    if strict and (missing or left):
        raise ValueError(
            f"path={str(path)!r} is for another network: missing {_few(missing)}, not in the model {_few(left)}: "
            "build the network it was saved from, or pass strict=False to load what matches"
        )
    loaded = [key for key in own if key in file and key not in skipped]
    for key in loaded:
        if own[key].shape != file[key].shape:
            raise ValueError(
                f"path={str(path)!r}: {key} is {tuple(file[key].shape)} in the file but {tuple(own[key].shape)} in the "
                "model: build the network it was saved from, or name the layers that may differ with head="
            )
    if not loaded:
        raise ValueError(f"path={str(path)!r} has no weights for this model, only {_few(file)}: give another file")
    model.load_state_dict({key: file[key] for key in loaded}, strict=False)
    return Pretrained(
        loaded=tuple(loaded),
        new=tuple(key for key in own if key not in set(loaded)),
        ignored=tuple(key for key in file if key not in set(loaded)),
    )


def classifier(model: nn.Module) -> str:
    """A pattern of the parameter names of a network's classifier, its last `nn.Linear`.

    Example:
        >>> from freewheel.models import build
        >>> classifier(build("mobilenet-v2")), classifier(build("digits-cnn"))
        ('classifier.1.*', 'fc.*')
    """
    last = _last_linear(model)
    if last is None:
        raise ValueError(
            f"{type(model).__name__} has no nn.Linear that could be its classifier: give a pattern of parameter names "
            "instead"
        )
    return _inside(last)


def _last_linear(model: nn.Module) -> str | None:
    return next((n for n, m in reversed(list(model.named_modules())) if isinstance(m, nn.Linear)), None)


def _inside(layer: str) -> str:
    return f"{layer}.*" if layer else "*"  # the network may be a single layer


def _head(model: nn.Module, head: str | None, own: Iterable[str]) -> Callable[[str], bool]:
    """A function that tells whether a name belongs to the head."""
    if head is None:
        last = _last_linear(model)
        return (lambda key: False) if last is None else (lambda key: fnmatchcase(key, _inside(last)))
    of_type("head", head, str, "give the name of a submodule or a pattern such as '*fc*'")

    def matches(key: str) -> bool:
        return key.startswith(f"{head}.") or fnmatchcase(key, head)

    if not any(map(matches, own)):
        raise ValueError(
            f"head={head!r} matches no layer of the model: give one of {_few(dict(model.named_children()))}"
        )
    return matches


def _read_weights(path: str | os.PathLike[str]) -> Mapping[str, Tensor]:
    """The state dict in a file."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the path of a file of weights, got {type(path).__name__} {path!r:.80}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such file; {_HOW}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise ValueError(
            f"path={str(path)!r} is not a state dict of tensors only, and nothing else is unpickled: {_HOW}"
        ) from None
    if not isinstance(state, Mapping):
        raise ValueError(f"path={str(path)!r} holds a {type(state).__name__} instead of a state dict: {_HOW}")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"path={str(path)!r}: a state dict maps names to tensors, but {key!r} to {type(value).__name__}: {_HOW}"
            )
    return state


def _few(names: Iterable[str]) -> str:
    """The first names and the number of the others."""
    known = list(names)
    if len(known) > 4:
        known[3:] = [f"and {len(known) - 3} more"]
    return ", ".join(known) or "none"
