"""Batches of equal parts, and a size that is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sweeper.engine import jobs
from sweeper.engine.batched import BatchedTrials
from tests.engine.tiny_trials import corpus, trial


@given(st.integers(0, 200), st.integers(1, 50))
def test_parts_cover_everything_once_and_evenly(count: int, size: int) -> None:
    parts = [list(range(count))[part] for part in jobs.split(range(count), size)]
    assert [index for part in parts for index in part] == list(range(count))
    assert all(0 < len(part) <= size for part in parts)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


def chosen(
    times: dict[int, float],
    count: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> jobs.MeasuredSize:
    """The measured size when a step of K trials takes `times[K]`; memory ends where they do."""

    def seconds(batched: BatchedTrials, device: str, **_: object) -> float:
        if len(batched.trials) not in times:
            raise torch.OutOfMemoryError
        return times[len(batched.trials)]

    monkeypatch.setattr(jobs, "step_seconds", seconds)
    trials = tuple(trial(seed=i) for i in range(count))
    return jobs.measure_size(BatchedTrials(trials=trials, corpus=corpus(folder)), "cpu")


@pytest.mark.parametrize(
    ("times", "count", "size", "more"),
    [
        ({1: 1.0, 2: 1.1, 4: 1.2, 8: 9.0}, 9, 4, False),
        ({1: 1.0, 2: 2.0, 4: 4.0}, 9, 1, False),
        ({1: 1.0, 2: 1.1, 4: 1.2}, 4, 4, True),
        ({1: 1.0, 2: 1.1}, 9, 2, False),
        ({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.6, 9: 1.79}, 9, 9, True),
        ({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.6, 9: 1.9}, 9, 8, False),
    ],
    ids=[
        "stops where it no longer pays",
        "no gain",
        "too few trials to tell",
        "out of memory",
        "nine are one batch",
        "nine are slower than eight",
    ],
)
def test_measured_size(
    times: dict[int, float],
    count: int,
    size: int,
    more: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = chosen(times, count, tmp_path, monkeypatch)
    assert (measured.size, measured.limited_by_trials) == (size, more)
    assert measured.seconds == pytest.approx(times[size] / size)


def test_a_step_takes_time(tmp_path: Path) -> None:
    assert jobs.step_seconds(BatchedTrials(trials=(trial(),), corpus=corpus(tmp_path)), "cpu") > 0
