"""The critical batch, where it is the whole answer or stands beside a ladder's: words, a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.errors import SHELL, spelled
from sweeper.evidence.batch.decision import FEWEST_BATCHES, CriticalBatch
from sweeper.evidence.judge.verb import CriticalAnswer
from sweeper.records import to_json
from sweeper.report.drawing import DOTTED, INK, LINE_COLOR, STRIP, STYLE, new_panels
from sweeper.report.page import paged
from sweeper.report.sections import Drawing, Report, Section, Sentence, Shown, rests_on
from sweeper.table import counted


def critical_text(critical: CriticalBatch) -> str:
    """The critical batch in a sentence."""
    batch, batches = critical.batch, critical.batches
    ran = f"batches {batches[0]} to {batches[-1]}" if batches else "no batch"
    where = f"at a loss of {critical.loss:.4g}, by {counted(critical.runs, 'run')} of {ran}"
    match critical.code:
        case "too_few":
            return (
                f"No critical batch: that takes {FEWEST_BATCHES} batches and a run more that reach "
                f"one loss, and there are {critical.runs} runs of {len(batches)}."
            )
        case "open":
            return f"The critical batch cannot be said {where}: steps scatter too much."
        case "at_least":
            return (
                f"The critical batch is at least {batch.low:.3g} {where}: larger ones still "
                "save steps nearly in proportion."
            )
        case "at_most":
            return (
                f"The critical batch is at most {batch.high:.3g} {where}: larger ones save "
                "hardly any steps."
            )
    return (
        f"The critical batch is {batch.value:.3g} ({batch.low:.3g} to {batch.high:.3g}) {where}: "
        "there it takes twice the least of both."
    )


def critical_record(answer: CriticalAnswer) -> dict[str, Any]:
    """Plain JSON, with what it says in sentences."""
    return {
        "answer": answer.critical.code,
        "critical_batch": to_json(answer.critical),
        **answer.facts,
        "sentences": [critical_text(answer.critical)],
        "notes": [spelled(note, SHELL) for note in answer.notes],
    }


def critical_shown(answer: CriticalAnswer) -> Shown:
    """The critical batch where the runs tell nothing else; its page and picture are written."""
    critical = answer.critical
    report = Report(
        title="How large a batch?",
        about="Steps and examples for one loss. Nothing was trained.",
        answer=critical_text(critical),
        sections=[replace(critical_section(critical), is_answer=True), rests_on(answer.facts)],
        notes=answer.notes,
    )
    drawn = {"critical": critical_figure(critical)}
    record = critical_record(answer)
    return paged(report, answer.folder, "critical", record, drawn=drawn, kind="verdict")


def critical_section(critical: CriticalBatch) -> Section:
    """The sentence, and the picture where there are points."""
    caption = (
        "Points: runs, by the steps that they take to one loss. Line and band: what these follow, "
        "with the 95 % of the critical batch, which is dotted and shaded."
    )
    sentence = Sentence(critical_text(critical))
    drawing = Drawing(lambda: critical_figure(critical), caption=caption)
    return Section("The critical batch", [sentence, *[drawing] * bool(critical.points)])


@rc_context(STYLE)
def critical_figure(critical: CriticalBatch) -> Figure:
    """Steps over batch as they were run, what they follow, and the critical batch."""
    figure, (ax,) = new_panels(1, 3.2, width=5.5)
    ran, steps = np.array(critical.points).T
    low, high = ran.min() / 2, ran.max() * 2
    if critical.code == "critical":
        low, high = min(low, critical.batch.low / 1.5), max(high, critical.batch.high * 1.5)
        ax.axvspan(critical.batch.low, critical.batch.high, color=STRIP, zorder=0)
        ax.axvline(critical.batch.value, color=INK, linewidth=1, linestyle=DOTTED)
    at = np.geomspace(low, high, 200)
    # An open end of the interval is drawn as far as the picture goes.
    ends = np.clip([critical.batch.low, critical.batch.high], low / 100, high * 100)
    edges = np.array([critical.steps_at(at, float(end)) for end in ends])
    ax.fill_between(at, edges.min(0), edges.max(0), color=LINE_COLOR, alpha=0.18, linewidth=0)
    line = critical.steps_at(at, critical.batch.value)
    ax.plot(at, line, color=LINE_COLOR, linewidth=1.2)
    ax.plot(ran, steps, "o", color=INK, markersize=3.5)
    ax.set(xscale="log", yscale="log", xlabel="batch (examples a step)", xlim=(low, high))
    ax.set_ylabel(f"steps to a loss of {critical.loss:.4g}")
    ax.set_ylim(min(*steps, *line) / 1.5, steps.max() * 1.5)
    return figure
