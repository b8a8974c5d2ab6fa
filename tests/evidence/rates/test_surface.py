"""Optima over rate and batch of made-up surfaces, their ridge, and the law through them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.evidence.rates.optima_law import Bound, fit_law
from sweeper.evidence.rates.surface import Ridge, SurfaceRuns, fit_surfaces
from sweeper.stats.estimate import Array


def made(optimum: tuple[float, float], seed: int, noise: float = 0.002) -> SurfaceRuns:
    """Runs on a grid around (-9, 7): below the best batch the best rate falls with it."""
    rates, batches = np.arange(-12.0, -5.5, 0.5), np.arange(4.0, 10.5)
    x = np.stack(np.meshgrid(rates, batches, indexing="ij"), axis=-1).reshape(-1, 2)
    offset = x[:, 1] - optimum[1]
    ridge = 0.6 * offset - 0.55 * (np.logaddexp(0, 3 * offset) - np.log(2)) / 3
    away = x[:, 0] - optimum[0] - ridge
    valley = 0.02 * (np.expm1(0.5 * away) - 0.5 * away) * 8 / 2 + 0.008 * offset**2
    noises = np.random.default_rng(seed).normal(0, noise, len(x))
    losses = np.where(away > 4, np.inf, 2.5 + valley + noises)
    return SurfaceRuns(x, losses)


def test_intervals_hold_optima_and_ends_are_told() -> None:
    generator = np.random.default_rng(0)
    optima = [tuple(generator.uniform((-9.5, 6.0), (-8.0, 8.0))) for _ in range(16)]
    fits = fit_surfaces([made(optimum, i) for i, optimum in enumerate(optima)])
    held, off = [], []
    for optimum, fit in zip(optima, fits, strict=True):
        assert fit is not None and fit.ends == (0, 0)
        assert fit.noise == pytest.approx(0.002, rel=0.3)
        low, high = np.percentile(fit.draws, [2.5, 97.5], axis=0)
        held.append((low <= optimum) & (np.asarray(optimum) <= high))
        off.append(fit.optimum - optimum)
        assert fit.loss_gap(fit.optimum) == pytest.approx(0.0, abs=1e-3)
    assert (np.mean(held, axis=0) >= 0.85).all()
    assert (np.abs(np.mean(off, axis=0)) < 0.1).all()
    beyond = fit_surfaces([made((-5.0, 7.0), 1), made((-9.0, 11.0), 2), made((-9.0, 7.0), 3)])
    assert [fit and fit.ends for fit in beyond] == [(1, 0), (0, 1), (0, 0)]
    few = made((-9.0, 7.0), 1)
    assert fit_surfaces([SurfaceRuns(few.x[:9], few.losses[:9]), few])[0] is None


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 5), st.integers(-3, 3), st.floats(-2, 2))
def test_units_move_an_optimum_and_the_order_of_runs_does_not(
    seed: int, octaves: int, nats: float
) -> None:
    cell = made((-8.8, 7.2), seed)
    order = np.random.default_rng(seed).permutation(len(cell.losses))
    moved = SurfaceRuns(cell.x[order] + [octaves, -octaves], cell.losses[order])
    (first,), (second,) = fit_surfaces([cell]), fit_surfaces([moved])
    assert first is not None and second is not None
    assert second.optimum - first.optimum == pytest.approx([octaves, -octaves], abs=1e-4)
    assert second.draws.std(axis=0) == pytest.approx(first.draws.std(axis=0), rel=0.1)


def test_the_ridge_bends_at_the_best_batch() -> None:
    optima = [np.array([-9.0 + 0.1 * i, 6.5 + 0.1 * i]) for i in range(10)]
    cells = [made((float(x), float(y)), i) for i, (x, y) in enumerate(optima)]
    ridge = Ridge.of(cells, optima, [2.5] * 10)
    below, above = ridge.slope(-1).value, ridge.slope(1).value
    assert below == pytest.approx(0.6, abs=0.1) and above == pytest.approx(0.05, abs=0.1)
    costs = ridge.cost(np.array([-2.0, 0.0, 2.0]))
    assert costs == pytest.approx([0.032, 0.0, 0.032], abs=0.015)


def table(
    generator: np.random.Generator, between: float, within: float, bend: float = 0.0
) -> tuple[Array, Array, Array]:
    """Sizes [models x horizons and one beyond], optima of rate and batch, and their errors."""
    models = np.repeat(np.arange(4), 4).astype(float)
    horizons = np.tile(np.arange(4), 4) * 1.0
    x = np.column_stack([27 + models, 32 + models + horizons])
    x = np.vstack([x, [32.0, 38.0]])
    off = generator.normal(0, between, (6, 2))[np.append(models, 5).astype(int)]
    middle = x - x[:-1].mean(axis=0)
    eta = -9 - 0.9 * middle[:, 0] + 0.3 * middle[:, 1] + bend * middle[:, 1] ** 2
    batch = 7 - 0.4 * middle[:, 0] + 0.6 * middle[:, 1]
    optima = np.column_stack([eta, batch]) + off + generator.normal(0, within, (17, 2))
    errors = np.tile(np.diag([0.06**2, 0.08**2]), (17, 1, 1))
    measured = optima + generator.normal(size=(17, 2)) * [0.06, 0.08]
    measured[-1] = optima[-1]
    return x, measured, errors


@pytest.mark.parametrize(
    ("between", "within"),
    [(0.1, 0.1), *(pytest.param(*c, marks=pytest.mark.long) for c in ((0.02, 0.15), (0.2, 0.05)))],
)
def test_a_size_beyond_lies_inside_its_interval_in_95_of_100(between: float, within: float) -> None:
    generator, held, inside = np.random.default_rng(1), [], []
    for _ in range(10):
        x, optima, errors = table(generator, between, within)
        law = fit_law(x[:-1], optima[:-1], errors[:-1])
        low, high = np.percentile(law.at(x[-1]), [2.5, 97.5], axis=0)
        held += [*((low <= optima[-1]) & (optima[-1] <= high))]
        true = [-0.9, 0.3]
        inside += [e.low <= t <= e.high for e, t in zip(law.exponents(0), true, strict=True)]
    assert 0.88 <= np.mean(held) <= 1.0 and np.mean(inside) >= 0.9


def test_a_bend_is_called_where_there_is_one() -> None:
    generator = np.random.default_rng(2)
    straight, bent = [], []
    for _ in range(5):
        for bend, told in ((0.0, straight), (0.15, bent)):
            x, optima, errors = table(generator, 0.02, 0.05, bend)
            bends = fit_law(x[:-1], optima[:-1], errors[:-1]).bends[0]
            assert bends[1] is not None
            told.append(bends[1].low > 0 or bends[1].high < 0)
    assert np.mean(straight) <= 0.2 and np.mean(bent) >= 0.8


def test_a_bound_moves_a_law_and_counts_as_no_value() -> None:
    x, optima, errors = table(np.random.default_rng(3), 0.02, 0.05)
    kept = x[:-1, 0] < 30
    law = fit_law(x[:-1][kept], optima[:-1][kept], errors[:-1][kept])
    free = law.at(x[-1]).mean(axis=0)
    bound = Bound(x[-1], 0, 1, float(free[0]) + 0.3)
    moved = fit_law(x[:-1][kept], optima[:-1][kept], errors[:-1][kept], [bound])
    assert moved.at(x[-1]).mean(axis=0)[0] > free[0] + 0.1 and 0 < moved.kept < 1
    idle = Bound(x[-1], 0, 1, float(free[0]) - 5)
    same = fit_law(x[:-1][kept], optima[:-1][kept], errors[:-1][kept], [idle])
    assert same.kept == pytest.approx(1.0, abs=0.01)
    assert same.at(x[-1]).mean(axis=0) == pytest.approx(free, abs=0.05)
    # Two that are as likely as not leave much; one that no draw allows contradicts the law.
    likely = [Bound(x[-1], 0, 1, float(free[0])), Bound(x[-1], 1, -1, float(free[1]))]
    assert fit_law(x[:-1][kept], optima[:-1][kept], errors[:-1][kept], likely).kept > 0.2
    for away in (3.0, 8.0, 100.0):
        far = Bound(x[0], 0, 1, float(optima[0, 0]) + away)
        assert fit_law(x[:-1][kept], optima[:-1][kept], errors[:-1][kept], [far]).kept < 0.001
