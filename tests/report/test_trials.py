"""Pictures of a search's trials, which are Optuna's own."""

import math
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib
import pytest
from matplotlib import pyplot

from sweeper.report.drawing import svg
from sweeper.report.optuna import (
    LEAST_TRIALS,
    MOST_DRAWN,
    MOST_TRIALS,
    search_pictures,
    tried_together,
    varied,
)
from sweeper.trial import Log2Hps, Result, Trial
from tests.layout import without_layout
from tests.specs import spec_of

SPEC = spec_of({"model": {"width": 32, "depth": 2}})


def placed(points: list[dict[str, float]], losses: list[float], **changes: Any) -> list[Result]:
    result = []
    for log2, loss in zip(points, losses, strict=True):
        trial = Trial(spec=SPEC, log2_hps=Log2Hps(log2), seed=0, **changes)
        status: Any = "complete" if math.isfinite(loss) else "diverged"
        result.append(Result(trial=trial, status=status, objective=loss))
    return result


def results(count: int, names: tuple[str, ...], diverged: int = 0, **changes: Any) -> list[Result]:
    chance = random.Random(0)
    points = [{name: chance.uniform(-4, 4) for name in names} for _ in range(count)]
    values = [[*point.values(), 0.0] for point in points]
    losses = [
        math.inf if number < diverged else 3 + x * x + 0.2 * y * y
        for number, (x, y, *_) in enumerate(values)
    ]
    return placed(points, losses, **changes)


@pytest.fixture(autouse=True)
def no_layout() -> Iterator[None]:
    with without_layout():
        yield


def test_what_optuna_draws_of_a_search() -> None:
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = search_pictures(results(60, ("eta", "alpha", "beta", "gamma"), diverged=5), {})
    assert [*made] == ["history", "importance", "slices-0", "slices-3", "parallel", "contours"]
    importance = svg(made["importance"])
    assert importance.index(">alpha<") != importance.index(">eta<")
    assert all(">eta<" in svg(made[name]) for name in ("slices-0", "parallel"))
    assert pyplot.get_fignums() == [] and dict(matplotlib.rcParams) == before


def test_few_trials_have_no_importance_and_none_no_pictures() -> None:
    made = search_pictures(results(LEAST_TRIALS - 1, ("eta", "alpha")), {})
    assert [*made] == ["history", "slices-0", "parallel", "contours"]
    assert search_pictures([], {}) == {} == search_pictures(results(1, ("eta",)), {})
    alike = placed([{"eta": n / 2.0} for n in range(5)], [3.0] * 5)
    assert search_pictures(alike, {}) == {}
    failed = [replace(each, objective=math.nan) for each in results(30, ("eta", "alpha"))]
    assert search_pictures(failed, {}) == {}


def test_the_hyperparameters_that_matter_most_are_drawn_and_trials_evenly() -> None:
    names = ("eta", *(f"a{number}" for number in range(9)))
    many = search_pictures(results(MOST_TRIALS + 10, names), {})
    slices = [name for name in many if name.startswith("slices")]
    assert len(slices) == MOST_DRAWN // 3 and ">eta<" in svg(many["slices-0"])


def test_choices_are_drawn_by_their_names() -> None:
    trials = [
        replace(each, trial=replace(each.trial, choices={"act": ("relu", "gelu")[n % 2]}))
        for n, each in enumerate(results(24, ("eta",)))
    ]
    assert varied(trials) == ["eta", "act"] and tried_together(trials) is None
    made = search_pictures(trials, {})
    assert "gelu" in svg(made["parallel"]) and "gelu" in svg(made["slices-0"])


def test_contours_take_two_hyperparameters_that_were_tried_together() -> None:
    assert tried_together(results(30, ("eta", "alpha"))) == ("eta", "alpha")
    cross = [{"eta": n / 2, "alpha": 0.0} for n in range(20)]
    cross += [{"eta": 0.0, "alpha": n / 2} for n in range(20)]
    assert tried_together(placed(cross, [3.0 + n for n in range(40)])) is None
    line = [{"eta": n / 2, "alpha": float(n)} for n in range(20)]
    assert tried_together(placed(line, [3.0 + n for n in range(20)])) is None


def test_a_value_that_no_range_holds_is_left_out() -> None:
    odd = placed([{"eta": -1080.0, "alpha": 0.0}], [2.0])
    assert "parallel" in search_pictures([*results(30, ("eta", "alpha")), *odd], {})
