"""The rate and the batch for any model and horizon, and the critical batch: tables and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.errors import SHELL, Text, as_text, spelled
from sweeper.evidence.batch.decision import FEWEST_BATCHES, FEWEST_RUNS, CriticalBatch
from sweeper.evidence.judge.verb import CriticalAnswer
from sweeper.evidence.judge.words import range_text, value_text
from sweeper.evidence.rates.decision import AtBatch, CellOptimum, RateLaw, RatePrediction
from sweeper.evidence.runs.words import reading_text, table_facts
from sweeper.records import to_json
from sweeper.report.answer import Drawing, Item, Report, Section, Sentence, Shown, rests_on
from sweeper.report.drawing import (
    DASHED,
    DOTTED,
    FAINT,
    INK,
    LINE_COLOR,
    STAR,
    STRIP,
    STYLE,
    error_bar,
    legend_key,
    look_of,
    new_panels,
)
from sweeper.report.page import paged
from sweeper.stats.estimate import Estimate
from sweeper.table import Column, Table, counted

NAMES = {"params": "parameters", "batch_size": "batch"}
ENDS = {-1: "at or below", 1: "at or above"}
MOST_LINES = 8
"""Models that are drawn."""


def rates_shown(law: RateLaw, facts: Mapping[str, Any], place: Path) -> Shown:
    """The answer with its tables; the page and the picture are written to `place`."""
    figure = rates_figure(law)
    return paged(
        rates_report(law, facts, figure),
        place,
        "rates",
        rates_record(law, facts),
        drawn={"rates": figure},
        kind="verdict",
        before=(reading_text(law.runs, facts["source"], law.columns),),
    )


def rates_record(law: RateLaw, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON, with what it says in sentences."""
    record: dict[str, Any] = to_json(law)
    found = [spelled(as_text(line), SHELL) for line in (*rates_lines(law), *rates_notes(law))]
    return {"answer": law.answer, **record, **facts, "sentences": found}


# Words.


def _name(axis: str) -> str:
    return NAMES.get(axis, axis)


def _sized(axis: str, value: float) -> str:
    return f"width {value:.0f}" if axis == "width" else f"{value:.4g} {_name(axis)}"


def _batch(estimate: Estimate) -> str:
    value, low, high = (2.0**log2 for log2 in (estimate.value, estimate.low, estimate.high))
    return f"{value:.0f} ({low:.0f} to {high:.0f})"


def rates_lines(law: RateLaw) -> list[str]:
    """What is found, the answer last."""
    if law.code == "too_few_cells":
        inside = counted(law.usable, "size")
        return [
            f"Cannot say: {inside} of {len(law.cells)} have their best inside what was run, and a "
            f"law takes {law.needed}. Runs beyond the ends that are told would add some."
        ]
    if law.code == "bounds_contradict":
        return [
            "Cannot say: the sizes whose best lies at an end of what was run contradict the law of "
            "the others. Runs beyond these ends would tell."
        ]
    lines = [_powers_text(law)]
    if law.slopes:
        below, above = (f"{slope.value:+.2f}" for slope in law.slopes)
        lines.append(
            f"With a batch below the best one the rate goes as batch^{below}, above it as "
            f"batch^{above}."
        )
    if law.prediction is None:
        return [*lines, f"{counted(law.usable, 'size')} tell the law; a target is not asked for."]
    lines += _prediction_lines(law, law.prediction)
    if law.code == "too_wide":
        octaves = law.prediction.eta.high - law.prediction.eta.low
        lines.append(
            f"Cannot say yet: the rate at the target is open by {octaves:.0f} octaves. Runs of "
            "further sizes, or nearer to it, would tell."
        )
    return lines


def _powers_text(law: RateLaw) -> str:
    said = []
    for of, what in (("eta", "rate"), ("batch", "batch")):
        powers = [power for power in law.powers if power.of == of]
        if powers:
            text = " ".join(
                f"{_name(power.axis)}^{power.exponent.value:+.2f} ({power.exponent.low:+.2f} to "
                f"{power.exponent.high:+.2f})"
                for power in powers
            )
            said.append(f"the best {what} goes as {text}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _prediction_lines(law: RateLaw, told: RatePrediction) -> list[str]:
    where = f"{_sized(law.model, told.model)} and {told.horizon:.4g} {_name(law.horizon)}"
    miss, unit = told.miss, law.unit
    lines = []
    if math.isfinite(miss.too_low.value) and math.isfinite(miss.too_high.value):
        lines.append(
            f"At the target a rate half as high loses about {miss.too_low.value:.4f} {unit}, one "
            f"twice as high {miss.too_high.value:.4f}; what the plan may miss by loses "
            f"{miss.plan.value:.4f} ({miss.plan.low:.4f} to {miss.plan.high:.4f})."
        )
    answer = f"At {where} the learning rate is {range_text(told.eta)}"
    if told.at_batch is not None:
        answer += f" at the batch of {told.at_batch:.0f}"
    if told.batch is not None:
        chosen = _chosen(told)
        answer += (
            f" at a batch of {_batch(told.batch)}"
            if chosen is None
            else f" at the batch of {chosen.batch:.0f}; the best batch is {_batch(told.batch)}"
        )
    return [*lines, f"{answer}."]


def _chosen(told: RatePrediction) -> AtBatch | None:
    """The batch that was asked for."""
    return next(
        (each for each in told.ridge if each.times_steps == 1 and each.eta == told.eta), None
    )


def rates_notes(law: RateLaw) -> list[str | Text]:
    """What stands against the answer: bounds, bends, and how far it reaches."""
    notes: list[str | Text] = []
    ends = [cell for cell in law.cells if cell.eta_end or cell.batch_end]
    if ends:
        shown = "; ".join(map(_end_text, ends[:4])) + "; ..." * (len(ends) > 4)
        notes.append(
            f"{counted(len(ends), 'size')} whose best lies at an end, a bound and no value: {shown}"
        )
    for power in law.powers:
        if power.curved and power.bend is not None:
            what = "rate" if power.of == "eta" else "batch"
            notes.append(
                f"the {what} is no power of {_name(power.axis)}: its exponent changes by "
                f"{power.bend.value:+.2f} an octave ({power.bend.low:+.2f} to "
                f"{power.bend.high:+.2f}), and beyond the runs it is less sure than it says"
            )
    if law.scatter:
        rate = law.scatter[0]
        notes.append(
            f"sizes scatter about the law by {rate.value:.2f} octaves of rate ({rate.low:.2f} to "
            f"{rate.high:.2f}), which the intervals hold"
        )
    return notes


def _end_text(cell: CellOptimum) -> str:
    said = []
    if cell.eta_end:
        said.append(f"rate {ENDS[cell.eta_end]} {value_text(cell.eta.value)}")
    if cell.batch_end and cell.batch is not None:
        said.append(f"batch {ENDS[cell.batch_end]} {2.0**cell.batch.value:.0f}")
    return f"{_cell_name(cell)}: {' and '.join(said)}"


def _cell_name(cell: CellOptimum) -> str:
    return ", ".join(_sized(axis, value) for axis, value in cell.sizes.items())


# Tables.


def rates_tables(law: RateLaw) -> list[Table]:
    """The batches that may be chosen at the target, and every size that was run."""
    tables = []
    if law.prediction is not None and law.prediction.ridge:
        tables.append(ridge_table(law, law.prediction))
    return [*tables, cells_table(law)]


def ridge_table(law: RateLaw, told: RatePrediction) -> Table:
    """A row a batch: the rate that goes with it, and what it costs."""
    chosen = _chosen(told)
    planned = f"{chosen.batch:.0f}" if chosen else f"{2.0**told.batch.value:.0f}"  # type: ignore[union-attr]
    steps = all(math.isfinite(each.steps) for each in told.ridge)
    table = Table(
        f"At {_sized(law.model, told.model)}, {told.horizon:.4g} {_name(law.horizon)}",
        [
            Column("batch", left=True),
            Column("learning rate", left=True),
            Column("loss more", unit=law.unit, form="+.4f", left=True),
            Column("steps", form=",.0f") if steps else Column("times the steps", form=".3g"),
        ],
        legend=[f"Loss more than at a batch of {planned}."],
    )
    for each in told.ridge:
        taken = each.steps if steps else each.times_steps
        table.add(f"{each.batch:.0f}", range_text(each.eta), each.loss, taken)
    return table


def cells_table(law: RateLaw) -> Table:
    """A row a size: its best rate, its best batch, its loss."""
    axes = list(law.cells[0].sizes) if law.cells else []
    batches = any(cell.batch is not None for cell in law.cells)
    table = Table(
        "The best of every size that was run",
        [
            *(Column(_name(axis), form=".4g") for axis in axes),
            Column("learning rate", left=True),
            *[Column("batch", left=True)] * batches,
            Column("loss", unit=law.unit, form=".4f"),
            Column("at an end", left=True, importance=1),
        ],
        legend=["What lies at an end of what was run is a bound, and no value."],
        detail=law.prediction is not None,
    )
    for cell in law.cells:
        ends = [name for name, end in (("rate", cell.eta_end), ("batch", cell.batch_end)) if end]
        table.add(
            *cell.sizes.values(),
            _told(cell.eta, cell.eta_end, range_text),
            *([_told(cell.batch, cell.batch_end, _batch)] * batches if cell.batch else []),
            cell.loss,
            ", ".join(ends),
        )
    return table


def _told(estimate: Estimate, end: int, text: Any) -> str:
    if not math.isfinite(estimate.value):
        return "-"
    if not end:
        return str(text(estimate))
    return f"{ENDS[end]} {str(text(estimate)).partition(' (')[0]}"


# The picture and the page.


@rc_context(STYLE)
def rates_figure(law: RateLaw) -> Figure:
    """The best rate, and the best batch, over the horizon, a line a model; a star at the target."""
    batches = any(cell.batch is not None for cell in law.cells)
    figure, panels = new_panels(1 + batches, 2.8, edge=0.5, sharey=False)
    models = sorted({cell.sizes[law.model] for cell in law.cells})
    shown = models if len(models) <= MOST_LINES else models[:: math.ceil(len(models) / MOST_LINES)]
    handles = []
    for index, model in enumerate(shown):
        color, marker = look_of(index, len(shown))
        cells = [cell for cell in law.cells if cell.sizes[law.model] == model]
        for response, ax in enumerate(panels[: 1 + batches]):
            _draw_model(ax, law, cells, response, color, marker)
        handles.append(
            legend_key(_sized(law.model, model), color=color, marker=marker, linestyle="")
        )
    if (told := law.prediction) is not None:
        for response, best in enumerate((told.eta, told.batch)):
            if best is not None:
                look = {"color": INK, "linewidth": 1, "capsize": 3, **STAR}
                error_bar(panels[response], math.log2(told.horizon), best, **look)
        handles.append(legend_key("target", color=LINE_COLOR, **STAR))
    for ax, what in zip(panels, ("learning rate", "batch"), strict=False):
        ax.set(ylabel=f"best {what} (log2)", xlabel=f"{_name(law.horizon)} (log2)")
    figure.legend(handles=handles, loc="outside right upper", fontsize=7)
    return figure


def _draw_model(
    ax: Axes, law: RateLaw, cells: Sequence[CellOptimum], response: int, color: str, marker: str
) -> None:
    """A model's optima with their intervals, bounds as arrows, and the law through them."""
    for cell in cells:
        best, end = (cell.eta, cell.eta_end) if not response else (cell.batch, cell.batch_end)
        if best is None or not math.isfinite(best.value):
            continue
        x = math.log2(cell.sizes[law.horizon])
        if end:
            ax.plot([x], [best.value], color=color, marker="^" if end > 0 else "v", markersize=5)
            continue
        low, high = (
            abs(best.value - e) if math.isfinite(e) else 0.0 for e in (best.low, best.high)
        )
        look: dict[str, Any] = {"color": color, "markersize": 3.5, "linewidth": 0.9, "capsize": 2}
        ax.errorbar([x], [best.value], [[low], [high]], fmt=marker, **look)
    # A law that has the batch as a size, too, is no line over the horizon.
    if law.law is None or law.law.sizes != 2:
        return
    horizons = [math.log2(cell.sizes[law.horizon]) for cell in cells]
    line = np.linspace(min(horizons), max(horizons), 12)
    model = math.log2(cells[0].sizes[law.model])
    place = law.law.model_of(model)
    # The line of a model that was run goes with what that model is off by.
    off = 0.0 if place is None else float(law.law.offs[:, response, place].mean())
    values = [float(law.law.middle(np.array([model, x]))[:, response].mean()) + off for x in line]
    ax.plot(line, values, color=color, linewidth=1)


def rates_report(law: RateLaw, facts: Mapping[str, Any], figure: Figure) -> Report:
    """The answer, the picture, and what it rests on."""
    code = "holds" if law.answer == "predicted" else law.answer
    caption = (
        "Points: the best of every size with its 95 % interval; triangles: bounds. Lines: the law "
        "at each model, with what that model is off by."
    )
    items: list[Item] = [Drawing(lambda: figure, caption=caption), *rates_tables(law)]
    rests = {
        **table_facts(facts["source"], facts["sha256"], facts["where"], law.columns, law.runs),
        "noise": f"{law.noise:.4g} {law.unit} a run",
        "command": facts["command"],
    }
    lines = rates_lines(law)
    said = [Sentence(line, listed=True) for line in lines]
    return Report(
        title="The rate and the batch for any size",
        about=f"A law of sweeper of {law.runs} runs. Nothing was trained.",
        answer=lines[-1],
        sections=[
            Section("The answer", said, is_answer=True, code=code),
            Section("What was measured", items),
            rests_on(rests),
        ],
        notes=[*law.notes, *rates_notes(law)],
    )


# The critical batch, where it is the whole answer or stands beside a ladder's.


def critical_lines(told: CriticalBatch) -> list[str]:
    """What steps and examples for one loss say of the batch, the answer last."""
    ran = f"batches {told.batches[0]} to {told.batches[-1]}" if told.batches else "no batch"
    where = f"at a loss of {told.loss:.4g}, by {counted(told.runs, 'run')} of {ran}"
    match told.code:
        case "too_few":
            return [
                f"No critical batch: that takes {FEWEST_BATCHES} batches and {FEWEST_RUNS} runs "
                f"that reach one loss, and there are {told.runs} of {len(told.batches)}."
            ]
        case "open":
            return [f"The critical batch cannot be said {where}: steps scatter too much."]
        case "at_least":
            return [
                f"The critical batch is at least {told.batch.low:.3g} {where}: larger ones still "
                "save steps nearly in proportion."
            ]
        case "at_most":
            return [
                f"The critical batch is at most {told.batch.high:.3g} {where}: larger ones save "
                "hardly any steps."
            ]
    return [
        f"The loss takes {_range(told.least_steps)} steps at least, and "
        f"{_range(told.least_examples)} examples at least; a run's steps scatter by "
        f"{told.error:.1%}.".replace("%", " %"),
        f"The critical batch is {_range(told.batch)} {where}: there it takes twice the least of "
        "both.",
    ]


def _range(estimate: Estimate) -> str:
    high = f"{estimate.high:.3g}" if math.isfinite(estimate.high) else "any"
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {high})"


def critical_record(answer: CriticalAnswer) -> dict[str, Any]:
    """Plain JSON, with what it says in sentences."""
    return {
        "answer": answer.critical.code,
        "critical_batch": to_json(answer.critical),
        **answer.facts,
        "sentences": critical_lines(answer.critical),
        "notes": [spelled(note, SHELL) for note in answer.notes],
    }


def critical_shown(answer: CriticalAnswer) -> Shown:
    """The critical batch where the runs tell nothing else; its page and picture are written."""
    told = answer.critical
    report = Report(
        title="How large a batch?",
        about="Steps and examples for one loss. Nothing was trained.",
        answer=" ".join(critical_lines(told)),
        sections=[replace(critical_section(told), is_answer=True), rests_on(answer.facts)],
        notes=answer.notes,
    )
    drawn = {"critical": critical_figure(told)}
    record = critical_record(answer)
    return paged(report, answer.folder, "critical", record, drawn=drawn, kind="verdict")


def critical_section(told: CriticalBatch) -> Section:
    """What is said of it, and its picture where there are points."""
    caption = (
        "Points: runs, by the steps that they take to one loss. Line and band: what steps and "
        "examples for one loss follow, with the 95 % of the critical batch. Dashed: the fewest "
        "steps, and the fewest examples. Dotted and shaded: the critical batch, where both are "
        "twice the least."
    )
    said = Sentence(" ".join(critical_lines(told)))
    drawing = Drawing(lambda: critical_figure(told), caption=caption)
    return Section("The critical batch", [said, *[drawing] * bool(told.points)])


@rc_context(STYLE)
def critical_figure(told: CriticalBatch) -> Figure:
    """Steps over batch as they were run, what they follow, and the critical batch."""
    figure, (ax,) = new_panels(1, 3.2, width=5.5)
    ran, steps = np.array(told.points).T
    whole = told.code == "critical"
    low, high = ran.min() / 2, ran.max() * 2
    if whole:
        low, high = min(low, told.batch.low / 1.5), max(high, told.batch.high * 1.5)
    at = np.geomspace(low, high, 200)
    # An open end of the interval is drawn as far as the picture goes.
    ends = max(told.batch.low, low / 100), min(told.batch.high, high * 100)
    inside = np.geomspace(*ends, 60)
    curves = np.array([told.steps_at(at, float(critical)) for critical in inside])
    ax.fill_between(at, curves.min(0), curves.max(0), color=LINE_COLOR, alpha=0.18, linewidth=0)
    ax.plot(at, told.steps_at(at, told.batch.value), color=LINE_COLOR, linewidth=1.2)
    if whole:
        ax.axvspan(told.batch.low, told.batch.high, color=STRIP, zorder=0)
        ax.axvline(told.batch.value, color=INK, linewidth=1, linestyle=DOTTED)
        look: dict[str, Any] = {"color": FAINT, "linewidth": 1, "linestyle": DASHED}
        ax.axhline(told.least_steps.value, **look)
        ax.plot(at, told.least_examples.value / at, **look)
    ax.plot(ran, steps, "o", color=INK, markersize=3.5)
    ax.set(xscale="log", yscale="log", xlabel="batch (examples a step)")
    ax.set_ylabel(f"steps to a loss of {told.loss:.4g}")
    ax.set_xlim(low, high)
    every = [*steps, told.steps_at(at, told.batch.value).min()]
    ax.set_ylim(min(every) / 1.5, max(steps) * 1.5)
    return figure
