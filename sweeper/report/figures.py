"""Figures of a study: curves over a ladder, a search's best loss, lines and pairs, single runs."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from statistics import fmean, median

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation
from sweeper.report.drawing import (
    DASHED,
    DOTTED,
    FAINT,
    INK,
    LINE_COLOR,
    LOSS_LABEL,
    STAR,
    STOPPED,
    STYLE,
    Points,
    draw_curve,
    draw_strip,
    legend_below,
    legend_key,
    look_of,
    means_of,
    name_choices,
    new_panels,
    off_scale,
    set_scale,
    shortened,
)
from sweeper.search.strategy import Conclusion, LineResult
from sweeper.stats.ladder import label_size
from sweeper.trial import Axis, Space


@rc_context(STYLE)
def learning_rate_figure(
    validation: Validation, verdict: Verdict, loss_label: str = LOSS_LABEL
) -> Figure:
    """Loss against log2 eta, a curve a size, with the optima and the transferred eta."""
    axis, hyperparameter = verdict.axis, validation.hyperparameter
    of_eta = hyperparameter == "eta"
    letter = "η" if of_eta else hyperparameter
    curves = validation.ladder(axis)
    judged = {size.size: size for size in verdict.sizes}
    figure, (ax,) = new_panels(1, 3.5)
    means = [means_of(curve) for curve in curves]
    bands = [
        (fmean(seeds), min(seeds), max(seeds))
        for curve in curves
        for seeds in curve.losses.values()
        if seeds and math.isfinite(sum(seeds))
    ]
    top = set_scale(ax, means, median, bands)
    draw_strip(ax, top)
    handles = []
    for index, (curve, points) in enumerate(zip(curves, means, strict=True)):
        color, marker = look_of(index, len(curves))
        label = label_size(asdict(curve.size), axis)
        # The range of the seeds, as a band.
        seeds = {x: y for x, y in sorted(curve.losses.items()) if y and math.isfinite(sum(y))}
        lows, highs = map(min, seeds.values()), map(max, seeds.values())
        ax.fill_between(list(seeds), list(lows), list(highs), color=color, alpha=0.18, linewidth=0)
        # Diverged points of all sizes lie in one strip: a little aside, so that all are seen.
        aside = (index - (len(curves) - 1) / 2) * 0.07
        draw_curve(ax, points, top, color, marker, aside)
        optimum = "none"
        size = judged.get(curve.size)
        if size and math.isfinite(size.optimum_log2.value) and math.isfinite(size.loss.value):
            value, low, high = asdict(size.optimum_log2).values()
            optimum, bar = f"{value:.2f}", None
            if math.isfinite(low) and math.isfinite(high):
                optimum = f"{value:.2f} [{low:.2f}, {high:.2f}]"
                bar = [[max(0.0, value - low)], [max(0.0, high - value)]]
            look = {"color": color, "ecolor": INK, "capsize": 3.5, "zorder": 5, **STAR}
            ax.errorbar(value, size.loss.value, xerr=bar, **look)
        shown = f"{label}: {optimum}" if judged else label
        handles.append(legend_key(shown, color=color, marker=marker, linestyle="-"))
    if math.isfinite(centre := validation.planned_log2):
        ax.axvline(centre, color=INK, linewidth=1, linestyle=DASHED, zorder=1.5)
        handles.append(legend_key(f"transferred: {centre:.2f}", color=INK, linestyle=DASHED))
    handles += [legend_key("optimum, 95 % interval", color=FAINT, **STAR)] if judged else []
    handles += off_scale(means, top)
    # parse_math: matplotlib would read the underscores and dollars of users' names as formulas.
    ax.set_xlabel(f"{'learning rate ' * of_eta}log2 {letter}", parse_math=False)
    ax.set_ylabel(loss_label, parse_math=False)
    axis_name, subject = axis.replace("_", " "), "" if of_eta else f"of {hyperparameter} "
    ax.set_title(f"Transfer {subject}over {axis_name}: {verdict.answer}", parse_math=False)
    title = f"{axis_name}: optimum log2 {letter}" if judged else axis_name
    legend_below(figure, handles, title=title)
    return figure


@rc_context(STYLE)
def lines_figure(conclusion: Conclusion, space: Space) -> Figure:
    """One panel a line search: the objective against the hyperparameter, all on one loss axis."""
    lines = list(conclusion.lines)
    if conclusion.retune is not None:
        # The last line of a search repeats eta's, with the other hyperparameters at their optima.
        lines.append(replace(conclusion.retune.line, name="eta, retuned"))
    figure, panels = new_panels(len(lines), 1.7, edge=0.9)
    curves = [sorted(line.points_log2) for line in lines]
    # All panels share the first one's axis.
    top = set_scale(panels[0], curves, max)
    for ax, line, points in zip(panels, lines, curves, strict=False):
        _draw_line(ax, line, points, top, space.get(line.name))
    figure.supylabel(LOSS_LABEL, fontsize=9)
    figure.supxlabel("hyperparameter, log2", fontsize=9)
    handles = [legend_key("optimum", color=LINE_COLOR, **STAR)]
    handles.append(legend_key("default", color=FAINT, linestyle=DOTTED))
    if any(line.stopped_log2 for line in lines):
        handles.append(legend_key("stopped early", **STOPPED))
    ended = [
        [point for point in points if point[0] not in line.stopped_log2]
        for line, points in zip(lines, curves, strict=True)
    ]
    handles += off_scale(ended, top)
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _draw_line(ax: Axes, line: LineResult, points: Points, top: float, axis: Axis | None) -> None:
    if axis is not None:
        ax.axvline(axis.default, color=FAINT, linewidth=1, linestyle=DOTTED, zorder=1.5)
    draw_strip(ax, top)
    stopped = set(line.stopped_log2)
    draw_curve(ax, [(x, y) for x, y in points if x not in stopped], top, LINE_COLOR, "o")
    for x in stopped:
        ax.plot(x, (top + ax.get_ylim()[1]) / 2, zorder=4, **STOPPED)
    if line.choices:
        name_choices(ax, line.choices)
    said = "no optimum"
    if math.isfinite(line.optimum_log2) and math.isfinite(line.objective):
        ax.plot(line.optimum_log2, line.objective, color=LINE_COLOR, zorder=5, **STAR)
        said = f"optimum {line.optimum if line.choices else f'{line.optimum_log2:.4g}'}"
    ax.set_title(f"{shortened(line.name)}\n{said}", fontsize=8, parse_math=False)
