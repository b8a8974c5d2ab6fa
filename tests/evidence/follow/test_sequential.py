"""The test over time: its rate of false alarms, what it finds, and the forecast of the end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.evidence.follow.sequential import Sequence
from sweeper.stats.power_law import Array
from tests.evidence.made import prediction


def sequence() -> Sequence:
    made = prediction()
    assert made.band is not None and made.prediction is not None
    said = made.prediction
    return Sequence(made.band, (math.log(said.loss), math.log(said.high / said.low) / 3.92))


def drawn(count: int) -> Array:
    """Log losses of runs of the band's own law [count, stretches]."""
    known = sequence()
    whole = known.smooth + np.diag(known.white + known.rough)
    random = np.random.default_rng(0).standard_normal((count, len(whole)))
    found: Array = known.mean + random @ np.linalg.cholesky(whole).T
    return found


def filled(logs: Array, *, leave: frozenset[int] = frozenset()) -> Sequence:
    made = sequence()
    for stretch in range(made.first, len(logs)):
        if stretch not in leave:
            made.add(stretch, float(logs[stretch]))
    return made


def test_innovations_are_those_of_the_whole_covariance() -> None:
    """By a decomposition of the whole matrix at once, gaps left out."""
    logs, leave = drawn(1)[0], frozenset({20, 21, 50})
    made = filled(logs, leave=leave)
    seen = np.array([i for i in range(made.first, 100) if i not in leave])
    whole = (made.smooth + np.diag(made.white + made.rough))[np.ix_(seen, seen)]
    expected = np.linalg.solve(np.linalg.cholesky(whole), (logs - made.mean)[seen])
    assert made.raw[: made.seen] == pytest.approx(expected, abs=1e-6)


def test_the_forecast_is_the_conditional_distribution() -> None:
    logs = drawn(1)[0]
    made = sequence()
    seen = np.arange(made.first, 60)
    for stretch in seen:
        made.add(int(stretch), float(logs[stretch]))
    whole = made.smooth + np.diag(made.white + made.rough)
    cross = (whole @ made.weights)[seen]
    solved = np.linalg.solve(
        whole[np.ix_(seen, seen)], np.stack([cross, (logs - made.mean)[seen]]).T
    )
    mean = made.end_mean + cross @ solved[:, 1]
    variance = made.weights @ whole @ made.weights - cross @ solved[:, 0]
    # A change that may yet be is a hundredth of it.
    assert made.forecast().mean == pytest.approx(mean, abs=0.2 * math.sqrt(variance))
    assert made.forecast().deviation == pytest.approx(math.sqrt(variance), rel=0.25)


def test_alarms_are_as_rare_as_is_said() -> None:
    most = np.array([max(filled(logs).evidence) for logs in drawn(200)])
    for alarm in (0.01, 0.1):
        assert np.mean(most > math.log(1 / alarm)) <= alarm + 3 * math.sqrt(alarm / 200)


def test_the_mixture_is_a_martingale() -> None:
    """Its mean stays 1 on the band; heavy tails of the mean make it hard to see late."""
    early = [math.exp(filled(logs[:30]).evidence[-1]) for logs in drawn(300)]
    assert np.mean(early) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("form", ["jump", "eta", "drift"])
def test_a_change_is_found_its_form_and_its_begin(form: str) -> None:
    logs, made = drawn(3), sequence()
    place = ["jump", "eta", "drift"].index(form) * (100 - made.first) + 40 - made.first
    for run in logs:
        found = filled(run + 0.06 * made.shapes[:, place])
        assert found.evidence[-1] > math.log(1e4)
        finding = found.finding()
        assert finding.form == form
        assert abs(finding.since - 40) <= 10
        assert finding.size > 0


def test_the_end_is_forecast_better_and_better_and_held() -> None:
    runs, inside, widths = drawn(200), [], []
    for logs in runs:
        made = filled(logs[:75])
        end = made.weights @ logs
        forecast = made.forecast()
        inside.append(abs(end - forecast.mean) < 2.06 * forecast.deviation)
        widths.append(forecast.deviation)
    assert 0.9 <= np.mean(inside) <= 0.995
    assert np.median(widths) < 0.8 * math.sqrt(sequence().end_variance)


def test_stretches_that_are_taken_back_leave_no_trace() -> None:
    logs, again = drawn(2)
    made = filled(logs)
    made.cut(30)
    for stretch in range(made.first + 30, 100):
        made.add(stretch, float(again[stretch]))
    joined = np.concatenate([logs[: made.first + 30], again[made.first + 30 :]])
    fresh = filled(joined)
    assert made.evidence == pytest.approx(fresh.evidence)
    assert made.forecast().mean == pytest.approx(fresh.forecast().mean)
