import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sweeper.errors import ConfigError
from sweeper.evidence.compare import differences
from sweeper.evidence.compare.deciding import FIRST, FIRST_ALONE, Deciding
from sweeper.evidence.compare.differences import (
    LEAST_SCALE,
    VariantLosses,
    VariantQuestion,
    carry,
    shrinks,
)
from sweeper.study.cost import fitting

SIZES = np.array([[27.0, 31.0], [28.3, 32.3], [29.6, 33.6]])
TARGET = np.array([[31.2, 35.2]])


def losses(gains: list[list[float]], counts: int = 1) -> VariantLosses:
    base = np.array([3.5, 3.2, 2.95])[: len(gains[0])]
    means = np.array([base, *(base - np.array(gain) for gain in gains)])
    names = [f"v{i}" for i in range(len(means))]
    return VariantLosses(names, SIZES[: len(base)], means, np.full(means.shape, counts))


def by_hand(effect: float, fading: float) -> np.ndarray:
    octaves = (np.concatenate([SIZES, TARGET]) - SIZES[-1]).sum(axis=1)
    faded = effect * 2.0 ** (-fading * octaves)
    share = differences.IN_PROPORTION
    own = np.outer(faded, faded) * (1 + share**2 * np.eye(4))
    from_start = np.concatenate([SIZES, TARGET]) - SIZES[0]
    brown = sum(np.minimum.outer(x, x) for x in from_start.T)
    return own + (differences.DRIFT**2 + (share * effect) ** 2) * brown


def test_it_is_the_gaussian_model_whose_formulas_are_its_head() -> None:
    """At one place of the grid, worked out with the losses' full covariance."""
    seen = losses([[0.02, 0.012, 0.013], [0.001, -0.004, 0.0]])
    model = replace(differences._Model.of(seen, TARGET), grid=np.array([[0.01, 0.0025, 0.13]]))
    means, variances, joint = model.posterior()
    first = by_hand(0.01, 0.13)
    # y = level of the size (nearly any) + g_v + noise.
    every = np.kron(np.eye(3), first[:3, :3]) + 0.0025**2 * np.eye(9)
    every += 1e4 * np.kron(np.ones((3, 3)), np.eye(3))
    cross = np.kron(np.eye(3), first[3, :3])
    contrast = np.array([[-1, 1, 0], [-1, 0, 1]])
    mean = contrast @ cross @ np.linalg.solve(every, seen.means.reshape(-1) - 3.2)
    covariance = (
        contrast @ (np.eye(3) * first[3, 3] - cross @ np.linalg.solve(every, cross.T)) @ contrast.T
    )
    assert means[0, 0, 1:] == pytest.approx(mean, abs=1e-6)
    assert variances[0, 0, 1:] == pytest.approx(np.diag(covariance), rel=1e-3)
    assert joint[0, 1, 2] == pytest.approx(covariance[0, 1], rel=1e-3)


def test_how_likely_a_place_is_follows_from_differences_within_sizes() -> None:
    """Of two variants their difference at every size is all that is told."""
    seen = losses([[0.02, 0.012, 0.013]])
    grid = np.array([[0.01, 0.0025, 0.1], [0.02, 0.0025, 0.1]])
    weights = replace(differences._Model.of(seen, TARGET), grid=grid).weights()
    logs = [
        stats.multivariate_normal(
            np.zeros(3), 2 * by_hand(effect, 0.1)[:3, :3] + 2 * 0.0025**2 * np.eye(3)
        ).logpdf([0.02, 0.012, 0.013])
        + stats.norm(np.log(differences.EFFECT[0]), differences.EFFECT[1]).logpdf(np.log(effect))
        for effect in (0.01, 0.02)
    ]
    assert np.log(weights[1] / weights[0]) == pytest.approx(logs[1] - logs[0], abs=1e-6)


def test_a_gain_fades_and_the_line_through_it_is_not_followed() -> None:
    carried = carry(losses([[0.022, 0.013, 0.011]]), np.concatenate([TARGET, SIZES]))
    # The line of the gains crosses zero before the target.
    assert carried.difference(1, 3).mean < carried.difference(1).mean < 0
    assert carried.chance(1) > 0.95


def test_a_large_difference_is_known_in_proportion() -> None:
    """Gains of 0.6 nats are not known to 0.01, however alike two sizes say them."""
    small, large = (carry(losses([[x, x, x]]), TARGET).estimate(1, 0, 0.025) for x in (0.02, 0.6))
    assert small.high - small.low < 0.02
    assert 0.05 < large.high - large.low < 1 and large.high < 0


def test_the_largest_size_left_out_widens_and_narrows() -> None:
    as_foretold = carry(losses([[0.02, 0.0185, 0.017]]), TARGET).scale
    turned = carry(losses([[0.03, 0.03, -0.03]]), TARGET).scale
    assert LEAST_SCALE <= as_foretold < 1 < turned
    # One that was run at a single size takes nothing from the others.
    lone = losses([[0.0] * 3, [0.03, 0.03, -0.03]])
    few = replace(lone, counts=np.array([[1, 1, 1], [1, 0, 0], [1, 1, 1]]))
    assert carry(few, TARGET).scale > 1
    # Two sizes leave nothing to say the second by.
    assert carry(losses([[0.02, 0.017]]), TARGET).scale == 1


def test_seeds_tell_the_noise() -> None:
    wide = losses([[0.004]], counts=8)
    answers, sure = (replace(wide, squares=14 * s**2, freedom=14) for s in (0.02, 0.0005))
    assert carry(answers, SIZES[:1]).chance(1) < 0.8 < 0.99 < carry(sure, SIZES[:1]).chance(1)


def test_more_runs_narrow_the_difference_and_fewer_do_not() -> None:
    seen = losses([[0.004, 0.004, 0.004]])
    more = replace(seen, counts=seen.counts * 16)
    assert 0.1 < shrinks(seen, more, TARGET[0]) < 0.9 < shrinks(seen, seen, TARGET[0]) + 1e-9


def test_variants_that_never_meet_are_refused() -> None:
    alone = VariantLosses(
        ["a", "b"], SIZES[:2], np.array([[3.0, np.nan], [np.nan, 2.9]]), np.eye(2)
    )
    with pytest.raises(ValueError, match="no two variants"):
        carry(alone, TARGET)


@settings(max_examples=5)
@given(
    st.lists(st.floats(-0.03, 0.03), min_size=3, max_size=3),
    st.sampled_from([0.25, 3.0]),
    st.floats(-0.5, 0.5),
)
def test_laws(gain: list[float], times: float, moved: float) -> None:
    """Which of two is the baseline, a level for all, and the sizes' own levels do not matter."""

    def found(means: np.ndarray) -> tuple[float, float]:
        carried = carry(replace(seen, means=means), TARGET)
        return carried.chance(1), carried.estimate(1, 0, 0.025).high

    seen = losses([gain])
    chance, high = found(seen.means)
    assert found(seen.means[::-1])[0] == pytest.approx(1 - chance, abs=1e-6)
    assert found(seen.means + np.array([0, moved, 0]))[1] == pytest.approx(high, abs=1e-5)
    # Beyond losses in nats and bits, all are shares of the loss.
    ends = [found(seen.means * by)[1] for by in (100, 100 * times)]
    assert ends[1] == pytest.approx(times * ends[0], rel=1e-6, abs=1e-6)


WIDTHS = (32, 64, 128, 256)


def at_target(gains: list[float], seed: int, budget: int | None = None, **kw: Any) -> Deciding:
    """A baseline, and variants with gains that fade by a tenth an octave of compute."""
    generator, measured = np.random.default_rng(seed), dict[tuple[str, int, int], float]()
    names = ["base", *(f"v{i}" for i in range(len(gains)))]
    gain_of = dict(zip(names, [0.0, *gains], strict=True))
    sizes = [{"width": float(width), "steps": 1000.0} for width in WIDTHS]
    flops, question = (
        [6e3 * width**2 for width in WIDTHS],
        VariantQuestion(counts={"width": 1024.0}),
    )
    kw |= {"begun": 3, "budget": budget}
    ranking = Deciding(names, sizes, flops, question, lambda *run: measured.get(run), **kw)
    while missing := ranking.missing():
        assert len({*missing}) == len(missing) and not {*missing} & {*measured}
        for name, size, number in missing:
            gain = gain_of[name] * 2.0 ** (-0.2 * size)
            measured[name, size, number] = 3 - 0.1 * size - gain + generator.normal(0, 0.002)
    return ranking


def test_a_gain_is_called_at_the_target_with_few_runs_at_the_sizes_that_tell_most() -> None:
    result = [at_target([0.02, -0.02], seed) for seed in range(2)]
    for each in result:
        assert each.outcome.ended == "decided" and each.runs <= each.budget
        assert {v.name: v.answer for v in each.winner.variants} == {"v0": "better", "v1": "worse"}
        # A run tells by the baseline's of its seed, which is there.
        assert all(c <= each.seeds["base", size] for (_, size), c in each.seeds.items())
    assert min(each.runs for each in result) >= 3 * 3 * FIRST


def test_what_has_no_effect_is_called_in_no_ranking_and_given_up_early() -> None:
    for seed in range(3):
        result = at_target([0.0], seed)
        assert result.outcome is not None and result.outcome.ended == "hopeless"
        assert result.runs < result.budget / 2


def test_the_budget_of_a_ranking_at_a_target_is_kept() -> None:
    result = at_target([0.014], 1, budget=14)
    assert result.outcome is not None and result.runs <= 14
    with pytest.raises(ConfigError, match="at least 12"):
        at_target([0.014], 1, budget=11)


def test_the_time_of_a_ranking_at_a_target_is_that_of_the_sizes_it_trains() -> None:
    """Time for one run and a half of the size that it asks for first is time for one."""
    free = at_target([0.008], 1)
    asked = list[Any]()

    def affordable(runs: Sequence[Any]) -> int:
        asked.append([size for _, size, _ in runs])
        return fitting([float(WIDTHS[size]) for _, size, _ in runs], 1.5 * WIDTHS[asked[0][0]])

    timed = at_target([0.008], 1, affordable=affordable)
    assert timed.runs == 2 * 3 * FIRST + 1 < free.runs and len(asked[0]) > 1 and asked[-1] == []
    assert timed.outcome is not None and timed.outcome.ended == "budget"
    assert timed.outcome.budget == timed.runs
    assert fitting([1.0, math.nan, 2.0, 0.5], limit=3.0) == 3


def alone(gap: float, seed: int, lost: float = 0.0, **kw: Any) -> Deciding:
    """Two studies at one width, the second worse by `gap`; a seed does as much to both."""
    generator = np.random.default_rng(seed)
    of_seed, noise = generator.normal(0, 0.1, 500), generator.normal(0, 0.01, (2, 500))
    wild = generator.random(500) < lost

    def loss(name: str, size: int, seed: int) -> float:
        result = 3 + gap * (name == "b") + of_seed[seed] + noise[int(name == "b"), seed]
        return math.inf if name == "b" and wild[seed] else float(result)

    size = {"width": 64.0, "steps": 1000.0}
    deciding = Deciding("ab", [size], [1e12], VariantQuestion(), loss, begun=1, **kw)
    assert deciding.missing() == [] and deciding.outcome is not None
    return deciding


def test_at_one_size_seeds_decide_and_what_is_alike_is_told() -> None:
    worse = alone(0.05, 0)
    assert worse.outcome.ended == "decided" and worse.runs < 30
    assert worse.winner is not None and worse.winner.answer == "worse"
    assert alone(0.0, 0).outcome.ended in ("alike", "hopeless")
    assert alone(0.0, 1, slots=16).seeds["a", 0] >= 8 > FIRST_ALONE


def test_what_always_diverges_leaves_no_difference() -> None:
    stuck = alone(0.0, 0, lost=1.1)
    assert stuck.outcome.ended == "stuck" and stuck.outcome is not None
    assert [*stuck.outcome.diverged] == ["b"]
    often = alone(-0.05, 0, lost=0.5)
    assert often.winner is not None and often.winner.answer != "better"
