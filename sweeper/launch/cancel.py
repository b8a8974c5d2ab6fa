"""A request from another process that a sweep should end; what has finished is kept."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from sweeper.files import write_json


def request_cancel(folder: Path) -> None:
    """Ask the driver of the sweep in `folder` to end."""
    write_json(folder / "cancel.json", {"at": time.time()})


class Cancellation:
    """Whether the sweep in `folder` should end; a request from before it began is void."""

    def __init__(self, folder: Path) -> None:
        """Take an old request away."""
        self._path = folder / "cancel.json"
        with suppress(OSError):
            self._path.unlink()

    def requested(self) -> bool:
        """Whether somebody has asked since."""
        return self._path.exists()
