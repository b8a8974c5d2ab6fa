"""The bar, the file, and how long work will still take: what is foretold against what comes."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeper.report import progress_bar
from sweeper.report.output import Output
from sweeper.report.progress_bar import SweepProgress
from sweeper.search.fresh import FINAL_SEED
from sweeper.stats.ladder import LadderSoFar
from sweeper.study.cost import TrialSeconds
from sweeper.study.lock import StudyLock, live_holder
from sweeper.sweep.progress import RunningJob, TimeLeft, driver_progress
from sweeper.table import duration
from sweeper.trial import Result, Trial
from tests.specs import spec_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    result = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(progress_bar.time, "monotonic", result)
        patch.setattr(progress_bar.time, "time", result)
        yield result


def trials(count: int, phase: str = "eta", width: int = 1) -> list[Trial]:
    tree = {"model": {"width": width, "depth": 1}}
    return [
        Trial(spec=spec_of(tree), log2_hps={"eta": 1.0}, seed=i, phase=phase) for i in range(count)
    ]


def result(
    trial: Trial, objective: float = 2.0, status: Any = "complete", seconds: float = 0.0
) -> Result:
    return Result(trial=trial, status=status, objective=objective, seconds=seconds)


def watch(
    folder: Path,
    *,
    planned: int = 4,
    terminal: bool = False,
    rate: float | None = None,
    known: Sequence[Result] = (),
    at_once: float = 1.0,
    kept: Sequence[Result] = (),
) -> SweepProgress:
    """A monitor for which a trial of width w is w units of work."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=30, color_system=None)
    seconds = TrialSeconds(lambda trial: float(trial.width), known, rate)
    return SweepProgress(
        folder,
        Output(people=console, watchers=console),
        "search",
        planned=planned,
        time_left=TimeLeft(seconds, at_once),
        kept=kept,
    )


def said(monitor: SweepProgress) -> str:
    assert isinstance(monitor.console.file, io.StringIO)
    return monitor.console.file.getvalue()


def kept(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    return result


def test_counts_and_the_best_so_far(tmp_path: Path) -> None:
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


def test_the_best_is_one_of_all_that_are_kept_and_no_fresh_seed(tmp_path: Path) -> None:
    before, now, fresh = trials(2)[0], trials(2)[1], replace(trials(1)[0], phase="final")
    fresh = replace(fresh, seed=FINAL_SEED)
    with watch(tmp_path, kept=[result(before, 1.9), result(fresh, 1.7)]) as monitor:
        monitor.proposed(2, [now, fresh])
        monitor.finished(result(now, 2.1))
        monitor.finished(result(fresh, 1.8))
        assert "best 1.9000" in monitor.facts()


def test_a_job_s_pace_is_known_after_a_while_or_a_good_part() -> None:
    for now, fraction, known in ((1.0, 0.2, False), (9.0, 0.2, True), (1.0, 0.5, True)):
        job = RunningJob(trials(1), 0.0)
        job.at(-2.0, 0.1)
        job.at(now, fraction)
        assert math.isnan(job.seconds()) is not known


def test_the_total_is_what_was_planned_until_more_is_known(tmp_path: Path) -> None:
    with watch(tmp_path, planned=10) as monitor:
        monitor.proposed(0, trials(4))
        assert monitor.snapshot.total == 10
        monitor.proposed(9, trials(3))
        assert monitor.snapshot.total == 12


def test_the_file_says_whether_it_came_to_its_end(tmp_path: Path) -> None:
    with watch(tmp_path) as monitor:
        monitor.proposed(0, trials(1))
        assert kept(tmp_path)["over"] is False
    assert kept(tmp_path)["over"] is True
    with suppress(KeyboardInterrupt), watch(tmp_path):
        raise KeyboardInterrupt
    assert kept(tmp_path)["over"] is False


def test_lines_where_there_is_no_terminal(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path) as monitor:
        batch = trials(3)
        monitor.proposed(0, batch)
        monitor.finished(result(batch[0]))
        assert said(monitor) == "search: eta: 0/4 trials\n", "a line now and then is enough"
        clock.now += 20
        monitor.finished(result(batch[1], seconds=20.0))
        monitor.proposed(2, trials(1, "lines"))
        assert said(monitor).count("\n") == 1, "nor is a new phase worth one"
        clock.now += 40
        monitor.finished(result(trials(1, "lines")[0], seconds=40.0))
        last = said(monitor).splitlines()[-1]
        assert last == "search: lines: 3/4 trials, best 2.0000, about 30 s left", "in one line"
        clock.now += 60
        monitor.proposed(3, trials(1, "search"))
        assert said(monitor).splitlines()[-1].startswith("search: 3/4"), "not search: search"


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    with watch(tmp_path, terminal=True) as monitor:
        monitor.proposed(0, trials(4))
        assert monitor._bar.tasks[0].description == "search: eta"
        monitor.finished(result(trials(1)[0]))
        assert monitor._bar.tasks[0].completed == 0.25
        monitor.advanced(trials(100), 0.0, 1.0)
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


def test_a_ladder_that_takes_long_to_sum_up_is_written_seldom(tmp_path: Path, clock: Clock) -> None:
    looks = []

    def so_far() -> LadderSoFar:
        clock.now += 2.0
        looks.append(clock.now)
        return LadderSoFar(hyperparameter="eta", points=())

    with watch(tmp_path) as monitor:
        monitor.watch_ladder(so_far)
        batch = trials(40)
        monitor.proposed(0, batch)
        for trial in batch:
            clock.now += 2.0
            monitor.finished(result(trial))
    assert len(looks) == 4  # of 80 s: at once, twice, and at the end


def test_a_clock_that_goes_back_hides_no_driver(tmp_path: Path, clock: Clock) -> None:
    with StudyLock(tmp_path), watch(tmp_path) as monitor:
        clock.now -= 10_000.0
        monitor.proposed(0, trials(2))
        driver = live_holder(tmp_path)
        result = driver_progress(tmp_path, driver, [])
        assert driver is not None and result is not None and result.total == 4
        assert driver_progress(tmp_path, replace(driver, started=driver.started + 1), []) is None


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    with watch(tmp_path / "nope") as monitor:
        monitor.proposed(0, trials(1))
    with pytest.raises(KeyboardInterrupt), watch(tmp_path):
        raise KeyboardInterrupt
    assert kept(tmp_path)["best"] == "inf"


def test_durations() -> None:
    told = {0.4: "0 s", 59.4: "59 s", 59.6: "1 min 0 s", 599: "9 min 59 s", 600: "10 min"}
    told |= {3599: "59 min", 7500: "2 h 5 min", 47 * 3600: "47 h 0 min", 76 * 3600: "3 d 4 h"}
    assert {seconds: duration(seconds) for seconds in told} == told


# How long work will still take.


@dataclass
class Play:
    """A sweep played out: `workers` take jobs in order, each some seconds a trial by its width.

    A job is silent for `start` seconds, and stands still for `compiles` at its tenth part. Every
    half a second its share is told, unless it is `mute`.
    """

    monitor: SweepProgress
    clock: Clock
    workers: int = 1
    start: float = 0.0
    compiles: float = 0.0
    mute: bool = False

    def run(self, batches: Sequence[Sequence[Trial]], seconds: Callable[[int], float]) -> Estimates:
        """What was said at shares of the time; see `Estimates`."""
        text, begun, waiting = list[tuple[float, float | None]](), self.clock.now, list(batches)
        jobs: list[tuple[Sequence[Trial], float]] = []
        shares = dict[str, float]()
        while waiting or jobs:
            while waiting and len(jobs) < self.workers:
                jobs.append((waiting.pop(0), self.clock.now))
            self.clock.now += 0.5
            for batch, since in list(jobs):
                took = self.clock.now - since
                whole = sum(seconds(trial.width) for trial in batch)
                worked = took - self.start
                if worked > 0.1 * whole:
                    worked = max(0.1 * whole, worked - self.compiles)
                share = min(1.0, max(0.0, worked / whole))
                if not self.mute or share == 0:
                    before = shares.get(batch[0].key, 0.0)
                    self.monitor.advanced(batch, before, share)
                    shares[batch[0].key] = share
                if share == 1:
                    jobs.remove((batch, since))
                    for trial in batch:
                        each = (took - self.start) / len(batch)
                        self.monitor.finished(result(trial, seconds=each))
            text.append((self.clock.now - begun, self.monitor.snapshot.left))
        return Estimates(text)


@dataclass
class Estimates:
    said: list[tuple[float, float | None]]

    def ratio(self, share: float) -> float:
        """What was said to be left, over what was left, at a share of the time."""
        end = self.said[-1][0]
        at, remaining = next(each for each in self.said if each[0] >= share * end)
        return math.nan if remaining is None else remaining / (end - at)


def assert_told(estimates: Estimates, *shares: float) -> None:
    for share in shares:
        assert 1 / 1.5 <= estimates.ratio(share) <= 1.5, (share, estimates.ratio(share))


LADDER = [*trials(15, width=16), *trials(15, width=32), *trials(15, width=64)]


def at_width(width: int) -> float:
    """Seconds of a run: most of it what every step takes, whatever its size."""
    return 3.0 + width / 32


@pytest.mark.parametrize(("workers", "batched"), [(1, 8), (2, 1), (4, 8)])
def test_a_search_is_foretold_from_its_first_trials(
    tmp_path: Path, clock: Clock, workers: int, batched: int
) -> None:
    """Alone, side by side and batched; what starting and compiling takes is no part of the pace."""
    batch = trials(16 * workers)
    with watch(tmp_path, planned=len(batch)) as monitor:
        monitor.proposed(0, batch)
        clock.now += 20  # the workers import torch
        play = Play(monitor, clock, workers, start=1.0, compiles=2.0 * (batched > 1))
        jobs = [batch[i : i + batched] for i in range(0, len(batch), batched)]
        assert_told(play.run(jobs, lambda width: 8.0), 0.1, 0.3, 0.5, 0.9)


@pytest.mark.parametrize("mute", [False, True])
def test_a_ladder_is_foretold_from_the_runs_of_the_search(
    tmp_path: Path, clock: Clock, mute: bool
) -> None:
    """Mixed widths, of which the search has trained the least: right from the start.

    A command that tells no steps is foretold by its runs alone.
    """
    earlier = [result(trial, seconds=at_width(16)) for trial in trials(3, width=16)]
    earlier += [result(trials(1, width=24)[0], 2.0, "diverged", seconds=900.0)] * (not mute)
    rate = None if mute else 32.0 * LADDER[0].spec.train.steps
    with watch(tmp_path, planned=45, rate=rate, known=earlier, at_once=2) as monitor:
        monitor.proposed(0, LADDER)
        remaining = monitor.snapshot.left
        play = Play(monitor, clock, 2, mute=mute)
        estimates = play.run([[trial] for trial in LADDER], at_width)
        assert mute or remaining == pytest.approx(estimates.said[-1][0], rel=0.5)
        assert_told(estimates, *(() if mute else (0.05, 0.3, 0.9)), 0.1, 0.5, 0.7)


def test_horizons_differ_by_their_steps(tmp_path: Path) -> None:
    """A trial of ten times the steps takes ten times as long where time is nothing but steps."""
    short = trials(1)[0]
    spec = replace(short.spec, train=replace(short.spec.train, steps=10 * short.spec.train.steps))
    earlier = [result(short, seconds=2.0)]
    with watch(tmp_path, planned=1, rate=1e9, known=earlier) as monitor:
        monitor.proposed(0, [replace(short, spec=spec)])
        assert monitor.snapshot.left == pytest.approx(20.0)


def test_runs_that_stop_early_shorten_the_rest(tmp_path: Path, clock: Clock) -> None:
    """Half of a search's trials are pruned at a quarter: so, it is likely, are those to come."""
    batch = trials(20)
    steps = batch[0].spec.train.steps
    with watch(tmp_path, planned=20) as monitor:
        monitor.proposed(0, batch)
        for trial in batch[:4]:
            clock.now += 8
            monitor.finished(result(trial, seconds=8.0))
        for trial in batch[4:8]:
            clock.now += 2
            pruned = result(trial, 3.0, "pruned", seconds=2.0)
            monitor.finished(replace(pruned, steps=steps // 4))
        assert monitor.snapshot.left == pytest.approx(12 * 5, rel=0.05)


def test_a_job_that_is_lost_is_all_left_again(tmp_path: Path, clock: Clock) -> None:
    batch = trials(2)
    with watch(tmp_path, planned=2, known=[result(trials(1)[0], seconds=50.0)]) as monitor:
        monitor.proposed(0, batch)
        clock.now += 50
        monitor.advanced(batch, 0.0, 0.5)
        assert monitor.snapshot.left == pytest.approx(50.0)
        monitor.advanced(batch, 0.5, 0.0)
        assert monitor.snapshot.left == pytest.approx(100.0, rel=0.2)
        for trial in batch:
            monitor.finished(result(trial, seconds=50.0))
        assert monitor.snapshot.left == 0.0


def test_nothing_is_said_of_what_nothing_is_known_of(tmp_path: Path, clock: Clock) -> None:
    with watch(tmp_path, planned=4) as monitor:
        batch = trials(4)
        monitor.proposed(0, batch)
        clock.now += 100
        monitor.advanced(batch, 0.0, 0.0)
        assert monitor.snapshot.left is None
        monitor.finished(result(batch[0], math.nan, "failed", seconds=1.0))
        assert monitor.snapshot.left is None
