"""Ctrl-C in a notebook, whose process goes on: it must not be left with half a module.

Nothing heavy is imported here.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 0.02
"""Seconds after which a Ctrl-C that waits is tried again."""


@contextmanager
def whole_imports() -> Iterator[None]:
    """Ctrl-C in here waits for the end of an import that is under way.

    Broken off it would leave half a module, on which every later call in this process fails: torch,
    for one, cannot be imported a second time.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    main, waiting = threading.get_ident(), list[threading.Timer]()

    def handle(number: int, frame: FrameType | None) -> None:
        waiting.clear()
        at: FrameType | None = frame
        while at is not None and at.f_code.co_name != "_find_and_load":
            at = at.f_back
        if at is None:
            before(number, frame)
            return
        waiting.append(threading.Timer(AGAIN, signal.pthread_kill, (main, number)))
        waiting[0].start()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for timer in waiting:
            timer.cancel()
    if waiting:
        raise KeyboardInterrupt
