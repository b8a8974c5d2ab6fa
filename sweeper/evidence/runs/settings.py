"""What runs differ in beside size, rate and seed: a setting that a verdict would judge, too.

No column is guessed to be a result or a record of a run: what differs and is not named is refused
once, with the words that say that it does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, Keyword
from sweeper.evidence.runs.condition import LONGEST_LIST, copied, listed, shown_value, where_equal
from sweeper.evidence.runs.roles import AXES, LAW_ROLES, MODEL, SIZES, columns_by_role
from sweeper.evidence.runs.run import Array, Runs
from sweeper.evidence.runs.sizes import Counts, axis_name, follows, tokens_a_parameter
from sweeper.records import as_number
from sweeper.stats.ladder import JOINT_AXIS

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

MOST_NAMED = 8
"""Columns that a message gives examples of."""
NEARLY_ALL = 0.9
"""A column with so many values a row has one for each run."""
LADDER_SIZES, LADDER_RATES = 2, 3
"""With fewer sizes, or fewer learning rates at them, runs make no ladder."""


def check_alike(runs: Runs, axis: str, sizes: Mapping[str, Counts], log2: Array) -> None:
    """BadInput names all columns in which runs differ, and how to say that they may."""
    import pandas

    frame, ignored = runs.frame, {*runs.ignore}
    roles = {column: role for role, column in runs.columns.items()}
    across = [role for role in sizes if axis in (JOINT_AXIS, role)]
    place = pandas.DataFrame({role: sizes[role] for role in across}).groupby(across).ngroup()
    # The number of parameters is a size, though no ladder goes along it unless it is asked to.
    params = columns_by_role(frame, {}, {"params": LAW_ROLES["params"]}).get("params")
    varied = list[tuple[str, pandas.Series, bool]]()
    for column in map(str, frame.columns):
        role = roles.get(column, "params" if column == params else "")
        if column in ignored or role in across:
            continue
        if role and role not in (*SIZES, "parameterization", "decay"):
            continue
        values = frame[column]
        if len(values.unique()) < 2:
            continue
        if is_one_number(values) or is_identifier(values):
            continue
        with_size = bool(role or len(varied) < MOST_NAMED) and follows(values, place)
        if with_size and _goes_along(role, axis, sizes):
            continue
        varied.append((column, values, with_size))
    if varied:
        raise _unlike(runs, varied, axis, place, log2)


def _goes_along(role: str, axis: str, sizes: Mapping[str, Counts]) -> bool:
    if {role, axis} == {"steps", "tokens"} or ("params" in (role, axis) and role in MODEL):
        return True
    # Batches at one number of tokens.
    of_batches = (role, axis) == ("steps", "batch_size") and "tokens" in sizes
    return of_batches and len(np.unique(sizes["tokens"])) == 1


def _unlike(
    runs: Runs,
    varied: Sequence[tuple[str, pandas.Series, bool]],
    axis: str,
    place: pandas.Series,
    log2: Array,
) -> BadInput:
    frame = runs.frame
    named = []
    for column, values, with_size in varied[:MOST_NAMED]:
        kinds = values.drop_duplicates()
        examples = ", ".join(map(shown_value, kinds.iloc[:3])) + (", ..." if len(kinds) > 3 else "")
        named.append(f"{column} ({examples}{f', with the {axis_name(axis)}' * with_size})")
    if len(varied) > MOST_NAMED:
        named.append(f"{len(varied) - MOST_NAMED} more columns")
    # Runs of several sizes are several ladders, whatever is ignored: each is judged by itself.
    roles = {column: role for role, column in runs.columns.items()}
    sizes = [c for c, _, with_size in varied if not with_size and roles.get(c) in SIZES]
    others = [column for column, _, _ in varied if column not in sizes]
    remedies: list[list[str | Keyword]] = []
    if others:
        what = " says that it does not matter" if len(others) == 1 else " says that none matters"
        remedies.append([copied("ignore", ",".join(others)), what])
    if (filtered := _alike_enough(frame, [c for c, _, _ in varied], place, log2)) is not None:
        remedies.append([filtered, " takes those alike"])
    column, values, with_size = varied[0]
    if len(varied) == 1 and column not in roles and values.dtype.kind in "iu" and not with_size:
        remedies.append([Keyword("axis", column), " judges along it"])
    along = [column for column, _, with_size in varied if with_size and column in roles]
    if horizon := next((column for column in along if roles[column] == "tokens"), None):
        model, ratio = "width", ""
        if count := columns_by_role(frame, runs.asked, {"params": LAW_ROLES["params"]}):
            counts = (runs.numbers(count["params"]), runs.numbers(horizon))
            model, ratio = "params", f" (these have {tokens_a_parameter(*counts)})"
        asks = f" asks for the rate of any run{ratio}"
        remedies.append([Keyword(f"to_{model}", ...), " with ", Keyword("to_tokens", ...), asks])
    if along:
        remedies.append([Keyword("axis", "size"), f" judges {' and '.join(along)} along"])
    if not remedies and (other := [r for r in AXES if r in runs.columns and r != axis]):
        along_other = "params" if "params" in other else other[-1]
        remedies.append([Keyword("axis", along_other), " may have runs alike"])
    parts = [part for remedy in remedies for part in (", or ", *remedy)][1:]
    return BadInput(
        f"the runs differ in {listed(named, ' and in ')} beside {axis_name(axis)}, learning rate "
        f"and seed, and a verdict on them all would judge "
        f"{'that' if len(varied) == 1 else 'them'} too{': ' if parts else ''}",
        *parts,
    )


def _alike_enough(frame: Any, columns: Sequence[str], place: Any, log2: Array) -> Keyword | None:
    """The filter that takes most runs alike in `columns`; None where they would be no ladder."""
    import pandas

    if sum(map(len, columns)) > LONGEST_LIST:
        return None
    groups = np.zeros(len(frame), np.int64)
    for column in columns:
        codes = pandas.factorize(frame[column])[0] + 1
        groups = np.unique(groups * (len(frame) + 1) + codes, return_inverse=True)[1]
    most = groups == np.bincount(groups).argmax()
    taken = pandas.DataFrame({"size": np.asarray(place)[most], "eta": log2[most]})
    rates = taken.groupby("size")["eta"].nunique()
    if (rates >= LADDER_RATES).sum() < LADDER_SIZES:
        return None
    first = int(np.flatnonzero(most)[0])
    return where_equal({column: frame[column].iloc[first] for column in columns})


def is_one_number(values: pandas.Series) -> bool:
    """Whether a column's texts and numbers are all one number: YAML has 1e-3 as a text."""
    if values.dtype.kind in "iufcb" or not len(values):
        return False
    numbers = map(as_number, values.unique())
    first = next(numbers)
    return all(number == first or number != number != first != first for number in numbers)


def is_identifier(values: pandas.Series) -> bool:
    """Whether a column's texts are a name of each run: all of them differ, or nearly all."""
    if values.dtype.kind in "iufcb" or len(values) < 3:
        return False
    return bool(values.is_unique or values.nunique() >= NEARLY_ALL * len(values))
