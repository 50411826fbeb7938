"""A text file, as sequences for predicting the next character."""

from __future__ import annotations

from pathlib import Path

import torch

from freewheel._errors import whole_number
from freewheel.data._sources import Samples


def read_text(root: Path | None) -> str:
    """Read a text file, or the only .txt file in a folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "verse.txt").write_text("Tyger Tyger, burning bright")
        ...     read_text(Path(folder))
        'Tyger Tyger, burning bright'
    """
    if root is None:
        raise ValueError("data set 'text' is read from a file: pass root=, a text file or a folder that contains one")
    if not root.exists():
        raise FileNotFoundError(f"root {root} is missing: pass a text file, or a folder that contains one")
    file = root
    if root.is_dir():
        files = sorted(root.glob("*.txt"))
        if len(files) != 1:
            found = ", ".join(f.name for f in files[:3]) or "none"
            raise ValueError(f"root {root} must contain one .txt file, found {found}: pass the path of the file itself")
        file = files[0]
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None


def text(root: Path | None, *, steps: int = 64) -> Samples:
    """Sequences of `steps` character indices, with the next character as target at every step.

    The last tenth is the test set. The vocabulary is the sorted characters of the text.
    """
    whole_number("steps", steps, least=1)
    content = read_text(root)
    count = (len(content) - 1) // steps
    if count < 2:
        raise ValueError(
            f"root {root} has {len(content)} characters: two sequences of {steps} and the character after them "
            f"need {2 * steps + 1}; pass a longer text or fewer steps="
        )
    vocabulary = "".join(sorted(set(content)))
    index = {character: i for i, character in enumerate(vocabulary)}
    indices = torch.tensor([index[character] for character in content[: count * steps + 1]])
    inputs, targets = indices[:-1].view(count, steps), indices[1:].view(count, steps)
    first = count - max(1, count // 10)
    return Samples(
        train=(inputs[:first], targets[:first]),
        test=(inputs[first:], targets[first:]),
        classes=len(vocabulary),
        normalize=None,
        vocabulary=vocabulary,
    )
