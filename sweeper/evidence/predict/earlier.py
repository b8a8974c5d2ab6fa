"""A band of earlier runs, without a law: what a run of the same recipe is held against."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.errors import BadInput
from sweeper.evidence.predict.band import Band, Curves, TrainingCourse, fit_band, stretch_edges
from sweeper.evidence.predict.decision import RunLoss
from sweeper.evidence.runs.curves import EarlierRun
from sweeper.schedule import OWN
from sweeper.stats.estimate import Array, quantile

MOST_STRETCHES, LEAST_STRETCHES = 100, 20
WARMUP, WINDOW = 0.05, 0.05
"""Shares of a run: what is not tested, as nobody says where a warm-up ends, and its end."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A band, and the end of a run on it; what a prediction says beside is not known."""

    band: Band
    prediction: RunLoss
    source: str
    reasons: tuple[str, ...] = ()
    no_band: str = ""
    is_last: bool = False
    """Whether the end is a run's last loss, and not the mean over the band's window."""


def expectation(runs: Sequence[EarlierRun], source: str, steps: int | None = None) -> Expectation:
    """What a run of `steps`, by default the earlier ones', will do; BadInput without a band."""
    longest = max(run.length for run in runs)
    band = earlier_band(runs, steps or longest, math.log(max(_sizes(runs))))
    cell = np.unique(_sizes(runs), return_inverse=True)[1].reshape(-1)
    ends, lasts = _ends(runs, band), np.log([run.losses[-1] for run in runs])
    means, seeds = _of_seeds(ends, cell)
    gaps = lasts - ends
    # Held-out losses are hardly noisy: there the last one is a run's end, and no mean is.
    is_last = float(gaps.std()) < seeds
    if is_last:
        means, seeds = _of_seeds(lasts, cell)
        band = replace(band, gap=float(gaps.mean()), gap_deviation=float(gaps.std()))
    free = len(runs) - len(means)
    # Of a new run: the doubt about the mean of those there are, and its own seed.
    here = int((cell == cell.max()).sum())
    half = quantile(free, 0.975) * seeds * math.sqrt(1 + 1 / here)
    # Without a law nothing says where a run of another size ends: anywhere among the sizes.
    middle, low, high = float(means[-1]), float(means.min()) - half, float(means.max()) + half
    end = RunLoss(loss=math.exp(middle), low=math.exp(low), high=math.exp(high))
    return Expectation(band=band, prediction=end, source=source, is_last=is_last)


def earlier_band(runs: Sequence[EarlierRun], steps: int, log_size: float) -> Band:
    """The band of a run of some steps and log size; BadInput says why there is none."""
    count, most = 0, min(MOST_STRETCHES, *(len(run.losses) for run in runs))
    # The most stretches with a reading in every run; else as many as there are, filled in.
    for count in range(most, LEAST_STRETCHES - 1, -1):
        if all(len(np.unique(_stretches(run, count))) == count for run in runs):
            break
    else:
        count = most
    curves, places = zip(*(_means(run, count) for run in runs), strict=True)
    sizes = _sizes(runs)
    cell = np.unique(sizes, return_inverse=True)[1].reshape(-1).astype(np.int64)
    logs = np.log(sizes)
    try:
        band = fit_band(
            Curves(
                logs,
                np.zeros(len(runs)),
                cell,
                [curve.tolist() for curve in curves],
                [steps] * len(runs),
                np.ones(len(runs)),
            ),
            # Nobody says the schedule: a constant one, so that what follows the rate is a jump.
            TrainingCourse(
                steps=steps, warmup=WARMUP, window=WINDOW, schedule=OWN, lr=[1.0] * count
            ),
            log_size,
            0.0,
        )
    except ValueError as error:
        raise BadInput(f"the earlier runs tell no band: {error}") from error
    middles = tuple(np.mean(places, axis=0).tolist())
    # Earlier runs have their own ends as objective: there is no gap.
    return replace(band, places=middles, gap=0.0, gap_deviation=0.0)


def _sizes(runs: Sequence[EarlierRun]) -> Array:
    return np.array([run.size or 1.0 for run in runs])


def _stretches(run: EarlierRun, count: int) -> list[int]:
    length = run.length
    begins = np.round(stretch_edges(length, count) * length).astype(int).tolist()
    return [min(bisect_right(begins, step), count) - 1 for step in run.steps]


def _means(run: EarlierRun, count: int) -> tuple[Array, Array]:
    """Mean losses of every stretch, and where their readings lie, as shares of the run."""
    index, length = np.array(_stretches(run, count)), run.length
    counts = np.bincount(index, minlength=count)
    with np.errstate(invalid="ignore"):
        losses = np.bincount(index, run.losses, count) / counts
        # A reading of step s stands for the loss in the middle of it.
        places = (np.bincount(index, run.steps, count) / counts + 0.5) / length
    empty = counts == 0
    middles = (np.arange(count) + 0.5) / count
    places = np.where(empty, middles, places)
    losses[empty] = np.interp(places[empty], places[~empty], losses[~empty])
    return losses, places


def _of_seeds(
    ends: Array, cell: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> tuple[Array, float]:
    means = np.bincount(cell, ends) / np.bincount(cell)
    free = len(ends) - len(means)
    return means, math.sqrt(float(((ends - means[cell]) ** 2).sum()) / free)


def _ends(runs: Sequence[EarlierRun], band: Band) -> Array:
    logs = np.log([_means(run, len(band))[0] for run in runs])
    return logs @ band.end_weights
