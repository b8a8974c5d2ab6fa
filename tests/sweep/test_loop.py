"""The loop's one policy for jobs that fail, with a runner and an executor that only pretend."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import SweeperError
from sweeper.launch.executor import Event, Finished, Left, Lost
from sweeper.launch.job import Job, JobFailure, JobOutcome
from sweeper.sweep.loop import Loop
from sweeper.trial import Result, Status, Trial
from tests.engine.tiny_trials import trial
from tests.golden import Golden
from tests.launch.trial_sweep import TrialSweep
from tests.refusals import refused
from tests.sweep.test_sweep import MadeUp, Trainer

Fate = Callable[[Job, int], Event]
"""What becomes of a job that was submitted for the so-manieth time, from 1."""


def complete(batch: Sequence[Trial]) -> tuple[Result, ...]:
    return tuple(Result(trial=each, status="complete", objective=1.0) for each in batch)


def finished(job: Job) -> Event:
    return Finished(job=job.id, outcome=JobOutcome(results=complete(job.trials)))


def lost(job: Job, **changed: Any) -> Event:
    failure = {"reason": "its worker died", "details": "Segmentation fault", **changed}
    return Lost(job=job.id, failure=JobFailure(**failure))


def raised(job: Job) -> Event:
    failure = JobFailure(reason="ValueError: no", retry=False)
    return Finished(job=job.id, outcome=JobOutcome(failure=failure))


def guilty(seed: int, event: Callable[..., Event]) -> Fate:
    return lambda job, times: (
        event(job) if seed in {each.seed for each in job.trials} else finished(job)
    )


class Pretended(Trainer):
    """One job at a time, of `batched_trials`, which meets its fate."""

    layouts = range(0)

    def __init__(self, fate: Fate, batched_trials: int = 4) -> None:
        super().__init__(lambda hps, seed: 1.0, slots=1)
        self.fate, self.batched_trials = fate, batched_trials
        self.claimed: list[str] = []
        self.submitted: list[tuple[int, ...]] = []
        self.forgotten: list[tuple[str, bool]] = []
        self.closed = self.others = False
        self.retries = 0

    def batches(self, trials: Sequence[Trial], *_: Any) -> list[tuple[Trial, ...]]:
        return [
            tuple(trials[i : i + self.batched_trials])
            for i in range(0, len(trials), self.batched_trials)
        ]

    def submit(self, job: Job) -> None:
        self.submitted.append(tuple(each.seed for each in job.trials))
        self.jobs.append(job)

    def claim(self, job: str) -> None:
        del self.recovered[job]
        self.claimed.append(job)

    def poll(self, *, wait: bool = True) -> list[Event]:
        if self.claimed:
            return [self.fate(job_of(self.left), 1)] if self.claimed.pop() else []
        job = self.jobs.pop()
        times = self.submitted.count(tuple(each.seed for each in job.trials))
        return [self.fate(job, times)]

    def settled(self) -> bool:
        return True

    def elsewhere(self, job: str, failure: JobFailure) -> bool:
        if self.others:
            self.jobs.clear()
        self.others, others = False, self.others
        return others and not failure.retry

    def forget(self, job: Any, *, keep_log: bool = False) -> None:
        if isinstance(job, str):
            self.forgotten.append((job, keep_log))

    def close(self) -> None:
        self.closed = True

    left: tuple[Trial, ...] = ()


def job_of(batch: tuple[Trial, ...]) -> Job:
    return Job(task=MadeUp(batch, 1.0))


class Driven(TrialSweep):
    def __init__(
        self,
        place: Pretended,
        trials: int = 4,
        retries: int = 1,
        *,
        recovered: bool = False,
        **options: Any,
    ) -> None:
        asked = [trial(seed=seed) for seed in range(trials)]
        super().__init__(trials=asked, corpus=None, folder=Path())  # type: ignore[arg-type]
        self.place = place
        place.retries = retries
        if recovered:  # a job of an earlier driver's has all of them
            place.left = tuple(self.trials)
            place.recovered[job_of(place.left).id] = place.left
        told = {"record": self._record, "notify": self._notify, "advanced": self._advanced}
        self.loop = Loop(runner=place, launcher=place, folder=Path(), **told, **options)  # type: ignore[arg-type,assignment,method-assign]

    def run(self) -> dict[int, str]:
        self.loop.run(self.pending)
        assert self.place.closed and not self.loop.live
        return {result.trial.seed: result.status for result in self.results.values()}


def test_a_study_with_jobs_of_another_user_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "jobs")
    pretended: Any = Pretended(lambda job, attempt: finished(job))
    with pytest.raises(SweeperError, match=r"rm -r .*jobs"):
        Loop(runner=pretended, launcher=pretended, folder=tmp_path, record=lambda results: None)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]
    monkeypatch.undo()
    Loop(runner=pretended, launcher=pretended, folder=tmp_path, record=lambda results: None)


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_job_runs_again_as_often_as_it_may_and_then_in_halves(
    retries: int, golden: Golden
) -> None:
    def fate(job: Job, times: int) -> Event:
        return guilty(2, lambda job: lost(job, attempts=times))(job, times)

    place = Pretended(fate)
    driven = Driven(place, retries=retries)
    assert driven.run() == {0: "complete", 1: "complete", 2: "failed", 3: "complete"}
    jobs = (0, 1, 2, 3), (2, 3), (2,)
    assert [place.submitted.count(job) for job in jobs] == [retries + 1] * 3
    (failure,) = [r for r in driven.results.values() if r.status == "failed"]
    golden.says(failure.error)
    again = ["a job is run again: its worker died"] * retries
    halved = [f"a job of {n} trials is halved: its worker died" for n in (4, 2)]
    assert driven.notices == [*again, halved[0], *again, halved[1], *again]
    assert driven.work_done == pytest.approx(4)


def test_what_training_raises_is_halved_at_once_and_without_a_word() -> None:
    place = Pretended(guilty(1, raised))
    driven = Driven(place, retries=5)
    assert driven.run() == {0: "complete", 1: "failed", 2: "complete", 3: "complete"}
    assert len(place.submitted) == len(set(place.submitted)) == 5 and not driven.notices


def test_a_failure_that_is_no_trial_s_fault_fails_all_and_keeps_the_log() -> None:
    place = Pretended(lambda job, times: lost(job, retry=False, blames_trials=False))
    assert Driven(place).run() == dict.fromkeys(range(4), "failed")
    assert len(place.submitted) == 1 and [keep for _, keep in place.forgotten] == [True]


def test_a_failure_of_one_machine_s_runs_once_more_elsewhere_whole() -> None:
    place = Pretended(lambda job, times: finished(job) if times > 1 else raised(job))
    place.others = True
    assert {*Driven(place).run().values()} == {"complete"} and len(place.submitted) == 2


def test_a_job_that_left_goes_on_and_is_not_counted_as_an_attempt() -> None:
    place = Pretended(lambda job, times: Left(job=job.id) if times < 9 else finished(job))
    driven = Driven(place, retries=0)
    assert driven.run() == dict.fromkeys(range(4), "complete")
    assert len(place.submitted) == 9 and not driven.notices
    assert [keep for _, keep in place.forgotten] == [False]


def without(job: Job, status: Status | None, loss: float = math.nan) -> Event:
    results = complete(job.trials)[1:]
    if status is not None:
        results = (Result(trial=job.trials[0], status=status, objective=loss), *results)
    return Finished(job=job.id, outcome=JobOutcome(results=results))


def test_results_that_a_job_lacks_are_failures_not_a_loop_without_end() -> None:
    fate = guilty(0, lambda job: without(job, None))
    driven = Driven(Pretended(fate, batched_trials=2), trials=2)
    assert driven.run() == {0: "failed", 1: "complete"}
    assert {r.error for r in driven.results.values()} == {"", "its job left no result"}


@pytest.mark.parametrize(("status", "loss"), [("failed", math.nan), ("pruned", 2.0)])
def test_what_an_earlier_driver_s_job_did_not_settle_is_trained(
    status: Status, loss: float
) -> None:
    """It failed, whose cause may be mended; or was stopped, where nothing is any more."""

    def fate(job: Job, times: int) -> Event:
        return finished(job) if place.submitted else without(job, status, loss)

    place = Pretended(fate)
    driven = Driven(place, trials=2, recovered=True)
    settled: dict[str, Result] = {}

    def record(results: Sequence[Result]) -> None:
        settled.update({result.key: result for result in results if result.status == "complete"})

    driven.loop.record = record
    driven.loop.run(lambda: [trial for trial in driven.trials if trial.key not in settled])
    assert place.submitted == [(0,)] and len(settled) == 2


@pytest.mark.parametrize("wait", [True, False])
def test_failures_of_recovered_jobs_are_recorded_where_nobody_waits(wait: bool) -> None:
    """There they would be submitted again for ever; nothing is sent before they are looked at."""
    place = Pretended(lambda job, times: raised(job), 1)
    assert Driven(place, trials=1, recovered=True, wait=wait).run() == {0: "failed"}
    assert len(place.submitted) == (1 if wait else 0)


def test_a_job_of_an_earlier_driver_that_nobody_wants_is_left_alone() -> None:
    place = Pretended(lambda job, times: finished(job))
    place.recovered["other"] = (trial("mup"),)
    assert Driven(place).run() == dict.fromkeys(range(4), "complete")
    assert place.recovered and not place.claimed


def test_a_cancelled_sweep_ends_after_what_it_knows_is_recorded(golden: Golden) -> None:
    place = Pretended(lambda job, times: finished(job), batched_trials=1)
    driven = Driven(place, cancelled=lambda: len(driven.results) == 2)
    with refused(golden, SweeperError):
        driven.run()
    assert len(driven.results) == len(place.submitted) == 2 and place.closed


def test_progress_is_counted_once_whatever_becomes_of_a_job() -> None:
    def fate(job: Job, times: int) -> Event:
        for fraction in (0.25, 0.75):
            driven.loop.progress(job.id, fraction)
        assert driven.loop.states()[0].fraction == 0.75
        return lost(job) if times == 1 else finished(job)

    driven = Driven(Pretended(fate))
    driven.run()
    assert driven.work_done == pytest.approx(4)


def test_a_job_ends_that_is_one_failure_too_many() -> None:
    driven = Driven(Pretended(lambda job, times: raised(job), 1), trials=1)

    def record(results: Sequence[Result]) -> None:
        raise SweeperError("too many")

    driven.loop.record = record
    with pytest.raises(SweeperError, match="too many"):
        driven.run()
    assert not driven.loop.live and len(driven.place.forgotten) == 1


def test_all_that_has_happened_is_recorded_before_an_error_ends_the_sweep() -> None:
    driven, seen = Driven(Pretended(lambda job, times: finished(job))), list[str]()

    def handle(event: Event) -> None:
        seen.append(event.job)
        raise SweeperError(event.job)

    driven.loop._handle = handle  # type: ignore[method-assign]
    with pytest.raises(SweeperError, match="a"):
        driven.loop._handle_all([Left(job="a"), Left(job="b")])
    assert seen == ["a", "b"]


@given(
    count=st.integers(1, 17),
    batched_trials=st.integers(1, 8),
    fit=st.integers(1, 8),
    bad=st.sets(st.integers(0, 16)),
    troubles=st.lists(st.sampled_from(["lost", "left"]), max_size=6),
    retries=st.integers(0, 2),
)
def test_whatever_fails_every_trial_ends_once_and_none_for_another(
    count: int, batched_trials: int, fit: int, bad: set[int], troubles: list[str], retries: int
) -> None:
    """A device holds `fit` trials of a job, `bad` ones always raise, and jobs meet `troubles`.

    What passes costs no result: a job is lost at most as often as it may run again. Halving ends:
    n trials in jobs make at most 2 n - 1 jobs, but for those that run again whole.
    """
    ahead, lost_now = list(troubles), dict[tuple[int, ...], int]()

    def fate(job: Job, times: int) -> Event:
        seeds = tuple(each.seed for each in job.trials)
        trouble = ahead.pop() if ahead else ""
        if trouble == "left":
            return Left(job=job.id)
        if trouble == "lost" and lost_now.get(seeds, 0) < retries:
            lost_now[seeds] = lost_now.get(seeds, 0) + 1
            return lost(job, attempts=lost_now[seeds])
        return raised(job) if len(seeds) > fit or bad & set(seeds) else finished(job)

    driven = Driven(Pretended(fate, batched_trials), trials=count, retries=retries)
    wanted = {seed: "failed" if seed in bad else "complete" for seed in range(count)}
    assert driven.run() == wanted
    assert driven.work_done == pytest.approx(count)
    assert len(driven.place.submitted) <= 2 * count - 1 + len(troubles)


class WithPlaces(Pretended):
    """Four jobs at a time, of which the newest or the oldest ends first."""

    ahead: int | None = None
    newest_first = False

    def __init__(self, fate: Fate, batched_trials: int = 4) -> None:
        super().__init__(fate, batched_trials)
        self.slots = 4

    def poll(self, *, wait: bool = True) -> list[Event]:
        if not self.newest_first:
            self.jobs.append(self.jobs.pop(0))
        return super().poll(wait=wait)


@pytest.mark.parametrize(("ahead", "trained"), [(None, 6), (0, 0), (3, 3)])
def test_what_may_follow_is_trained_in_places_that_stay_empty_and_not_waited_for(
    ahead: int | None, trained: int
) -> None:
    later = [trial(seed=seed) for seed in range(4, 10)]
    place = WithPlaces(lambda job, times: finished(job))
    place.ahead = ahead
    driven = Driven(place, may_follow=lambda: [*driven.trials, *later])
    driven.loop.run(driven.pending)
    assert place.submitted[0] == (0, 1, 2, 3) and not driven.loop.live
    assert sum(map(len, place.submitted[1:])) == trained and len(driven.results) == 4
    assert len(place.forgotten) == len(place.submitted) and driven.work_done == pytest.approx(4)


def test_what_failed_before_it_was_asked_for_is_trained_once_it_is() -> None:
    place, later = WithPlaces(guilty(4, raised), 1), trial(seed=4)
    driven = Driven(place, trials=2, may_follow=lambda: [later])

    def ask() -> list[Trial]:
        wanted = driven.trials if len(driven.results) < 2 else [*driven.trials, later]
        return [each for each in wanted if each.key not in driven.results]

    place.newest_first = True
    driven.loop.run(ask)
    assert [r.status for r in driven.results.values()] == ["complete", "complete", "failed"]
    assert place.submitted == [(0,), (1,), (4,), (4,)], "ahead, and anew"
