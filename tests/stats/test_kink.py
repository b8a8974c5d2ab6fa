from dataclasses import replace

import numpy as np
import pytest

from sweeper.stats.ladder import LadderSize
from sweeper.stats.shapes import (
    FINE,
    MIN_POINTS,
    MISFIT_PRIOR,
    MISFITS,
    PRIOR,
    RATIOS,
    SKEWS,
    SMOOTH,
    SPACING,
    CurveShape,
    Forms,
    Kinked,
    Points,
    dense,
    rise,
)
from tests.stats.curves import BASE

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


@pytest.mark.parametrize(
    ("steep", "skew", "at"),
    [(1.0, 0.0, 0.0), (1.0, 0.2, 0.0), (2.0, 0.0, 1.0), (0.5, 0.0, -1.0), (2.8, 0.0, 1.5)],
)
def test_the_ratio_of_the_sides_is_found_and_a_skew_is_no_kink(
    steep: float, skew: float, at: float
) -> None:
    weights = Forms.of(ladder(steep, skew=skew)).weights
    likely = weights.sum(axis=(0, 2))
    assert weights.sum() == pytest.approx(1)
    assert np.log2(RATIOS[likely.argmax()]) == pytest.approx(at, abs=0.25)
    assert likely[SMOOTH] > 0.6 if steep == 1 else likely[SMOOTH] < 0.01


def test_noise_leaves_the_kinds_as_likely_as_before() -> None:
    points = ladder(2.0, noise=1.0)
    weights = Forms.of(points).weights
    assert weights[:, SMOOTH].sum() == pytest.approx(PRIOR[SMOOTH], abs=0.1)
    assert weights.sum(axis=(1, 2)) == pytest.approx(MISFIT_PRIOR, abs=0.1)


@pytest.mark.parametrize("step", [0.5, 1.0, 2.0])
def test_drawn_curves_hold_the_truth_and_the_first_row_is_near_it(step: float) -> None:
    """Of sides that are unlike: on a coarse grid the interval is wide, on a fine one it is not."""
    kept = np.flatnonzero(np.abs(ETAS % step) < 1e-9)
    points = {
        size: Points(first.x[kept], first.means[kept], first.noise[np.ix_(kept, kept)])
        for size, first in ladder(2.0).items()
    }
    forms, widths = Forms.of(points), []
    for size, optimum in zip(SIZES, (0.0, 0.1, 0.2), strict=True):
        generator, (x, at) = np.random.default_rng(0), dense(points[size].x)
        noises = generator.normal(0, 1e-3, (400, len(kept)))
        rows = forms.rows(points[size], size, generator, noises, x, at)
        places, least = x[rows.argmin(axis=1)], rows.min(axis=1)
        for drawn, truth in ((places, optimum), (least, 3.0)):
            low, high = np.percentile(drawn, [2.5, 97.5])
            assert low - SPACING / 2 <= truth <= high + SPACING / 2
        widths.append(places.std())
        assert places[0] == pytest.approx(optimum, abs=0.25 * step)
    assert max(widths) < 0.1 if step == 0.5 else min(widths) > 0.04 * step


def test_a_form_that_no_parabola_and_no_kink_is_shows_as_a_misfit() -> None:
    points = {}
    for size, first in ladder(1.0, noise=1e-4).items():
        bump = 0.05 * np.exp(-(((first.x - 1) / 0.6) ** 2))
        points[size] = Points(first.x, first.means + bump, first.noise)
    weights = Forms.of(points).weights.sum(axis=(1, 2))
    assert weights[0] < 0.01 and weights @ [first.wiggle for first in MISFITS] > 0.2
    plain = Forms.of(ladder(1.0)).weights.sum(axis=(1, 2))
    assert plain[0] > 0.4


def test_too_few_points_and_an_optimum_at_an_end_have_no_kink() -> None:
    few = Points(ETAS[2:4], ETAS[2:4] ** 2, 1e-6 * np.eye(2))
    end = Points(ETAS + 2, (ETAS + 2) ** 2, 1e-6 * np.eye(9))
    assert len(few.x) < MIN_POINTS
    assert not Forms.of(dict(zip(SIZES, (few, end), strict=False))).curves


def test_the_likelihood_is_that_of_a_normal_distribution() -> None:
    """Against its covariance written out: curvature is normal, the floor nearly flat.

    Of kinks and skews of one misfit, and of all misfits: with what whitens the losses of each.
    """
    places = [(SMOOTH, 4, 100), (10, 5, 105), (10, 2, 110), (2, 7, 95)]
    asked = [(MISFITS[0], place) for place in places]
    asked += [(misfit, (SMOOTH, 5, 100)) for misfit in MISFITS]
    points, seen = ladder(2.0)[SIZES[1]], []
    for misfit, (ratio, skew, vertex) in asked:
        kinked = Kinked(points, CurveShape(0.05, 0.02, misfit=misfit))
        inverse, r = np.linalg.inv(kinked.white), RATIOS[ratio]
        h = 2 / (1 + r) * rise(ETAS - np.linspace(-2, 2, FINE)[vertex], SKEWS[skew], r)
        covariance = inverse @ inverse.T + 0.02**2 * np.outer(h, h) + 1e4
        rest = points.means - 0.05 * h
        normal = rest @ np.linalg.solve(covariance, rest) + np.linalg.slogdet(covariance)[1]
        seen.append((kinked.log_likelihood[ratio, skew, vertex], -normal / 2))
    result, expected = np.array(seen).T
    assert result - result[0] == pytest.approx(expected - expected[0], abs=0.02)


def test_points_are_laid_between_those_of_any_grid() -> None:
    x, at = dense(np.array([-2.0, 0.0, 0.3, 0.4]))
    assert x[at] == pytest.approx([-2.0, 0.0, 0.3, 0.4]) and (np.diff(x) > 0).all()
    assert np.diff(x).max() <= SPACING + 1e-9
