from __future__ import annotations

import numpy as np
import pytest

from sweeper.evidence.rates.decision import PowerLaw
from sweeper.evidence.rates.optima import RateCell, optima_of
from sweeper.stats.estimate import Array


def made(optimum: tuple[float, float], seed: int, noise: float = 0.002) -> RateCell:
    """Runs on a grid around (-9, 7): below the best batch the best rate falls with it."""
    rates, batches = np.arange(-12.0, -5.5, 0.5), np.arange(4.0, 10.5)
    x = np.stack(np.meshgrid(rates, batches, indexing="ij"), axis=-1).reshape(-1, 2)
    offset = x[:, 1] - optimum[1]
    ridge = 0.6 * offset - 0.55 * (np.logaddexp(0, 3 * offset) - np.log(2)) / 3
    away = x[:, 0] - optimum[0] - ridge
    valley = 0.02 * (np.expm1(0.5 * away) - 0.5 * away) * 8 / 2 + 0.008 * offset**2
    noises = np.random.default_rng(seed).normal(0, noise, len(x))
    losses = np.where(away > 4, np.inf, 2.5 + valley + noises)
    return RateCell({}, x, losses)


def test_intervals_hold_optima_and_ends_are_told() -> None:
    generator = np.random.default_rng(0)
    optima = [tuple(generator.uniform((-9.5, 6.0), (-8.0, 8.0))) for _ in range(6)]
    fits = optima_of([made(optimum, i) for i, optimum in enumerate(optima)])
    inside_both, off = [], []
    for optimum, fit in zip(optima, fits, strict=True):
        assert fit is not None and fit.ends == (0, 0)
        assert fit.noise == pytest.approx(0.002, rel=0.3)
        low, high = np.percentile(fit.draws, [2.5, 97.5], axis=0)
        inside_both.append((low <= optimum) & (np.asarray(optimum) <= high))
        off.append(fit.best - optimum)
    assert (np.mean(inside_both, axis=0) >= 0.85).all()
    assert (np.abs(np.mean(off, axis=0)) < 0.1).all()
    beyond = optima_of([made((-5.0, 7.0), 1), made((-9.0, 11.0), 2), made((-9.0, 7.0), 3)])
    assert [fit and fit.ends for fit in beyond] == [(1, 0), (0, 1), (0, 0)]
    few = made((-9.0, 7.0), 1)
    assert optima_of([RateCell({}, few.x[:5], few.losses[:5]), few])[0] is None


def table(generator: np.random.Generator, between: float, within: float) -> tuple[Array, Array]:
    """Sizes [models x horizons and one beyond], and measured optima of rate and batch."""
    models = np.append(np.repeat(np.arange(4.0), 4), 5)
    horizons = np.append(np.tile(np.arange(4.0), 4), 1)
    x = np.column_stack([27 + models, 32 + models + horizons])
    off = generator.normal(0, between, (6, 2))[models.astype(int)]
    middle = x - x[:-1].mean(axis=0)
    optima = [-9, 7] + middle @ [[-0.9, -0.4], [0.3, 0.6]] + off
    optima += generator.normal(0, within, (17, 2))
    optima[:-1] += generator.normal(size=(16, 2)) * [0.06, 0.08]
    return x, optima


def test_a_bound_moves_a_law_and_counts_as_no_value() -> None:
    x, optima = table(np.random.default_rng(3), 0.02, 0.05)
    kept = x[:-1, 0] < 30
    law = PowerLaw.of(x[:-1][kept], optima[:-1][kept])
    free = law.at(x[-1]).mean(axis=0)
    moved = law.within([(x[-1], 0, 1, float(free[0]) + 0.3)])
    assert moved.at(x[-1]).mean(axis=0)[0] > free[0] + 0.1 and 0 < moved.kept < 1
    same = law.within([(x[-1], 0, 1, float(free[0]) - 5)])
    assert same.kept == pytest.approx(1.0, abs=0.01)
    assert same.at(x[-1]).mean(axis=0) == pytest.approx(free, abs=0.05)
    # Two that are as likely as not leave much; one that no draw allows contradicts the law.
    likely = [(x[-1], 0, 1, float(free[0])), (x[-1], 1, -1, float(free[1]))]
    assert law.within(likely).kept > 0.2
    for away in (3.0, 8.0, 100.0):
        assert law.within([(x[0], 0, 1, float(optima[0, 0]) + away)]).kept < 0.001
