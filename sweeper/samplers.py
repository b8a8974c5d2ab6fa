"""What was here: every strategy as a sampler of Optuna's; see `gone.py`."""

from __future__ import annotations

from sweeper.gone import gone


def __getattr__(name: str) -> object:
    """An error that says what to do instead; `from sweeper.samplers import Line` raises it."""
    if name.startswith("__"):  # what Python itself looks for
        raise AttributeError(name)
    raise ImportError(f"sweeper.samplers has no {name}{gone('samplers', 'sweeper.samplers')}")
