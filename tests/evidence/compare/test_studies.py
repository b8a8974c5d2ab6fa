"""Studies compared: losses, optima and noise that are made up, and numbers worked out by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.evidence.compare.studies import (
    Ladder,
    Standing,
    compare,
    losses_at,
    rank,
    retuned_losses,
    seeds_needed,
)
from sweeper.stats.curve import fit_curve
from sweeper.stats.estimate import UNKNOWN, Estimate
from sweeper.stats.ladder import SizeCurve
from sweeper.stats.paired import paired_difference
from tests.stats.curves import BASE, table

OFFSETS = (0.0, 0.02, -0.02)
"""What every seed adds to all losses: their mean is 0."""


def curve(width: int, floor: float, optimum: float = 0.0, bend: float = 0.05) -> SizeCurve:
    """A parabola without noise but for a little of each run's own, so that there is an interval."""
    jitter = np.random.default_rng(width).normal(0, 1e-6, (9, len(OFFSETS)))
    losses = {
        -2 + 0.5 * i: tuple(
            floor + bend * (-2 + 0.5 * i - optimum) ** 2 + offset + float(jitter[i, seed])
            for seed, offset in enumerate(OFFSETS)
        )
        for i in range(9)
    }
    return table(losses, replace(BASE, width=width))  # type: ignore[arg-type]


def ladder(name: str, floors: dict[int, float], optimum: float = 0.0) -> Ladder:
    """A study whose optimum at the base, where 0 was transferred from, is right elsewhere off."""
    curves = [curve(width, floor, optimum) for width, floor in floors.items()]
    return Ladder(
        name=name, curves=curves, transferred=0.0, flops={w: float(w * w) for w in floors}
    )


def test_a_seed_s_retuned_loss_is_its_own_parabola_s_at_the_common_optimum() -> None:
    fit = fit_curve(curve(16, 3.0, optimum=0.3), 0.0)
    assert fit is not None
    assert retuned_losses(fit) == pytest.approx(np.array(OFFSETS) + 3.0, abs=1e-4)
    assert retuned_losses(fit).mean() == pytest.approx(fit.loss.value, abs=1e-4)


def test_a_loss_is_measured_or_on_the_chord_and_unknown_beyond() -> None:
    found = table({0.0: (3.0, 4.0), 1.0: (2.0, 3.0), 2.0: (4.0, 5.0)})
    assert losses_at(found, 1.0).tolist() == [2.0, 3.0]
    assert losses_at(found, 1.25).tolist() == [2.5, 3.5]
    assert np.isnan(losses_at(found, 2.5)).all()


def test_the_better_parameterization_wins_at_both_etas_by_what_was_put_in() -> None:
    good = ladder("good", {16: 3.0, 32: 2.8, 64: 2.7})
    bad = ladder("bad", {16: 3.0, 32: 2.9, 64: 2.85}, optimum=1.0)
    found = compare([bad, good])
    assert [one.name for one in found.by_transferred] == ["good", "bad"]
    assert [(one.first, one.last) for one in found.by_transferred] == [(1, 1), (2, 2)]
    # At the transferred eta it loses 0.05 more, for an octave off its optimum.
    assert found.by_transferred[1].gap.value == pytest.approx(0.20, abs=1e-4)
    assert found.by_retuned[1].gap.value == pytest.approx(0.15, abs=1e-4)
    widest = found.candidates[0].widths[-1]
    assert widest.regret.value == pytest.approx(0.05, abs=1e-4)
    assert widest.optimum_log2.value == pytest.approx(1.0, abs=1e-3)


def test_robustness_is_what_an_octave_costs() -> None:
    first = compare([ladder(name, {16: 3.0, 32: 2.9}) for name in "ab"]).candidates[0]
    robust = {loss.octaves: loss for loss in first.robustness}
    for octaves in (-1.0, 1.0):
        assert robust[octaves].value == pytest.approx(0.05, abs=1e-3)
    # Chords between points of a parabola lie on it at the points.
    assert robust[2.0].value == pytest.approx(0.20, abs=1e-2)


def test_past_the_end_robustness_is_a_bound() -> None:
    off = compare([ladder(name, {16: 3.0, 32: 2.9}, optimum=1.0) for name in "ab"])
    far = next(loss for loss in off.candidates[0].robustness if loss.octaves == 2.0)
    assert far.value == pytest.approx(0.05, abs=1e-3) and math.isinf(far.high)


def test_equal_compute_lies_between_the_widths_of_another_ladder() -> None:
    # FLOPs are width^2: 32^2 is half way from 16^2 to 64^2 in their logarithm.
    long, short = ladder("long", {16: 3.0, 64: 2.6}), ladder("short", {16: 3.0, 32: 2.7})
    found = compare([long, short])
    assert found.flops == 32.0**2
    assert [one.name for one in found.by_retuned] == ["short", "long"]
    assert found.by_retuned[1].loss.value == pytest.approx(2.8, abs=1e-4)
    assert found.candidates[0].robust_width == 16


def test_ladders_that_do_not_meet_are_refused() -> None:
    with pytest.raises(ValueError, match="costs as much"):
        compare([ladder("a", {16: 3.0, 32: 2.9}), ladder("b", {64: 2.7, 128: 2.6})])


def test_a_curve_without_a_finite_point_is_refused() -> None:
    wild = SizeCurve(size=BASE, losses={0.0: (math.inf, math.inf)})
    lost = Ladder(name="lost", curves=[wild], transferred=0.0, flops={32: 1.0})
    with pytest.raises(ValueError, match="lost: no learning rate of width 32"):
        compare([lost, lost])


def test_differences_are_seed_by_seed() -> None:
    losses, others = np.array([3.0, 3.5, 4.0]), np.array([2.9, 3.4, 3.9])
    found = paired_difference(losses, others, 0.05)
    assert (found.low, found.value, found.high) == pytest.approx((0.1, 0.1, 0.1))


def test_what_diverges_loses_and_two_that_diverge_are_not_told_apart() -> None:
    fine = np.array([3.0 + 1e-3 * seed for seed in range(6)])
    wild, worse = fine - 0.02, np.full(6, math.inf)
    wild[0] = math.inf
    standings = rank({"a": wild, "c": worse, "b": fine})
    places = [(standing.name, standing.first, standing.last) for standing in standings]
    assert places == [("b", 1, 2), ("a", 1, 2), ("c", 3, 3)]


def test_what_was_not_measured_has_any_place() -> None:
    places = rank({"a": np.array([3.0, 3.1]), "b": np.array([math.nan] * 2)})
    assert [(one.name, one.first, one.last) for one in places] == [("a", 1, 2), ("b", 1, 2)]


def test_a_winner_among_equals_is_rare() -> None:
    generator, winners = np.random.default_rng(0), 0
    for _ in range(400):
        losses = {name: generator.normal(3, 0.1, 4) for name in "abc"}
        winners += any(one.first != 1 or one.last != 3 for one in rank(losses))
    assert winners <= 30, "5 % of 400, and what chance adds"


def test_seeds_that_would_tell() -> None:
    def standings(value: float, half: float) -> list[Standing]:
        gap = Estimate(value=value, low=value - half, high=value + half)
        places = {"first": 1, "last": 2, "loss": UNKNOWN}
        return [Standing(name=name, gap=gap, **places) for name in "ab"]  # type: ignore[arg-type]

    # The interval is twice as wide as it may be: four times the seeds.
    assert seeds_needed(standings(0.125, 0.25), 3) == 12
    assert seeds_needed(standings(0.01, 0.25), 3) is None
    assert seeds_needed(standings(0.125, math.inf), 1) == 4


RUNS = st.one_of(st.floats(2.0, 4.0).map(lambda loss: round(loss, 3)), st.just(math.inf))
STUDIES = st.integers(2, 12).flatmap(
    lambda seeds: st.lists(st.lists(RUNS, min_size=seeds, max_size=seeds), min_size=2, max_size=4)
)


def places(studies: list[list[float]], unit: float = 1.0) -> dict[int, tuple[int, int]]:
    """First and last place by study."""
    named = {str(i): unit * np.array(runs) for i, runs in enumerate(studies)}
    return {int(standing.name): (standing.first, standing.last) for standing in rank(named)}


@given(STUDIES, st.randoms())
def test_neither_the_order_of_studies_nor_that_of_seeds_tells_anything(
    studies: list[list[float]], random: random.Random
) -> None:
    order, seeds = list(range(len(studies))), list(range(len(studies[0])))
    random.shuffle(order)
    random.shuffle(seeds)
    shuffled = places([[studies[i][seed] for seed in seeds] for i in order])
    assert {order[at]: place for at, place in shuffled.items()} == places(studies)


@given(STUDIES, st.sampled_from([0.25, 4.0]))
def test_the_unit_of_the_losses_moves_no_place(studies: list[list[float]], unit: float) -> None:
    assert places(studies, unit) == places(studies)


@given(STUDIES)
def test_a_study_that_diverges_with_one_seed_more_moves_up_past_nobody(
    studies: list[list[float]],
) -> None:
    first, *others = studies[:2]
    seed = [[*first, math.inf], *([*runs, 3.0] for runs in others)]
    # By two studies alone: of more the interval of a pair would not be the same.
    before, after = places([first, *others]), places(seed)
    assert after[0][0] >= before[0][0] and after[0][1] >= before[0][1]


@given(STUDIES)
def test_a_study_that_is_worse_than_all_leads_nobody_past_another(
    studies: list[list[float]],
) -> None:
    studies = [[min(loss, 5.0) for loss in runs] for runs in studies]
    worst = [9.0 + 1e-3 * seed for seed in range(len(studies[0]))]
    before, after = places(studies), places([*studies, worst])
    # More pairs have wider intervals: who was told apart may not be, and the other way never.
    for i in range(len(studies)):
        assert after[i][0] <= before[i][0] and after[i][1] >= before[i][1]
