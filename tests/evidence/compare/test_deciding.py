from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sweeper.errors import ConfigError
from sweeper.evidence.compare.deciding import FIRST, FIRST_ALONE, Deciding
from sweeper.evidence.compare.differences import VariantQuestion
from sweeper.study.cost import fitting

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


# At a size that is trained.


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
