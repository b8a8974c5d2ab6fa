"""Batches gathered on a device are those of the corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sweeper.data.arrays import save_arrays
from sweeper.data.corpus import Corpus
from sweeper.engine.batched import BLOCK_STEPS, Feed
from sweeper.trial import TrainSettings
from tests.engine.tiny_trials import corpus

TRAIN = TrainSettings(steps=200, batch_size=3, seq_len=8)


def arrays(folder: Path) -> Corpus:
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 255, (40, 4, 4), dtype=np.uint8)
    return save_arrays(folder, inputs, generator.integers(0, 5, 40, dtype=np.uint8), 30)


@pytest.mark.parametrize("make", [corpus, arrays], ids=["tokens", "arrays"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gathered_batches_equal_those_of_the_corpus(
    make: object, dtype: torch.dtype, tmp_path: Path
) -> None:
    where: Corpus = make(tmp_path)  # type: ignore[operator]
    feed = Feed(where, TRAIN, [0, 7], torch.device("cpu"), dtype)
    host = {step: feed.batch(step) for step in (0, 1, BLOCK_STEPS - 1, BLOCK_STEPS, 199)}
    feed._resident = feed._load_corpus()
    for step, (x, y) in host.items():
        there = feed.batch(step)
        assert torch.equal(there[0], x) and torch.equal(there[1], y)
        assert x.shape[:2] == (2, 3) and x.dtype in (dtype, torch.int64)
