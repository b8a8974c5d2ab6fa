"""Spaces and trials as Optuna has them: what samplers, the journal and importance share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from sweeper.trial import Axis

LUCKY = "its loss is not worse than the search's answer, a mean over fresh seeds"
"""Why a run that was trained to its end is shown as pruned: Optuna would call it the best."""


def log2_range(axis: Axis) -> BaseDistribution:
    """An axis as a sampler searches it: a range of logarithms, or categories by their places."""
    if axis.choices:
        return CategoricalDistribution(axis.grid(1.0))
    return FloatDistribution(axis.low, axis.high)


def plain_range(low: float, high: float, value: float) -> FloatDistribution:
    """A range given in log2 as people read it, wide enough for `value`: lines may leave theirs."""
    return FloatDistribution(min(2.0**low, value), max(2.0**high, value), log=True)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values of a hyperparameter are one, numbers to 1e-9; true is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's log and warnings from the terminal, and leave them as they were."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
