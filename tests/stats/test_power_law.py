"""The law's fit, against what was published, and against surfaces that are known."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.stats.power_law import ADDITIVE, COMPUTE, SIZE, Array, LossForm, LossLaws, fit

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SWEEPER_TABLES", ROOT / "../shared/data/scaling"))
SIZES, HORIZONS = np.meshgrid(2e7 * 2.5 ** np.arange(5), 5e8 * 2.0 ** np.arange(5))
N, D = SIZES.ravel(), HORIZONS.ravel()


def fitted(params: Array, tokens: Array, loss: Array, noise: float = 1e-4) -> LossLaws:
    return fit(ADDITIVE, params, tokens, loss, noise=noise)


def hoffmann(params: Array, tokens: Array) -> Array:
    return 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28


@given(
    floor=st.floats(0.5, 3),
    terms=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)),
    powers=st.tuples(st.floats(0.1, 0.8), st.floats(0.1, 0.8)),
)
@settings(max_examples=6)
def test_a_law_without_noise_is_found_again(
    floor: float, terms: tuple[float, float], powers: tuple[float, float]
) -> None:
    n, d = N / 1e8, D / 2e9
    loss = floor + terms[0] / n ** powers[0] + terms[1] / d ** powers[1]
    result = fitted(N, D, loss)
    far = result.loss(1e10, 1e11)[0, 0]
    assert far == pytest.approx(
        floor + terms[0] / 100 ** powers[0] + terms[1] / 50 ** powers[1], rel=2e-3
    )
    natural = {name: value[0] for name, value in result.natural().items()}
    assert natural["E"] == pytest.approx(floor, rel=0.02)
    assert natural["alpha"] == pytest.approx(powers[0], rel=0.05)
    assert natural["A"] / 1e8 ** natural["alpha"] == pytest.approx(terms[0], rel=0.05)


@pytest.mark.parametrize("form", [ADDITIVE, SIZE, COMPUTE])
def test_slopes_are_those_of_differences(form: LossForm) -> None:
    random = np.random.default_rng(1)
    values = random.uniform(-1.5, 0.5, (3, len(form.parameters)))
    params, tokens = np.exp(random.uniform(-2, 2, (2, 7)))
    result = LossLaws(form, values, (1.0, 1.0)).slopes(params, tokens)
    for index in range(values.shape[1]):
        step = np.zeros_like(values)
        step[:, index] = 1e-6
        up, down = (
            np.log(LossLaws(form, values + sign * step, (1.0, 1.0)).loss(params, tokens))
            for sign in (1, -1)
        )
        np.testing.assert_allclose(result[:, index], (up - down) / 2e-6, atol=1e-7)


def test_units_change_amplitudes_alone() -> None:
    random = np.random.default_rng(4)
    loss = hoffmann(N, D) * np.exp(0.002 * random.standard_normal(len(N)))
    ones, billions = fitted(N, D, loss), fitted(N / 1e9, D / 1e9, loss)
    np.testing.assert_allclose(ones.loss(1e10, 1e12), billions.loss(10, 1000), rtol=1e-6)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published table")
def test_the_chinchilla_table_gives_what_was_published() -> None:
    """Besiroglu et al. (arXiv:2404.10102): without the five highest losses."""
    from sweeper.evidence.runs.loss_runs import law_runs, loss_runs_of
    from sweeper.evidence.runs.read import read

    columns = "params=Model Size,flops=Training FLOP"
    runs = loss_runs_of(law_runs(read(SHARED / "chinchilla_epoch.csv", columns=columns)))
    runs = runs.only(runs.loss < np.sort(runs.loss)[-5])
    result = fitted(runs.params, runs.tokens, runs.loss, 1e-3)
    natural = {name: value[0] for name, value in result.natural().items()}
    assert natural["E"] == pytest.approx(1.81686, abs=0.02)
    assert natural["alpha"] == pytest.approx(0.34781, abs=0.02)
    assert natural["beta"] == pytest.approx(0.36585, abs=0.02)
