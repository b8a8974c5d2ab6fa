"""Small images to train on, and what every model of arrays must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.data.arrays import ArrayCorpus, save
from sweeper.training.pack import Pack
from sweeper.training.train import train
from sweeper.trial import Trial
from tests.training.helpers import ETA, SCHEMES


def images(folder: Path) -> ArrayCorpus:
    """200 noisy images [8, 8] of four classes: which quarter is bright."""
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=200).astype(np.uint8)
    inputs = generator.integers(100, size=(200, 8, 8)).astype(np.uint8)
    for image, label in zip(inputs, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[row : row + 4, column : column + 4] += 60
    return save(folder, inputs, labels, 160)


def trials(scheme: str, model: dict[str, Any], data: ArrayCorpus, **train: Any) -> list[Trial]:
    """Trials that differ in seed and in every hyperparameter; width 32 on base 16, float64."""
    settings = {"steps": 20, "batch_size": 8, "seq_len": 1, "precision": "float64"}
    setup = {
        "numerics": 1,
        "parameterization": {"_target_": SCHEMES[scheme][0]},
        "model": {"width": 32, "depth": 2, **model},
        "base": {"width": 16, "depth": 1},
        "optimizer": {"_target_": "sweeper.training.adamw.AdamW"},
        "data": data.identity(),
        "train": {**settings, "heldout_batches": 2, **train},
    }
    names = SCHEMES[scheme][1]
    hps = dict.fromkeys(names, 0.0) | {"eta": ETA[scheme]}
    changed = [hps | {name: hps[name] + 1.0} for name in names]
    return [Trial(setup=setup, hps=h, seed=i % 2) for i, h in enumerate([hps, hps, *changed])]


def check_packed_equals_alone(scheme: str, model: dict[str, Any], folder: Path) -> None:
    """Every trial of a pack ends as it does alone, to 1e-10."""
    data = images(folder)
    made = trials(scheme, model, data)
    together = train(Pack(trials=tuple(made), corpus=data))
    for one, packed in zip(made, together, strict=True):
        single = train(Pack(trials=(one,), corpus=data))[0]
        assert packed.status == "complete"
        assert packed.objective == pytest.approx(single.objective, rel=1e-10)
        assert packed.heldout == pytest.approx(single.heldout, rel=1e-10)
    assert len({result.objective for result in together}) > 2


def check_it_learns(scheme: str, model: dict[str, Any], folder: Path) -> None:
    """Four classes of bright quarters are told apart on held-out images, in 150 steps."""
    data = images(folder)
    one = trials(scheme, model, data, steps=150, batch_size=32, precision="float32")[0]
    result = train(Pack(trials=(one,), corpus=data))[0]
    assert result.curve[0] > 1.2 and result.heldout < 0.5
