"""Patterns of names: those that users give of parameters, and that of a size that is a depth."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from sweeper.errors import ConfigError, suggest
from sweeper.scaling.spec import with_layer

DEPTH_NAME = re.compile(r"depth|layers?($|_)|(^|_)blocks$")
"""Found in the name of a size that is a depth; the other sizes are widths."""


def matching(
    key: str, patterns: Iterable[str], names: Iterable[str], what: str = "parameter"
) -> set[str]:
    """The names that match any of the patterns; ConfigError for a pattern that none matches.

    `what` says in a word what the names are of.
    """
    known, found = [*names], set[str]()
    if isinstance(patterns, str):
        raise ConfigError(key, patterns, "a list of patterns, such as ['*.bias']")
    for pattern in patterns:
        hits = {name for name in known if fnmatchcase(name, pattern)}
        if not hits:
            near = suggest(pattern, {with_layer(name, "*") for name in known})
            raise ConfigError(key, pattern, f"no {what} matches; {near}")
        found |= hits
    return found
