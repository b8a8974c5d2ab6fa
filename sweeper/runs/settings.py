"""What runs differ in: a setting that a verdict would judge too, or what a run gave and was.

A verdict compares runs that differ in one size, the learning rate and the seed. What else differs
is named here and refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, Keyword
from sweeper.records import as_number
from sweeper.runs.condition import shown_value, where_equal
from sweeper.runs.numbers import in_numbers
from sweeper.runs.roles import (
    AXES,
    LAW_ROLES,
    SIZES,
    columns_by_role,
    guessed_columns,
    is_size_name,
)
from sweeper.runs.run import Array, Runs
from sweeper.runs.sizes import Counts, axis_name, follows, tokens_a_parameter
from sweeper.stats.ladder import JOINT_AXIS
from sweeper.table import counted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

RESULT_WORDS = re.compile(
    r"loss|losses|acc|accuracy|ppl|perplexity|bpb|norm|metric|throughput|mfu|runtime|time|duration|"
    r"seconds|hours"
)
"""Words in the names of columns that say what a run gave, where nearly every run has another."""
MEASURED = 0.2
"""A column has at least so many values a row if it was measured: clip_norm is a setting."""
KEPT_WORDS = re.compile(
    r"date|timestamp|created|updated|heartbeat|url|path|dir|host|hostname|gpu|gpus|user|username|"
    r"tags|notes?|comments?|remarks?|sha|commit|unnamed|index|seed|sweep|job|jobid|slurm|pid|port|cwd|checkpoint|ckpt|"
    r"started|ended|finished|submitted|machine|datetime"
)
"""Words that say where or when a run was."""
TIMES = frozenset({"wall", "walltime", "wallclock", "elapsed", "runtime", "duration", "time"})
"""Words in the names of columns that say how long a run took, however few values there are."""
OF_TIMES = TIMES.union(
    ("clock", "gpu", "total", "train", "training", "run", "job", "taken", "in"),
    ("ms", "s", "sec", "secs", "seconds", "m", "min", "mins", "minutes", "h", "hr", "hrs", "hours"),
)
"""All words that such a name has: time_limit and wall_decay are settings."""
A_DATE = re.compile(
    r"\s*(?:\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[./-]\d\d?[./-]\d{4})([T ,]+\d\d?:\d\d.*)?\s*"
)
SETTINGS = re.compile(
    r"warmup|cooldown|dropout|betas?|momentum|eps|epsilon|wd|decay|lr|eta|rate|clip|clipping|std|"
    r"init|batch|optimizer|schedule|scheduler|ratio|scale|mult|multiplier|temperature|alpha|gamma|"
    r"sigma|tau|smoothing|steps|tokens|epochs|frac|fraction|limit|budget|size|dim|width|depth"
)
"""Words in the names of settings, which are none of a result even where all runs differ in them."""
NEARLY_ALL = 0.9
"""A column with so many values a row has one for each run."""
MODEL = frozenset({"params", "width", "depth", "experts", "top_k", "granularity"})
"""Sizes of a model, which grow with its number of parameters."""
LADDER_SIZES, LADDER_RATES = 2, 3
"""With fewer sizes, or fewer learning rates at them, runs make no ladder."""
KEPT_NAMES = frozenset(
    {
        *("", "id", "name", "run", "runid", "runname", "run_id", "run_name", "wandb_run_name"),
        *("step", "epoch", "iter", "iteration", "global_step", "trial", "number", "description"),
    }
)
OF_SIZE = re.compile(
    "params|parameters|flops|flop|compute|head|heads|nhead|numh|ff|ffn|ffnh|dff|mlp|intermediate|kv|width|depth|"
    "dim|hidden|embd|embed|mult|multiplier|mup"
)
"""Words for what a size brings with it: no other setting, where it is one for each size."""
NAMES_SIZE = re.compile(r"(?i)\b\d+([.]\d+)?[kmb]\b").search
"""The name of a model that says its size, as gpt-125M does."""


def check_alike(runs: Runs, axis: str, sizes: Mapping[str, Counts], log2: Array) -> list[str]:
    """Columns of results; BadInput names what else differs, and how to say that it may."""
    import pandas

    frame = runs.frame
    across = [role for role in sizes if axis in (JOINT_AXIS, role)]
    place = pandas.DataFrame({role: sizes[role] for role in across}).groupby(across).ngroup()
    used = {column: role for role, column in runs.columns.items() if role not in SIZES}
    used = {c: r for c, r in used.items() if r not in ("parameterization", "decay")}
    cells = pandas.DataFrame({"size": place, "eta": log2}).groupby(["size", "eta"]).ngroup()
    varied, results = [], list[str]()
    for name in frame.columns:
        column = str(name)
        parts = re.findall(r"[a-z]+", column.lower())
        role = next((r for r, c in runs.columns.items() if c == column), "")
        if column in used or column in runs.ignore or role in across:
            continue
        values = in_numbers(frame[name])
        if values.nunique(dropna=False) < 2 or is_one_number(values):
            continue
        if not role and is_record(column, values, cells):
            results.append(column)
            continue
        with_size = follows(values, place)
        of_tokens = {role, axis} == {"steps", "tokens"}
        # Batches at one number of tokens.
        if (role, axis) == ("steps", "batch_size") and "tokens" in sizes:
            of_tokens = len(np.unique(sizes["tokens"])) == 1
        # A bigger model has more heads and parameters: no other setting, where its name says so.
        # Any other column that goes with the size may be what makes the optimum move, and is asked
        # about.
        named_so = any(map(OF_SIZE.fullmatch, parts)) or all(
            NAMES_SIZE(str(value)) for value in values.unique()
        )
        of_model = "params" in (role, axis) and role in MODEL
        if with_size and ((not role and named_so) or of_tokens or of_model):
            continue
        if not role and _of_sizes(values, sizes):
            continue
        # A rate of some group of parameters that is fixed by size and learning rate is a rule.
        if {"lr", "eta", "rate"} & set(parts) and not role and follows(values, cells):
            continue
        varied.append((column, values, with_size))
    if not varied:
        return results
    raise _unlike(runs, varied, axis, place, log2)


def _of_sizes(values: pandas.Series, sizes: Mapping[str, Counts]) -> bool:
    """Whether a column is the product or ratio of two sizes, as tokens a parameter are."""
    if values.dtype.kind not in "iuf" or not (values > 0).all():
        return False
    logs = np.log(values.to_numpy(dtype=float))
    each = [np.log(counts) for counts in sizes.values() if (counts > 0).all()]
    pairs = [(a, b) for i, a in enumerate(each) for b in each[:i]]
    made = [part for a, b in pairs for part in (a + b, a - b, b - a)]
    return any(float(np.abs(logs - part).max()) < 1e-3 for part in made)


def _unlike(
    runs: Runs,
    varied: Sequence[tuple[str, pandas.Series, bool]],
    axis: str,
    place: pandas.Series,
    log2: Array,
) -> BadInput:
    """The error for columns in which runs differ, and what can be done; `True`: with the size."""
    import pandas

    frame = runs.frame
    named = []
    for column, values, with_size in varied[:4]:
        kinds = values.drop_duplicates()
        shown = ", ".join(map(shown_value, kinds.iloc[:3])) + (", ..." if len(kinds) > 3 else "")
        named.append(f"{column} ({shown}{f', with the {axis_name(axis)}' if with_size else ''})")
    more = f" and {counted(len(varied) - 4, 'column')} more" if len(varied) > 4 else ""
    # Runs of several sizes are several ladders, whatever is ignored: each is judged by itself.
    roles = {column: role for role, column in runs.columns.items()}
    sizes = [
        column
        for column, _, with_size in varied
        if not with_size and (roles.get(column) in SIZES or is_size_name(column))
    ]
    others = [column for column, _, _ in varied if column not in sizes]
    remedies: list[list[str | Keyword]] = []
    if guesses := _guessed_sizes(runs, [column for column, _, _ in varied]):
        meant = [f"{role}={column}" for role, column in guesses.items()]
        firsts = [f"{c} {shown_value(frame[c].iloc[0])}" for c in guesses.values()]
        what = f" where these are sizes (in the first row {', '.join(firsts)})"
        remedies.append([Keyword("columns", ",".join(meant)), what])
    if others and not sizes:
        remedies.append([Keyword("ignore", ",".join(others)), " says that it does not matter"])
    if (filtered := _alike_enough(frame, [c for c, _, _ in varied], place, log2)) is not None:
        remedies.append([filtered, " takes those alike"])
    along = [column for column, _, with_size in varied if with_size and column in roles]
    if horizon := next((column for column in along if roles[column] == "tokens"), None):
        model, ratio = "width", ""
        if count := columns_by_role(frame, runs.asked, {"params": LAW_ROLES["params"]}):
            counts = (runs.numbers(count["params"]), runs.numbers(horizon))
            model, ratio = "params", f" (these have {tokens_a_parameter(*counts)})"
        asks = f" asks for the rate of any run{ratio}"
        remedies.append([Keyword(f"to_{model}", ...), " with ", Keyword("to_tokens", ...), asks])
    if along:
        what = f" to judge {' and '.join(along)} along"
        remedies.append(["or " * bool(remedies), Keyword("axis", "size"), what])
    if others and sizes:
        what = " says that only sizes matter, each of which is a ladder of its own"
        remedies.append([Keyword("ignore", ",".join(others)), what])
    if "seed" not in runs.columns:
        pairs = pandas.DataFrame({"size": place, "eta": log2})
        for column, values, with_size in varied:
            if with_size or column in sizes or values.dtype.kind not in "iu":
                continue
            if not pairs.assign(seed=values).duplicated().any():
                remedies.append([Keyword("columns", f"seed={column}"), " where it is the seed"])
                break
    if not remedies and (other := [r for r in AXES if r in runs.columns and r != axis]):
        what = " may have runs alike"
        remedies.append([Keyword("axis", other[-1]), what])
    parts = [part for remedy in remedies for part in (", ", *remedy)][1:]
    return BadInput(
        f"the runs differ in {' and in '.join(named)}{more} beside {axis_name(axis)}, learning "
        f"rate and seed, and a verdict on them all would judge that too{': ' if parts else ''}",
        *parts,
    )


def _guessed_sizes(runs: Runs, varied: Sequence[str]) -> dict[str, str]:
    """Columns of `varied` that may be sizes which no column is yet, by role."""
    guesses: dict[str, str] = {}
    for role in AXES:
        if role not in runs.columns:
            taken = {*runs.columns.values(), *guesses.values()}
            likely = [c for c in guessed_columns(runs.frame, role, taken) if c in varied]
            guesses |= {role: likely[0]} if likely else {}
    return guesses


def _alike_enough(frame: Any, columns: Sequence[str], place: Any, log2: Array) -> Keyword | None:
    """The filter that takes most runs alike in `columns`; None where they would be no ladder."""
    import pandas

    codes = pandas.DataFrame({c: pandas.factorize(frame[c])[0] for c in columns}, index=frame.index)
    groups = codes.groupby(list(columns)).ngroup().to_numpy()
    most = groups == np.bincount(groups).argmax()
    taken = pandas.DataFrame({"size": np.asarray(place)[most], "eta": log2[most]})
    rates = taken.groupby("size")["eta"].nunique()
    if (rates >= LADDER_RATES).sum() < LADDER_SIZES:
        return None
    first = int(np.flatnonzero(most)[0])
    return where_equal({column: frame[column].iloc[first] for column in columns})


def is_record(column: str, values: pandas.Series, cells: pandas.Series) -> bool:
    """Whether a column is no setting: what a run gave, where it was, or its name."""
    return is_kept(column, values) or is_identifier(values) or is_result(column, values, cells)


def is_kept(column: str, values: pandas.Series) -> bool:
    """Whether a column is what a run gave, or where it was, by its name and its values."""
    parts = re.findall(r"[a-z]+", column.lower())
    if any(map(KEPT_WORDS.fullmatch, parts)) or column.lower().strip("_") in KEPT_NAMES:
        return True
    numbers = values.dtype.kind in "iuf"
    if is_date(values) or (numbers and TIMES & {*parts} and {*parts} <= OF_TIMES):
        return True
    measured = numbers and values.nunique() >= MEASURED * len(values)
    return measured and any(map(RESULT_WORDS.fullmatch, parts))


def is_date(values: pandas.Series) -> bool:
    """Whether a column says when a run was; few dates without a time of day may be a data set's."""
    if values.dtype.kind == "M":
        return True
    if values.dtype.kind in "iufcb":
        return False
    kinds = [str(value) for value in values.dropna().unique()]
    dates = [A_DATE.fullmatch(kind) for kind in kinds]
    if not kinds or not all(dates):
        return False
    return all(date and date[1] for date in dates) or len(kinds) >= MEASURED * len(values)


def is_result(column: str, values: pandas.Series, cells: pandas.Series) -> bool:
    """Whether numbers differ in nearly every run, those of one cell of size and rate among them.

    What has one value a cell is a setting, as a warmup that goes with the learning rate. So is
    what a search drew for each run, by its name.
    """
    import pandas

    parts = re.findall(r"[a-z]+", column.lower())
    if values.dtype.kind not in "iuf" or any(map(SETTINGS.fullmatch, parts)):
        return False
    table = pandas.DataFrame({"cell": cells.to_numpy(), "value": values.to_numpy()}).dropna()
    repeated = table[table.duplicated("cell", keep=False)]
    if len(repeated) < len(table) / 2 or not len(repeated):
        return False
    alone = len(repeated.drop_duplicates()) - repeated["cell"].nunique()
    every = len(repeated) - repeated["cell"].nunique()
    return bool(table["value"].nunique() >= NEARLY_ALL * len(table) and alone >= NEARLY_ALL * every)


def is_one_number(values: pandas.Series) -> bool:
    """Whether a column's texts and numbers are all one number: YAML has 1e-3 as a text."""
    return values.dtype.kind not in "iufcb" and values.map(as_number).nunique(dropna=False) < 2


def is_identifier(values: pandas.Series) -> bool:
    """Whether a column's texts are a name of each run: all of them differ, or nearly all."""
    if values.dtype.kind in "iufcb" or len(values) < 3:
        return False
    return bool(values.is_unique or values.nunique() >= NEARLY_ALL * len(values))
