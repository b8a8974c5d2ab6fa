import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sweeper.decide.ladder_verdict import judge_ladder
from sweeper.stats import curve as module
from sweeper.stats.curve import fit_curves, with_noise_left, without_cliffs
from sweeper.stats.ladder import LadderRule, SizeCurve
from tests.stats.curves import BASE, LARGE, Valley, fit_curve


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS", 200)


def raised(curve: SizeCurve, height: float) -> SizeCurve:
    numbers = np.random.default_rng(0)

    def finite(losses: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(3 + height * (1 + 0.1 * numbers.random()) for _ in losses)

    losses = {
        eta: finite(losses) if math.isinf(losses[0]) else losses
        for eta, losses in curve.losses.items()
    }
    return replace(curve, losses=losses)


@settings(max_examples=6)
@given(
    optimum=st.floats(-1, 1),
    edge=st.floats(0.3, 1.4),
    height=st.floats(1.5, 8.0),
    curvature=st.floats(0.01, 0.1),
)
def test_a_finite_cliff_says_what_an_infinite_one_says(
    optimum: float, edge: float, height: float, curvature: float
) -> None:
    """Whatever its height: the fit is the same to the digit."""
    valley = Valley(optimum=optimum, edge=edge, curvature=curvature, noise=0.002)
    infinite = valley.curve()
    assume(any(math.isinf(losses[0]) for losses in infinite.losses.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 50)
        expected, result = (fit_curve(c, 0.0) for c in (infinite, raised(infinite, height)))
    assert result.curve.cliff is not None and result.curve.cliff.above > 3 + height
    assert (result.optimum, result.loss, result.basin) == (
        expected.optimum,
        expected.loss,
        expected.basin,
    )
    least = min(np.mean(losses) for losses in infinite.losses.values())
    assert result.loss.value > least - 0.01


@given(
    optimum=st.floats(-2, 2),
    curvature=st.floats(0.01, 0.2),
    step=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    number=st.integers(0, 1000),
)
@example(optimum=-1.8125, curvature=0.125, step=0.25, number=1)
def test_a_smooth_curve_has_no_cliff(
    optimum: float, curvature: float, step: float, number: int
) -> None:
    rule = LadderRule(widths=(32,), step=step)
    curve = Valley(optimum=optimum, curvature=curvature, noise=1e-3, number=number).curve(rule=rule)
    steep = {
        x: tuple(y + 2 * curvature * max(0.0, x - optimum) ** 2 for y in ys)
        for x, ys in curve.losses.items()
    }
    for first in (curve, replace(curve, losses=steep)):
        assert without_cliffs([first]) == [first]
        etas = sorted(first.losses)
        lowest = min(etas, key=lambda x: np.mean(first.losses[x]))
        # It goes on to rise, and nothing is in doubt where two points show that.
        if lowest != etas[-2]:
            assert without_cliffs([first], doubtful=True) == [first]


def on_octaves(losses: Sequence[float], number: int) -> SizeCurve:
    numbers = np.random.default_rng(number)
    return SizeCurve(
        size=(BASE, LARGE)[number],
        losses={
            2.0 * place - 2: tuple(loss + 0.01 * numbers.normal() for _ in range(2))
            for place, loss in enumerate(losses)
        },
    )


def test_a_jump_that_may_be_a_steep_side_has_both_readings() -> None:
    """The only point past the lowest: through it a curve's optimum lies an octave lower."""
    jumps = [on_octaves((3.6, 3.0, 6.9), 0), on_octaves((3.3, 3.0, 7.2), 1)]
    assert all(curve.cliff is None for curve in without_cliffs(jumps))
    for fit in fit_curves(jumps, 0.0).values():
        assert fit is not None and fit.curve.cliff is not None and not fit.curve.cliff.sure
        assert fit.steep is not None and fit.steep.optimum.high < 0.8
        # Up to the cliff, as beside a point that diverged.
        assert fit.optimum.low <= fit.steep.optimum.low and fit.optimum.high > 1.5
        assert fit.optimum.value == 0.0
        # Training at the cliff: what was measured, or as bad as may be.
        gap = fit.loss_gap(2.0)
        assert gap.low == pytest.approx(fit.steep.loss_gap(2.0).low, abs=0.2)
        assert math.isinf(gap.high)
    # Where one more point shows that the losses go on to rise, none is in doubt.
    rising = [on_octaves((3.6, 3.0, 4.0, 6.9), 0)]
    assert without_cliffs(rising, doubtful=True) == rising


def test_a_shelf_is_a_jump_where_a_side_would_go_on_to_rise() -> None:
    """Half an octave past the best it rises by a third of what the left side does in all."""
    rest = [(x, 3 + 0.06 * (x + 0.25) ** 2) for x in (-2.0, -1.5, -1.0, -0.5, 0.0)]
    for beyond, seen in (((3.16, 3.17, 3.2), True), ((3.16, 3.45, 3.9), False)):
        points = rest + [(0.5 + place / 2, loss) for place, loss in enumerate(beyond)]
        curve = SizeCurve(size=BASE, losses={x: (y - 0.002, y + 0.002) for x, y in points})
        (cut,) = without_cliffs([curve], doubtful=True)
        assert (cut.cliff is not None and cut.cliff.log2 == 0.5) == seen
        assert without_cliffs([curve]) == [curve]


def test_one_run_that_is_off_is_no_cliff() -> None:
    curve = Valley(noise=0.001).curve()
    eta = sorted(curve.losses)[-2]
    losses = {**curve.losses, eta: (curve.losses[eta][0], 6.0)}
    assert without_cliffs([replace(curve, losses=losses)])[0].cliff is None


def single(noise: float, number: int) -> list[SizeCurve]:
    numbers = np.random.default_rng(number)
    return [
        SizeCurve(
            size=size,
            losses={
                x: (3 + 0.04 * (x - 0.2) ** 2 + 0.004 * x**3 + noise * numbers.normal(),)
                for x in np.arange(-3, 3, 0.5).tolist()
            },
        )
        for size in (BASE, LARGE)
    ]


def test_the_noise_of_single_runs_is_read_off_their_curves() -> None:
    """In the mean over ladders the square of what was drawn, and an interval that holds."""
    squares, inside = [], []
    for number in range(30):
        curves = with_noise_left(single(0.003, number))
        for curve in curves:
            assert curve.noise is not None and curve.noise.single and curve.noise.freedom > 5
            squares.append(curve.noise.deviation**2)
        if number < 6:
            fits = fit_curves(curves, 0.0)
            # The minimum of 0.04 (x - 0.2)^2 + 0.004 x^3: 0.012 x^2 + 0.08 x - 0.016 = 0.
            true = (-0.08 + math.sqrt(0.08**2 + 4 * 0.012 * 0.016)) / 0.024
            for fit in fits.values():
                assert fit is not None and not fit.noise_unknown
                inside.append(fit.optimum.low <= true <= fit.optimum.high)
    assert np.mean(squares) == pytest.approx(0.003**2, rel=0.2)
    assert np.mean(inside) >= 0.9


def test_few_points_and_computed_numbers_show_no_noise() -> None:
    few = [
        replace(curve, losses={x: y for x, y in curve.losses.items() if abs(x) <= 0.5})
        for curve in single(0.003, 0)
    ]
    for curves in (few, single(0.0, 0), single(0.003, 0)[:1]):
        assert all(curve.noise is None for curve in with_noise_left(curves))


@pytest.mark.parametrize(("noise", "answer"), [(0.0005, "holds"), (0.02, "cannot say yet")])
def test_a_best_at_an_end_holds_where_the_curve_s_shape_bounds_it(
    noise: float, answer: str
) -> None:
    base, large = single(noise, 1)
    least = min(large.losses, key=lambda x: large.losses[x])
    large = replace(large, losses={x: y for x, y in large.losses.items() if x >= least})
    curves = with_noise_left([base, large])
    result = judge_ladder("width", curves, 0.2, BASE, LadderRule(widths=(32, 256))).sizes[1]
    assert (result.at_end, result.side, result.answer) == (True, -1, answer)
    assert result.code == ("within" if answer == "holds" else "edge")
    # As the base the same curve is open: what begins at a bound transfers nothing that is known.
    of_bound = judge_ladder("width", curves, 0.2, LARGE, LadderRule(widths=(32, 256)))
    assert of_bound.answer == "cannot say yet"
