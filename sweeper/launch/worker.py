"""A worker process: it trains the jobs named to it over a pipe, until the pipe closes.

Messages are JSON, one a packet. The driver sends `{"job": folder, "attempt": number}` or
`{"measure": {trials, corpus, device}}`. The worker sends `{"ready"}` once, `{"share"}` now and then
while it trains, the answer `{"done"}`, `{"measured"}` or `{"error"}`, and `{"left"}` at its end.
Nothing heavy is imported here before the pipe is watched.
"""

from __future__ import annotations

import faulthandler
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
    from sweeper.training.train import Order, Reporter

Message = dict[str, Any]

GRACE = 10.0
"""Seconds that a worker has to save its pack once it should leave; then it is ended."""
BEAT = 0.5
"""Seconds between two signs of life of a worker that trains."""

BOOT = (
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = json.loads(sys.argv[3]); from sweeper.launch.worker import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
"""The program of a worker: a terminal's Ctrl-C is the driver's, modules are found as it does."""


class Link:
    """The worker's end of the pipe; a thread of its own notices at once when it closes."""

    def __init__(self, fd: int) -> None:
        """Take over the open socket `fd`."""
        os.set_inheritable(fd, False)
        self._pipe = Connection(fd)
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._leaving = Event()
        self._began, self._spoke, self.share = False, 0.0, 0.0
        Thread(target=self._read, name="pipe", daemon=True).start()

    def next(self) -> Message | None:
        """The next message; None when it is time to leave."""
        self._began = True
        return None if self._leaving.is_set() else self._messages.get()

    def send(self, message: Message) -> None:
        """Say something; a driver that is gone is noticed elsewhere."""
        self._spoke = time.monotonic()
        try:
            self._pipe.send_bytes(json.dumps(message).encode())
        except OSError:
            self.leave()

    def leave(self) -> None:
        """Have the pack that trains saved, and the process ended."""
        self._leaving.set()
        self._messages.put(None)

    def order(self) -> Order:
        """Whether to go on; asked at every step, and now and then a sign of life."""
        from sweeper.training.train import Order

        if time.monotonic() - self._spoke > BEAT:
            self.send({"share": self.share})
        return Order.LEAVE if self._leaving.is_set() else Order.GO

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(json.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            pass
        if self._began:
            self.leave()
            time.sleep(GRACE)
        os._exit(1)


def main(fd: int, threads: int) -> None:
    """Serve until the pipe closes or SIGTERM comes; a trial's fatal error ends the process."""
    link = Link(fd)
    signal.signal(signal.SIGTERM, lambda *_: link.leave())
    faulthandler.enable(all_threads=False)
    import torch

    import sweeper.launch.job
    import sweeper.training.packing  # noqa: F401

    torch.set_num_threads(threads)
    link.send({"ready": os.getpid()})
    while message := link.next():
        answer = _train(link, message) if "job" in message else _measure(message["measure"])
        if answer is not None:
            link.send(answer)
    link.send({"left": True})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what torch would tidy up at its leisure goes with the process


def _train(link: Link, message: Message) -> Message | None:
    """Run a job; None when it was left. What kills this process has no answer."""
    from sweeper.errors import BadInput, SweeperError
    from sweeper.launch.job import run_job
    from sweeper.training.train import Left

    link.share = 0.0
    try:
        own, attempt = Path(message["job"]), message["attempt"]
        run_job(own, attempt, lambda tell: _reporter(link, tell), sync=False)
    except Left:
        return None
    except SweeperError as error:
        return {"error": str(error), "input": isinstance(error, BadInput)}
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return {"error": f"{error.strerror or error}{where}", "input": False}
    return {"done": message["attempt"]}


def _reporter(link: Link, tell: Callable[[str], None]) -> Reporter:
    from sweeper.training.train import Reporter

    def progress(share: float) -> None:
        link.share = share

    return Reporter(progress=progress, tell=tell, order=link.order)


def _measure(message: Message) -> Message:
    """Measure the best pack of these trials; None when they cannot be trained."""
    from dataclasses import asdict

    from sweeper.errors import SweeperError
    from sweeper.launch.packs import UNTRAINABLE
    from sweeper.plugin import build
    from sweeper.training.pack import Pack
    from sweeper.training.packing import measure
    from sweeper.trial import Trial

    try:
        trials = tuple(Trial(**trial) for trial in message["trials"])
        pack = Pack(trials=trials, corpus=build(message["corpus"]))
        return {"measured": asdict(measure(pack, message["device"]))}
    except (SweeperError, *UNTRAINABLE):
        return {"measured": None}
