"""Runs in which settings were varied one at a time around a point, as lines through that point.

The point is not named: it is the configuration from which most others differ in one setting alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.errors import BadInput, Call, ConfigError, Keyword, Text
from sweeper.evidence.runs.condition import take_alike
from sweeper.evidence.runs.divergence import ended_runs, with_diverged
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES, RATES, SIZES
from sweeper.evidence.runs.run import END_LOSS, Array, Runs, log2_of
from sweeper.evidence.runs.settings import NEARLY_ALL, is_one_number
from sweeper.evidence.runs.sizes import follows, sizes_of
from sweeper.records import as_number
from sweeper.stats.ladder import LADDER_AXES, LadderSize
from sweeper.study.searched import read_searched
from sweeper.study.setup import trials_of
from sweeper.study.study import Study
from sweeper.table import counted
from sweeper.trial import Result, Space

TAKEN = {
    **{role: LADDER_ROLES[role] for role in (*SIZES[:5], *SIZES[6:], *RATES, "loss")},
    **{role: LADDER_ROLES[role] for role in ("seed", "status", "first", "reached")},
    "params": LAW_ROLES["params"],
}
"""What a column can be here."""
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
    """The lines of all settings at all sizes along an `axis`, "" where there is one size alone.

    `runs` were read, `used` of them lie on lines.
    """

    lines: tuple[SettingLine, ...]
    axis: str = ""
    unit: str = "nats"
    name: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str | Text, ...] = ()
    runs: int = 0
    used: int = 0


@dataclass(frozen=True, eq=False)
class _Points:
    """Runs as an array of their settings [runs, settings], with what each gave."""

    names: Sequence[str]
    values: Array
    sizes: Array
    seeds: Sequence[str]
    losses: Array
    choices: Mapping[str, tuple[str, ...]]

    def lines(self, defaults: Mapping[str, float]) -> tuple[list[SettingLine], int]:
        """The lines through every size's point, and how many runs lie on them."""
        found, used = list[SettingLine](), set[int]()
        for size in np.unique(self.sizes):
            there = np.flatnonzero(self.sizes == size)
            kinds, kind = np.unique(self.values[there], axis=0, return_inverse=True)
            kind = kind.reshape(-1)
            # On a setting's line lies what differs from the point in that alone, or in nothing.
            apart = kinds != kinds[_point(kinds, np.bincount(kind))]
            for place, name in enumerate(self.names):
                on = ~np.delete(apart, place, axis=1).any(axis=1)
                rows = there[on[kind]]
                losses: dict[float, dict[str, list[float]]] = {}
                for row in rows:
                    cell = losses.setdefault(float(self.values[row, place]), {})
                    cell.setdefault(self.seeds[row], []).append(float(self.losses[row]))
                if len(losses) < 2:
                    continue
                used.update(map(int, rows))
                [middle] = np.unique(kinds[~apart.any(axis=1), place])
                found.append(
                    SettingLine(
                        name=name,
                        size=float(size),
                        default=defaults.get(name, float(middle)),
                        losses={
                            value: {seed: float(np.mean(cell[seed])) for seed in sorted(cell)}
                            for value, cell in sorted(losses.items())
                        },
                        choices=self.choices.get(name, ()),
                    )
                )
        return found, len(used)


def _point(kinds: Array, runs: Any) -> int:
    """The one with most others that differ in one setting, then most runs, then in the middle."""
    neighbours = np.zeros(len(kinds), int)
    for place in range(kinds.shape[1]):
        # Configurations are unique: those alike in all other settings differ in this one.
        rest = np.delete(kinds, place, axis=1) if kinds.shape[1] > 1 else np.zeros((len(kinds), 1))
        _, group, counts = np.unique(rest, axis=0, return_inverse=True, return_counts=True)
        neighbours += counts[group.reshape(-1)] - 1
    ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in kinds.T], axis=1)
    off = np.abs(ranks - ranks.max(axis=0) / 2).sum(axis=1)
    return int(np.lexsort((off, -runs, -neighbours))[0])


def varied_settings(runs: Runs, axis: str | None = None) -> VariedSettings:
    """The lines of a table's runs; BadInput where no setting was varied around a point."""
    import pandas  # type: ignore[import-untyped]

    runs = runs.with_roles(TAKEN)
    runs.check_columns(END_LOSS)
    notes: list[str | Text] = [*runs.notes]
    counts = sizes_of(runs)
    along = _axis(counts, axis)
    sizes = counts[along] if along else np.zeros(len(runs), int)
    names, columns, choices = list[str](), list[Array](), dict[str, tuple[str, ...]]()
    for name in _setting_columns(runs, sizes, counts):
        values, kinds = _values(runs, name)
        names.append(name)
        columns.append(values)
        choices |= {name: kinds} if kinds else {}
    rate = next((runs.columns[role] for role in RATES if role in runs.columns), None)
    eta = columns[names.index(rate)] if rate in names else np.zeros(len(runs))
    table = pandas.DataFrame({"eta": eta, "loss": runs.numbers(runs.columns["loss"])})
    # The rule by which a run diverged compares runs of one size, whichever the axis is.
    table["width"] = sizes
    table = with_diverged(runs, ended_runs(runs, table, notes), None, notes, "width")
    kept = table.index.to_numpy()
    # Runs without a seed are no pairs: each has one of its own.
    seeds = [f"#{row}" for row in range(len(runs))]
    if "seed" in runs.columns:
        told = runs.frame[runs.columns["seed"]]
        seeds = [str(seed) if pandas.notna(seed) else seeds[row] for row, seed in enumerate(told)]
    points = _Points(
        names=names,
        values=np.stack(columns, axis=1)[kept] if columns else np.zeros((len(kept), 0)),
        sizes=sizes[kept].astype(float),
        seeds=[seeds[row] for row in kept],
        losses=table["loss"].to_numpy(dtype=float),
        choices=choices,
    )
    lines, used = points.lines({}) if names else ([], 0)
    if not lines:
        raise BadInput(
            f"no setting of {runs.name or 'the table'} was varied around a point: runs that "
            "differ in one setting alone, a value each, tell what it gains"
        )
    if used < len(kept):
        notes.append(
            f"{counted(len(kept) - used, 'run')} that differ from the point in several settings: "
            "not counted"
        )
    return VariedSettings(
        lines=tuple(lines),
        axis=along if len(np.unique(sizes)) > 1 else "",
        unit=runs.unit,
        name=runs.name,
        columns=runs.columns,
        notes=tuple(notes),
        runs=len(runs),
        used=used,
    )


def _axis(counts: Mapping[str, Any], asked: str | None) -> str:
    """The size that the runs differ in, or the asked one; "" without any."""
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
    found = list[str]()
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
            found.append(name)
    # What the size and another setting fix is no setting of its own: steps, of batch and tokens.
    found.sort(key=lambda name: roles.get(name) not in (*RATES, "batch_size"))
    kept = list[str]()
    for name in found:
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
    """A setting's values in log2; places among its choices where some have no logarithm."""
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
    texts = runs.frame[name].map(str).to_numpy(dtype=str)
    names, places = np.unique(texts, return_inverse=True)
    return places.reshape(-1).astype(float), tuple(map(str, names))


def study_lines(folder: Path) -> VariedSettings:
    """The lines of a study's search and ladders; BadInput where nothing was searched."""
    searched = read_searched(folder, [])
    varied = VariedSettings(lines=())
    if searched is not None:
        results = trials_of(Study.read(folder)).current
        varied = replace(varied_trials(results, searched.space), name=str(folder))
    if not varied.lines:
        raise BadInput(
            f"no hyperparameter of {folder.name} was varied around a point: ",
            Call("search", Keyword("study", folder.name), "search=independent"),
            " varies each",
        )
    return varied


def varied_trials(results: Sequence[Result], space: Space) -> VariedSettings:
    """The lines of a study's trials, each with the default that its `space` has."""
    done = [result for result in results if result.status in ("complete", "diverged")]
    names = [name for name in space if all(_place(r, name, space) is not None for r in done)]
    specs = {result.trial.spec.digest: result.trial.spec for result in done}
    size_of = {digest: LadderSize.of_spec(spec) for digest, spec in specs.items()}
    sizes = [size_of[result.trial.spec.digest] for result in done]
    counts = {role: np.array([getattr(size, role) for size in sizes]) for role in LADDER_AXES}
    axis = _axis(counts, None) if done else ""
    # A ladder along another axis is of another size by all that it changes: the first axis counts.
    alike = np.ones(len(done), bool)
    for role, values in counts.items():
        if role != axis and len(values) and not follows(values, counts[axis] if axis else values):
            usual = np.bincount(values).argmax()
            alike &= values == usual
    kept = np.flatnonzero(alike)
    points = _Points(
        names=names,
        values=np.array([[_place(done[i], name, space) for name in names] for i in kept]).round(9),
        sizes=(counts[axis] if axis else np.zeros(len(done)))[kept].astype(float),
        seeds=[str(done[i].trial.seed) for i in kept],
        losses=np.array([done[i].objective for i in kept]),
        choices={n: tuple(map(str, axis.choices)) for n, axis in space.items() if axis.choices},
    )
    lines, used = (
        points.lines({name: round(space[name].default, 9) for name in names})
        if names and len(kept)
        else ([], 0)
    )
    several = len({line.size for line in lines}) > 1
    return VariedSettings(
        lines=tuple(lines), axis=axis if several else "", runs=len(results), used=used
    )


def _place(result: Result, name: str, space: Space) -> float | None:
    trial = result.trial
    if name in trial.choices:
        return space[name].place(trial.choices[name])
    return trial.log2_hps.get(name)
