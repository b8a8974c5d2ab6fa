"""Rankings with few seeds: what they ask for, how they end, and how seldom they are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from sweeper.errors import ConfigError
from sweeper.evidence.compare.decision import TargetQuestion
from sweeper.evidence.compare.ranking import FIRST, ROUNDS, Ranking, TargetRanking
from sweeper.stats.paired import paired_difference
from sweeper.study.cost import fitting

Loss = Callable[[str, int], float | None]


def losses(gap: float, noise: float = 0.01, seed: int = 0) -> Loss:
    """Studies a, b, c, worse by 0, 1 and 4 times the `gap`; seeds have offsets of their own."""
    generator = np.random.default_rng(seed)
    drawn = generator.normal(0, noise, (3, 500)) + generator.normal(0, 0.1, 500)
    return lambda name, seed: (
        3.0 + gap * "abc".index(name) ** 2 + float(drawn["abc".index(name), seed])
    )


def ranked(loss: Loss, names: str = "ab", **options: object) -> Ranking:
    ranking = Ranking(list(names), loss, **options)  # type: ignore[arg-type]
    assert ranking.missing() == []
    return ranking


def ending(ranking: Ranking) -> str:
    assert ranking.outcome is not None
    return ranking.outcome.ended


def test_unlike_studies_are_told_apart_with_few_runs_and_who_is_worse_drops_out() -> None:
    two = ranked(losses(0.2))
    assert ending(two) == "decided" and [place.name for place in two.places] == ["a", "b"]
    assert two.runs <= 2 * ROUNDS.seeds[2] and two.places[1].gap.low > 0
    three = ranked(losses(0.02), "cba")
    assert ending(three) == "decided" and [place.name for place in three.places] == ["a", "b", "c"]
    assert three.seeds["c"] < three.seeds["b"] == three.seeds["a"]


def test_it_ends_where_all_are_alike_and_where_no_budget_would_do() -> None:
    alike = ranked(losses(0.0, noise=1e-4))
    assert ending(alike) == "alike" and alike.runs <= 2 * ROUNDS.seeds[1]
    open_end = ranked(losses(0.004, noise=0.1))
    assert ending(open_end) == "hopeless" and open_end.runs < open_end.budget
    assert open_end.outcome and (open_end.outcome.needed or 0) > open_end.budget
    spent = ranked(losses(0.02, noise=0.03), budget=11)
    assert ending(spent) == "budget" and spent.runs == 10


def test_what_would_do_is_about_what_it_takes() -> None:
    needed, took = [], []
    for seed in range(20):
        loss = losses(0.01, seed=seed)
        spent = ranked(loss, budget=24)
        if spent.outcome and spent.outcome.needed:
            needed.append(spent.outcome.needed)
            took.append(ranked(loss, budget=1000).runs)
    assert len(took) > 10 and 0.5 < np.median(needed) / np.median(took) < 2


def test_after_a_kill_at_any_run_it_goes_on_as_if_nothing_had_been() -> None:
    loss, known = losses(0.01), dict[tuple[str, int], float | None]()
    whole = ranked(loss, "abc")
    generator = np.random.default_rng(1)
    while missing := (again := Ranking("abc", lambda *run: known.get(run))).missing():
        for at in generator.permutation(len(missing))[: 1 + len(missing) // 2]:
            known[missing[at]] = loss(*missing[at])
    assert again.places == whole.places and again.outcome == whole.outcome
    assert len(known) == whole.runs


def test_runs_that_diverge_lose_by_a_sign_test_and_not_by_one_run() -> None:
    def wild(share: float) -> Loss:
        lost = np.random.default_rng(0).random(500) < share
        loss = losses(0.0)
        return lambda name, seed: math.inf if name == "b" and lost[seed] else loss(name, seed)

    always = ranked(wild(1.0))
    assert ending(always) == "decided" and always.places[0].name == "a"
    # 2 / 4^n <= 0.0005 takes 6 of them.
    assert always.seeds["b"] == ROUNDS.seeds[2] >= math.log(2 / ROUNDS.error, 4)
    seldom = ranked(wild(0.05))
    assert ending(seldom) in ("hopeless", "budget") and (count := seldom.places[1].diverged) > 0
    assert seldom.outcome and seldom.outcome.needed
    seeds = seldom.seeds["b"]
    assert seldom.outcome.diverged == {"b": (count, seeds)} and seldom.outcome.least == 6
    # So many seeds of each, at the share that diverged so far, give the sign test its 12.
    assert seldom.outcome.needed == pytest.approx(2 * 12 * seeds / count, abs=2)
    both = ranked(lambda name, seed: math.inf)
    assert ending(both) == "stuck" and both.runs == 2 * ROUNDS.seeds[0]
    assert ending(ranked(lambda name, seed: math.nan)) == "stuck"


def test_rounds_fill_all_workers_and_hours_bound_them() -> None:
    first = Ranking("ab", lambda *_: None, slots=16)
    assert len(first.missing()) == 16
    timed = ranked(losses(0.004, noise=0.02), affordable=lambda runs: min(4, len(runs)))
    assert timed.budget == 10 and timed.runs <= 10
    with pytest.raises(ConfigError) as caught:
        Ranking("ab", losses(0.0), budget=5)
    assert caught.value.key == "budget"


def test_the_interval_is_students_or_halls_whichever_is_longer() -> None:
    generator = np.random.default_rng(3)
    for pairs in (
        generator.normal(size=9),
        generator.exponential(size=9),
        generator.normal(size=3),
    ):
        found = paired_difference(pairs, np.zeros(len(pairs)), 0.01, skewed=True)
        error = pairs.std(ddof=1) / len(pairs) ** 0.5
        student = stats.t(len(pairs) - 1).interval(0.99)
        a = stats.skew(pairs) / 6 / len(pairs) ** 0.5

        def hall(t: float, a: float = a) -> float:
            return t + a * (1 + 2 * t**2) + 4 / 3 * a**2 * t**3

        ends = [optimize.brentq(lambda t, end=end: hall(t) - end, -1e3, 1e3) for end in student]
        assert found.low == pytest.approx(pairs.mean() - error * max(ends[1], student[1]))
        assert found.high == pytest.approx(pairs.mean() - error * min(ends[0], student[0]))


def test_equal_studies_are_seldom_ranked() -> None:
    wrong = sum(
        ending(ranked(losses(0.0, 1.0, seed), budget=120)) == "decided" for seed in range(300)
    )
    assert wrong <= 6  # 1 % at most is promised: more than 6 of 300 has a chance of 3 %


# At a target that no run reaches.

WIDTHS = (32, 64, 128, 256)


def at_target(gains: list[float], seed: int, budget: int | None = None, **kw: Any) -> TargetRanking:
    """A baseline, and variants with gains that fade by a tenth an octave of compute."""
    generator, known = np.random.default_rng(seed), dict[tuple[str, int, int], float]()
    names = ["base", *(f"v{i}" for i in range(len(gains)))]
    gain_of = dict(zip(names, [0.0, *gains], strict=True))
    ranking = TargetRanking(
        names,
        [{"width": float(width), "steps": 1000.0} for width in WIDTHS],
        [6.0 * width**2 * 1000 for width in WIDTHS],
        TargetQuestion(counts={"width": 1024.0}),
        lambda *run: known.get(run),
        begun=3,
        budget=budget,
        **kw,
    )
    while missing := ranking.missing():
        assert len({*missing}) == len(missing) and not {*missing} & {*known}
        for name, size, number in missing:
            gain = gain_of[name] * 2.0 ** (-0.2 * size)
            known[name, size, number] = 3 - 0.1 * size - gain + generator.normal(0, 0.002)
    return ranking


def test_a_gain_is_called_at_the_target_with_few_runs_at_the_sizes_that_tell_most() -> None:
    found = [at_target([0.02, -0.02], seed) for seed in range(3)]
    for each in found:
        assert each.outcome is not None and each.winner is not None
        assert each.outcome.ended == "decided" and each.runs <= each.budget
        assert {v.name: v.answer for v in each.winner.variants} == {"v0": "better", "v1": "worse"}
        # A run tells by the baseline's of its seed, which is there.
        assert all(c <= each.seeds["base", size] for (_, size), c in each.seeds.items())
    assert min(each.runs for each in found) >= 3 * 3 * FIRST


def test_what_has_no_effect_is_called_in_no_ranking_and_given_up_early() -> None:
    for seed in range(10):
        found = at_target([0.0], seed)
        assert found.outcome is not None and found.outcome.ended == "hopeless"
        assert found.runs < found.budget / 2


def test_the_budget_of_a_ranking_at_a_target_is_kept() -> None:
    found = at_target([0.014], 1, budget=14)
    assert found.outcome is not None and found.runs <= 14
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
