"""What a table of runs says of a transfer: the ladder's verdict, its ends, and what tells more.

The statistics are those of `sweeper/stats`; here a table's curves are brought to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from sweeper.decide.ladder_verdict import Advice, Answer, Verdict, worst
from sweeper.decide.target import prior_for
from sweeper.decide.trend import Trend, judge_with_target
from sweeper.errors import BadInput, ConfigError, Keyword, Text, as_text
from sweeper.evidence.runs.cells import step_of
from sweeper.evidence.runs.grid import Grid, GridOptions, grid_of, ladders_of
from sweeper.evidence.runs.roles import AXES
from sweeper.evidence.runs.run import Runs, unit_of
from sweeper.evidence.runs.sizes import axis_name, axis_of_size
from sweeper.records import NOT_WRITTEN, WRITTEN_IF_SET, to_json
from sweeper.stats.curve import NOISE_RADIUS, CurveFit, fit_curves
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import JOINT_AXIS, LadderRule, LadderSize, SizeCurve
from sweeper.table import counted

UNDECIDED: Answer = "cannot say yet"
SIDES = {-1: "at or below", 1: "at or above", 0: "anywhere around"}
"""Where an optimum lies that a curve does not bracket."""
Finding = Literal["", "ladder", "ladders", "one_size"]
NextReason = (
    Literal["", "edge", "one_seed", "sizes", "no_noise", "seeds", "longer_ladder", "errors"]
    | Literal["finer", "longer_curves", "past_end"]
)


@dataclass(frozen=True, kw_only=True)
class NextRuns:
    """`runs` more at each of `etas` (log2) would tell; `code` says why, `why` in words."""

    size: Mapping[str, int]
    etas: tuple[float, ...]
    runs: int
    why: str = ""
    code: NextReason = field(default="", compare=False, metadata=NOT_WRITTEN)


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A curve whose best value is its last (`side` 1) or first (-1), or its only one (0)."""

    size: LadderSize
    side: int
    log2: float


@dataclass(frozen=True, kw_only=True)
class TableVerdict:
    """What `judge.json` holds: the answer, and the verdict behind it, if any.

    `finding` says what it rests on, `edges` where an optimum is not bracketed. `ours`: the runs are
    of a study of ours, whose settings mean something to the user. `rounded` is the step that losses
    are rounded to, `bits` the column that is in bits per byte, `remarks` what made the curves
    unlike a ladder's. A record has `sentences`, `ends` and `notes` in words instead.

    `curves` are what was judged, `next_runs` would tell more. `bound` is set where the transferred
    value is the base's best and the base's optimum lies "at or above" or "at or below" it.
    `predicted` is log2 of the best learning rate at the target `to`, where it is asked about and
    the optima tell it.

    Of a table with several values of a further size, `ladders` are the verdicts on each, with its
    `key`, and the answer is the worst.
    """

    answer: Answer
    sentences: tuple[str, ...] = ()
    axis: str
    hyperparameter: str = "eta"
    transferred_log2_eta: float = math.nan
    bound: str = ""
    to: int | None = None
    predicted: Estimate | None = None
    axes: tuple[Verdict, ...] = ()
    trend: Trend | None = None
    curves: tuple[SizeCurve, ...] = ()
    ends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    next_runs: tuple[NextRuns, ...] = ()
    overrides: tuple[str, ...] = ()
    noise: str = ""
    runs: int = 0
    plain: bool = True
    source: str = ""
    sha256: str = ""
    where: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    parameterization: str = ""
    command: str = ""
    key: Mapping[str, int] = field(default_factory=dict, metadata=WRITTEN_IF_SET)
    ladders: tuple[TableVerdict, ...] = field(default=(), metadata=WRITTEN_IF_SET)
    finding: Finding = field(default="", compare=False, metadata=NOT_WRITTEN)
    edges: tuple[Edge, ...] = field(default=(), compare=False, metadata=NOT_WRITTEN)
    ours: bool = field(default=False, compare=False, metadata=NOT_WRITTEN)
    rounded: float = field(default=0.0, compare=False, metadata=NOT_WRITTEN)
    remarks: tuple[Text, ...] = field(default=(), compare=False, metadata=NOT_WRITTEN)
    bits: str = field(default="", compare=False, metadata=NOT_WRITTEN)

    @property
    def verdict(self) -> Verdict | None:
        """The ladder's verdict; None where there is none, as with one size."""
        return self.axes[0] if self.axes else None

    @property
    def unit(self) -> str:
        """The unit of the losses, and of what is lost."""
        return "bits/byte" if self.bits else "nats"

    @property
    def record(self) -> dict[str, Any]:
        """Plain JSON, in the form of a study's validation where it says the same."""
        record: dict[str, Any] = to_json(self)
        return record


@dataclass(frozen=True, kw_only=True)
class TableQuestion:
    """What is asked of a table: its reading, target, and `eta`; None is the base's optimum."""

    reading: GridOptions = field(default_factory=GridOptions)
    to: int | None = None
    eta: float | None = None

    def __post_init__(self) -> None:
        # A logarithm below all numbers is that of a learning rate of 0.
        if self.eta is not None and not (math.isfinite(self.eta) and 2.0 ** min(self.eta, 0.0)):
            raise ConfigError(
                Keyword("eta"), self.eta, "a learning rate, or its log2 where it is negative"
            )


def judge_runs(runs: Runs, question: TableQuestion, command: str = "") -> TableVerdict:
    """The verdict on runs with the columns of a ladder; BadInput where they cannot be compared."""
    facts: dict[str, Any] = {
        "source": runs.name,
        "sha256": runs.sha256,
        "where": runs.where,
        "columns": runs.columns,
        "command": command,
    }
    verdicts, refused, left_out = list[TableVerdict](), list[BadInput](), list[Text]()
    parts = ladders_of(runs, question.reading)
    if (rest := len(runs) - sum(len(part) for _, _, part in parts)) > 0:
        left_out.append((f"{counted(rest, 'row')} left out, at sizes that make no ladder",))
    for axis, key, part in parts:
        reading = replace(question.reading, axis=axis if key else question.reading.axis)
        try:
            verdict = judge_grid(grid_of(part, reading), question)
        except BadInput as error:
            refused.append(error)
            sizes = ", ".join(f"{axis_name(role)} {value}" for role, value in key.items())
            left_out.append((f"left out, at {sizes}: ", *error.args))
            continue
        verdicts.append(replace(verdict, key=key, **facts))
    if not verdicts:
        raise refused[0]
    first = verdicts[0]
    of_tokens = _of_tokens(runs, first, question)
    if len(verdicts) == 1 and not refused:
        return replace(first, remarks=(*first.remarks, *of_tokens))
    return TableVerdict(
        answer=worst(verdict.answer for verdict in verdicts),
        finding="ladders",
        axis=first.axis,
        to=question.to,
        runs=sum(verdict.runs for verdict in verdicts),
        plain=first.plain,
        noise=first.noise,
        remarks=(*left_out, *of_tokens),
        ladders=tuple(verdicts),
        **facts,
    )


def _of_tokens(runs: Runs, first: TableVerdict, question: TableQuestion) -> list[Text]:
    if question.to is None or first.axis != "width" or "tokens" not in runs.columns:
        return []
    if "tokens" in first.key:
        asks = (Keyword("to_width", question.to), " with ", Keyword("to_tokens", ...))
        return [("at other numbers of tokens than these, ", *asks, " tells the rate")]
    if (tokens := runs.only_value("tokens")) is None:
        return []
    return [(f"all runs saw {tokens} tokens, and what is said of the target is for as many",)]


def judge_grid(grid: Grid, question: TableQuestion) -> TableVerdict:
    """The verdict on the curves of a grid."""
    rule, ours = _rule(grid)
    # About 0 for now: the transferred value may itself be the base's fitted optimum.
    fits = fit_curves(grid.curves, 0.0)
    transferred = _transferred(grid, question, fits)
    edges = _edges(grid, fits)
    sides = {edge.size: edge.side or 1 for edge in edges}
    column = grid.columns.get("loss", "")
    common: dict[str, Any] = {
        "axis": grid.axis,
        "transferred_log2_eta": transferred,
        "bound": _bound(grid, question, edges),
        "curves": grid.curves,
        "edges": edges,
        "remarks": tuple(as_text(note) for note in grid.notes),
        "bits": "" if unit_of(column) == "nats" else column,
        "rounded": grid.rounded,
        "ours": ours,
        "noise": grid.noise,
        "runs": grid.runs,
        "plain": grid.plain,
        "study": str(grid.constants.get("study", "")),
        "parameterization": grid.parameterization,
    }
    if len(grid.curves) < 2:
        return TableVerdict(
            answer=UNDECIDED, finding="one_size", next_runs=next_of_one_size(grid, sides), **common
        )
    # Fits are not made again for the value: regrets alone depend on it.
    fits = {
        size: fit and replace(fit, regret=fit.loss_gap(transferred + fit.curve.planned_log2))
        for size, fit in fits.items()
    }
    prior = prior_for(grid.axis, grid.parameterization, None)
    target = None
    if question.to is not None:
        # A target is named by its size along the axis; the rest of it is that of the largest run.
        largest = max(curve.size for curve in grid.curves)
        target = replace(largest, **{axis_of_size(grid.axis): question.to})
    verdict, trend = judge_with_target(
        *(grid.axis, grid.curves, fits, transferred, grid.base, rule, prior, target),
        is_named=question.eta is not None and target is not None,
    )
    predicted = None
    # Of a plan by a law the trend is of what the law leaves: no learning rate by itself.
    if trend is not None and verdict.target and not any(c.planned_log2 for c in grid.curves):
        predicted = trend.predicted_log2
    overrides = (*verdict.settle, *(verdict.target.settle if verdict.target else ()))
    next_runs = next_runs_of(grid, verdict, fits, rule, sides)
    if not ours:  # settings of a study mean nothing to somebody who has none
        plain = verdict.target and replace(verdict.target, settle=())
        verdict = replace(verdict, settle=(), target=plain)
    return TableVerdict(
        # The worse of both: a rate may be wrong, or open, at the target where the ladder holds.
        answer=worst(each.answer for each in (verdict, verdict.target) if each is not None),
        finding="ladder",
        axes=(verdict,),
        trend=trend,
        to=question.to,
        predicted=predicted,
        next_runs=next_runs,
        overrides=overrides if ours else (),
        **common,
    )


def _rule(grid: Grid) -> tuple[LadderRule, bool]:
    kept = {
        name.removeprefix("transfer."): float(value)
        for name, value in grid.constants.items()
        if name.startswith("transfer.")
    }
    # A table has no rule: its span and step are read off its curves, for advice in its own terms.
    reach = max((max(c.losses) - min(c.losses) for c in grid.curves if c.losses), default=4.0)
    step = float(np.median([step_of(curve) for curve in grid.curves]))
    # Bounds of a rule's own check: tables may have any step.
    step = min(max(kept.get("step", step), 2.0**-6), 16.0)
    rule = LadderRule(
        widths=tuple(max(1, int(c.size.width)) for c in grid.curves),
        seeds=max(1, grid.seeds),
        step=step,
        span=max(kept.get("span", reach / 2), step),
        extend=int(kept.get("extend", 4)),
        max_shift=kept.get("max_shift", LadderRule.max_shift),
        max_loss_gap=kept.get("max_loss_gap", LadderRule.max_loss_gap),
        correct=bool(kept.get("correct", False)),
    )
    return rule, bool(kept)


def _transferred(
    grid: Grid, question: TableQuestion, fits: Mapping[LadderSize, CurveFit | None]
) -> float:
    if question.eta is not None:
        if grid.plain and question.eta <= 0:
            raise ConfigError(Keyword("eta"), question.eta, "a positive learning rate")
        return math.log2(question.eta) if grid.plain else question.eta
    if grid.transferred is not None:
        return grid.transferred
    fit = fits[grid.base]
    if fit is not None:
        return fit.optimum.value
    # Every run of the base diverged: the middle of what was tried.
    curve = next(curve for curve in grid.curves if curve.size == grid.base)
    return float(np.median(list(curve.losses)))


def _bound(grid: Grid, question: TableQuestion, edges: tuple[Edge, ...]) -> str:
    if question.eta is not None or grid.transferred is not None:
        return ""
    return next((SIDES[edge.side] for edge in edges if edge.size == grid.base), "")


def _edges(grid: Grid, fits: Mapping[LadderSize, CurveFit | None]) -> tuple[Edge, ...]:
    edges = []
    for curve in grid.curves:
        if (fit := fits[curve.size]) is None or not fit.at_end:
            continue
        best = min(sorted(curve.losses), key=lambda eta: float(np.mean(curve.losses[eta])))
        edges.append(Edge(size=curve.size, side=fit.side, log2=best))
    return tuple(edges)


def _key(size: LadderSize, axis: str) -> dict[str, int]:
    if axis != JOINT_AXIS:
        return {axis: int(getattr(size, axis))}
    return {key: int(value) for key, value in asdict(size).items() if key in AXES and value > 1}


def _near(curve: SizeCurve, reach: float = 1.0) -> tuple[float, ...]:
    etas = sorted(curve.losses)
    at = int(np.argmin([np.mean(curve.losses[eta]) for eta in etas]))
    within = [abs(eta - etas[at]) <= reach + 1e-9 for eta in etas]
    return tuple(eta for i, eta in enumerate(etas) if within[i] or abs(i - at) <= 1)


def _beyond(curve: SizeCurve, side: int) -> tuple[float, ...]:
    # At least a quarter of an octave: very fine grids would need many runs to leave their end.
    etas, step = sorted(curve.losses), max(step_of(curve), 0.25)
    if len(etas) == 1:  # it has no side
        return tuple(etas[0] + step * i for i in (-2, -1, 1, 2))
    end = etas[-1] if side > 0 else etas[0]
    return tuple(sorted(end + side * step * i for i in (1, 2)))


def next_of_one_size(grid: Grid, sides: Mapping[LadderSize, int]) -> tuple[NextRuns, ...]:
    """Beyond the end of the one curve, and curves of two sizes more."""
    (curve,) = grid.curves
    key, seeds, proposed = _key(curve.size, grid.axis), max(2, grid.seeds), list[NextRuns]()
    etas = tuple(sorted(curve.losses))
    if curve.size in sides:
        beyond = _beyond(curve, sides[curve.size])
        proposed.append(NextRuns(size=key, etas=beyond, runs=seeds, code="edge"))
        etas = tuple(sorted((*_near(curve), *beyond)))
    if grid.seeds < 2 and not grid.noise:
        # One run more: beside the one that is there it shows the noise.
        proposed.append(NextRuns(size=key, etas=_near(curve), runs=1, code="one_seed"))
    for times in (2, 4):
        larger = {name: times * value for name, value in key.items()}
        proposed.append(NextRuns(size=larger, etas=etas, runs=seeds, code="sizes"))
    return tuple(proposed)


def next_runs_of(
    grid: Grid,
    verdict: Verdict,
    fits: Mapping[LadderSize, CurveFit | None],
    rule: LadderRule,
    sides: Mapping[LadderSize, int],
) -> tuple[NextRuns, ...]:
    """The cells that would settle an open answer, by the verdict's advice; none if settled."""
    # A ladder that fails is settled by that, whatever is open about a target.
    target = verdict.target
    open_target = target is not None and target.answer == "cannot say yet"
    if verdict.answer == "fails" or (verdict.answer == "holds" and not open_target):
        return ()
    # Where the noise is known one run a cell does, as in the table.
    axis, seeds = grid.axis, rule.seeds if grid.noise else max(2, rule.seeds)
    curves, proposed = {curve.size: curve for curve in grid.curves}, list[NextRuns]()

    def more(
        size: LadderSize, etas: tuple[float, ...], code: NextReason, runs: int = seeds
    ) -> None:
        proposed.append(NextRuns(size=_key(size, axis), etas=etas, runs=runs, code=code))

    for size, side in sides.items():
        more(size, _beyond(curves[size], side), "edge")
    for size, fit in fits.items():
        if fit is not None and fit.noise_unknown:
            more(size, _near(curves[size]), "no_noise", 1)
    # Ends and noise first: what else is advised rests on curves that have both.
    if proposed:
        return tuple(proposed)
    advice = verdict.advice
    for size, etas in advice.etas.items():
        more(size, tuple(etas), "past_end")
    if needed := advice.needed if advice.seeds is not None else {}:
        # As many as the size that needs least: the base is no noisier than any.
        least = min(needed.values())
        for s, c in curves.items():
            if s in needed or s == grid.base:
                extra = max(needed.get(s, 0), least) - rule.seeds
                more(s, _near(c, NOISE_RADIUS), "seeds", extra)
    if proposed:
        return tuple(proposed)
    # Of several sizes the largest stands for one beyond: its curve lies nearest.
    widest = curves[max(curves, key=lambda size: (getattr(size, axis, 0), size))]
    for asked in (advice, target.advice if target else Advice()):
        etas = _near(widest, NOISE_RADIUS)
        proposed += [
            NextRuns(size={axis: size}, etas=etas, runs=seeds, code="longer_ladder")
            for size in asked.ladder
            if size not in {getattr(s, axis) for s in curves}
        ]
        for s, c in curves.items():
            if "seeds" in asked.settings:
                extra = max(1, int(asked.settings["seeds"]) - rule.seeds)
                more(s, _near(c, NOISE_RADIUS), "errors", extra)
            if "step" in asked.settings:
                more(s, tuple((a + b) / 2 for a, b in pairwise(_near(c))), "finer")
            if asked.settings.keys() & {"span", "extend"}:
                more(s, _beyond(c, -1), "longer_curves")
                more(s, _beyond(c, 1), "longer_curves")
    return tuple(proposed)
