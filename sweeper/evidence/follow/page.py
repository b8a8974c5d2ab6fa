"""What people see of a run that is followed: sentences, a table, the figure, the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.errors import Keyword, Text
from sweeper.evidence.follow.decision import (
    ABOVE,
    BELOW,
    DIVERGED,
    GAP_INTERVALS,
    ON,
    RATE,
    SILENT,
    SPIKE,
    SPIKE_SHARE,
    Hint,
    Seen,
    Watch,
)
from sweeper.evidence.follow.outcome import RunOutcome, ledger_line
from sweeper.evidence.follow.verb import FollowAnswer
from sweeper.evidence.predict.decision import UNDECIDED, Prediction
from sweeper.evidence.predict.earlier import Expectation
from sweeper.records import to_json
from sweeper.report.answer import Drawing, Item, Report, Section, Sentence, Shown, rests_on
from sweeper.report.drawing import DASHED, FAINT, INK, LINE_COLOR, STRIP, STYLE, legend_below
from sweeper.report.page import paged
from sweeper.schedule import OWN
from sweeper.stats.power_law import Array
from sweeper.table import Cell, Column, Table

if TYPE_CHECKING:
    from sweeper.stats.estimate import Estimate

SICK = "#b2342b"
RELOAD = 30.0
"""Seconds until the page of a run that goes on is loaded anew."""
LAST = 10
"""Events on the page."""
MOST_DOTS = 40
"""Readings up to which each is a dot."""


def shown(answer: FollowAnswer, *, verbose: bool = False) -> Shown:
    """Where the run stands, what usually causes that, and its page."""
    seen, watch = answer.seen, answer.watch
    figure = follow_figure(watch)
    return paged(
        follow_report(watch, figure, _unchecked(watch, reads_rate=answer.reads_rate), answer.miss),
        answer.folder,
        "follow",
        {**to_json(seen), "outcome": to_json(answer.miss)},
        drawn={"follow": figure},
        places=answer.places,
        # The page loads itself anew while the run goes on.
        live=RELOAD * (not seen.ended),
    )


def looked(answer: FollowAnswer, *, live: bool) -> Sequence[Item]:
    """What a live view shows, its page written anew; lines have the answer alone."""
    made = shown(answer)
    return [*made.items, Sentence(made.answer)] if live else [Sentence(made.answer)]


def _unchecked(watch: Watch, *, reads_rate: bool) -> list[Text]:
    """What an answer rests on that was not checked."""
    notes, source = list[Text](), Keyword("lr", "SOURCE")
    if watch.band.schedule == OWN:
        known = (
            "the ladder's schedule is its script's own, and not known: the run's is taken to be "
            f"the same over its {watch.steps:,} steps"
        )
        notes.append((known, "; ", source, " cannot check it") if reads_rate else (known,))
    elif not reads_rate:
        taken = (
            f"the run's schedule is taken to be the ladder's, {watch.band.schedule} over "
            f"{watch.steps:,} steps; "
        )
        notes.append((taken, source, " checks it"))
    if not watch.band.collapse.good:
        wide = "the ladder's curves do not quite fall on one another: the band is as wide as that"
        notes.append((wide,))
    if watch.prediction.reasons:
        reason = watch.prediction.reasons[0]
        notes.append((f"the prediction itself cannot say yet: {reason}",))
    return notes


def said_of(seen: Seen) -> str:
    """The answer in a sentence or two."""
    where = f"step {seen.step:,} of {seen.steps:,}"
    since = f" since about step {seen.since:,}" if seen.since is not None else ""
    match seen.state:
        case "not enough yet":
            return f"Not enough yet at {where}: the test begins behind the warm-up."
        case "on the band":
            unsaid = ", which the prediction itself cannot be sure of yet" * bool(seen.reasons)
            head = f"On the band at {where}{unsaid}."
        case "above" | "below":
            head = (
                f"{seen.state.capitalize()} the band{since}, now {_percent(seen.gap)} at {where}."
            )
        case "spike":
            head = f"In a spike{since}, at {where}."
        case "spikes":
            head = f"Spikes, more of them than a run on course has, since step {seen.since:,}."
        case "diverged":
            return f"Diverged{since}, at {where}."
        case "no loss":
            return f"No loss since step {seen.since:,}, though the log goes on."
        case "rate jumped":
            jump = next(event.text for event in seen.events if event.kind == RATE)
            head = f"Off the ladder{since}: {jump}, at {where}."
        case _:
            return f"Cannot say at {where}."
    return f"{head} {_end(seen)}"


def _end(seen: Seen) -> str:
    said, there = seen.predicted, seen.forecast
    beside = f"predicted {said.value:.4f} ({said.low:.4f} to {said.high:.4f})"
    if seen.end is not None:
        text = f"It ended at {seen.end:.4f}; {beside}"
    else:
        within = f"{there.low:.4f} to {there.high:.4f}"
        text = f"Forecast of its end: {there.value:.4f} ({within}); {beside}"
    return f"{text}; {compute_text(seen)}."


def compute_text(seen: Seen) -> str:
    """What the end is worth in compute, with its interval before the end; a bound as a bound."""
    value, low, high = seen.compute.value, seen.compute.low, seen.compute.high
    if not math.isfinite(value):
        return "in compute not known"
    least, most = seen.reach
    if value >= most or value <= least:
        bound = "at least" if value >= most else "at most"
        return f"that is worth {bound} {value:.2g} times the run's compute"
    ends = (
        "at most " * (low <= least) + f"{low:.2g}",
        "at least " * (high >= most) + f"{high:.2g}",
    )
    within = f" ({ends[0]} to {ends[1]})" if high > low else ""
    # Whether it is more or less than the run's is open there: no word says either.
    if low < 1 < high:
        return f"in compute that is {value:.2g} times the run's{within}"
    return f"that is worth {value:.2g} times the run's compute{within}"


def hint_lines(seen: Seen) -> list[str]:
    """What usually causes such a picture."""
    return [f"{_sure(hint)}: {hint.text}." for hint in seen.hints]


def _sure(hint: Hint) -> str:
    if hint.share >= 0.9:
        return f"Looks like {hint.name}"
    return f"May be {hint.name} ({hint.share:.0%} of the evidence)".replace("%", " %")


def _percent(share: float) -> str:
    return f"{100 * abs(share):.1f} % {'above' if share > 0 else 'below'} its middle"


def code_of(seen: Seen) -> str:
    """Where the run is, as the answer to whether it holds its course."""
    if seen.state == ON and seen.reasons:
        return UNDECIDED  # to be where nothing was said is no course
    return "fails" if seen.off else "holds" if seen.state == ON else seen.state


def follow_table(seen: Seen) -> Table:
    """Where the run stands, a row a fact."""
    # The answer says what the end is worth, too: what it stands beside is the first to go.
    worth = Column("worth", left=True, importance=0)
    table = Table("", [Column("", left=True), Column("loss", left=True), worth])

    def row(name: str, of: Estimate, more: str = "") -> None:
        table.add(name, Cell(of.value, f"{of.value:.4f} ({of.low:.4f} to {of.high:.4f})"), more)

    row("predicted end", seen.predicted)
    if seen.state in (DIVERGED, SILENT):
        why = "it diverged" if seen.state == DIVERGED else "there is no loss"
        table.add("forecast of the end", f"none: {why}", "")
    else:
        row("forecast of the end", seen.forecast, compute_text(seen))
    # An alarm stays, whatever the evidence is later.
    evidence = "alarm" if seen.state in (ABOVE, BELOW) else "no alarm"
    share = f"{math.exp(min(seen.evidence, 700.0)):.3g} of {math.exp(seen.alarm_at):.3g}"
    table.add("evidence of a change", Cell(seen.evidence, f"{share}: {evidence}"), "")
    return table


@rc_context(STYLE)
def follow_figure(watch: Watch) -> Figure:
    """Top: the run in its band. Bottom: the forecast of the end as the run went on."""
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    seen, sequence = watch.seen, watch.sequence
    count = len(watch.band)
    middles = (np.arange(count) + 0.5) / count * watch.steps
    deviation = np.sqrt(np.diag(sequence.smooth) + sequence.white + sequence.rough)
    low, high = (np.exp(sequence.mean + sign * 1.96 * deviation) for sign in (-1, 1))
    top.fill_between(middles, low, high, color=LINE_COLOR, alpha=0.18, linewidth=0, label="band")
    top.plot(middles, np.exp(sequence.mean), color=LINE_COLOR, linewidth=0.8, linestyle=DASHED)
    color = SICK if seen.off else INK
    places, losses, alone = _line_of(watch)
    dots = {"marker": ".", "markersize": 4, "markevery": alone}
    top.plot(places, losses, color=color, linewidth=1.1, label="the run", **dots)
    # A run begins far above its band, which would be pressed flat.
    behind = losses[places >= 2 * watch.steps / count]
    shown = np.concatenate([low[sequence.first :], high[sequence.first :], behind])
    shown = shown[np.isfinite(shown)]
    room = 0.05 * (shown.max() - shown.min())
    top.set_ylim(shown.min() - room, shown.max() + room)
    top.set(ylabel="loss")
    if watch.band.warmup:
        for ax in (top, bottom):
            ax.axvspan(0, sequence.first / count * watch.steps, color=STRIP, zorder=0)
    for event in seen.events:
        if event.kind == SPIKE:
            top.axvline(event.step, color=FAINT, linewidth=0.6, ymin=0.94)
    if seen.off and seen.since is not None:
        for ax in (top, bottom):
            ax.axvline(seen.since, color=SICK, linewidth=0.9, linestyle=DASHED)
        top.annotate(
            f"since about step {seen.since:,}",
            (seen.since, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=SICK,
        )
    said = seen.predicted
    bottom.axhspan(said.low, said.high, color=LINE_COLOR, alpha=0.18, linewidth=0)
    bottom.axhline(said.value, color=LINE_COLOR, linewidth=0.8, linestyle=DASHED)
    if watch.forecasts:
        steps = [step for step, _ in watch.forecasts]
        ends: list[Any] = [
            [getattr(of, end) for _, of in watch.forecasts] for end in ("low", "value", "high")
        ]
        bottom.fill_between(steps, ends[0], ends[2], color=color, alpha=0.25, linewidth=0)
        bottom.plot(steps, ends[1], color=color, linewidth=1.1)
    bottom.set(xlabel="step", ylabel="end, as forecast", xlim=(0, watch.steps))
    legend_below(figure, top.get_legend_handles_labels()[0])
    return figure


def _line_of(watch: Watch) -> tuple[Array, Array, list[int]]:
    """Steps and losses of the run's line, nan where it breaks, and the places of its dots.

    A log that is rarer than the band's stretches is joined: its line breaks where more is missing
    than is usual between its readings. What has no neighbour is a dot, and so is all of a rare log.
    """
    known = [stretch for stretch in watch.stretches if stretch.count]
    apart = np.diff([stretch.index for stretch in known])
    longest = GAP_INTERVALS * float(np.median(apart)) if len(apart) else math.inf
    # Beside a break of a single stretch the dense line of a whole log breaks, too.
    breaks = np.flatnonzero(apart > (longest if longest > GAP_INTERVALS else 1.0)) + 1
    places = np.array([stretch.places / stretch.count + 0.5 for stretch in known])
    losses = np.array([stretch.total / stretch.count for stretch in known])
    places, losses = (np.insert(values, breaks, np.nan) for values in (places, losses))
    bounded = np.isnan(np.concatenate([[np.nan], losses, [np.nan]]))
    rare = len(known) <= MOST_DOTS
    alone = np.isfinite(losses) & (rare | (bounded[:-2] & bounded[2:]))
    return places, losses, np.flatnonzero(alone).tolist()


def events_table(seen: Seen) -> Table:
    """The last events."""
    table = Table(
        "Events", [Column("steps", left=True), Column("event", left=True), Column("", left=True)]
    )
    for event in reversed(seen.events[-LAST:]):
        steps = f"{event.step:,}"
        steps += f" to {event.until:,}" if event.until != event.step else ""
        table.add(steps, event.kind, event.text)
    return table


def follow_report(
    watch: Watch, figure: Figure, notes: Sequence[Text] = (), miss: RunOutcome | None = None
) -> Report:
    """Where the run is, in its band and by its events, and what that rests on."""
    seen, band = watch.seen, watch.band
    caption = (
        "Above: means over hundredths of the run. The band is where 95 % of runs lie that are on "
        "course: the ladder's curves, divided by their ends, times the predicted end. Below: the "
        "forecast of the end as the run went on, in the interval that was predicted before it "
        "began. The warm-up is shaded; it is not tested."
        f"{' Ticks at the upper edge: spikes.' * bool(seen.events)}"
    )
    apart = f"{band.collapse.sizes:.2%} apart by size, {band.collapse.seeds:.2%} by seed"
    held = watch.prediction
    facts = {
        "earlier runs": held.source if isinstance(held, Expectation) else "",
        "prediction": "" if isinstance(held, Expectation) else f"SHA-256 {held.sha256}",
        "the ladder": f"{band.runs} runs of {band.sizes} sizes; normalized curves lie "
        f"{apart.replace('%', ' %')}",
        "schedule": band.schedule,
        "chance of a false alarm": f"at most {math.exp(-watch.drift_at) / (1 - SPIKE_SHARE):.2g} "
        "a run",
    }
    kept = [Sentence(ledger_line(held, miss))] if miss and isinstance(held, Prediction) else []
    said = said_of(seen)
    renewed = f" This page loads itself anew every {RELOAD:g} seconds." * (not seen.ended)
    return Report(
        title="Is the run on course?",
        about=f"Step {seen.step:,} of {seen.steps:,}.{renewed}",
        answer=said,
        sections=[
            Section(
                seen.state.capitalize(),
                [Sentence(said), *(Sentence(line, listed=True) for line in hint_lines(seen))],
                is_answer=True,
                code=code_of(seen),
            ),
            Section(
                "The run in its band",
                [
                    Drawing(lambda: figure, caption=caption),
                    follow_table(seen),
                    *[events_table(seen)] * bool(seen.events),
                ],
            ),
            rests_on(facts, *kept),
        ],
        notes=notes,
    )
