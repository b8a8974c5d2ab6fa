"""Small images to train on, and what every model of arrays must pass."""

from pathlib import Path
from typing import Any

import numpy as np

from sweeper.data.arrays import ArrayCorpus, save_arrays
from sweeper.trial import Trial
from tests.engine.tiny_trials import PARAMETERIZATIONS, points
from tests.specs import spec_of


def images(folder: Path) -> ArrayCorpus:
    """200 noisy images [8, 8] of four classes: which quarter is bright."""
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=200).astype(np.uint8)
    inputs = generator.integers(100, size=(200, 8, 8)).astype(np.uint8)
    for image, label in zip(inputs, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[row : row + 4, column : column + 4] += 60
    return save_arrays(folder, inputs, labels, 160)


def trials(
    parameterization: str, model: dict[str, Any], data: ArrayCorpus, **train: Any
) -> list[Trial]:
    """Trials that differ in seed and in every hyperparameter; width 32 on base 16, float64."""
    settings = {"steps": 20, "batch_size": 8, "seq_len": 1, "precision": "float64"}
    tree = {
        "parameterization": {"_target_": PARAMETERIZATIONS[parameterization][0]},
        "model": {"width": 32, "depth": 2, **model},
        "base": {"width": 16, "depth": 1},
        "optimizer": {"_target_": "sweeper.engine.optimizers.first_order.AdamW"},
        "data": data.identity(),
        "train": {**settings, "heldout_batches": 2, **train},
    }
    spec, every = spec_of(tree), enumerate(points(parameterization))
    return [Trial(spec=spec, log2_hps=each, seed=i % 2) for i, each in every]
