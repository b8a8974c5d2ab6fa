"""A best whose neighbour left no result is none that a search has found."""

import math
from dataclasses import replace

import pytest

from sweeper.sweep.base_search import without_result
from sweeper.trial import Axis, Log2Hps, Result
from tests.engine.tiny_trials import trial


def result(eta: float, status: str = "complete", seed: int = 0, alpha: float = 0.0) -> Result:
    made = trial(seed=seed, eta=eta, alpha_attn=alpha)
    loss = math.nan if status == "failed" else eta**2
    return Result(trial=made, status=status, objective=loss)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([result(1, "failed")], [1.0]),
        ([result(1, "failed"), result(2, "failed"), result(-1)], [1.0]),
        ([result(1, "failed"), result(-1, "failed")], [-1.0, 1.0]),
        # What lies behind a trial with a result is no neighbour, nor what another seed settled.
        ([result(1), result(2, "failed")], []),
        ([result(1, "failed"), result(1, seed=1)], []),
        ([result(1, "diverged"), result(2, "failed")], []),
        ([result(1, "failed", alpha=1.0)], []),
        ([result(0, "failed", seed=1)], []),
    ],
)
def test_the_best_s_neighbours_without_a_result(others: list[Result], found: list[float]) -> None:
    best = result(0.0)
    lacking = without_result([best, *others], best.trial.log2_hps, {})
    assert sorted(each.trial.log2_hps[name] for name, each in lacking) == found


def test_of_choices_those_of_the_best_count() -> None:
    space = {"kind": Axis(low=0, high=1, default=0, choices=("plain", "bad"))}
    best = Log2Hps({**result(0.0).trial.log2_hps, "kind": 0.0})

    def chosen(eta: float, kind: str) -> Result:
        failed = result(eta, "failed")
        return replace(failed, trial=replace(failed.trial, choices={"kind": kind}))

    assert without_result([chosen(1, "bad"), chosen(0, "bad")], best, space) == []
    ((name, found),) = without_result([chosen(1, "bad"), chosen(2, "plain")], best, space)
    assert (name, found.trial.log2_hps["eta"]) == ("eta", 2)
