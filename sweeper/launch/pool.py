"""Worker processes of this machine, as their driver sees them.

They are started through submitit, told over a Unix socket what to do, listened to, ended;
`worker.py` is the other end. A worker is three processes:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sweeper.files import owners_folder
from sweeper.launch.machine import WorkerSlot
from sweeper.launch.own import OwnFolder
from sweeper.launch.worker import GRACE, LOG_FLAGS, Message, WorkerJob

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
A_YEAR = 60 * 24 * 365
"""Minutes that a worker lives at most where nobody sets fewer; submitit knows no unlimited job."""


@dataclass(eq=False, kw_only=True)
class Worker:
    """A worker process. `task` is what it was told to do and has not answered.

    It is the grandchild of submitit's `job`, which lies in the folder `own`. Until it has called,
    `listener` waits for it, and what it is told is `unsent`. `pids` are its own and its parent's,
    `code` its exit code.
    """

    slot: WorkerSlot
    job: submitit.Job[None]
    own: OwnFolder
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
        self.listener.close()

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
        taken = {id(worker.slot) for worker in self.workers}
        return [index for index, slot in enumerate(self.slots) if id(slot) not in taken]

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
        self._see_off()
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

    def stop(
        self, tell: Callable[[str], None] = lambda sentence: None, *, keep_logs: bool = False
    ) -> None:
        """End all workers: a job that runs is saved; what does not end in time is killed.

        `tell` takes a sentence where that takes long. Logs stay where someone will ask for them.
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
            if not keep_logs:
                for log in self.folder.glob(f"worker-*-of-{len(self.slots)}.log"):
                    log.unlink(missing_ok=True)
            for worker in self._departed:
                worker.own.remove()

    def _await_departed(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._departed and time.monotonic() < end:
            self._see_off()
            time.sleep(0.005 if self._departed else 0)

    def _see_off(self) -> None:
        for worker in self._departed:
            if worker.job.done():
                worker.own.remove()
        self._departed = [worker for worker in self._departed if not worker.job.done()]

    def _start(self, index: int) -> Worker:
        import submitit  # takes a tenth of a second, which a sweep without jobs need not wait

        slot, log = self.slots[index], self.folder / f"worker-{index}-of-{len(self.slots)}.log"
        os.close(os.open(log, LOG_FLAGS, 0o600))
        # Not in the study, which others may write: what lies here is unpickled. A socket's path
        # must be short, too, and on the study's disk.
        own = OwnFolder.make()
        address = own.path / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        listener.listen(1)
        paths = [path for path in sys.path if isinstance(path, str)]
        # submitit hides all GPUs from a job that asks for none, and its processes must find what
        # this one does, but not in the folder worked in.
        ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        before = {name: os.environ.get(name) for name in (*ours, "CUDA_VISIBLE_DEVICES")}
        executor = submitit.AutoExecutor(folder=own.path, cluster="local")
        executor.update_parameters(**self.parameters)
        with _ctrl_c_held_back(), submitit.helpers.environment_variables(**ours):
            job = executor.submit(
                WorkerJob(address, log, self.preload, paths, {**before, **slot.env})
            )
        worker = Worker(
            slot=slot, job=job, own=own, listener=listener, log=log, last_heard=time.monotonic()
        )
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


def fate_of(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
