"""Runs of variants of one recipe, side by side: which stand at the same size, and how tuned.

A column names the variants. Rows of one variant at one size that differ in numbers of settings are
its tuning, of which the best counts; what else is repeated are seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword, MissingValue, Text, near_misses
from sweeper.evidence.runs.condition import (
    columns_text,
    listed,
    quoted_name,
    shown_value,
    take_alike,
)
from sweeper.evidence.runs.divergence import ended_runs, with_diverged
from sweeper.evidence.runs.loss_runs import (
    COUNT_ROLES,
    FLOPS_PER_PARAMETER_AND_TOKEN,
    groups_of,
    odd_ratio,
    positive,
    three_counts,
)
from sweeper.evidence.runs.numbers import number_of
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES, VARIANT_ROLES
from sweeper.evidence.runs.run import END_LOSS, Array, Runs
from sweeper.evidence.runs.settings import is_identifier, is_one_number
from sweeper.evidence.runs.table import LONGEST_NAME
from sweeper.table import counted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

TAKEN = {
    **{role: LAW_ROLES[role] for role in ("params", "tokens", "flops", "loss")},
    **{role: LADDER_ROLES[role] for role in ("width", "depth", "batch_size", "steps")},
    **{role: LADDER_ROLES[role] for role in ("log2_eta", "eta", "seed", "status", "reached")},
    **VARIANT_ROLES,
}
SETTINGS = re.compile(
    r"warmup|cooldown|dropout|betas?|momentum|eps|epsilon|wd|decay|lr|eta|rate|clip|clipping|std|"
    r"init|batch|optimizer|schedule|scheduler|ratio|scale|mult|multiplier|temperature|alpha|gamma|"
    r"sigma|tau|smoothing|steps|tokens|epochs|frac|fraction|limit|budget|size|dim|width|depth"
)
"""Words in the names of numbers that are tuned; other numbers are what runs measured."""
SOURCE = "source"
ALIKE = 0.15, 0.3
"""Octaves of parameters and of tokens up to which runs are of one size: counts differ a little."""
MOST_VARIANTS = 200
Bound = Literal["", "end", "untuned"]


@dataclass(frozen=True, kw_only=True, eq=False)
class VariantCell:
    """Runs of a variant at a size; +inf is a loss of one that diverged.

    `log2` are its own parameters and tokens. It is a `bound` where its best learning rate lies at
    an end of those tried, or it has one `rate` where others were tuned. Rate and `throughput`, in
    tokens a second, are NaN where nobody knows them.
    """

    variant: int
    size: int
    log2: tuple[float, float]
    losses: Array
    seeds: tuple[str, ...]
    bound: Bound = ""
    configurations: int = 1
    rate: float = math.nan
    throughput: float = math.nan

    def ordered(self, other: VariantCell) -> list[float]:
        """The losses of seeds that both cells have first, in the order of the seeds."""
        places = range(len(self.seeds))
        # Stable: where no seeds are known, or one twice, the order of the rows stays.
        order = sorted(places, key=lambda i: (self.seeds[i] not in other.seeds, self.seeds[i]))
        return [float(self.losses[i]) for i in order]


@dataclass(frozen=True, kw_only=True, eq=False)
class VariantRuns:
    """Variants, the baseline first, and what was run of them at each size.

    `log2` are parameters and tokens of the sizes, or what stands for them; `measures` the counts
    that a size is known by, by role; `flops` are those of a run, or in proportion to them. Where
    they are `paired`, runs of a seed share its draws, whatever the variant.
    """

    names: Sequence[str]
    cells: Sequence[VariantCell]
    log2: Array
    measures: Sequence[Mapping[str, float]]
    flops: Array
    by: str
    unit: str
    columns: Mapping[str, str]
    notes: tuple[str | Text, ...]
    paired: bool = False

    def at(self, variant: int, size: int) -> VariantCell | None:
        """The runs of a variant at a size, if there are any."""
        return self._by_place.get((variant, size))

    @cached_property
    def _by_place(self) -> dict[tuple[int, int], VariantCell]:
        return {(cell.variant, cell.size): cell for cell in self.cells}


def joined(sources: Sequence[Runs]) -> Runs:
    """All runs in one table, with a column of where each is from."""
    import pandas

    if len(sources) == 1:
        return sources[0]
    names = _source_names(sources)
    frames = [r.frame.assign(**{SOURCE: n}) for r, n in zip(sources, names, strict=True)]
    asked: dict[str, str] = {}
    for runs in sources:
        asked |= runs.asked
    return replace(
        sources[0],
        frame=pandas.concat(frames, ignore_index=True),
        name=" and ".join(names),
        sha256=" ".join(runs.sha256 for runs in sources),
        asked=asked,
        notes=tuple(dict.fromkeys(note for runs in sources for note in runs.notes)),
        blanks=lambda columns: pandas.concat(
            [pandas.DataFrame({c: runs.blank(c) for c in columns}) for runs in sources],
            ignore_index=True,
        ),
    )


def _source_names(sources: Sequence[Runs]) -> list[str]:
    whole = [runs.name or f"{SOURCE} {i + 1}" for i, runs in enumerate(sources)]
    if twice := [name for name in dict.fromkeys(whole) if whole.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each source once")
    # A study's folder may have a dot in its name, and what follows it is no kind of file.
    short = [path.name if path.is_dir() else path.stem for path in map(Path, whole)]
    # Tables of one name in several folders are several variants.
    return [s if short.count(s) == 1 else w for s, w in zip(short, whole, strict=True)]


def variant_runs(runs: Runs, by: str | None, baseline: str | None) -> VariantRuns:
    """The variants that the column `by` names; BadInput for runs that cannot be compared."""
    runs = runs.with_roles(TAKEN)
    runs.check_columns(END_LOSS)
    by = _variant_column(runs, by)
    labels = _labels(runs, by)
    names = _names(by, labels, baseline)
    if runs.columns.get("seed") == by:
        runs = replace(runs, columns={r: c for r, c in runs.columns.items() if r != "seed"})
    notes: list[str | Text] = [*runs.notes]
    counts = _counts(runs, notes)
    log2, sizes = _sizes(counts, labels == names[0])
    table = _table(runs, labels, names, log2, sizes, by, notes)
    measured = runs.numbers(runs.columns["loss"])
    # A variant may be shorter than others: each is a size of its own to what tells early ends.
    table = ended_runs(runs, table.assign(loss=measured, width=table["variant"]), notes)
    table = _once(runs, with_diverged(runs, table, None, notes, "size"), notes)
    cells = [_cell(place, rows) for place, rows in table.groupby(["variant", "size"], sort=True)]
    # Run once where others of its size were tuned, a variant has a bound.
    tuned = {cell.size for cell in cells if cell.configurations > 2}
    cells = [
        replace(c, bound="untuned") if c.size in tuned and c.configurations == 1 else c
        for c in cells
    ]
    return VariantRuns(
        names=names,
        cells=cells,
        log2=np.array(
            [_middle(log2, sizes == i, labels == names[0]) for i in range(sizes.max() + 1)]
        ),
        measures=[
            {role: float(np.median(values[sizes == i])) for role, values in counts.items()}
            for i in range(sizes.max() + 1)
        ],
        flops=np.array([_flops(counts, log2, sizes == i) for i in range(sizes.max() + 1)]),
        by=by,
        unit=runs.unit,
        columns=runs.columns,
        notes=tuple(notes),
    )


def _variant_column(runs: Runs, by: str | None) -> str:
    names = [str(column) for column in runs.frame.columns]
    if by is not None and by in names:
        return by
    if by is None and SOURCE in names:
        return SOURCE
    texts = [
        f"{shown_value(c)} ({', '.join(map(shown_value, values[:3]))}{', ...' * (len(values) > 3)})"
        for c in names
        if runs.frame[c].dtype.kind not in "iufbM"
        and 1 < len(values := runs.frame[c].dropna().unique()) <= min(50, len(runs) - 1)
    ]
    meant = f", such as {', '.join(texts[:5])}" if texts else ""
    if by is None:
        raise MissingValue(Keyword("by"), f", the column whose values are the variants{meant}")
    allowed = f"a column of {columns_text(runs.frame)}{near_misses(by, names)}"
    raise ConfigError(Keyword("by"), by, allowed)


def _labels(runs: Runs, by: str) -> Any:
    empty = runs.frame[by].isna().to_numpy()
    if empty.any():
        raise BadInput(
            f"{runs.rows(empty)} has no {by}, and is of no variant: ",
            Keyword("where", f"{quoted_name(by)} != None"),
            " leaves such rows out",
        )
    return runs.frame[by].astype(str).to_numpy()


def _names(by: str, labels: Any, baseline: str | None) -> list[str]:
    names = [*dict.fromkeys(labels)]
    if by != SOURCE:  # whose order is that of what was asked about
        names.sort(key=lambda name: (n if (n := number_of(name)) and n == n else math.inf, name))
    if len(names) < 2:
        raise BadInput(f"all runs have one {by}: a comparison takes two variants or more")
    if len(names) > MOST_VARIANTS or max(map(len, names)) > LONGEST_NAME:
        raise ConfigError(
            Keyword("by"),
            by,
            f"a column of at most {MOST_VARIANTS} values of {LONGEST_NAME} characters, and it has "
            f"{len(names)}",
        )
    if baseline is None:
        likely = [n for n in names if re.fullmatch(r"(?i)base(line)?|control|default", n)]
        if len(likely) == 1:
            baseline = likely[0]
        elif by == SOURCE:
            baseline = names[0]
    if baseline is None or baseline not in names:
        allowed_names = listed([*map(shown_value, names)], ", ")
        if baseline is None:
            raise MissingValue(Keyword("baseline"), f", one of {allowed_names}")
        allowed = f"one of {allowed_names}{near_misses(baseline, names)}"
        raise ConfigError(Keyword("baseline"), baseline, allowed)
    return [baseline, *(name for name in names if name != baseline)]


def _counts(runs: Runs, notes: list[str | Text]) -> dict[str, Array]:
    counts = {}
    for role in ("params", "tokens", "flops", "width", "depth", "steps", "batch_size"):
        if role in runs.columns:
            values = positive(runs, runs.columns[role], role)
            counts[role] = values * runs.scale(role) if role in ("params", "tokens") else values
    if len(counts.keys() & {*COUNT_ROLES}) > 1:
        notes += odd_ratio(*three_counts(runs, counts)[:2])
    # One measure of the model and one of the horizon: what stands for another goes.
    if "params" in counts:
        counts.pop("width", None), counts.pop("depth", None)
    if "tokens" in counts or ("flops" in counts and {"params", "width"} & {*counts}):
        counts.pop("steps", None)
    if "steps" not in counts:
        counts.pop("batch_size", None)
    return counts


def log2_of_counts(counts: Mapping[str, Any]) -> tuple[Any, Any]:
    """Log2 of parameters and of tokens, or of what is in proportion to them; 0 where unknown."""
    log = {role: np.log2(value) for role, value in counts.items()}
    flops = log["flops"] - math.log2(FLOPS_PER_PARAMETER_AND_TOKEN) if "flops" in log else None
    if "params" in log:
        params = log["params"]
    elif "width" in log:
        # Parameters go as width^2 x depth.
        params = 2 * log["width"] + log.get("depth", 0.0)
    elif flops is not None:
        params = flops - log["tokens"] if "tokens" in log else flops
    else:
        params = 0.0
    if "tokens" in log:
        tokens = log["tokens"]
    elif flops is not None and {"params", "width"} & {*log}:
        tokens = flops - params
    else:
        tokens = log["steps"] + log.get("batch_size", 0.0) if "steps" in log else 0.0
    return params, tokens


def _sizes(counts: Mapping[str, Array], of_baseline: Any) -> tuple[Array, Any]:
    log2_counts = log2_of_counts(counts)
    log2 = np.stack([np.zeros(len(of_baseline)) + values for values in log2_counts], axis=1)
    groups = [groups_of(values, gap) for values, gap in zip(log2.T, ALIKE, strict=True)]
    pairs = np.unique(np.stack(groups, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    cost = [log2[pairs == i].sum(axis=1).mean() for i in range(pairs.max() + 1)]
    # Twice sorted are ranks: sizes are numbered by their compute.
    return log2, np.argsort(np.argsort(cost))[pairs]


def _middle(log2: Array, there: Any, of_baseline: Any) -> Array:
    both = there & of_baseline
    return np.asarray(np.median(log2[both if both.any() else there], axis=0))


def _flops(counts: Mapping[str, Array], log2: Array, there: Any) -> float:
    if "flops" in counts:
        return float(np.median(counts["flops"][there]))
    middle = float(np.median(log2[there].sum(axis=1)))
    return FLOPS_PER_PARAMETER_AND_TOKEN * math.exp2(middle)


def _table(
    runs: Runs,
    labels: Any,
    names: Sequence[str],
    log2: Array,
    sizes: Any,
    by: str,
    notes: list[str | Text],
) -> pandas.DataFrame:
    import pandas

    frame, columns = runs.frame, runs.columns
    variant = np.array([names.index(label) for label in labels])
    table = pandas.DataFrame({"variant": variant, "size": sizes})
    cell = table.groupby(["variant", "size"]).ngroup()
    tuned = _tuned(runs, by, cell, labels)
    rate = columns.get("log2_eta") or columns.get("eta")
    table["eta"] = runs.numbers(rate) if rate else math.nan
    codes = [pandas.Series(pandas.factorize(frame[c].map(str), sort=True)[0]) for c in tuned]
    table["configuration"] = 0
    if codes:
        spelt = pandas.concat(codes, axis=1)
        spelt.columns = range(len(codes))
        table["configuration"] = spelt.groupby([*spelt.columns]).ngroup()
    table["seed"] = frame[columns["seed"]].astype(str).to_numpy() if "seed" in columns else ""
    table["throughput"] = math.nan
    if role := next((r for r in ("throughput", "time") if r in columns), None):
        measured = runs.numbers(columns[role])
        good = (measured > 0) & np.isfinite(measured)
        if none := int((~good & ~np.isnan(measured)).sum()):
            notes.append(f"{columns[role]!r} is not above 0 in {counted(none, 'row')}: not known")
        throughput = np.where(good, measured, math.nan)
        table["throughput"] = throughput if role == "throughput" else 2.0 ** log2[:, 1] / throughput
    table["params"], table["tokens"] = log2.T
    return table


def _once(runs: Runs, table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    """Counts each run once: a row that was written twice shows no noise."""
    if "seed" in runs.columns:
        named = runs.frame[runs.columns["seed"]].iloc[table.index.to_numpy()].notna().to_numpy()
        key = ["variant", "size", "configuration", "seed", "loss"]
        twice = table.duplicated(key).to_numpy() & named
    else:
        twice = runs.frame.iloc[table.index.to_numpy()].duplicated().to_numpy()
    if twice.any():
        notes.append(f"{counted(int(twice.sum()), 'row')} that stand there twice: counted once")
    return table[~twice]


def _tuned(runs: Runs, by: str, cell: pandas.Series, labels: Any) -> list[str]:
    """Columns of settings in which runs of one variant at one size differ; texts are refused."""
    frame, tuned, texts = runs.frame.reset_index(drop=True), list[str](), dict[str, str]()
    spare = {r: c for r, c in runs.columns.items() if r not in ("eta", "log2_eta", "batch_size")}
    rates = {runs.columns[r] for r in ("eta", "log2_eta") if r in runs.columns}
    for name in map(str, frame.columns):
        values = frame[name]
        if name == by or name in runs.ignore or name in spare.values() or is_one_number(values):
            continue
        within = values.groupby(cell).nunique(dropna=False)
        if within.max() < 2:
            continue
        parts = re.findall(r"[a-z]+", name.lower())
        number = values.dtype.kind in "iufb"
        if name not in rates and is_identifier(values):
            continue
        if name in rates or (number and any(map(SETTINGS.fullmatch, parts))):
            tuned.append(name)
        elif not number:
            texts[name] = labels[int((cell == within.idxmax()).to_numpy().argmax())]
    if texts:
        raise _texts_differ(frame, texts, cell, labels)
    return tuned


def _texts_differ(
    frame: pandas.DataFrame, texts: Mapping[str, str], cell: pandas.Series, labels: Any
) -> BadInput:
    """Names the column, and the value, that leave most variants: two baselines have one each."""

    def variants_with(name: str) -> pandas.Series:
        return frame.assign(of=labels).groupby(name, sort=False)["of"].nunique()

    name = max(texts, key=lambda each: int(variants_with(each).max()))
    variant, counts = texts[name], variants_with(name)
    there = frame[labels == variant]
    kinds = [*there.loc[cell[there.index].duplicated(keep=False), name].drop_duplicates()]
    values = ", ".join(map(shown_value, kinds[:4]))
    return BadInput(
        f"runs of {variant} at one size differ in {name} ({values}): ",
        *take_alike({name: max(kinds, key=lambda kind: counts.get(kind, 0))}, [*texts]),
    )


def _cell(place: Any, rows: pandas.DataFrame) -> VariantCell:
    variant, size = map(int, place)
    groups = [group for _, group in rows.groupby("configuration", sort=True)]
    trained = [int(np.isfinite(group["loss"]).sum()) for group in groups]
    # Of fewer runs that trained the rest diverged: by the luckier ones it would win.
    losses = [
        g["loss"].mean() if t == max(trained) else math.inf
        for g, t in zip(groups, trained, strict=True)
    ]
    best = groups[int(np.argmin(losses))]
    rates = sorted(rows["eta"].dropna().unique())
    at_end = len(rates) > 1 and best["eta"].iloc[0] in (rates[0], rates[-1])
    throughput = best["throughput"].dropna()
    return VariantCell(
        variant=variant,
        size=size,
        log2=(float(best["params"].median()), float(best["tokens"].median())),
        losses=best["loss"].to_numpy(dtype=float),
        seeds=tuple(best["seed"]),
        bound="end" if at_end else "",
        configurations=len(groups),
        rate=float(best["eta"].iloc[0]),
        throughput=float(throughput.median()) if len(throughput) else math.nan,
    )
