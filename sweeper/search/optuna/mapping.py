"""Spaces and trials, ours and Optuna's: the one place that turns one into the other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from sweeper.errors import ConfigError
from sweeper.records import to_json
from sweeper.trial import Axis, Choice, Result, Space, Trial

Ranges = Mapping[str, BaseDistribution]
"""Hyperparameters by name, as people read them: plain numbers and choices."""

RESULT = "result"
"""The attribute of what was measured: one, since Optuna syncs the disk for each."""


def log2_range(axis: Axis) -> BaseDistribution:
    """An axis as a sampler searches it: a range of logarithms, or categories by their places."""
    if axis.choices:
        return CategoricalDistribution(axis.grid(1.0))
    return FloatDistribution(axis.low, axis.high)


def ranges_of(trials: Iterable[Trial], space: Space) -> dict[str, BaseDistribution]:
    """The hyperparameters of `trials`, in ranges that hold all their values, and the space's."""
    numbers: dict[str, list[float]] = {}
    choices: dict[str, dict[Choice, None]] = {}
    for trial in trials:
        for name, value in trial.hps.items():
            if 0 < value < math.inf:  # else it is in no range on a logarithmic scale
                numbers.setdefault(name, []).append(value)
        for name, choice in trial.choices.items():
            choices.setdefault(name, {})[choice] = None
    ranges: dict[str, BaseDistribution] = {}
    for name, values in numbers.items():
        axis = space.get(name)
        values += [2.0**axis.low, 2.0**axis.high] if axis and not axis.choices else []
        ranges[name] = FloatDistribution(min(values), max(values), log=True)
    for name, listed in choices.items():
        axis = space.get(name)
        kept = axis.choices if axis and axis.choices else sorted(listed, key=str)
        ranges[name] = CategoricalDistribution(kept)
    return ranges


def read_space(space: Mapping[str, Axis | BaseDistribution]) -> Space:
    """A space of Optuna's as strategies search it; ConfigError names the hyperparameter.

    The default is the middle of a range's grid, and the first of choices: an `Axis` has its own.
    """
    if not isinstance(space, Mapping) or not space:
        raise ConfigError("space", space, "distributions of Optuna's by hyperparameter")
    return {name: _axis(f"space.{name}", distribution) for name, distribution in space.items()}


def _axis(key: str, distribution: Any) -> Axis:
    if isinstance(distribution, Axis):
        return distribution
    if isinstance(distribution, CategoricalDistribution):
        choices = tuple(choice for choice in distribution.choices if choice is not None)
        return Axis(low=0.0, high=len(choices) - 1.0, choices=choices)
    if not isinstance(distribution, FloatDistribution | IntDistribution) or not distribution.log:
        allowed = "a distribution with log=True, since strategies search on grids in log2; or a "
        allowed += "CategoricalDistribution of the values to try"
        raise ConfigError(key, distribution, allowed)
    # With whole powers exact, and no last digits that differ.
    low, high = (round(math.log2(end), 12) for end in (distribution.low, distribution.high))
    return Axis(low=low, high=high, default=low + (high - low) // 2)


def params_of(trial: Trial, ranges: Ranges) -> dict[str, Choice]:
    """The hyperparameters of a trial that are in `ranges`; ValueError for one that none holds."""
    for name, value in trial.hps.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value:g}")
    return {name: value for name, value in trial.values.items() if name in ranges}


def attributes_of(trial: Trial) -> dict[str, Any]:
    """What Optuna keeps of a trial beside its hyperparameters, from its beginning."""
    attributes: dict[str, Any] = {"key": trial.key, "phase": trial.phase, "seed": trial.seed}
    attributes |= {"width": trial.width, "depth": trial.depth}
    return attributes | ({"choices": dict(trial.choices)} if trial.choices else {})


def outcome_of(result: Result) -> tuple[TrialState, float | None]:
    """The state and the value of a result; what diverged has +inf, and a failure none."""
    if result.status == "failed" or math.isnan(result.objective):
        return TrialState.FAIL, None
    state = TrialState.PRUNED if result.status == "pruned" else TrialState.COMPLETE
    return state, result.objective


def measured(result: Result) -> dict[str, Any]:
    """What Optuna keeps of a trial once it has ended, beside its value."""
    kept: dict[str, Any] = {"heldout": to_json(result.heldout), "seconds": to_json(result.seconds)}
    kept |= {} if result.accuracy is None else {"accuracy": result.accuracy}
    # MySQL refuses attributes much longer than this.
    return kept | ({"error": result.error[:2000]} if result.error else {})


def ended(result: Result, ranges: Ranges) -> FrozenTrial:
    """A result as a trial of Optuna's that has ended; ValueError where it can be none."""
    state, value = outcome_of(result)
    params = params_of(result.trial, ranges)
    stopped = state == TrialState.PRUNED and value is not None and math.isfinite(value)
    trial = optuna.trial.create_trial(
        state=state,
        value=value,
        params=params,
        distributions={name: ranges[name] for name in params},
        user_attrs={**attributes_of(result.trial), RESULT: measured(result)},
        intermediate_values={result.steps: result.objective} if stopped else None,
    )
    trial.datetime_complete = datetime.fromtimestamp(result.finished_at)
    seconds = result.seconds if math.isfinite(result.seconds) else 0.0
    trial.datetime_start = trial.datetime_complete - timedelta(seconds=seconds)
    return trial


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
