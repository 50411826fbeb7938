"""The manifest: what a checkpoint is of, where in the data it stands, and what its files must contain."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from freewheel.checkpoint._files import DamagedError, File

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a fit has come that is not at its end.

    Args:
        epochs: The passes over the data that it was asked for.
        epoch: The one that goes on.
        first: The number of its first batch.
        last: What the last batch of it looked like, if there was one.
        seconds: Time since the last epoch ended.
        fetched: For each stage, the batches that it has forwarded.
    """

    epochs: int
    epoch: int
    first: int
    last: str
    seconds: float
    fetched: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a checkpoint but its tensors.

    Args:
        freewheel: The version that wrote it.
        torch: Likewise.
        run: The run that it belongs to, which runs that go on from it share.
        plan: The plan's heading, for people.
        settings: What must be the same for batches in flight to mean the same.
        batches: Batches of the fit that every stage has been updated with.
        batches_before: Those of earlier fits.
        epochs_before: Likewise.
        drained: Whether nothing is in flight.
        progress: Where the fit stands; None at its end, or where there is none.
        history: The fit's history so far; None where there is none.
        files: The files beside the manifest.
    """

    freewheel: str
    torch: str
    run: str
    plan: str
    settings: dict[str, Any]
    batches: int
    batches_before: int
    epochs_before: int
    drained: bool
    progress: Progress | None
    history: dict[str, Any] | None
    files: tuple[File, ...] = field(default=())

    def text(self) -> str:
        """The manifest as JSON, with a digest of itself."""
        return seal({**asdict(self), "files": [file._asdict() for file in self.files]})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a checkpoint; raises `DamagedError` for one that is missing or not what was written."""
        content = unseal(folder / NAME)
        assert content.keys() == {f.name for f in fields(cls)}, "the format number tells what there is"
        progress = content["progress"]
        if progress is not None:
            content["progress"] = Progress(**{**progress, "fetched": tuple(progress["fetched"])})
        content["files"] = tuple(File(**file) for file in content["files"])
        return cls(**content)


def seal(content: dict[str, Any]) -> str:
    """Plain data as JSON, with the number of the format and a digest of it all."""
    content = {"format": FORMAT, **content}
    return json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n"


def unseal(path: Path) -> dict[str, Any]:
    """What `seal` has written to a file; raises `DamagedError` where it is missing or anything else."""
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{path} is missing or damaged") from None
    if digest != _digest(content):
        raise DamagedError(f"{path} is damaged: it is not what was written")
    version = content.pop("format")
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version}, this freewheel reads format {FORMAT}: resume it with freewheel "
            f"{content.get('freewheel')}"
        )
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
