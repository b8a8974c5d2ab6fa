"""Figures of a search's trials, and which hyperparameters matter."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from sweeper.report.drawing import svg
from sweeper.report.trials import (
    MOST_AXES,
    MOST_LINES,
    Importance,
    contour_figure,
    contoured,
    drawn_of,
    hidden_note,
    importance,
    importance_figure,
    parallel_figure,
    searched_axes,
    slices_figure,
)
from sweeper.trial import Log2Hps, Result, Trial
from tests.layout import without_layout
from tests.report import samples
from tests.specs import spec_of

SPEC = spec_of({"model": {"width": 32, "depth": 2}})


def results(count: int, names: tuple[str, ...], diverged: int = 0, **changes: Any) -> list[Result]:
    """The first hyperparameter matters, the second a little, no other."""
    chance, found = random.Random(0), []
    for number in range(count):
        log2 = Log2Hps({name: chance.uniform(-4, 4) for name in names})
        x, y, *_ = [*log2.values(), 0.0]
        trial = Trial(spec=SPEC, log2_hps=log2, seed=0, **changes)
        loss = math.inf if number < diverged else 3 + x * x + 0.2 * y * y
        status: Any = "diverged" if number < diverged else "complete"
        found.append(Result(trial=trial, status=status, objective=loss))
    return found


def test_many_trials_are_drawn_in_part_and_that_is_said() -> None:
    trials = results(400, ("eta", "alpha"), diverged=25)
    drawn = drawn_of(trials)
    assert len(drawn) <= MOST_LINES
    best = sorted(trials, key=lambda trial: trial.objective)[:50]
    assert {trial.key for trial in best} <= {trial.key for trial in drawn}
    assert any(math.isinf(trial.objective) for trial in drawn)
    assert hidden_note(trials) == (f"Drawn are {len(drawn)} of 400 trials, the best among them.")
    text = svg(parallel_figure(trials))
    assert ">diverged<" in text and "eta 2^" in text


def test_contours_take_two_hyperparameters_that_were_tried_together() -> None:
    trials = results(60, ("eta", "alpha", "sigma"), diverged=4)
    pair = contoured(trials)
    assert pair is not None and len({axis.name for axis in pair}) == 2
    text = svg(contour_figure(trials))
    assert text.count(trials[-1].key[:10]) == 1  # a dot that is marked with its run

    def placed(points: list[tuple[float, float]]) -> list[Result]:
        found = results(len(points), ("eta", "alpha"))
        return [
            replace(r, trial=replace(r.trial, log2_hps=Log2Hps({"eta": x, "alpha": y})))
            for r, (x, y) in zip(found, points, strict=True)
        ]

    cross = [(float(n), 0.0) for n in range(9)] + [(0.0, float(n)) for n in range(1, 9)]
    assert contoured(placed(cross)) is None
    assert contoured(placed([(n / 2, float(n)) for n in range(20)])) is None  # a line


@pytest.mark.parametrize("diverged", [0, 3, 12])
def test_one_hyperparameter_or_no_finite_loss_is_no_error(diverged: int) -> None:
    trials = results(12, ("eta",), diverged=diverged)
    text = svg(slices_figure(trials))
    assert ("no finite loss" in text) == (diverged == 12)
    assert importance(None, trials) is None
    svg(parallel_figure(results(12, ("eta", "alpha"), diverged=diverged)))


def test_names_are_text() -> None:
    trials = results(8, ('a<b>&"c"', "$x_1$"))
    for figure in (parallel_figure(trials), slices_figure(trials)):
        text = svg(figure)
        assert "a&lt;b&gt;&amp;" in text and "$x_1$" in text and "<b>" not in text


def test_choices_are_axes_of_their_own() -> None:
    trials = [
        *results(10, ("eta",), choices={"activation": "relu"}),
        *results(10, ("eta",), choices={"activation": "gelu"}),
    ]
    axes = searched_axes(trials)
    assert [axis.name for axis in axes] == ["eta", "activation"]
    assert [axes[1].text(place) for place in axes[1].values] == ["relu"] * 10 + ["gelu"] * 10
    assert ">gelu<" in svg(parallel_figure(trials))


def test_of_many_hyperparameters_those_that_matter_are_drawn() -> None:
    trials = results(60, tuple(f"h{number}" for number in range(40)))
    note = hidden_note(trials)
    assert note == f"Of 40 hyperparameters the {MOST_AXES} that matter most."
    with without_layout():
        text = svg(parallel_figure(trials))
        drawn = [number for number in range(40) if f">h{number}" in text]
        assert len(drawn) == MOST_AXES and drawn[0] == 0
        svg(slices_figure(trials))


def test_many_choices_are_named_every_few() -> None:
    trials = [
        result
        for number in range(23)
        for result in results(2, ("eta",), choices={"activation": f"kind{number}"})
    ]
    text = svg(slices_figure(trials))
    named = [number for number in range(23) if f">kind{number}<" in text]
    assert 7 <= len(named) <= 8


def test_losses_that_are_all_alike_rank_nothing() -> None:
    alike = [replace(result, objective=2.0) for result in results(30, ("eta", "alpha"))]
    said = importance(None, alike)
    assert said == "Which hyperparameters matter cannot be said: all trials have the same loss."
    svg(parallel_figure(alike))


def test_what_does_not_vary_is_no_axis() -> None:
    assert searched_axes([]) == []
    assert searched_axes([samples.result(number) for number in range(4)]) == []


def test_importance_ranks_what_the_loss_depends_on_and_names_its_basis() -> None:
    found = importance(None, results(120, ("eta", "alpha", "beta"), diverged=10))
    assert isinstance(found, Importance)
    assert "PED-ANOVA" in found.basis and "120 trials, 10 diverged" in found.basis
    shares = {name: share for name, (share, _, _) in found.values.items()}
    assert max(shares, key=shares.__getitem__) == "eta"
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(low <= high for _, low, high in found.values.values())
    assert "share of the importance" in svg(importance_figure(found))


def test_importance_of_few_trials_is_not_known() -> None:
    said = importance(None, results(25, ("eta", "alpha"), diverged=10))
    assert isinstance(said, str) and "15 have one" in said


def test_importance_of_lines_is_what_a_factor_of_two_costs() -> None:
    record = samples.search()
    record["lines"] = [
        samples.line("eta", 1.0, 0.0)
        | {"points_log2": [[-1, 3.7], [0, 3.5], [1, 3.41], [2, math.inf]], "objective": 3.41},
        samples.line("alpha_attn", 0.5, 0.0)
        | {"points_log2": [[-1, 3.61], [0, 3.51], [0.5, 3.41], [2, 3.81]], "objective": 3.41},
    ]
    found = importance(samples.searched(record).conclusion, [])
    assert isinstance(found, Importance)
    costs = {name: cost for name, (cost, _, _) in found.values.items()}
    assert costs["eta"] == math.inf
    # Half way between 3.61 and 3.51, and 2/3 of the way from 3.41 to 3.81.
    assert costs["alpha_attn"] == pytest.approx((0.15 + 0.8 / 3) / 2)
    assert "∞" in svg(importance_figure(found))
