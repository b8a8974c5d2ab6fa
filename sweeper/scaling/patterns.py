"""Patterns of parameters' names, as users give them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from sweeper.errors import ConfigError, suggest
from sweeper.scaling.spec import with_layer


def matching(key: str, patterns: Iterable[str], names: Iterable[str]) -> set[str]:
    """The names that match any of the patterns; ConfigError for a pattern that none matches."""
    known, found = [*names], set[str]()
    if isinstance(patterns, str):
        raise ConfigError(key, patterns, "a list of patterns, such as ['*.bias']")
    for pattern in patterns:
        hits = {name for name in known if fnmatchcase(name, pattern)}
        if not hits:
            near = suggest(pattern, {with_layer(name, "*") for name in known})
            raise ConfigError(key, pattern, f"no parameter matches; {near}")
        found |= hits
    return found
