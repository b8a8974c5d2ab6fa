"""The page of a run that is followed: what is said of it, and the run in its band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.evidence.follow.decision import DIVERGED, SILENT, Watch
from sweeper.evidence.follow.verb import FollowAnswer
from sweeper.evidence.follow.words import code_of, events_table, follow_table, said_of, unchecked
from sweeper.evidence.predict.earlier import Expectation
from sweeper.records import to_json
from sweeper.report.drawing import DASHED, INK, LINE_COLOR, STRIP, STYLE, error_bar, legend_below
from sweeper.report.page import paged
from sweeper.report.sections import Drawing, Item, Report, Section, Sentence, Shown, rests_on

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
