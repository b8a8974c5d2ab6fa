"""Worker processes as their driver sees them: started, told what to do, listened to, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sweeper.files import private_folder
from sweeper.launch.local.machine import WorkerSlot
from sweeper.launch.local.worker import BOOT, GRACE, Message

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
        self._restart_clocks()
        pipes = {worker.pipe: worker for worker in self.workers}
        messages = [(pipes[pipe], self._receive(pipes[pipe])) for pipe in _readable(pipes)]
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
        self._unread += others
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

    def _restart_clocks(self) -> None:
        """The silence of workers does not count while this process itself stood still."""
        now = time.monotonic()
        if now - self._looked > 10 * TICK_SECONDS:
            for worker in self.workers:
                worker.last_heard = now
        self._looked = now

    def _end(self, worker: Worker, fate: str) -> None:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(0 if fate else TICK_SECONDS)
        hung = worker.process.poll() is None
        worker.process.kill()
        code = worker.process.wait()
        worker.fate = fate if hung and fate else fate_of(code)
        worker.pipe.close()
        self.workers.remove(worker)
        self.lost_workers += 1


def _readable(pipes: Iterable[Connection]) -> list[Connection]:
    return [pipe for pipe in wait(list(pipes), TICK_SECONDS) if isinstance(pipe, Connection)]


def fate_of(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
