"""The bar, the file, and how long work will still take: what is foretold against what comes."""

import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
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
        time_left=TimeLeft(seconds),
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
    # What starting takes is no part of it, and compiling, at a fifth here, is forgotten.
    job = RunningJob(trials(1), 0.0)
    for now, fraction in ((-60.0, 0.0), (10.0, 0.1), (12.0, 0.2), (30.0, 0.3), (40.0, 0.8)):
        job.at(now, fraction)
    assert job.seconds() == pytest.approx(28 / 0.6)


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


def test_jobs_at_once_share_the_work_and_silent_ones_are_taken_to_go_on() -> None:
    seconds = TrialSeconds(lambda _: 1.0, [result(trials(1)[0], seconds=50.0)])
    left, batch = TimeLeft(seconds, at_once=2), trials(8)
    left.proposed(batch)
    assert left.remaining(0.0, 0) == pytest.approx(8 * 50 / 2)
    assert left.remaining(0.0, 3) == pytest.approx(8 * 50 / 2 + 2 * 50), "two rounds more"
    for trial in batch[:3]:
        left.advanced([trial], 0.0, 0.0)
    assert left.remaining(0.0, 0) == pytest.approx(8 * 50 / 3), "three run"
    assert left.remaining(25.0, 0) == pytest.approx((8 * 50 - 3 * 25) / 3)
    assert left.remaining(1000.0, 0) == pytest.approx((8 * 50 - 3 * 45) / 3), "none is over"
    left.advanced(batch[:1], 0.8, 25.0)
    assert left.remaining(25.0, 0) == pytest.approx((8 * 50 - 40 - 2 * 25) / 3)
    for trial in batch[:2]:
        left.finished(result(trial, seconds=50.0), 200.0)
    # In 200 seconds, 300 were spent in jobs; the third runs still.
    assert left.remaining(200.0, 0) == pytest.approx((6 * 50 - 45) / 1.5)
    left.proposed(batch[2:3])
    assert left.remaining(25.0, 0) == pytest.approx(25.0), "no job is shared"


def test_the_first_job_s_pace_tells_of_all_before_one_has_finished() -> None:
    left, batch = TimeLeft(TrialSeconds(lambda _: 1.0)), trials(4)
    left.proposed(batch)
    for now, fraction in ((10.0, 0.1), (20.0, 0.5)):
        left.advanced(batch[:2], fraction, now)
    # Two trials take 10 / 0.4 = 25 seconds, and are half done.
    assert left.remaining(20.0, 0) == pytest.approx(4 * 12.5 - 12.5)


@pytest.mark.parametrize(
    ("rate", "known", "seconds"),
    [(32.0, {16: 3.5}, 5.0), (1e9, {16: 3.5}, 3.5), (1e9, {16: 3.5, 32: 4.0}, 5.0)],
)
def test_a_run_is_a_constant_and_its_work_at_the_rate_that_is_known(
    rate: float, known: dict[int, float], seconds: float
) -> None:
    """Runs of width w take 3 + w / 32 seconds; what two sizes show comes before the rate."""
    earlier = [result(trials(1, width=w)[0], seconds=took) for w, took in known.items()]
    cost = TrialSeconds(lambda trial: float(trial.width), earlier, rate)
    assert cost.of(trials(1, width=64)[0]) == pytest.approx(seconds)


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
