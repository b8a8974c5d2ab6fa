"""A worker process: it runs the jobs named to it over a pipe, until the pipe closes.

Messages are JSON, one a packet. The driver sends `{"job": folder, "attempt": number}` or
`{"call": task}`. The worker sends `{"ready"}` once, `{"fraction"}` now and then while it works, the
answer `{"done"}`, `{"answer"}` or `{"error"}`, and `{"left"}` at its end. Nothing heavy is imported
here before the pipe is watched.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeper.launch.job import Control

Message = dict[str, Any]

GRACE = 10.0
"""Seconds that a worker has to save its job once it should leave; then it is ended."""
BEAT = 0.5
"""Seconds between two signs of life of a worker at work."""

BOOT = (
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = json.loads(sys.argv[3]); from sweeper.launch.worker import main; "
    "main(int(sys.argv[1]), sys.argv[2])"
)
"""The program of a worker: a terminal's Ctrl-C is the driver's, modules are found as it does."""


class Link:
    """The worker's end of the pipe; a thread of its own notices at once when it closes."""

    def __init__(self, fd: int) -> None:
        """Take over the open socket `fd`."""
        os.set_inheritable(fd, False)  # or a child of a task would keep the pipe open after us
        self._pipe = Connection(fd)
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._leaving = Event()
        self._serving, self._last_sent, self.fraction = False, 0.0, 0.0
        Thread(target=self._read, name="pipe", daemon=True).start()

    def next(self) -> Message | None:
        """The next message; None when it is time to leave."""
        self._serving = True
        return None if self._leaving.is_set() else self._messages.get()

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

    def should_leave(self) -> bool:
        """Whether to leave; asked at every step, and now and then a sign of life."""
        if time.monotonic() - self._last_sent > BEAT:
            self.send({"fraction": self.fraction})
        return self._leaving.is_set()

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(json.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            pass
        # The driver has closed the pipe, or is gone. A worker still at its imports just ends; one
        # that serves saves its job first, and is ended here if it cannot in time.
        if self._serving:
            self.leave()
            time.sleep(GRACE)
        os._exit(1)


def main(fd: int, preload: str) -> None:
    """Serve until the pipe closes or SIGTERM comes; a job's fatal error ends the process.

    The module `preload` is imported before the worker is ready.
    """
    link = Link(fd)
    signal.signal(signal.SIGTERM, lambda *_: link.leave())
    faulthandler.enable(all_threads=False)  # a crash leaves its line in the log: `CRASH_LINE`
    importlib.import_module(preload)
    link.send({"ready": os.getpid()})
    while message := link.next():
        answer = _run(link, message) if "job" in message else _call(link, message["call"])
        if answer is not None:
            link.send(answer)
    link.send({"left": True})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what libraries would tidy up at their leisure goes with the process


def _run(link: Link, message: Message) -> Message | None:
    """Run a job; None when it was left. What kills this process has no answer."""
    from sweeper.errors import BadInput, SweeperError
    from sweeper.launch.job import Control, Leave, run_job

    def progress(fraction: float) -> None:
        link.fraction = fraction  # sent with the next sign of life

    def control(notify: Callable[[str], None]) -> Control:
        return Control(progress=progress, notify=notify, should_leave=link.should_leave)

    link.fraction = 0.0
    try:
        job_dir, attempt = Path(message["job"]), message["attempt"]
        run_job(job_dir, attempt, control, sync=False)
    except Leave:
        return None
    except SweeperError as error:
        return {"error": str(error), "input": isinstance(error, BadInput)}
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return {"error": f"{error.strerror or error}{where}", "input": False}
    return {"done": message["attempt"]}


def _call(link: Link, record: Message) -> Message | None:
    """What a task returns; None in its place when it refuses. No message when it was left."""
    from sweeper.errors import SweeperError
    from sweeper.launch.job import Control, Job, Leave
    from sweeper.records import from_json

    try:
        control = Control(should_leave=link.should_leave)
        return {"answer": from_json(Job, record).task.run(control)}
    except Leave:
        return None
    except SweeperError:
        return {"answer": None}
