from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.report.progress import TrialSeconds, at_once
from sweeper.trial import Result, Trial
from tests.report.test_progress import Clock, clock, trials, watch

__all__ = ["clock"]


def took(trial: Trial, seconds: float, status: str = "complete") -> Result:
    return Result(trial=trial, status=status, objective=2.0, seconds=seconds)  # type: ignore[arg-type]


def learned(**by_width: float) -> TrialSeconds:
    """From a run of each width, of whose square its work is: w2=3.0 took 3 seconds."""
    results = [took(trials(1, width=int(key[1:]))[0], value) for key, value in by_width.items()]
    return TrialSeconds(lambda trial: float(trial.width**2), results)


def seconds_at(width: int, **by_width: float) -> float:
    return learned(**by_width).of(trials(1, width=width)[0])


def test_a_size_takes_the_median_of_its_runs() -> None:
    found, batch = learned(w2=3.0), trials(4, width=2)
    assert not learned() and math.isnan(learned().of(batch[0]))
    found.add(took(batch[1], 4.0))
    found.add(took(batch[2], 90.0))
    found.add(took(batch[3], 0.1, "diverged"))
    assert found.of(batch[3]) == 4.0


def test_another_size_goes_by_a_power_of_its_work() -> None:
    assert seconds_at(4, w2=3.0) == pytest.approx(6.0)
    assert seconds_at(8, w2=3.0, w4=3.0) == pytest.approx(3.0)
    assert seconds_at(8, w2=3.0, w4=24.0) == pytest.approx(96.0), "no faster than its work"
    assert seconds_at(4, w2=3.0, w8=12.0) == pytest.approx(6.0)


def test_the_time_left_of_commands_is_that_of_finished_runs(tmp_path: Path, clock: Clock) -> None:
    """Two at a time: work of width^2 would say 40 minutes of what takes half a minute."""
    small, large = trials(4), trials(4, width=16)
    monitor = watch(tmp_path, planned=8)
    monitor._seconds = TrialSeconds(lambda trial: float(trial.width**2), [took(large[0], 8.0)])
    with monitor:
        monitor.proposed(0, [*small, *large])
        for first, second in ((0, 1), (2, 3)):
            clock.now += 4
            monitor.finished(took(small[first], 4.0))
            monitor.finished(took(small[second], 4.0))
        assert monitor.snapshot.left == pytest.approx(16.0)
        clock.now += 6
        monitor.advanced(0.1)
        assert monitor.snapshot.left == pytest.approx(10.0)


def test_how_many_ran_at_once_is_read_off_their_ends() -> None:
    batch = trials(5)
    pairs = zip(batch, (4.0, 4.0, 8.0, 8.0, 100.0), strict=True)
    ended = [replace(took(trial, 4.0), finished_at=at) for trial, at in pairs]
    assert at_once(ended) == pytest.approx(20 / 12)
    assert at_once([]) == at_once(ended[:1]) == 1.0
