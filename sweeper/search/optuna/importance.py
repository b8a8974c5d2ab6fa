"""Which hyperparameters a search's losses depend on, by Optuna's own estimate."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, create_trial

from sweeper.search.optuna.mapping import quiet

Column = Sequence[float] | Sequence[str]
"""The values that trials have of a hyperparameter: in log2, or choices by their texts."""


def importances(
    columns: Mapping[str, Column], losses: Sequence[float], draws: int
) -> dict[str, tuple[float, float, float]]:
    """Each hyperparameter's share by PED-ANOVA, with the least and the largest of some `draws`.

    The draws are of the trials, with replacement. Only ranks count: what diverged is no better than
    the worst of all others.
    """
    ranges = {name: _range(column) for name, column in columns.items()}
    worst = max(filter(math.isfinite, losses))
    with quiet():
        trials = [
            create_trial(
                params={name: column[i] for name, column in columns.items()},
                distributions=ranges,
                value=min(loss, worst),
            )
            for i, loss in enumerate(losses)
        ]
        shares, chance = _shares(trials), random.Random(0)
        again = [_shares(chance.choices(trials, k=len(trials))) for _ in range(draws)]
    ends = {name: [drawn.get(name, 0.0) for drawn in again] for name in shares}
    return {
        name: (share, min(ends[name], default=share), max(ends[name], default=share))
        for name, share in shares.items()
    }


def _range(column: Column) -> BaseDistribution:
    numbers = [value for value in column if not isinstance(value, str)]
    if not numbers:
        return CategoricalDistribution(sorted({*map(str, column)}))
    return FloatDistribution(min(numbers), max(numbers))


def _shares(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    study = optuna.create_study()
    study.add_trials(trials)
    return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))
