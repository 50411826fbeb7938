"""The manifest: which run a checkpoint belongs to, where its fit stands, and the digests of its files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from freewheel.checkpoint._files import DamagedError, File

NAME = "manifest.json"
FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class FitPosition:
    """Where a fit stands; one with no epoch left has ended."""

    batches: int  # that every stage has been updated with
    epochs: int  # of the whole fit
    epoch: int  # of the next batch
    first: int = 0  # the number of that epoch's first batch
    last: str = ""  # a fingerprint of the last batch, if it belongs to that epoch
    seconds: float = 0.0  # since the last epoch ended
    history: dict[str, Any]  # so far, as plain data

    @property
    def ended(self) -> bool:
        """Whether no epoch is left."""
        return self.epoch >= self.epochs


def _version() -> str:
    from freewheel import __version__

    return __version__


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a checkpoint except its tensors."""

    run: str  # the id of the run, shared by all runs that resume it
    plan: str  # the plan's heading, for human readers
    settings: dict[str, Any]  # what must not change for batches in flight to stay valid
    batches_before: int  # of earlier fits
    epochs_before: int
    freewheel: str = field(default_factory=_version)  # the version that wrote it
    torch: str = torch.__version__
    fit: FitPosition | None = None  # None between two fits
    files: tuple[File, ...] = ()  # beside the manifest

    @property
    def batches(self) -> int:
        """Batches of the fit that every stage has been updated with."""
        return 0 if self.fit is None else self.fit.batches

    @property
    def history(self) -> dict[str, Any] | None:
        """The history of the fit, as plain data; None between two fits."""
        return None if self.fit is None else self.fit.history

    @property
    def unfinished(self) -> bool:
        """Whether the checkpoint was saved in the middle of a fit."""
        return self.fit is not None and not self.fit.ended

    @property
    def drained(self) -> bool:
        """Whether nothing is in flight."""
        return all(file.forwarded in (None, self.batches) and not file.in_flight for file in self.files)

    def text(self) -> str:
        """The manifest as JSON, with a digest of itself."""
        return seal({**asdict(self), "files": [file._asdict() for file in self.files]})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a checkpoint; raise `DamagedError` if it is missing or damaged."""
        content = unseal(folder / NAME)
        assert content.keys() == {f.name for f in fields(cls)}, "the fields depend on the format alone"
        fit, files = content["fit"], content["files"]
        content["fit"] = None if fit is None else FitPosition(**fit)
        return cls(**{**content, "files": tuple(File(**file) for file in files)})


def seal(content: dict[str, Any]) -> str:
    """Plain data as JSON, with the number of the format and a digest of the whole."""
    content = {"format": FORMAT, **content}
    return json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n"


def unseal(path: Path) -> dict[str, Any]:
    """Read what `seal` wrote; raise `DamagedError` if the file is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{path} is missing or damaged") from None
    if digest != _digest(content):
        raise DamagedError(f"{path} is damaged: it differs from what was written")
    version = content.pop("format")
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version}, this freewheel reads format {FORMAT}: resume it with freewheel "
            f"{content.get('freewheel')}"
        )
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
