"""What a notebook gives for runs."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

from sweeper.api.shown import Study, nearby


def source_of(source: Any) -> Any:
    """Runs as a request has them: a study by its folder."""
    if isinstance(source, Study):
        return str(nearby(source.folder))
    return fspath(source) if isinstance(source, PathLike) else source
