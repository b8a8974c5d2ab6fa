"""Which hyperparameters a search's losses depend on, by Optuna's own estimate."""

from __future__ import annotations

import math
import random
from collections.abc import Container, Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from sweeper.search.optuna.mapping import quiet

Column = Sequence[float] | Sequence[str]
"""The values that trials have of a hyperparameter: in log2, or choices by their texts."""
_Row = tuple[dict[str, float | str], float]
"""A trial's hyperparameters, and its loss."""


def importances(
    columns: Mapping[str, Column], losses: Sequence[float], draws: int
) -> dict[str, tuple[float, float, float]]:
    """Each hyperparameter's share by PED-ANOVA, with the least and the largest of some `draws`.

    The draws are of the trials, with replacement. Only ranks count: what diverged is no better than
    the worst of all others.
    """
    ranges = {name: _range(column) for name, column in columns.items()}
    worst = max(filter(math.isfinite, losses))
    rows: list[_Row] = [
        ({name: column[i] for name, column in columns.items()}, min(loss, worst))
        for i, loss in enumerate(losses)
    ]
    with quiet():
        shares, chance = _shares(rows, ranges), random.Random(0)
        again = [_shares(chance.choices(rows, k=len(rows)), ranges) for _ in range(draws)]
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


class _Given(optuna.Study):
    """A study of trials as they are: a storage copies each, which takes longer than all else."""

    given: list[FrozenTrial]

    def get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """All of them, which are complete."""
        return self.given


def _shares(rows: Sequence[_Row], ranges: Mapping[str, BaseDistribution]) -> dict[str, float]:
    storage = InMemoryStorage()
    study = _Given(optuna.create_study(storage=storage).study_name, storage)
    study.given = [
        FrozenTrial(
            number=number,
            trial_id=number,
            state=TrialState.COMPLETE,
            value=loss,
            params=params,
            distributions=dict(ranges),
            datetime_start=None,
            datetime_complete=None,
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )
        for number, (params, loss) in enumerate(rows)
    ]
    return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))
