"""A ladder of made-up curves, what it predicts, and runs that are on that course or off it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.evidence.predict.band import Curves, TrainingCourse, end_weights, fit_band
from sweeper.evidence.predict.decision import LossQuestion, Prediction, predict_runs
from sweeper.evidence.runs.loss_runs import LossRuns
from sweeper.search.optuna.recording import OptunaStudy
from sweeper.stats.power_law import Array
from sweeper.study.study import StudyRecord
from sweeper.trial import Log2Hps, Result, TrainSettings, Trial

STEPS = 1000
SIZES = np.log([1e6, 2e6, 4e6, 8e6, 16e6])
TARGET = math.log(32e6)
TOKENS = 4e7
TRAIN = TrainSettings(steps=STEPS, batch_size=100, seq_len=400)
NOISE = 0.02
"""Of a single step's log loss."""


def middle(size: float, steps: int = STEPS) -> Array:
    x = (np.arange(steps) + 0.5) / steps
    shape = 0.8 * np.exp(-12 * x) + 0.25 * (1 - x)
    weights = end_weights(np.linspace(0, 1, steps + 1), 0.1)
    result: Array = math.log(1.8 + 200 / math.exp(size) ** 0.4) + shape - weights @ shape
    return result


def run(seed: int, size: float = TARGET, steps: int = STEPS) -> Array:
    """Losses [steps] of a run on course: a level and a path of its own, and the steps' noise."""
    random = np.random.default_rng([seed, round(1000 * size)])
    path = 0.003 * np.cumsum(random.standard_normal(steps)) / math.sqrt(steps)
    log = middle(size, steps) + 0.002 * random.standard_normal() + path
    losses: Array = np.exp(log + NOISE * random.standard_normal(steps))
    return losses


def validated(trained: Trial, width: int, eta: float, seed: int, **result: Any) -> Result:
    """A run of a ladder as `trained`, of its length or `steps`; `result` has its `objective`."""
    train = replace(trained.spec.train, steps=result.get("steps", trained.spec.train.steps))
    spec, hps = replace(trained.spec, width=width, train=train), Log2Hps({"eta": eta})
    trial = replace(trained, spec=spec, log2_hps=hps, seed=seed, phase="validate")
    return Result(**{"trial": trial, "status": "complete", "steps": train.steps, **result})


def record_results(folder: Path, results: Sequence[Result]) -> None:
    """Add results to a study without telling Optuna's, which no verb of the wing reads."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("start", "tell"):
            patch.setattr(OptunaStudy, name, lambda *_: None)
        with StudyRecord.open(folder) as study:
            study.record(results)


def curve_of(losses: Array) -> list[float]:
    return [float(part.mean()) for part in np.array_split(losses, 100)]


@cache
def prediction(seeds: int = 3, gap: float = 1.0) -> Prediction:
    cell = np.arange(len(SIZES)).repeat(seeds)
    made = [run(seed, SIZES[size]) for size in range(len(SIZES)) for seed in range(seeds)]
    random = np.random.default_rng(0)
    ends = np.array([losses[-STEPS // 10 :].mean() for losses in made]) * gap
    if gap != 1:
        ends *= np.exp(0.002 * random.standard_normal(len(ends)))
    params, tokens = np.exp(SIZES[cell]), np.full(len(cell), TOKENS)
    runs = LossRuns(params, tokens, ends, 6 * params * tokens, cell, [""] * len(cell))
    result = predict_runs(runs, LossQuestion(params=math.exp(TARGET), tokens=TOKENS, draws=200))
    means, lengths = [curve_of(losses) for losses in made], [STEPS] * len(made)
    curves = Curves(np.log(params), np.log(tokens), cell, means, lengths, ends)
    course = TrainingCourse(
        steps=STEPS,
        warmup=TRAIN.warmup,
        window=TRAIN.objective_window,
        schedule="cosine",
        lr=TRAIN.lr_factors(range(STEPS)),
    )
    band = fit_band(curves, course, TARGET, math.log(TOKENS))
    return Prediction(**{**vars(result), "band": band})
