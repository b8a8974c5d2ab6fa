"""Run jobs in worker processes on this machine: one a GPU, or as many as its cores are worth."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any, ClassVar, Literal

from sweeper.errors import BadInput, SweeperError
from sweeper.launch.executor import (
    MAX_FALSE_STARTS,
    Context,
    Event,
    Executor,
    Finished,
    Left,
    Lost,
    Machine,
)
from sweeper.launch.job import Job, JobFailure, Task, outcome_of, trials_of, write_job
from sweeper.launch.machine import THREADS, cores, users_threads, worker_slots
from sweeper.launch.own import remove_abandoned
from sweeper.launch.parameters import Parameters
from sweeper.launch.pool import Pool, Worker
from sweeper.launch.worker import GRACE, Message
from sweeper.records import Bounds, check_bounds, to_json

MAX_WORKERS = 1024
"""More is a slip of the pen: each is a process, and takes half a gigabyte."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """Worker processes that stay alive for all jobs; one that dies costs its trial at most.

    `workers` is their number; "auto" is one for every GPU, each with a GPU of its own, and on a
    CPU one process with all threads or one a core, whichever is measured to be faster. A worker
    that does no step for `hang` seconds (None: never) is ended. A job whose worker dies goes on
    from its checkpoint in another, `retries` times; then it is halved, and a single trial fails.
    At most `ahead` trials are trained at a time that nobody has asked for yet (None: where a worker
    would idle). Every worker is a job of submitit's, which takes the parameters `submitit`.
    """

    pins_gpus: ClassVar[bool] = True
    device: ClassVar[None] = None

    workers: Annotated[
        int | Literal["auto"],
        Bounds(least=1, most=MAX_WORKERS, allowed=f"auto, or from 1 to {MAX_WORKERS}"),
    ] = "auto"
    hang: Annotated[
        float | None, Bounds(above=0, allowed="a positive number of seconds, or null")
    ] = 1800.0
    retries: Annotated[int, Bounds(least=0)] = 2
    ahead: Annotated[int | None, Bounds(least=0)] = None
    submitit: Parameters = field(default_factory=Parameters)

    def __post_init__(self) -> None:
        check_bounds(self)
        self.submitit.local()

    def at_once(self, gpus: Sequence[str]) -> int:
        """One a worker, and no more than devices or cores."""
        if self.workers == "auto":  # on a CPU one, whatever will be measured
            return max(1, len(gpus))
        return min(self.workers, len(gpus) or cores())

    def sharing(self, machine: Machine) -> str:
        """The number of workers and of their threads, and who chose them."""
        places, place = len(machine.gpus) or cores(), "GPU" if machine.gpus else "core"
        workers = places if self.workers == "auto" else self.workers
        count = f"{workers} trial{'s' * (workers != 1)} at a time, "
        count += f"one a {place}" if workers <= places else f"on {places} {place}s"
        threads = worker_slots(machine, workers)[0].threads
        whose = "as you have set it" if users_threads() else "which a value of yours replaces"
        return f"{count}; each with {THREADS}={threads}, {whose}"

    def executor(self, context: Context) -> Executor:
        """One that starts workers when there is something to do."""
        return LocalExecutor(context, self)


class LocalExecutor(Executor):
    """Hands jobs to workers as these are free; one job a worker may be written ahead."""

    def __init__(self, context: Context, launcher: Local) -> None:
        self.context, self.launcher = context, launcher
        self.folder = context.folder.absolute() / "jobs"
        workers, gpus = launcher.workers, len(context.machine.gpus)
        if workers == "auto" and not gpus:
            self.layouts = range(1, cores() + 1)  # on a CPU only measuring tells which is best
        else:
            count = gpus if workers == "auto" else workers
            self.layouts = range(count, count + 1)
        # Jobs of a driver that died which came to an end, and whose results nobody recorded. The
        # others ended with their workers: their trials are wanted anew, and go on from checkpoints.
        self.recovered = {
            path.parent.name: trials_of(path.parent)
            for path in sorted(self.folder.glob("*/job.json"))
            if outcome_of(path.parent) is not None
        }
        self._layout = self.layouts[0]
        self._pools: dict[int, Pool] = {}
        self._preload = ""
        self._waiting: deque[Path] = deque()
        self._claimed: list[Path] = []
        self._losses = Counter[Path]()
        self._false_starts = 0
        self._keeps_logs = False

    @property
    def _pool(self) -> Pool:
        return self._pool_of(self._layout)

    def _pool_of(self, layout: int) -> Pool:
        if layout not in self._pools:
            if not self._pools:
                for log in self.folder.glob("worker-*.log"):
                    log.unlink(missing_ok=True)
            slots, parameters = worker_slots(self.context.machine, layout), self.launcher.submitit
            self._pools[layout] = Pool(
                self.folder, slots, self.launcher.hang, self._preload, parameters.local()
            )
        return self._pools[layout]

    def room(self, *, ahead: bool = False) -> bool:
        """Whether a worker is free; `ahead`: whether one would find its next job written."""
        if not self._pools:
            return len(self._waiting) < self._layout
        if ahead:
            return len(self._waiting) < len(self._pool.workers)
        return not self._waiting and self._pool.room()

    def submit(self, job: Job) -> None:
        """Write the job, and hand it out where a worker is free."""
        self._preload = type(job.task).__module__
        try:
            self._waiting.append(write_job(self.folder, job, sync=False))
        except TypeError as error:
            raise SweeperError(f"{error}; use launcher=inline") from error
        self._hand_out()

    def claim(self, job: str) -> None:
        """Its outcome is told by the next `poll`."""
        del self.recovered[job]
        self._claimed.append(self.folder / job)

    def poll(self, *, wait: bool = True) -> list[Event]:
        """What workers say, as soon as one does; nothing when none does for a while."""
        if self._claimed:
            claimed, self._claimed = self._claimed, []
            return [self._ended(job_dir) for job_dir in claimed]
        self._hand_out()
        events = [self._heard(*message) for message in self._pool.wait()]
        return [event for event in events if event is not None]

    def forget(self, job: str, *, keep_log: bool = False) -> None:
        """Remove the job's folder; logs of workers stay where trials of a job have failed."""
        self._keeps_logs |= keep_log
        rmtree(self.folder / job, ignore_errors=True)

    def call(self, tasks: Sequence[Task], layout: int) -> list[Any]:
        """What as many workers of that layout return at the same time; see `Executor`."""
        self._preload = type(tasks[0]).__module__
        pool = self._pool_of(layout)
        if len(tasks) > 1 and not pool.fill():
            return [None] * len(tasks)
        workers = list[Worker | None](pool.workers if len(tasks) > 1 else [pool.free()])
        questions: dict[Worker, Message] = {}
        for worker, task in zip(workers, tasks, strict=True):
            assert worker is not None
            questions[worker] = {"call": to_json(Job(task=task))}
        answers = pool.ask(questions)
        return [(answer or {}).get("answer") for answer in answers]

    def use(self, layout: int) -> None:
        """End the workers of other layouts."""
        self._layout = layout
        for other in [other for other in self._pools if other != layout]:
            self._pools.pop(other).stop(keep_logs=self._keeps_logs)

    def close(self) -> None:
        """End all workers; a job that runs saves itself."""
        for pool in self._pools.values():
            pool.stop(self.context.notify, keep_logs=self._keeps_logs)
        remove_abandoned(GRACE)

    def _hand_out(self) -> None:
        while self._waiting and self._pool.room():
            worker, job_dir = self._pool.free(), self._waiting.popleft()
            assert worker is not None
            attempt = self._losses[job_dir]
            self._pool.give(worker, {"job": str(job_dir), "attempt": attempt}, job_dir)

    def _heard(self, worker: Worker, message: Message | None) -> Event | None:
        job_dir: Path | None = worker.task
        if message is None:
            return self._died(worker, job_dir)
        self._false_starts = 0
        if "error" in message:
            raise (BadInput if message["input"] else SweeperError)(message["error"])
        if "left" in message:  # it was told to end by a signal of its own: no fault of the job
            self._pool.dismiss(worker)
            return None if job_dir is None else Left(job=job_dir.name)
        if job_dir is None:
            return None
        if "fraction" in message:
            self.context.progress(job_dir.name, message["fraction"])
        elif "done" in message:
            worker.task = None
            self._hand_out()
            return self._ended(job_dir)
        return None

    def _ended(self, job_dir: Path) -> Event:
        outcome = outcome_of(job_dir)
        if outcome is None:
            return self._lost(job_dir, "left a result that cannot be read")
        return Finished(job=job_dir.name, outcome=outcome)

    def _died(self, worker: Worker, job_dir: Path | None) -> Event | None:
        tail = worker.tail()
        if not worker.ready:  # it died of its own start, and the job was never begun
            self._false_starts += 1
            if self._false_starts >= MAX_FALSE_STARTS:
                self._keeps_logs = True
                raise SweeperError(f"worker processes do not start: one {worker.fate}\n{tail}")
            return None if job_dir is None else Left(job=job_dir.name)
        return None if job_dir is None else self._lost(job_dir, worker.fate, tail)

    def _lost(self, job_dir: Path, fate: str, tail: str = "") -> Event:
        self._losses[job_dir] += 1
        attempts = self._losses[job_dir]
        times = f", {attempts} times" if attempts > 1 else ""
        failure = JobFailure(
            reason=f"its worker process {fate}{times}", details=tail, attempts=attempts
        )
        return Lost(job=job_dir.name, failure=failure)
