from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pandas
import pytest

from sweeper.errors import BadInput
from sweeper.evidence.follow.decision import Watch
from sweeper.evidence.predict.earlier import Expectation, expectation
from sweeper.evidence.runs.curves import EarlierRun, earlier_runs
from sweeper.stats.estimate import Array

STEPS = np.arange(0, 3001, 125)


def losses(seed: int, steps: Array = STEPS, level: float = 0.0) -> Array:
    random = np.random.default_rng(seed)
    path = np.cumsum(random.standard_normal(len(steps))) / math.sqrt(len(steps))
    log = math.log(3.2) + level + 0.9 * np.exp(-(steps + 60) / 400) + 0.1 * (1 - steps / 3000)
    result: Array = np.exp(log + 2e-4 * path + 3e-4 * random.standard_normal())
    return result


def earlier(count: int = 8) -> list[EarlierRun]:
    return [EarlierRun(str(seed), STEPS.astype(float), losses(seed)) for seed in range(count)]


def table(count: int) -> Any:
    runs = [{"run": k, "step": STEPS, "val_loss": losses(k)} for k in range(count)]
    return pandas.concat(map(pandas.DataFrame, runs), ignore_index=True)


@cache
def seeds() -> Expectation:
    return expectation(earlier(), "seeds")


def watched(values: Array) -> Watch:
    watch = Watch(seeds())
    for step, loss in zip(STEPS.tolist(), values.tolist(), strict=True):
        watch.update(step, loss)
    watch.finish()
    return watch


def test_other_seeds_are_on_the_band_and_three_thousandths_more_are_above_it() -> None:
    off = [watched(losses(seed)).seen.off for seed in range(100, 110)]
    assert sum(off) <= 1
    more = np.where(STEPS >= 1000, 1.003, 1.0)
    assert [watched(losses(seed) * more).seen.state for seed in range(100, 103)] == ["above"] * 3


def test_the_end_is_the_earlier_runs_and_no_law_says_what_it_is_worth() -> None:
    seen = watched(losses(7)).seen
    assert seen.ended and seen.end is not None and math.isnan(seen.compute.value)
    assert seen.predicted.low < seen.end < seen.predicted.high
    assert seen.end == pytest.approx(losses(7)[-1], rel=2e-3)


def test_runs_of_several_sizes_end_where_these_end() -> None:
    runs = [
        EarlierRun(f"{size} {seed}", STEPS.astype(float), losses(seed, level=level), size)
        for size, level in ((1e6, 0.2), (4e6, 0.1), (1.6e7, 0.0))
        for seed in range(3)
    ]
    end = expectation(runs, "sizes").prediction
    assert end.high / end.low > math.exp(0.2)


def test_a_table_with_a_row_a_step_gives_its_runs_and_two_losses_of_a_step_are_refused() -> None:
    frame = table(4).assign(recipe="a")
    runs = earlier_runs(frame, "")
    assert [run.name for run in runs] == ["0", "1", "2", "3"]
    assert {run.length for run in runs} == {3000}
    twice = pandas.concat([frame, frame.assign(recipe="b")])
    assert len(earlier_runs(twice, "", where="recipe == 'a'")) == 4
    with pytest.raises(BadInput, match="two losses of one step"):
        earlier_runs(twice, "")
    with pytest.raises(BadInput, match="no column of the run"):
        earlier_runs(frame.drop(columns="run"), "")


def test_seeds_of_one_size_too_few_for_a_spread_are_refused() -> None:
    with pytest.raises(BadInput, match="how much seeds differ"):
        expectation(earlier(2), "seeds")


def test_runs_that_are_no_seeds_of_one_another_are_refused() -> None:
    frame = table(5)
    shorter = frame[(frame.run > 0) | (frame.step <= 2600)]
    with pytest.raises(BadInput, match=r"step 2,500, '.' of the same size at step 3,000"):
        earlier_runs(shorter, "")
    sizes = shorter.assign(params=np.where(shorter.run > 0, 2e6, 1e6))
    assert {run.length for run in earlier_runs(sizes, "")} == {2500, 3000}
    copied = frame.assign(val_loss=np.tile(losses(0), 5))
    with pytest.raises(BadInput, match="a copy is no other seed"):
        earlier_runs(copied, "")
    with pytest.raises(BadInput, match="have the same losses"):
        expectation([EarlierRun(str(k), STEPS.astype(float), losses(0)) for k in range(5)], "x")
    with pytest.raises(BadInput, match="no numbers from 0 on"):
        earlier_runs(frame.assign(step=frame.step - 50), "")
    for loss in (math.inf, -1.0):
        with pytest.raises(BadInput, match="the run '0' has 25 losses; it takes 20, all of them"):
            earlier_runs(frame.assign(val_loss=frame.val_loss.mask(frame.index == 3, loss)), "")
    for size in (math.nan, -5.0):
        with pytest.raises(BadInput, match="a positive number, in every row"):
            earlier_runs(frame.assign(params=np.where(frame.run > 0, 2e6, size)), "")
