"""The command line: one file a verb."""

import os
import signal
import sys
from typing import Any


def stop(*_: Any) -> None:
    """End at once, and plainly: while the command itself is imported nothing is to be kept."""
    os._exit(130)


if sys.argv[0].endswith(("/sweeper", "/sweeper/__main__.py")) and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, stop)
