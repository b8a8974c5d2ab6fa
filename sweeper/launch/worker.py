"""A worker: it does what its source names, until that names nothing more or tells it to leave.

`serve` is the worker of all launchers whose jobs run in other processes. On a cluster its source is
one submission (`slurm_jobs.Run`). On this machine it is a `Link`: a Unix socket, over which the
driver names one job after the other, so that a worker stays warm. Messages are JSON, one a packet.
The driver sends `{"job": folder, "attempt": number}` or `{"call": task}`. The worker sends
`{"ready"}` once, `{"fraction"}` now and then while it works, the answer `{"done"}`, `{"answer"}` or
`{"error"}`, and `{"left"}` at its end.

A worker of this machine is the child of a `WorkerJob`, which submitit runs. That one says over the
same socket which process it has started, `{"worker"}`, and how it ended, `{"ended"}`: an exit code,
which a worker that is killed cannot tell. Nothing heavy is imported here before the socket is
watched.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sweeper.launch.job import Control

Message = dict[str, Any]
Controls = Callable[[Callable[[str], None]], "Control"]
"""What makes a job's `Control`, of a function that keeps a sentence for the user."""
Work = Callable[[Controls], Any]

GRACE = 10.0
"""Seconds that a worker has to save its job once it should leave; then it is ended."""
BEAT = 0.5
"""Seconds between two signs of life of a worker at work."""

LOG_FLAGS = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW
"""Of a log, in a study that others may write: a link there would have us write elsewhere."""

BOOT = (
    "import sys; sys.path[:] = {paths!a}; "
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); "
    "from sweeper.launch.worker import main; main({link}, {preload!a})"
)
"""The program of a worker: a terminal's Ctrl-C is the driver's, modules are found as it does."""


class WorkSource(Protocol):
    """Where a worker's work comes from, and who hears what became of it."""

    def next(self) -> Work | None:
        """What is to be done now; None when it is time to end."""

    def control(self, notify: Callable[[str], None]) -> Control:
        """What the work is told, and tells, while it is done."""

    def done(self, answer: Any) -> None:
        """The work has returned."""

    def failed(self, error: BaseException) -> bool:
        """The work has raised; whether the worker outlives it."""


def serve(source: WorkSource) -> None:
    """Do what a source names; raises what the source will not have it outlive."""
    while (work := source.next()) is not None:
        try:
            answer = work(source.control)
        except BaseException as error:
            if not source.failed(error):
                raise
        else:
            source.done(answer)


class Link:
    """The worker's end of the socket; a thread of its own notices at once when it closes."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # or a child of a task would keep it open after us
        self._pipe = Connection(fd)
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._leaving = Event()
        self._serving, self._last_sent, self._fraction = False, 0.0, 0.0
        self._saved = Event()
        self._is_call = False
        Thread(target=self._read, name="pipe", daemon=True).start()

    def next(self) -> Work | None:
        """What the next message names; None when it is time to leave."""
        self._serving, self._fraction = True, 0.0
        self._saved.clear()
        message = None if self._leaving.is_set() else self._messages.get()
        if message is None:
            return None
        from sweeper.launch.job import Job, run_job
        from sweeper.records import from_json

        self._is_call = "call" in message
        if self._is_call:
            return lambda controls: from_json(Job, message["call"]).task.run(controls(print))

        def run(controls: Controls) -> int:
            attempt: int = message["attempt"]
            run_job(Path(message["job"]), attempt, controls, sync=False)
            return attempt

        return run

    def control(self, notify: Callable[[str], None]) -> Control:
        """Being asked whether to leave, it gives signs of life."""
        from sweeper.launch.job import Control

        return Control(
            progress=self._progress,
            notify=notify,
            should_leave=self._should_leave,
            saved=lambda is_saved: self._saved.set() if is_saved else self._saved.clear(),
        )

    def done(self, answer: Any) -> None:
        """What a task returned, or the number of the attempt that left a result."""
        self.send({"answer" if self._is_call else "done": answer})

    def failed(self, error: BaseException) -> bool:
        """What the user should read is sent; a job that left has no answer; the rest is fatal."""
        from sweeper.errors import BadInput, SweeperError
        from sweeper.launch.job import Leave

        if isinstance(error, Leave):
            return True
        if self._is_call and isinstance(error, SweeperError):
            self.send({"answer": None})
        elif isinstance(error, SweeperError):
            self.send({"error": str(error), "input": isinstance(error, BadInput)})
        elif isinstance(error, OSError) and not self._is_call:
            where = f": {error.filename}" if error.filename else ""
            self.send({"error": f"{error.strerror or error}{where}", "input": False})
        else:
            return False
        return True

    def send(self, message: Message) -> None:
        """Say something; a driver that is gone is noticed elsewhere."""
        self._last_sent = time.monotonic()
        try:
            self._pipe.send_bytes(json.dumps(message).encode())
        except OSError:
            self.leave()

    def leave(self) -> None:
        """Have the job at hand saved, and the process ended."""
        self._leaving.set()
        self._messages.put(None)

    def _progress(self, fraction: float) -> None:
        self._fraction = fraction  # sent with the next sign of life

    def _should_leave(self) -> bool:
        if time.monotonic() - self._last_sent > BEAT:
            self.send({"fraction": self._fraction})
        return self._leaving.is_set()

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(json.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            pass
        # The driver has closed the socket, or is gone. A worker still at its imports just ends; one
        # that serves saves its job first, and is ended here if it cannot in time, or has it saved.
        if self._serving:
            self.leave()
            self._saved.wait(GRACE)
        os._exit(1)


def main(fd: int, preload: str) -> None:
    """Serve until the socket closes or SIGTERM comes; a job's fatal error ends the process.

    The module `preload` is imported before the worker is ready.
    """
    link = Link(fd)
    signal.signal(signal.SIGTERM, lambda *_: link.leave())
    from sweeper.launch.machine import collect_rarely, find_users_modules

    collect_rarely()
    find_users_modules()
    faulthandler.enable(all_threads=False)  # a crash leaves its line in the log: `CRASH_LINE`
    importlib.import_module(preload)
    link.send({"ready": os.getpid()})
    serve(link)
    link.send({"left": True})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what libraries would tidy up at their leisure goes with the process


class WorkerJob:
    """What submitit runs on this machine: it starts a worker, and says how that one ended.

    submitit tells nobody how a job's process ended, and the parent of a process alone can know it:
    a worker that ran out of memory was killed, and leaves no other trace.
    """

    _process: subprocess.Popen[bytes] | None = None

    def __init__(
        self,
        address: Path,
        log: Path,
        preload: str,
        paths: Sequence[str],
        env: Mapping[str, str | None],
    ) -> None:
        """The driver listens at `address`, in the folder of this job.

        What the worker prints goes to `log`, `paths` are its `sys.path`. Its environment is the
        driver's but for `env`; None is a variable that it has not.
        """
        self.address, self.log, self.preload = address, log, preload
        self.paths, self.env = list(paths), dict(env)

    def __call__(self) -> None:
        """Until the worker has ended."""
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(str(self.address))
        except OSError:
            self._remove()
            raise
        pipe = Connection(os.dup(link.fileno()))
        env = {k: v for k, v in os.environ.items() if not k.startswith("SUBMITIT_")} | self.env
        with link, os.fdopen(os.open(self.log, LOG_FLAGS, 0o600), "ab") as output:
            boot = BOOT.format(link=link.fileno(), preload=self.preload, paths=self.paths)
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[link.fileno()],
                env={name: value for name, value in env.items() if value is not None},
            )
        try:
            _say(pipe, {"worker": self._process.pid, "job": os.getpid()})
            self._process.wait()
        finally:  # also when submitit ends the waiting: see `checkpoint`
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
            self._process.kill()
            if not _say(pipe, {"ended": self._process.wait()}):
                self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.address.parent, ignore_errors=True)

    def checkpoint(self) -> None:
        """Time is up, says submitit: the worker saves its job, and leaves.

        None is for submitit: nothing goes back into its queue, as the driver starts another worker.
        """
        if self._process is not None:
            self._process.terminate()


def _say(pipe: Connection, message: Message) -> bool:
    try:
        pipe.send_bytes(json.dumps(message).encode())
    except OSError:
        return False
    return True
