"""Tune small, train big: search on a proxy model, transfer to any width, validate that it holds.

What is exported here is imported when it is first asked for: `import sweeper` loads no torch.
Types and settings stand in `__init__.pyi`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from sweeper.version import __version__

__all__ = [
    "Answer",
    "BadInput",
    "ConfigError",
    "CurrentTrial",
    "ParamScale",
    "ParamSpec",
    "Role",
    "ScaledOp",
    "Study",
    "SweeperError",
    "Transfer",
    "TransferPlan",
    "Update",
    "__version__",
    "classify",
    "compare",
    "current_trial",
    "explain",
    "export",
    "follow",
    "judge",
    "open_study",
    "plan_for",
    "predict",
    "search",
    "status",
    "transfer",
    "watch",
]
_NAMES = {
    "sweeper.api.calls": ("explain", "export", "open_study", "search", "status", "transfer"),
    "sweeper.api.shown": ("Answer", "Study", "Transfer"),
    "sweeper.classifier.classify": ("classify",),
    "sweeper.command.in_script": ("CurrentTrial", "current_trial"),
    "sweeper.command.watch": ("watch",),
    "sweeper.errors": ("BadInput", "ConfigError", "SweeperError"),
    "sweeper.evidence.compare.calls": ("compare",),
    "sweeper.evidence.follow.decision": ("follow",),
    "sweeper.evidence.judge.calls": ("judge",),
    "sweeper.evidence.predict.calls": ("predict",),
    "sweeper.plan.plan": ("TransferPlan",),
    "sweeper.plan.plan_for": ("plan_for",),
    "sweeper.scaling.spec": ("ParamScale", "ParamSpec", "Role", "ScaledOp", "Update"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
"""Where the names come from that are imported on demand."""


class _Package(ModuleType):
    """`sweeper.search` is the function, also where the package of that name was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        from sweeper.gone import gone

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{gone(name)}")
    from sweeper.api.interrupt import asked_by_user, whole_imports

    with whole_imports():
        value = getattr(import_module(_MODULES[name]), name)
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            value = asked_by_user(value)
        if name in ("search", "export"):  # `import sweeper.search.optuna` finds it in the function
            package = vars(import_module(f"sweeper.{name}"))
            package.update(vars(value))
            value.__dict__ = package
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
