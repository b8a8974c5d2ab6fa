"""`report.html` while a study runs: a second process writes it anew as results come.

A process of its own, because drawing takes a CPU second, and can fail in ways that no `except`
catches: neither may cost the sweep anything. It has a low priority, is idle most of the time,
and learns of its driver's end by the end of its input, however the driver dies.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from sweeper.study.folder import StudyFolder

START_AFTER = 3.0
"""Seconds after the first result until the first page: what ends sooner is written at its end."""
EVERY = 4.0
"""Seconds between two pages, at least."""
SHARE = 0.05
"""Of one core, that pages may take: one that takes a second is written every 20."""
NICE = 10
"""At 19 a busy machine would take minutes for a page."""
PATIENCE = 600.0
"""Seconds that a driver may take from its last trial to its last page."""
STOP = b"s"
LIVE_MARK, LEFT_MARK = b"data-live=", b"data-left="
"""Of a page that is written anew, and of one that cannot be written any more; of one length."""
_START = (
    "import sys; {packages!a} in sys.path or sys.path.insert(0, {packages!a}); "
    "from pathlib import Path; from sweeper.report.live import main; main(Path({folder!a}))"
)
ENABLED = True
"""Tests, whose searches are many and short, write the last page alone."""


class LivePage:
    """The driver's end: begins with the first result, and says once where pages cannot be made."""

    def __init__(self, folder: Path, say: Callable[[str], None], command: str) -> None:
        """`folder` is the study's; `say` takes a sentence; `command` writes the page by hand."""
        self._folder, self._say, self._command = folder, say, command
        self._process: subprocess.Popen[bytes] | None = None
        self._has_failed = False
        self._ended: str | None = None
        """What the process said when it ended; None while it runs."""

    def changed(self) -> None:
        """There is a result more; to be called from the driver's own loop."""
        if not ENABLED or self._has_failed:
            return
        if self._process is None:
            self._start()
        elif self._ended is not None:  # by itself, and so by a failure
            self._failed(self._ended or "its process has died")

    def close(self, *, is_last: bool) -> None:
        """The sweep has ended, and its page says so: this process's own, or with `is_last` now.

        Where the driver then ends without having written one, there still is one.
        """
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):  # it may have died, and be closed already
            if is_last:
                self._process.stdin.close()
            else:
                self._process.stdin.write(STOP)
        self._process = None

    def _start(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        try:
            self._process = subprocess.Popen(
                program(self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
                # Ctrl-C is for the driver, whose end it waits for.
                start_new_session=True,
            )
        except OSError as error:
            self._failed(str(error))
        else:
            # Reaps it, and holds its input open until then: that ends with this process at last.
            Thread(target=self._reap, args=(self._process,), name="live-page", daemon=True).start()

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        told = process.stdout.read().decode(errors="replace").strip()
        process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        self._ended = told

    def _failed(self, why: str) -> None:
        self._has_failed = True
        self._say(
            f"Note: report.html is not written while this runs ({why}); `{self._command}` writes "
            "it. All else goes on"
        )


def program(folder: Path) -> list[str]:
    """The command of the process that writes the page of the study in `folder`.

    It finds this very package, and nothing in the folder worked in: a user's statistics.py there
    is no module of Python's.
    """
    packages = str(Path(__file__).parents[2])
    start = _START.format(packages=packages, folder=str(folder.absolute()))
    return [sys.executable, "-P", "-c", start]


def keep_written(folder: Path, wait: Callable[[float], str]) -> None:
    """Write the page of the study in `folder` anew as it changes, until `wait` names an end.

    `wait` sleeps for so many seconds at most, and answers "" while the sweep goes on, "stop" once
    its driver is about to write the last page, and "gone" once there is no driver any more.
    """
    state, written, every = wait(START_AFTER), "", EVERY
    while not state:
        if (now := _content(folder)) != written:
            _load()  # once, and so no part of what a page takes
            begun = time.process_time()
            _write(folder, every)
            written = now
            every = max(EVERY, (time.process_time() - begun) / SHARE)
        state = wait(every)
    stopped = state == "stop"
    end = time.monotonic() + PATIENCE
    while state == "stop" and is_live(StudyFolder(folder).report) and time.monotonic() < end:
        state = wait(0.5) or "stop"
    if not stopped or is_live(StudyFolder(folder).report):
        _write(folder, 0.0)


def is_live(page: Path) -> bool:
    """Whether a page says that it is written anew."""
    try:
        with page.open("rb") as file:
            return LIVE_MARK in file.read(200)
    except OSError:
        return False


def mark_left(page: Path) -> None:
    """Have a page say that it is not written any more, on a disk without room for another one."""
    with contextlib.suppress(OSError), page.open("r+b") as file:
        if (at := file.read(200).find(LIVE_MARK)) >= 0:
            file.seek(at)
            file.write(LEFT_MARK)


def _load() -> None:
    # Late: the process waits first, and a search may have ended by then.
    import sweeper.report.study_page  # noqa: F401


def _write(folder: Path, every: float) -> None:
    from sweeper.report.study_page import write_report

    write_report(folder, live=every, is_left=not every)


def _content(folder: Path) -> str:
    """What tells that a study has changed: its files' sizes and times."""
    parts = []
    for pattern in ("results/*", "*.json", "transfer/*/*.json"):
        for path in sorted(folder.glob(pattern)):
            with contextlib.suppress(OSError):
                stat = path.stat()
                parts.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(parts)


def _wait(seconds: float) -> str:
    """As `keep_written` asks for: a byte on stdin says stop, its end that the driver is gone."""
    ready, _, _ = select.select([0], [], [], seconds)
    if not ready:
        return ""
    return "stop" if os.read(0, 1) == STOP else "gone"


def main(folder: Path) -> None:
    """The process: one page after the other, and one sentence on stdout where that fails."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        keep_written(folder, _wait)
    except Exception as error:  # whatever it is, the driver goes on without a page
        mark_left(StudyFolder(folder).report)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        with contextlib.suppress(OSError):
            os.write(1, f"{text[:300]}\n".encode())
        sys.exit(1)
