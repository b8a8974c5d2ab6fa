"""Conditions on the rows of a table, such as `optimizer == "muon" and loss < 4`.

A condition from a stranger, or one made of the names in a stranger's table, can do no more than
choose rows: nothing is run (`expression.py`).
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import ConfigError, Keyword, Text, near_misses
from sweeper.evidence.runs.numbers import has_comma, number_of
from sweeper.expression import CONDITIONS, Expression

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
LONGEST_LIST = 800
"""Characters of the columns that a message lists, or says to copy."""
LONGEST_SHOWN = 500
"""Characters of a condition that a message repeats."""
# A text in quotes comes first, so that backquotes within it stay as they are.
_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|`(?P<name>(?:``|[^`])*)`""", re.DOTALL
)
_ESCAPE = re.compile(r"``|\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_ESCAPED = {"``": "`", r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\t": "\t"}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_TURNED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}


def rows_where(frame: pandas.DataFrame, text: str, small: Collection[str] = ()) -> Mask:
    """The rows of `frame` that meet a condition; ConfigError for what is none.

    In columns of `small` numbers, losses and rates, nothing has commas between thousands.

    A condition compares a column with a number, a text in quotes or None, an empty cell, by `==`,
    `!=`, `<`, `<=`, `>`, `>=` and chains of them, or asks whether it is `in` a list. `and`, `or`,
    `not` and parentheses join conditions. Names that are no identifiers stand in backquotes.
    """
    return _Reader(frame, text, small).mask()


def where_equal(values: Mapping[str, object]) -> Keyword:
    """The filter that takes the rows with these values of columns."""
    conditions = (f"{quoted_name(c)} == {_literal(v)}" for c, v in values.items())
    return copied("where", " and ".join(conditions))


def where_none_of(values: Mapping[str, Sequence[object]]) -> Keyword:
    """The filter that takes the rows with none of these values of columns."""
    conditions = [
        f"{quoted_name(column)} not in [{', '.join(map(_literal, cells))}]"
        for column, cells in values.items()
    ]
    return copied("where", " and ".join(conditions))


def copied(name: str, text: str) -> Keyword:
    """A keyword with a text to copy; without it, where nobody would read so long one."""
    return Keyword(name, text if len(text) <= LONGEST_LIST else ...)


def take_alike(values: Mapping[str, object], columns: Sequence[str]) -> Text:
    """How to take the rows with these values alone, or to say that `columns` do not matter."""
    ignored = copied("ignore", ",".join(columns))
    return where_equal(values), " takes those alike, ", ignored, " says that it does not matter"


def quoted_name(column: str) -> str:
    """A column's name as a condition takes it, on one line."""
    if column.isidentifier() and column.isascii() and not keyword.iskeyword(column):
        return column
    return f"`{''.join(map(_escaped, column))}`"


def columns_text(frame: pandas.DataFrame) -> str:
    """The names of a table's columns, of many the first."""
    return listed([shown_value(column) for column in frame.columns], ", ")


def listed(texts: Sequence[str], between: str) -> str:
    """Texts as one, of many the first."""
    lengths = np.cumsum([len(text) + len(between) for text in texts])
    shown = max(1, int((lengths <= LONGEST_LIST).sum()))
    return between.join(texts[:shown]) + f" and {len(texts) - shown} more" * (shown < len(texts))


def shown_value(value: object) -> str:
    """A cell as one short line."""
    line = " ".join(str(value).split())[:60]
    return "".join(char if char.isprintable() else "?" for char in line)


def _escaped(char: str) -> str:
    if char in "`\\":
        return char * 2
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _literal(value: object) -> str:
    if value is None or value != value:
        return "None"
    if isinstance(value, str):
        plain = value.isprintable() and '"' not in value and "\\" not in value
        return f'"{value}"' if plain else repr(value)
    if isinstance(value, int | float | np.number | np.bool_):
        # A float's text is its value; only infinity has none that could be read again.
        return str(value) if np.isfinite(value) else ("1e999" if value > 0 else "-1e999")
    return repr(str(value))


@dataclass(frozen=True)
class _Name:
    """A name in a condition: a column, or a text that lacks its quotes."""

    name: str


class _Reader:
    def __init__(self, frame: pandas.DataFrame, text: str, small: Collection[str]) -> None:
        self.frame, self.text, self.small = frame, text, small
        self.columns = {str(column): column for column in frame.columns}
        self.quoted: dict[str, str] = {}

    def mask(self) -> Mask:
        try:
            expression = Expression.parse(_TOKEN.sub(self._token, self.text), CONDITIONS)
            mask = expression.value(self._name, self._comparison)
        except ConfigError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            single = re.search(r"(?<![=!<>])=(?!=)", self.text)
            raise self._refused("equality is ==" if single else str(error)) from None
        if not isinstance(mask, np.ndarray):
            raise self._refused()
        return mask

    def _token(self, match: re.Match[str]) -> str:
        if match["text"] is not None:
            return match[0]
        # A name that no condition can have typed itself, as its text has no such identifier.
        name = f"column_{len(self.quoted)}_"
        while name in self.text:
            name += "_"
        self.quoted[name] = _ESCAPE.sub(
            lambda m: _ESCAPED.get(m[0]) or chr(int(m[0][2:], 16)), match["name"]
        )
        return f" {name} "

    def _name(self, dotted: str) -> _Name:
        """Settings are nested, and model.width is one name."""
        first, dot, rest = dotted.partition(".")
        return _Name(f"{self.quoted.get(first, first)}{dot}{rest}")

    def _refused(self, why: str = "") -> ConfigError:
        numbers = [str(c) for c in self.frame.columns if self.frame[c].dtype.kind in "iuf"]
        example = f"{quoted_name(numbers[-1])} < 4" if numbers else "loss < 4"
        why = (
            why
            or "columns compared with numbers, texts and [lists]; and, or, not, in: nothing else"
        )
        allowed = f"a condition on {columns_text(self.frame)}, such as {example} ({why})"
        text = self.text if len(self.text) <= LONGEST_SHOWN else f"{self.text[:60]}..."
        return ConfigError(Keyword("where"), text, allowed)

    def _comparison(self, kind: type[ast.cmpop], first: Any, second: Any) -> Mask:
        if kind in (ast.In, ast.NotIn):
            if not isinstance(second, list):
                raise self._refused("what stands behind 'in' is a list, as in 'seed in [0, 1]'")
            column = self._column(first, second)
            masks = [self._compared(column, ast.Eq, value) for value in second]
            inside = reduce(np.logical_or, masks, np.zeros(len(self.frame), bool))
            return inside if kind is ast.In else ~inside
        if kind not in _COMPARISONS:
            raise self._refused("an empty cell is == None")
        if not isinstance(first, _Name):
            first, second, kind = second, first, _TURNED.get(kind, kind)
        column = self._column(first, second)
        if isinstance(second, _Name):
            raise self._in_quotes(second.name, first)
        return self._compared(column, kind, second)

    def _column(self, name: Any, other: Any) -> pandas.Series:
        if not isinstance(name, _Name):
            raise self._refused()
        if name.name in self.columns:
            return self.frame[self.columns[name.name]]
        if isinstance(other, _Name):
            raise self._in_quotes(name.name, other)
        names = [*self.columns][:2000]
        raise self._refused(f"no column is called {name.name!r}{near_misses(name.name, names)}")

    def _in_quotes(self, text: str, other: _Name) -> ConfigError:
        """The condition with a text in quotes, where the column beside it has such a cell."""
        column = self.columns.get(other.name)
        if column is None or not (self.frame[column].astype(str) == text).any():
            return self._refused("a column is compared with a number or a text in quotes")
        spaced = re.sub(rf"\s*([!=]=)\s*{re.escape(text)}(?!\w)", rf' \1 "{text}"', self.text)
        quoted = ("texts in quotes: ", Keyword("where", spaced))
        return ConfigError(Keyword("where"), self.text, quoted)

    def _compared(self, column: pandas.Series, kind: type[ast.cmpop], value: object) -> Mask:
        name = shown_value(column.name)
        if isinstance(value, int | float) and abs(value) >= 2**63:
            value = _as_float(value)  # beyond its range nothing compares otherwise than infinity
        if isinstance(value, list | np.ndarray):
            raise self._refused()
        if value is None:
            empty = column.isna().to_numpy()
            if kind not in (ast.Eq, ast.NotEq):
                raise self._refused("None is an empty cell, which == and != ask for")
            return np.asarray(empty if kind is ast.Eq else ~empty)
        numeric = getattr(column.dtype, "kind", "O") in "iufb"
        cells: Any = column
        if numeric and not isinstance(column.dtype, np.dtype):  # pandas' own kinds, with their NA
            cells = column.to_numpy(dtype=float, na_value=math.nan)
        if isinstance(value, str) and numeric:
            raise self._refused(f"{name} holds numbers, and {value!r} is a text")
        if not isinstance(value, str) and not numeric:
            # A column of texts with numbers in it, as YAML writes 1e-3.
            cells = np.array([self._number(cell, name) for cell in column], float)
            if not np.isfinite(cells).any() and kind not in (ast.Eq, ast.NotEq):
                raise self._refused(f"{name} holds texts, and {value} is a number")
        try:
            met = _COMPARISONS[kind](cells, value)
        except (TypeError, ValueError, OverflowError):
            raise self._refused(f"{name} cannot be compared with {value!r}") from None
        if hasattr(met, "fillna"):  # an empty cell, of whatever kind, is unlike all values
            met = met.fillna(kind is ast.NotEq)
        return np.asarray(met).astype(bool)

    def _number(self, cell: object, name: str) -> float:
        if has_comma(cell) and name in self.small:
            raise self._refused(f"{name} has {shown_value(cell)!r}, which is no number")
        number = number_of(int(cell) if isinstance(cell, bool) else cell)
        return math.nan if number is None else number


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
