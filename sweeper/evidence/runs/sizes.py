"""Sizes of a table's runs: the axis that a ladder goes along, and its base."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.evidence.runs.condition import quoted_name
from sweeper.evidence.runs.roles import AXES, ROLES, SIZES
from sweeper.evidence.runs.run import Runs
from sweeper.stats.ladder import JOINT_AXIS, LadderSize

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

MakeSize = Callable[[Mapping[str, Any]], LadderSize]
Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, order=True)
class TokenSize(LadderSize):
    """A size of a ladder over the number of tokens, which no ladder of ours has by name."""

    tokens: int = 0


@cache
def size_of(axis: str) -> type[LadderSize]:
    """The class of a size along an axis, which may be any column: with a field of its name."""
    if axis in (JOINT_AXIS, *(part.name for part in fields(LadderSize))):
        return LadderSize
    if axis == "tokens":
        return TokenSize
    if not axis.isidentifier() or keyword.iskeyword(axis) or hasattr(LadderSize, axis):
        allowed = "a column whose name is a word and begins with a letter: rename it"
        raise ConfigError(Keyword("axis"), axis, allowed)
    parts = [(axis, int, field(default=0))]
    options: dict[str, Any] = {"frozen": True, "kw_only": True, "order": True}
    return make_dataclass(f"{axis.capitalize()}Size", parts, bases=(LadderSize,), **options)


def whole_numbers(runs: Runs, role: str) -> Counts:
    """The sizes in the column of a role; BadInput for what is none."""
    column = runs.columns[role]
    values = runs.numbers(column)
    if role in ("params", "tokens") and (unit := runs.scale(role)) != 1:
        values = np.round(values * unit)
    least = 0 if role == "depth" else 1
    bad = ~(
        np.isfinite(values) & (values >= least) & (values == np.round(values)) & (values < 2**62)
    )
    if bad.any():
        place, count = int(np.flatnonzero(bad)[0]), int(bad.sum())
        more = f", and {count - 1} more rows such" if count > 1 else ""
        name = axis_name(role)
        are = f"{name} are whole numbers" if name[-1] == "s" else f"a {name} is a whole number"
        has = "nothing" if np.isnan(values[place]) else f"{values[place]:g}"
        others = (Keyword("where", f"{quoted_name(column)} >= {least}"), " takes the others")
        raise BadInput(
            f"{runs.row(place)} has {has} in {column!r}{more}: {are} from {least}",
            *(("; ", *others) if not values[place] >= least and count < len(bad) else ()),
        )
    return values.astype(np.int64)


def sizes_of(runs: Runs) -> dict[str, Counts]:
    """All sizes that the table has, by role."""
    roles = (*SIZES, *(role for role in runs.columns if role not in ROLES))
    return {role: whole_numbers(runs, role) for role in roles if role in runs.columns}


def axis_of(sizes: Mapping[str, Counts], asked: str | None) -> str:
    """The asked size, or the first that differs; ConfigError for one that is not there."""
    axis = asked
    varied = [role for role, values in sizes.items() if len(np.unique(values)) > 1]
    if axis is not None and axis != JOINT_AXIS and axis not in sizes:
        there = ", ".join(sizes) or "none by its usual name"
        allowed = f"a size that the table has, {there}, or a column of whole numbers by its name"
        raise ConfigError(Keyword("axis"), axis, allowed)
    if axis is not None:
        return axis
    # At one batch steps and tokens are the same ladder, named by its tokens.
    if {"tokens", "steps"} <= set(varied) and follows(sizes["tokens"], sizes["steps"]):
        varied.remove("steps")
    return varied[0] if varied else next(role for role in AXES if role in sizes)


def follows(values: Any, of: Any) -> bool:
    """Whether `values` are one for each value `of`."""
    import pandas

    codes = pandas.factorize(values)[0]
    _, first, place = np.unique(pandas.factorize(of)[0], return_index=True, return_inverse=True)
    return bool((codes == codes[first][place]).all())


def tokens_a_parameter(params: Any, tokens: Any) -> str:
    """How many tokens runs have for a parameter, in words."""
    ratio = np.asarray(tokens) / np.asarray(params)
    low, high, middle = float(ratio.min()), float(ratio.max()), float(np.median(ratio))
    if high < ONE_RATIO * low:
        return f"{middle:.3g} tokens a parameter each"
    return f"{low:.3g} to {high:.3g} tokens a parameter, half of them up to {middle:.3g}"


ONE_RATIO = 1.2
"""Tokens a parameter that differ by a smaller factor are one ratio, of whole steps and layers."""


def axis_name(axis: str) -> str:
    """An axis as people write it."""
    return axis.replace("_", " ")


def size_maker(axis: str, keys: Sequence[str]) -> MakeSize:
    """A function that makes a size of a row's values; what a table does not have is 1."""
    kind = size_of(axis)
    names = {part.name for part in fields(kind)}

    def make(values: Mapping[str, Any]) -> LadderSize:
        sizes = {key: int(values[key]) for key in keys if key in names}
        defaults = {"width": 1, "depth": 1, "batch_size": 1, "steps": 1}
        return kind(**{**defaults, **sizes})

    return make


def base_of(
    runs: Runs,
    table: pandas.DataFrame,
    keys: Sequence[str],
    make: MakeSize,
    axis: str,
) -> LadderSize:
    """The smallest size; the one that a table of ours marks."""
    sizes = [make(row) for row in table[list(keys)].drop_duplicates().to_dict("records")]
    if "base" in runs.columns:
        marked = runs.frame[runs.columns["base"]].astype(str).str.lower().isin(["true", "1", "1.0"])
        places = table.index.intersection(np.flatnonzero(marked.to_numpy()))
        rows = table.loc[places, list(keys)].drop_duplicates().to_dict("records")
        if len(rows) == 1:
            return make(rows[0])
    return min(sizes, key=lambda size: (getattr(size, axis_of_size(axis)), size))


def axis_of_size(axis: str) -> str:
    """The field by which sizes of a ladder are ordered."""
    return "width" if axis == JOINT_AXIS else axis


def name_size(size: LadderSize, axis: str) -> str:
    """A size in words; what a table does not have is 1, and is not said."""
    if axis != JOINT_AXIS:
        return f"{axis_name(axis)} {getattr(size, axis)}"
    parts = [(key, getattr(size, key, 0)) for key in SIZES]
    return ", ".join(f"{axis_name(key)} {value}" for key, value in parts if value > 1) or str(size)
