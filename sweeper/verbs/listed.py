"""Every verb's Request, by its name: of the modules that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sweeper.verbs.requests import Request

MODULES = ("sweeper.verbs.requests", "sweeper.verbs.evidence_requests")
"""Where requests stand; a verb whose module is not there is not listed."""


def _requests() -> Iterator[type[Any]]:
    for name in MODULES:
        if find_spec(name) is None:
            continue
        for each in vars(import_module(name)).values():
            if isinstance(each, type) and issubclass(each, Request) and each.__module__ == name:
                yield each


REQUESTS: Mapping[str, type[Any]] = {each.verb: each for each in _requests() if each is not Request}
"""Every verb's request, in the order of the help."""
