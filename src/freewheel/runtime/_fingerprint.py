"""Fingerprints of batches: a cheap check that a loader repeats what it gave before."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

SAMPLE = 512  # elements, from the beginning of each tensor


Excerpt = list[tuple[str, Tensor | None]]  # of each leaf: what it is, and the first elements of a tensor


def excerpt(tree: Any) -> Excerpt:
    """Copy what a fingerprint is made of, without waiting for a GPU."""
    out: Excerpt = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
            shown = leaf.detach().flatten()[:SAMPLE] if leaf.is_contiguous() else leaf.detach()[:1].flatten()[:SAMPLE]
            out.append((f"{tuple(leaf.shape)} {leaf.dtype}", shown.clone()))
        else:
            out.append((type(leaf).__name__, None))
    return out


def digest(found: Excerpt) -> str:
    """The fingerprint of an excerpt."""
    digest = hashlib.blake2b(digest_size=8)
    for text, shown in found:
        digest.update((text if shown is None else f"{text} {shown.tolist()}").encode())
    return digest.hexdigest()


def fingerprint(tree: Any) -> str:
    """A short text that differs if the shapes, types or first elements of the tensors do.

    Example:
        >>> fingerprint(torch.zeros(3)) == fingerprint(torch.zeros(3)), fingerprint(torch.zeros(3)) == fingerprint(0)
        (True, False)
    """
    return digest(excerpt(tree))
