"""A network, data and a loss of one's own: `FILE.py:FUNCTION` in place of a name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from freewheel._errors import of_type
from freewheel.runtime import Reader

DATA_ONLY = (  # for named data sets
    "data_root",
    "limit",
    "test_limit",
    "augment",
    "labels",
    "size",
    "workers",
    "steps",
    "words",
    "batch_size",
)
MODEL_ONLY = ("resize", "hidden")  # for named networks
EXAMPLES = {"data": "loaders", "model": "make", "loss": "loss"}


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """The loaders that a function has returned."""

    name: str
    train: Any
    test: Any
    things: str = "samples"
    vocabulary: str = ""
    validation: None = None

    @property
    def description(self) -> str:
        """What there is of it, in words."""
        counts = [f"{len(each):,}" if sized(each) else "?" for each in (self.train, self.test)]
        return f"{self.name}: {counts[0]} batches to train, {counts[1]} to test"

    @property
    def facts(self) -> dict[str, Any]:
        """What there is of it, as plain data."""
        return {"name": self.name}

    @property
    def shapes(self) -> dict[str, Any]:
        """Arguments for a network: none are known."""
        return {}

    @property
    def nbytes(self) -> int:
        """The memory that they would take on a device: none, since they stay where they are."""
        return 0

    def to(self, device: object) -> OwnData:
        """The same loaders: they decide where their batches are."""
        return self

    def example(self) -> Any:
        """The input of the first batch."""
        for item in self.train:
            return Reader().batch(0, item).x
        raise ValueError(f"--data {self.name}: the loader for training is empty")


def is_own(text: str | None) -> bool:
    """Whether this names a function in a file.

    Example:
        >>> is_own("net.py:make"), is_own("resnet-20"), is_own(None)
        (True, False, False)
    """
    return text is not None and ".py:" in text


def absolute(text: str | None) -> Any:
    """The same with the whole path of the file, so that it can be repeated from another folder."""
    if text is None or not is_own(text):
        return text
    file, _, function = text.rpartition(":")
    return f"{Path(file).resolve()}:{function}"


def own_function(flag: str, text: str) -> Callable[..., Any]:
    """The function; its file is imported by its name, as worker processes do."""
    file, _, name = text.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"{flag} {text}: there is no such file")
    known = sys.modules.get(path.stem)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() != path:
        raise ValueError(f"{flag} {text}: there is another module {path.stem!r}; rename the file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    function = getattr(importlib.import_module(path.stem), name, None)
    if not callable(function):
        raise ValueError(f"{flag} {text}: {file} has no function {name!r}")
    return function


def own_data(text: str) -> OwnData:
    """The loaders of `--data FILE.py:FUNCTION`: a pair, for training and for testing."""
    made = own_function("--data", text)()
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(f"--data {text}: it returned a {type(made).__name__}; return two loaders, (train, test)")
    return OwnData(name=text, train=made[0], test=made[1])


def own_model(text: str, known: dict[str, Any]) -> nn.Module:
    """The network of `--model FILE.py:FUNCTION`; the function gets what it takes of `num_classes` and `in_shape`."""
    make = own_function("--model", text)
    takes = signature(make).parameters
    made = make(**{name: value for name, value in known.items() if name in takes})
    return of_type(f"--model {text}: its result", made, nn.Module, "it must return a torch.nn.Module")


def check_own(options: Any, flag: Callable[[str], str]) -> None:
    """Refuse files without a function, and options of named data sets and networks with one's own."""
    for own in ("data", "model", "loss"):
        text = getattr(options, own)
        if text is not None and text.endswith(".py"):
            raise ValueError(f"{flag(own)} {text}: name a function of the file, such as {text}:{EXAMPLES[own]}")
    for own, others in (("data", DATA_ONLY), ("model", MODEL_ONLY)):
        given = [name for name in others if getattr(options, name) is not None]
        if is_own(getattr(options, own)) and given:
            raise ValueError(f"{flag(given[0])} with {flag(own)} {getattr(options, own)}: the function decides that")
    if is_own(options.data) and options.model is None:
        raise ValueError(f"--data {options.data} without --model: say which network to train")


def sized(loader: Any) -> bool:
    """Whether a loader has a length."""
    try:
        len(loader)
    except TypeError:
        return False
    return True
