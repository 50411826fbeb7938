"""Film reviews with their sentiment, from JSON Lines files: the IMDb data set.

Data: Maas et al., Learning word vectors for sentiment analysis, 2011.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from freewheel._errors import whole_number
from freewheel.data._sources import Samples, data_root
from freewheel.data._vocabulary import PADDING, UNKNOWN, cached, most_frequent

TOKENIZER = 1  # version of `words_of`, on which a cached vocabulary depends

_FORM = '{"text": "A good film.", "label": 1}'
_WORD = re.compile(r"\w+(?:'\w+)*")


class Reviews(NamedTuple):
    """The texts and labels of a file, and its digest."""

    texts: list[str]
    labels: list[int]
    sha256: str


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without HTML line breaks and punctuation.

    Example:
        >>> words_of("It's GREAT!<br /><br />10/10")
        ["it's", 'great', '10', '10']
    """
    return _WORD.findall(text.lower().replace("<br />", " "))


def read_reviews(path: Path | str) -> Reviews:
    """Read a JSON Lines file of objects with a `text` and its `label`, 0 or 1. Empty lines are skipped.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "train.jsonl"
        ...     _ = file.write_text('{"text": "A good film.", "label": 1}')
        ...     read_reviews(file)[:2]
        (['A good film.'], [1])
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: put reviews there, one a line, such as {_FORM}")
    content = path.read_bytes()
    reviews = Reviews([], [], hashlib.sha256(content).hexdigest())
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            text, label = _read_line(f"{path}, line {number},", line)
            reviews.texts.append(text)
            reviews.labels.append(label)
    if not reviews.texts:
        raise ValueError(f"{path} is empty: put reviews there, one a line, such as {_FORM}")
    return reviews


def _read_line(place: str, line: bytes) -> tuple[str, int]:
    try:
        row = json.loads(line.decode())
    except ValueError as error:
        raise ValueError(f"{place} is not JSON in UTF-8 ({error}): write it as {_FORM}") from None
    if not isinstance(row, dict) or not {"text", "label"} <= row.keys():
        raise ValueError(f"{place} must be an object with a text and a label, got {row!r:.80}: write it as {_FORM}")
    text, label = row["text"], row["label"]
    if not isinstance(text, str):
        raise ValueError(f"{place} has the text {text!r:.80}: a text is a string, as in {_FORM}")
    if type(label) is not int or label not in (0, 1):
        raise ValueError(f"{place} has the label {label!r:.80}: labels are 0 (unfavourable) and 1 (favourable)")
    return text, label


def reviews(
    root: Path | None, *, steps: int = 200, words: int = 20_000, limits: Sequence[int | None] = (None, None)
) -> Samples:
    """Reviews as sequences of `steps` word indices, each with one of two classes.

    The files may list one class after the other: here the classes alternate, so that the first few reviews include
    both. Long reviews are truncated to their last words and short ones are padded in front, so that the last input of
    a recurrent layer is always a word.

    Args:
        root: the folder of `imdb/train.jsonl` and `imdb/test.jsonl`, or of the files themselves.
        steps: words in a sequence.
        words: size of the vocabulary: padding, the unknown word, and the most frequent words of `train.jsonl`.
        limits: the maximum number of training and test reviews.
    """
    whole_number("steps", steps, least=1)
    whole_number("words", words, least=3)
    folder = data_root("imdb", root, "imdb/train.jsonl and imdb/test.jsonl")
    folder = folder / "imdb" if (folder / "imdb").is_dir() else folder
    train, test = (read_reviews(folder / f"{split}.jsonl") for split in ("train", "test"))
    vocabulary = cached(
        folder,
        f"tokenizer {TOKENIZER}, {words} words, {train.sha256}",
        lambda: most_frequent(map(words_of, train.texts), words),
    )
    index = {word: i for i, word in enumerate(vocabulary)}
    halves = [_encoded(half, index, steps, limit) for half, limit in zip((train, test), limits)]
    return Samples(train=halves[0], test=halves[1], classes=2, normalize=None, vocabulary=vocabulary)


def _encoded(half: Reviews, index: dict[str, int], steps: int, limit: int | None) -> tuple[Tensor, Tensor]:
    order = interleave_classes(half.labels)[:limit]
    sequences = torch.full((len(order), steps), PADDING)
    for row, i in enumerate(order):
        found = [index.get(word, UNKNOWN) for word in words_of(half.texts[i])[-steps:]]
        sequences[row, steps - len(found) :] = torch.tensor(found, dtype=torch.int64)
    return sequences, torch.tensor([half.labels[i] for i in order])


def interleave_classes(labels: Sequence[int]) -> list[int]:
    """The indices of all labels, reordered so that the classes alternate as long as possible.

    Example:
        >>> interleave_classes([0, 0, 0, 1, 1])
        [0, 3, 1, 4, 2]
    """
    seen: dict[int, int] = {}
    turns: list[tuple[int, int, int]] = []
    for i, label in enumerate(labels):
        turns.append((seen.get(label, 0), label, i))
        seen[label] = seen.get(label, 0) + 1
    return [i for _, _, i in sorted(turns)]
