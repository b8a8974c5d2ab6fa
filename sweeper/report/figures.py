"""Figures of a study: curves over a ladder, a search's best loss, lines and pairs, single runs."""

from __future__ import annotations

import math
from dataclasses import asdict

from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.decide.ladder_verdict import Verdict
from sweeper.decide.validation import Validation
from sweeper.report.drawing import (
    DASHED,
    FAINT,
    INK,
    LOSS_LABEL,
    STAR,
    STYLE,
    draw_curve,
    draw_strip,
    legend_below,
    legend_key,
    look_of,
    means_of,
    new_panels,
    off_scale,
    powers,
    set_scale,
)
from sweeper.stats.ladder import label_size


@rc_context(STYLE)
def learning_rate_figure(
    validation: Validation, verdict: Verdict, loss_label: str = LOSS_LABEL
) -> Figure:
    """Loss against log2 eta, a curve a size, with the optima and the transferred eta."""
    axis, hyperparameter = verdict.axis, validation.hyperparameter
    of_eta = hyperparameter == "eta"
    letter = "learning rate" if of_eta else hyperparameter
    curves = validation.ladder(axis)
    judged = {size.size: size for size in verdict.sizes}
    figure, (ax,) = new_panels(1, 3.5)
    means = [means_of(curve) for curve in curves]
    top = set_scale(ax, means)
    draw_strip(ax, top)
    handles = []
    for index, (curve, points) in enumerate(zip(curves, means, strict=True)):
        color, marker = look_of(index, len(curves))
        label = label_size(asdict(curve.size), axis)
        # Diverged points of all sizes lie in one strip: a little aside, so that all are seen.
        aside = (index - (len(curves) - 1) / 2) * 0.07
        draw_curve(ax, points, top, color, marker, aside)
        optimum = "none"
        size = judged.get(curve.size)
        if size and math.isfinite(size.optimum_log2.value) and math.isfinite(size.loss.value):
            value, low, high = asdict(size.optimum_log2).values()
            optimum, bar = f"{2.0**value:.3g}", None
            if math.isfinite(low) and math.isfinite(high):
                optimum += f" [{2.0**low:.3g}, {2.0**high:.3g}]"
                bar = [[max(0.0, value - low)], [max(0.0, high - value)]]
            look = {"color": color, "ecolor": INK, "capsize": 3.5, "zorder": 5, **STAR}
            ax.errorbar(value, size.loss.value, xerr=bar, **look)
        name = f"{label}: {optimum}" if judged else label
        handles.append(legend_key(name, color=color, marker=marker, linestyle="-"))
    if math.isfinite(centre := validation.planned_log2):
        ax.axvline(centre, color=INK, linewidth=1, linestyle=DASHED, zorder=1.5)
        handles.append(legend_key(f"transferred: {2.0**centre:.3g}", color=INK, linestyle=DASHED))
    handles += [legend_key("optimum", color=FAINT, **STAR)] if judged else []
    handles += off_scale(means, top)
    # parse_math: matplotlib would read the underscores and dollars of users' names as formulas.
    powers(ax.xaxis)
    ax.set_xlabel(letter, parse_math=False)
    ax.set_ylabel(loss_label, parse_math=False)
    axis_name, subject = axis.replace("_", " "), "" if of_eta else f"of {hyperparameter} "
    ax.set_title(f"Transfer {subject}over {axis_name}: {verdict.answer}", parse_math=False)
    title = f"{axis_name}: optimum [95 % interval]" if judged else axis_name
    legend_below(figure, handles, title=title)
    return figure
