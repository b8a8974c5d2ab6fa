"""What is said of a run that is followed, in sentences and a table, and its page with the band."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.evidence.follow.decision import DIVERGED, ON, RATE, SILENT, Seen, Watch
from sweeper.evidence.follow.verb import FollowAnswer
from sweeper.evidence.predict.decision import UNDECIDED
from sweeper.evidence.predict.earlier import Expectation
from sweeper.records import to_json
from sweeper.report.drawing import DASHED, INK, LINE_COLOR, STRIP, STYLE, error_bar, legend_below
from sweeper.report.page import paged
from sweeper.report.sections import Drawing, Item, Report, Section, Sentence, Shown, rests_on
from sweeper.schedule import OWN
from sweeper.stats.estimate import Estimate
from sweeper.table import Cell, Column, Table


def unchecked(watch: Watch) -> list[str]:
    """What an answer rests on that was not checked."""
    taken = f"to be the ladder's, {watch.band.schedule}"
    if watch.band.schedule == OWN:
        taken = "the same: the ladder's is its script's own, and not known"
    notes = [f"the run's schedule over its {watch.steps:,} steps is taken {taken}"]
    reasons = watch.prediction.reasons[:1]
    return [*notes, *(f"the prediction itself cannot say yet: {reason}" for reason in reasons)]


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
            now = f"{100 * abs(seen.gap):.1f} % {'above' if seen.gap > 0 else 'below'} its middle"
            head = f"{seen.state.capitalize()} the band{since}, now {now} at {where}."
        case "diverged":
            return f"Diverged{since}."
        case "no loss":
            return f"No loss since step {seen.since:,}, though the log goes on."
        case "rate jumped":
            jump = next(event.text for event in seen.events if event.kind == RATE)
            head = f"Off the ladder{since}: {jump}, at {where}."
        case _:
            return f"Cannot say at {where}."
    return f"{head} {_end(seen)}"


def _loss(of: Estimate) -> str:
    return f"{of.value:.4f} ({of.low:.4f} to {of.high:.4f})"


def _end(seen: Seen) -> str:
    predicted = f"predicted {_loss(seen.predicted)}"
    if seen.end is None:
        text = f"Forecast of {seen.end_is}: {_loss(seen.forecast)}; {predicted}"
    else:
        is_inside = seen.predicted.low <= seen.end <= seen.predicted.high
        beside = f"{predicted}, {'which holds it' if is_inside else 'which it misses'}"
        mean = f"The mean of its last {seen.averaged:,} losses is {seen.end:.4f} (the last one "
        mean += f"{seen.last:.4f})"
        text = f"Its last loss is {seen.end:.4f}" if seen.averaged == 1 else mean
        text = f"{text}; {beside}"
    compute = compute_text(seen)
    return f"{text}; {compute}." if compute else f"{text}."


def compute_text(seen: Seen) -> str:
    """What the end is worth in compute, with its interval before the end; a bound as a bound."""
    value, low, high = seen.compute.value, seen.compute.low, seen.compute.high
    if not math.isfinite(value):
        return ""  # earlier runs have no law
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


def code_of(seen: Seen) -> str:
    """Where the run is, as the answer to whether it holds its course."""
    if seen.state == ON and seen.reasons:
        return UNDECIDED  # to be where nothing was said is no course
    return "fails" if seen.off else "holds" if seen.state == ON else seen.state


def follow_table(seen: Seen) -> Table:
    """Where the run stands, a row a fact."""
    # The answer says what the end is worth, too: what it stands beside is the first to go.
    worth = Column("worth", left=True)
    table = Table("", [Column("", left=True), Column("loss", left=True), worth])
    predicted, forecast = (Cell(of.value, _loss(of)) for of in (seen.predicted, seen.forecast))
    table.add(f"predicted, {seen.end_is}", predicted, "")
    if seen.state in (DIVERGED, SILENT):
        why = "it diverged" if seen.state == DIVERGED else "there is no loss"
        table.add(f"forecast, {seen.end_is}", f"none: {why}", "")
    elif seen.end is None:
        table.add(f"forecast, {seen.end_is}", forecast, compute_text(seen))
    else:
        table.add(f"measured, {seen.end_is}", Cell(seen.end, f"{seen.end:.4f}"), compute_text(seen))
    # By the sum itself, and not by the state, which may be of something that is worse or surer.
    reached = "reached" if seen.evidence >= seen.alarm_at else "not reached"
    text = f"{seen.evidence:.1f}; its alarm at {seen.alarm_at:.1f}: {reached}"
    table.add("highest CUSUM", Cell(seen.evidence, text), "")
    return table


def events_table(seen: Seen) -> Table:
    """The last events."""
    table = Table(
        "Events", [Column("steps", left=True), Column("event", left=True), Column("", left=True)]
    )
    for event in reversed(seen.events):
        steps = f"{event.step:,}"
        steps += f" to {event.until:,}" if event.until != event.step else ""
        table.add(steps, event.kind, event.text)
    return table


SICK = "#b2342b"
RELOAD = 30.0
"""Seconds until the page of a run that goes on is loaded anew."""


def presented(answer: FollowAnswer) -> Shown:
    """Where the run stands, and its page."""
    seen, watch = answer.seen, answer.watch
    figure = follow_figure(watch)
    return paged(
        follow_report(watch, figure, unchecked(watch)),
        answer.folder,
        "follow",
        to_json(seen),
        drawn={"follow": figure},
        # The page loads itself anew while the run goes on.
        live=RELOAD * (not seen.ended),
    )


def looked(answer: FollowAnswer, *, live: bool) -> Sequence[Item]:
    """What a live view shows, its page written anew; lines have the answer alone."""
    made = presented(answer)
    return [*made.items, Sentence(made.answer)] if live else [Sentence(made.answer)]


@rc_context(STYLE)
def follow_figure(watch: Watch) -> Figure:
    """The run in its band, and where it will end beside where that was predicted."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    ax, seen, course, begins = figure.subplots(), watch.seen, watch.course, watch.readings.begins
    middles, color = watch.band.middles * watch.steps, SICK if seen.off else INK
    deviation = np.sqrt(np.diag(course.smooth) + course.white + course.rough)
    low, high = (np.exp(course.mean + sign * 1.96 * deviation) for sign in (-1, 1))
    ax.fill_between(middles, low, high, color=LINE_COLOR, alpha=0.18, linewidth=0, label="band")
    ax.plot(middles, np.exp(course.mean), color=LINE_COLOR, linewidth=0.8, linestyle=DASHED)
    run = watch.readings.stretches(whole=True)
    # Of a rare log each reading is a dot.
    dot = "." if run.counts.max(initial=0) <= 1 else ""
    ax.plot(run.middles, run.losses, color=color, linewidth=1.1, label="the run", marker=dot)
    ends = {f"predicted: {seen.end_is}": (1.02, seen.predicted, LINE_COLOR)}
    if seen.state not in (DIVERGED, SILENT) and seen.end is None:
        ends[f"forecast: {seen.end_is}"] = (1.04, seen.forecast, color)
    for name, (place, end, its_color) in ends.items():
        at = place * watch.steps
        error_bar(ax, at, end, fmt=".", capsize=2, color=its_color, label=name)
    ax.axvspan(0, begins[course.first], color=STRIP, zorder=0)
    if seen.off and seen.since is not None:
        ax.axvline(seen.since, color=SICK, linewidth=0.9, linestyle=DASHED)
    # A run begins far above its band, which would be pressed flat.
    behind = run.losses[run.at >= course.first]
    drawn = np.concatenate([low[course.first :], high[course.first :], behind])
    room = 0.05 * (drawn.max() - drawn.min())
    ylim = (drawn.min() - room, drawn.max() + room)
    ax.set(ylim=ylim, xlim=(0, 1.06 * watch.steps), xlabel="step", ylabel="loss")
    legend_below(figure, ax.get_legend_handles_labels()[0])
    return figure


def follow_report(watch: Watch, figure: Figure, notes: Sequence[str] = ()) -> Report:
    """Where the run is, in its band and by its events, and what that rests on."""
    seen, band = watch.seen, watch.band
    caption = (
        "Means over stretches of the run. The band is where 95 % of runs lie that are on course: "
        "the ladder's curves, divided by their ends, times the predicted end. A run that shifts "
        "within it is told by its own losses before. Right: "
        f"{seen.end_is}, as it was predicted before the run began, and as it is forecast by the "
        "run so far. The warm-up is shaded; it is not tested."
    )
    prediction = watch.prediction
    facts = {
        "held against": prediction.source
        if isinstance(prediction, Expectation)
        else f"SHA-256 {prediction.sha256}",
        "the ladder": f"{band.runs} runs of {band.sizes} sizes",
        "schedule": band.schedule,
        "chance of a false alarm": f"at most {watch.alarm:.2g} a run",
    }
    sentence = said_of(seen)
    renewed = f" This page loads itself anew every {RELOAD:g} seconds." * (not seen.ended)
    return Report(
        title="Is the run on course?",
        about=f"Step {seen.step:,} of {seen.steps:,}.{renewed}",
        answer=sentence,
        sections=[
            Section(
                seen.state.capitalize(), [Sentence(sentence)], is_answer=True, code=code_of(seen)
            ),
            Section(
                "The run in its band",
                [
                    Drawing(lambda: figure, caption=caption),
                    follow_table(seen),
                    *[events_table(seen)] * bool(seen.events),
                ],
            ),
            rests_on(facts),
        ],
        notes=notes,
    )
