"""The runs that a law is fitted to: parameters, tokens, compute and final loss of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeper.errors import BadInput, Keyword, Text
from sweeper.evidence.runs.condition import quoted_name, shown_value, take_alike, where_equal
from sweeper.evidence.runs.divergence import by_status
from sweeper.evidence.runs.numbers import number_of
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES, RATES, columns_by_role, plain_name
from sweeper.evidence.runs.run import END_LOSS, SCALE_NAMES, Runs, in_own_order
from sweeper.evidence.runs.settings import is_identifier
from sweeper.evidence.runs.tuned import TriedRun, tuned
from sweeper.stats.power_law import ADDITIVE, COMPUTE, SIZE, TOKENS, Array, LossForm
from sweeper.table import counted

FLOPS_PER_PARAMETER_AND_TOKEN = 6.0
"""Forward and backward multiply-adds of a dense model (Kaplan et al., arXiv:2001.08361, 2.1)."""
SAME = 0.02
"""Sizes, horizons and budgets that differ by less, in log, are one: budgets are met but roughly."""
ON_A_LINE = 0.05
"""Spread in log of D around a line in log N below which alpha and beta cannot be told apart."""
NEAR_A_LINE, FEW_CELLS = 0.15, 6
"""That spread where there are no more (N, D) than the law of two axes has parameters and one."""
MOST_RUNGS = 16
"""More groups than this are no rungs but scatter, and are cut into bins of compute."""
BIN = math.log(3.0)
"""The width of a bin, in log compute, where runs have no rungs of their own."""
APART = 2.0
"""The factor by which the compute of a row may differ from 6 N D: attention, embeddings, units."""
STRANGE = 1e-3, 1e6
"""Tokens per parameter below and above which a column must be in other units."""
UNUSUAL = 0.1, 1e4
"""Tokens per parameter below and above which the middle run is asked about."""
COUNT_ROLES = ("params", "tokens", "flops")
"""Roles of which two make the third."""
NAMES = ("run", "seed")
"""Roles that tell runs of one size apart."""
HUGE = 1e30
"""Losses, parameters and tokens from here on are what an overflow left behind."""
LARGEST = 4.0
"""Runs of up to so many times less compute than the largest have its speed: small ones idle."""
FEWEST = 1000
"""Parameters or tokens below which all are in other units, whatever their ratio is."""


@dataclass(frozen=True, eq=False)
class LossRuns:
    """Finished runs: `params` N, `tokens` D, `loss` L, all [runs], positive and finite.

    `flops` are those of each run, counted where somebody counted them, else 6 N D. Runs of one
    `cluster` are not independent, such as checkpoints of one training: they are resampled together.
    `labels` name runs to people. `unit` is what D counts: tokens, or what stands for them.
    `seconds` is how long each took, NaN where it is not known.
    """

    params: Array
    tokens: Array
    loss: Array
    flops: Array
    cluster: np.ndarray[tuple[int], np.dtype[np.int64]]
    labels: Sequence[str]
    unit: str = "tokens"
    seconds: Array | None = None

    def __len__(self) -> int:
        return len(self.loss)

    def only(self, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> LossRuns:
        """The runs where `kept` is true."""
        labels = [label for label, keep in zip(self.labels, kept, strict=True) if keep]
        names = ["params", "tokens", "loss", "flops", "cluster"]
        names += [] if self.seconds is None else ["seconds"]
        parts: dict[str, Any] = {name: getattr(self, name)[kept] for name in names}
        return replace(self, labels=labels, **parts)

    @property
    def flops_per_second(self) -> float | None:
        """The median of the largest runs that say how long they took; None where none does."""
        if self.seconds is None:
            return None
        timed = np.isfinite(self.seconds) & (self.seconds > 0)
        if not timed.any():
            return None
        flops, seconds = self.flops[timed], self.seconds[timed]
        large = flops >= flops.max() / LARGEST
        return float(np.median(flops[large] / seconds[large]))

    def spread(self, most: int) -> LossRuns:
        """All of them, or as many as `most`, spread over the compute, of no (N, D) many more."""
        if len(self) <= most:
            return self
        by_cell = np.argsort(cells := self.cells, kind="stable")
        place = np.argsort(by_cell) - np.searchsorted(cells[by_cell], cells)  # within its cell
        order = np.argsort(self.flops, kind="stable")
        order = order[place[order] <= np.sort(place)[most - 1]]
        kept = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
        return self.only(np.isin(np.arange(len(self)), kept))

    @property
    def flops_per_product(self) -> float:
        """FLOPs for a parameter and a token: 6, or what the runs' own counts say."""
        return float(np.exp(np.median(np.log(self.flops / (self.params * self.tokens)))))

    @property
    def cells(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The number of each run's (N, D) [runs]: runs of one cell differ in their seed alone."""
        # A count that was written and one that was computed may differ in the last digit.
        keys = np.round(np.log(np.stack([self.params, self.tokens])) / 1e-6).T
        return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    @property
    def trainings(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The number of each run's training [runs]: points of several (N, D) that go together.

        Repeated runs of one (N, D) are trainings of their own, though they are resampled together.
        """
        spans = np.unique(np.stack([self.cluster, self.cells]), axis=1).shape[1]
        # No cluster spans two (N, D): they are repeats of runs, and none is a training's curve.
        alone = spans == len(np.unique(self.cluster))
        of = np.arange(len(self)) if alone else self.cluster
        return np.unique(of, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Design:
    """What runs were varied in, and so which `form` of the law can be fitted.

    `line`: N and D were varied together, log D = line[0] + line[1] log N: a law along it alone.
    """

    form: LossForm
    varied: str
    line: tuple[float, float] | None = None

    @classmethod
    def of(cls, runs: LossRuns) -> Design:
        """BadInput where nothing was varied."""
        params, tokens = np.log(runs.params), np.log(runs.tokens)
        sizes, horizons = np.ptp(params) > SAME, np.ptp(tokens) > SAME
        if not sizes and not horizons:
            raise BadInput(
                f"all {len(runs)} runs have {runs.params[0]:.4g} parameters and "
                f"{runs.tokens[0]:.4g} {runs.unit}: a law needs three sizes or three horizons at "
                "least"
            )
        if not horizons:
            return cls(SIZE, f"parameters, at fixed {runs.unit}")
        if not sizes:
            return cls(TOKENS, f"{runs.unit}, at a fixed size")
        slope, level = np.polyfit(params, tokens, 1)
        off = tokens - (level + slope * params)
        # So few runs tell no more of what lies beside their line than of what lies on it.
        few = runs.cells.max() < FEW_CELLS
        if float(np.sqrt(np.mean(off**2))) < (NEAR_A_LINE if few else ON_A_LINE):
            ratio, unit = np.exp(tokens - params), runs.unit
            what = (
                f"size and {unit} together, at {np.exp(np.mean(np.log(ratio))):.3g} {unit} per "
                "parameter"
                if np.ptp(np.log(ratio)) < 4 * ON_A_LINE
                else f"size and {unit} together, {unit} as parameters^{slope:.2f}"
            )
            return cls(COMPUTE, what, (float(level), float(slope)))
        return cls(ADDITIVE, f"parameters and {runs.unit}")

    def tokens_on_line(self, params: float) -> float:
        """D that belongs to N, of a law along a line."""
        assert self.line is not None
        return math.exp(self.line[0] + self.line[1] * math.log(params))

    def check_target(self, runs: LossRuns, params: float, tokens: float) -> None:
        """BadInput for a target at which the law says nothing."""
        if self.form is SIZE and abs(math.log(tokens / runs.tokens[0])) > ON_A_LINE:
            raise BadInput(
                f"all runs saw {runs.tokens[0]:.4g} {runs.unit}: nothing tells what {tokens:.4g} "
                "do. Predict at these, or add runs of two other horizons"
                + " (tokens are steps here, as the command takes no {batch_size})"
                * (runs.unit == "steps")
            )
        if self.form is TOKENS and abs(math.log(params / runs.params[0])) > ON_A_LINE:
            raise BadInput(
                f"all runs have {runs.params[0]:.4g} parameters: nothing tells what {params:.4g} "
                "do. Predict at these, or add runs of two other sizes"
            )
        if self.line is not None:
            there = self.tokens_on_line(params)
            if abs(math.log(tokens / there)) > 4 * ON_A_LINE:
                raise BadInput(
                    f"the runs varied {self.varied}, so that alpha and beta cannot be told apart: "
                    f"the law goes along that line alone, where {params:.4g} parameters see "
                    f"{there:.4g} {runs.unit}, not {tokens:.4g}. Predict there, or add runs with "
                    f"other numbers of {runs.unit} per parameter"
                )


@dataclass(frozen=True, eq=False)
class Rungs:
    """Runs grouped into rungs of a ladder, the last the farthest: `index` [runs], 0 the nearest."""

    index: np.ndarray[tuple[int], np.dtype[np.int64]]
    kind: str
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, runs: LossRuns, design: Design) -> Rungs:
        """Rungs are budgets where runs share them, else sizes, horizons, or bins of compute."""
        # Wider than sizes: whole steps and layers meet a budget but roughly.
        budgets = groups_of(np.log(runs.flops), 0.1)
        sizes = groups_of(np.log(runs.params), SAME)
        horizons = groups_of(np.log(runs.tokens), SAME)
        if design.form is TOKENS:
            return cls._named(horizons, runs.tokens, "tokens", f"{{:.3g}} {runs.unit}")
        if len(design.form.terms) == 1:
            return cls._named(sizes, runs.params, "size", "{:.3g} parameters")
        # IsoFLOPs: several sizes at each of a few budgets, which are no sizes of a grid.
        count = int(budgets.max()) + 1
        if 3 <= count <= MOST_RUNGS and len(runs) >= 3 * count and sizes.max() + 1 > count:
            return cls._named(budgets, runs.flops, "budget", "{:.3g} FLOPs")
        if 2 <= sizes.max() <= MOST_RUNGS - 1 and len(runs) >= 2 * (sizes.max() + 1):
            return cls._named(sizes, runs.params, "size", "{:.3g} parameters")
        if 2 <= horizons.max() <= MOST_RUNGS - 1 and len(runs) >= 2 * (horizons.max() + 1):
            return cls._named(horizons, runs.tokens, "tokens", f"{{:.3g}} {runs.unit}")
        log = np.log(runs.flops)
        # Bins end at the largest run, so that the farthest rung is a whole one.
        bins = np.floor((log - log.max() - 1e-9) / BIN)
        index = np.unique(bins, return_inverse=True)[1].astype(np.int64)
        return cls._named(index, runs.flops, "compute", "about {:.2g} FLOPs")

    @classmethod
    def _named(
        cls, index: np.ndarray[tuple[int], np.dtype[np.int64]], values: Array, kind: str, form: str
    ) -> Rungs:
        middles = [float(np.exp(np.log(values[index == i]).mean())) for i in range(index.max() + 1)]
        return cls(index, kind, tuple(form.format(middle) for middle in middles))


def distinct(values: Array) -> int:
    """How many different sizes, or numbers of tokens, there are."""
    return int(groups_of(np.log(values), SAME).max()) + 1


def groups_of(logs: Array, gap: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The group of each value: a new one begins where sorted values are further apart than gap."""
    order = np.argsort(logs, kind="stable")
    steps = np.diff(logs[order], prepend=logs[order[0]]) > gap
    index = np.empty(len(logs), np.int64)
    index[order] = np.cumsum(steps)
    return index


def law_runs(runs: Runs) -> Runs:
    """The runs with the columns of a law; BadInput where a column is missing, or holds no numbers.

    A run whose loss was left empty was not made, and is left out; so is one off its size's best
    learning rate.
    """
    import pandas  # type: ignore[import-untyped]

    runs = runs.with_roles(LAW_ROLES)
    counts = [role for role in COUNT_ROLES if role in runs.columns]
    others = [role for role in COUNT_ROLES if role not in counts][: 2 - len(counts)]
    third = "two of params, tokens and flops, the third by C = 6ND"
    runs.check_columns({**END_LOSS, **dict.fromkeys(others, third)})
    timed = ("seconds",) * ("seconds" in runs.columns)
    runs.check_numbers([runs.columns[role] for role in (*counts, "loss", *timed)])
    empty = runs.left_empty(runs.columns["loss"])
    if empty.all():
        raise BadInput("no run of the table has a loss")
    if empty.any():
        count = counted(int(empty.sum()), "run")
        note = f"left out: {count} whose loss is empty, which were not made"
        runs = replace(runs, frame=runs.frame[~empty], notes=(*runs.notes, note))
    notes = [*runs.notes]
    unfinished, diverged = by_status(runs, notes)
    loss = np.where(diverged, math.inf, runs.numbers(runs.columns["loss"]))
    frame = runs.frame.assign(**{runs.columns["loss"]: loss})[~unfinished]
    runs = replace(runs, frame=frame, notes=tuple(notes))
    keys = {role: runs.numbers(runs.columns[role]) for role in (*counts, "loss")}
    names = {r: runs.frame[c].astype(str).to_numpy() for r, c in runs.columns.items() if r in NAMES}
    order = in_own_order(pandas.DataFrame(keys | names)).index.to_numpy()
    return _tuned(replace(runs, frame=runs.frame.iloc[order]))


def loss_runs_of(runs: Runs) -> LossRuns:
    """The points that a law is fitted to; BadInput for what would be fitted wrongly, row named."""
    columns = runs.columns
    counts = [role for role in COUNT_ROLES if role in columns]
    values = {role: positive(runs, columns[role], role) for role in (*counts, "loss")}
    for role in {"params", "tokens"} & {*values}:
        values[role] = values[role] * runs.scale(role)
    if len(runs) > 1 and np.ptp(np.log(values["loss"])) < 1e-9:
        raise BadInput(f"all losses are {values['loss'][0]:g}: is {columns['loss']!r} the loss?")
    params, tokens, flops = three_counts(runs, values)
    _check_alike(runs, params, values["loss"])
    _check_twins(runs, [params, tokens, values["loss"]])
    names = runs.frame[columns["run"]].astype(str) if "run" in columns else None
    labels = [runs.row(place) if names is None else names.iloc[place] for place in range(len(runs))]
    cluster = _clusters(runs, params, tokens)
    points = LossRuns(params, tokens, values["loss"], flops, cluster, labels)
    return (
        replace(points, seconds=runs.numbers(columns["seconds"]))
        if "seconds" in columns
        else points
    )


def law_notes(runs: Runs, points: LossRuns) -> list[str | Text]:
    """Notes on how a table's runs were read, and on what is unusual in them."""
    return [*runs.notes, *odd_ratio(points.params, points.tokens), *mixed_runs(runs), *_units(runs)]


def _units(runs: Runs) -> list[str]:
    notes = [
        f"{runs.columns[role]!r} is in {SCALE_NAMES.get(scale, f'{scale:g}')}, as its name says"
        for role in ("params", "tokens")
        if role in runs.columns and (scale := runs.scale(role)) != 1
    ]
    if runs.unit != "nats":
        loss = runs.columns["loss"]
        notes.append(f"{loss!r} is in bits per byte: so are the floor and the losses")
    return notes


def positive(runs: Runs, column: str, role: str) -> Array:
    """A column's numbers; BadInput names the first that is no positive one."""
    values = runs.numbers(column)
    wrong = ~((values > 0) & (values < HUGE))
    if wrong.any():
        value = values[int(wrong.argmax())]
        what = "is missing" if math.isnan(value) else f"is {value:g}"
        raise BadInput(
            f"the {role} of {runs.rows(wrong)} {what}; it must be a positive number. "
            "Leave such rows out: ",
            Keyword("where", f"0 < {quoted_name(column)} < 1e30"),
        )
    return values


def three_counts(runs: Runs, values: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Parameters, tokens and FLOPs, the third by C = 6ND; BadInput where units differ."""
    values, product = {**values}, FLOPS_PER_PARAMETER_AND_TOKEN
    if "tokens" not in values:
        values["tokens"] = values["flops"] / (product * values["params"])
    if "params" not in values:
        values["params"] = values["flops"] / (product * values["tokens"])
    params, tokens = values["params"], values["tokens"]
    _check_units(runs, params, tokens)
    flops = values.get("flops", product * params * tokens)
    _check_compute(runs, flops / (product * params * tokens))
    return params, tokens, flops


def _check_units(runs: Runs, params: Array, tokens: Array) -> None:
    """Tokens in billions beside parameters in ones, in the whole column or in some rows."""
    ratio = tokens / params
    low, high = STRANGE
    wrong = (ratio < low) | (ratio > high) | (params < FEWEST) | (tokens < FEWEST)
    if not wrong.any():
        return
    place = int(np.flatnonzero(wrong)[0])
    which = (
        "all rows"
        if wrong.all()
        else f"{runs.row(place)}" + (f" and {int(wrong.sum()) - 1} more" if wrong.sum() > 1 else "")
    )
    raise BadInput(
        f"{which}: {tokens[place]:.4g} tokens for {params[place]:.4g} parameters are "
        f"{ratio[place]:.3g} tokens per parameter. Are they in thousands, millions or billions? "
        "Give all in ones"
    )


def _check_compute(runs: Runs, share: Array) -> None:
    wrong = (share > APART) | (share < 1 / APART)
    if wrong.any():
        raise BadInput(
            f"the compute of {runs.rows(wrong)} is {share[int(wrong.argmax())]:.3g} times 6 x "
            "params x tokens: one of the three is in thousands or millions, or is something else. "
            "Give all in ones, or name two of them by ",
            Keyword("columns", ...),
            ", and leave the third out as in ",
            Keyword("columns", "flops="),
        )


def odd_ratio(params: Array, tokens: Array) -> list[str]:
    """A note on tokens per parameter that few train with; none where they are usual.

    Tokens in thousands of runs with 20 a parameter are 0.02: possible, and so no error.
    """
    ratio = float(np.exp(np.median(np.log(tokens / params))))
    low, high = UNUSUAL
    if low <= ratio <= high:
        return []
    units = "tokens" if ratio < low else "parameters"
    return [
        f"half of the runs have {'fewer' if ratio < low else 'more'} than {ratio:.3g} tokens per "
        f"parameter, and few train so: are {units} in thousands? Give all in ones"
    ]


def _check_alike(runs: Runs, params: Array, loss: Array) -> None:
    """BadInput for runs of several kinds, as of two data sets: no one law holds of them."""
    unlike = []
    for column in map(str, runs.frame.columns):
        if (
            column in runs.columns.values()
            or column in runs.ignore
            or plain_name(column).endswith(TELLING)
        ):
            continue
        values = runs.frame[column]
        if values.dtype.kind in "iufcM" or is_identifier(values):
            continue
        if values.dtype.kind != "b" and None not in map(number_of, values.unique()):
            continue
        kinds = values.astype(str).to_frame("kind").assign(params=params, loss=loss)
        counts = kinds.groupby("kind").nunique()
        # The name of a model is one for each size, and a colour one for each loss: of no kind.
        if len(counts) > 1 and (counts.max() > 1).all():
            unlike.append((column, values.drop_duplicates()))
    if not unlike:
        return
    named = ", ".join(
        f"{column} ({', '.join(map(shown_value, kinds.iloc[:3]))}{', ...' * (len(kinds) > 3)})"
        for column, kinds in unlike[:4]
    )
    first = {column: kinds.iloc[0] for column, kinds in unlike}
    raise BadInput(
        f"the runs differ in {named}, and a law is one of runs of a kind: ",
        *take_alike(first, [*first]),
    )


def mixed_runs(runs: Runs) -> list[Text]:
    """Notes on columns that tell runs apart whose losses follow no common law."""
    notes: list[Text] = []
    for column in map(str, runs.frame.columns):
        if not plain_name(column).endswith(TELLING) or column in runs.ignore:
            continue
        values = runs.frame[column].dropna().astype(str).unique()
        if 1 < len(values) <= MOST_KINDS:
            first = runs.frame[column].dropna().iloc[0]
            notes.append(
                (
                    f"the column {column!r} has {', '.join(map(shown_value, values))}: a law is "
                    "one of runs that ended alike, as by ",
                    where_equal({column: first}),
                )
            )
    return notes


def _tuned(runs: Runs) -> Runs:
    """The runs of each size's best rate; one whose loss is no finite number diverged there."""
    roles = (*RATES, "batch_size", "decay")
    columns = columns_by_role(runs.frame, runs.asked, {role: LADDER_ROLES[role] for role in roles})
    others = {column for role, column in runs.columns.items() if role not in roles}
    varied = {
        role: columns[role] for role in roles if columns.get(role) not in {None, *runs.ignore}
    }
    varied = {role: column for role, column in varied.items() if column not in others}
    rate = next((varied[role] for role in RATES if role in varied), None)
    if rate is None or not (rates := runs.numbers_or_nan(rate)).size:
        return runs
    counts = [runs.numbers(runs.columns[role]) for role in COUNT_ROLES if role in runs.columns]
    losses = runs.numbers(runs.columns["loss"])
    cells = [*zip(*map(_alike_counts, counts), strict=True)]
    places: dict[tuple[float, ...], list[int]] = {}
    for place, cell in enumerate(cells):
        places.setdefault(cell, []).append(place)
    if (unknown := np.isnan(rates)).any():
        if runs.frame[rate].isna().all() or len(places) == len(runs):
            return runs
        note = f"{runs.rows(unknown)} has no number in {rate!r}: no run is left out by it"
        return replace(runs, notes=(*runs.notes, f"{note}, though a law is one of tuned runs"))
    log2 = np.log2(rates) if (rates > 0).all() else rates
    # A rate that a log has of each run's end differs a little, and was not tried.
    if all(np.ptp(log2[of]) < LEAST_TRIED for of in places.values()):
        return runs
    _check_alike(runs, counts[0], losses)
    rest = runs.frame[[c for role, c in varied.items() if role not in RATES]].astype(str)
    best_runs = tuned(
        [
            TriedRun(
                cell=cell, rate=log2_rate, rest=tuple(row), loss=loss if loss < HUGE else math.inf
            )
            for cell, log2_rate, row, loss in zip(cells, log2, rest.to_numpy(), losses, strict=True)
        ]
    )
    notes = list[str | Text](runs.notes)
    off, ends = len(runs) - len(best_runs.kept), sum(map(len, best_runs.at_end.values()))
    tried = " and ".join(map(repr, varied.values()))
    why = f"left out: {counted(off - ends, 'run')} off the best {tried} of their size"
    if ends:
        why += (
            f", and the best {ends} of {counted(len(best_runs.at_end), 'size')} at an end of its "
            "rates, where others are not"
        )
    if best_runs.untuned:
        why += (
            f"; of {counted(best_runs.untuned, 'size')} it lies at an end of the rates, and none "
        )
        why += "is known to be tuned"
    notes.append(
        (f"{why}. A law is one of tuned runs; ", Keyword("ignore", rate), " takes all of them")
    )
    return replace(runs, frame=runs.frame.iloc[sorted(best_runs.kept)], notes=tuple(notes))


def _alike_counts(counts: Array) -> Sequence[float]:
    """Numbers that are equal where counts are one: whole steps meet a horizon but roughly."""
    if (counts > 0).all() and np.isfinite(counts).all():
        groups = groups_of(np.log(counts), SAME / 4)
        spans = [np.ptp(np.log(counts[groups == group])) for group in np.unique(groups)]
        # Of checkpoints a few steps apart all would be one.
        if max(spans) <= SAME:
            return [float(group) for group in groups]
    return [float(f"{count:.6g}") for count in counts]


LEAST_TRIED = 0.25
"""Octaves between learning rates of one size from which on they were tried."""
TELLING = ("schedule", "scheduler", "schedulertype")
"""How the names of columns end that tell schedules."""
MOST_KINDS = 6
"""Values of such a column; of more it tells something else."""


def _check_twins(runs: Runs, keys: Sequence[Array]) -> None:
    names = [
        runs.frame[runs.columns[role]].astype(str).to_numpy()
        for role in NAMES
        if role in runs.columns
    ]
    seen: dict[tuple[object, ...], int] = {}
    for place, key in enumerate(zip(*keys, *names, strict=True)):
        if key in seen:
            raise BadInput(
                f"{runs.row(seen[key])} and {runs.row(place)} are equal: a run that is "
                "written twice counts double. Delete one, or name the column that tells them "
                "apart, as in ",
                Keyword("columns", "seed=COLUMN"),
            )
        seen[key] = place


def _clusters(
    runs: Runs, params: Array, tokens: Array
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Runs of one name are points of one training; else each row is its own, cells together."""
    if "run" in runs.columns:
        names = runs.frame[runs.columns["run"]].astype(str).to_numpy()
        seed = runs.columns.get("seed", runs.columns["run"])
        seeds = runs.frame[seed].astype(str).to_numpy()
        keys = np.array([f"{a}\0{b}" for a, b in zip(names, seeds, strict=True)])
    else:
        keys = np.array([f"{n:.6g}\0{d:.6g}" for n, d in zip(params, tokens, strict=True)])
    return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
