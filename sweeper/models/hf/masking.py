"""Which tokens a masked language model has to guess: no random numbers, which packs forbid."""

from __future__ import annotations

import torch
from torch import Tensor

SHARE = 0.15
"""Of every sequence, as in BERT."""
_MIX = 0x2545F4914F6CDD1D


def masked_positions(tokens: Tensor) -> Tensor:
    """Whether a token of `tokens` [batch, seq] is hidden [batch, seq]: 15 % of each sequence.

    One number made of all tokens of a sequence and their places orders its positions, and the
    first are hidden: at least one, and always the same ones of the same sequence. The choice
    tells nothing of a hidden token that could be learned, since every token of the sequence
    changes all of it.
    """
    places = torch.arange(tokens.shape[-1], device=tokens.device)
    sequence = _mixed(_mixed(places + 1) + tokens).sum(-1, keepdim=True)
    order = _mixed(sequence ^ _mixed(places + 1)).argsort(-1).argsort(-1)
    return order < max(1, round(SHARE * tokens.shape[-1]))


def _mixed(x: Tensor) -> Tensor:
    """Integers scrambled, each by itself: xor-shifts and products modulo 2^64."""
    for shift in (32, 29, 32):
        x = (x ^ (x >> shift)) * _MIX
    return x
