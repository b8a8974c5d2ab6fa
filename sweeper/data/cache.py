"""The folder that keeps prepared corpora; its errors are BadInput, as the user chose it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sweeper import files
from sweeper.errors import BadInput


@contextmanager
def replacing_in_cache(path: Path) -> Iterator[BinaryIO]:
    """As `files.replacing`, the folder made if need be; BadInput when it cannot be written.

    The unfinished file has a unique name: several jobs may prepare one corpus at once.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as file:
            yield file
    except OSError as error:
        raise BadInput(
            f"the cache directory {path.parent} cannot be written: {error.strerror or error}"
        ) from error


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a small record under `path`; BadInput as `replacing_in_cache`."""
    with replacing_in_cache(path) as file:
        file.write(json.dumps(record).encode())


def read_json(path: Path) -> dict[str, Any]:
    """A record from `write_json`, or an empty one where there is none that can be read."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
