"""Numbers in cells of a table: as Python writes them, 1,024, 2^-8, 130M; all else is refused."""

from __future__ import annotations

import math
import re

_TENS = {"k": 3, "m": 6, "b": 9, "t": 12}
_DIGITS = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_POWER_OF_TEN = r"[eE]([-+]?\d{1,9})"
_PLAIN = rf"{_DIGITS}(?:{_POWER_OF_TEN})?"
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_POWER = re.compile(rf"2(?:\^|\*\*)\(?({_PLAIN})\)?")
_SCALED = re.compile(rf"({_DIGITS})(?:{_POWER_OF_TEN})?\s?([kKmMbBtT])")
_COMMA = re.compile(r"[-+]?\d+,\d+")
_EMPTY = frozenset(
    (
        *("", "-", "--", "\u2013", "\u2014"),
        *("na", "n/a", "#n/a", "#na", "<na>", "null", "nil", "none"),
    )
)
"""What people and programs write into a cell that has no number."""


def is_empty(cell: object) -> bool:
    """Whether a cell has nothing, in whatever words; the word NaN is what a run came to."""
    if isinstance(cell, str):
        return cell.strip().lower() in _EMPTY
    return cell is None or str(cell) in ("nan", "<NA>", "NaT")


def number_of(cell: object) -> float | None:
    """The number in a cell; NaN of an empty one, None of what is no number."""
    if not isinstance(cell, str):
        return _plain(cell)
    text = cell.strip()
    if is_empty(text):
        return math.nan
    if "_" not in text and (plain := _plain(text)) is not None:
        return plain
    if _THOUSANDS.fullmatch(text):
        return float(text.replace(",", ""))
    if (power := _POWER.fullmatch(text)) is not None:
        try:
            return float(2.0 ** float(power[1]))
        except OverflowError:
            return math.inf
    if (scaled := _SCALED.fullmatch(text)) is not None:
        # As digits, not by a product of floats: 0.2517B is a whole number.
        return float(f"{scaled[1]}e{int(scaled[2] or 0) + _TENS[scaled[3].lower()]}")
    return None


def has_comma(cell: object) -> bool:
    """Whether a comma in a cell may be a decimal one, or stand between thousands."""
    return isinstance(cell, str) and "," in cell


def number_meant(cell: object) -> str:
    """How to write what a cell with a comma may mean; empty where that is not known."""
    text = cell.strip() if isinstance(cell, str) else ""
    return text.replace(",", ".") if _COMMA.fullmatch(text) else ""


def _plain(cell: object) -> float | None:
    if isinstance(cell, bool):
        return None
    try:
        return float(cell)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan if not isinstance(cell, str) and is_empty(cell) else None
