"""Packages that have the name of a verb: importing one makes it an attribute of `sweeper`.

So it is made to be called as the verb is, `sweeper.search(...)`.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from sweeper.errors import SweeperError

CALLS = "sweeper.api.calls"


class _Callable(ModuleType):
    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(getattr(import_module(CALLS), self._verb))

    @property
    def _verb(self) -> str:
        return self.__name__.rpartition(".")[2]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Ask what the function of this name in `sweeper.api.calls` asks."""
        with import_module("sweeper.api.interrupt").whole_imports():
            calls = import_module(CALLS)
        try:
            return getattr(calls, self._verb)(*arguments, **keywords)
        except SweeperError as error:  # with one frame of ours, as of other calls
            raise error.with_traceback(None) from None


def is_called_as_its_verb(package: str) -> None:
    """Let the package of this name be called."""
    sys.modules[package].__class__ = _Callable
