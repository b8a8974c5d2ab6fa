"""Finished runs, wherever they were made: one table with a row a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword, Text
from sweeper.evidence.runs.condition import Mask, rows_where, shown_value, where_none_of
from sweeper.evidence.runs.numbers import has_comma, is_empty, number_meant, number_of
from sweeper.evidence.runs.roles import LADDER_ROLES, SMALL, columns_by_role, missing_columns
from sweeper.table import counted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
SCALE_NAMES = {1e3: "thousands", 1e6: "millions", 1e9: "billions", 1e12: "trillions"}
_SCALE = re.compile(
    r"[^a-z0-9](?:(k|m|b|t)|(thousand|million|billion|trillion)s?)[^a-z0-9]*$", re.IGNORECASE
)
"""The end of a column's name that says in what it counts: params_M, tokens (billions)."""
_POWER_OF_TEN = re.compile(r"[(\[]\s*[x*\u00d7]?\s*(?:1e|10\^)\+?(\d+)\s*[)\]]\s*$")
MOST_FAULTS, MOST_LEFT_OUT = 5, 12
"""Faulty cells that a message names, and texts that a proposed condition leaves out."""
END_LOSS = {"loss": "the loss at the end of each run"}
"""What a column of the loss is, where none is found."""
MAXIMIZED = frozenset(
    (
        *("reward", "rewards", "return", "accuracy", "acc", "score", "auc", "f1", "r2"),
        *("precision", "recall", "bleu", "rouge", "likelihood", "loglik", "logprob", "elbo"),
        *("success", "win", "match", "pass", "top", "iou", "psnr", "mmlu", "auroc", "fitness"),
    )
)
MINIMIZED = frozenset(("loss", "error", "err"))
"""Words in the name of what is better the higher, or the lower, it is."""
OUTCOMES = ("loss", "planned")
"""Columns of a run that are no part of what makes its cell."""
IN_ONES = 1e6
"""Counts from here on are in ones, whatever the column is called."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Finished runs, a row of `frame` each, and where they came from.

    `columns` say which column is what, by role; `asked` are those that the user named, an empty
    one for a role that no column has. Runs may differ in the columns of `ignore`. `name` is the
    place, `sha256` the digest of what was read there, `where` the condition that all rows meet, and
    `notes` say how it was read. `blanks` says of columns which cells are empty in the place, where
    the word NaN and an empty cell are alike in `frame`.
    """

    frame: pandas.DataFrame
    name: str = ""
    sha256: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    ignore: tuple[str, ...] = ()
    notes: tuple[str | Text, ...] = ()
    blanks: Callable[[list[str]], pandas.DataFrame] | None = None

    def __len__(self) -> int:
        return len(self.frame)

    def only(self, where: str) -> Runs:
        """The runs that meet a condition; ConfigError where none does, BadInput without rows."""
        if self.frame.empty:
            raise BadInput(f"{self.name or 'the table'} has no rows")
        if not where:
            return self
        usual = {role: LADDER_ROLES[role] for role in SMALL}
        columns = columns_by_role(self.frame, self.asked, usual)
        small = {columns[role] for role in SMALL if role in columns}
        kept = self.frame[rows_where(self.frame, where, small)]
        if kept.empty:
            allowed = f"a condition that some of {len(self.frame)} rows meet"
            raise ConfigError(Keyword("where"), where, allowed)
        return replace(self, frame=kept, where=where)

    def with_roles(self, roles: Mapping[str, Sequence[str]]) -> Runs:
        """The runs with the columns of these roles: as asked for, else by their usual names.

        A column that is empty in all runs with a loss has no role by its name.
        """
        columns = columns_by_role(self.frame, self.asked, roles)
        made = self.frame[columns["loss"]].notna() if "loss" in columns else slice(None)
        made = slice(None) if not isinstance(made, slice) and not made.any() else made
        others = [c for role, c in columns.items() if role != "loss" and role not in self.asked]
        empty = [c for c in others if all(map(is_empty, self.frame[c][made]))]
        if empty and len(self):
            fewer = replace(self, frame=self.frame.drop(columns=empty)).with_roles(roles)
            columns = {**fewer.columns}
        return replace(self, columns=columns)

    def check_columns(self, wanted: Mapping[str, str]) -> None:
        """BadInput where no column has one of these roles, with what each would be."""
        if lacking := {role: what for role, what in wanted.items() if role not in self.columns}:
            raise missing_columns(self.frame, lacking, self.asked)
        if "loss" in wanted:
            self._check_minimized(self.columns["loss"])

    def _check_minimized(self, column: str) -> None:
        negated = "into a column of its own write the loss that is minimized, such as"
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"^1?\s*-", "minus_", column)).lower()
        words = {*re.findall(r"f1|r2|[a-z]+", plain)}
        high, low = not MAXIMIZED.isdisjoint(words), not MINIMIZED.isdisjoint(words)
        if low if words & {"neg", "negative", "minus"} else high and not low:
            raise BadInput(f"{column!r} is maximized, as its name says: {negated} 1 - accuracy")
        values = self.numbers_or_nan(column)
        below = (values < 0) & (values > -1e30)
        if below.any() and "loss" not in self.asked:
            raise BadInput(
                f"{self.rows(below)}: {column!r} is below 0, as the negative of a loss that is "
                f"maximized: {negated} -{column}; or ",
                Keyword("columns", f"loss={column}"),
                " says that less is better",
            )

    def numbers(self, column: str) -> Array:
        """A column's numbers [rows]; BadInput names the cells that are none. Empty ones are NaN."""
        self.check_numbers([column])
        return self._parsed(column)[0]

    def numbers_or_nan(self, column: str) -> Array:
        """A column's numbers [rows], NaN for what is none."""
        return self._parsed(column)[0]

    def check_numbers(self, columns: Sequence[str]) -> None:
        """BadInput that names all cells of `columns` that are no numbers, and what to do."""
        faults, values, meant = list[str](), dict[str, list[object]](), ""
        remaining = np.ones(len(self.frame), bool)
        for column in dict.fromkeys(columns):
            bad = np.flatnonzero(self._parsed(column)[1])
            if not len(bad):
                continue
            remaining[bad] = False
            cells = [self.frame[column].iloc[place] for place in bad]
            # What a condition can name: a cell from Python may hold anything, a table within it.
            plain = all(isinstance(cell, str | int | float) for cell in cells)
            values[column] = list(dict.fromkeys(cells)) if plain else [None] * (MOST_LEFT_OUT + 1)
            first = dict[str, int]()
            for place, cell in zip(bad, cells, strict=True):
                first.setdefault(shown_value(cell), int(place))
            places = [f"{self._row(place)}: {text!r}" for text, place in first.items()]
            more = len(bad) - len(places[:MOST_FAULTS])
            rest = f" and {counted(more, 'row')} more" if more else ""
            faults.append(f"column {column!r}, {', '.join(places[:MOST_FAULTS])}{rest}")
            meant = meant or next(filter(None, map(number_meant, cells)), "")
        if not faults:
            return
        parts: list[str | Keyword] = [
            f"{f'{self.name}: ' if self.name else ''}{'; '.join(faults)}, which is no number. "
            "Numbers are 0.003, 3e-3, 2^-8, 130M, and 1,024 of what is counted; an empty loss is "
            "of a run that was not made, inf of one that diverged"
        ]
        parts += [f"; write {meant}"] if meant else []
        losses = [c for c in values.get(self.columns.get("loss", ""), ()) if isinstance(c, str)]
        lost = next((cell for cell in losses if re.match(r"\s*[A-Za-z]", cell)), "")
        if lost:
            parts += [f"; {shown_value(lost)!r} may say that a run diverged: write inf there"]
        # Of no use where it leaves out all rows: such a condition is refused.
        if remaining.any() and sum(map(len, values.values())) <= MOST_LEFT_OUT:
            parts += ["; ", where_none_of(values), " leaves such rows out"]
        raise BadInput(*parts)

    def _parsed(self, column: str) -> tuple[Array, Mask]:
        values = self.frame[column]
        if values.dtype.kind in "iuf":
            numbers = np.asarray(values.to_numpy(dtype=float, na_value=math.nan))
            return numbers, np.zeros(len(values), bool)
        if values.dtype.kind in "bmM":
            # No numbers are truth values, 0 and 1 elsewhere, and dates, nanoseconds since 1970.
            values = values.astype(object).map(str, na_action="ignore")
        small = any(self.columns.get(role) == column for role in SMALL)
        read = [None if small and has_comma(cell) else number_of(cell) for cell in values]
        bad = np.array([number is None for number in read], bool)
        return np.array([math.nan if n is None else n for n in read], float), bad

    def left_empty(self, column: str) -> Mask:
        """Which cells [rows] were left empty."""
        nothing: Mask = np.isnan(self._parsed(column)[0])
        if nothing.any():
            nothing &= self.blank(column).to_numpy(bool)
        return nothing

    def blank(self, column: str) -> pandas.Series:
        """Which of a column's cells are empty in the place; all where it has no such column."""
        if self.blanks is not None and column in self.frame:
            return self.blanks([column])[column].loc[self.frame.index]
        return self.frame.reindex(columns=[column])[column].map(is_empty)

    def row(self, place: int) -> str:
        """A row as people find it: by its run, or the first below the header is row 1."""
        return f"{self._row(place)}{f' of {self.name}' if self.name else ''}"

    def _row(self, place: int) -> str:
        if self.name and "last_step" in self.frame and "run" in self.frame:
            return f"the run {self.frame['run'].iloc[place]!r}"
        return f"row {int(self.frame.index[place]) + 1}"

    def rows(self, chosen: Mask) -> str:
        """The first of some rows, and how many more there are."""
        places = np.flatnonzero(chosen)
        more, first = len(places) - 1, places[self.frame.index[places].argmin()]
        return f"{self.row(int(first))}{f', and {more} more rows' if more else ''}"

    def only_value(self, role: str) -> Any:
        """The value of all runs in the column of a role; None where they differ, or without it."""
        if role not in self.columns:
            return None
        values = self.frame[self.columns[role]].drop_duplicates()
        return values.iloc[0] if len(values) == 1 else None

    @property
    def unit(self) -> str:
        """The unit of the losses."""
        return unit_of(self.columns.get("loss", ""))

    def scale(self, role: str) -> float:
        """The unit of the column of parameters or tokens: 1 for ones."""
        return scale_of(self.columns[role], self.numbers(self.columns[role]))


def in_own_order(table: pandas.DataFrame) -> pandas.DataFrame:
    """The table itself, sorted by what its rows are; those of a cell stand as if drawn.

    Where no seed says which runs go together, places in a cell do: sorted losses would be alike.
    """
    import pandas

    drawn = pandas.util.hash_array(table["loss"].to_numpy(float))
    keys = sorted((str(column), column) for column in table if column not in OUTCOMES)
    cells = [table[column] for _, column in reversed(keys)]
    # Texts beside empty cells, which come last, have no order but that of their kinds.
    plain = [
        c if c.dtype.kind in "iufb" else pandas.factorize(c, sort=True)[0].astype(np.uint64)
        for c in cells
    ]
    order = np.lexsort([drawn, *plain]).astype(np.int32)
    del drawn, cells, plain
    table.index = pandas.Index(table.index.to_numpy(np.int32)[order])
    for column in table:
        table[column] = table[column].array[order]
    return table


def without(table: pandas.DataFrame, rows: Mask) -> pandas.DataFrame:
    """The table without some rows, itself where these are none."""
    return table.take(np.flatnonzero(~rows)) if rows.any() else table


RECORDS = ("run", "trial", "last_step", "key", "phase", "finished_at", "heldout", "seconds")
"""What a tracker and a study of ours write of a run beside its settings."""


def recorded(frame: pandas.DataFrame) -> tuple[str, ...]:
    """Columns that are no settings, of a source that is no table of somebody's."""
    return tuple(name for name in RECORDS if name in frame)


def unit_of(column: str) -> str:
    """The unit of a column's losses, by its name: bits per byte where it says so, else nats."""
    parts = re.findall(r"[a-z]+", column.lower())
    return "bits/byte" if {"bpb", "bits"} & {*parts} else "nats"


def scale_of(column: str, values: Array) -> float:
    """The unit of a column of parameters or tokens, by the end of its name: 1 for ones."""
    if (power := _POWER_OF_TEN.search(column)) is not None and values.max() < IN_ONES:
        return float(f"1e{power[1]}")
    match = _SCALE.search(column)
    if match is None or values.max() >= IN_ONES:
        return 1.0
    return SCALES[(match[1] or match[2])[0].lower()]


APART = 100.0
"""Neighbouring learning rates farther apart than this factor are taken for two units."""
LOG10_LEAST = -7.0
"""Above this a learning rate's logarithm may be to the base of ten."""
_UNIT = re.compile(r"[(\[]\s*[x*\u00d7]?\s*(?:1e|10\^|10\*\*)(-\d+)\s*[)\]]")
"""What in a rate's name says that it is in another unit: peak lr (1e-3)."""


def log2_of(runs: Runs, column: str) -> tuple[Array, str, bool]:
    """Learning rates in log2, how they were read, and if plain; ConfigError for mixed units."""
    values = runs.numbers(column)
    bad = ~np.isfinite(values)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise BadInput(f"{runs.row(place)} has no learning rate in {column!r}")
    name = column.lower()
    if _UNIT.search(name) is not None:
        allowed = "learning rates as they are: write 0.0012, and take the unit out of the name"
        raise ConfigError(Keyword("columns"), f"eta={column}", allowed)
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
            range_of = f"{values.min():g} to {values.max():g}"
            raise ConfigError(
                Keyword("columns"),
                f"eta={column}",
                f"learning rates, or logarithms whose base is known: {range_of} may be log2, ln or "
                f"log10. Name the column log2_{column}, ln_{column} or log10_{column}",
            )
        return (values.round(12), f"{column!r} has no positive value and is taken for log2", False)
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
