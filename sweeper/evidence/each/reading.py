"""Runs in which settings were varied one at a time around a point, as lines through that point.

The point is not named: it is the configuration from which most others differ in one setting alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sweeper.errors import BadInput, Call, ConfigError, Keyword, Text
from sweeper.evidence.runs.condition import shown_value, take_alike
from sweeper.evidence.runs.divergence import ended_runs, with_diverged
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES, RATES, SIZES
from sweeper.evidence.runs.run import END_LOSS, Array, Runs, log2_of
from sweeper.evidence.runs.settings import NEARLY_ALL, is_one_number
from sweeper.evidence.runs.sizes import follows, sizes_of
from sweeper.evidence.runs.table import frame_runs
from sweeper.records import as_number
from sweeper.stats.ladder import LADDER_AXES
from sweeper.study.runs_table import trials_table
from sweeper.study.searched import read_searched
from sweeper.study.setup import trials_of
from sweeper.study.study import StudyRecord
from sweeper.table import counted

TAKEN = {
    **{role: LADDER_ROLES[role] for role in (*SIZES, *RATES, "loss") if role != "params"},
    **{role: LADDER_ROLES[role] for role in ("seed", "status", "first", "reached")},
    "params": LAW_ROLES["params"],
}
GROWING = ("width", "params", "depth", "tokens", "steps", "experts", "top_k", "granularity")
"""What a size is told by, the likeliest first. A batch that differs is a setting, unless asked."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SettingLine:
    """Runs of one `size` that differ in one setting, from the point where it has its `default`.

    `losses` are by its value, in log2, and by seed; +inf is one that diverged. A setting that has
    no logarithm has `choices`, and their places as values. `size` is that along the axis.
    """

    name: str
    size: float
    default: float
    losses: Mapping[float, Mapping[str, float]]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class VariedSettings:
    """Lines of all settings and sizes along `axis` (or ""); of `runs` so many are `used`."""

    lines: tuple[SettingLine, ...]
    axis: str = ""
    unit: str = "nats"
    name: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str | Text, ...] = ()
    runs: int = 0
    used: int = 0


def varied_settings(
    runs: Runs, axis: str | None = None, defaults: Mapping[str, float] = MappingProxyType({})
) -> VariedSettings:
    """The lines of runs around a point, or `defaults` (log2); BadInput where there are none."""
    import pandas  # type: ignore[import-untyped]

    runs = runs.with_roles(TAKEN)
    runs.check_columns(END_LOSS)
    notes: list[str | Text] = [*runs.notes]
    counts = sizes_of(runs)
    along = _axis(counts, axis)
    sizes = counts[along] if along else np.zeros(len(runs), int)
    names, choices = _setting_columns(runs, sizes, counts), dict[str, tuple[str, ...]]()
    # The rule by which a run diverged compares runs of one size, whichever the axis is.
    table = pandas.DataFrame({"loss": runs.numbers(runs.columns["loss"]), "width": sizes})
    for place, name in enumerate(names):
        table[place], choices[name] = _values(runs, name)
    rate = next((runs.columns[role] for role in RATES if role in runs.columns), None)
    table["eta"] = table[names.index(rate)] if rate in names else 0.0
    table["seed"] = None
    if "seed" in runs.columns:
        seeds = runs.frame[runs.columns["seed"]].reset_index(drop=True)
        table["seed"] = seeds.map(str).where(seeds.notna(), None)
    table = with_diverged(runs, ended_runs(runs, table, notes), None, notes, "width")
    # Runs without a seed are no pairs: each has one of its own.
    own = pandas.Series([f"#{row}" for row in range(len(table))], index=table.index)
    table["seed"] = table["seed"].where(table["seed"].notna(), own)
    lines, used = list[SettingLine](), set[int]()
    for size, there in table.groupby("width"):
        values = there[[*range(len(names))]].to_numpy(dtype=float)
        kinds, kind = np.unique(values, axis=0, return_inverse=True)
        kind = kind.reshape(-1)
        # On a setting's line lies what differs from the point in that alone, or in nothing.
        point = kinds[_point(kinds, np.bincount(kind))] if names else np.zeros(0)
        for place, name in enumerate(names):
            rows = there[(np.delete(values != point, place, axis=1) == 0).all(axis=1)]
            if rows[place].nunique() < 2:
                continue
            used.update(rows.index)
            cells = rows.groupby([place, "seed"])["loss"].mean()
            losses = {
                float(value): {str(seed): float(loss) for (_, seed), loss in cell.items()}
                for value, cell in cells.groupby(level=0)
            }
            lines.append(
                SettingLine(
                    name=name,
                    size=float(size),
                    default=defaults.get(name, float(point[place])),
                    losses=losses,
                    choices=choices[name],
                )
            )
    if not lines:
        raise BadInput(
            f"no setting of {runs.name or 'the table'} was varied around a point: runs that "
            "differ in one setting alone, a value each, tell what it gains"
        )
    if apart := len(table) - len(used):
        notes.append(
            f"{counted(apart, 'run')} that differ from the point in several settings: not counted"
        )
    return VariedSettings(
        lines=tuple(lines),
        axis=along if len({line.size for line in lines}) > 1 else "",
        unit=runs.unit,
        name=runs.name,
        columns=runs.columns,
        notes=tuple(notes),
        runs=len(runs),
        used=len(used),
    )


def _point(kinds: Array, runs: Any) -> int:
    neighbours = np.zeros(len(kinds), int)
    for place in range(kinds.shape[1]):
        # Configurations are unique: those alike in all other settings differ in this one.
        rest = np.delete(kinds, place, axis=1) if kinds.shape[1] > 1 else np.zeros((len(kinds), 1))
        _, group, counts = np.unique(rest, axis=0, return_inverse=True, return_counts=True)
        neighbours += counts[group.reshape(-1)] - 1
    ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in kinds.T], axis=1)
    off = np.abs(ranks - ranks.max(axis=0) / 2).sum(axis=1)
    return int(np.lexsort((off, -runs, -neighbours))[0])


def _axis(counts: Mapping[str, Any], asked: str | None) -> str:
    if asked is not None and asked not in counts:
        raise ConfigError(Keyword("axis"), asked, f"a size that the table has: {', '.join(counts)}")
    varied = [r for r in GROWING if r in counts and len(np.unique(counts[r])) > 1]
    return asked or next(iter(varied), "")


def _setting_columns(runs: Runs, sizes: Any, counts: Mapping[str, Any]) -> list[str]:
    """Columns of settings: what differs between runs of a size, and is no result of them."""
    import pandas

    frame = runs.frame.reset_index(drop=True)
    roles = {column: role for role, column in runs.columns.items()}
    place = pandas.Series(sizes)
    varied = list[str]()
    for name in map(str, frame.columns):
        role, values = roles.get(name, ""), frame[name]
        if name in runs.ignore or values.nunique(dropna=False) < 2 or is_one_number(values):
            continue
        if role in ("loss", "seed", "status", "first", "reached"):
            continue
        if role == "eta" and "log2_eta" in runs.columns:
            continue
        # What each run has of its own, a name or what it measured, was not varied.
        if role not in (*RATES, *counts) and values.nunique() >= NEARLY_ALL * len(values):
            continue
        if not follows(values, place):
            varied.append(name)
    # What the size and another setting fix is no setting of its own: steps, of batch and tokens.
    varied.sort(key=lambda name: roles.get(name) not in (*RATES, "batch_size"))
    kept = list[str]()
    for name in varied:
        pairs = (frame.groupby([place, frame[other]], dropna=False).ngroup() for other in kept)
        if not any(follows(frame[name], pair) for pair in pairs):
            kept.append(name)
    # Runs of two sizes are never thrown together, and whether it is a size only the user knows.
    sized = [n for n in kept if roles.get(n) in GROWING]
    if sized:
        sized.sort(key=lambda name: frame[name].nunique())
        first = frame[sized[0]].mode().iloc[0]
        raise BadInput(
            f"runs of one size differ in {', '.join(sized)}, which may be a size, too: ",
            *take_alike({sized[0]: first}, sized),
        )
    return kept


def _values(runs: Runs, name: str) -> tuple[Array, tuple[str, ...]]:
    role = next((role for role, column in runs.columns.items() if column == name), "")
    if role in RATES:
        return log2_of(runs, name)[0], ()
    values = runs.frame[name].map(as_number)
    if all(type(value) in (int, float) for value in values):
        numbers = values.to_numpy(dtype=float)
        if re.match(r"log2[^a-z0-9]", name.lower()) and np.isfinite(numbers).all():
            return numbers.round(12), ()
        if (numbers > 0).all() and np.isfinite(numbers).all():
            return np.log2(numbers).round(12), ()
        kinds, places = np.unique(numbers, return_inverse=True)
        return places.reshape(-1).astype(float), tuple(f"{kind:g}" for kind in kinds)
    texts = runs.frame[name].map(str).to_numpy(dtype=object)
    names, places = np.unique(texts, return_inverse=True)
    return places.reshape(-1).astype(float), tuple(map(shown_value, names))


def study_lines(folder: Path) -> VariedSettings:
    """The lines of a study's search and ladders; BadInput where nothing was searched."""
    searched = read_searched(folder, [])
    results = trials_of(StudyRecord.read(folder)).current if searched is not None else []
    # One that failed is no trial, and a ladder along a second axis is of another size by all that
    # it changes: the usual one counts.
    rows = [row for row in trials_table(results) if row["status"] in ("complete", "diverged")]
    axes = [key for key in LADDER_AXES if len({row.get(key) for row in rows}) > 1]
    for axis in axes[1:]:
        usual = Counter(row.get(axis) for row in rows).most_common(1)[0][0]
        rows = [row for row in rows if row.get(axis) == usual]
    for row in rows:
        if "log2_eta" in row:
            row["eta"] = 2.0 ** row.pop("log2_eta")
    space = searched.space if searched is not None else {}
    defaults = {name: round(axis.default, 12) for name, axis in space.items() if not axis.choices}
    try:
        varied = varied_settings(replace(frame_runs(rows), name=str(folder)), None, defaults)
        return replace(varied, columns={})  # its names are nobody's to tell
    except BadInput:
        raise BadInput(
            f"no hyperparameter of {folder.name} was varied around a point: ",
            Call("search", Keyword("study", folder.name), "search=independent"),
            " varies each",
        ) from None
