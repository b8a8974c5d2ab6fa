"""Initial weights: a function of seed and name alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def normal(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """N(0, 1) values [*shape] in float64 on the CPU, by (seed, name): neighbours change nothing."""
    word = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(word, "big") >> 1)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
