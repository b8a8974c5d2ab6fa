import math
from dataclasses import replace

from sweeper.search.strategy import (
    Combination,
    History,
    best_result,
    chosen_axes,
)
from sweeper.trial import Axis, Log2Hps, Point, hps_key
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.search.fakes import point_result

SPACE = {name: Axis(low=-1, high=1) for name in ("alpha", "eta", "beta")}


def point(value: float, seed: int = 0) -> Point:
    return Point(log2_hps={"eta": value}, seed=seed, phase="p")


def test_points_that_differ_by_rounding_alone_are_one() -> None:
    history = History([point_result(point(0.1 + 0.2), 2.0)])
    assert point(0.3) in history and point(0.3, seed=1) not in history
    assert history.value({"eta": 0.3}, 0) == 2.0
    assert hps_key({"a": -1e-12, "b": 1}) == hps_key({"b": 1.0, "a": 0.0})
    assert hps_key({"a": 2.0**-6}) != hps_key({"a": 0.0})


def test_history_means_over_seeds_or_says_that_one_is_missing() -> None:
    history = History([point_result(point(0, seed), float(seed)) for seed in range(3)])
    assert history.mean({"eta": 0.0}, range(3)) == 1.0
    assert history.mean({"eta": 0.0}, range(4)) is None
    assert history.mean({"eta": 1.0}, range(1)) is None
    # With a run that was stopped early it is worse than any, however good that looked.
    stopped = replace(point_result(point(0, 3), 0.1), status="pruned")
    history.add(stopped)
    assert history.mean({"eta": 0.0}, range(4)) == math.inf
    assert history.stopped({"eta": 0.0}) and best_result(history).objective == 0.0


def test_a_failed_trial_counts_as_infinite_everywhere() -> None:
    failed, diverged = point_result(point(0), math.nan), point_result(point(1), math.inf)
    history = History([failed])
    assert best_result(history).objective == math.inf
    assert best_result(history).status == "failed"
    history.add(diverged)
    history.add(point_result(point(2), 5.0))
    assert history.value({"eta": 0.0}, 0) == math.inf
    assert [r.objective for r in history.results] == [math.inf, math.inf, 5.0]
    assert best_result(history).trial.log2_hps == {"eta": 2}
    history.add(point_result(point(1), 5.0))
    assert best_result(history).trial.log2_hps == {"eta": 2}, "of equals the first"


def test_chosen_axes_begin_with_eta() -> None:
    assert chosen_axes(SPACE, None) == ["eta", "alpha", "beta"]
    assert chosen_axes(SPACE, ("beta", "eta")) == ["eta", "beta"]
    assert chosen_axes(SPACE, ()) == []
    with raises_config_error("axes", "alhpa"):
        chosen_axes(SPACE, ("alhpa",))


def test_what_is_said_of_combining(golden: Golden) -> None:
    def summary(difference: float, error: float, single: float = 0.0) -> str:
        return Combination(
            combined_log2=Log2Hps({"eta": 0.1 + 0.2}),
            single_log2=Log2Hps({"eta": single}),
            combined_objectives=(1.0,),
            single_objectives=(1.0,),
            difference=difference,
            error=error,
        ).summary

    inf, nan = math.inf, math.nan
    clear = [(-0.1, 0.01), (0.1, 0.01), (0.02, 0.01), (0.0, 0.0), (-0.1, nan)]
    diverged = [(inf, nan), (-inf, nan), (nan, nan)]
    golden.says("\n".join([*(summary(*each) for each in clear + diverged), summary(0, 0, 0.3)]))
