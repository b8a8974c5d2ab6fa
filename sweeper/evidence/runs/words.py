"""Which runs were read, and which of their columns was taken for what."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.evidence.flags import columns_text
from sweeper.table import counted


def roles_text(columns: Mapping[str, str]) -> str:
    """Which column was taken for what: eta (learning rate) is 'lr', loss is 'val_loss'."""
    names = {"eta": "eta (learning rate)"}
    return ", ".join(f"{names.get(role, role)} is {column!r}" for role, column in columns.items())


def reading_text(runs: int, source: str, columns: Mapping[str, str]) -> str:
    """Which runs were read, and which column was taken for what."""
    return f"{counted(runs, 'run')} of {source}: {roles_text(columns)}"


def table_facts(
    source: object, sha256: str, where: str, columns: Mapping[str, str], runs: int
) -> dict[str, object]:
    """The facts that an answer on a table rests on, for its page."""
    return {
        "table": source or "a table in memory",
        "its SHA-256": sha256,
        "filter": where,
        "columns": columns_text(columns),
        "runs": runs,
    }
