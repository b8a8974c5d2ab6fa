"""Cells of a table: which rows repeat one, by which seeds, and the curves that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, Keyword, Text
from sweeper.evidence.runs.divergence import ended_runs, with_diverged
from sweeper.evidence.runs.run import Array, Runs
from sweeper.evidence.runs.sizes import MakeSize, axis_of_size, name_size
from sweeper.stats.curve import with_noise_left
from sweeper.stats.ladder import KnownNoise, SizeCurve
from sweeper.table import counted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

MOST_SEEDS = 64
"""More runs a cell than this are averaged in as many groups: it is plain what they say."""
MOST_VALUES = 512
"""Learning rates of one size beyond which a table is a log of something else."""
NEAR = 2.0
"""Octaves around a curve's best cell in which runs count for the verdict."""


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


OUTCOMES = ("loss", "planned")
"""Columns of a run that are no part of what makes its cell."""


FEW_COPIES = 1 / 3
"""Of the runs: a table in which more losses are alike was made up, on both sides of its optima."""


def without_copies(table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    """Without losses of one size that stand under two learning rates to the last digit.

    Of such a pair the run is the copy whose cell has another loss too, else neither is known. Of
    losses with six digits some are alike by chance, and runs that came apart may end alike.
    """
    size = [c for c in table.columns if c not in (*OUTCOMES, "eta", "seed")]
    loss = table["loss"]
    exact = np.isfinite(loss) & (np.abs(loss * 1e6 - np.round(loss * 1e6)) > 1e-6)
    exact &= loss <= 1.25 * loss.groupby([table[c] for c in size]).transform("min")
    rows = table[exact]
    twice = rows.groupby([*size, "loss"])["eta"].transform("nunique") > 1
    tied = table.index.isin(rows.index[twice])
    if not tied.any():
        return table
    other = table.groupby([*size, "eta"])["loss"].transform("nunique") > 1
    # Where one of a pair is surely the copy, the other is the run.
    known = (tied & other).groupby([*(table[c] for c in size), loss]).transform("any")
    copies = tied & (other | ~known)
    if copies.sum() > FEW_COPIES * len(table):
        return table
    shown = ", ".join(f"{value:.6g}" for value in loss[copies].unique()[:3])
    notes.append(
        f"left out: {counted(int(copies.sum()), 'run')} whose loss stands under another learning "
        f"rate to the last digit ({shown}), as copies do"
    )
    return table[~copies]


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
    """With a number of its seed to every run, and each run once."""
    cell = [column for column in table.columns if column not in OUTCOMES]
    before = len(table)
    if "seed" in runs.columns:
        table = _numbered_seeds(runs, table, cell, notes)
        key = [*cell, "seed"]
        again = table.duplicated(key, keep=False)
        if again.any():
            some = table[again]
            # A row that was written twice is one run; two losses of one run are a mistake to name.
            spread = some.groupby(key)["loss"].transform("nunique")
            if (spread > 1).any():
                first = some[spread > 1].iloc[0]
                alike = (some[key] == first[key]).all(axis=1)
                places = [int(place) for place in some[alike].index[:2]]
                same = runs.frame[runs.columns["seed"]].iloc[places[0]]
                raise BadInput(
                    f"{runs.row(places[0])} and {runs.row(places[1])} have one size, learning "
                    f"rate and seed ({same}) and different "
                    "losses: name the column that tells them apart with ",
                    Keyword("where", ...),
                    ", or leave the seed out with ",
                    Keyword("columns", "seed="),
                    " if they are repeats",
                )
            table = table.drop_duplicates(key)
    else:
        # Rounded losses are alike by chance: equal rows are repeats then.
        if not rounded and before < 1_000_000:
            twice = runs.frame.iloc[table.index.to_numpy()].duplicated().to_numpy()
            table = table[~twice].copy()
        table["seed"] = table.groupby(cell).cumcount()
    if len(table) < before:
        notes.append(f"{before - len(table)} rows stand there twice and are counted once")
    return table


def _numbered_seeds(
    runs: Runs, table: pandas.DataFrame, cell: Sequence[str], notes: list[str | Text]
) -> pandas.DataFrame:
    """With seeds as numbers; a run without one gets a number that its cell does not have."""
    import pandas

    seeds = runs.frame[runs.columns["seed"]].iloc[table.index.to_numpy()]
    table = table.assign(seed=pandas.factorize(seeds, sort=True)[0])
    unnamed = table.index[table["seed"] < 0]
    if not len(unnamed):
        return table
    notes.append(f"{counted(len(unnamed), 'run')} without a seed: each counts as one of its own")
    if len(unnamed) == len(table):
        return table.assign(seed=table.groupby([*cell]).cumcount())
    number = table.groupby([*cell]).ngroup()
    for place in unnamed:
        there = {*table.loc[number == number[place], "seed"]}
        table.loc[place, "seed"] = next(n for n in range(len(there) + 1) if n not in there)
    return table


def grouped(table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    """With the means of `MOST_SEEDS` groups where a cell has more runs than that."""
    cell = [column for column in table.columns if column not in (*OUTCOMES, "seed")]
    most = int(table.groupby(cell)["loss"].size().max())
    if most <= MOST_SEEDS:
        return table
    notes.append(
        f"up to {most} runs a cell: averaged in {MOST_SEEDS} groups, whose means are judged as runs"
    )
    table["seed"] %= MOST_SEEDS
    return table.groupby([*cell, "seed"], as_index=False).agg({"loss": "mean", "planned": "first"})


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
        # No two seeds cover the best cell and its neighbours: means, without noise.
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
            float(eta): tuple(map(float, cell))
            for eta, cell in zip(etas[keep], losses, strict=True)
        }
        curves.append(SizeCurve(size=size, losses=points, planned_log2=planned))
    if uncounted:
        notes.append(
            "cells have unequal numbers of runs: of each size the rectangle of cells and seeds "
            "with most runs near its best is judged, and these are left out: "
            f"{', '.join(uncounted)}"
        )
    few = [c for c in curves if min(map(len, c.losses.values())) < 2]
    noise = ""
    if asked_noise is not None:
        # The error of rounding is uniform over a unit: its variance is unit^2 / 12.
        # What a user gives is taken as known: with so many degrees of freedom t is normal.
        run_noise = KnownNoise(deviation=math.hypot(asked_noise, rounded / 12**0.5), freedom=10**6)
        curves = [replace(curve, noise=run_noise) for curve in curves]
        noise = f"given: {asked_noise:g} {unit} a run"
    elif few and shown is not None:
        run_noise = KnownNoise(
            deviation=math.hypot(
                shown.deviation, rounded / 12**0.5 if len(few) == len(curves) else 0
            ),
            freedom=shown.freedom,
        )
        curves = [replace(c, noise=run_noise) if c in few else c for c in curves]
        names = ", ".join(name_size(curve.size, axis) for curve in few)
        noise = f"{run_noise.deviation:.4g} {unit} a run, by repeated cells"
        notes.append(
            f"no rectangle of repeated cells at {names}: the noise there is "
            f"{run_noise.deviation:.4g} {unit} a run, by the repeated cells of the table "
            f"({run_noise.freedom} degrees of freedom)"
        )
    elif few:
        curves = with_noise_left(curves)
        if levels := [curve.noise.deviation for curve in curves if curve.noise]:
            low, high = f"{min(levels):.2g}", f"{max(levels):.2g}"
            level = f"{low if low == high else f'{low} to {high}'} {unit} a run"
            noise = f"{level}, by what smooth curves leave"
            notes.append(
                f"one run a cell: the noise is {level}, by what a smooth curve leaves of each size"
            )
    else:
        noise = "by the seeds of each size"
    if means:
        notes.append(
            f"the few repeated cells at {', '.join(means)} count by their means, with the error of "
            "a single run"
        )
    return sorted(
        curves, key=lambda curve: (getattr(curve.size, axis_of_size(axis)), curve.size)
    ), noise


def _repeats(table: pandas.DataFrame, cell: Sequence[str]) -> KnownNoise | None:
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
    chosen, most = None, (-1, -1)
    for count in range(2, len(order) + 1):
        cells = np.flatnonzero(there[:, order[:count]].all(axis=1))
        score = (count * int(near[cells].sum()), count)
        if score > most:
            chosen, most = (cells, np.sort(order[:count])), score
    assert chosen is not None
    return chosen, total - len(chosen[0]) * len(chosen[1])


def steps_of(table: pandas.DataFrame, keys: Sequence[str]) -> set[float]:
    """The usual spacing of each size's values in the table (octaves), near its best one.

    Of the table, not a rectangle of it; the lower of two medians, as a crashed run leaves a gap.
    """
    steps = set()
    for _, rows in table.groupby(list(keys)):
        means = rows.groupby("eta")["loss"].mean()
        etas = means.index.to_numpy()
        if len(etas) > 1:
            gaps = _gaps_near(etas, etas[int(means.argmin())])
            steps.add(round(float(np.percentile(gaps, 50, method="lower")), 2))
    return steps


def note_unlike_grids(
    curves: Sequence[SizeCurve], steps: set[float], notes: list[str | Text], axis: str
) -> None:
    """Say what makes the curves unlike each other: steps, values that only some have."""
    if len(curves) < 2:
        return
    if len(steps) > 1:
        low, high = min(steps), max(steps)
        notes.append(f"the sizes have grids of different steps, {low:g} to {high:g} octaves")
    every = {round(eta, 6) for curve in curves for eta in curve.losses}
    missing = dict[str, int]()
    for curve in curves:
        within = {eta for eta in every if min(curve.losses) < eta < max(curve.losses)}
        if gap := within - {round(value, 6) for value in curve.losses}:
            missing[name_size(curve.size, axis)] = len(gap)
    if missing:
        total = sum(missing.values())
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
    means = [np.mean(curve.losses[float(eta)]) for eta in etas]
    return float(np.median(_gaps_near(etas, etas[int(np.argmin(means))])))


def _gaps_near(etas: Array, best: float) -> Array:
    """What neighbours near the best value are apart, of all where none lie near it."""
    near = np.abs((etas[1:] + etas[:-1]) / 2 - best) <= NEAR
    return np.diff(etas)[near] if near.any() else np.diff(etas)
