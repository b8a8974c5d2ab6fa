"""A corpus that does to its process what bad luck or a bad model would do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from sweeper.data.corpus import Batch, TokenCorpus
from tests.engine.tiny_trials import corpus
from tests.launch.trouble import Trouble, fields_of


@dataclass(frozen=True, kw_only=True)
class Deadly(TokenCorpus, Trouble):
    """Trouble when a batch is asked for."""

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        self.meet(seed, step, torch.get_num_threads())
        return super().batch(seed, step, batch_size, seq_len)


def deadly(
    folder: Path, how: str = "", *, seed: int = -1, at: int = -1, once: bool = False
) -> Deadly:
    """One over the tests' tokens; `once` among all processes."""
    plain = corpus(folder)
    return Deadly(
        path=plain.path,
        digest=plain.digest,
        classes=plain.classes,
        heldout_fraction=plain.heldout_fraction,
        **fields_of(folder, how, seed, at, once),
    )
