"""Trials of studies of Optuna as runs, from a storage that others wrote."""

from __future__ import annotations

import math
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.runs.series import Objective, flat, name_without_values, named_values
from sweeper.search.optuna.storage import read_storage
from sweeper.search.optuna.url import redact

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

OURS = frozenset({"key", "phase", "finished_at", "heldout", "seconds", "choices"})
"""Attributes of a copy of a study of ours that are no settings."""


def storage_frame(url: str, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """The trials of a study in a storage of Optuna, or of several that `objective.study` names.

    BadInput for a storage that cannot be read, a study that is not there or that maximizes.
    """
    import pandas

    shown = redact(url)
    with read_storage(url) as (names, load):
        patterns = [part.strip() for part in objective.study.split(",") if part.strip()]
        chosen = [n for n in names if any(n == p or fnmatch(n, p) for p in patterns)]
        if not patterns and len(names) == 1:
            chosen = names
        listed = ", ".join(names[:20]) + ", ..." * (len(names) > 20) or "there is none"
        if not chosen:
            allowed = f"studies of {shown}, by names or patterns such as 'w*,base': {listed}"
            raise ConfigError(Keyword("study"), objective.study, allowed)
        rows = []
        for name in chosen:
            study = load(name)
            directions = [direction.name.lower() for direction in study.directions]
            if directions != ["minimize"]:
                raise BadInput(
                    f"the study {name!r} of {shown} does not minimize one value "
                    f"({', '.join(directions)}): a verdict takes a loss"
                )
            for trial in study.get_trials(deepcopy=False):
                attributes = flat(study.user_attrs) | flat(trial.user_attrs)
                if {"key", "finished_at"} <= attributes.keys():
                    attributes = {k: value for k, value in attributes.items() if k not in OURS}
                facts = named_values(name) | attributes | dict(trial.params)
                # What of its name says no hyperparameter may be what several studies differ in.
                facts |= {"study": name_without_values(name)}
                loss = trial.values[0] if trial.values else math.nan
                state = {"state": trial.state.name.lower(), "trial": trial.number, "value": loss}
                rows.append(facts | state)
    if not rows:
        raise BadInput(f"the studies {', '.join(chosen)} of {shown} have no trials")
    return pandas.DataFrame(rows), [f"trials of {', '.join(chosen)} in {shown}"]
