"""Run jobs in worker processes on this machine: one a GPU, or as many as its cores are worth.

`Pool` is worker processes as their driver sees them: started, told what to do, listened to, ended
(`worker.py` is the other end). `Local` is the launcher, `LocalExecutor` hands jobs to pools.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any, ClassVar, Literal

from sweeper.errors import BadInput, SweeperError
from sweeper.files import private_folder
from sweeper.launch.executor import Context, Event, Executor, Finished, Left, Lost
from sweeper.launch.job import Job, JobFailure, Task, outcome_of, trials_of, write_job
from sweeper.launch.machine import WorkerSlot, cores, worker_slots
from sweeper.launch.worker import BOOT, GRACE, Message
from sweeper.records import Bounded, Bounds, to_json

TICK_SECONDS = 1.0
"""Seconds between looks at workers that say nothing; what they say is heard at once."""
STARTUP_SECONDS = 300.0
"""Seconds in which a worker must have imported all that it needs."""
TAIL_LINES = 10
"""Lines of a log that a message quotes."""
TAIL_BYTES = 20_000
"""Bytes of a log that are read for them."""
CRASH_LINE = "Fatal Python error"
"""How Python's own report of a crash begins; the most recent call comes first in it."""
MAX_WORKERS = 1024
"""More is a slip of the pen: each is a process, and takes half a gigabyte."""
MAX_FALSE_STARTS = 3
"""So many workers in a row that end before they are ready are no accident."""


@dataclass(eq=False, kw_only=True)
class Worker:
    """A worker process. `task` is what it was told to do and has not answered."""

    slot: WorkerSlot
    process: subprocess.Popen[bytes]
    pipe: Connection
    log: Path
    last_heard: float
    ready: bool = False
    task: Any = None
    logged: int = 0
    fate: str = ""

    def tail(self) -> str:
        """The last lines that its log got since its task began, or those that tell of a crash."""
        text = ""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self.logged, self.log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace").strip()
        lines = text.splitlines()
        crash = next((i for i, line in enumerate(lines) if line.startswith(CRASH_LINE)), None)
        first = max(0, len(lines) - TAIL_LINES) if crash is None else crash
        return "\n".join(line[:160] for line in lines[first : first + TAIL_LINES])


class Pool:
    """At most one worker to a slot, started when there is something to do."""

    def __init__(
        self, folder: Path, slots: Sequence[WorkerSlot], hang: float | None, preload: str
    ) -> None:
        """Logs go to `folder`. A worker that is silent for `hang` seconds at a task is killed.

        Workers import the module `preload` before they are ready.
        """
        private_folder(folder)
        self.folder, self.slots, self.hang, self.preload = folder, list(slots), hang, preload
        self.workers: list[Worker] = []
        self.lost_workers = 0
        self._unread: list[tuple[Worker, Message | None]] = []
        self._looked = time.monotonic()

    def room(self) -> bool:
        """Whether there is a free worker, or a slot for one."""
        idle = any(worker.task is None for worker in self.workers)
        return idle or len(self.workers) < len(self.slots)

    def free(self) -> Worker | None:
        """A worker without a task, started in a free slot if need be; None when all are busy."""
        for worker in self.workers:
            if worker.task is None:
                return worker
        return next((self._start(index) for index in self._free_slots()), None)

    def _free_slots(self) -> list[int]:
        """Slots without a worker, by index."""
        taken = {id(worker.slot) for worker in self.workers}
        return [index for index, slot in enumerate(self.slots) if id(slot) not in taken]

    def busy(self) -> bool:
        """Whether any worker has a task, or an answer that nobody has heard."""
        return bool(self._unread) or any(worker.task is not None for worker in self.workers)

    def give(self, worker: Worker, message: Message, task: Any) -> None:
        """Tell a free worker what to do; one that has just died is heard of by `wait`."""
        with suppress(OSError):
            worker.logged = worker.log.stat().st_size
        worker.task, worker.last_heard = task, time.monotonic()
        with suppress(OSError):
            worker.pipe.send_bytes(json.dumps(message).encode())

    def wait(self) -> list[tuple[Worker, Message | None]]:
        """What workers say, as soon as one does; nothing when none does for a while.

        None from a worker that has ended; its `fate` tells how.
        """
        if self._unread:
            unread, self._unread = self._unread, []
            return unread
        now = time.monotonic()
        if now - self._looked > 10 * TICK_SECONDS:
            # This process itself stood still (a laptop slept): no worker's silence counts.
            for worker in self.workers:
                worker.last_heard = now
        self._looked = now
        pipes = {worker.pipe: worker for worker in self.workers}
        readable = [pipe for pipe in wait([*pipes], TICK_SECONDS) if isinstance(pipe, Connection)]
        messages = [(pipes[pipe], self._receive(pipes[pipe])) for pipe in readable]
        spoke = {id(worker) for worker, _ in messages}
        for worker in list(self.workers):
            if id(worker) not in spoke and (fate := self._reason_lost(worker)):
                self._end(worker, fate)
                messages.append((worker, None))
        return messages

    def ask(self, questions: Mapping[Worker, Message]) -> list[Message | None]:
        """Answers of workers that are asked at the same time, None from those that ended."""
        for worker, question in questions.items():
            self.give(worker, question, question)
        answers: dict[Worker, Message | None] = {}
        others: list[tuple[Worker, Message | None]] = []
        while len(answers) < len(questions):
            for worker, message in self.wait():
                if worker not in questions:
                    others.append((worker, message))
                elif message is not None and "left" in message:
                    self.dismiss(worker)
                    answers[worker] = None
                elif message is None or not message.keys() & {"ready", "fraction"}:
                    answers[worker] = message
                    worker.task = None
        self._unread += others  # what other workers said meanwhile; the next `wait` returns it
        return [answers[worker] for worker in questions]

    def fill(self) -> bool:
        """A worker in every slot, all ready; False when one of them ended instead."""
        for index in self._free_slots():
            self._start(index)
        while not all(worker.ready for worker in self.workers):
            if any(message is None for _, message in self.wait()):
                return False
        return True

    def dismiss(self, worker: Worker) -> None:
        """Part with a worker that leaves of its own accord."""
        worker.pipe.close()
        self.workers.remove(worker)
        try:
            worker.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()

    def stop(self) -> None:
        """End all workers: a job that runs is saved; what does not end in time is killed."""
        for worker in self.workers:
            worker.pipe.close()
        deadline = time.monotonic() + GRACE
        try:
            for worker in self.workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when the user will not wait
            for worker in self.workers:
                worker.process.kill()
                worker.process.wait()
                if not self.lost_workers:
                    worker.log.unlink(missing_ok=True)
            self.workers.clear()

    def _start(self, index: int) -> Worker:
        slot = self.slots[index]
        log = self.folder / f"worker-{index}-of-{len(self.slots)}.log"
        pipe, worker_pipe = Pipe()
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        count = str(slot.threads)
        # Closed here once the worker has it: with its end open here, its death would not be heard.
        with worker_pipe, log.open("ab") as output:
            os.chmod(log, 0o600)
            process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(worker_pipe.fileno()), self.preload, paths],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[worker_pipe.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": count, **slot.env},
            )
        worker = Worker(slot=slot, process=process, pipe=pipe, log=log, last_heard=time.monotonic())
        self.workers.append(worker)
        return worker

    def _receive(self, worker: Worker) -> Message | None:
        try:
            message: Message = json.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            self._end(worker, "")
            return None
        worker.last_heard = time.monotonic()
        worker.ready = True
        return message

    def _reason_lost(self, worker: Worker) -> str | None:
        """Why a worker that says nothing is to be taken as lost; None when it is not.

        Its pipe may outlive it, in a process that it started.
        """
        # What is still in the pipe is read before the worker counts as ended.
        if worker.process.poll() is not None and not worker.pipe.poll():
            return "ended"
        silent = time.monotonic() - worker.last_heard
        if not worker.ready:
            return (
                f"was not ready after {STARTUP_SECONDS:g} s" if silent > STARTUP_SECONDS else None
            )
        if worker.task is not None and self.hang is not None and silent > self.hang:
            return f"did no step for {self.hang:g} s and was ended"
        return None

    def _end(self, worker: Worker, fate: str) -> None:
        # A closed pipe comes a moment before the end of the process, whose exit code tells more.
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(0 if fate else TICK_SECONDS)
        hung = worker.process.poll() is None
        worker.process.kill()
        code = worker.process.wait()
        worker.fate = fate if hung and fate else fate_of(code)
        worker.pipe.close()
        self.workers.remove(worker)
        self.lost_workers += 1


def fate_of(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


@dataclass(frozen=True, kw_only=True)
class Local(Bounded):
    """Worker processes that stay alive for all jobs; one that dies costs its trial at most.

    `workers` is their number; "auto" is one for every GPU, each with a GPU of its own, and on a
    CPU one process with all threads or one a core, whichever is measured to be faster. A worker
    that does no step for `hang` seconds (None: never) is ended. A job whose worker dies goes on
    from its checkpoint in another, `retries` times; then it is halved, and a single trial fails.
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

    def gpus_at_once(self, gpus: Sequence[str]) -> int:
        """One a worker."""
        workers = len(gpus) if self.workers == "auto" else self.workers
        return max(1, min(workers, len(gpus)))

    def executor(self, context: Context) -> Executor:
        """One that starts workers when there is something to do."""
        return LocalExecutor(context, self)


class LocalExecutor:
    """Hands jobs to workers as these are free; one job a worker may be written ahead."""

    def __init__(self, context: Context, launcher: Local) -> None:
        """See what a driver that died has left; no worker is started yet."""
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

    @property
    def _pool(self) -> Pool:
        return self._pool_of(self._layout)

    def _pool_of(self, layout: int) -> Pool:
        """The pool of so many workers, made when first asked for."""
        if layout not in self._pools:
            if not self._pools:
                for log in self.folder.glob("worker-*.log"):
                    log.unlink(missing_ok=True)
            slots = worker_slots(self.context.machine, layout)
            self._pools[layout] = Pool(self.folder, slots, self.launcher.hang, self._preload)
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

    def settled(self) -> bool:
        """Workers end with this process."""
        return False

    def forget(self, job: str, *, keep_log: bool = False) -> None:
        """Remove the job's folder."""
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
            self._pools.pop(other).stop()

    def close(self) -> None:
        """End all workers; a job that runs saves itself."""
        for pool in self._pools.values():
            pool.stop()

    def _hand_out(self) -> None:
        while self._waiting and self._pool.room():
            worker, job_dir = self._pool.free(), self._waiting.popleft()
            assert worker is not None
            attempt = self._losses[job_dir]
            self._pool.give(worker, {"job": str(job_dir), "attempt": attempt}, job_dir)

    def _heard(self, worker: Worker, message: Message | None) -> Event | None:
        """What a worker's message means for its job; None where the loop need not know."""
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
                raise SweeperError(f"worker processes do not start: one {worker.fate}\n{tail}")
            return None if job_dir is None else Left(job=job_dir.name)
        return None if job_dir is None else self._lost(job_dir, worker.fate, tail)

    def _lost(self, job_dir: Path, fate: str, tail: str = "") -> Event:
        """`Lost` for a job whose worker died at it; the loop decides whether it runs again."""
        self._losses[job_dir] += 1
        attempts = self._losses[job_dir]
        times = f", {attempts} times" if attempts > 1 else ""
        failure = JobFailure(
            reason=f"its worker process {fate}{times}", details=tail, attempts=attempts
        )
        return Lost(job=job_dir.name, failure=failure)
