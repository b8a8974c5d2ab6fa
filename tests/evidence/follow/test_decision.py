import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.errors import BadInput, ConfigError
from sweeper.evidence.follow.decision import Seen, Watch, cusum, innovations, judged, worth
from sweeper.evidence.follow.page import code_of, compute_text, presented, said_of
from sweeper.evidence.follow.reading import Stretches, read_prediction
from sweeper.evidence.follow.verb import FollowAnswer
from sweeper.report.sections import tone_of
from sweeper.stats.power_law import Array
from tests.evidence.made import STEPS, TARGET, middle, prediction, run
from tests.refusals import raises_config_error


def watched(losses: Array, watch: Watch | None = None, *, every: int = 1) -> Watch:
    watch = Watch(prediction()) if watch is None else watch
    *steps, last = range(0, len(losses), every)
    for step in steps:
        watch.readings.take(step, float(losses[step]))
    watch.update(last, float(losses[last]))
    watch.seen = watch.look()
    return watch


def sick(seed: int, factor: Array) -> Seen:
    return watched(run(seed) * factor).seen


BEHIND = np.arange(STEPS) >= STEPS // 3


def drawn(count: int) -> Array:
    course = Watch(prediction()).course
    whole = course.smooth + np.diag(course.white + course.rough)
    random = np.random.default_rng(0)
    return random.multivariate_normal(np.zeros(len(whole)), whole, count)[:, course.first :]


def test_innovations_are_independent_and_alarms_as_rare_as_is_said() -> None:
    course, alarms = Watch(prediction(), alarm=0.1).course, 0
    inner = slice(course.first, None)
    whole = (course.smooth + np.diag(course.white + course.rough))[inner, inner]
    result = []
    for off in drawn(300):
        errors, scales = innovations(whole, off, course.freedom)
        result.append(errors)
        alarms += cusum(errors / scales, course)[1] is not None
    correlation = np.corrcoef(np.array(result).T)
    assert np.abs(correlation[np.triu_indices(len(whole), 1)]).mean() < 0.07
    assert np.std(result) == pytest.approx(1, abs=0.05)
    assert alarms <= 30


def test_the_end_is_scaled_by_what_was_seen_and_held() -> None:
    course, inside = Watch(prediction()).course, 0
    at = np.arange(course.first, 75)
    seen = Stretches(at, np.ones(len(at)), np.full(len(at), 10.0), at + 0.5)
    weights = course.weights[course.first :]
    for off in drawn(200):
        made = judged(course, seen, off[: len(at)])
        inside += abs(made.end - course.end_mean - weights @ off) < made.half
    assert 0.92 <= inside / 200 <= 0.995


def test_runs_on_course_stay_on_the_band_and_end_as_is_said() -> None:
    for seed in range(100, 103):
        losses, watch, forecasts = run(seed), Watch(prediction()), []
        for step, loss in enumerate(losses.tolist()):
            forecasts.append(watch.update(step, loss).forecast)
        seen, end = watch.seen, losses[-STEPS // 10 :].mean()
        assert (seen.state, seen.since, watch.error) == ("on the band", None, "")
        assert seen.ended and seen.end == pytest.approx(end) and seen.averaged == 100
        assert seen.last == losses[-1] and seen.evidence < seen.alarm_at
        half = forecasts[STEPS // 2]
        assert half.low < end < half.high
        # At the end nothing is forecast: the reading stands there.
        assert (seen.forecast.low, seen.forecast.value, seen.forecast.high) == (seen.end,) * 3


@pytest.mark.parametrize(("change", "state"), [(0.06, "above"), (-0.06, "below")])
def test_a_jump_is_seen_soon_and_the_end_has_it(change: float, state: str) -> None:
    watch, losses = Watch(prediction()), run(101) * np.exp(change * BEHIND)
    first = next(step for step, x in enumerate(losses.tolist()) if watch.update(step, x).off)
    assert STEPS // 3 < first < STEPS // 3 + 80
    seen = sick(101, np.exp(change * BEHIND))
    assert seen.state == state and seen.evidence >= seen.alarm_at
    assert seen.since == pytest.approx(STEPS // 3, abs=20)
    assert (seen.compute.value < 0.95) == (state == "above")
    shifted = watched((run(101) * np.exp(change * BEHIND))[: STEPS // 2]).seen
    assert shifted.forecast.low < seen.end < shifted.forecast.high  # type: ignore[operator]


def test_a_spike_that_returns_is_no_alarm() -> None:
    for length in (1, 4, 12):
        factor = np.ones(STEPS)
        factor[500 : 500 + length] = 1.5
        assert sick(104, factor).state == "on the band"


def test_a_log_of_every_tenth_step_whose_noise_has_long_tails_is_on_course() -> None:
    """Of a single reading a stretch, with noise that is no Gaussian: one of twenty at most."""
    off = 0
    for seed in range(20):
        noise = np.random.default_rng(seed).standard_t(3, STEPS) / math.sqrt(3)
        losses = np.exp(middle(TARGET) + 0.02 * noise)
        off += watched(losses, Watch(prediction(), alarm=0.05), every=10).finish().off
    assert off <= 3


def test_it_says_not_enough_before_the_warm_up_is_over() -> None:
    watch = watched(run(100)[: STEPS // 10])
    assert watch.seen.state == "not enough yet"
    assert watch.seen.forecast == watch.predicted


def test_a_run_diverges_by_its_numbers_or_by_its_height() -> None:
    losses = run(106)
    losses[600:] = math.nan
    watch = watched(losses[:602])
    assert watch.seen.state == "on the band"
    seen = watch.update(602, math.nan)
    assert (seen.state, seen.since) == ("diverged", 600)
    high = run(106) * np.where(BEHIND, 3.0, 1.0)
    assert watched(high).seen.state == "diverged"


def test_a_single_nan_is_passed_over() -> None:
    losses = run(107)
    losses[[300, 400]] = math.nan
    watch = watched(losses)
    assert watch.seen.state == "on the band"
    assert [event.step for event in watch.seen.events] == [300, 400]


def test_a_resumed_run_is_what_it_went_on_with() -> None:
    """Steps go back behind a bad stretch: the alarm is taken back, the numbers are the same."""
    losses, bad = run(108), run(108) * np.exp(0.1 * BEHIND)
    watch = watched(bad[:500])
    assert watch.seen.state == "above"
    for step in range(300, STEPS):
        watch.update(step, float(losses[step]))
    expected = watched(np.concatenate([bad[:300], losses[300:]]))
    assert watch.seen.state == "on the band"
    assert watch.seen.forecast == expected.seen.forecast
    assert [event.kind for event in watch.seen.events if event.kind == "resumed"] == ["resumed"]
    watch.update(0, 3.0)
    assert watch.seen.state == "not enough yet"


def test_several_ranks_at_a_step_are_averaged() -> None:
    watch = Watch(prediction())
    pairs = zip(run(109).tolist(), run(110).tolist(), strict=True)
    for step, both in enumerate(pairs):
        for loss in both:
            watch.update(step, loss)
    assert watch.seen.state == "on the band"
    assert not watch.error


def test_two_runs_in_one_log_are_refused() -> None:
    watch = Watch(prediction())
    for step in range(400):
        watch.update(step, 3.0)
        watch.update(max(step - 7, 0), 3.0)
    assert "two runs" in watch.error
    assert watch.seen.state == "cannot say"


def test_a_step_beyond_the_run_is_refused_and_the_loop_goes_on() -> None:
    watch = Watch(prediction())
    watch.update(3 * STEPS, 2.0)
    assert "with steps" in watch.error
    assert watch.update(1, 2.0).state == "cannot say"


@pytest.mark.parametrize(
    ("key", "value"),
    [("alarm", 0.0), ("alarm", "often"), ("steps", 5), ("steps", "x"), ("steps", STEPS + 0.5)],
)
def test_bad_arguments_name_their_key(key: str, value: Any) -> None:
    with raises_config_error(key):
        sweeper.follow(prediction(), **{key: value})


def test_a_prediction_is_read_and_one_without_a_band_is_refused(tmp_path: Path) -> None:
    path = prediction().write(tmp_path)
    assert read_prediction(path) == prediction()
    assert sweeper.follow(path).steps == STEPS
    (tmp_path / "bare.json").write_text(replace(prediction(), band=None).text())
    (tmp_path / "other.json").write_text(json.dumps({"answer": 1}))
    (tmp_path / "torn.json").write_text("{")
    for name in ("bare", "other", "torn", "none"):
        with pytest.raises(BadInput):
            read_prediction(tmp_path / f"{name}.json")


def test_a_loss_is_worth_what_the_law_takes_for_it() -> None:
    made = prediction()
    assert worth(made, made.prediction.loss) == pytest.approx(1, abs=0.02)
    assert worth(made, 1.02 * made.prediction.loss) < 0.9
    assert worth(made, 0.98 * made.prediction.loss) > 1.1


def test_a_loss_that_is_missing_is_passed_over_and_counted() -> None:
    losses, watch = run(3), Watch(prediction())
    for step, loss in enumerate(losses.tolist()):
        watch.update(step, None if step % 7 == 3 else loss)
    assert watch.missing == sum(step % 7 == 3 for step in range(STEPS))
    assert not watch.error and not watch.finish().off


@pytest.mark.parametrize("given", [(0, "2.3"), (0, [2.3]), ("x", 2.3), (0, 2.3, "high")])
def test_what_is_no_number_is_refused_and_blinds_nothing(given: tuple[Any, ...]) -> None:
    watch = Watch(prediction())
    with pytest.raises(ConfigError):
        watch.update(*given)
    first, *_ = run(3).tolist()
    watch.update(0, first)
    seen = watch.update(*given)  # a run that is under way does not end by it
    assert watch.missing == 1 and not watch.error and seen.state == "not enough yet"


@pytest.mark.parametrize(("steps", "every"), [(200, 10), (200, 20), (STEPS, 25), (STEPS, 50)])
def test_a_rare_log_has_no_gaps_and_is_on_course(steps: int, every: int) -> None:
    for seed in range(200, 206):
        watch, losses = Watch(prediction(), steps=steps), run(seed, steps=steps)
        watched(losses, watch, every=every).update(steps - 1, float(losses[-1]))
        assert watch.finish().state == "on the band" and not watch.seen.events


def test_a_reading_at_the_begin_of_its_stretch_is_not_above_the_band() -> None:
    """In a log of every tenth step all are: the loss falls by the noise within a stretch."""
    means = []
    for every in (1, 10):
        logs = [watched(run(seed), every=every) for seed in range(210, 218)]
        offs = [watch.course.off(watch.readings.stretches(), STEPS) for watch in logs]
        # Where it falls most, behind the warm-up.
        means.append(np.mean([off[10:25].mean() for off in offs]))
    assert means[1] == pytest.approx(means[0], abs=0.005)


def test_a_run_without_losses_is_off_since_its_last_one() -> None:
    watch = watched(run(4)[:500])
    watch.silent = True
    seen = watch.look()
    assert (seen.state, seen.since, seen.off) == ("no loss", 499, True)
    assert seen.compute.value == 0


def test_beyond_the_law_a_worth_is_a_bound_and_an_unsaid_prediction_is_not_green() -> None:
    made = prediction()
    least, most = watched(run(5)).seen.reach
    assert worth(made, 0.5 * made.prediction.loss) == most < 2
    assert 0 < worth(made, 9 * made.prediction.loss) == least < 1
    unsaid = replace(made, reasons=("nobody knows",), answer="cannot say yet")
    watch = watched(run(6)[:500], Watch(unsaid))
    assert watch.seen.state == "on the band" and code_of(watch.seen) == "cannot say yet"
    far = replace(watch.seen, compute=replace(watch.seen.compute, value=most, high=most))
    assert "at least" in compute_text(far)


@pytest.mark.parametrize(
    ("seen", "change", "tone", "said"),
    [
        (0, 0.0, "open", "Not enough yet"),
        (700, 0.08, "bad", "Above the band since about step 300"),
    ],
)
def test_the_page_draws_what_is_seen(
    seen: int, change: float, tone: str, said: str, tmp_path: Path
) -> None:
    losses = run(7) * np.exp(change * (np.arange(1000) >= 300))
    watch = watched(losses[:seen]) if seen else Watch(prediction())
    answer = said_of(watch.look())
    assert answer.startswith(said)
    assert tone_of(code_of(watch.seen)) == tone
    answers = FollowAnswer(watch=watch, seen=watch.seen, folder=tmp_path)
    places = presented(answers).places
    page = Path(str(places["page"])).read_text()
    assert said in page and "<svg" in page
    assert Path(str(places["figure"])).stat().st_size > 10_000
