"""Which variant wins at the target: its table, the picture of fading differences, the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.errors import Text
from sweeper.evidence.compare.decision import (
    MOST_DRAWN,
    AtSize,
    DecidingRuns,
    SizePlace,
    VariantAnswer,
    Winner,
)
from sweeper.evidence.compare.differences import RUN_NOISE
from sweeper.evidence.compare.reading import VariantRuns
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.compare.verb import WinnerAnswer
from sweeper.evidence.runs.words import named_columns, roles_text
from sweeper.records import to_json
from sweeper.report.answer import Drawing, Item, Report, Section, Sentence, Shown, rests_on
from sweeper.report.drawing import (
    FAINT,
    INK,
    LINE_COLOR,
    STAR,
    STRIP,
    STYLE,
    error_bar,
    new_panels,
    shortened,
)
from sweeper.report.next import Next
from sweeper.report.page import paged
from sweeper.stats.estimate import Estimate
from sweeper.table import TONES, Cell, Column, Table, counted, listed

SIGNS = {"better": "holds", "worse": "fails"}
"""Answers by the decisions whose colours they have."""
COUNTS = {"params": "parameters"}
NOT_RUN = "not run at "


def winner_shown(answer: WinnerAnswer) -> Shown:
    """The answer in a table; its page and picture are written, but for a program that asks."""
    winner, request = answer.winner, answer.request
    document = record_of(winner, answer.runs)
    sentences = [winner_sentence(winner), rests_text(winner), *answer.runs.notes, *notes_of(winner)]
    document["found"] = [str(Sentence(each)) for each in sentences]
    # Under strict a program asks, and may ask often: nothing is written unless it says where.
    is_written = not request.strict or request.out is not None
    figure = winner_figure(winner, answer.runs) if is_written else Figure()
    made = paged(
        winner_report(winner, answer.runs, figure),
        answer.folder if is_written else None,
        "winner",
        document,
        drawn={"winner": figure},
        kind="record",
        before=(f"variants are {answer.runs.by!r}; {roles_text(answer.runs.columns)}",),
        next=training_commands(answer),
        one_line=request.strict,
    )
    if is_written:
        document["figure"] = str(made.places["figure"])
    return made


def training_commands(answer: WinnerAnswer) -> list[Next]:
    """What trains the runs that would tell most, of variants that are studies."""
    winner, studies = answer.winner, answer.studies
    width = winner.target.counts.get("width")
    roots = {folder.parent for folder in studies.values()}
    # What trains the next runs takes studies of one root, and a width that none of them has.
    if len(roots) != 1 or width is None or winner.target.octaves <= 0:
        return []
    return [
        Next(
            CompareRequest(
                names=(winner.baseline, each.variant),
                settle=True,
                to_width=round(width),
                root=next(iter(roots)),
            ),
            f"to train {_wanted(each, winner.baseline)}, and what then tells most",
        )
        for each in winner.next_runs
    ]


def _wanted(each: DecidingRuns, baseline: str) -> str:
    beside = f" and {each.of_baseline} of {baseline}" * bool(each.of_baseline)
    return f"{counted(each.runs, 'run')} of {each.variant}{beside} at {place_text(each.place)}"


def record_of(winner: Winner, runs: VariantRuns) -> dict[str, Any]:
    """The document: variants, baseline, target, and which runs would tell."""
    record: dict[str, Any] = to_json(winner)
    record["next"] = record.pop("next_runs")
    return {"answer": winner.answer, **record, "by_column": runs.by, "columns": dict(runs.columns)}


# Words.


def place_text(place: SizePlace) -> str:
    """A size by its counts: 1.2e+09 parameters, 2.4e+10 tokens."""
    parts = [
        f"{value:.4g} {COUNTS.get(role, role)}" if role != "width" else f"width {value:.0f}"
        for role, value in place.counts.items()
        if role != "flops" or len(place.counts) == 1
    ]
    return ", ".join(parts) or "the size that was run"


def winner_sentence(winner: Winner) -> str:
    """Which variants are better at the target, and which are not."""
    where = place_text(winner.target)
    by_answer: dict[str, list[str]] = {}
    for each in winner.variants:
        by_answer.setdefault(each.answer, []).append(each.name)
    parts = []
    for answer, said in (("better", "better than"), ("worse", "worse than")):
        if names := by_answer.get(answer):
            parts.append(
                f"{listed(names)} {'is' if len(names) == 1 else 'are'} {said} {winner.baseline}"
            )
    if names := by_answer.get("cannot say"):
        parts.append(f"cannot say of {listed(names)}")
    text = "; ".join(parts)
    return f"At {where}: {text}."


def rests_text(winner: Winner) -> str:
    """The noise and where it is from, and what differences do with size."""
    unit = winner.unit
    prior = (
        "told by its seeds"
        if winner.by == "seeds"
        else f"no seeds are told apart: learned around the prior of tuned runs, {RUN_NOISE:g}"
    )
    fades = f"{1 - 2**-winner.fading:.0%}".replace("%", " %")
    return (
        f"A run's noise is {winner.noise:.2g} {unit} ({prior}). Differences shrink by {fades} an "
        f"octave of compute, and drift by {winner.drift:.2g} {unit} for the root of one."
    )


def notes_of(winner: Winner) -> list[str | Text]:
    """What stands against single answers."""
    notes: list[str | Text] = []
    if winner.baseline_bound:
        notes.append(
            f"{winner.baseline}, the baseline, {_bound_text(winner.baseline_bound)}: tuned, it may "
            "be better than it looks, and no variant is called better"
        )
    if alike := [each.name for each in winner.variants if each.same_rate]:
        notes.append(
            f"at every size the learning rate of {listed(alike)} is that of {winner.baseline}: if "
            f"{'it was' if len(alike) == 1 else 'they were'} not tuned, tuning may gain more"
        )
    # What holds of many is one note: an answer must not drown in them.
    said: dict[str, list[str]] = {}
    for each in winner.variants:
        for what in _of_variant(each):
            said.setdefault(what, []).append(each.name)
    places = [what for what in said if what.startswith(NOT_RUN)]
    if len(places) > 2:
        names = [name for what in places for name in said.pop(what)]
        said[f"not run at every size of {winner.baseline}"] = names
    return [*notes, *(f"{listed(names)}: {what}" for what, names in said.items())]


def _bound_text(bound: str) -> str:
    if bound == "end":
        return "has its best learning rate at an end of those tried"
    return "was run once where others were tuned"


def _of_variant(each: VariantAnswer) -> list[str]:
    said = []
    if each.code == "apart":
        said.append("no size leads to the baseline, and nothing is said")
    elif each.by_way:
        said.append("no size shared with the baseline, known by way of others")
    elif each.missing:
        said.append(f"{NOT_RUN}{'; '.join(map(place_text, each.missing[:3]))}")
    if each.bound:
        said.append(f"{_bound_text(each.bound)}: the loss is a bound from above")
    if each.diverged:
        decides = {
            "diverged": ", which decides it"
            if each.answer != "cannot say"
            else ", which leaves it open"
        }
        said.append(f"{counted(each.diverged, 'run')} diverged{decides.get(each.code, '')}")
    if each.code == "wall_clock" and each.answer == "worse" and each.difference.value < 0:
        said.append("the loss is lower, and costs more time than that is worth")
    return said


# Tables.


def target_table(winner: Winner) -> Table:
    """A row a variant, in the order of their places."""
    clocked = any(math.isfinite(each.wall_clock.value) for each in winner.variants)
    computed = any(math.isfinite(each.compute.value) for each in winner.variants)
    form = _form(each.difference for each in winner.variants)
    table = Table(
        f"At {place_text(winner.target)}, beside {winner.baseline}",
        [
            Column("variant", left=True),
            Column("answer", left=True),
            Column("difference", unit=winner.unit, form=form, left=True),
            *[Column("compute", form=".3f", left=True, importance=3)] * computed,
            *[Column("wall clock", form=".3f", left=True, importance=2)] * clocked,
            Column("place", left=True, importance=1),
            Column("sizes", form="d", importance=0),
        ],
        legend=[
            f"Difference: loss less that of {shortened(winner.baseline, 20)}, {winner.unit}"
            + "; compute: the baseline needs so many times as much for the same loss" * computed
            + "; wall clock: as many times the time, which decides" * clocked
            + "."
        ],
    )
    for each in winner.variants:
        table.add(
            each.name,
            Cell(each.answer, each.answer, tone=TONES.get(SIGNS.get(each.answer, ""), "open")),
            _signed(each.difference, form),
            *[_factor(each.compute)] * computed,
            *[_factor(each.wall_clock)] * clocked,
            f"{each.first}" if each.first == each.last else f"{each.first}-{each.last}",
            len(each.sizes),
        )
    return table


def sizes_table(winner: Winner) -> Table:
    """What was measured at every size, and what all sizes together say of it."""
    clocked = any(math.isfinite(at.wall_clock.value) for v in winner.variants for at in v.sizes)
    form = _form(at.difference for each in winner.variants for at in each.sizes)
    table = Table(
        "At every size that was run",
        [
            Column("variant", left=True),
            Column("size", left=True),
            Column("runs", form="d"),
            Column("difference", form=form, left=True),
            Column("by all sizes", form=form, left=True),
            Column("compute", form=".3f", left=True),
            *[Column("wall clock", form=".3f", left=True)] * clocked,
        ],
        legend=[
            "Difference: as measured, with the noise of a run. By all sizes: what the model of all "
            "variants and sizes says of this one."
        ],
        detail=True,
    )
    for each in winner.variants:
        for at in each.sizes:
            table.add(
                each.name,
                place_text(at.place),
                at.runs,
                _signed(at.difference, form),
                _signed(at.carried, form),
                _factor(at.compute),
                *[_factor(at.wall_clock)] * clocked,
                note=_cell_note(at),
                subject=each.name,
            )
        table.end_section()
    return table


def _cell_note(at: AtSize) -> str:
    diverged = f"{counted(at.diverged, 'run')} diverged" if at.diverged else ""
    return "; ".join(filter(None, (diverged, _bound_text(at.bound) if at.bound else "")))


def next_table(winner: Winner) -> Table:
    """Runs that would decide most for what they cost."""
    table = Table(
        "Runs that would tell most",
        [
            Column("variant", left=True),
            Column("at", left=True),
            Column("runs", form="d"),
            Column("of the baseline", form="d"),
            Column("chance to decide", form=".0%"),
            Column("FLOPs" if winner.flops_known else "cost, in proportion", form=".2g"),
        ],
        legend=[
            "Runs more than there are, each with another seed; of the baseline at the same size."
        ],
    )
    for each in winner.next_runs:
        runs = (each.runs, each.of_baseline, each.chance, each.flops)
        table.add(each.variant, place_text(each.place), *runs)
    return table


def _form(estimates: Iterable[Estimate]) -> str:
    """As many digits as their intervals leave meaning: losses may be 3, or 0.00001."""
    widths = sorted(w for e in estimates if 0 < (w := e.high - e.low) < math.inf)
    if not widths:
        return "+.4f"
    digits = 2 - math.floor(math.log10(widths[len(widths) // 2]))
    return f"+.{max(0, digits)}f" if digits < 8 else "+.2e"


def _signed(estimate: Estimate, form: str) -> Cell:
    if not math.isfinite(estimate.value):
        return Cell(None, "-")
    value, low, high = (format(x, form) for x in (estimate.value, estimate.low, estimate.high))
    return Cell(estimate, f"{value} ({low} to {high})")


def _factor(estimate: Estimate) -> Cell:
    if not math.isfinite(estimate.value):
        return Cell(None, "-")
    return Cell(estimate, f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})")


# The picture and the page.


@rc_context(STYLE)
def winner_figure(winner: Winner, runs: VariantRuns) -> Figure:
    """A panel a variant: its difference over compute, as measured, with its band and the target."""
    drawn = [each for each in winner.variants if each.name in winner.curves]
    figure, panels = new_panels(len(drawn), 2.5, edge=0.5, width=6.5 if len(drawn) > 1 else 5.5)
    ends: list[float] = []
    for ax, each in zip(panels, drawn, strict=False):
        ends += _draw_variant(ax, each, winner)
    if ends:
        # One that is far off must not squash the others: its line leaves the panel.
        far = 6 * sorted(map(abs, ends))[len(ends) // 2]
        low, high = max(min(ends), -far), min(max(ends), far)
        room = 0.08 * (high - low or 1.0)
        panels[0].set_ylim(low - room, high + room)
    for ax, each in zip(panels, drawn, strict=False):
        above = each.difference.value > sum(ax.get_ylim()) / 2
        color = {"better": "#2a7f3f", "worse": "#b03030"}.get(each.answer, FAINT)
        look: dict[str, Any] = {"transform": ax.transAxes, "ha": "right", "fontsize": 8}
        ax.text(0.97, 0.04 if above else 0.9, each.answer, color=color, **look)
    what = "FLOPs" if winner.flops_known else "in proportion"
    figure.supxlabel(f"compute of a run ({what})", fontsize=9)
    name = shortened(winner.baseline, 18)
    figure.supylabel(f"loss less {name}'s ({winner.unit})", fontsize=9, parse_math=False)
    return figure


def _draw_variant(ax: Axes, each: VariantAnswer, winner: Winner) -> list[float]:
    """Ends of what must be seen."""
    path, curve = winner.path, winner.curves[each.name]
    low, high = [e.low for e in curve], [e.high for e in curve]
    ax.axhline(0, color=FAINT, linewidth=0.8)
    single = len({f"{flops:.6g}" for flops in path}) < 2
    if not single:
        ax.fill_between(path, low, high, color=LINE_COLOR, alpha=0.18, linewidth=0)
        ax.plot(path, [e.value for e in curve], color=LINE_COLOR, linewidth=1.2)
        ax.set_xscale("log")
    measured = [at for at in each.sizes if math.isfinite(at.difference.value)]
    value, target = each.difference, winner.target
    if winner.target.octaves > 0.05:
        # Beyond the largest size nothing was measured: shaded.
        ax.axvspan(target.flops / 2**target.octaves, target.flops * 1.4, color=STRIP, zorder=0)
    for at in measured:
        look: dict[str, Any] = {"color": INK, "markersize": 3.5, "linewidth": 0.9, "capsize": 2}
        error_bar(ax, at.place.flops, at.difference, fmt="o", **look)
    if not single or not measured:
        error_bar(ax, target.flops, value, color=INK, linewidth=1, capsize=3, **STAR)
    ax.set_title(shortened(each.name, 24), fontsize=9, parse_math=False)
    seen = [value.low, value.high, 0.0]
    return seen + [end for at in measured for end in (at.difference.low, at.difference.high)]


def winner_report(winner: Winner, runs: VariantRuns, figure: Figure) -> Report:
    """The answer, the picture, and what it rests on."""
    caption = (
        "Points: measured, with the noise of a run. Line and band: what all variants and sizes "
        "together say, 95 %. Star: a run of each at the target. The shaded side is beyond the "
        "largest size. Below 0 the variant is better."
    )
    if len(winner.variants) > MOST_DRAWN:
        caption += f" The first {MOST_DRAWN} places are drawn."
    code = SIGNS.get(winner.answer, "cannot say yet")
    facts: Mapping[str, object] = {
        "baseline": winner.baseline,
        "target": place_text(winner.target),
        "variants are": runs.by,
        "floor of the loss": None if math.isnan(winner.floor) else f"{winner.floor:.3g}",
        "exponent over compute": None if math.isnan(winner.exponent) else f"{winner.exponent:.3g}",
        "columns": named_columns(runs.columns),
    }
    said = winner_sentence(winner)
    shown: list[Item] = [target_table(winner)]
    shown += [next_table(winner)] * bool(winner.next_runs)
    return Report(
        title="Which change wins?",
        about="A comparison of sweeper.",
        answer=said,
        sections=[
            Section("Answer", [Sentence(said)], is_answer=True, code=code),
            Section("At the target", shown),
            Section(
                "Differences over compute",
                [Drawing(lambda: figure, caption=caption, wide=True), sizes_table(winner)],
            ),
            rests_on(facts, Sentence(rests_text(winner))),
        ],
        notes=[*runs.notes, *notes_of(winner)],
    )
