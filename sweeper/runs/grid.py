"""A table of runs as learning-rate curves: which column is what, and which runs are compared.

A verdict compares runs that differ in one size, the learning rate and the seed. What else differs
is named here and refused; what makes a table's curves unlike a ladder's is said in `Grid.notes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.command.reading import STEP_NAMES
from sweeper.errors import BadInput, ConfigError, Keyword, MissingValue
from sweeper.records import as_number
from sweeper.runs.condition import shown_value, where_equal
from sweeper.runs.source import Array, Source, plain_name
from sweeper.runs.trackers import Objective, by_run
from sweeper.stats.ladder import JOINT_AXIS, KnownNoise, LadderSize, SizeCurve
from sweeper.table import counted

ROLES: Mapping[str, tuple[str, ...]] = {
    "width": (
        "width",
        "n_embd",
        "d_model",
        "hidden_size",
        "model_width",
        "embed_dim",
        "hidden_dim",
        "model_dim",
        "dim",
        "model.width",
    ),
    "depth": ("depth", "n_layer", "n_layers", "num_layers", "layers", "num_hidden_layers"),
    "batch_size": ("batch_size", "global_batch_size", "batch", "bs"),
    "steps": ("steps", "train_steps", "max_steps", "n_steps", "num_iterations", "max_iters"),
    "tokens": ("tokens", "train_tokens", "n_tokens", "num_tokens"),
    "experts": ("experts",),
    "top_k": ("top_k",),
    "granularity": ("granularity",),
    "log2_eta": ("log2_eta", "log2_lr", "log2_learning_rate"),
    "eta": ("eta", "lr", "learning_rate", "max_lr", "peak_lr", "base_lr"),
    "optimum": ("optimum", "optimal_lr", "best_lr", "optimum_lr", "optimal_eta", "best_eta"),
    "decay": ("weight_decay", "wd", "decay"),
    "loss": (
        "loss",
        "val_loss",
        "eval_loss",
        "final_loss",
        "final_val_loss",
        "validation_loss",
        "eval/loss",
        "val/loss",
        "test_loss",
        "val_bpb",
        "bpb",
        "eval_bpb",
        "train_loss",
        "objective",
        "value",
    ),
    "seed": ("seed", "random_seed", "rng_seed", "rng", "repeat", "replicate", "rep"),
    "status": ("status", "state"),
    "first": ("first_loss", "initial_loss"),
    "reached": ("last_step",),
    "parameterization": ("parameterization",),
    "base": ("base",),
    "transferred": ("transferred_log2_eta",),
    "planned": ("planned_log2",),
}
"""What a column can be to a verdict, and its usual names, the likeliest first."""
ALIASES = {"batch": "batch_size", "lr": "eta", "wd": "decay", "weight_decay": "decay"}
AXES = ("width", "depth", "batch_size", "steps", "tokens")
SIZES = (*AXES, "experts", "top_k", "granularity")
GIVEN_WORDS = re.compile(
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
A_DATE = re.compile(r"\s*\d{4}[-/]\d\d?[-/]\d\d?([T ]+\d\d?:\d\d.*)?\s*")
SETTINGS = re.compile(
    r"warmup|cooldown|dropout|betas?|momentum|eps|epsilon|wd|decay|lr|eta|rate|clip|clipping|std|"
    r"init|batch|optimizer|schedule|scheduler|ratio|scale|mult|multiplier|temperature|alpha|gamma|"
    r"sigma|tau|smoothing|steps|tokens|epochs|frac|fraction|limit|budget|size|dim|width|depth"
)
"""Words in the names of settings, which are none of a result even where all runs differ in them."""
NEARLY_ALL = 0.9
"""A column with so many values a row has one for each run."""
LADDER_SIZES, LADDER_RATES = 2, 3
"""With fewer sizes, or fewer learning rates at them, runs make no ladder."""
MOST_NAMED = 8
"""Columns that a note names; more are counted."""
KEPT_NAMES = frozenset(
    {
        *("", "id", "name", "run", "runid", "runname", "run_id", "run_name", "wandb_run_name"),
        *("step", "epoch", "iter", "iteration", "global_step", "trial", "number", "description"),
    }
)
OF_SIZE = re.compile(
    "params|parameters|flops|flop|compute|head|heads|nhead|ff|ffn|mlp|intermediate|kv|width|depth|"
    "dim|hidden|embd|embed|mult|multiplier|mup"
)
"""Words for what a size brings with it: no other setting, where it is one for each size."""
NAMES_SIZE = re.compile(r"(?i)\b\d+([.]\d+)?[kmb]\b").search
"""The name of a model that says its size, as gpt-125M does."""
APART = 100.0
"""Neighbouring learning rates farther apart than this factor are taken for two units."""
EXPLODED = 10.0
"""A loss above so many times the median of its size is that of a run that diverged."""
LOG10_LEAST = -7.0
"""Above this a learning rate's logarithm may be to the base of ten."""
MOST_SEEDS = 64
"""More runs a cell than this are averaged in as many groups: it is plain what they say."""
MOST_VALUES = 512
"""Learning rates of one size beyond which a table is a log of something else."""
UNFINISHED = [
    *("failed", "crashed", "killed", "running", "pruned", "fail", "waiting", "pending", "queued"),
    *("preempted", "preempting", "cancelled", "canceled", "timeout", "interrupted", "error", "oom"),
]
"""States of runs whose loss is not that of their end."""
EARLY = 0.9
"""A run that ended before this share of the steps of others of its size did not finish."""
MakeSize = Callable[[Mapping[str, Any]], LadderSize]
NEAR = 2.0
"""Octaves around a curve's best cell in which runs count for the verdict."""


@dataclass(frozen=True, kw_only=True, order=True)
class TokenSize(LadderSize):
    """A size of a ladder over the number of tokens, which no ladder of ours has by name."""

    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a table is to be read: the axis (None: whichever differs), and what may be passed over.

    `diverged`: a loss above it is that of a run that diverged. `noise`: a run's standard deviation
    in nats, where it is known. `base`: the size that the transfer begins at, None: the smallest.
    `objective`: which series of a run is its loss, where a table has none.
    """

    axis: str | None = None
    ignore: tuple[str, ...] = ()
    diverged: float | None = None
    noise: float | None = None
    base: float | None = None
    objective: Objective = field(default_factory=Objective)

    def __post_init__(self) -> None:
        """ConfigError for what is no axis or no number."""
        if self.axis is not None and self.axis not in (*AXES, JOINT_AXIS):
            raise ConfigError(
                Keyword("axis"), self.axis, f"one of {', '.join((*AXES, JOINT_AXIS))}"
            )
        for name in ("diverged", "noise"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(Keyword(name), value, "a positive number of nats")


@dataclass(frozen=True, kw_only=True)
class DecayCell:
    """A cell of a grid over learning rate and weight decay (plain values), its mean loss."""

    size: LadderSize
    eta: float
    decay: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Curves by size, ascending, of one `axis`; `notes` say what was done to the runs.

    `seeds` is the least number of runs a cell. `plain` tells that the table has learning rates,
    not their logarithms. `transferred` (log2) and `parameterization` where the table names them.
    With a weight decay that differs, `cells` are all of them and the curves are at `decay`.
    """

    axis: str
    curves: tuple[SizeCurve, ...]
    base: LadderSize
    seeds: int
    runs: int
    plain: bool
    noise: str
    notes: tuple[str, ...] = ()
    rounded: float = 0.0
    transferred: float | None = None
    parameterization: str = ""
    cells: tuple[DecayCell, ...] = ()
    decay: float | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)


def roles_of(source: Source, given: str) -> dict[str, str]:
    """Which column is what: as `given`, else by its usual name; BadInput where one is missing."""
    pairs = [part.strip().partition("=") for part in given.split(",")]
    text = ",".join(f"{ALIASES.get(r.strip(), r)}{sign}{c}" for r, sign, c in pairs)
    found = source.columns(text, ROLES)
    named = {ALIASES.get(role.strip(), role.strip()) for role, _, _ in pairs}
    # A table of optima alone has no losses; "best_lr" beside losses is a column like others.
    if "optimum" in found and "loss" in found and "optimum" not in named:
        del found["optimum"]
    if "log2_eta" in found and "eta" in found and "eta" in named:
        del found["log2_eta"]
    if not {"eta", "log2_eta", "optimum"} & found.keys():
        rates = [str(column) for column in source.frame.columns if _is_rate(str(column))]
        if len(rates) == 1:  # matrix_lr, where no other column is a rate
            found["eta"] = rates[0]
    there = ", ".join(str(column) for column in source.frame.columns)
    has_eta = "eta" in found or "log2_eta" in found
    for role, there_is in (("eta", has_eta), ("loss", "loss" in found)):
        if not there_is and "optimum" not in found:
            raise _lacking(given, f"{role}=COLUMN with one of {there}: none has a usual name")
    if not any(axis in found for axis in AXES):
        raise _lacking(given, f"width=COLUMN, or another size, with one of {there}")
    return found


def _lacking(given: str, allowed: str) -> ConfigError:
    """For columns that nobody named, and that no usual name finds."""
    if given:
        return ConfigError(Keyword("columns"), given, allowed)
    return MissingValue(Keyword("columns"), f", {allowed}")


def _is_rate(column: str) -> bool:
    words = re.findall(r"[a-z]+[0-9]*", column.lower())
    other = {"min", "final", "end", "warmup", "decay", "ratio", "schedule", "scheduler", "type"}
    named = {"lr", "eta"} & {*words} or {"learning", "rate"} <= {*words}
    return bool(named) and not other & {*words}


def log2_of(source: Source, column: str) -> tuple[Array, str, bool]:
    """A column's learning rates in log2, how they were read, and whether they are plain.

    ConfigError where units are mixed.
    """
    values = source.numbers(column)
    bad = ~np.isfinite(values)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise BadInput(f"{source.row(place)} has no learning rate in {column!r}")
    name = column.lower()
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
            f"{source.row(place)} has a learning rate of 0 in {column!r}: it trains nothing"
        )
    if (values <= 0).any():
        low, high = float(values.min()), float(values.max())
        raise ConfigError(
            Keyword("columns"),
            f"eta={column}",
            f"learning rates in one unit: {low:g} beside {high:g} are plain ones and logarithms",
        )
    # One column with two units, such as rates and percentages, has a gap that no grid has.
    known = np.unique(values)
    jumps = known[1:] / known[:-1]
    if len(jumps) and jumps.max() > APART * (1 + 1e-9):
        at = int(jumps.argmax())
        raise ConfigError(
            Keyword("columns"),
            f"eta={column}",
            (
                f"learning rates in one unit: {known[at + 1]:g} stands beside {known[at]:g}, and "
                "nothing between; ",
                Keyword("where", ...),
                " takes the rows of one",
            ),
        )
    logs: Array = np.log2(values).round(12)
    return logs, "", True


def grid_of(source: Source, columns: Mapping[str, str], reading: Reading) -> Grid:
    """The curves of a table; BadInput where its runs cannot be compared."""
    import pandas  # type: ignore[import-untyped]

    rows = len(source.frame)
    notes = [*source.notes]
    sizes = _sizes(source, columns)
    axis = _axis(sizes, reading)
    log2, said, plain = log2_of(source, columns.get("log2_eta") or columns["eta"])
    notes += [said] if said and "log2_eta" not in columns else []
    loss = source.numbers(columns["loss"])
    decay = source.numbers(columns["decay"]) if "decay" in columns else None
    if decay is not None and len(np.unique(decay)) == 1:
        decay = None
    results = _check_alike(source, columns, reading, axis, sizes, log2, decay=decay is not None)
    table = pandas.DataFrame({"eta": log2, "loss": loss})
    for name, values in sizes.items():
        table[name] = values
    table["decay"] = 0.0 if decay is None else decay
    table["planned"] = source.numbers(columns["planned"]) if "planned" in columns else 0.0
    table = _statuses(source, columns, table, notes)
    table = _unfinished(source, columns, table, notes)
    rounded = _rounding(table["loss"].to_numpy(), notes)
    table = _diverge(source, columns, reading, table, notes, axis)
    table = _seeds(source, columns, table, notes, rounded)
    kept = len(table)
    table = _grouped(table, notes)
    grid_cells: tuple[DecayCell, ...] = ()
    at: float | None = None
    keys = [*sizes]
    make = _size_maker(axis, keys)
    if decay is not None:
        grid_cells, at = _decay_cells(table, keys, make, notes, reading, axis)
        table = table[table["decay"] == at]
    base = _base(source, columns, table, keys, make, reading, axis)
    curves, noise = _curves(table, keys, make, notes, axis, reading, rounded)
    steps = _steps(table, keys)
    if base not in [curve.size for curve in curves]:
        raise BadInput(f"the base, {base}, has no runs at a weight decay of {at:g}")
    _say_grids(curves, steps, notes, axis)
    if results:
        more = f" and {len(results) - MOST_NAMED} more" if len(results) > MOST_NAMED else ""
        notes.append(
            "taken for results and records of the runs, not for settings: "
            f"{', '.join(results[:MOST_NAMED])}{more}"
        )
    return Grid(
        axis=axis,
        curves=tuple(curves),
        base=base,
        seeds=min((len(runs) for c in curves for runs in c.losses.values()), default=0),
        runs=kept,
        plain=plain,
        noise=noise,
        notes=tuple(notes + ([f"{rows - kept} of {rows} rows are not counted"] * (rows > kept))),
        rounded=rounded,
        transferred=_constant(source, columns, "transferred"),
        parameterization=_text(source, columns, "parameterization"),
        cells=grid_cells,
        decay=at,
        columns=columns,
        constants=_constants(source),
    )


def read_table(
    place: str | Path, given: str, where: str, reading: Reading
) -> tuple[Source, dict[str, str]]:
    """The runs of a place, a row a run, and which column is what; BadInput as `Source.read`."""
    return per_run(Source.read(place, where, reading.objective), given, reading)


def per_run(source: Source, given: str, reading: Reading) -> tuple[Source, dict[str, str]]:
    """A table with a row a run, and which column is what; of one with a row a step, the runs'."""
    columns = roles_of(source, given)
    step = _step_column(source, columns)
    if step is None or "loss" not in columns:
        return source, columns
    settings = [
        columns[role] for role in (*SIZES, "eta", "log2_eta", "decay", "seed") if role in columns
    ]
    frame, notes = by_run(source, step, columns["loss"], settings, reading.objective)
    if not notes:
        return source, columns
    source = replace(source, frame=frame, notes=(*source.notes, *notes))
    return source, roles_of(source, given)


def _step_column(source: Source, columns: Mapping[str, str]) -> str | None:
    """The column that may say at which step of its run a row was written."""
    steps = {plain_name(name) for name in STEP_NAMES}
    return next(
        (
            str(column)
            for column in source.frame.columns
            if plain_name(column) in steps
            and str(column) not in columns.values()
            and source.frame[column].dtype.kind in "iuf"
        ),
        None,
    )


def whole_numbers(source: Source, role: str, column: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column of sizes; BadInput for one that is none."""
    values = source.numbers(column)
    bad = ~(np.isfinite(values) & (values >= 0) & (values == np.round(values)) & (values < 2**62))
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise BadInput(
            f"{source.row(place)} has {values[place]:g} in {column!r}: a {role.replace('_', ' ')} "
            "is a whole number"
        )
    return values.astype(np.int64)


def _sizes(source: Source, columns: Mapping[str, str]) -> dict[str, Any]:
    return {role: whole_numbers(source, role, columns[role]) for role in SIZES if role in columns}


def _axis(sizes: Mapping[str, Any], reading: Reading) -> str:
    """The one size that differs; ConfigError where several do, or the asked one is not there."""
    axis = reading.axis
    varied = [role for role, values in sizes.items() if len(np.unique(values)) > 1]
    if axis is not None and axis != JOINT_AXIS and axis not in sizes:
        raise ConfigError(Keyword("axis"), axis, f"a size that the table has: {', '.join(sizes)}")
    if axis is not None:
        return axis
    if {"tokens", "steps"} <= set(varied) and _follows(sizes["tokens"], sizes["steps"]):
        varied.remove("steps")
    return varied[0] if varied else next(role for role in AXES if role in sizes)


def _follows(values: Any, of: Any) -> bool:
    """Whether `values` are one for each value `of`."""
    import pandas

    codes = pandas.DataFrame({"a": pandas.factorize(values)[0], "b": pandas.factorize(of)[0]})
    return bool(len(codes.drop_duplicates()) == codes["b"].nunique())


def _check_alike(
    source: Source,
    columns: Mapping[str, str],
    reading: Reading,
    axis: str,
    sizes: Mapping[str, Any],
    log2: Array,
    *,
    decay: bool,
) -> list[str]:
    """BadInput that names what else differs between the runs, and how to say that it may.

    The columns that differ and are no settings.
    """
    import pandas

    frame = source.frame
    for name in reading.ignore:
        if name not in frame.columns:
            there = ", ".join(map(str, frame.columns))
            raise ConfigError(Keyword("ignore"), name, f"columns of the table: {there}")
    across = [role for role in sizes if axis in (JOINT_AXIS, role)]
    place = pandas.DataFrame({role: sizes[role] for role in across}).groupby(across).ngroup()
    used = {column: role for role, column in columns.items() if role not in SIZES}
    used = {c: r for c, r in used.items() if r not in ("parameterization", "decay")}
    cells = pandas.DataFrame({"size": place, "eta": log2}).groupby(["size", "eta"]).ngroup()
    varied, results = [], list[str]()
    for name in frame.columns:
        column = str(name)
        words = re.findall(r"[a-z]+", column.lower())
        role = next((r for r, c in columns.items() if c == column), "")
        if column in used or column in reading.ignore or role in across:
            continue
        if role == "decay" and decay:
            continue
        values = frame[name]
        if values.nunique(dropna=False) < 2 or is_one_number(values):
            continue
        if not role and (
            is_kept(column, values) or is_identifier(values) or is_result(column, values, cells)
        ):
            results.append(column)
            continue
        with_size = _follows(values, place)
        of_tokens = {role, axis} == {"steps", "tokens"}
        # A bigger model has more heads and parameters: no other setting, where its name says so.
        # Any other column that goes with the size may be what makes the optimum move, and is asked
        # about.
        named_so = any(map(OF_SIZE.fullmatch, words)) or all(
            NAMES_SIZE(str(value)) for value in values.unique()
        )
        if with_size and ((not role and named_so) or of_tokens):
            continue
        # A rate of some group of parameters that is fixed by size and learning rate is a rule.
        if {"lr", "eta", "rate"} & set(words) and not role and _follows(values, cells):
            continue
        varied.append((column, values, with_size))
    if not varied:
        return results
    named = []
    for column, values, with_size in varied[:4]:
        kinds = values.drop_duplicates()
        shown = ", ".join(map(shown_value, kinds.iloc[:3])) + (", ..." if len(kinds) > 3 else "")
        named.append(f"{column} ({shown}{f', with the {_said(axis)}' if with_size else ''})")
    more = f" and {len(varied) - 4} columns more" if len(varied) > 4 else ""
    remedies: list[str | Keyword] = [
        Keyword("ignore", ",".join(column for column, _, _ in varied)),
        " says that it does not matter",
    ]
    if (filtered := _alike_enough(frame, [c for c, _, _ in varied], place, log2)) is not None:
        remedies += [", ", filtered, " takes those alike"]
    if along := [c for c, _, same in varied if same and c in columns.values()]:
        remedies += [", or ", Keyword("axis", "size"), f" to judge {' and '.join(along)} along"]
    if "seed" not in columns:
        pairs = pandas.DataFrame({"size": place, "eta": log2})
        for column, values, _ in varied:
            if values.dtype.kind in "iu" and not pairs.assign(seed=values).duplicated().any():
                remedies += [", ", Keyword("columns", f"seed={column}"), " where it is the seed"]
                break
    raise BadInput(
        f"the runs differ in {' and in '.join(named)}{more} beside {_said(axis)}, learning rate "
        "and seed, and a verdict on them all would judge that too: ",
        *remedies,
    )


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
    first = frame.iloc[int(np.flatnonzero(most)[0])]
    return where_equal({column: first[column] for column in columns})


def is_kept(column: str, values: Any) -> bool:
    """Whether a column is what a run gave, or where it was, by its name and its values."""
    words = re.findall(r"[a-z]+", column.lower())
    if any(map(KEPT_WORDS.fullmatch, words)) or column.lower().strip("_") in KEPT_NAMES:
        return True
    numbers = values.dtype.kind in "iuf"
    if is_date(values) or (numbers and TIMES & {*words} and {*words} <= OF_TIMES):
        return True
    measured = numbers and values.nunique() >= MEASURED * len(values)
    return measured and any(map(GIVEN_WORDS.fullmatch, words))


def is_date(values: Any) -> bool:
    """Whether a column says when a run was; few dates without a time of day may be a data set's."""
    if values.dtype.kind == "M":
        return True
    if values.dtype.kind in "iufcb":
        return False
    kinds = [str(value) for value in values.dropna().unique()]
    found = [A_DATE.fullmatch(kind) for kind in kinds]
    if not kinds or not all(found):
        return False
    return all(one and one[1] for one in found) or len(kinds) >= MEASURED * len(values)


def is_result(column: str, values: Any, cells: Any) -> bool:
    """Whether numbers differ in nearly every run, those of one cell of size and rate among them.

    What has one value a cell is a setting, as a warmup that goes with the learning rate. So is
    what a search drew for each run, by its name.
    """
    import pandas

    words = re.findall(r"[a-z]+", column.lower())
    if values.dtype.kind not in "iuf" or any(map(SETTINGS.fullmatch, words)):
        return False
    table = pandas.DataFrame({"cell": cells.to_numpy(), "value": values.to_numpy()}).dropna()
    repeated = table[table.duplicated("cell", keep=False)]
    if len(repeated) < len(table) / 2 or not len(repeated):
        return False
    alone = len(repeated.drop_duplicates()) - repeated["cell"].nunique()
    every = len(repeated) - repeated["cell"].nunique()
    return bool(table["value"].nunique() >= NEARLY_ALL * len(table) and alone >= NEARLY_ALL * every)


def is_one_number(values: Any) -> bool:
    """Whether a column's texts and numbers are all one number: YAML has 1e-3 as a text."""
    return values.dtype.kind not in "iufcb" and values.map(as_number).nunique(dropna=False) < 2


def is_identifier(values: Any) -> bool:
    """Whether a column's texts are a name of each run: all of them differ, or nearly all."""
    if values.dtype.kind in "iufcb" or len(values) < 3:
        return False
    return bool(values.is_unique or values.nunique() >= NEARLY_ALL * len(values))


def _said(axis: str) -> str:
    return axis.replace("_", " ")


def _statuses(source: Source, columns: Mapping[str, str], table: Any, notes: list[str]) -> Any:
    """Without runs that failed or still run; a status of "diverged" says more than its loss."""
    if "status" not in columns:
        return table
    status = source.frame[columns["status"]].astype(str).str.lower().to_numpy()
    unfinished = np.isin(status, UNFINISHED)
    if unfinished.any():
        kinds = ", ".join(sorted(set(status[unfinished])))
        notes.append(f"{counted(int(unfinished.sum()), 'run')} did not end ({kinds}): left out")
    table.loc[status == "diverged", "loss"] = math.inf
    if unfinished.all():
        raise BadInput(f"no run of {source.name or 'the table'} has ended")
    return table[~unfinished]


def _unfinished(source: Source, columns: Mapping[str, str], table: Any, notes: list[str]) -> Any:
    """Without runs whose last step lies well before that of others of their size."""
    column = columns.get("reached", "_step")  # W&B's own name of it in its exports
    if column not in source.frame:
        return table
    reached = source.numbers(column)[table.index.to_numpy()]
    sizes = [role for role in SIZES if role in table]
    furthest = table.assign(reached=reached).groupby(sizes)["reached"].transform("max").to_numpy()
    early = (reached < EARLY * furthest) & np.isfinite(table["loss"].to_numpy())
    if early.any():
        notes.append(
            f"left out: {counted(int(early.sum()), 'run')} that ended before "
            f"{EARLY:.0%} of the steps of others of the size"
        )
    return table[~early]


def _rounding(loss: Array, notes: list[str]) -> float:
    """The unit that all losses are rounded to, if it is 0.01 or more; else 0."""
    finite = loss[np.isfinite(loss)][:100_000]
    for unit in (1.0, 0.1, 0.01):
        scaled = finite / unit
        if len(finite) > 3 and np.allclose(scaled, np.round(scaled), rtol=0, atol=1e-6):
            digits = round(-math.log10(unit))
            notes.append(
                f"losses are rounded to {digits} digits: each may be {unit / 2:g} nats off, and "
                "optima that differ by less cannot be told apart"
            )
            return unit
    return 0.0


def _diverge(
    source: Source,
    columns: Mapping[str, str],
    reading: Reading,
    table: Any,
    notes: list[str],
    axis: str,
) -> Any:
    """With a loss of +inf for every run that diverged, and without those that have none.

    An empty cell and a NaN are one to most readers of tables. A run diverges by a learning rate
    that is too high: where a higher one trained all runs of its size, nothing was measured.
    """
    loss = table["loss"].to_numpy(copy=True)
    unknown, gone, counts = np.isnan(loss), ~np.isfinite(loss), dict[str, int]()
    loss[gone] = math.inf
    if reading.diverged is not None:
        high = ~gone & (loss > reading.diverged)
        counts[f"a loss above {reading.diverged:g}"] = int(high.sum())
    elif "first" in columns:
        first = source.numbers(columns["first"])[table.index.to_numpy()]
        high = ~gone & (loss > first)
        counts["a loss above the first one"] = int(high.sum())
    else:
        finite = table["loss"].where(np.isfinite(table["loss"]))
        along = [role for role in (axis,) if role in table] or [r for r in SIZES if r in table]
        typical = finite.groupby([table[role] for role in along]).transform("median").to_numpy()
        high = ~gone & (loss > EXPLODED * typical) & (typical > 0)
        rule = f"a loss above {EXPLODED:g} times the median of its {_said(axis)}"
        counts[rule] = int(high.sum())
    loss[high] = math.inf
    table["loss"] = loss
    # The highest rate at which all runs of a size have a loss: below it none diverges.
    alone = [table[role] for role in (*SIZES, "decay") if role in table]
    worst = table.groupby([*alone, table["eta"]])["loss"].transform("max")
    trained = table["eta"].where(np.isfinite(worst)).groupby(alone).transform("max").to_numpy()
    lost = unknown & (table["eta"].to_numpy() < trained)
    if count := int(lost.sum()):
        notes.append(
            f"left out, with no loss: {count} of the runs, of learning rates below one at which "
            "all runs of the size have a loss; write inf for those that diverged"
        )
    counts["a loss that is NaN or infinite"] = int((gone & ~lost).sum())
    said = [f"{count} by {why}" for why, count in counts.items() if count]
    if said:
        notes.append(f"diverged: {', '.join(said)}; its loss counts as infinite")
    if not np.isfinite(loss).any():
        raise BadInput("no run of the table has a finite loss")
    return table[~lost]


GIVEN = ("loss", "planned")
"""Columns of a run that are no part of what makes its cell."""


def _seeds(
    source: Source, columns: Mapping[str, str], table: Any, notes: list[str], rounded: float
) -> Any:
    """With a number of its seed to every run; each run once, and at most `MOST_SEEDS` a cell."""
    cell = [column for column in table.columns if column not in GIVEN]
    before = len(table)
    if "seed" in columns:
        seeds = source.frame[columns["seed"]].iloc[table.index.to_numpy()]
        import pandas

        table["seed"] = pandas.factorize(seeds, sort=True)[0]
        key = [*cell, "seed"]
        again = table.duplicated(key, keep=False)
        if again.any():
            some = table[again]
            # A row that was written twice is one run; two losses of one run are a mistake to name.
            spread = some.groupby(key)["loss"].transform("nunique")
            if (spread > 1).any():
                first = some[spread > 1].iloc[0]
                alike = (some[key] == first[key]).all(axis=1)
                places = [int(one) for one in some[alike].index[:2]]
                same = source.frame[columns["seed"]].iloc[places[0]]
                raise BadInput(
                    f"{source.row(places[0])} and {source.row(places[1])} have one size, learning "
                    f"rate and seed ({same}) and different "
                    "losses: name the column that tells them apart with ",
                    Keyword("where", ...),
                    ", or leave the seed out with ",
                    Keyword("columns", "seed="),
                    " if they are repeats",
                )
            table = table.drop_duplicates(key)
    else:
        if not rounded and before < 1_000_000:
            twice = source.frame.iloc[table.index.to_numpy()].duplicated().to_numpy()
            table = table[~twice].copy()
        table["seed"] = table.groupby(cell).cumcount()
    if len(table) < before:
        notes.append(f"{before - len(table)} rows stand there twice and are counted once")
    return table


def _grouped(table: Any, notes: list[str]) -> Any:
    """With the means of `MOST_SEEDS` groups where a cell has more runs than that."""
    cell = [column for column in table.columns if column not in (*GIVEN, "seed")]
    most = int(table.groupby(cell)["loss"].size().max())
    if most <= MOST_SEEDS:
        return table
    notes.append(
        f"up to {most} runs a cell: averaged in {MOST_SEEDS} groups, whose means are judged as runs"
    )
    table["seed"] %= MOST_SEEDS
    return table.groupby([*cell, "seed"], as_index=False).agg({"loss": "mean", "planned": "first"})


def _size_maker(axis: str, keys: Sequence[str]) -> MakeSize:
    """What makes a size of a row's values; what a table does not have is 1."""
    kind = TokenSize if axis == "tokens" else LadderSize
    known = {one.name for one in fields(kind)}

    def make(values: Mapping[str, Any]) -> LadderSize:
        given = {key: int(values[key]) for key in keys if key in known}
        defaults = {"width": 1, "depth": 1, "batch_size": 1, "steps": 1}
        return kind(**{**defaults, **given})

    return make


def _base(
    source: Source,
    columns: Mapping[str, str],
    table: Any,
    keys: Sequence[str],
    make: MakeSize,
    reading: Reading,
    axis: str,
) -> LadderSize:
    """The smallest size, or the asked one; the one that a table of ours marks."""
    sizes = [make(row) for row in table[list(keys)].drop_duplicates().to_dict("records")]
    if reading.base is not None:
        found = [size for size in sizes if getattr(size, _one(axis)) == reading.base]
        if not found:
            there = ", ".join(str(getattr(size, _one(axis))) for size in sorted(sizes))
            raise ConfigError(
                Keyword("base"), f"{reading.base:g}", f"a {_said(_one(axis))} of {there}"
            )
        return found[0]
    if "base" in columns:
        marked = source.frame[columns["base"]].astype(str).str.lower().isin(["true", "1", "1.0"])
        places = table.index.intersection(np.flatnonzero(marked.to_numpy()))
        found = [
            make(row) for row in table.loc[places, list(keys)].drop_duplicates().to_dict("records")
        ]
        if len(found) == 1:
            return found[0]
    return min(sizes, key=lambda size: (getattr(size, _one(axis)), size))


def _one(axis: str) -> str:
    return "width" if axis == JOINT_AXIS else axis


def _curves(
    table: Any,
    keys: Sequence[str],
    make: MakeSize,
    notes: list[str],
    axis: str,
    reading: Reading,
    rounded: float,
) -> tuple[list[SizeCurve], str]:
    """A curve a size, each with as many runs a cell as its rectangle has, and where noise is from.

    Without two runs a cell the noise is a known one: what `Reading` names, else what repeated cells
    of the table show.
    """
    shown = _repeats(table, [*keys, "eta"])
    uncounted, means = [], []
    curves: list[SizeCurve] = []
    for values, rows in table.groupby(list(keys)):
        size = make(
            dict(zip(keys, values if isinstance(values, tuple) else (values,), strict=True))
        )
        etas = np.unique(rows["eta"].to_numpy())
        if len(etas) > MOST_VALUES:
            raise BadInput(
                f"{name_size(size, axis)} has {len(etas)} learning rates: more than {MOST_VALUES} "
                "are no grid; ",
                Keyword("columns", "eta=COLUMN"),
                " names the peak one of a run",
            )
        # A verdict pairs runs by seed, so that it takes a table without holes: [eta, seed].
        runs = np.full((len(etas), int(rows["seed"].max()) + 1), math.nan)
        runs[np.searchsorted(etas, rows["eta"].to_numpy()), rows["seed"].to_numpy()] = rows["loss"]
        chosen, left = rectangle(etas, runs)
        planned = float(rows["planned"].iloc[0])
        if left:
            uncounted.append(f"{left} at {name_size(size, axis)}")
        if chosen is None:
            counts = (~np.isnan(runs)).sum(axis=1)
            losses = np.nanmean(runs, axis=1)[:, None]
            if counts.max() > 1:
                means.append(name_size(size, axis))
            keep = np.arange(len(etas))
        else:
            keep, seeds = chosen
            losses = runs[np.ix_(keep, seeds)]
        points = {
            float(eta): tuple(map(float, one)) for eta, one in zip(etas[keep], losses, strict=True)
        }
        curves.append(SizeCurve(size=size, losses=points, planned_log2=planned))
    if uncounted:
        notes.append(
            "cells have unequal numbers of runs: of each size the rectangle of cells and seeds "
            "with most runs near its best is judged, and these are left out: "
            f"{', '.join(uncounted)}"
        )
    few = [c for c in curves if min(len(one) for one in c.losses.values()) < 2]
    noise = ""
    if reading.noise is not None:
        # The error of rounding is uniform over a unit: its variance is unit^2 / 12.
        known = KnownNoise(deviation=math.hypot(reading.noise, rounded / 12**0.5), freedom=10**6)
        curves = [_with_noise(curve, known) for curve in curves]
        noise = f"given: {reading.noise:g} nats a run"
    elif few and shown is not None:
        known = KnownNoise(
            deviation=math.hypot(
                shown.deviation, rounded / 12**0.5 if len(few) == len(curves) else 0
            ),
            freedom=shown.freedom,
        )
        curves = [_with_noise(c, known) if c in few else c for c in curves]
        names = ", ".join(name_size(curve.size, axis) for curve in few)
        noise = f"{known.deviation:.4g} nats a run, by repeated cells"
        notes.append(
            f"no rectangle of repeated cells at {names}: the noise there is {known.deviation:.4g} "
            f"nats a run, by the repeated cells of the table ({known.freedom} degrees of freedom)"
        )
    elif not few:
        noise = "by the seeds of each size"
    if means:
        notes.append(
            f"the few repeated cells at {', '.join(means)} count by their means, with the error of "
            "a single run"
        )
    return sorted(curves, key=lambda curve: (getattr(curve.size, _one(axis)), curve.size)), noise


def _with_noise(curve: SizeCurve, known: KnownNoise) -> SizeCurve:
    return replace(curve, noise=known)


def _repeats(table: Any, cell: Sequence[str]) -> KnownNoise | None:
    """The pooled standard deviation within cells that have several finite runs; None without."""
    finite = table[np.isfinite(table["loss"])]
    spread = finite.groupby(list(cell))["loss"].agg(["size", "var"])
    spread = spread[spread["size"] > 1]
    freedom = int((spread["size"] - 1).sum())
    if not freedom:
        return None
    variance = float(((spread["size"] - 1) * spread["var"]).sum() / freedom)
    return KnownNoise(deviation=math.sqrt(variance), freedom=freedom) if variance > 0 else None


def rectangle(etas: Array, runs: Array) -> tuple[tuple[Any, Any] | None, int]:
    """Cells and seeds [eta, seed] with all runs there, as many as can be near the best cell.

    `runs` are NaN where missing. The best cell and the one on each side of it must be among the
    cells; with fewer than two seeds there is none. The number of runs left out comes with it.
    """
    there = ~np.isnan(runs)
    total = int(there.sum())
    with np.errstate(invalid="ignore"):
        means = np.array([row[here].mean() for row, here in zip(runs, there, strict=True)])
    best = int(np.argmin(np.where(np.isnan(means), math.inf, means)))
    needed = np.arange(max(0, best - 1), min(len(etas), best + 2))
    near = np.abs(etas - etas[best]) <= NEAR
    usable = np.flatnonzero(there[needed].all(axis=0))
    if len(usable) < 2:
        return None, 0
    # Seeds in the order of how much they cover; cells are those that all of the first m have.
    order = usable[np.argsort(-(there & near[:, None])[:, usable].sum(axis=0), kind="stable")]
    found, most = None, (-1, -1)
    for count in range(2, len(order) + 1):
        cells = np.flatnonzero(there[:, order[:count]].all(axis=1))
        score = (count * int(near[cells].sum()), count)
        if score > most:
            found, most = (cells, np.sort(order[:count])), score
    assert found is not None
    return found, total - len(found[0]) * len(found[1])


def name_size(size: LadderSize, axis: str) -> str:
    """A size in words; what a table does not have is 1, and is not said."""
    if axis != JOINT_AXIS:
        return f"{_said(axis)} {getattr(size, axis)}"
    parts = [(key, getattr(size, key, 0)) for key in SIZES]
    return ", ".join(f"{_said(key)} {value}" for key, value in parts if value > 1) or str(size)


def _steps(table: Any, keys: Sequence[str]) -> set[float]:
    """The usual spacing of each size's values in the table (octaves), near its best one.

    On the table, since a rectangle leaves cells out; the lower of two medians, since a run that
    crashed leaves a gap.
    """
    steps = set()
    for _, rows in table.groupby(list(keys)):
        means = rows.groupby("eta")["loss"].mean()
        etas = means.index.to_numpy()
        if len(etas) > 1:
            gaps = np.diff(etas)
            near = np.abs((etas[1:] + etas[:-1]) / 2 - etas[int(means.argmin())]) <= NEAR
            near_gaps = gaps[near] if near.any() else gaps
            steps.add(round(float(np.percentile(near_gaps, 50, method="lower")), 2))
    return steps


def _say_grids(curves: Sequence[SizeCurve], steps: set[float], notes: list[str], axis: str) -> None:
    """What makes the curves unlike each other: steps, values that only some have."""
    if len(curves) < 2:
        return
    if len(steps) > 1:
        low, high = min(steps), max(steps)
        notes.append(f"the sizes have grids of different steps, {low:g} to {high:g} octaves")
    every = {round(eta, 6) for curve in curves for eta in curve.losses}
    missing = {
        name_size(curve.size, axis): gap
        for curve in curves
        if (
            gap := [
                eta
                for eta in every
                if min(curve.losses) < eta < max(curve.losses)
                and eta not in {round(one, 6) for one in curve.losses}
            ]
        )
    }
    if missing:
        total = sum(map(len, missing.values()))
        are = "is" if total == 1 else "are"
        notes.append(
            f"{counted(total, 'cell')} that other sizes have {are} missing within the curves of "
            f"{', '.join(missing)}: each curve is fitted to the values that it has"
        )


def step_of(curve: SizeCurve) -> float:
    """The usual spacing of a curve's values near its best one, in octaves."""
    etas = np.array(sorted(curve.losses))
    if len(etas) < 2:
        return 1.0
    means = np.array([np.mean(curve.losses[float(eta)]) for eta in etas])
    best = etas[int(np.argmin(means))]
    near = np.abs((etas[1:] + etas[:-1]) / 2 - best) <= NEAR
    gaps = np.diff(etas)
    return float(np.median(gaps[near] if near.any() else gaps))


def _decay_cells(
    table: Any, keys: Sequence[str], make: MakeSize, notes: list[str], reading: Reading, axis: str
) -> tuple[tuple[DecayCell, ...], float]:
    """All cells of a grid over learning rate and decay, and the base's best decay."""
    means = table.groupby([*keys, "eta", "decay"], as_index=False)["loss"].mean()
    cells = tuple(
        DecayCell(
            size=make(row),
            eta=2.0 ** row["eta"],
            decay=float(row["decay"]),
            loss=float(row["loss"]),
        )
        for row in means.to_dict("records")
    )
    sizes = sorted({cell.size for cell in cells}, key=lambda s: (getattr(s, _one(axis)), s))
    base = next(
        (s for s in sizes if reading.base is not None and getattr(s, _one(axis)) == reading.base),
        sizes[0],
    )
    # A ladder is judged at one decay, or what it says of the rate would be the decay's doing.
    shared = set.intersection(
        *({cell.decay for cell in cells if cell.size == size} for size in sizes)
    )
    here = [c for c in cells if c.size == base and (c.decay in shared or len(sizes) == 1)]
    if not here:
        raise BadInput(
            "the sizes have no weight decay in common: ",
            Keyword("where", "weight_decay == ..."),
            " takes one each",
        )
    best = min(here, key=lambda cell: cell.loss)
    if len(sizes) > 1:
        notes.append(
            f"the ladder is judged at a weight decay of {best.decay:g}, the best of the base among "
            "those that all sizes have"
        )
    return cells, best.decay


def _constant(source: Source, columns: Mapping[str, str], role: str) -> float | None:
    if role not in columns:
        return None
    values = np.unique(source.numbers(columns[role]))
    return float(values[0]) if len(values) == 1 and math.isfinite(values[0]) else None


def _text(source: Source, columns: Mapping[str, str], role: str) -> str:
    if role not in columns:
        return ""
    values = source.frame[columns[role]].drop_duplicates()
    return str(values.iloc[0]) if len(values) == 1 else ""


def _constants(source: Source) -> dict[str, Any]:
    """The columns that have one value, as a table of ours keeps the settings of its study."""
    frame = source.frame
    named = [c for c in frame.columns if str(c).startswith("transfer.") or c == "study"]
    return {str(c): frame[c].iloc[0] for c in named if frame[c].nunique(dropna=False) == 1}
