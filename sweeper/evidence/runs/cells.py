"""Cells of a table: which rows repeat one, by which seeds, and the curves that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, Keyword, Text
from sweeper.evidence.runs.condition import shown_value
from sweeper.evidence.runs.divergence import ended_runs, with_diverged
from sweeper.evidence.runs.run import OUTCOMES, Array, Runs, without
from sweeper.evidence.runs.sizes import MakeSize, axis_of_size, name_size
from sweeper.stats.curve import NOISE_RADIUS, with_noise_left
from sweeper.stats.ladder import KnownNoise, SizeCurve
from sweeper.table import counted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

MOST_SEEDS = 64
"""More runs a cell than this are averaged in as many groups: it is plain what they say."""
MOST_VALUES = 512
"""Learning rates of one size beyond which a table is a log of something else."""


def rounding_of(loss: Array, unit_name: str, notes: list[str | Text]) -> float:
    """The unit that all losses are rounded to, if it is 0.01 or more; else 0."""
    finite = loss[np.abs(loss) < 1e12][:100_000]
    for unit in (1.0, 0.1, 0.01):
        scaled = finite / unit
        # A few losses may be round by chance.
        if len(finite) > 3 and np.allclose(scaled, np.round(scaled), rtol=0, atol=1e-6):
            digits = round(-math.log10(unit))
            notes.append(
                f"losses are rounded to {digits} digits: each may be {unit / 2:g} {unit_name} "
                "off, and optima that differ by less cannot be told apart"
            )
            return unit
    return 0.0


def without_copies(table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    """The table without losses of one size that stand under two learning rates.

    Of such a pair the run is the copy whose cell has another loss too, else neither is known. Of
    losses with six digits some are alike by chance, and runs that came apart may end alike.
    """
    size = [c for c in table.columns if c not in (*OUTCOMES, "eta", "seed")]
    loss = table["loss"]
    exact = np.isfinite(loss) & (np.abs(loss * 1e6 - np.round(loss * 1e6)) > 1e-6)
    if not exact.any():
        return table
    exact &= loss <= 1.25 * loss.groupby([table[c] for c in size]).transform("min")
    ordered = np.sort(loss[exact])
    exact &= np.isin(loss, ordered[1:][ordered[1:] == ordered[:-1]])
    if not exact.any():
        return table
    rates = table[exact].groupby([*size, "loss"])["eta"].transform("nunique")
    tied = rates.reindex(table.index, fill_value=0) > 1
    if not tied.any():
        return table
    other = table.groupby([*size, "eta"])["loss"].transform("nunique") > 1
    # Where one of a pair is surely the copy, the other is the run.
    certain = (tied & other).groupby([*(table[c] for c in size), loss]).transform("any")
    copies = tied & (other | ~certain)
    # A table in which every third loss is alike was made up, on both sides of its optima.
    if 3 * copies.sum() > len(table):
        return table
    losses = ", ".join(f"{value:.6g}" for value in loss[copies].unique()[:3])
    notes.append(
        f"left out: {counted(int(copies.sum()), 'run')} whose loss stands under another learning "
        f"rate to the last digit ({losses}), as copies do"
    )
    return without(table, copies.to_numpy())


def final_losses(
    runs: Runs, table: pandas.DataFrame, diverged: float | None, notes: list[str | Text], axis: str
) -> tuple[pandas.DataFrame, int, float]:
    """The runs that count, by cell and seed; how many they are, and what losses are rounded to."""
    # First of all what is no final loss goes: rounding, medians and copies are told by losses.
    table = ended_runs(runs, table, notes)
    rounded = rounding_of(table["loss"].to_numpy(), runs.unit, notes)
    table = with_diverged(runs, table, diverged, notes, axis)
    table = with_seeds(runs, without_copies(table, notes), notes, rounded)
    kept = len(table)
    return grouped(table, notes), kept, rounded


def with_seeds(
    runs: Runs, table: pandas.DataFrame, notes: list[str | Text], rounded: float
) -> pandas.DataFrame:
    """The runs, each once, with a number of its seed, or without one a number of its own."""
    import pandas

    cell = [column for column in table.columns if column not in OUTCOMES]
    before = len(table)
    if "seed" not in runs.columns:
        # Rounded losses are alike by chance: equal rows are repeats then.
        if not rounded and before < 1_000_000:
            table = without(table, runs.frame.iloc[table.index].duplicated().to_numpy())
        cells = _cell_numbers(table)
        table["seed"] = np.arange(len(table)) - np.flatnonzero(np.diff(cells, prepend=-1))[cells]
    else:
        seeds = runs.frame[runs.columns["seed"]].array[table.index.to_numpy()]
        seeds = pandas.Series(seeds, copy=False).factorize(sort=True)[0]
        table["seed"] = seeds.astype(np.int32)
        del seeds
        if unnamed := int((table["seed"] < 0).sum()):
            notes.append(f"{counted(unnamed, 'run')} without a seed: each counts as one of its own")
            place = table.groupby([*cell, table["seed"] < 0]).cumcount()
            free = table.groupby(cell)["seed"].transform("max") + 1
            table["seed"] = table["seed"].where(table["seed"] >= 0, free + place)
        table = _once(runs, table, [*cell, "seed"])
    if len(table) < before:
        notes.append(f"{before - len(table)} rows stand there twice and are counted once")
    return table


def _once(runs: Runs, table: pandas.DataFrame, key: list[str]) -> pandas.DataFrame:
    """A row that was written twice is one run; two losses of one run are a mistake to name."""
    seeds = int(table["seed"].max()) + 1
    numbers = np.multiply(_cell_numbers(table), seeds, dtype=np.int64)
    numbers += table["seed"].to_numpy()
    numbers.sort()
    if (numbers[1:] != numbers[:-1]).all():
        return table
    again = table[table.duplicated(key, keep=False)]
    differ = again[again.groupby(key)["loss"].transform("nunique") > 1]
    if not len(differ):
        return table.drop_duplicates(key)
    first = differ.iloc[0]
    places = [int(place) for place in differ[(differ[key] == first[key]).all(axis=1)].index[:2]]
    same = shown_value(runs.frame[runs.columns["seed"]].iloc[places[0]])
    raise BadInput(
        f"{runs.row(places[0])} and {runs.row(places[1])} have one size, learning "
        f"rate and seed ({same}) and different "
        "losses: name the column that tells them apart with ",
        Keyword("where", ...),
        ", or leave the seed out with ",
        Keyword("columns", "seed="),
        " if they are repeats",
    )


def grouped(table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    """The table with means of `MOST_SEEDS` groups where a cell has more runs than that."""
    import pandas

    cell = [column for column in table.columns if column not in (*OUTCOMES, "seed")]
    cells = _cell_numbers(table)
    most = int(np.bincount(cells).max())
    if most <= MOST_SEEDS:
        return table
    notes.append(
        f"up to {most} runs a cell: averaged in {MOST_SEEDS} groups, whose means are judged as runs"
    )
    table["seed"] %= MOST_SEEDS
    cells *= MOST_SEEDS
    cells += table["seed"].to_numpy()
    means = table["loss"].groupby(cells).mean()
    first = np.flatnonzero(~pandas.Series(cells, copy=False).duplicated())
    table = table.take(first).assign(loss=means[cells[first]].to_numpy())
    return table.sort_values([*cell, "seed"])  # the index says which rows were read


def _cell_numbers(table: pandas.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The cell of each row of a table in its own order, counted from 0."""
    new = np.zeros(len(table), bool)
    for column in table.columns.difference([*OUTCOMES, "seed"]):
        cells = table[column].to_numpy()
        new[1:] |= cells[1:] != cells[:-1]
    return new.cumsum(dtype=np.int32)


def curves_of(
    table: pandas.DataFrame,
    keys: Sequence[str],
    make: MakeSize,
    notes: list[str | Text],
    axis: str,
    asked_noise: float | None,
    rounded: float,
    unit: str,
) -> tuple[list[SizeCurve], str]:
    """A curve a size, each with as many runs a cell as its rectangle has, and where noise is from.

    Without two runs a cell the noise is `asked_noise`, else what repeated cells show.
    """
    uncounted, means, curves = list[str](), list[str](), list[SizeCurve]()
    for values, rows in table.groupby(list(keys)):
        size = make(
            dict(zip(keys, values, strict=True))
        )  # `values` are a tuple, of one key as well
        etas = np.unique(rows["eta"].to_numpy())
        if len(etas) > MOST_VALUES:
            raise BadInput(
                f"{name_size(size, axis)} has {len(etas)} learning rates: so many are no grid; ",
                Keyword("columns", "eta=COLUMN"),
                " names the peak one of a run",
            )
        # A verdict pairs runs by seed, so that it takes a table without holes: [eta, seed].
        runs = np.full((len(etas), int(rows["seed"].max()) + 1), math.nan)
        runs[np.searchsorted(etas, rows["eta"].to_numpy()), rows["seed"].to_numpy()] = rows["loss"]
        chosen, uncovered = rectangle(etas, runs)
        if uncovered:
            uncounted.append(f"{uncovered} at {name_size(size, axis)}")
        if chosen is not None:
            etas, losses = etas[chosen[0]], runs[np.ix_(*chosen)]
        else:  # no two seeds cover the best cell and its neighbours: means, without noise
            losses = np.nanmean(runs, axis=1)[:, None]
            means += [name_size(size, axis)] * bool((~np.isnan(runs)).sum(axis=1).max() > 1)
        points = {float(eta): tuple(cell) for eta, cell in zip(etas, losses.tolist(), strict=True)}
        planned = float(rows["planned"].iloc[0])
        curves.append(SizeCurve(size=size, losses=points, planned_log2=planned))
    if uncounted:
        notes.append(
            "cells have unequal numbers of runs: of each size the rectangle of cells and seeds "
            "with most runs near its best is judged, and these are left out: "
            f"{', '.join(uncounted)}"
        )
    curves, noise = _with_noise(curves, _repeats(table, [*keys, "eta"]), asked_noise, rounded, unit)
    if "a run, by" in noise:
        notes.append(f"of single runs the noise is {noise}")
    if means:
        notes.append(
            f"the few repeated cells at {', '.join(means)} count by their means, with the error of "
            "a single run"
        )
    extent = axis_of_size(axis)
    return sorted(curves, key=lambda curve: (getattr(curve.size, extent), curve.size)), noise


def _with_noise(
    curves: list[SizeCurve],
    repeated: KnownNoise | None,
    asked: float | None,
    rounded: float,
    unit: str,
) -> tuple[list[SizeCurve], str]:
    few = [c for c in curves if min(map(len, c.losses.values())) < 2]
    # The error of rounding is uniform over a unit: its variance is unit^2 / 12.
    of_rounding = rounded / 12**0.5
    if asked is not None:
        # What a user gives is taken as known: with so many degrees of freedom t is normal.
        noise = KnownNoise(deviation=math.hypot(asked, of_rounding), freedom=10**6)
        return [replace(c, noise=noise) for c in curves], f"given: {asked:g} {unit} a run"
    if not few:
        return curves, "by the seeds of each size"
    if repeated is not None:
        # Where some sizes have seeds, theirs show the rounding, too.
        level = math.hypot(repeated.deviation, of_rounding if len(few) == len(curves) else 0.0)
        noise = replace(repeated, deviation=level)
        curves = [replace(c, noise=noise) if c in few else c for c in curves]
        return curves, f"{level:.4g} {unit} a run, by the repeated cells of the table"
    curves = with_noise_left(curves)
    levels = [f"{c.noise.deviation:.2g}" for c in curves if c.noise]
    if not levels:
        return curves, ""
    low, high = min(levels, key=float), max(levels, key=float)
    level_text = f"{low if low == high else f'{low} to {high}'} {unit} a run"
    return curves, f"{level_text}, by what smooth curves leave"


def _repeats(table: pandas.DataFrame, cell: Sequence[str]) -> KnownNoise | None:
    """The pooled standard deviation within cells that have several finite runs; None without."""
    finite = table[np.isfinite(table["loss"])]
    spread = finite.groupby(list(cell))["loss"].agg(["size", "var"])
    spread = spread[spread["size"] > 1]
    freedom = int((spread["size"] - 1).sum())
    squares = float(((spread["size"] - 1) * spread["var"]).sum())
    return KnownNoise(deviation=math.sqrt(squares / freedom), freedom=freedom) if squares else None


def rectangle(etas: Array, runs: Array) -> tuple[tuple[Any, Any] | None, int]:
    """Cells and seeds [eta, seed] with all runs there, as many as can be near the best cell.

    `runs` are NaN where missing. The best cell and the one on each side of it must be among the
    cells; with fewer than two seeds there is none. The number of runs left out comes with it.
    """
    there = ~np.isnan(runs)
    means = np.where(there, runs, 0.0).sum(axis=1) / there.sum(axis=1)
    best = int(np.argmin(means))
    near = np.abs(etas - etas[best]) <= NOISE_RADIUS
    usable = np.flatnonzero(there[max(0, best - 1) : best + 2].all(axis=0))
    # Seeds in the order of how much they cover; cells are those that all of the first m have.
    order = usable[np.argsort(-(there & near[:, None])[:, usable].sum(axis=0), kind="stable")]
    chosen, most = None, (-1, -1)
    for count in range(2, len(order) + 1):
        cells = np.flatnonzero(there[:, order[:count]].all(axis=1))
        score = (count * int(near[cells].sum()), count)
        if score > most:
            chosen, most = (cells, np.sort(order[:count])), score
    if chosen is None:
        return None, 0
    return chosen, int(there.sum()) - len(chosen[0]) * len(chosen[1])


def step_of(curve: SizeCurve) -> float:
    """The usual spacing of a curve's values near its best one, in octaves."""
    etas = np.array(sorted(curve.losses))
    if len(etas) < 2:
        return 1.0
    best = etas[int(np.argmin([np.mean(curve.losses[float(eta)]) for eta in etas]))]
    near = np.abs((etas[1:] + etas[:-1]) / 2 - best) <= NOISE_RADIUS
    return float(np.median(np.diff(etas)[near] if near.any() else np.diff(etas)))
