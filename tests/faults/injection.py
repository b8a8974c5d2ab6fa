"""Data and a model that do to their process what bad luck or a bad model would do."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweeper.data.corpus import Batch, TokenCorpus
from sweeper.data.text import Text
from sweeper.models.llama import Llama

POISON = 0
"""A token that no text of bytes has."""


@dataclass(frozen=True, kw_only=True)
class FaultyText(Text):
    """Text with a `fault` when the batch of `seed` (-1: any) at step `at` (-1: any) is drawn.

    It is slow, exits, or poisons: gives tokens that `NanLlama` cannot bear. With `once`, a file,
    among all processes the first alone does so. None of it is part of a trial's key.
    """

    fault: str = ""
    seed: int = -1
    at: int = -1
    once: str = ""

    def prepare(self, cache: Path) -> FaultyTokens:
        tokens = super().prepare(cache)
        assert isinstance(tokens, TokenCorpus)
        fault = {name: getattr(self, name) for name in ("fault", "seed", "at", "once")}
        return FaultyTokens(**tokens.__getstate__(), **fault)


@dataclass(frozen=True, kw_only=True)
class FaultyTokens(TokenCorpus):
    """The tokens of a `FaultyText`, whose fields it has."""

    fault: str
    seed: int
    at: int
    once: str

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        tokens, targets = super().batch(seed, step, batch_size, seq_len)
        if self.fault and self.seed in (-1, seed) and self.at in (-1, step) and self._again():
            match self.fault:
                case "poison":
                    tokens = tokens * 0 + POISON
                case "exit":
                    sys.exit(7)
                case "slow":
                    time.sleep(0.03)
        return tokens, targets

    def _again(self) -> bool:
        if not self.once:
            return True
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class NanLlama(Llama):
    """A decoder whose loss on poisoned tokens is not a number."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Any:
        loss = super().forward(tokens, targets)
        return torch.where((tokens == POISON).all(), torch.nan, loss)
