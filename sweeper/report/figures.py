"""Figures of a study: curves over a ladder, a search's best loss, lines and pairs, single runs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, median, stdev
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation
from sweeper.report.drawing import (
    DASHED,
    DOTTED,
    FAINT,
    INK,
    LINE_COLOR,
    LOSS_LABEL,
    MOST_COLUMNS,
    STAR,
    STOPPED,
    STRIP,
    STYLE,
    WIDTH,
    Points,
    draw_curve,
    draw_strip,
    draw_tips,
    legend_below,
    legend_key,
    look_of,
    loss_limits,
    means_of,
    name_choices,
    new_figure,
    new_panels,
    off_scale,
    run_id,
    say_nothing,
    set_scale,
    shortened,
)
from sweeper.search.grids import row_optima
from sweeper.search.strategy import Conclusion, LineResult, PairGrid
from sweeper.stats.ladder import label_size
from sweeper.study.logs.log import loss_curve
from sweeper.study.setup import LADDER_PHASE, Trials
from sweeper.trial import Axis, Log2Hps, Result, Space


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
        draw_tips(ax, points, top, f"{axis} {label}, log2 {letter}", aside=aside)
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


MOST_DOTS = 1000
"""So many trials are drawn beside the best loss."""


@rc_context(STYLE)
def best_loss_figure(conclusion: Conclusion, trials: Sequence[Result] = ()) -> Figure:
    """The best loss found against the runs spent, with the search's phases.

    `trials` in the order in which they ended are dots beside it.
    """
    figure, (ax,) = new_panels(1, 2.7)
    points = [(float(run), loss) for run, loss in conclusion.best_loss_curve]
    runs = [run for run, _ in points]
    losses = [loss if math.isfinite(loss) else math.nan for _, loss in points]
    # The first runs may be very bad; what matters is how the best one was reached.
    # NaN differs from every loss, so that the first point counts as a change.
    changes = [(0.0, math.nan), *points]
    steps = [after for before, after in pairwise(changes) if after[1] != before[1]]
    is_flat = len(losses) > 1 and median(losses) == min(losses)
    bottom, top = loss_limits([steps if is_flat else points], median, reach=8.0)
    stride = max(1, len(trials) // MOST_DOTS)
    single = [*enumerate(trials, 1)][::stride]
    dots = [
        (float(run), math.inf if math.isnan(each.objective) else each.objective)
        for run, each in single
    ]
    if dots:
        low, high = loss_limits([dots], median)
        bottom, top = min(bottom, low), max(top, high)
    last = max([*runs, *(run for run, _ in dots)], default=1.0)
    ax.set(xlim=(0, last * 1.02), ylim=(bottom, top))
    on = [(run, loss) for run, loss in dots if loss <= top]
    look: dict[str, Any] = {"color": FAINT, "markersize": 2.5, "alpha": 0.6}
    runs_on = run_id(each for (_, each), (_, loss) in zip(single, dots, strict=True) if loss <= top)
    ax.plot([run for run, _ in on], [loss for _, loss in on], "o", gid=runs_on, **look)
    above = 0.965 * top + 0.035 * bottom
    for face, kind in ((FAINT, math.isinf), ("none", math.isfinite)):
        off = [run for run, loss in dots if loss > top and kind(loss)]
        ax.plot(off, [above] * len(off), "^", color=FAINT, mfc=face, markersize=4)
    _phases(ax, conclusion.phase_ends)
    ax.step(runs, losses, where="post", color=LINE_COLOR, linewidth=1.6)
    ax.plot(runs[-1:], losses[-1:], "o", color=LINE_COLOR, markersize=4)
    draw_tips(ax, [*steps, *points[-1:]], math.inf, "best after runs")
    best_text = "none"
    if losses and math.isfinite(losses[-1]):
        best_text = f"{losses[-1]:.4f} nats after {runs[-1]:.0f} runs"
    else:
        say_nothing(ax)
    ax.set(xlabel="runs spent", ylabel=f"best {LOSS_LABEL}")
    ax.set_title(f"Best loss so far: {best_text}")
    if dots:
        handles = [legend_key("best", color=LINE_COLOR, linestyle="-")]
        handles.append(legend_key("a trial", color=FAINT, marker="o", markersize=3))
        handles += off_scale([dots], top)
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def conclusion_so_far(trials: Sequence[Result]) -> Conclusion:
    """What trials alone tell before a search has concluded anything: the least loss so far."""
    losses = [math.inf if math.isnan(each.objective) else each.objective for each in trials]
    least = enumerate(accumulate(losses, min), 1)
    return Conclusion(
        best_log2=Log2Hps({}),
        objective=min(losses, default=math.inf),
        seeds=1,
        runs=len(losses),
        best_loss_curve=tuple(least),
    )


@rc_context(STYLE)
def lines_figure(conclusion: Conclusion, space: Space, trials: Sequence[Result] = ()) -> Figure:
    """One panel a line search: the objective against the hyperparameter, all on one loss axis.

    Where points have several seeds among `trials`, bars are the standard errors of their means.
    """
    seeds = dict[str, dict[int, Result]]()
    for each in trials:
        used = sorted({**each.trial.log2_hps, **each.trial.choices}.items())
        seeds.setdefault(str(used), {})[each.trial.seed] = each
    # A line says the means of its points alone, by which they are found again: of the first seeds.
    runs_of = dict[float, list[Result]]()
    for known in seeds.values():
        runs = [known[seed] for seed in sorted(known)]
        for count in range(1, len(runs) + 1):
            if all(math.isfinite(run.objective) for run in runs[:count]):
                mean = fmean(run.objective for run in runs[:count])
                runs_of[round(mean, 9)] = runs[:count]
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
        for x, y in points:
            if y > top or not (runs := runs_of.get(round(y, 9), [])):
                continue
            if len(runs) > 1:
                error = stdev(run.objective for run in runs) / len(runs) ** 0.5
                ax.errorbar(x, y, error, color=LINE_COLOR, linewidth=0.9, capsize=2, zorder=3)
            # A dot a run, all at their mean, so that each is marked here too.
            look: dict[str, Any] = {"color": LINE_COLOR, "markersize": 4, "zorder": 4}
            ax.plot([x] * len(runs), [y] * len(runs), "o", gid=run_id(runs), **look)
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
    draw_tips(
        ax, points, top, f"{line.name}, {'place' if line.choices else 'log2'}", stopped=stopped
    )
    if line.choices:
        name_choices(ax, line.choices)
    said = "no optimum"
    if math.isfinite(line.optimum_log2) and math.isfinite(line.objective):
        ax.plot(line.optimum_log2, line.objective, color=LINE_COLOR, zorder=5, **STAR)
        said = f"optimum {line.optimum if line.choices else f'{line.optimum_log2:.4g}'}"
    ax.set_title(f"{shortened(line.name)}\n{said}", fontsize=8, parse_math=False)


def _phases(ax: Axes, ends: Mapping[str, int]) -> None:
    """Shade every other phase, and name them above the axes, where there is room for a name."""
    names = sorted(ends, key=lambda name: ends[name])
    edges = [0, *(ends[name] for name in names)]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    for low, high in list(pairwise(edges))[1::2]:
        ax.axvspan(low, high, facecolor=STRIP, edgecolor="none", zorder=0)
    room = [True, *(after - before > 0.12 * edges[-1] for before, after in pairwise(middles))]
    texts = [shortened(name, 16) if free else "" for name, free in zip(names, room, strict=False)]
    above = ax.secondary_xaxis("top")
    above.set_xticks(middles, texts, color=FAINT, parse_math=False)
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)


# Pairs: a heat map for each pair of hyperparameters, with its optima.


Losses = Sequence[Sequence[float]]
"""Rows, one for each value of the first hyperparameter; +inf where the run diverged."""

COLORS = colormaps["viridis_r"].resampled(24)
"""Bright is low. So few that the colour bar is drawn, not painted: a page shows no images."""
ROW: dict[str, Any] = {"marker": "o", "markersize": 7, "markerfacecolor": "white"}
COLUMN: dict[str, Any] = {
    "marker": "x",
    "markersize": 5,
    "markeredgewidth": 1.6,
    "color": "#e6550d",
}
BOTH: dict[str, Any] = {"markeredgecolor": INK, "linestyle": "none"}


@rc_context(STYLE)
def pairs_figure(pairs: Sequence[PairGrid]) -> Figure:
    """Loss over the grid of every pair, all on one scale, with the optimum of each row and column.

    Separable hyperparameters have their rows' optima in one column, and the columns' in one row.
    """
    # What failed counts as diverged.
    grids = [
        replace(
            grid,
            losses=tuple(
                tuple(math.inf if math.isnan(loss) else loss for loss in row) for row in grid.losses
            ),
        )
        for grid in pairs
    ]
    figure, panels = new_panels(len(grids), 2.25, edge=0.7, sharey=False)
    scale = _scale([grid.losses for grid in grids])
    for ax, grid in zip(panels, grids, strict=False):
        _draw_pair(ax, grid, scale)
    shown = ScalarMappable(scale, COLORS)
    shrink = 0.8 / math.ceil(len(panels) / MOST_COLUMNS)
    bar = figure.colorbar(shown, ax=panels, shrink=shrink, extend="max")
    bar.set_label(LOSS_LABEL)
    handles = [
        Line2D([], [], label="optimum of a row", **BOTH, **ROW),
        Line2D([], [], label="optimum of a column", linestyle="none", **COLUMN),
    ]
    if any(math.isinf(loss) for grid in grids for row in grid.losses for loss in row):
        look: dict[str, Any] = {"marker": "^", "color": FAINT, "linestyle": "none"}
        handles.append(Line2D([], [], label="diverged", markersize=4, **look))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _scale(every: Sequence[Losses]) -> Normalize:
    """Colours from the least loss to where optima are still told apart, or the largest loss."""
    finite = [loss for losses in every for row in losses for loss in row if math.isfinite(loss)]
    if not finite:
        return Normalize(0.0, 1.0)
    # Three times from the least to the median: a few huge losses must not take all the colours.
    low = min(finite)
    high = min(max(finite), low + 3 * (median(finite) - low))
    return Normalize(low, high if high > low else max(finite) + 1e-6)


def _draw_pair(ax: Axes, grid: PairGrid, scale: Normalize) -> None:
    """One pair: the first hyperparameter upwards, the second to the right."""
    (first, second), losses = grid.values_log2, grid.losses
    drawn = [[loss if math.isfinite(loss) else math.nan for loss in row] for row in losses]
    ax.set_facecolor(STRIP)
    ax.grid(visible=False)
    ax.pcolormesh(range(len(second)), range(len(first)), drawn, cmap=COLORS, norm=scale)
    ax.set_xticks(range(len(second)), [f"{value:.3g}" for value in second])
    ax.set_yticks(range(len(first)), [f"{value:.3g}" for value in first])
    ax.set(xlabel=grid.names[1], ylabel=grid.names[0])
    error = grid.transfer_error
    title = f"transfer error {error:.4f}" if math.isfinite(error) else "no transfer error"
    ax.set_title(title, fontsize=8)
    for row, best in enumerate(row_optima(range(len(second)), losses)):
        if best is not None:
            ax.plot(best, row, **BOTH, **ROW)
    for column, best in enumerate(row_optima(range(len(first)), list(zip(*losses, strict=True)))):
        if best is not None:
            ax.plot(column, best, linestyle="none", **COLUMN)
    for row, values in enumerate(losses):
        for column, loss in enumerate(values):
            if math.isinf(loss):
                ax.plot(column, row, "^", color=FAINT, markersize=4)


# The loss over the steps of chosen trials: some of the search, and one of each width.


MOST_TIPS = 20
"""So many points of a curve say their numbers."""
SEARCHED = {"best": LINE_COLOR, "median": "#7a5300", "worst": "#a8241c"}
"""Which trials of a search are drawn, and in what colour."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trial whose curve is drawn, and what it is."""

    name: str
    result: Result


def chosen_trials(trials: Trials) -> list[Chosen]:
    """The best, the median and the worst run of the search that ended and did not diverge."""
    ended = [run for run in trials.searched if run.status == "complete" and run.curve]
    ranked = sorted(ended, key=lambda run: run.objective)
    if not ranked:
        return []
    places = {"best": 0, "median": (len(ranked) - 1) // 2, "worst": len(ranked) - 1}
    taken: dict[int, str] = {}
    for name, place in places.items():
        taken.setdefault(place, name)
    return [Chosen(name=name, result=ranked[place]) for place, name in taken.items()]


def chosen_widths(trials: Trials) -> list[Chosen]:
    """Of every width of the ladder, the first seed at the learning rate of the least mean loss."""
    ladder = [run for run in trials.current if run.trial.phase == LADDER_PHASE]
    if not ladder:
        return []
    # Several ladders (over width, depth, steps) share a phase: the largest kind is that over width.
    # Runs that the search had made already keep its phase, so that all trials are looked through.
    kind, _ = Counter(map(_kind, ladder)).most_common(1)[0]
    by_width: defaultdict[int, defaultdict[float, list[Result]]]
    by_width = defaultdict(lambda: defaultdict(list))
    for run in trials.current:
        if _kind(run) == kind and run.status == "complete" and run.curve:
            by_width[run.trial.width][run.trial.log2_hps.get("eta", 0.0)].append(run)
    chosen = []
    for width, points in sorted(by_width.items()):
        runs = min(points.values(), key=lambda runs: fmean(run.objective for run in runs))
        first = min(runs, key=lambda run: run.trial.seed)
        chosen.append(Chosen(name=f"width {width}", result=first))
    return chosen


def _kind(result: Result) -> Hashable:
    """What the trials of a ladder over the width have in common: all but width, eta and seed."""
    trial = result.trial
    others = sorted((name, value) for name, value in trial.log2_hps.items() if name != "eta")
    return trial.spec.depth, trial.spec.train, tuple(others), tuple(trial.choices.items())


@rc_context(STYLE)
def steps_figure(search: Sequence[Chosen], ladder: Sequence[Chosen]) -> Figure:
    """Left: trials of the search. Right: each width at its best learning rate."""
    groups = [group for group in (search, ladder) if group]
    figure = new_figure(WIDTH, 3.1)
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for ax, group in zip(panels, groups, strict=True):
        for index, chosen in enumerate(group):
            color = SEARCHED.get(chosen.name) or look_of(index, len(group))[0]
            _draw_run(ax, chosen, color)
        ax.set_title("the search" if group is search else "each width at its best η")
        ax.legend(loc="upper right")
        ax.set_xlabel("steps")
    panels[0].set_ylabel(LOSS_LABEL)
    # The first steps of a run may lie above the axis.
    curves = [[loss for loss in c.result.curve if math.isfinite(loss)] for c in (*search, *ladder)]
    curves = [losses for losses in curves if losses]
    # At most as far above the worst curve's median as that lies above the least loss.
    low, high = min(map(min, curves)), max(losses[0] for losses in curves)
    worst = max(median(losses) for losses in curves)
    top = min(high, worst + (worst - low))
    room = 0.05 * max(top - low, 1e-6)
    panels[0].set_ylim(low - room, max(top, low) + room)
    return figure


MOST_METRICS = 6


@rc_context(STYLE)
def metrics_figure(
    runs: Sequence[tuple[Chosen, Mapping[str, Sequence[tuple[float, float]]]]],
) -> Figure:
    """A panel a number that the logs of runs have beside the loss, over the steps."""
    counted = Counter(name for _, curves in runs for name in curves)
    names = [name for name, _ in counted.most_common(MOST_METRICS)]
    figure, panels = new_panels(len(names), 1.5, edge=0.7, sharey=False)
    colors = [SEARCHED.get(c.name) or look_of(i, len(runs))[0] for i, (c, _) in enumerate(runs)]
    for ax, name in zip(panels, names, strict=True):
        for (chosen, curves), color in zip(runs, colors, strict=True):
            if curve := curves.get(name):
                gid = run_id([chosen.result])
                ax.plot(*zip(*curve, strict=True), color=color, linewidth=1.0, gid=gid)
        ax.set_title(shortened(name), fontsize=8, parse_math=False)
    figure.supxlabel("steps", fontsize=9)
    handles = [
        legend_key(chosen.name, color=color, linestyle="-")
        for (chosen, _), color in zip(runs, colors, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _draw_run(ax: Axes, chosen: Chosen, color: Any) -> None:
    result = chosen.result
    points = [(float(step), loss) for step, loss in loss_curve(result)]
    finite = [(step, loss) for step, loss in points if math.isfinite(loss)]
    loss = result.objective
    label = f"{chosen.name}: {loss:.3f}" if abs(loss) < 1e5 else f"{chosen.name}: {loss:.3g}"
    gid = run_id([result])
    ax.plot(*zip(*finite, strict=True), color=color, linewidth=1.3, label=label, gid=gid)
    stride = max(1, len(finite) // MOST_TIPS)
    eta = result.trial.log2_hps.get("eta")
    where = "" if eta is None else f"log2 η {eta:g}, "
    what = f"{chosen.name}, {where}seed {result.trial.seed}, step"
    draw_tips(ax, finite[stride - 1 :: stride], math.inf, what)
