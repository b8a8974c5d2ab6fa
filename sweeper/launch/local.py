"""Run jobs in worker processes on this machine: one a GPU, or as many as its cores are worth.

`Pool` is worker processes as their driver sees them: started through submitit, told over a Unix
socket what to do, listened to, ended (`worker.py` is the other end). `Local` is the launcher,
`LocalExecutor` hands jobs to pools. A worker is three processes:

```
driver ── submitit's controller ── submitit's job (`WorkerJob`) ── the worker
   └──────────────── a socket ─────────────┴───────────────────────────┘
```

It lives as long as its socket: a driver that is killed leaves none behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from sweeper.errors import BadInput, SweeperError
from sweeper.files import owners_folder
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
from sweeper.launch.machine import THREADS, WorkerSlot, cores, users_threads, worker_slots
from sweeper.launch.parameters import Parameters
from sweeper.launch.worker import GRACE, Message, WorkerJob
from sweeper.records import Bounds, check_bounds, to_json

if TYPE_CHECKING:
    import submitit

SOON, MOST = 4.0, GRACE + 5
"""Seconds after which a word is said of workers that still end, and at most: one takes GRACE."""
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
A_YEAR = 60 * 24 * 365
"""Minutes that a worker lives at most where nobody sets fewer; submitit knows no unlimited job."""
SUBMITTED = "submitted-"
"""How the folders begin in which submitit keeps what it runs."""


@dataclass(eq=False, kw_only=True)
class Worker:
    """A worker process. `task` is what it was told to do and has not answered.

    It is the grandchild of submitit's `job`. Until it has called, `listener` waits for it, and what
    it is told is `unsent`. `pids` are its own and its parent's, `code` its exit code.
    """

    slot: WorkerSlot
    job: submitit.Job[None]
    listener: socket.socket
    log: Path
    last_heard: float
    pipe: Connection | None = None
    unsent: Message | None = None
    pids: tuple[int, ...] = ()
    code: int | None = None
    ready: bool = False
    task: Any = None
    logged: int = 0
    fate: str = ""

    def tail(self) -> str:
        """The last lines that its log got since its task began, or those that tell of a crash."""
        lines: list[str] = []
        # Where it never began, submitit's own log has the reason.
        for path, first in ((self.log, self.logged), (self.job.paths.stdout, 0)):
            with suppress(OSError), path.open("rb") as file:
                file.seek(max(first, path.stat().st_size - TAIL_BYTES))
                lines = lines or file.read().decode(errors="replace").strip().splitlines()
        crash = next((i for i, line in enumerate(lines) if line.startswith(CRASH_LINE)), None)
        first = max(0, len(lines) - TAIL_LINES) if crash is None else crash
        return "\n".join(line[:160] for line in lines[first : first + TAIL_LINES])

    def close(self) -> None:
        """Part with it; it saves its job, and ends."""
        if self.pipe is not None:
            self.pipe.close()
        place = self.listener.getsockname() if self.listener.fileno() >= 0 else ""
        self.listener.close()
        if place:  # it never called
            rmtree(Path(place).parent, ignore_errors=True)

    def kill(self) -> None:
        """End it, and its parent, at once."""
        for pid in self.pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


class Pool:
    """At most one worker to a slot, started when there is something to do."""

    def __init__(
        self,
        folder: Path,
        slots: Sequence[WorkerSlot],
        hang: float | None,
        preload: str,
        parameters: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Logs go to `folder`. A worker that is silent for `hang` seconds at a task is killed.

        Workers import the module `preload` before they are ready. `parameters` are submitit's.
        """
        owners_folder(folder)
        self.folder, self.slots, self.hang, self.preload = folder, list(slots), hang, preload
        self.parameters = {"timeout_min": A_YEAR, **parameters, "stderr_to_stdout": True}
        self.workers: list[Worker] = []
        self.lost_workers = 0
        self._submitted: Path | None = None
        self._departed: list[Worker] = []
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
        worker.unsent = message
        self._send(worker)

    def _send(self, worker: Worker) -> None:
        if worker.pipe is not None and worker.unsent is not None:
            with suppress(OSError):
                worker.pipe.send_bytes(json.dumps(worker.unsent).encode())
            worker.unsent = None

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
        self._departed = [worker for worker in self._departed if not worker.job.done()]
        ears: dict[Any, Worker] = {each.pipe or each.listener: each for each in self.workers}
        readable = [ears[ear] for ear in wait([*ears], TICK_SECONDS)]
        messages = [(worker, message) for worker in readable for message in self._hear(worker)]
        for worker in list(self.workers):
            if worker not in readable and (fate := self._reason_lost(worker)):
                self._end(worker, fate)
                messages.append((worker, None))
        return messages

    def _hear(self, worker: Worker) -> list[Message | None]:
        """The message that a worker has sent; None for its end. Its first call is no message."""
        if worker.pipe is None:
            caller, _ = worker.listener.accept()
            worker.pipe = Connection(caller.detach())
            worker.listener.close()
            self._send(worker)
            return []
        try:
            message: Message = json.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError, ValueError):  # ValueError: it was killed in the middle of a word
            message = {"ended": None}
        if "worker" in message:
            worker.pids = (message["worker"], message["job"])
            return []
        if "ended" in message:
            worker.code = message["ended"]
            self._end(worker, "")
            return [None]
        worker.last_heard = time.monotonic()
        worker.ready = True
        return [message]

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
        if not self._has_ended(worker, GRACE):
            worker.kill()
        self._part(worker)

    def stop(self, tell: Callable[[str], None] = lambda sentence: None) -> None:
        """End all workers: a job that runs is saved; what does not end in time is killed.

        `tell` takes a sentence where that takes long.
        """
        for worker in list(self.workers):
            self._part(worker)
        try:
            self._await_departed(SOON)
            if self._departed:
                # A user's command may not hear the signal.
                rest = f"{MOST - SOON:g} s at most"
                tell(f"Waiting for what still runs to end, {rest}; Ctrl-C ends it at once")
            self._await_departed(MOST - SOON)
        finally:  # also when the user will not wait
            for worker in self._departed:
                worker.kill()
                with suppress(OSError):
                    os.kill(int(worker.job.job_id), signal.SIGKILL)
            self._await_departed(TICK_SECONDS)
            if not self.lost_workers:
                for log in self.folder.glob(f"worker-*-of-{len(self.slots)}.log"):
                    log.unlink(missing_ok=True)
            if self._submitted is not None:
                rmtree(self._submitted, ignore_errors=True)
                self._submitted = None

    def _await_departed(self, seconds: float) -> None:
        """Until submitit's jobs of all workers that are parted with have ended."""
        end = time.monotonic() + seconds
        while self._departed and time.monotonic() < end:
            self._departed = [worker for worker in self._departed if not worker.job.done()]
            time.sleep(0.005 if self._departed else 0)

    def _start(self, index: int) -> Worker:
        import submitit  # takes a tenth of a second, which a sweep without jobs need not wait

        if self._submitted is None:
            # Of its own for every pool: nothing in it is from elsewhere, as it will be unpickled.
            self._submitted = Path(mkdtemp(prefix=SUBMITTED, dir=self.folder))
        slot, log = self.slots[index], self.folder / f"worker-{index}-of-{len(self.slots)}.log"
        os.close(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        # Not in the study: its path may be longer than a socket's, its disk may know no sockets.
        address = Path(mkdtemp(prefix="sweeper-")) / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        listener.listen(1)
        paths = [path for path in sys.path if isinstance(path, str)]
        # submitit hides all GPUs from a job that asks for none, and its processes must find what
        # this one does, but not in the folder worked in.
        ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        before = {name: os.environ.get(name) for name in (*ours, "CUDA_VISIBLE_DEVICES")}
        executor = submitit.AutoExecutor(folder=self._submitted, cluster="local")
        executor.update_parameters(**self.parameters)
        with _ctrl_c_held_back(), submitit.helpers.environment_variables(**ours):
            job = executor.submit(
                WorkerJob(address, log, self.preload, paths, {**before, **slot.env})
            )
        worker = Worker(slot=slot, job=job, listener=listener, log=log, last_heard=time.monotonic())
        self.workers.append(worker)
        return worker

    def _reason_lost(self, worker: Worker) -> str | None:
        """Why a worker that says nothing is to be taken as lost; None when it is not.

        Its socket may outlive it, in a process that it started.
        """
        # What is still to be heard is heard before the worker counts as ended.
        if worker.job.done() and not wait([worker.pipe or worker.listener], 0):
            return "ended, and nobody could say how"
        silent = time.monotonic() - worker.last_heard
        if not worker.ready:
            return (
                f"was not ready after {STARTUP_SECONDS:g} s" if silent > STARTUP_SECONDS else None
            )
        if worker.task is not None and self.hang is not None and silent > self.hang:
            return f"did no step for {self.hang:g} s and was ended"
        return None

    def _end(self, worker: Worker, fate: str) -> None:
        """Part with a worker that was lost; `fate` says why where it is not for its exit code."""
        if fate and worker.pids:
            with suppress(OSError):
                os.kill(worker.pids[0], signal.SIGKILL)
            self._has_ended(worker, TICK_SECONDS)
        if not fate:
            fate = "ended" if worker.code is None else fate_of(worker.code)
        worker.fate = fate
        self.lost_workers += 1
        self._part(worker)

    def _has_ended(self, worker: Worker, seconds: float) -> bool:
        """Whether a worker's end is told within so many seconds; nothing else that it says is."""
        end = time.monotonic() + seconds
        try:
            while worker.pipe is not None and worker.pipe.poll(max(0.0, end - time.monotonic())):
                if "ended" in json.loads(worker.pipe.recv_bytes()):
                    return True
        except (EOFError, OSError, ValueError):
            return True
        return False

    def _part(self, worker: Worker) -> None:
        worker.close()
        self.workers.remove(worker)
        self._departed.append(worker)


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Processes started within never get a SIGINT: a terminal sends Ctrl-C to them all.

    What submitit starts would end its job at once. A signal that comes meanwhile is this process's
    own, afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # there is none, or somebody else has its number now
        return False
    return True


def fate_of(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


@dataclass(frozen=True, kw_only=True)
class Local:
    """Worker processes that stay alive for all jobs; one that dies costs its trial at most.

    `workers` is their number; "auto" is one for every GPU, each with a GPU of its own, and on a
    CPU one process with all threads or one a core, whichever is measured to be faster. A worker
    that does no step for `hang` seconds (None: never) is ended. A job whose worker dies goes on
    from its checkpoint in another, `retries` times; then it is halved, and a single trial fails.
    Every worker is a job of submitit's, which takes the parameters `submitit`.
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
    submitit: Parameters = field(default_factory=Parameters)

    def __post_init__(self) -> None:
        """ConfigError for what is out of its bounds, or not a user's to set."""
        check_bounds(self)
        self.submitit.local()

    def at_once(self, gpus: Sequence[str]) -> int:
        """One a worker, and no more than devices or cores."""
        if self.workers == "auto":  # on a CPU one, whatever will be measured
            return max(1, len(gpus))
        return min(self.workers, len(gpus) or cores())

    def sharing(self, machine: Machine) -> str:
        """The number of workers and of their threads, and who chose them."""
        workers = self.at_once(machine.gpus)
        count = f"{workers} trial{'s' * (workers != 1)} at a time"
        if self.workers == "auto" and machine.gpus:
            count += ", one a GPU"
        elif self.workers == "auto":
            count += (
                ": how many commands this processor is worth is not measured, launcher.workers=N "
                "runs N at a time"
            )
        threads = worker_slots(machine, workers)[0].threads
        whose = "as you have set it" if users_threads() else "which a value of yours replaces"
        return f"{count}; each with {THREADS}={threads}, {whose}"

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

    def settled(self) -> bool:
        """Workers end with this process."""
        return False

    def elsewhere(self, job: str, failure: JobFailure) -> bool:
        """There is no other machine."""
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
            pool.stop(self.context.notify)
        # A job of a driver that was killed may just be starting. It ends as soon as it finds what
        # it is to run, and nobody who listens; else submitit would wait a minute for that file.
        end = time.monotonic() + GRACE
        for submitted in list(self.folder.glob(f"{SUBMITTED}*/")):
            pids = [int(p.name.partition("_")[0]) for p in submitted.glob("*_submitted.pkl")]
            while any(map(_lives, pids)) and time.monotonic() < end:
                time.sleep(0.05)
            rmtree(submitted, ignore_errors=True)

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
