"""Warnings of libraries: kept from the screen, and for a study in its folder."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TextIO

DEPRECATIONS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
PACKAGE = Path(__file__).parents[1]
WARNED: dict[str, None] = {}
"""What was warned of, in its order; a verb with a study keeps it in the study's folder."""


def keep_warnings() -> None:
    """Keep libraries' warnings from the screen; a verb with a study writes them to its folder.

    What code of the user's own warns of is said, but for deprecations. With -W or PYTHONWARNINGS
    all is as Python has it.
    """
    if sys.warnoptions:
        return

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        warning = f"{filename}:{lineno}: {category.__name__}: {message}"
        of_library = "site-packages" in filename or Path(filename).is_relative_to(PACKAGE)
        if not of_library and not issubclass(category, DEPRECATIONS) and warning not in WARNED:
            print(f"Warning: {message} ({filename}:{lineno})", file=sys.stderr)
        WARNED[warning] = None

    warnings.showwarning = show
