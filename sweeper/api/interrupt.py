"""Calls of a user's, in a process that goes on: Ctrl-C leaves no half module, an error no frames.

Nothing heavy is imported here.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, TypeVar, cast

from sweeper.errors import BadInput, ConfigError, Keyword, SweeperError, suggest
from sweeper.gone import gone

F = TypeVar("F", bound=Callable[..., Any])
AGAIN = 0.02
"""Seconds after which a Ctrl-C that waits is tried again."""


@contextmanager
def whole_imports() -> Iterator[None]:
    """Ctrl-C in here waits for the end of an import that is under way.

    Broken off it would leave half a module, on which every later call in this process fails: torch,
    for one, cannot be imported a second time.
    """
    before = signal.getsignal(signal.SIGINT)
    # Python handles signals in its main thread alone.
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    main, waiting = threading.get_ident(), list[threading.Timer]()

    def handle(number: int, frame: FrameType | None) -> None:
        waiting.clear()
        # Below a frame of this name, that of Python's import system, a module is half made.
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
    # A Ctrl-C that still waited at the end of the block is not lost.
    if waiting:
        raise KeyboardInterrupt


def asked_by_user(function: F) -> F:
    """The function as a user calls it: with `whole_imports`, and what it refuses is theirs alone.

    An error of ours comes without the frames on the way, of which nobody learns anything. Arguments
    that the function has not, or lacks, are one, too.
    """
    signature = inspect.signature(function)
    names = signature.parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in names.values())

    @wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            for name, value in keywords.items():
                went = gone(f"{function.__name__} {name}")
                if went or not (takes_any or name in names):
                    near = went or f"; {suggest(name, names)}"
                    raise ConfigError(Keyword(name), value, f"no keyword has this name{near}")
            try:
                signature.bind(*arguments, **keywords)
            except TypeError as error:
                raise BadInput(f"{function.__name__}: {error}") from None
            with whole_imports():
                return function(*arguments, **keywords)
        # Here, and in no context manager: one of contextlib's gives an error its frames back.
        except SweeperError as error:
            raise error.with_traceback(None) from None

    return cast(F, called)
