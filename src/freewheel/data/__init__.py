"""Data sets by name: `load("digits")`."""

from __future__ import annotations

from freewheel.data._files import (
    read_cifar10 as read_cifar10,
    read_cifar100 as read_cifar100,
    read_idx as read_idx,
    read_mnist as read_mnist,
)
from freewheel.data._images import FileLoader as FileLoader, ImageFiles as ImageFiles
from freewheel.data._load import Data as Data, load as load, names as names
from freewheel.data._loader import Loader as Loader, TensorLoader as TensorLoader
from freewheel.data._reviews import read_reviews as read_reviews, words_of as words_of
from freewheel.data._text import read_text as read_text
from freewheel.data._transform import (
    Compose as Compose,
    Normalize as Normalize,
    RandomCrop as RandomCrop,
    RandomFlip as RandomFlip,
    Transform as Transform,
)
