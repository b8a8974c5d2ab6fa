"""Tune small, train big: search on a proxy model, transfer to any width, prove that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeper.models.classifier import classify

__version__ = "0.1.0"
__all__ = ["__version__", "classify"]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name == "classify":
        from sweeper.models.classifier import classify

        return classify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
