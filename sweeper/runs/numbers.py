"""Numbers as people write them in the cells of a sheet: 1,024, 2^-8, 0.20M, d512."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

_SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_PLAIN = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_POWER = re.compile(rf"2\s*(?:\^|\*\*)\s*({_PLAIN})")
_SCALED = re.compile(rf"({_PLAIN})\s*([kKmMbBgGtT])")
_LETTERED = re.compile(r"[A-Za-z]{1,3}[-_=]?(\d+)")


def _lettered(text: str) -> float | None:
    return float(match[1]) if (match := _LETTERED.fullmatch(text)) else None


def _thousands(text: str) -> float | None:
    return float(text.replace(",", "")) if _THOUSANDS.fullmatch(text) else None


def _power(text: str) -> float | None:
    try:
        return 2.0 ** float(match[1]) if (match := _POWER.fullmatch(text)) else None
    except OverflowError:
        return math.inf


def _scaled(text: str) -> float | None:
    match = _SCALED.fullmatch(text)
    return float(match[1]) * _SCALES[match[2].lower()] if match else None


SPELLINGS: Mapping[str, Callable[[str], float | None]] = {
    "with commas between thousands": _thousands,
    "as powers of 2": _power,
    "with letters for thousands, millions or billions": _scaled,
    "behind letters": _lettered,
}
"""Ways to write a number beside its digits, by what is said of them."""


def number_of(cell: object) -> tuple[float | None, str]:
    """The number in a cell and how it is spelt, if otherwise than plainly; None for no number.

    An empty cell is NaN.
    """
    try:
        empty = cell is None or bool(cell != cell)
    except (TypeError, ValueError):  # a missing value of pandas' own; a table within a cell
        empty = str(cell) == "<NA>"
    if empty:
        return math.nan, ""
    if not isinstance(cell, str):
        return _plain(cell), ""
    text = cell.strip()
    if text in ("", "-", "n/a", "N/A"):
        return math.nan, ""
    if "_" not in text and (plain := _plain(text)) is not None:
        return plain, ""
    for spelling, read in SPELLINGS.items():
        if (number := read(text)) is not None:
            return number, spelling
    return None, ""


def _plain(cell: object) -> float | None:
    if isinstance(cell, bool):
        return None
    try:
        return float(cell)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None
