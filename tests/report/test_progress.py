"""The bar, the file, and how long work will still take."""

import io
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sweeper.report import progress
from sweeper.report.progress import EARLIEST, Pace, SweepProgress
from sweeper.table import duration
from sweeper.trial import Result, Trial
from tests.specs import spec_of


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(progress.time, "monotonic", found)
        patch.setattr(progress.time, "time", found)
        yield found


def trials(count: int, phase: str = "eta", width: int = 1) -> list[Trial]:
    tree = {"model": {"width": width, "depth": 1}}
    return [
        Trial(spec=spec_of(tree), log2_hps={"eta": 1.0}, seed=i, phase=phase) for i in range(count)
    ]


def result(trial: Trial, objective: float = 2.0, status: Any = "complete") -> Result:
    return Result(trial=trial, status=status, objective=objective)


def watch(folder: Path, *, planned: int = 4, terminal: bool = False) -> SweepProgress:
    """A monitor for which a trial of width w is w units of work."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=30, color_system=None)
    work = lambda trial: float(trial.width)  # noqa: E731
    return SweepProgress(folder, console, "search", planned=planned, work=work)


def said(monitor: SweepProgress) -> str:
    assert isinstance(monitor.console.file, io.StringIO)
    return monitor.console.file.getvalue()


def kept(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    return found


def test_says_nothing_before_there_is_work(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path) as monitor:
        assert said(monitor) == ""


def test_counts_and_the_best_so_far(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path) as monitor:
        batch = trials(4)
        monitor.proposed(2, batch)
        monitor.finished(result(batch[0], 3.0))
        monitor.finished(result(batch[1], math.inf, "diverged"))
        monitor.finished(result(batch[2], math.nan, "failed"))
        monitor.finished(result(batch[3], 2.5))
        assert monitor.facts().startswith("6/6 trials, best 2.5000, 1 diverged, 1 failed")
    record = kept(tmp_path)
    assert (record["done"], record["total"], record["trained"]) == (6, 6, 4)
    assert (record["best"], record["failed"], record["diverged"]) == (2.5, 1, 1)


def test_the_total_is_what_was_planned_until_more_is_known(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path, planned=10) as monitor:
        monitor.proposed(0, trials(4))
        assert monitor.snapshot.total == 10
        monitor.proposed(9, trials(3))
        assert monitor.snapshot.total == 12


def test_time_left_weighs_trials_by_their_work(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path, planned=2) as monitor:
        small, large = trials(1)[0], trials(1, width=9)[0]
        monitor.proposed(0, [small, large])
        assert monitor.snapshot.left is None
        clock.now += 10
        monitor.finished(result(small))
        assert monitor.snapshot.left == pytest.approx(90.0)
        clock.now += 90
        monitor.finished(result(large))
        assert monitor.snapshot.left == pytest.approx(0.0)


def test_work_not_yet_proposed_counts_too(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path, planned=10) as monitor:
        batch = trials(2)
        monitor.proposed(0, batch)
        clock.now += 5
        monitor.finished(result(batch[0]))
        assert monitor.snapshot.left == pytest.approx(45.0)


def test_parts_of_a_batch_count_and_may_be_taken_back(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path) as monitor:
        batch = trials(4)
        monitor.proposed(0, batch)
        clock.now += 10
        monitor.advanced(2.0)
        assert monitor.snapshot.left == pytest.approx(10.0) and monitor.snapshot.done == 0
        monitor.advanced(-2.0)
        assert monitor.snapshot.left is None
        for trial in batch:
            monitor.finished(result(trial))
        assert monitor.snapshot.left == pytest.approx(0.0)


def test_lines_where_there_is_no_terminal(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path) as monitor:
        batch = trials(3)
        monitor.proposed(0, batch)
        monitor.finished(result(batch[0]))
        assert said(monitor) == "search: eta: 0/4 trials\n", "a line now and then is enough"
        clock.now += 20
        monitor.finished(result(batch[1]))
        monitor.proposed(2, trials(1, "lines"))
        assert said(monitor).count("\n") == 1, "nor is a new phase worth one"
        clock.now += 40
        monitor.finished(result(trials(1, "lines")[0]))
        last = said(monitor).splitlines()[-1]
        assert last == "search: lines: 3/4 trials, best 2.0000, about 39 s left", "in one line"
        clock.now += 60
        monitor.proposed(3, trials(1, "search"))
        assert said(monitor).splitlines()[-1].startswith("search: 3/4"), "not search: search"


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    with watch(tmp_path, terminal=True) as monitor:
        monitor.proposed(0, trials(4))
        assert monitor._bar.tasks[0].description == "search: eta"
        monitor.finished(result(trials(1)[0]))
        assert monitor._bar.tasks[0].completed == 0.25
        monitor.advanced(100.0)
        assert monitor._bar.tasks[0].completed == 1.0


def test_the_file_is_written_once_a_second_and_at_the_end(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path) as monitor:
        batch = trials(4)
        monitor.proposed(0, batch)
        assert kept(tmp_path)["done"] == 0
        monitor.finished(result(batch[0]))
        assert kept(tmp_path)["done"] == 0
        clock.now += 1.5
        monitor.finished(result(batch[1]))
        assert kept(tmp_path)["done"] == 2
        monitor.finished(result(batch[2]))
    record = kept(tmp_path)
    assert record["done"] == 3 and record["updated"] == clock.now
    assert record["best"] == 2.0 and record["phase"] == "eta" and record["job"] == "search"


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    with watch(tmp_path / "nope") as monitor:
        monitor.proposed(0, trials(1))
    with pytest.raises(KeyboardInterrupt), watch(tmp_path):
        raise KeyboardInterrupt
    assert kept(tmp_path)["best"] == "inf"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (599, "9 min 59 s"),
        (600, "10 min"),
        (3599, "59 min"),
        (7500, "2 h 5 min"),
        (47 * 3600, "47 h 0 min"),
        (76 * 3600, "3 d 4 h"),
        (1e12, "11574074 d 1 h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# The pace.


@given(st.floats(0.01, 1e6), st.floats(0.001, 100.0), st.integers(6, 60))
def test_a_steady_pace_is_told_exactly(seconds: float, unit: float, moments: int) -> None:
    pace, total = Pace(100.0), 100 * unit
    step = max(seconds, EARLIEST)
    for k in range(1, moments):
        left = pace.left(100.0 + k * step, k * unit, total - k * unit)
        assert left == pytest.approx((100 - k) * step, rel=1e-6)


def test_nothing_is_said_before_anything_is_known() -> None:
    pace = Pace(0.0)
    assert pace.left(1.0, 0.0, 10.0) is None
    assert pace.left(EARLIEST / 2, 1.0, 9.0) is None
    assert pace.left(EARLIEST, 2.0, 8.0) is not None
    assert pace.left(EARLIEST + 1, 0.0, 10.0) is None, "what was begun was lost"


def test_all_done_is_no_time_left() -> None:
    assert Pace(0.0).left(0.0, 3.0, 0.0) == 0.0


def test_a_slow_start_is_forgotten_and_never_jumps() -> None:
    """A minute of compiling, then a trial a second of 600: the truth is known from then on."""
    pace, told = Pace(0.0), []
    for second in range(1, 600):
        left = pace.left(60.0 + second, float(second), 600.0 - second)
        assert left is not None
        told.append(left)
    jumps = [abs(after - before + 1) for before, after in pairwise(told)]
    assert told[0] > 10_000, "nothing better is known at first"
    assert max(jumps[120:]) < 10, "seconds, from one second to the next"
    for second in range(180, 599):
        assert told[second - 1] == pytest.approx(600 - second, abs=30.0)


def test_a_change_of_pace_is_followed() -> None:
    pace = Pace(0.0)
    for second in range(1, 101):
        pace.left(float(second), float(second), 1000.0 - second)
    done = 100.0
    for second in range(101, 801):
        done += 0.5
        left = pace.left(float(second), done, 1000.0 - done)
    assert left == pytest.approx((1000.0 - done) / 0.5, rel=0.1)
