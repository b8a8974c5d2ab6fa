"""A comparison shown: its sentences, table, picture of fading differences, page, what is next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from sweeper.errors import Text
from sweeper.evidence.compare.deciding import Deciding, DecidingEnd
from sweeper.evidence.compare.decision import TAIL, SizePlace, VariantAnswer, Winner
from sweeper.evidence.compare.reading import VariantRuns
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.compare.verb import SettledAnswer, WinnerAnswer
from sweeper.evidence.flags import columns_text
from sweeper.evidence.runs.words import roles_text
from sweeper.records import to_json
from sweeper.report import console
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
from sweeper.report.sections import Drawing, Item, Report, Section, Sentence, Shown, rests_on
from sweeper.report.sentences import failure_notes, unfinished_notes
from sweeper.stats.estimate import Estimate
from sweeper.stats.line import FLAT
from sweeper.table import TONES, Cell, Column, Table, counted, listed
from sweeper.verbs.requests import TransferRequest

COUNTS = {"params": "parameters"}
NOT_RUN = "not run at "


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
    for answer, phrase in (("better", "better than"), ("worse", "worse than")):
        if names := by_answer.get(answer):
            parts.append(
                f"{listed(names)} {'is' if len(names) == 1 else 'are'} {phrase} {winner.baseline}"
            )
    if names := by_answer.get("cannot say"):
        parts.append(f"cannot say of {listed(names)}")
    text = "; ".join(parts)
    return f"At {where}: {text}."


def rests_text(winner: Winner) -> str:
    """What intervals are of, the noise, what differences do with size, and the back-test."""
    unit = winner.unit
    prior = (
        "told by its seeds"
        if winner.by == "seeds"
        else "no seeds are told apart: learned around the prior of tuned runs, "
        f"{winner.prior_noise:.2g}"
    )
    fades = f"{1 - 2**-winner.fading:.0%}".replace("%", " %")
    # What the model gives a little more counts as 95 %.
    level = f"{100 * (1 - 2 * winner.tail * 0.05 / (2 * TAIL)):.4g} %"
    two = f"{1.96 * math.sqrt(2) * winner.noise:.2g} {unit}"
    text = (
        f"Intervals, {level}, are of the expected difference: one run of each shows it with {two} "
        f"to either side. A run's noise is {winner.noise:.2g} {unit} ({prior}). Differences shrink "
        f"by {fades} an octave of compute, and drift by {winner.drift:.2g} {unit} for the root of "
        "one."
    )
    if winner.scale == 1:
        return text
    how = "wider" if winner.scale > 1 else "narrower"
    times = winner.scale if winner.scale > 1 else 1 / winner.scale
    return f"{text} The largest size, left out, makes intervals {times:.2g} times {how}."


def notes_of(winner: Winner) -> list[str | Text]:
    """What stands against single answers."""
    notes: list[str | Text] = []
    if winner.baseline_bound:
        notes.append(
            f"{winner.baseline}, the baseline, {bound_text(winner.baseline_bound)}: tuned, it may "
            "be better than it looks, and no variant is called better"
        )
    if alike := [each.name for each in winner.variants if each.same_rate]:
        notes.append(
            f"at every size the learning rate of {listed(alike)} is that of {winner.baseline}: if "
            f"{'it was' if len(alike) == 1 else 'they were'} not tuned, tuning may gain more"
        )
    # What holds of many is one note: an answer must not drown in them.
    named: dict[str, list[str]] = {}
    for each in winner.variants:
        for what in _of_variant(each):
            named.setdefault(what, []).append(each.name)
    places = [what for what in named if what.startswith(NOT_RUN)]
    if len(places) > 2:
        names = [name for what in places for name in named.pop(what)]
        named[f"not run at every size of {winner.baseline}"] = names
    return [*notes, *(f"{listed(names)}: {what}" for what, names in named.items())]


def bound_text(bound: str) -> str:
    """Why a loss is a bound."""
    if bound == "end":
        return "has its best learning rate at an end of those tried"
    return "was run once where others were tuned"


def _of_variant(each: VariantAnswer) -> list[str]:
    notes = []
    if each.missing:
        notes.append(f"{NOT_RUN}{'; '.join(map(place_text, each.missing[:3]))}")
    if each.bound:
        notes.append(f"{bound_text(each.bound)}: the loss is a bound from above")
    if each.diverged:
        decides = {
            "diverged": ", which decides it"
            if each.answer != "cannot say"
            else ", which leaves it open"
        }
        notes.append(f"{counted(each.diverged, 'run')} diverged{decides.get(each.code, '')}")
    if each.code == "wall_clock" and each.answer == "worse" and each.loss_difference.value < 0:
        notes.append("the loss is lower, and costs more time than that is worth")
    return notes


def deciding_text(deciding: Deciding) -> str:
    """The last look in a line: what is said of each variant."""
    assert deciding.winner is not None
    answers = "; ".join(f"{each.name}: {each.answer}" for each in deciding.winner.variants)
    return f"{deciding.runs} runs now; {answers}"


def outcome_text(outcome: DecidingEnd) -> str:
    """How it ended, and by what."""
    looks = f"{outcome.looks} time{'s' * (outcome.looks != 1)}"
    spent = f"{outcome.runs} runs, looked at {looks}"
    match outcome.ended:
        case "stuck" if outcome.failed:
            return f"Not decided: runs of {listed(outcome.failed)} failed, and none stands for it"
        case "stuck":
            return f"Not decided: all runs of {listed(outcome.diverged)} diverged"
        case "decided":
            return f"Decided with {spent}"
        case "alike":
            alike = f"what is open differs by less than {100 * FLAT:g} % of the loss for sure"
            return f"Settled with {spent}: {alike}"
        case "budget":
            return f"Not decided with {spent}: the budget of {outcome.budget} runs is spent"
    return f"Not decided with {spent}, and the budget of {outcome.budget} runs would hardly do"


SENTENCES = {Deciding: deciding_text, DecidingEnd: outcome_text}
SIGNS = {"better": "holds", "worse": "fails"}
"""Answers by the decisions whose colours they have."""
MOST_DRAWN = 9


def presented(answer: WinnerAnswer | SettledAnswer) -> Shown:
    """The variants in their order, best first; page and figure are written."""
    return _settled(answer) if isinstance(answer, SettledAnswer) else winner_shown(answer)


def winner_shown(answer: WinnerAnswer) -> Shown:
    """The answer in a table; its page and picture are written, but for a program that asks."""
    winner, request = answer.winner, answer.request
    document: dict[str, Any] = {"answer": winner.answer, **to_json(winner)}
    document["next"] = document.pop("next_runs")
    document |= {"by_column": answer.runs.by, "columns": dict(answer.runs.columns)}
    sentences = [winner_sentence(winner), rests_text(winner), *answer.runs.notes, *notes_of(winner)]
    document["found"] = [str(Sentence(each)) for each in sentences]
    # Under strict a program asks, and may ask often: nothing is written unless it says where.
    is_written = not request.strict
    figure = winner_figure(winner) if is_written else Figure()
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
    winner = answer.winner
    width = round(winner.target.counts.get("width", 0))
    roots = {folder.parent for folder in answer.studies.values()}
    # What trains the next runs takes studies of one root, and a width.
    if len(roots) != 1 or not width:
        return []
    # At a width that was run seeds tell more than other widths.
    commands = []
    for each in winner.next_runs:
        names = (winner.baseline, each.variant)
        runs = f"{counted(each.runs, 'run')} of {each.variant}"
        beside = f" and {each.of_baseline} of {winner.baseline}" * bool(each.of_baseline)
        why = f"to train {runs}{beside} at {place_text(each.place)}, and what then tells most"
        request = CompareRequest(
            names=names,
            settle=True,
            to_width=width,
            root=next(iter(roots)),
        )
        commands.append(Next(request, why))
    return commands


def _settled(answer: SettledAnswer) -> Shown:
    names, outcome = (*answer.names, *answer.overrides), answer.deciding.outcome
    request = replace(answer.request, names=names, root=answer.root, detach=False, dry_run=False)
    again = Next(request, "to train them")
    notes: list[str | Text] = [*answer.notes]
    for trials in answer.unfinished:
        notes += unfinished_notes(trials)
    if answer.submitted:
        return Shown(
            notes=notes,
            answer=console.in_jobs(answer.submitted, answer.finished),
            document={"submitted": answer.submitted, "finished": answer.finished},
            next=[replace(again, why="to collect them, and go on")],
        )
    if outcome is None or answer.path is None:
        return _begins(answer, again, notes)
    notes += failure_notes(answer.failures)
    end, winner = f"{outcome_text(outcome)}.", answer.deciding.winner
    if winner is None:
        places = {"record": answer.path}
        return Shown(answer=end, notes=notes, places=places, document=answer.record, next=[again])
    of_runs = winner_shown(
        WinnerAnswer(
            request=answer.request,
            runs=answer.deciding.variant_runs(),
            winner=winner,
            folder=answer.path.parent,
        )
    )
    budget = replace(again.request, budget=2 * outcome.budget)
    first, width = winner.variants[0], answer.request.to_width or 2 * max(answer.widths)
    plan = TransferRequest(
        to_width=width,
        validate=True,
        settle=True,
        study=first.name if first.answer == "better" else winner.baseline,
        root=answer.root,
    )
    following = {
        "budget": Next(budget, "to go on with twice the budget"),
        "decided": Next(plan, "to see whether its optimum transfers"),
    }
    return replace(
        of_runs,
        before=(),
        notes=[*of_runs.notes, *notes],
        answer=f"{of_runs.answer} {end}",
        places={**of_runs.places, "record": answer.path},
        document={**of_runs.document, **answer.record},
        next=[following.get(outcome.ended)],
    )


def _begins(answer: SettledAnswer, again: Next, notes: Sequence[str | Text]) -> Shown:
    deciding = answer.deciding
    seeds = next(iter(deciding.seeds.values()))
    at = answer.widths[: len(deciding.seeds) // len(answer.names)]
    where = f"width{'s' * (len(at) > 1)} {', '.join(map(str, at))}"
    begins = f"It begins with {deciding.runs} runs at {where}, {seeds} seeds each"
    there = f"({answer.trained} of them are known)"
    cost = "{:.2g} FLOPs to begin with, {:.2g} at most".format(*answer.flops)
    return Shown(
        notes=notes,
        answer=f"{begins} {there}, and ends with {deciding.budget} at most: {cost}.",
        document={
            "widths": [*answer.widths],
            "begins": deciding.runs,
            "known": answer.trained,
            "budget": deciding.budget,
            "flops": {"begins": answer.flops[0], "most": answer.flops[1]},
        },
        next=[again],
    )


def target_table(winner: Winner) -> Table:
    """A row a variant, in the order of their places."""
    clocked = any(math.isfinite(each.wall_clock.value) for each in winner.variants)
    computed = any(math.isfinite(each.compute.value) for each in winner.variants)
    form = _form(each.loss_difference for each in winner.variants)
    table = Table(
        f"At {place_text(winner.target)}, beside {winner.baseline}",
        [
            Column("variant", left=True),
            Column("answer", left=True),
            Column("difference", unit=winner.unit, form=form, left=True),
            *[Column("compute", form=".3f", left=True)] * computed,
            *[Column("wall clock", form=".3f", left=True)] * clocked,
            Column("place", left=True),
            Column("sizes", form="d", secondary=True),
        ],
        legend=[
            f"Difference: loss less that of {shortened(winner.baseline, 20)}, {winner.unit}"
            + ", in the same time" * clocked
            + "; compute: the baseline needs so many times as much for the same loss" * computed
            + "; wall clock: as many times the time" * clocked
            + "."
        ],
    )
    for each in winner.variants:
        table.add(
            each.name,
            Cell(each.answer, each.answer, tone=TONES.get(SIGNS.get(each.answer, ""), "open")),
            _ends(each.difference, form),
            *[_ends(each.compute, ".3g")] * computed,
            *[_ends(each.wall_clock, ".3g")] * clocked,
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
            diverged = f"{counted(at.diverged, 'run')} diverged" * bool(at.diverged)
            table.add(
                each.name,
                place_text(at.place),
                at.runs,
                _ends(at.difference, form),
                _ends(at.carried, form),
                _ends(at.compute, ".3g"),
                *[_ends(at.wall_clock, ".3g")] * clocked,
                note="; ".join(filter(None, (diverged, at.bound and bound_text(at.bound)))),
                subject=each.name,
            )
        table.end_section()
    return table


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
            Column("FLOPs" if winner.flops_known else "relative cost", form=".2g"),
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
    """A format of as many digits as intervals leave meaning: losses may be 3, or 0.00001."""
    widths = sorted(w for e in estimates if 0 < (w := e.high - e.low) < math.inf)
    if not widths:
        return "+.4f"
    digits = 2 - math.floor(math.log10(widths[len(widths) // 2]))
    return f"+.{max(0, digits)}f" if digits < 8 else "+.2e"


def _ends(estimate: Estimate, form: str) -> Cell:
    if not math.isfinite(estimate.value):
        return Cell(None, "-")
    value, low, high = (format(x, form) for x in (estimate.value, estimate.low, estimate.high))
    return Cell(estimate, f"{value} ({low} to {high})")


@rc_context(STYLE)
def winner_figure(winner: Winner) -> Figure:
    """A panel a variant: its difference over compute, as measured, with its band and the target."""
    drawn = [each for each in winner.variants if math.isfinite(each.loss_difference.value)]
    drawn = drawn[:MOST_DRAWN]
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
        color = {"better": "#2a7f3f", "worse": "#b03030"}.get(each.answer, FAINT)
        ax.set_title(each.answer, loc="right", color=color, fontsize=8)
    what = "FLOPs" if winner.flops_known else "in proportion"
    figure.supxlabel(f"compute of a run ({what})", fontsize=9)
    name = shortened(winner.baseline, 18)
    figure.supylabel(f"loss less {name}'s ({winner.unit})", fontsize=9, parse_math=False)
    return figure


def _draw_variant(ax: Axes, each: VariantAnswer, winner: Winner) -> list[float]:
    value, target = each.loss_difference, winner.target
    along = {f"{at.place.flops:.6g}": (at.place.flops, at.carried) for at in each.sizes}
    along[f"{target.flops:.6g}"] = (target.flops, value)
    path, curve = zip(*sorted(along.values(), key=lambda at: at[0]), strict=True)
    # What time is worth moves the line below which the variant is better.
    even = value.value - each.difference.value
    ax.axhline(even if math.isfinite(even) else 0, color=FAINT, linewidth=0.8)
    single = len(path) < 2
    if not single:
        low, high = [e.low for e in curve], [e.high for e in curve]
        ax.fill_between(path, low, high, color=LINE_COLOR, alpha=0.18, linewidth=0)
        ax.plot(path, [e.value for e in curve], color=LINE_COLOR, linewidth=1.2)
        ax.set_xscale("log")
        # Of more than a decade its powers are labels enough.
        if path[-1] > 10 * path[0]:
            ax.xaxis.set_minor_formatter(NullFormatter())
    measured = [at for at in each.sizes if math.isfinite(at.difference.value)]
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
        "together say of the expected difference. Star: at the target; the shaded side is beyond "
        "the largest size. Below the line the variant is better."
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
        "columns": columns_text(runs.columns),
    }
    sentence = winner_sentence(winner)
    items: list[Item] = [target_table(winner)]
    items += [next_table(winner)] * bool(winner.next_runs)
    return Report(
        title="Which change wins?",
        about="A comparison of sweeper.",
        answer=sentence,
        sections=[
            Section("Answer", [Sentence(sentence)], is_answer=True, code=code),
            Section("At the target", items),
            Section(
                "Differences over compute",
                [Drawing(lambda: figure, caption=caption, wide=True), sizes_table(winner)],
            ),
            rests_on(facts, Sentence(rests_text(winner))),
        ],
        notes=[*runs.notes, *notes_of(winner)],
    )
