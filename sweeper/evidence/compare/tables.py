"""Studies compared: tables, sentences, the figure, and the page that shows all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.evidence.compare import speed
from sweeper.evidence.compare.ranking import Ranking
from sweeper.evidence.compare.speed import SpeedUp
from sweeper.evidence.compare.studies import Candidate, Standing, StudyComparison
from sweeper.report.drawing import BESIDE, DASHED, DOTTED, MARKERS, STYLE
from sweeper.stats.estimate import Estimate
from sweeper.study.cost import Cost, cost_table
from sweeper.table import Cell, Column, Table, number, within

SHOWN_OCTAVES = (-2.0, -1.0, 1.0, 2.0)
COLORS = colormaps["tab10"]
REACH = 1.0
"""The loss axis ends this many times the range of the re-tuned losses above their highest."""


def tables(
    comparison: StudyComparison,
    parameterizations: Mapping[str, str],
    costs: Mapping[str, tuple[Cost, Cost]],
) -> list[Table]:
    """Tables of places, losses over width, robustness and cost.

    By the name of a study: its parameterization, and the `costs` of its tuning and its validation.
    """
    return [
        _places(comparison, parameterizations),
        _widths(comparison),
        _robustness(comparison),
        _costs(comparison, costs),
    ]


STUDY = Column("study", left=True)


def _places(comparison: StudyComparison, parameterizations: Mapping[str, str]) -> Table:
    table = Table(
        f"Ranked at {_compute(comparison)} of one run, {comparison.seeds} seeds",
        [
            STUDY,
            Column("parameterization", left=True, importance=0),
            Column("place"),
            Column("loss", form=".4f", half=True),
            Column("above first", form=".4f", half=True),
            Column("loss re-tuned", form=".4f", importance=2, half=True),
            Column("place re-tuned", importance=1),
        ],
        legend=[
            "Loss: nats at the transferred eta; above first: seed by seed; re-tuned: at the best "
            "eta. A place is a range where the seeds do not decide."
        ],
    )
    retuned = {standing.name: standing for standing in comparison.by_retuned}
    for standing in comparison.by_transferred:
        other = retuned[standing.name]
        # Its distance to itself is 0 without an interval: nothing to show.
        is_first = standing is comparison.by_transferred[0]
        table.add(
            standing.name,
            parameterizations[standing.name],
            place(standing),
            within_or_diverged(standing.loss),
            None if is_first else within_or_diverged(standing.gap),
            within_or_diverged(other.loss),
            place(other),
        )
    return table


def _compute(comparison: StudyComparison) -> str:
    if comparison.flops_known:
        return f"{comparison.flops:.2e} FLOPs"
    return f"{comparison.flops:.2e} width² x depth x tokens"


def _widths(comparison: StudyComparison) -> Table:
    table = Table(
        "Loss over width",
        [
            STUDY,
            Column("width"),
            Column("transferred", form=".4f", half=True),
            Column("re-tuned", form=".4f", importance=1, half=True),
            Column("lost by transfer", form=".4f", half=True),
            Column("optimum log2 eta", form=".2f", importance=0, half=True),
        ],
        remarks=[f"{each.name}: {law_text(each)}" for each in comparison.candidates],
    )
    for candidate in comparison.candidates:
        for width in candidate.widths:
            retuned = within_or_diverged(width.retuned)
            at_end = " (end of curve)" if width.at_end else ""
            table.add(
                candidate.name,
                width.width,
                within_or_diverged(width.transferred),
                Cell(retuned.value, retuned.text + at_end),
                within_or_diverged(width.regret),
                width.optimum_log2,
            )
        table.end_section()
    return table


def law_text(candidate: Candidate) -> str:
    """The loss over the width, fitted."""
    curve = candidate.curve
    if curve is None:
        return "one width shows no loss over width"
    slope = curve.per_doubling
    change = f"{slope.value:+.4f} [{slope.low:+.4f}, {slope.high:+.4f}]"
    text = f"a doubling of the width changes the re-tuned loss by {change} nats"
    if not math.isfinite(curve.exponent.value):
        return text
    # An open interval: the exponent is at an end of those that were tried, and the floor goes with
    # it.
    if not (math.isfinite(curve.exponent.high) and math.isfinite(curve.floor.low)):
        return f"{text}; these widths do not tell a power law's floor and exponent"
    return (
        f"{text}; loss = {curve.floor.value:.3f} [{curve.floor.low:.3f}, {curve.floor.high:.3f}] + "
        f"{curve.amplitude:.3g} width^-{curve.exponent.value:.2f} "
        f"[{curve.exponent.low:.2f}, {curve.exponent.high:.2f}]"
    )


def _robustness(comparison: StudyComparison) -> Table:
    columns = [STUDY, Column("width")]
    for octaves in SHOWN_OCTAVES:
        outer = 0 if abs(octaves) > 1 else None
        columns.append(Column(f"eta x {2.0**octaves:g}", form=".4f", importance=outer, half=True))
    table = Table(
        "Robustness: nats lost by octaves from the best eta",
        columns,
        legend=["≥: the curve was not measured so far; the loss of its last point."],
    )
    for candidate in comparison.candidates:
        robust = candidate.robustness
        losses = (bounded(loss) for loss in robust if loss.octaves in SHOWN_OCTAVES)
        table.add(candidate.name, candidate.robust_width, *losses)
    return table


def _costs(comparison: StudyComparison, costs: Mapping[str, tuple[Cost, Cost]]) -> Table:
    rows = []
    for name, (tuning, validation) in costs.items():
        share = f"{tuning.flops / comparison.flops:.1%}"
        rows += [((name, "tuning", share), tuning), ((name, "validation", ""), validation)]
    title = "Cost" if comparison.flops_known else "Cost: FLOPs not known, width² x depth x tokens"
    table = cost_table(title, ["study", "of", "share of a run"], rows)
    table.legend = [
        "Tuning: all trials of the search. Share of a run: its FLOPs over those of the run that is "
        "compared. Validation: the ladders of a validation. Time: of the trials on their devices."
    ]
    return table


def speed_table(speed_ups: Sequence[SpeedUp]) -> Table:
    """A row a width: how much compute the others need for the best one's loss."""
    table = Table(
        "Compute for the same loss",
        [
            STUDY,
            Column("against", left=True),
            Column("width"),
            Column("", left=True),
            Column("times the compute", left=True, half=True),
        ],
        legend=[
            "How many times its own compute the other study would need for the first one's loss; "
            "above 1 the first is cheaper. Believed up to "
            f"{speed.REACH:g} times the compute of the runs that there are."
        ],
    )
    for speed_up in speed_ups:
        where = "predicted" if speed_up.predicted else "measured"
        cell = Cell(speed_up.factor, speed_up.said)
        table.add(speed_up.study, speed_up.against, speed_up.width, where, cell)
    return table


def place(standing: Standing) -> str:
    """1, or 1-3 where the seeds do not tell."""
    if standing.first == standing.last:
        return str(standing.first)
    return f"{standing.first}-{standing.last}"


def within_or_diverged(estimate: Estimate) -> Cell:
    """A value with the half of its interval; alone where that is open."""
    if math.isfinite(estimate.value) and math.isfinite(estimate.high):
        return Cell(estimate, within(estimate, ".4f"))
    return Cell(estimate, number(estimate.value))


def bounded(estimate: Estimate) -> Cell:
    """A loss above the least; with ≥ where it is only a bound."""
    is_bound = math.isfinite(estimate.value) and math.isinf(estimate.high)
    return Cell(estimate, f"≥{estimate.value:.4f}") if is_bound else within_or_diverged(estimate)


def findings(comparison: StudyComparison) -> list[str]:
    """What was found, in sentences."""
    lines = []
    for start, standings in (
        ("At the transferred eta", comparison.by_transferred),
        ("Each at its re-tuned eta", comparison.by_retuned),
    ):
        lines.append(f"{start}: {_winner(standings)}")
    return lines


def _winner(standings: Sequence[Standing]) -> str:
    leader, *others = standings
    # The leader's place is a range where the seeds do not tell it from the next ones.
    if leader.last > 1:
        tied = [s.name for s in standings if s.first == 1]
        worse = [s.name for s in standings if s.first > 1]
        last = f"; {' and '.join(worse)}: worse than at least one of them" if worse else ""
        return f"cannot say which of {', '.join(tied)} is the best{last}."
    nearest = others[0]
    if not math.isfinite(nearest.gap.value):
        return f"{leader.name} is the best; {nearest.name} diverged."
    return f"{leader.name} is the best, {_gap_text(nearest.gap)} nats below {nearest.name}."


def ranking_table(ranking: Ranking, parameterizations: Mapping[str, str], width: int) -> Table:
    """Studies at their optima at one width, best first, by the name of their parameterization."""
    table = Table(
        f"Ranked at width {width}, each study at its optimum",
        [
            STUDY,
            Column("parameterization", left=True, importance=0),
            Column("seeds"),
            Column("diverged", importance=1),
            Column("loss", form=".4f"),
            Column("above first", form=".4f"),
            Column("answer", left=True),
        ],
        legend=[
            "Loss: the mean in nats, of the runs that did not diverge. Above first: seed by seed, "
            "with an interval that allows for all looks and pairs."
        ],
    )
    decided = ranking.outcome is not None and ranking.outcome.ended == "decided"
    for place in ranking.places:
        first = place is ranking.places[0]
        said = "worse" if place.out else "best" if first and decided else "open"
        if ranking.outcome is not None and ranking.outcome.ended == "alike" and not place.out:
            said = "alike"
        finite = math.isfinite(place.gap.low) and math.isfinite(place.gap.high)
        gap = Cell(place.gap, _gap_text(place.gap) if finite else number(place.gap.value))
        kind = parameterizations[place.name]
        row = (
            place.name,
            kind,
            place.seeds,
            place.diverged,
            place.loss,
            None if first else gap,
            said,
        )
        table.add(*row)
    return table


def ranked_sentence(ranking: Ranking) -> str:
    """Which is the best, or that it cannot be said."""
    outcome, places = ranking.outcome, ranking.places
    left = " or ".join(ranking.left)
    if outcome is None or outcome.ended in ("stuck", "budget", "hopeless"):
        return f"Cannot say yet whether {left} is the best."
    if outcome.ended == "alike":
        return f"{' and '.join(ranking.left)} are equally good."
    leader, *others = places
    # Who dropped out early was measured with fewer seeds, and its gap is above the first of then.
    nearest = min(others, key=lambda place: place.loss)
    if not math.isfinite(nearest.gap.value):
        return f"{leader.name} is the best; {nearest.name} diverged."
    return f"{leader.name} is the best, {_gap_text(nearest.gap)} nats below {nearest.name}."


def _gap_text(gap: Estimate) -> str:
    return f"{gap.value:.4f} [{gap.low:.4f}, {gap.high:.4f}]"


@rc_context(STYLE)
def comparison_figure(comparison: StudyComparison) -> Figure:
    """The loss over the width, transferred and re-tuned."""
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    losses = figure.subplots()
    for index, candidate in enumerate(comparison.candidates):
        aside = index - (len(comparison.candidates) - 1) / 2
        _draw_losses(losses, candidate, index, aside)
    _finish_losses(losses, comparison)
    handles, labels = losses.get_legend_handles_labels()
    figure.legend(handles=handles, labels=labels, **BESIDE)
    return figure


def _look(index: int) -> dict[str, Any]:
    return {"color": COLORS(index % 10), "marker": MARKERS[index % len(MARKERS)], "markersize": 4}


def _draw_losses(ax: Axes, candidate: Candidate, index: int, aside: float) -> None:
    """Solid: transferred; rings and dashed: re-tuned; dotted: the fitted law."""
    look = _look(index) | {"capsize": 2.5, "linewidth": 1.2}
    # Each study a little aside of the others, by octaves: the axis is logarithmic.
    places = [loss.width * 2 ** (0.06 * aside) for loss in candidate.widths]
    _bars(ax, places, [loss.transferred for loss in candidate.widths], label=candidate.name, **look)
    # A ring, so that both are seen where they agree.
    hollow = look | {"markerfacecolor": "none", "markersize": 8, "linestyle": DASHED}
    _bars(ax, places, [loss.retuned for loss in candidate.widths], **hollow)
    if candidate.curve is not None and math.isfinite(candidate.curve.exponent.value):
        widths = np.geomspace(places[0], places[-1], 50)
        line = {"color": look["color"], "linewidth": 1, "linestyle": DOTTED}
        ax.plot(widths, candidate.curve.at(widths), **line)


def _bars(ax: Axes, places: Sequence[float], estimates: Sequence[Estimate], **look: Any) -> None:
    """Values with their intervals; what is not finite is left out, as is an open interval."""
    pairs = zip(places, estimates, strict=True)
    shown = [(x, estimate) for x, estimate in pairs if math.isfinite(estimate.value)]
    # matplotlib wants lengths below and above, not ends.
    bars = [[_side(e.value - e.low) for _, e in shown], [_side(e.high - e.value) for _, e in shown]]
    ax.errorbar([x for x, _ in shown], [e.value for _, e in shown], yerr=bars, **look)


def _side(length: float) -> float:
    return length if math.isfinite(length) else 0.0


def _finish_losses(ax: Axes, comparison: StudyComparison) -> None:
    """Scale and name the axes.

    The loss axis shows all re-tuned losses, and the transferred ones as far as they are near: one
    study whose transfer fails must not squash the others.
    """
    widths = sorted({loss.width for each in comparison.candidates for loss in each.widths})
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.minorticks_off()
    ends = chain.from_iterable(
        (loss.retuned.value, loss.retuned.low, loss.retuned.high)
        for candidate in comparison.candidates
        for loss in candidate.widths
    )
    finite = [value for value in ends if math.isfinite(value)]
    if finite:
        low, high = min(finite), max(finite)
        room = 0.06 * (high - low)
        top = min(ax.get_ylim()[1], high + REACH * (high - low))
        ax.set_ylim(low - room, max(top, high + room))
    ax.set(xlabel="width", ylabel="loss (nats)")
    ax.set_title("Solid: transferred η. Dashed: re-tuned. Dotted: law")
