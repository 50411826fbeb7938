"""Data sets by name, held in memory: `load("digits")`."""

from __future__ import annotations

from freewheel.data._files import read_cifar10, read_idx, read_mnist
from freewheel.data._load import Data, load, names
from freewheel.data._loader import TensorLoader
from freewheel.data._reviews import read_reviews, words_of
from freewheel.data._text import read_text
from freewheel.data._transform import Compose, Normalize, RandomCrop, RandomFlip, Transform

__all__ = [
    "Compose",
    "Data",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "TensorLoader",
    "Transform",
    "load",
    "names",
    "read_cifar10",
    "read_idx",
    "read_mnist",
    "read_reviews",
    "read_text",
    "words_of",
]
