"""The driver of Slurm jobs, against a queue that says what a test tells it to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import SweeperError
from sweeper.files import write_json
from sweeper.launch import slurm as module
from sweeper.launch import slurm_queue
from sweeper.launch.executor import Context, JobState
from sweeper.launch.job import JobFailure, JobOutcome, trials_of
from sweeper.launch.slurm import Slurm, SlurmExecutor
from sweeper.launch.slurm_jobs import Array, Submission, comment
from sweeper.records import to_json
from sweeper.trial import Result
from tests.engine.tiny_trials import trial
from tests.golden import Golden
from tests.launch.cluster import ClusterSweep

GRACE = 5.0


class Queue:
    """Stands in for Slurm and its time: at second t of its clock, `say(t)` sets the states."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.largest = folder, 100
        self.arrays, self.states = list[Array](), dict[str, str | None]()
        self.now, self.away, self.most = 0, False, 100
        self.cancelled = list[str]()
        self.tell: Callable[[str], None] = lambda sentence: None
        patch.setattr(slurm_queue, "queue", self._entries)
        patch.setattr(slurm_queue, "cancel", self.cancelled.extend)
        patch.setattr(module, "largest_array", lambda: self.largest)
        self.nodes = {"node1"}
        patch.setattr(module, "nodes", lambda partition: set(self.nodes))
        patch.setattr(module.time, "sleep", self._sleep)
        patch.setattr(module.time, "monotonic", lambda: float(self.now))

    def node_of(self, name: str) -> str:
        """The first node that the job's array does not avoid."""
        [array] = [array for array in self.arrays if array.name == name.split()[0]]
        return next(node for node in ("node1", "node2") if node not in array.avoid)

    def _sleep(self, seconds: float) -> None:
        self.now += 1
        assert self.now < 100, "it never ends"
        self.say(self, self.now)

    def submit(self, array: Array) -> str:
        if len(array.members) > self.most:
            raise slurm_queue.SchedulerError("sbatch: Job violates accounting/QOS policy")
        self.arrays.append(array)
        self.states |= {f"{array.name} {i}": "RUNNING" for i in range(len(array.members))}
        return str(100 + len(self.arrays))

    def set(self, state: str | None, array: int = 0, index: int = 0) -> None:
        self.states[f"{self.arrays[array].name} {index}"] = state

    def drive(
        self, say: Callable[[Queue, int], None], trials: int = 1, *, later: int = 0, ahead: int = 0
    ) -> ClusterSweep:
        self.say = say
        sweep = ClusterSweep(self.folder, [trial(seed=seed) for seed in range(trials)])
        sweep.later = [trial(seed=seed) for seed in range(trials + later)]
        options: dict[str, Any] = {"poll": 1.0, "grace": GRACE, "retries": 1, "ahead": ahead}
        launcher = Cluster(queue=self, gpus=0, jobs=10, **options)
        sweep.run(launcher, batched_trials=1)
        return sweep

    def _entries(self, prefix: str) -> list[slurm_queue.QueueEntry]:
        if self.away:
            raise slurm_queue.SchedulerError("squeue: Unable to contact slurm controller")
        mine = comment(self.folder / "study")
        lines = [
            f"{name.split()[0]}|1_{name.split()[1]}|{state}|{self.node_of(name)}|T1|T0|None|{mine}"
            for name, state in self.states.items()
            if state is not None
        ]
        return [slurm_queue._entry(line) for line in lines if line.startswith(prefix)]


def leave(member: Submission, restart: int, objective: float) -> None:
    (asked,) = trials_of(member.job_dir)
    result = Result(trial=asked, status="complete", objective=objective)
    attempt = 1000 * member.number + restart
    outcome = JobOutcome(attempt=attempt, results=(result,))
    write_json(member.job_dir / f"result-{attempt}.json", to_json(outcome))


@dataclass(frozen=True, kw_only=True)
class Cluster(Slurm):
    queue: Queue

    def submit(self, array: Array) -> str:
        return self.queue.submit(array)

    def repair(self, array: Array, number: str) -> None:
        raise AssertionError("nothing is to be repaired")

    def executor(self, context: Context) -> SlurmExecutor:
        return SlurmExecutor(replace(context, tell=self.queue.tell), self)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Queue:
    return Queue(monkeypatch, tmp_path)


@pytest.mark.parametrize("ahead", [0, 2])
def test_jobs_ahead_are_as_many_as_may_be_paid_for_and_end_with_the_search(
    queue: Queue, ahead: int
) -> None:
    def say(queue: Queue, now: int) -> None:
        if now == 2:
            queue.set("COMPLETED")
            leave(queue.arrays[0].members[0], 0, 2.5)

    sweep = queue.drive(say, later=5, ahead=ahead)
    assert sweep.objectives() == [2.5] and len(sweep.results) == 1
    assert sum(len(array.members) for array in queue.arrays) == 1 + ahead
    assert len(queue.cancelled) == ahead and not sweep.find("jobs/*")


def test_a_lost_node_s_job_is_waited_for(queue: Queue) -> None:
    """NODE_FAIL for some seconds, then Slurm puts the job back by itself: F1."""

    def say(queue: Queue, now: int) -> None:
        if state := {2: "NODE_FAIL", 6: "PENDING", 30: "RUNNING", 40: "COMPLETED"}.get(now):
            queue.set(state)
        if now == 40:
            states.extend(Slurm.states(queue.arrays[0].folder.parents[1]))
            leave(queue.arrays[0].members[0], 1, 2.5)

    states = list[JobState]()
    sweep = queue.drive(say)
    assert sweep.objectives() == [2.5] and len(queue.arrays) == 1 and not sweep.notices
    assert [(state.trials, state.fraction) for state in states] == [(1, 0.0)]


@pytest.mark.parametrize("gone", ["NODE_FAIL", "PREEMPTED", "FAILED", None])
def test_a_lost_job_is_sent_again_once_and_then_fails(
    gone: str | None, queue: Queue, golden: Golden
) -> None:
    seen: dict[int, int] = {}

    def say(queue: Queue, now: int) -> None:
        seen.setdefault(len(queue.arrays), now)
        queue.set(gone, array=len(queue.arrays) - 1)

    sweep = queue.drive(say)
    assert len(queue.arrays) == 2 and seen[2] - seen[1] >= GRACE
    (error,) = sweep.errors()
    assert (gone or "vanished") in error
    golden.says(error)
    # So that Slurm brings neither back later. The number of what is not there may be another's.
    assert queue.cancelled == ([] if gone is None else ["1_0", "1_0"])


def test_a_job_that_somebody_ends_by_hand_is_not_sent_again(queue: Queue) -> None:
    sweep = queue.drive(lambda queue, now: queue.set("CANCELLED"))
    assert len(queue.arrays) == 1 and "CANCELLED" in sweep.errors()[0]


def test_a_job_that_runs_and_writes_nothing_is_told_of_at_once(queue: Queue) -> None:
    """Its step was killed while slurmctld was down: Slurm takes it for running until its limit."""

    def say(queue: Queue, now: int) -> None:
        [array] = queue.arrays
        (member,) = array.members
        if now == 2:
            write_json(member.folder / "started-0.json", {"node": "node1"})
        if now == 5:
            assert not told
            for path in member.folder.iterdir():
                os.utime(path, (0, time.time() - module.SILENT - 1))
        if now == 9:
            [state] = Slurm.states(array.folder.parents[1])
            assert state.stage == "running" and told == [state.error]
            assert "scancel 1_0 frees it" in state.error
            finish(queue, now)

    told = list[str]()
    queue.tell = told.append
    queue.drive(say)


def finish(queue: Queue, now: int) -> None:
    for number, array in enumerate(queue.arrays):
        for index, member in enumerate(array.members):
            leave(member, 0, 1.0)
            queue.set("COMPLETED", number, index)


def test_no_array_has_more_jobs_than_the_cluster_takes(queue: Queue) -> None:
    queue.largest = 2
    assert queue.drive(finish, 3).objectives() == [1.0] * 3
    assert [len(array.members) for array in queue.arrays] == [2, 1]


def test_fewer_are_sent_when_slurm_takes_no_more(queue: Queue) -> None:
    queue.most = 1
    sweep = queue.drive(finish, 2)
    assert sweep.objectives() == [1.0, 1.0] and len(queue.arrays) == 2
    assert any("accounting/QOS policy" in notice for notice in sweep.notices)


def test_a_result_that_is_slow_to_appear_is_taken(queue: Queue) -> None:
    def say(queue: Queue, now: int) -> None:
        queue.set("COMPLETED")
        if now == 4:
            leave(queue.arrays[0].members[0], 0, 1.5)

    assert queue.drive(say).objectives() == [1.5] and len(queue.arrays) == 1


def test_of_two_copies_the_newer_counts_and_once(queue: Queue) -> None:
    """The copy on a silent node ends while the newer runs, and then the newer: F3."""

    def say(queue: Queue, now: int) -> None:
        if now == 3:
            leave(queue.arrays[0].members[0], 0, 9.0)
        if now == 6:
            leave(queue.arrays[0].members[0], 1, 1.0)
            queue.set("COMPLETING")

    sweep = queue.drive(say)
    assert sweep.objectives() == [1.0] and sweep.times_recorded == 1


def test_results_are_collected_while_slurm_is_away(queue: Queue, golden: Golden) -> None:
    def say(queue: Queue, now: int) -> None:
        queue.away = 2 <= now < 20
        if now == 10:
            leave(queue.arrays[0].members[0], 0, 1.0)
        if now == 30:
            leave(queue.arrays[0].members[1], 0, 2.0)
            queue.set("COMPLETED", index=1)

    sweep = queue.drive(say, 2)
    assert sorted(sweep.objectives()) == [1.0, 2.0] and len(queue.arrays) == 1
    (notice,) = set(sweep.notices)
    golden.says(notice)


def fail_at_once(queue: Queue, bad: set[str], started: bool = False) -> None:
    for number, array in enumerate(queue.arrays):
        for index, member in enumerate(array.members):
            node = queue.node_of(array.name)
            if queue.states[f"{array.name} {index}"] != "RUNNING":
                continue
            if started:
                write_json(member.folder / "started-0.json", {"node": node})
            if node not in bad:
                leave(member, 0, 1.0)
            elif started:
                failure = JobFailure(reason="it raised", details="No module named a", retry=False)
                write_json(member.job_dir / f"result-{1000 * member.number}.json",
                           to_json(JobOutcome(failure=failure)))  # fmt: skip
            else:
                log = array.folder / f"{array.task_id(index)}_0_log.err"
                log.write_text("python: No module named submitit\n")
            queue.set("COMPLETED" if started or node not in bad else "FAILED", number, index)


@pytest.mark.parametrize("nodes", [{"node1"}, {"node1", "node2"}])
def test_jobs_that_never_begin_end_the_sweep_in_the_node_s_words(
    nodes: set[str], queue: Queue
) -> None:
    queue.nodes = nodes
    with pytest.raises(
        SweeperError, match=r"jobs do not start.*No module named submitit"
    ) as caught:
        queue.drive(lambda queue, now: fail_at_once(queue, nodes))
    assert queue.now < GRACE and "launcher.python" in str(caught.value)
    assert len(queue.arrays) == (3 if len(nodes) == 1 else 2)


@pytest.mark.parametrize("started", [False, True])
def test_what_one_node_lacks_runs_on_another(started: bool, queue: Queue) -> None:
    queue.nodes = {"node1", "node2"}
    sweep = queue.drive(lambda queue, now: fail_at_once(queue, {"node1"}, started), 4)
    assert sweep.objectives() == [1.0] * 4
    assert {array.avoid for array in queue.arrays[1:]} == {("node1",)}


def test_what_all_nodes_lack_fails_where_it_began(queue: Queue) -> None:
    """A module that a script imports: once more on the other node, and then its trial fails."""
    both = {"node1", "node2"}
    queue.nodes = both
    sweep = queue.drive(lambda queue, now: fail_at_once(queue, both, started=True))
    assert "No module named a" in sweep.errors()[0] and len(queue.arrays) == 2
