"""What the verbs of the wing take alike: which rows, which columns, counts of a run to come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from sweeper.errors import ConfigError, Keyword
from sweeper.records import Bounds
from sweeper.verbs.requests import Flag

COUNT = Bounds(least=1, below=1e30)
Where = Annotated[str, Flag("Take these rows alone, as in 'optimizer == \"muon\"'.")]
Ignore = Annotated[
    str | tuple[str, ...], Flag("Columns that may differ between runs: 'host,lr_min'.")
]


def columns_text(columns: Any) -> str:
    """Roles and columns as a text, `width=n_embd,loss=val_loss`."""
    if isinstance(columns, str):
        return columns
    return ",".join(f"{role}={column}" for role, column in columns.items())


def fixed_values(fixed: str | Mapping[str, Any]) -> dict[str, float]:
    """What is known of a law, by name; ConfigError for what is no number, or is said twice."""
    form, typed = "numbers by name, as in 'E=1.69,alpha=0.34'", fixed
    if isinstance(fixed, str):
        words = [word.partition("=") for word in fixed.split(",") if word.strip()]
        fixed = {name.strip(): value for name, _, value in words}
        if len(fixed) < len(words):
            raise ConfigError(Keyword("fixed"), typed, f"{form}, each name once")
    try:
        return {str(name): float(value) for name, value in fixed.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(Keyword("fixed"), typed, form) from error


def ignored(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Columns that may differ, one by one."""
    columns = names.split(",") if isinstance(names, str) else names
    return tuple(filter(None, (word.strip() for word in columns)))
