"""Figures of a study: curves over a ladder, the search's best loss, lines and pairs, single runs.

And of several studies: their ladders beside each other.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sweeper.files import write_atomically
from sweeper.report.documents import Document, axis_verdict, ladder_curves, number, planned_value
from sweeper.report.drawing import (
    BESIDE,
    DASHED,
    DEEP,
    DOTTED,
    FAINT,
    INK,
    LINE_COLOR,
    LOSS_LABEL,
    MOST_COLUMNS,
    PALE,
    STAR,
    STOPPED,
    STRIP,
    STYLE,
    TOOLTIP_PREFIX,
    WIDTH,
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
from sweeper.search.grids import row_optima
from sweeper.study.logs.log import loss_curve
from sweeper.study.setup import LADDER_PHASE, Trials
from sweeper.trial import Result
from sweeper.verdict.ladder import label_size


@rc_context(STYLE)
def learning_rate_figure(validation: Document, axis: str) -> Figure:
    """Loss against log2 eta, a curve a size, with the optima and the transferred eta."""
    verdict, curves = axis_verdict(validation, axis), ladder_curves(validation, axis)
    hyperparameter = str(validation.get("hyperparameter", "eta"))
    letter = "η" if hyperparameter == "eta" else hyperparameter
    figure, (ax,) = new_panels(1, 3.5)
    means = [means_of(curve, hyperparameter) for curve in curves]
    top = set_scale(ax, means, median)
    draw_strip(ax, top)
    handles = []
    for index, (curve, points) in enumerate(zip(curves, means, strict=True)):
        color, marker = look_of(index, len(curves))
        draw_seeds(ax, curve, color, hyperparameter)
        # Diverged points of all sizes lie in one strip: a little aside, so that all are seen.
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
    ax.set_xlabel(
        "learning rate log2 η" if hyperparameter == "eta" else f"log2 {hyperparameter}",
        parse_math=False,
    )
    ax.set_ylabel(LOSS_LABEL)
    answer = verdict.get("answer", "no verdict yet")
    axis_name = axis.replace("_", " ")
    subject = "" if hyperparameter == "eta" else f"of {hyperparameter} "
    ax.set_title(f"Transfer {subject}over {axis_name}: {answer}", parse_math=False)
    handles += [legend_key("optimum, 95 % interval", color=FAINT, **STAR)] if verdict else []
    handles += off_scale(means, top)
    if handles:
        title = f"{axis_name}: optimum log2 {letter}" if verdict else axis_name
        figure.legend(handles=handles, title=title, **BESIDE)
    return figure


@rc_context(STYLE)
def best_loss_figure(search: Document) -> Figure:
    """The best loss found against the runs spent, with the search's phases."""
    figure, (ax,) = new_panels(1, 2.7)
    points = points_of(search.get("best_loss_curve"))
    runs, losses = [run for run, _ in points], [drawn_loss(loss) for _, loss in points]
    # The first runs may be very bad; what matters is how the best one was reached.
    # NaN differs from every loss, so that the first point counts as a change.
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
    best_text = f"{best:.4f} nats after {runs[-1]:.0f} runs" if math.isfinite(best) else "none"
    ax.set(xlabel="runs spent", ylabel=f"best {LOSS_LABEL}")
    ax.set_title(f"Best loss so far: {best_text}")
    return figure


@rc_context(STYLE)
def lines_figure(search: Document) -> Figure:
    """One panel a line search: the objective against the hyperparameter, all on one loss axis."""
    retune = search.get("retune")
    # The last line of a search repeats eta's, with the other hyperparameters at their optima.
    again = [{**retune["line"], "name": "eta, retuned"}] if retune else []
    lines = [*(search.get("lines") or ()), *again]
    figure, panels = new_panels(len(lines), 1.7, edge=0.9)
    curves = [points_of(line.get("points_log2")) for line in lines]
    top = set_scale(panels[0], curves, max)
    for ax, line, points in zip(panels, lines, curves, strict=False):
        _draw_line(ax, line, points, top, (search.get("space_log2") or {}).get(line["name"]) or {})
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
    """Mark a curve's optimum with its interval, and return the same in words."""
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


def _draw_line(ax: Axes, line: Document, points: Points, top: float, space: Document) -> None:
    """One panel of `lines_figure`."""
    choices = list(line.get("choices") or ())
    default = number(space.get("default"))
    if choices:
        chosen = space.get("default")
        default = float(choices.index(chosen)) if chosen in choices else math.nan
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


# Pairs: a heat map for each pair of hyperparameters, with its optima.


Losses = list[list[float]]
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
def pairs_figure(search: Document) -> Figure:
    """Loss over the grid of every pair, all on one scale, with the optimum of each row and column.

    Separable hyperparameters have their rows' optima in one column, and the columns' in one row.
    """
    grids = []
    for grid in search.get("pairs") or ():
        rows = [[number(loss) for loss in row] for row in grid["losses"]]
        # What failed counts as diverged.
        losses = [[math.inf if math.isnan(loss) else loss for loss in row] for row in rows]
        grids.append((grid, losses))
    figure, panels = new_panels(len(grids), 2.25, edge=0.7, sharey=False)
    scale = _scale([losses for _, losses in grids])
    for ax, (grid, losses) in zip(panels, grids, strict=False):
        _draw_pair(ax, grid, losses, scale)
    shown = ScalarMappable(scale, COLORS)
    shrink = 0.8 / math.ceil(len(panels) / MOST_COLUMNS)
    bar = figure.colorbar(shown, ax=panels, shrink=shrink, extend="max")
    bar.set_label(LOSS_LABEL)
    handles = [
        Line2D([], [], label="optimum of a row", **BOTH, **ROW),
        Line2D([], [], label="optimum of a column", linestyle="none", **COLUMN),
    ]
    if any(math.isinf(loss) for _, losses in grids for row in losses for loss in row):
        look: dict[str, Any] = {"marker": "^", "color": FAINT, "linestyle": "none"}
        handles.append(Line2D([], [], label="diverged", markersize=4, **look))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _scale(every: Sequence[Losses]) -> Normalize:
    """From the least loss to where the optima can still be told apart, or the largest loss."""
    finite = [loss for losses in every for row in losses for loss in row if math.isfinite(loss)]
    if not finite:
        return Normalize(0.0, 1.0)
    # Three times from the least to the median: a few huge losses must not take all the colours.
    low = min(finite)
    high = min(max(finite), low + 3 * (median(finite) - low))
    return Normalize(low, high if high > low else max(finite) + 1e-6)


def _draw_pair(ax: Axes, grid: Document, losses: Losses, scale: Normalize) -> None:
    """One pair: the first hyperparameter upwards, the second to the right."""
    first, second = (list(map(number, values)) for values in grid["values_log2"])
    drawn = [[loss if math.isfinite(loss) else math.nan for loss in row] for row in losses]
    ax.set_facecolor(STRIP)
    ax.grid(visible=False)
    ax.pcolormesh(range(len(second)), range(len(first)), drawn, cmap=COLORS, norm=scale)
    ax.set_xticks(range(len(second)), [f"{value:.3g}" for value in second])
    ax.set_yticks(range(len(first)), [f"{value:.3g}" for value in first])
    ax.set(xlabel=grid["names"][1], ylabel=grid["names"][0])
    error = number(grid.get("transfer_error"))
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
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
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


def _draw_run(ax: Axes, chosen: Chosen, color: Any) -> None:
    result = chosen.result
    points = [(float(step), loss) for step, loss in loss_curve(result)]
    finite = [(step, loss) for step, loss in points if math.isfinite(loss)]
    label = f"{chosen.name}: {result.objective:.3f}"
    ax.plot(*zip(*finite, strict=True), color=color, linewidth=1.3, label=label)
    stride = max(1, len(finite) // MOST_TIPS)
    eta = result.trial.log2_hps.get("eta")
    where = "" if eta is None else f"log2 η {eta:g}, "
    what = f"{chosen.name}, {where}seed {result.trial.seed}, step"
    draw_tips(ax, finite[stride - 1 :: stride], math.inf, what)


# Several studies side by side: loss against the learning rate, a line a width, on one scale.


AXIS = "width"
PANEL_WIDTH, PANEL_HEIGHT = 2.9, 3.0
"""Inches."""
MOST_LETTERS = 30
"""So long is a title over a panel."""
MARGIN = 0.3
"""Octaves of the learning rate beside the outermost points."""


_STAR: dict[str, Any] = {"marker": "*", "markersize": 11, "markeredgewidth": 0.7, "zorder": 5}


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of a figure; `pale` and `deep` are places in viridis: narrowest and widest model."""

    ink: str
    faint: str
    grid: str
    strip: str
    pale: float
    deep: float

    @property
    def style(self) -> Any:
        """The settings of matplotlib that follow."""
        names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor")
        inks = dict.fromkeys(names, self.ink)
        return STYLE | inks | {"grid.color": self.grid, "axes.edgecolor": self.faint}


LIGHT = Theme(ink=INK, faint=FAINT, grid="#e4e4e4", strip=STRIP, pale=PALE, deep=DEEP)
DARK = Theme(ink="#e6e8eb", faint="#9aa1aa", grid="#343a41", strip="#23282e", pale=0.95, deep=0.45)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A study: what is written over its panel, and the record of its validation over the width."""

    title: str
    validation: Document

    @property
    def curves(self) -> Mapping[int, Document]:
        """Its curves by width."""
        return {int(curve[AXIS]): curve for curve in ladder_curves(self.validation, AXIS)}

    @property
    def points(self) -> Mapping[int, Points]:
        """Its points by width."""
        return {width: means_of(curve, "eta") for width, curve in self.curves.items()}


def ladders_figure(panels: Sequence[Panel], theme: Theme = LIGHT) -> Figure:
    """A panel a study: where the optima lie above each other, the learning rate transfers.

    All panels have one loss scale, and show as many octaves of the learning rate.
    """
    with rc_context(theme.style):
        width = 1.3 + PANEL_WIDTH * min(MOST_COLUMNS, len(panels))
        figure, axes = new_panels(len(panels), PANEL_HEIGHT, edge=0.4, width=width)
        shown = [points for panel in panels for points in panel.points.values()]
        top = set_scale(axes[0], shown, median)
        widths = sorted({width for panel in panels for width in panel.curves})
        looks = {}
        for index, size in enumerate(widths):
            color, marker = look_of(index, len(widths), theme.pale, theme.deep)
            looks[size] = {"color": color, "marker": marker}
        # One span for all panels, each around its own middle: eta of two parameterizations differ
        # by octaves, and a slope must look as steep everywhere.
        span = max((high - low for low, high in map(_reach, panels)), default=1.0)
        for ax, panel in zip(axes, panels, strict=False):
            _draw_ladder(ax, panel, top, looks, theme)
            middle = sum(_reach(panel)) / 2
            ax.set_xlim(middle - span / 2 - MARGIN, middle + span / 2 + MARGIN)
        figure.supxlabel("learning rate, log2 η", fontsize=9)
        figure.supylabel(LOSS_LABEL, fontsize=9)
        handles = [legend_key(str(size), linestyle="-", **look) for size, look in looks.items()]
        star = _STAR | {"markeredgecolor": theme.ink, "color": theme.faint, "linestyle": "-"}
        handles.append(legend_key("best η", **star | {"markersize": 9}))
        handles.append(legend_key("transferred η", color=theme.faint, linestyle=DASHED))
        figure.legend(handles=[*handles, *off_scale(shown, top)], title=AXIS, **BESIDE)
    return figure


def write_picture(panels: Sequence[Panel], path: Path) -> tuple[Path, Path]:
    """Write the figure to `path`, and for dark pages beside it as NAME-dark.svg; no background.

    Letters are drawn as shapes, so that it looks alike wherever it is shown.
    """
    dark = path.with_name(f"{path.stem}-dark.svg")
    for file, theme in ((path, LIGHT), (dark, DARK)):
        figure, buffer = ladders_figure(panels, theme), StringIO()
        for tip in figure.findobj(lambda a: str(a.get_gid()).startswith(TOOLTIP_PREFIX)):
            tip.remove()
        with rc_context({**theme.style, "svg.fonttype": "path"}):
            metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
        write_atomically(file, buffer.getvalue())
    return path, dark


def _reach(panel: Panel) -> tuple[float, float]:
    """The least and the largest learning rate (log2) with a point."""
    values = [x for points in panel.points.values() for x, _ in points] or [0.0]
    return min(values), max(values)


def _draw_ladder(
    ax: Axes, panel: Panel, top: float, looks: Mapping[int, dict[str, Any]], theme: Theme
) -> None:
    """One study: its curves, their optima with a line through them, and the transferred eta."""
    verdict = axis_verdict(panel.validation, AXIS)
    draw_strip(ax, top, theme.strip)
    optima = []
    for index, (width, points) in enumerate(panel.points.items()):
        aside = (index - (len(panel.points) - 1) / 2) * 0.09
        draw_curve(ax, points, top, aside=aside, **looks[width])
        draw_tips(ax, points, top, f"{panel.title}, width {width}, log2 η", aside=aside)
        size = size_verdict(verdict, panel.curves[width])
        eta, loss = (number((size.get(key) or {}).get("value")) for key in ("optimum_log2", "loss"))
        if math.isfinite(eta) and math.isfinite(loss):
            optima.append((eta, loss, looks[width]["color"]))
    ax.plot([x for x, _, _ in optima], [y for _, y, _ in optima], color=theme.ink, zorder=4.5)
    for eta, loss, color in optima:
        ax.plot(eta, loss, color=color, markeredgecolor=theme.ink, **_STAR)
    centre = planned_value(panel.validation)
    if math.isfinite(centre):
        ax.axvline(centre, color=theme.faint, linewidth=1, linestyle=DASHED, zorder=1.5)
    estimates = (size.get("shift_log2") or {} for size in verdict.get("sizes") or ())
    shifts = [shift for e in estimates if math.isfinite(shift := number(e.get("value")))]
    drift = "no optimum"
    if shifts:
        drift = f"best η moves by {max(shifts) - min(shifts):.1f} octaves"
    answer = verdict.get("answer", "no verdict yet")
    title = f"{panel.title}: {answer}"
    if len(title) > MOST_LETTERS:
        title, drift = shortened(panel.title, MOST_LETTERS), f"{answer}; {drift}"
    ax.set_title(title, pad=17, parse_math=False, fontweight="bold")
    note = ax.annotate(drift, (0, 1), (0, 6), "axes fraction", "offset points")
    note.set(fontsize=8.5, color=theme.faint, in_layout=False)
