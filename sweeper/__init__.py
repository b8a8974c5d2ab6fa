"""Tune small, train big: search on a proxy model, transfer to any width, validate that it holds.

What is exported here is imported when it is first asked for: `import sweeper` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.version import __version__

if TYPE_CHECKING:
    from sweeper.api.calls import explain, export, open_study, search, status, transfer
    from sweeper.api.shown import Answer, Study, Transfer
    from sweeper.classifier.classify import classify
    from sweeper.command.in_script import CurrentTrial, current_trial
    from sweeper.command.watch import watch
    from sweeper.evidence.compare.calls import compare
    from sweeper.evidence.follow.decision import follow
    from sweeper.evidence.judge.calls import judge
    from sweeper.evidence.predict.calls import predict
    from sweeper.plan.plan import TransferPlan
    from sweeper.plan.plan_for import plan_for
    from sweeper.scaling.spec import ParamScale, ParamSpec, Role, ScaledOp, Update

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
    "sweeper.api.calls": ("explain", "open_study", "status", "transfer"),
    "sweeper.api.shown": ("Answer", "Study", "Transfer"),
    "sweeper.classifier.classify": ("classify",),
    "sweeper.command.in_script": ("CurrentTrial", "current_trial"),
    "sweeper.command.watch": ("watch",),
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


def __getattr__(name: str) -> Any:
    """Import what is asked for, once."""
    if name in ("search", "export"):  # the package is the function: see face.py
        return import_module(f"sweeper.{name}")
    if name not in _MODULES:
        from sweeper.gone import gone

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{gone(name)}")
    from sweeper.api.interrupt import asked_by_user, whole_imports

    with whole_imports():
        value = getattr(import_module(_MODULES[name]), name)
    if name in ("classify", "follow", "plan_for"):
        value = asked_by_user(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All names, those not yet imported too."""
    return sorted({*globals(), *__all__})
