"""Random number generators for the order and augmentation of samples."""

from __future__ import annotations

import hashlib

import torch


def generator_for(*keys: object) -> torch.Generator:
    """A separate generator for every combination of keys, such as a seed and an epoch.

    The keys are hashed, because torch's generator uses only 32 bits of a seed, and sums such as seed + epoch would
    give epoch 1 of seed 0 the order of epoch 0 of seed 1.

    Example:
        >>> generator_for(0, 1).initial_seed() == generator_for(1, 0).initial_seed()
        False
    """
    digest = hashlib.blake2b("/".join(map(str, keys)).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
