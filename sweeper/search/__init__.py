"""Search strategies: pure functions of the history.

The package has the name of the function that starts a search, and importing it makes it an
attribute of `sweeper`: so it can be called, as `sweeper.search(...)`.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(import_module("sweeper.api.calls").search)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Search the best hyperparameters at the base size: see `sweeper.api.calls.search`."""
        with import_module("sweeper.api.interrupt").whole_imports():
            calls = import_module("sweeper.api.calls")
        return calls.search(*arguments, **settings)


sys.modules[__name__].__class__ = _CallableModule
