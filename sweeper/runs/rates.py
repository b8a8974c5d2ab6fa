"""Learning rates of a table in log2, whichever unit its column has."""

from __future__ import annotations

import math
import re

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.runs.run import Array, Runs

APART = 100.0
"""Neighbouring learning rates farther apart than this factor are taken for two units."""
LOG10_LEAST = -7.0
"""Above this a learning rate's logarithm may be to the base of ten."""


_UNIT = re.compile(r"[(\[]\s*[x*\u00d7]?\s*(?:1e|10\^|10\*\*)(-\d+)\s*[)\]]")
"""The end of a rate's name that says in what it is: peak lr (1e-3)."""


def log2_of(runs: Runs, column: str) -> tuple[Array, str, bool]:
    """A column's learning rates in log2, how they were read, and whether they are plain.

    ConfigError where units are mixed.
    """
    values = runs.numbers(column)
    bad = ~np.isfinite(values)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise BadInput(f"{runs.row(place)} has no learning rate in {column!r}")
    name = column.lower()
    if (unit := _UNIT.search(name)) is not None:
        scale = float(f"1e{unit[1]}")
        if not (values > 10 * scale).all():
            raise ConfigError(
                Keyword("columns"),
                f"eta={column}",
                f"learning rates in one unit: {values.min():g} may be meant in {scale:g}, as the "
                "column's name has it, or as it is. Take the unit out of the name, or the number",
            )
        return (
            np.log2(values * scale).round(12),
            f"{column!r} is in {scale:g}, as its name says",
            True,
        )
    if "log10" in name:
        log2: Array = np.round(values * math.log2(10), 12)
        return log2, f"{column!r} is log10, as its name says", False
    if "log2" in name:
        return values.round(12), f"{column!r} is log2, as its name says", False
    if re.match(r"ln[^a-z]", name):
        return np.round(values / math.log(2), 12), f"{column!r} is ln, as its name says", False
    if (values <= 0).all():
        # Grids in log2 lie on halves, quarters or eighths; tenths of a decade do not.
        if values.min() > LOG10_LEAST or (values * 8 % 1).any():
            # As log2 of what is log10, a shift by a factor of nine would be one octave.
            shown = f"{values.min():g} to {values.max():g}"
            raise ConfigError(
                Keyword("columns"),
                f"eta={column}",
                f"learning rates, or logarithms whose base is known: {shown} may be log2, ln or "
                f"log10. Name the column log2_{column}, ln_{column} or log10_{column}",
            )
        return (
            values.round(12),
            f"{column!r} has no positive value and is taken for log2",
            False,
        )
    if (values == 0).any() and (values >= 0).all():
        place = int(np.flatnonzero(values == 0)[0])
        raise BadInput(
            f"{runs.row(place)} has a learning rate of 0 in {column!r}: it trains nothing"
        )
    if (values <= 0).any():
        low, high = float(values.min()), float(values.max())
        raise ConfigError(
            Keyword("columns"),
            f"eta={column}",
            f"learning rates in one unit: {low:g} beside {high:g} are plain ones and logarithms",
        )
    # One column with two units, such as rates and percentages, has a gap that no grid has.
    rates = np.unique(values)
    jumps = rates[1:] / rates[:-1]
    if len(jumps) and jumps.max() > APART * (1 + 1e-9):
        at = int(jumps.argmax())
        raise ConfigError(
            Keyword("columns"),
            f"eta={column}",
            (
                f"learning rates in one unit: {rates[at + 1]:g} stands beside {rates[at]:g}, and "
                "nothing between; ",
                Keyword("where", ...),
                " takes the rows of one",
            ),
        )
    logs: Array = np.log2(values).round(12)
    return logs, "", True
