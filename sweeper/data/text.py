"""UTF-8 text of any size as tokens."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

from sweeper.data.textfiles import TextFiles
from sweeper.errors import BadInput, ConfigError


@dataclass(frozen=True, kw_only=True)
class Text(TextFiles):
    """The text in `path`: a file or a glob (with `**` for any depth; `~` is the home directory).

    The files of a glob are read in the order of their names, one line end between them.
    """

    path: str

    def __post_init__(self) -> None:
        """ConfigError as `TextFiles`, and for a path that is none."""
        super().__post_init__()
        if not isinstance(self.path, str) or not self.path:
            raise ConfigError("path", self.path, "a text file, or a glob such as texts/**/*.txt")

    def files(self) -> list[Path]:
        """The files that `path` stands for; BadInput for a directory or a glob without match."""
        path = os.path.expanduser(self.path)
        if os.path.lexists(path) or not glob.has_magic(path):
            if os.path.exists(path) and not os.path.isfile(path):
                raise BadInput(f"{path} is no regular file; a glob such as {path}/**/*.txt is fine")
            return [Path(path)]
        names = sorted(set(filter(os.path.isfile, glob.glob(path, recursive=True))))
        if not names:
            raise BadInput(f"no file matches {path}")
        return [Path(name) for name in names]
