"""Numbers as people write them in cells of a sheet: 1,024, 1 024, 2^-8, 3*10^-4, 0.20M, d512."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

Read = Callable[[re.Match[str]], float | None]
_SCALES = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_PLAIN = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# Of three digits, or of two before the last three, as India counts.
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:(?:,\d{3})+|(?:,\d{2})+,\d{3})(?:\.\d+)?")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:([ '])\d{3})(?:\1\d{3})*(?:\.\d+)?")
_POWER = re.compile(rf"2\s*(?:\^|\*\*)\s*\(?({_PLAIN})\)?")
_TENS = re.compile(rf"(?:({_PLAIN})\s*[x*]\s*)?10\s*(?:\^|\*\*)\s*\(?({_PLAIN})\)?")
_SCALED = re.compile(rf"({_PLAIN})\s*([kKmMbBgGtT])")
# A month with a number is a date, which spreadsheets make of some numbers.
_MONTH = "jan|feb|mar|mrz|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez"
_LETTERED = re.compile(rf"(?!(?i:{_MONTH}))[A-Za-z]{{1,3}}[-_=]?(\d+)")
_WITH_UNIT = re.compile(
    r"(.*[\d.]\s*[kKmMbBgGtT]?)\s*(?:tok|token|param|parameter|nat|step|iter|iteration|sequence|seq|"
    r"sample|example|layer|flop)s?",
    re.IGNORECASE,
)
_COMMA = re.compile(r"([-+]?\d+,\d+(?:[eE][-+]?\d+)?)\s*(?:[A-Za-z]+|%)?")
_PERCENT = re.compile(rf"({_PLAIN})\s*%")
_WITH_ERROR = re.compile(rf"({_PLAIN})\s*(?:(?:±|\+/?-)\s*{_PLAIN}|\({_PLAIN}\))")
_MARKED = re.compile(rf"({_PLAIN})\s*[*†‡§]+")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_TYPED = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u202f\u2009", " "),  # spaces that do not break
        **dict.fromkeys("\u2212\u2013\u2014", "-"),  # a minus, dashes
        **dict.fromkeys("\u00d7\u00b7\u22c5", "*"),  # signs of multiplication
        "\u2019": "'",
    }
)
"""What people and spreadsheets type, as one types it here."""
DIVERGED = {"diverged", "diverges", "diverge", "div", "exploded", "blew up", "overflow"}
"""What people write where a run that diverged would have its loss."""
UNFINISHED = {
    *("failed", "crashed", "killed", "running", "pruned", "fail", "waiting", "pending", "queued"),
    *("preempted", "preempting", "cancelled", "canceled", "timeout", "interrupted", "error", "oom"),
}
"""States of runs whose loss is not that of their end, which stand in its place, too."""


def _power(match: re.Match[str]) -> float:
    try:
        return float(2.0 ** float(match[1]))
    except OverflowError:
        return math.inf


def _tens(match: re.Match[str]) -> float | None:
    try:
        if re.fullmatch(r"[-+]?\d+", match[2]):  # exactly what 3e-4 is
            return float(f"{match[1] or 1}e{match[2]}")
        return float(float(match[1] or 1) * 10.0 ** float(match[2]))
    except (OverflowError, ValueError):
        return None


def _first(match: re.Match[str]) -> float:
    return float(match[1])


def _without(signs: str) -> Read:
    return lambda match: float(re.sub(signs, "", match[0]))


def _scaled(match: re.Match[str]) -> float:
    # In decimals: 0.2517B is a whole number.
    return float(Decimal(match[1]) * _SCALES[match[2].lower()])


LETTERED = "behind letters"
SCALED = "with letters for thousands, millions or billions"
SPELLINGS: Mapping[str, tuple[re.Pattern[str], Read]] = {
    "with commas between thousands": (_THOUSANDS, _without(",")),
    "with spaces or apostrophes between thousands": (_GROUPED, _without("[ ']")),
    "as powers of 2": (_POWER, _power),
    "as powers of 10": (_TENS, _tens),
    SCALED: (_SCALED, _scaled),
    LETTERED: (_LETTERED, _first),
    "with units behind them": (_WITH_UNIT, lambda match: number_of(match[1])[0]),
    "in percent": (_PERCENT, lambda match: float(Decimal(match[1]) / 100)),
    "with an error, which is left out": (_WITH_ERROR, _first),
    "with marks of a footnote": (_MARKED, _first),
}
"""Ways to write a number beside its digits, by what is said of them."""


def number_of(cell: object) -> tuple[float | None, str]:
    """The number in a cell and how it is spelt, if otherwise than plainly; None for no number.

    An empty cell is NaN, and so is one that says that a run did not end: see `says_unfinished`.
    """
    try:
        empty = cell is None or bool(cell != cell)
    except (TypeError, ValueError):  # a missing value of pandas' own; a table within a cell
        empty = str(cell) == "<NA>"
    if empty:
        return math.nan, ""
    if not isinstance(cell, str):
        return _plain(cell), ""
    # Spreadsheets write an apostrophe before what is to stay a text, and spaces of many kinds.
    text = cell.translate(_TYPED).strip().removeprefix("'").strip()
    if any(letter in text for letter in "⁰¹²³⁴⁵⁶⁷⁸⁹"):
        text = re.sub(r"(?<=\d)([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)", r"^\1", text).translate(_SUPERSCRIPTS)
    if text in ("", "-", "n/a", "N/A", "#N/A"):
        return math.nan, ""
    if "_" not in text and (plain := _plain(text)) is not None:
        return plain, ""
    for spelling, (pattern, read) in SPELLINGS.items():
        if (match := pattern.fullmatch(text)) and (number := read(match)) is not None:
            return number, spelling
    if text.lower().strip("!. ") in DIVERGED:
        return math.inf, "that say that a run diverged"
    return (math.nan, "") if says_unfinished(text) else (None, "")


def in_numbers(values: pandas.Series) -> pandas.Series:
    """A column of texts that are all numbers, such as 45.8 %, in numbers; any other as it is."""
    if values.dtype.kind in "iufcbM":
        return values
    texts = values.dropna().astype(str)
    read = {text: number_of(text) for text in texts.unique()}
    # A letter and a number may be a name, as v2 is.
    plain = all(n is not None and math.isfinite(n) and how != LETTERED for n, how in read.values())
    return texts.map({text: n for text, (n, _) in read.items()}) if plain and read else values


COMMAS = "with decimal commas"


def with_points(cells: Sequence[object], *, of_losses: bool) -> dict[object, str] | None:
    """Cells with decimal commas as one types them here; None where commas are no decimal ones.

    A comma before three digits may stand between thousands: one of the cells, such as 0,003 or
    4,1653, has to say that it does not. Losses of thousands are none where each has such a comma,
    or lies among the others with its point: 3,412 beside 3.1, and not a perplexity of 3,412.
    """
    texts = {cell: cell.strip() for cell in cells if isinstance(cell, str) and "," in cell}
    matches = [_COMMA.fullmatch(text) for text in texts.values()]
    if not texts or not all(matches):
        return None
    pointed: dict[object, str] = {cell: text.replace(",", ".") for cell, text in texts.items()}
    if not all(match and _THOUSANDS.fullmatch(match[1]) for match in matches):
        return pointed
    # Of a run that diverged words may stand there.
    others = [number_of(c)[0] for c in cells if not (isinstance(c, str) and c in texts)]
    plain = [number for number in others if number is not None and math.isfinite(number)]
    meant = [number_of(text)[0] or 0.0 for text in pointed.values()]
    among = not plain or all(min(plain) / NEAR <= n <= max(plain) * NEAR for n in meant)
    return pointed if of_losses and among else None


NEAR = 2.0
"""As a factor: so near to other losses of a sheet one with a decimal comma lies."""


def says_unfinished(cell: object) -> bool:
    """Whether a cell says, in place of a number, that its run did not end."""
    return isinstance(cell, str) and cell.lower().strip("!. ") in UNFINISHED


def _plain(cell: object) -> float | None:
    if isinstance(cell, bool):
        return None
    try:
        return float(cell)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None
