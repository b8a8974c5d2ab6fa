"""Train in worker processes on this machine: one a GPU, or as many as its cores are worth."""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sweeper.data.corpus import Corpus
from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.launch.drain import drained
from sweeper.launch.job import Job, describe, outcome_of, write_job
from sweeper.launch.launcher import Work
from sweeper.launch.layout import Layout, SharedQueue
from sweeper.launch.packs import estimate, fail_all, halves, resolve_device
from sweeper.launch.pool import Pool, Worker
from sweeper.launch.seats import on_gpus
from sweeper.launch.worker import Message
from sweeper.training import checkpoint
from sweeper.training.pack import Compile, Pack
from sweeper.training.train import Execution
from sweeper.trial import Result, Trial

UNSTARTED = 3
"""So many workers in a row that end before they are ready are no accident."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """Worker processes that stay alive for all packs; one that dies costs its trial at most.

    `workers` is their number; "auto" is one for every GPU, each with a GPU of its own, and on a
    CPU one process with all threads or one a core, whichever is measured to be faster. `device`,
    `pack`, `compile` and `save_every` are as in the inline launcher. A worker that does no step
    for `hang` seconds (None: never) is ended. A pack whose worker dies goes on from its
    checkpoint in another, `retries` times; then it is halved, and a single trial fails.
    """

    workers: int | Literal["auto"] = "auto"
    device: str = "auto"
    pack: int | Literal["auto"] = "auto"
    compile: Compile = "auto"
    save_every: float = 300.0
    hang: float | None = 1800.0
    retries: int = 2

    def __post_init__(self) -> None:
        """Refuse impossible numbers."""
        for key in ("workers", "pack"):
            if (value := getattr(self, key)) != "auto" and value < 1:
                raise ConfigError(key, value, "auto, or at least 1")
        if not self.save_every > 0:
            raise ConfigError("save_every", self.save_every, "a positive number of seconds")
        if self.hang is not None and not self.hang > 0:
            raise ConfigError("hang", self.hang, "a positive number of seconds, or null")
        if self.retries < 0:
            raise ConfigError("retries", self.retries, "at least 0")

    def precision(self) -> str:
        """Bfloat16 autocast on a GPU, float32 elsewhere."""
        return "bfloat16" if self._device().startswith("cuda") else "float32"

    def estimate(self, trials: Sequence[Trial], corpus: Corpus) -> tuple[int, float]:
        """Pack size, and seconds of a trial's step shared by the GPUs; see `Launcher`."""
        device = self._device()
        size, seconds = estimate(tuple(trials), corpus, device, self.pack)
        if not device.startswith("cuda"):
            return size, seconds
        seats = on_gpus(device, None if self.workers == "auto" else self.workers)
        return size, seconds / len({seat.env["CUDA_VISIBLE_DEVICES"] for seat in seats})

    def run(self, work: Work) -> Iterator[list[Result]]:
        """Packs to workers as they are free, what a dead driver left first; see `Launcher`."""
        yield from drained(work)
        trials = work.pending()
        if not trials:
            return
        try:
            describe(work.corpus)
        except TypeError as error:
            raise SweeperError(f"{error}; use launcher=inline") from error
        folder = work.folder.absolute()
        layout = Layout(work=work, folder=folder / "jobs", device=self._device(), hang=self.hang)
        pool = layout.pool(self.workers, trials)
        execution = Execution(
            device=layout.seen,
            compile=self.compile,
            checkpoints=folder / "checkpoints",
            save_every=self.save_every,
        )
        queue = SharedQueue(work, layout, pool, self.pack)
        try:
            yield from _Run(work, pool, queue, execution, self.retries).results()
        finally:
            pool.stop()

    def _device(self) -> str:
        return resolve_device(self.device)


@dataclass(eq=False, kw_only=True)
class Task:
    """A pack in the hands of a worker; `told` is the share of it that was reported."""

    pack: Pack
    own: Path
    attempt: int = 0
    told: float = 0.0


class _Run:
    """One run: hands out packs, hears what comes of them, and what to do in their place."""

    def __init__(
        self, work: Work, pool: Pool, queue: SharedQueue, execution: Execution, retries: int
    ) -> None:
        self.work, self.pool, self.queue = work, pool, queue
        self.execution, self.retries = execution, retries
        self.deaths: Counter[Path] = Counter()
        self.unstarted, self.ask = 0, True
        self.prepared: deque[Task] = deque()

    def results(self) -> Iterator[list[Result]]:
        """Until nothing is pending, and no worker has anything to do."""
        while True:
            self._hand_out()
            if not self.pool.busy():
                return
            self._prepare_ahead()
            done = [found for event in self.pool.wait() if (found := self._heard(*event))]
            if done:
                yield [result for _, results in done for result in results]
                self.ask = True
            for task, _ in done:
                self._forget(task)

    def _hand_out(self) -> None:
        """Packs to free workers; the strategy is asked for more only when there are results."""
        while self.pool.room() and (task := self._task()):
            worker = self.pool.free()
            assert worker is not None
            task.attempt = self.deaths[task.own]
            self.pool.give(worker, {"job": str(task.own), "attempt": task.attempt}, task)

    def _task(self) -> Task | None:
        if self.prepared:
            return self.prepared.popleft()
        if not (self.ask or self.queue.ready()):
            return None
        if (pack := self.queue.next()) is None:
            self.ask = False
            return None
        return self._prepare(pack)

    def _prepare_ahead(self) -> None:
        """Write the jobs that come next while all are busy: a worker should not wait for files."""
        while self.queue.ready() and len(self.prepared) < len(self.pool.workers):
            if (pack := self.queue.next()) is not None:
                self.prepared.append(self._prepare(pack))

    def _prepare(self, pack: Pack) -> Task:
        job = Job(pack=pack, execution=self.execution, pruner=self.work.pruner(pack.trials[0]))
        return Task(pack=pack, own=write_job(self.pool.folder, job, sync=False))

    def _heard(self, worker: Worker, said: Message | None) -> tuple[Task, list[Result]] | None:
        """What a worker's message means; a task that came to an end, and its results."""
        task: Task | None = worker.task
        if said is None:
            return self._died(worker, task)
        self.unstarted = 0
        if "error" in said:
            raise (BadInput if said["input"] else SweeperError)(said["error"])
        if "left" in said:  # it was told to end by a signal of its own: no fault of the pack
            self.pool.dismiss(worker)
            if task is not None:
                self._again(task, [task.pack.trials])
        elif task is None:
            return None
        elif "share" in said:
            self._watch(task, said["share"])
        elif "done" in said:
            worker.task = None
            self._hand_out()
            return self._finished(task)
        return None

    def _finished(self, task: Task) -> tuple[Task, list[Result]] | None:
        outcome = outcome_of(task.own)
        if outcome is None:
            return self._blamed(task, "left a result that cannot be read")
        for notice in outcome.notices:
            self.work.tell(notice)
        if outcome.back:
            self._forget(task)
            self._again(task, outcome.back)
        else:
            self._watch(task, 1.0)
        return (task, list(outcome.results)) if outcome.results else None

    def _died(self, worker: Worker, task: Task | None) -> tuple[Task, list[Result]] | None:
        tail = worker.tail()
        if not worker.ready:
            self.unstarted += 1
            if self.unstarted >= UNSTARTED:
                raise SweeperError(f"worker processes do not start: one {worker.fate}\n{tail}")
            if task is not None:
                self._again(task, [task.pack.trials])
            return None
        if task is None:
            return None
        return self._blamed(task, worker.fate, tail)

    def _blamed(self, task: Task, fate: str, tail: str = "") -> tuple[Task, list[Result]] | None:
        """A pack that cost a worker: again, or halved, or the single trial's failure."""
        self.deaths[task.own] += 1
        trials, deaths = task.pack.trials, self.deaths[task.own]
        if deaths <= self.retries:
            where = f" (its log is in {self.pool.folder})" if tail else ""
            self.work.tell(f"a worker process {fate}{where}: its trials go on in another")
            self._again(task, [trials])
            return None
        if len(trials) == 1:
            self._watch(task, 1.0)
            times = f", {deaths} times" if deaths > 1 else ""
            said = f":\n{tail}" if tail else ""
            return task, fail_all(trials, f"its worker process {fate}{times}{said}")
        self._forget(task)
        self._again(task, halves(trials))
        return None

    def _again(self, task: Task, packs: Sequence[tuple[Trial, ...]]) -> None:
        self._watch(task, 0.0)
        self.queue.put_back(packs)

    def _watch(self, task: Task, share: float) -> None:
        self.work.watch((share - task.told) * len(task.pack.trials))
        task.told = share

    def _forget(self, task: Task) -> None:
        """Remove what is of no use any more: the results are recorded, or the pack is split."""
        shutil.rmtree(task.own, ignore_errors=True)
        if self.execution.checkpoints is not None:
            checkpoint.forget(self.execution.checkpoints, task.pack.trials)
