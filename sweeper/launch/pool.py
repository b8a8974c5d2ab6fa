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
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sweeper.files import private_folder
from sweeper.launch.worker import BOOT, GRACE, Message

TICK = 1.0
"""Seconds between looks at workers that say nothing; what they say is heard at once."""
STARTUP = 300.0
"""Seconds in which a worker must have imported all that it needs."""
TAIL = 10
"""Lines of a log that a message quotes."""
LOOK_BACK = 20_000
"""Bytes of a log that are read for them."""
CRASH = "Fatal Python error"
"""How Python's own report of a crash begins; the most recent call comes first in it."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What one worker has of the machine: threads, and the environment that pins its device."""

    threads: int
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Worker:
    """A worker process. `task` is what it was told to do and has not answered."""

    seat: Seat
    process: subprocess.Popen[bytes]
    pipe: Connection
    log: Path
    heard: float
    ready: bool = False
    task: Any = None
    logged: int = 0
    fate: str = ""

    def tail(self) -> str:
        """The last lines that its log got since its task began, or those that tell of a crash."""
        text = ""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self.logged, self.log.stat().st_size - LOOK_BACK))
            text = file.read().decode(errors="replace").strip()
        lines = text.splitlines()
        crash = next((i for i, line in enumerate(lines) if line.startswith(CRASH)), None)
        first = max(0, len(lines) - TAIL) if crash is None else crash
        return "\n".join(line[:160] for line in lines[first : first + TAIL])


class Pool:
    """At most one worker to a seat, started when there is something to do."""

    def __init__(self, folder: Path, seats: Sequence[Seat], hang: float | None) -> None:
        """Logs go to `folder`. A worker that is silent for `hang` seconds at a task is killed."""
        private_folder(folder)
        self.folder, self.seats, self.hang = folder, list(seats), hang
        self.workers: list[Worker] = []
        self.deaths = 0
        self._kept: list[tuple[Worker, Message | None]] = []
        self._looked = time.monotonic()

    def room(self) -> bool:
        """Whether there is a free worker, or a seat for one."""
        idle = any(worker.task is None for worker in self.workers)
        return idle or len(self.workers) < len(self.seats)

    def free(self) -> Worker | None:
        """A worker without a task, started in a free seat if need be; None when all are busy."""
        for worker in self.workers:
            if worker.task is None:
                return worker
        taken = {id(worker.seat) for worker in self.workers}
        for index, seat in enumerate(self.seats):
            if id(seat) not in taken:
                return self._start(index, seat)
        return None

    def busy(self) -> bool:
        """Whether any worker has a task, or an answer that nobody has heard."""
        return bool(self._kept) or any(worker.task is not None for worker in self.workers)

    def give(self, worker: Worker, message: Message, task: Any) -> None:
        """Tell a free worker what to do; one that has just died is heard of by `wait`."""
        with suppress(OSError):
            worker.logged = worker.log.stat().st_size
        worker.task, worker.heard = task, time.monotonic()
        with suppress(OSError):
            worker.pipe.send_bytes(json.dumps(message).encode())

    def wait(self) -> list[tuple[Worker, Message | None]]:
        """What workers say, as soon as one does; nothing when none does for a while.

        None from a worker that has ended; its `fate` tells how.
        """
        if self._kept:
            kept, self._kept = self._kept, []
            return kept
        self._forgive()
        pipes = {worker.pipe: worker for worker in self.workers}
        heard = [(pipes[pipe], self._hear(pipes[pipe])) for pipe in _readable(pipes)]
        for worker in list(self.workers):
            if all(worker is not other for other, _ in heard) and (fate := self._lost(worker)):
                self._bury(worker, fate)
                heard.append((worker, None))
        return heard

    def ask(self, questions: Mapping[Worker, Message]) -> list[Message | None]:
        """Answers of workers that are asked at the same time, None from those that ended."""
        for worker, message in questions.items():
            self.give(worker, message, message)
        answers: dict[Worker, Message | None] = {}
        others: list[tuple[Worker, Message | None]] = []
        while len(answers) < len(questions):
            for worker, said in self.wait():
                if worker not in questions:
                    others.append((worker, said))
                elif said is not None and "left" in said:
                    self.dismiss(worker)
                    answers[worker] = None
                elif said is None or not said.keys() & {"ready", "share"}:
                    answers[worker] = said
                    worker.task = None
        self._kept += others
        return [answers[worker] for worker in questions]

    def fill(self) -> bool:
        """A worker in every seat, all ready; False when one of them ended instead."""
        for index, seat in enumerate(self.seats):
            self._start(index, seat)
        while not all(worker.ready for worker in self.workers):
            if any(said is None for _, said in self.wait()):
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
        """End all workers: a pack that trains is saved; what does not end in time is killed."""
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
                if not self.deaths:
                    worker.log.unlink(missing_ok=True)
            self.workers.clear()

    def _start(self, index: int, seat: Seat) -> Worker:
        log = self.folder / f"worker-{index}-of-{len(self.seats)}.log"
        mine, theirs = Pipe()
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        count = str(seat.threads)
        with theirs, log.open("ab") as output:
            os.chmod(log, 0o600)
            process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(theirs.fileno()), count, paths],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": count, **seat.env},
            )
        worker = Worker(seat=seat, process=process, pipe=mine, log=log, heard=time.monotonic())
        self.workers.append(worker)
        return worker

    def _hear(self, worker: Worker) -> Message | None:
        try:
            message: Message = json.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            self._bury(worker, "")
            return None
        worker.heard = time.monotonic()
        worker.ready = True
        return message

    def _lost(self, worker: Worker) -> str | None:
        """Why a worker that says nothing is to be taken as lost; None when it is not.

        Its pipe may outlive it, in a process that it started.
        """
        if worker.process.poll() is not None and not worker.pipe.poll():
            return "ended"
        silent = time.monotonic() - worker.heard
        if not worker.ready:
            return f"was not ready after {STARTUP:g} s" if silent > STARTUP else None
        if worker.task is not None and self.hang is not None and silent > self.hang:
            return f"did no step for {self.hang:g} s and was ended"
        return None

    def _forgive(self) -> None:
        """The silence of workers does not count while this process itself stood still."""
        now = time.monotonic()
        if now - self._looked > 10 * TICK:
            for worker in self.workers:
                worker.heard = now
        self._looked = now

    def _bury(self, worker: Worker, fate: str) -> None:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(0 if fate else TICK)
        hung = worker.process.poll() is None
        worker.process.kill()
        code = worker.process.wait()
        worker.fate = fate if hung and fate else describe(code)
        worker.pipe.close()
        self.workers.remove(worker)
        self.deaths += 1


def _readable(pipes: Iterable[Connection]) -> list[Connection]:
    return [pipe for pipe in wait(list(pipes), TICK) if isinstance(pipe, Connection)]


def describe(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
