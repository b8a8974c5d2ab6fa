"""Losses over steps at several batches, from tables, trackers and studies, for the critical batch.

Curves of runs, or the ends of runs of several lengths; of the rates of a batch the best counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, Text
from sweeper.evidence.batch.decision import CriticalBatch, critical_batch, falling, steps_to
from sweeper.evidence.runs.condition import where_equal
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES
from sweeper.evidence.runs.run import Runs, log2_of
from sweeper.evidence.runs.series import step_column
from sweeper.stats.estimate import Array
from sweeper.study.setup import LADDER_PHASE
from sweeper.trial import Result

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

ROLES = {
    **{role: LADDER_ROLES[role] for role in ("batch_size", "steps", "log2_eta", "eta", "loss")},
    **{role: LADDER_ROLES[role] for role in ("seed", "width", "depth")},
    "params": LAW_ROLES["params"],
    "run": LAW_ROLES["run"],
}
MODEL = ("params", "width", "depth")
WITHIN = (
    "steps are read off curves of runs: a loss within a run is that of one that ends there only "
    "where the learning rate stays as it is"
)


@dataclass(frozen=True, eq=False)
class BatchCurve:
    """Losses at ascending `steps` of a run of a batch, at a rate (log2; 0 where none is known)."""

    batch: int
    rate: float
    seed: str
    steps: Array
    losses: Array


@dataclass(frozen=True, kw_only=True)
class BatchRuns:
    """Curves of one model, `within` runs or through the ends of several."""

    curves: tuple[BatchCurve, ...]
    notes: tuple[str | Text, ...] = ()


def batch_runs(runs: Runs) -> BatchRuns | None:
    """The curves of a source with a batch and a loss; None where it has no curves."""
    series = runs.frame.get("series")
    runs = runs.with_roles(ROLES)
    columns = runs.columns
    if "batch_size" not in columns or "loss" not in columns:
        return None
    step = None if series is not None else step_column(runs)
    if series is None and step is None and "steps" not in columns:
        return None
    table = _table(runs, step or columns.get("steps", ""))
    table, notes = _one_model(runs, table)
    if series is not None:
        kept: Any = series.iloc[table.index.to_numpy()]
        # Steps count from 0, and their logarithm is taken.
        curves = [
            BatchCurve(
                int(row.batch),
                row.rate,
                row.seed,
                np.array(series_of.steps) + 1.0,
                np.array(series_of.losses),
            )
            for row, series_of in zip(table.itertuples(), kept, strict=True)
        ]
        return BatchRuns(curves=tuple(curves), notes=(*notes, WITHIN))
    table = table[np.isfinite(table["loss"])]
    if step is None:
        table = _ends(table)
    else:
        notes.append(WITHIN)
    return BatchRuns(curves=tuple(_curves(table)), notes=tuple(notes))


def of_results(results: Iterable[Result]) -> BatchRuns | None:
    """The curves of a study's ladder runs, of the model and length that most have."""
    ladder = [r for r in results if r.trial.phase == LADDER_PHASE and len(r.curve) > 1]
    kinds = [(r.trial.spec.width, r.trial.spec.depth, r.trial.spec.train.steps) for r in ladder]
    if not kinds:
        return None
    width, depth, steps = max({*kinds}, key=kinds.count)
    curves = []
    for result, kind in zip(ladder, kinds, strict=True):
        if kind == (width, depth, steps):
            trial, losses = result.trial, np.array(result.curve, dtype=float)
            # A study keeps of a run the means over equal parts of it: each stands at its middle.
            middles = (np.arange(len(losses)) + 0.5) / len(losses) * result.steps
            rate = float(trial.log2_hps.get("eta", 0.0))
            batch = trial.spec.train.batch_size
            curves.append(BatchCurve(batch, rate, str(trial.seed), middles, losses))
    return BatchRuns(curves=tuple(curves), notes=(WITHIN,))


def critical_of(runs: BatchRuns) -> CriticalBatch:
    """The critical batch at the lowest loss that every batch reaches at its best rate."""
    by_rate: dict[tuple[int, float], list[BatchCurve]] = {}
    for curve in runs.curves:
        if len(curve.steps) > 1:
            by_rate.setdefault((curve.batch, curve.rate), []).append(curve)
    lowest: dict[int, float] = {}
    for (batch, _), curves in by_rate.items():
        # That which all of its seeds reach.
        least = max(_least(curve) for curve in curves)
        lowest[batch] = min(lowest.get(batch, math.inf), least)
    # A batch of which no rate trained reaches no loss at all.
    loss = max(filter(math.isfinite, lowest.values()), default=math.nan)
    best: dict[int, list[float]] = {}
    for (batch, _), curves in by_rate.items():
        taken = [steps_to(curve.steps, curve.losses, loss) for curve in curves]
        # A rate at which a seed never gets there has no steps that could be compared.
        if not all(map(math.isfinite, taken)):
            continue
        if batch not in best or np.mean(taken) < np.mean(best[batch]):
            best[batch] = taken
    pairs = [(batch, step) for batch, taken in best.items() for step in taken]
    batches, steps = (np.array([pair[k] for pair in pairs], dtype=float) for k in (0, 1))
    return critical_batch(batches, steps, loss)


def _least(curve: BatchCurve) -> float:
    """The loss at its end, as `steps_to` reads it: it need not be the lowest that noise shows."""
    finite = curve.losses[np.isfinite(curve.losses) & (curve.steps > 0)]
    return float(falling(finite)[-1]) if len(finite) else math.inf


def _table(runs: Runs, step: str) -> pandas.DataFrame:
    import pandas

    columns = runs.columns
    rate: Array = np.zeros(len(runs))
    if column := columns.get("log2_eta") or columns.get("eta"):
        rate = log2_of(runs, column)[0]
    seeds = next((columns[role] for role in ("run", "seed") if role in columns), None)
    if columns.get("seed") and columns.get("run") and not step:
        seeds = columns["seed"]
    batch = runs.numbers(columns["batch_size"])
    usable = np.isfinite(batch) & (batch >= 1)
    if not usable.all():
        place = int(np.flatnonzero(~usable)[0])
        raise BadInput(f"{runs.row(place)} has a batch of {batch[place]:g}: it is 1 or more")
    return pandas.DataFrame(
        {
            "batch": batch,
            "rate": np.round(rate, 6),
            "seed": "" if seeds is None else runs.frame[seeds].astype(str).to_numpy(),
            "step": runs.numbers(step) if step else math.nan,
            "loss": runs.numbers(columns["loss"]),
        },
        index=np.arange(len(runs)),
    )


def _one_model(runs: Runs, table: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str | Text]]:
    """The runs of the model that most are of: each has a critical batch of its own."""
    there = [runs.columns[role] for role in MODEL if role in runs.columns]
    there = [column for column in there if runs.frame[column].nunique() > 1]
    if not there:
        return table, []
    models = runs.frame.groupby(there).ngroup().to_numpy()
    by_runs = np.argsort(-np.bincount(models[models >= 0]), kind="stable")
    taken, *others = (
        runs.frame[there].iloc[int(np.flatnonzero(models == model)[0])] for model in by_runs[:2]
    )
    named = " and ".join(f"{column} {taken[column]}" for column in there)
    note: Text = (
        f"the critical batch is that of {named}, of which most runs are",
        *(part for other in others for part in ("; ", where_equal(dict(other)), " takes the next")),
    )
    return table[models == by_runs[0]], [note]


def _ends(table: pandas.DataFrame) -> pandas.DataFrame:
    """The runs at the best rate of each batch and length: a curve through their ends."""
    means = table.groupby(["batch", "step", "rate"], dropna=False)["loss"].mean().reset_index()
    best = means.loc[means.groupby(["batch", "step"])["loss"].idxmin(), ["batch", "step", "rate"]]
    kept = table.merge(best, on=["batch", "step", "rate"], how="inner")
    if not (kept["seed"] != "").any():
        kept["seed"] = kept.groupby(["batch", "step"]).cumcount().astype(str)
    return kept.assign(rate=0.0)


def _curves(table: pandas.DataFrame) -> Iterator[BatchCurve]:
    for (batch, rate, seed), rows in table.groupby(["batch", "rate", "seed"], dropna=False):
        rows = rows.groupby("step")["loss"].mean()
        rows = rows[rows.index > 0]
        if len(rows):
            steps = rows.index.to_numpy(dtype=float)
            yield BatchCurve(int(batch), float(rate), str(seed), steps, rows.to_numpy(dtype=float))
