"""Small images to train on, and what every model of arrays must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sweeper.classifier.classify import Build, scaled_ops, specs_between
from sweeper.data.arrays import ArrayCorpus, save_arrays
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.train import train
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.umup import UMuP
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


def assert_unit_scale(build: Build, low: float, high: float) -> None:
    """Under u-muP activations and gradients of weights start near 1, at any width.

    Gradients lie from `low` to `high`; the head's output has RMS width^-1/2.
    """
    for width in (64, 256):
        for name, value in scales_at_start(build, width).items():
            if name == "head":
                assert value == pytest.approx(width**-0.5, rel=0.25)
            elif name.endswith("gradient"):
                assert low < value < high, name
            else:
                assert 0.75 < value < 2.5, name


def scales_at_start(build: Build, width: int) -> dict[str, float]:
    """RMS of every activation and of every weight's gradient of a fresh u-muP model, depth 2."""
    torch.manual_seed(0)
    model, parameterization = build(width, 2), UMuP()
    values = dict.fromkeys(UMuP.hyperparameters, 1.0)
    for spec in specs_between(build, base=(width, 2), target=(width, 2)):
        scale, owner = parameterization.scale(spec, values), spec.name.rpartition(".")[0]
        torch.nn.init.normal_(model.get_parameter(spec.name), std=scale.init_std)
        model.get_buffer(f"{owner}.multiplier").fill_(scale.multiplier)
        if scale.backward_multiplier is not None:
            model.get_buffer(f"{owner}.backward_multiplier").fill_(scale.backward_multiplier)
    for op in scaled_ops(model):
        for name, value in parameterization.scale_op(op, values).items():
            model.get_buffer(f"{op.name}.{name}").fill_(value)
    seen: dict[str, float] = {}
    for name, module in model.named_modules():
        if isinstance(module, ScaledModule) and name != "loss":
            module.register_forward_hook(lambda m, i, out, n=name: seen.update({n: rms(out)}))
    model(torch.randn(64, 16, 16), torch.randint(10, (64,))).backward()
    grads = {f"{n} gradient": rms(p.grad) for n, p in model.named_parameters()}  # type: ignore[arg-type]
    return seen | grads


def rms(x: torch.Tensor) -> float:
    return float(x.detach().pow(2).mean().sqrt())


def assert_it_learns(parameterization: str, model: dict[str, Any], folder: Path) -> None:
    """Four classes of bright quarters are told apart on held-out images, in 150 steps."""
    data = images(folder)
    one = trials(parameterization, model, data, steps=150, batch_size=32, precision="float32")[0]
    result = train(BatchedTrials(trials=(one,), corpus=data))[0]
    assert result.curve[0] > 1.2 and result.heldout < 0.5
