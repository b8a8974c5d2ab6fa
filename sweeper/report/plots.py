"""Figures of a study: learning-rate curves over a ladder, the search's best loss, and its lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.documents import Document, axis_verdict, ladder_curves, number, planned_value
from sweeper.report.drawing import (
    BESIDE,
    DASHED,
    DOTTED,
    FAINT,
    INK,
    LINE_COLOR,
    LOSS_LABEL,
    STAR,
    STOPPED,
    STRIP,
    STYLE,
    Points,
    draw_curve,
    draw_seeds,
    draw_strip,
    draw_tips,
    drawn_loss,
    legend_key,
    look_of,
    loss_limits,
    means_of,
    new_panels,
    off_scale,
    points_of,
    say_nothing,
    set_scale,
    shortened,
    size_verdict,
)
from sweeper.transfer.ladder import label_size


@rc_context(STYLE)
def learning_rate_figure(validation: Document, axis: str) -> Figure:
    """Loss against log2 eta, a curve a size, with the optima and the transferred eta."""
    verdict, curves = axis_verdict(validation, axis), ladder_curves(validation, axis)
    along = str(validation.get("along", "eta"))
    letter = "η" if along == "eta" else along
    figure, (ax,) = new_panels(1, 1, 3.5)
    means = [means_of(curve, along) for curve in curves]
    top = set_scale(ax, means, median)
    draw_strip(ax, top)
    handles = []
    for index, (curve, points) in enumerate(zip(curves, means, strict=True)):
        color, marker = look_of(index, len(curves))
        draw_seeds(ax, curve, color, along)
        aside = (index - (len(curves) - 1) / 2) * 0.07
        draw_curve(ax, points, top, color, marker, aside)
        draw_tips(ax, points, top, f"{axis} {label_size(curve, axis)}, log2 {letter}", aside=aside)
        optimum = _optimum(ax, size_verdict(verdict, curve), color) if verdict else ""
        label = f"{label_size(curve, axis)}{':' if verdict else ''} {optimum}"
        handles.append(legend_key(label, color=color, marker=marker, linestyle="-"))
    centre = planned_value(validation)
    if math.isfinite(centre):
        ax.axvline(centre, color=INK, linewidth=1, linestyle=DASHED, zorder=1.5)
        handles.append(legend_key(f"transferred: {centre:.2f}", color=INK, linestyle=DASHED))
    ax.set_xlabel("learning rate log2 η" if along == "eta" else f"log2 {along}", parse_math=False)
    ax.set_ylabel(LOSS_LABEL)
    answer = verdict.get("answer", "no verdict yet")
    words = axis.replace("_", " ")
    subject = "" if along == "eta" else f"of {along} "
    ax.set_title(f"Transfer {subject}over {words}: {answer}", parse_math=False)
    handles += [legend_key("optimum, 95 % interval", color=FAINT, **STAR)] if verdict else []
    handles += off_scale(means, top)
    if handles:
        title = f"{words}: optimum log2 {letter}" if verdict else words
        figure.legend(handles=handles, title=title, **BESIDE)
    return figure


@rc_context(STYLE)
def best_loss_figure(search: Document) -> Figure:
    """The best loss found against the runs spent, with the search's phases."""
    figure, (ax,) = new_panels(1, 1, 2.7)
    points = points_of(search.get("best_loss_curve"))
    runs, losses = [run for run, _ in points], [drawn_loss(loss) for _, loss in points]
    # The first runs may be very bad; what matters is how the best one was reached.
    changes = [(0.0, math.nan), *points]
    steps = [after for before, after in pairwise(changes) if after[1] != before[1]]
    is_flat = len(losses) > 1 and median(losses) == min(losses)
    bottom, top = loss_limits([steps if is_flat else points], median, reach=8.0)
    ax.set(xlim=(0, max(runs, default=1.0) * 1.02), ylim=(bottom, top))
    _phases(ax, search.get("phase_ends") or {})
    ax.step(runs, losses, where="post", color=LINE_COLOR, linewidth=1.6)
    ax.plot(runs[-1:], losses[-1:], "o", color=LINE_COLOR, markersize=4)
    draw_tips(ax, [*steps, *points[-1:]], math.inf, "best after runs")
    best = losses[-1] if losses else math.nan
    if not math.isfinite(best):
        say_nothing(ax)
    best_words = f"{best:.4f} nats after {runs[-1]:.0f} runs" if math.isfinite(best) else "none"
    ax.set(xlabel="runs spent", ylabel=f"best {LOSS_LABEL}")
    ax.set_title(f"Best loss so far: {best_words}")
    return figure


@rc_context(STYLE)
def lines_figure(search: Document) -> Figure:
    """One panel a line search: the objective against the hyperparameter, all on one loss axis."""
    again = [{**one["line"], "name": "eta, retuned"} for one in [search.get("retune")] if one]
    lines = [*(search.get("lines") or ()), *again]
    columns = min(3, max(1, len(lines)))
    rows = max(1, math.ceil(len(lines) / columns))
    figure, panels = new_panels(rows, columns, 0.9 + 1.7 * rows)
    curves = [points_of(line.get("points_log2")) for line in lines]
    top = set_scale(panels[0], curves, max)
    for ax, line, points in zip(panels, lines, curves, strict=False):
        _line(ax, line, points, top, (search.get("space_log2") or {}).get(line["name"]) or {})
    for ax in panels[max(1, len(lines)) :]:
        ax.remove()
    figure.supylabel(LOSS_LABEL, fontsize=9)
    figure.supxlabel("hyperparameter, log2", fontsize=9)
    handles = [legend_key("optimum", color=LINE_COLOR, **STAR)]
    handles.append(legend_key("default", color=FAINT, linestyle=DOTTED))
    stopped = {
        (i, float(x)) for i, line in enumerate(lines) for x in line.get("stopped_log2") or ()
    }
    left = [[p for p in points if (i, p[0]) not in stopped] for i, points in enumerate(curves)]
    handles += [legend_key("stopped early", **STOPPED)] if stopped else []
    handles += off_scale(left, top)
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _optimum(ax: Axes, size: Document, color: Any) -> str:
    """Mark a curve's optimum with its interval; the same in words."""
    estimate = size.get("optimum_log2") or {}
    value, low, high = (number(estimate.get(key)) for key in ("value", "low", "high"))
    loss = number((size.get("loss") or {}).get("value"))
    if not (math.isfinite(value) and math.isfinite(loss)):
        return "none"
    has_interval = math.isfinite(low) and math.isfinite(high)
    bar = [[max(0.0, value - low)], [max(0.0, high - value)]] if has_interval else None
    ax.errorbar(value, loss, xerr=bar, color=color, ecolor=INK, capsize=3.5, zorder=5, **STAR)
    if not has_interval:
        return f"{value:.2f}"
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _line(ax: Axes, line: Document, points: Points, top: float, space: Document) -> None:
    """One panel of `lines_figure`."""
    choices = list(line.get("choices") or ())
    given = space.get("default")
    place = float(choices.index(given)) if given in choices else math.nan
    default = place if choices else number(given)
    if math.isfinite(default):
        ax.axvline(default, color=FAINT, linewidth=1, linestyle=DOTTED, zorder=1.5)
    draw_strip(ax, top)
    stopped = {number(value) for value in line.get("stopped_log2") or ()}
    draw_curve(ax, [(x, y) for x, y in points if x not in stopped], top, LINE_COLOR, "o")
    for x in stopped:
        ax.plot(x, (top + ax.get_ylim()[1]) / 2, zorder=4, **STOPPED)
    what = f"{line['name']}{', place' if choices else ', log2'}"
    draw_tips(ax, points, top, what, stopped=stopped)
    if choices:
        texts = [shortened(str(choice), 12) for choice in choices]
        ax.set_xticks(range(len(choices)), texts, parse_math=False)
    best, loss = number(line.get("optimum_log2")), number(line.get("objective"))
    has_optimum = math.isfinite(best) and math.isfinite(loss)
    if has_optimum:
        ax.plot(best, loss, color=LINE_COLOR, zorder=5, **STAR)
    value = f"{choices[round(best)]}" if choices and has_optimum else f"{best:.4g}"
    title = f"{shortened(line['name'])}\n" + (f"optimum {value}" if has_optimum else "no optimum")
    ax.set_title(title, fontsize=8, parse_math=False)


def _phases(ax: Axes, ends: Mapping[str, object]) -> None:
    """Shade every other phase, and name them above the axes, where there is room for a name."""
    names = sorted(ends, key=lambda name: number(ends[name]))
    edges = [0.0, *(number(ends[name]) for name in names)]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    for low, high in list(pairwise(edges))[1::2]:
        ax.axvspan(low, high, facecolor=STRIP, edgecolor="none", zorder=0)
    room = [True, *(after - before > 0.12 * edges[-1] for before, after in pairwise(middles))]
    texts = [shortened(name, 16) if free else "" for name, free in zip(names, room, strict=False)]
    above = ax.secondary_xaxis("top")
    above.set_xticks(middles, texts, color=FAINT, parse_math=False)
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)
