import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas
import pytest

from sweeper.errors import BadInput
from sweeper.evidence.follow.decision import Watch
from sweeper.evidence.predict.band import (
    Band,
    Curves,
    TrainingCourse,
    end_weights,
    fit_band,
    rebinned,
    stretch_edges,
)
from sweeper.evidence.predict.earlier import Expectation, expectation
from sweeper.evidence.runs.curves import EarlierRun, earlier_runs
from sweeper.stats.estimate import Array

COURSE = TrainingCourse(steps=4000, warmup=0.1, window=0.1, schedule="cosine", lr=[1.0] * 100)
EQUAL = np.linspace(0, 1, 101)
SIZES = np.log([1e6, 4e6, 1.6e7])


def ladder(
    *, seeds: int = 4, noise: float = 0.005, bent: float = 0.0, wild: float = 0.0, seed: int = 0
) -> Curves:
    """Curves of one shape, which the log of the size bends, and a size of its own makes `wild`."""
    random = np.random.default_rng(seed)
    x = (np.arange(100) + 0.5) / 100
    rows, cell, params = [], [], []
    for index, size in enumerate(SIZES):
        of_size = wild * random.standard_normal() * np.sin(5 * x)
        for _ in range(seeds):
            path = 0.3 * noise * np.cumsum(random.standard_normal(100)) / 10
            log = math.log(3 - 0.3 * index) + 0.6 * np.exp(-6 * x) + bent * index * (1 - x)
            rows.append(np.exp(log + of_size + path + noise * random.standard_normal(100)))
            cell.append(index)
            params.append(size)
    ends = np.array([row @ end_weights(EQUAL, 0.1) for row in rows])
    return Curves(
        np.array(params), np.zeros(len(rows)), np.array(cell), rows, [4000] * len(rows), ends
    )


def band(curves: Curves, **course: Any) -> Band:
    return fit_band(curves, replace(COURSE, **course), SIZES[-1] + math.log(4), 0.0)


def test_the_shape_is_that_of_the_curves_and_goes_on_with_the_size() -> None:
    x = (np.arange(100) + 0.5) / 100
    made = band(ladder(bent=0.05))
    shape = 0.6 * np.exp(-6 * x) + 3 * 0.05 * (1 - x)
    shape -= end_weights(EQUAL, 0.1) @ shape
    assert np.abs(np.array(made.mean) - shape).max() < 0.02
    assert made.end_weights @ np.array(made.mean) == pytest.approx(0, abs=1e-9)


def test_sizes_that_are_on_no_line_are_a_misfit() -> None:
    assert band(ladder(wild=0.02)).misfit > 3 * band(ladder(bent=0.05)).misfit


def test_noise_and_paths_are_told_apart() -> None:
    made = band(ladder(noise=0.005, seeds=8))
    # Of a stretch the noise is 0.005; the path is a walk of 0.3 x 0.005 over the run, scaled.
    assert np.median(made.spread) == pytest.approx(0.005, rel=0.2)
    assert made.white > 0.7


def test_the_covariance_has_the_end_that_was_predicted() -> None:
    made = band(ladder())
    smooth, white = made.covariance(0.02)
    weights = made.end_weights
    assert weights @ (smooth + np.diag(white)) @ weights == pytest.approx(0.02**2, rel=0.05)
    assert np.linalg.eigvalsh(smooth + np.diag(white)).min() > 0


def test_what_an_eta_does_is_a_direction() -> None:
    curves = ladder()
    x = (np.arange(100) + 0.5) / 100
    high = np.asarray(curves.curves[0]) * np.exp(0.1 * (1 - x))
    pairs = [(high.tolist(), curves.curves[0], 1.0)]
    made = band(replace(curves, eta_pairs=pairs, eta_deviation=0.5))
    (of_eta,) = [d for d in made.directions if d.name == "eta"]
    assert of_eta.values[5] == pytest.approx(0.1 * (0.95 - 0.055), abs=0.01)
    plain, wider = band(curves).covariance(0.0)[0], made.covariance(0.0)[0]
    assert wider[30, 30] - plain[30, 30] == pytest.approx((0.5 * of_eta.values[30]) ** 2, rel=0.1)


def test_a_held_out_end_lies_above_the_training_s() -> None:
    curves = ladder()
    made = band(replace(curves, objectives=1.1 * curves.objectives))
    assert made.gap == pytest.approx(math.log(1.1), abs=0.002)


@pytest.mark.parametrize(
    ("curves", "said"),
    [(ladder(seeds=1), "seeds differ"), (ladder(wild=1.0, seed=1), "do not fall on one another")],
)
def test_without_seeds_or_without_a_collapse_there_is_no_band(curves: Curves, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        band(curves)


def test_curves_of_other_lengths_are_averaged() -> None:
    edges = np.linspace(0, 1, 5)
    assert rebinned([1, 2, 3, 4], edges, edges[::2]).tolist() == [1.5, 3.5]
    assert rebinned([1, 2, 3, 4], edges, edges).tolist() == [1, 2, 3, 4]
    # Three steps in two stretches: the first has two of them.
    assert stretch_edges(3, 2).tolist() == pytest.approx([0, 2 / 3, 1])
    halves = rebinned([1, 3], stretch_edges(3, 2), stretch_edges(0, 2))
    assert halves.tolist() == pytest.approx([1, (0.5 * 1 + 3) / 1.5])
    for steps in (100, 1530, 4000):
        pieces = np.array_split(np.arange(steps), 100)
        begins = np.round(steps * stretch_edges(steps, 100)[:-1]).astype(int)
        assert begins.tolist() == [piece[0] for piece in pieces]


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
