from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sweeper.verdict.curve import fit_curves
from sweeper.verdict.ladder import LadderSize, SizeCurve
from sweeper.verdict.shapes import (
    FINE,
    PRIOR,
    RATIOS,
    SKEWS,
    SMOOTH,
    Kinked,
    Kinks,
    Parabolas,
    Points,
    Shape,
    Valleys,
    rise,
)
from tests.verdict.curves import BASE

SIZES = [replace(BASE, width=width) for width in (32, 64, 128)]
ETAS = np.arange(-2, 2.5, 0.5)


def ladder(steep: float, noise: float = 1e-3, skew: float = 0.0) -> dict[LadderSize, Points]:
    """Curves of curvature 0.05 whose optima lie at 0, 0.1 and 0.2, as they are but for noise."""
    points, generator = {}, np.random.default_rng(0)
    for size, optimum in zip(SIZES, (0.0, 0.1, 0.2), strict=True):
        u = ETAS - optimum
        losses = 3 + 0.05 * (u**2 + skew * u**3) * np.where(u > 0, steep, 1.0)
        losses += generator.normal(0, noise, len(u))
        points[size] = Points(ETAS, losses, noise**2 * np.eye(len(u)))
    return points


@pytest.mark.parametrize(("steep", "at"), [(1.0, 0.0), (2.0, 1.0), (0.5, -1.0), (2.8, 1.5)])
def test_the_ratio_of_the_sides_is_found(steep: float, at: float) -> None:
    points = ladder(steep)
    likely = Kinks.of(points, Shape.of(list(points.values()))).weights.sum(axis=1)
    assert np.log2(RATIOS[likely.argmax()]) == pytest.approx(at)
    assert likely[SMOOTH] > 0.6 if steep == 1 else likely[SMOOTH] < 0.01


def test_a_skewed_curve_has_no_kink() -> None:
    points = ladder(1.0, skew=0.2)
    weights = Kinks.of(points, Shape.of(list(points.values()))).weights
    assert weights[SMOOTH].sum() > 0.6 and weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("step", [0.5, 1.0])
def test_an_exact_parabola_has_its_vertex_where_it_is(step: float) -> None:
    """A kink and a skew together must not fit it better than no kink does."""
    etas = np.arange(-2, 2 + step / 2, step)
    losses = {float(eta): tuple(1 + 0.05 * eta**2 + np.array([0, 0.004, 0.008])) for eta in etas}
    fits = fit_curves([SizeCurve(size=size, losses=losses) for size in SIZES], 0.0)
    for fit in fits.values():
        assert fit is not None and fit.optimum.value == pytest.approx(0, abs=1e-3)


def test_noise_leaves_the_kinds_as_likely_as_before() -> None:
    points = ladder(2.0, noise=1.0)
    weights = Kinks.of(points, Shape.of(list(points.values()))).weights
    assert weights[SMOOTH].sum() == pytest.approx(PRIOR[SMOOTH], abs=0.1)


def test_drawn_valleys_hold_the_truth_and_the_first_row_is_near_it() -> None:
    points = ladder(2.0)
    kinks = Kinks.of(points, Shape.of(list(points.values())))
    for size, optimum in zip(SIZES, (0.0, 0.1, 0.2), strict=True):
        found = kinks.rows(size, np.random.default_rng(0), 400)
        assert found is not None and found[0][0] == 0
        valleys = found[1]
        for drawn, truth in ((valleys.vertices, optimum), (valleys.floors, 3.0)):
            low, high = np.percentile(drawn, [2.5, 97.5])
            assert low <= truth <= high and high - low < 0.4
        assert valleys.vertices[0] == pytest.approx(optimum, abs=0.08)
        assert valleys.curvatures[0] == pytest.approx(0.05, rel=0.3)


def test_too_few_points_and_an_optimum_at_an_end_have_no_kink() -> None:
    shape = Shape(0.05, 0.02)
    few = Points(ETAS[2:6], ETAS[2:6] ** 2, 1e-6 * np.eye(4))
    end = Points(ETAS + 2, (ETAS + 2) ** 2, 1e-6 * np.eye(9))
    kinks = Kinks.of(dict(zip(SIZES, (few, end), strict=False)), shape)
    assert not kinks.curves
    assert all(kinks.rows(size, np.random.default_rng(0), 10) is None for size in SIZES)


def test_the_likelihood_is_that_of_a_normal_distribution() -> None:
    """Against its covariance written out: curvature is normal, the floor nearly flat."""
    points, shape = ladder(2.0)[SIZES[1]], Shape(0.05, 0.02)
    kinked = Kinked(points, shape)
    inverse = np.linalg.inv(kinked.white)

    def direct(ratio: int, skew: int, vertex: int) -> float:
        at, r, k = kinked.vertices(FINE)[vertex], RATIOS[ratio], SKEWS[skew]
        h = 2 / (1 + r) * rise(ETAS - at, k, r)
        flat = 1e4 * np.ones((9, 9))
        covariance = inverse @ inverse.T + shape.spread**2 * np.outer(h, h) + flat
        rest = points.means - shape.curvature * h
        return float(
            -(rest @ np.linalg.solve(covariance, rest) + np.linalg.slogdet(covariance)[1]) / 2
        )

    found = kinked.log_likelihood
    places = [(3, 4, 100), (5, 5, 105), (5, 2, 110), (1, 7, 95)]
    differences = [found[a] - found[places[0]] for a in places]
    expected = [direct(*a) - direct(*places[0]) for a in places]
    assert differences == pytest.approx(expected, abs=0.02)


def test_a_row_with_a_kink_has_its_vertex_and_rises_by_its_sides() -> None:
    valleys = Valleys(*(np.array([value]) for value in (0.2, 3.0, 0.05, 0.1, 2.0)))
    plain = np.vstack([(ETAS - 0.1) ** 2 + 1, valleys.losses(ETAS)])
    rows = Parabolas.through(ETAS, plain, np.zeros(2))
    rows = rows.with_valleys(np.array([1]), valleys, 0.0)
    safe, least, free = rows.minima
    assert safe == pytest.approx([0.1, 0.2]) and free == pytest.approx(safe)
    assert least == pytest.approx([1.0, 3.0])
    for at, gap in ((-0.1, 0.05 * (0.09 - 0.0027)), (0.3, 2 * 0.05 * (0.01 + 0.0001))):
        low, high = rows.loss_gaps(np.full(2, at))
        assert low[1] == high[1] == pytest.approx(gap)
        assert low[0] == pytest.approx((at - 0.1) ** 2)
