"""The law's fit, against SciPy, against what was published, and against surfaces that are known."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, nnls

from sweeper.stats.power_law import (
    ADDITIVE,
    COMPUTE,
    COUPLED,
    SIZE,
    Array,
    LawForm,
    _Losses,
    _nonnegative,
    fit,
    refit,
)

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SWEEPER_TABLES", ROOT / "../shared/data/scaling"))
SIZES, HORIZONS = np.meshgrid(2e7 * 2.5 ** np.arange(5), 5e8 * 2.0 ** np.arange(5))
N, D = SIZES.ravel(), HORIZONS.ravel()


def hoffmann(params: Array, tokens: Array) -> Array:
    return 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28


@given(
    floor=st.floats(0.5, 3),
    terms=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)),
    powers=st.tuples(st.floats(0.1, 0.8), st.floats(0.1, 0.8)),
)
@settings(max_examples=25, deadline=None)
def test_a_law_without_noise_is_found_again(
    floor: float, terms: tuple[float, float], powers: tuple[float, float]
) -> None:
    n, d = N / 1e8, D / 2e9
    loss = floor + terms[0] / n ** powers[0] + terms[1] / d ** powers[1]
    found = fit(ADDITIVE, N, D, loss)
    far = found.loss(1e10, 1e11)[0, 0]
    assert far == pytest.approx(
        floor + terms[0] / 100 ** powers[0] + terms[1] / 50 ** powers[1], rel=2e-3
    )
    natural = {name: value[0] for name, value in found.natural().items()}
    assert natural["E"] == pytest.approx(floor, rel=0.02)
    assert natural["alpha"] == pytest.approx(powers[0], rel=0.05)
    assert natural["A"] / 1e8 ** natural["alpha"] == pytest.approx(terms[0], rel=0.05)


def test_a_coupled_law_is_found_again_and_its_amplitudes_keep_their_meaning() -> None:
    loss = 1.5 + ((400 / N**0.34) ** 2 + (400 / D**0.28) ** 2) ** 0.5
    natural = {name: value[0] for name, value in fit(COUPLED, N, D, loss).natural().items()}
    assert natural["p"] == pytest.approx(2, rel=0.02)
    assert natural["A"] == pytest.approx(400, rel=0.05)
    assert natural["beta"] == pytest.approx(0.28, rel=0.01)


@pytest.mark.parametrize("threshold", [1e-3, 5e-3, 1.0])
def test_the_objective_is_no_higher_than_that_of_scipy(threshold: float) -> None:
    random = np.random.default_rng(3)
    loss = hoffmann(N, D) * np.exp(0.004 * random.standard_t(3, len(N)))
    found = fit(ADDITIVE, N, D, loss, threshold=threshold)

    def off(x: Array) -> Array:
        logs = [
            x[0] * np.ones_like(N),
            x[1] - x[3] * np.log(N / 1e8),
            x[2] - x[4] * np.log(D / 1e9),
        ]
        residuals: Array = np.log(np.exp(logs).sum(0)) - np.log(loss)
        return residuals

    peer = min(
        least_squares(
            off, [math.log(floor), 0, 0, 0.3, 0.3], loss="huber", f_scale=threshold, max_nfev=5000
        ).cost
        for floor in (0.5, 1.5, 2.0)
    )
    assert found.objectives[0] <= peer * (1 + 1e-6)


def test_non_negative_least_squares_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    columns, target = random.standard_normal((40, 3, 12)), random.standard_normal(12)
    amplitudes, squares = _nonnegative(columns, target)
    for problem in range(40):
        solved, norm = nnls(columns[problem].T, target)
        np.testing.assert_allclose(amplitudes[problem], solved, atol=1e-6)
        assert squares[problem] == pytest.approx(norm**2, abs=1e-6)


@pytest.mark.parametrize("form", [ADDITIVE, COUPLED, SIZE, COMPUTE])
def test_slopes_are_those_of_differences(form: LawForm) -> None:
    random = np.random.default_rng(1)
    values = random.uniform(-1.5, 0.5, (3, len(form.parameters)))
    logs = random.uniform(-2, 2, (2, 7))
    found = _Losses(form, values, logs).jacobian()
    for index in range(values.shape[1]):
        step = np.zeros_like(values)
        step[:, index] = 1e-6
        up, down = (_Losses(form, values + sign * step, logs).log for sign in (1, -1))
        np.testing.assert_allclose(found[:, index], (up - down) / 2e-6, atol=1e-7)


def test_many_weightings_are_fitted_as_one_by_one() -> None:
    random = np.random.default_rng(2)
    loss = hoffmann(N, D) * np.exp(0.003 * random.standard_normal(len(N)))
    best = fit(ADDITIVE, N, D, loss, threshold=4e-3)
    weights = random.multinomial(len(N), np.full(len(N), 1 / len(N)), size=20).astype(float)
    together = refit(best, N, D, loss, weights, threshold=4e-3)
    for index in range(20):
        kept = weights[index].repeat(1).astype(int)
        rows = np.repeat(np.arange(len(N)), kept)
        alone = fit(ADDITIVE, N[rows], D[rows], loss[rows], threshold=4e-3)
        assert together.objectives[index] == pytest.approx(alone.objectives[0], rel=2e-3)


def test_units_change_amplitudes_alone() -> None:
    random = np.random.default_rng(4)
    loss = hoffmann(N, D) * np.exp(0.002 * random.standard_normal(len(N)))
    ones, billions = fit(ADDITIVE, N, D, loss), fit(ADDITIVE, N / 1e9, D / 1e9, loss)
    np.testing.assert_allclose(ones.loss(1e10, 1e12), billions.loss(10, 1000), rtol=1e-6)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published table")
def test_the_chinchilla_table_gives_what_was_published() -> None:
    """Besiroglu et al. (arXiv:2404.10102): without the five highest losses, threshold 1e-3."""
    from sweeper.evidence.runs.loss_runs import law_runs, loss_runs_of
    from sweeper.evidence.runs.read import read

    columns = "params=Model Size,flops=Training FLOP"
    runs = loss_runs_of(law_runs(read(SHARED / "chinchilla_epoch.csv", columns=columns)))
    runs = runs.only(runs.loss < np.sort(runs.loss)[-5])
    found = fit(ADDITIVE, runs.params, runs.tokens, runs.loss, threshold=1e-3)
    assert found.objectives[0] <= 0.001018275
    natural = {name: value[0] for name, value in found.natural().items()}
    assert natural["E"] == pytest.approx(1.81686, abs=0.002)
    assert natural["alpha"] == pytest.approx(0.34781, abs=0.005)
    assert natural["beta"] == pytest.approx(0.36585, abs=0.005)
    counts = np.random.default_rng(0).multinomial(240, np.full(240, 1 / 240), size=1000)
    drawn = refit(
        found, runs.params, runs.tokens, runs.loss, counts.astype(float), threshold=1e-3
    ).natural()
    for name, low, high in (("E", 1.769, 1.871), ("alpha", 0.317, 0.373), ("beta", 0.331, 0.415)):
        ends = np.percentile(drawn[name], [2.5, 97.5])
        np.testing.assert_allclose(ends, [low, high], atol=0.1 * (high - low))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published table")
def test_the_scalefit_table_agrees_with_what_was_published_of_all_its_points() -> None:
    """Published of 217 points, by another loss; the table has the 124 of them below 1e21 FLOPs."""
    from sweeper.evidence.predict.forecast import fit_law
    from sweeper.evidence.runs.loss_runs import law_runs, loss_runs_of
    from sweeper.evidence.runs.read import read

    runs = loss_runs_of(law_runs(read(SHARED / "chinchilla_scalefit_isoflops.csv")))
    law = fit_law(runs, draws=400, forms=[ADDITIVE])
    ((_, _, values),) = law.forms()
    published = {"E": 1.9051, "alpha": 0.3511, "beta": 0.4587}
    published |= {"A": 4.0005 * 1e6**0.3511, "B": 1.0509 * 1e9**0.4587}
    for name, value in published.items():
        low, high = values[name].low, values[name].high
        assert low - 0.1 * (high - low) <= value <= high + 0.1 * (high - low), name
