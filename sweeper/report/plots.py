"""Figures of a study: learning-rate curves over a ladder, the search's best loss, and its lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sweeper.files import write_atomically
from sweeper.report.documents import Document, axis_verdict, is_curve_of, ladder_curves, number
from sweeper.transfer.ladder import label_size

Points = Sequence[tuple[float, float]]
"""(log2 value, mean loss), ascending; +inf where a run diverged."""

# Any, because the stubs want every key spelled out as a literal.
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.titlesize": 10,
    "font.family": ["sans-serif"],
    # Verdana has nearly the widths of DejaVu Sans, so that SVG text fits without it.
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.title_fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "sweeper",
    "text.usetex": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
WIDTH = 6.5
"""Inches: the text of a page in a paper."""
INK, FAINT, STRIP = "#222222", "#777777", "#f0f0f0"
LINE_COLOR = "#31688e"
MARKERS = "osDPXhdp"
"""One a size, so that curves can be told apart without colour; triangles mean off the scale."""
LOSS_LABEL = "training loss (nats)"
TICK_STEPS = [1, 2, 2.5, 5, 10]
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
STAR: dict[str, Any] = {"marker": "*", "markersize": 8, "markeredgecolor": INK}
STAR |= {"markeredgewidth": 0.6, "linestyle": "none"}
TOOLTIP_PREFIX = "tip "
"""The id of a drawn point begins so, and goes on with what the page says when it is hovered."""
STOPPED: dict[str, Any] = {"marker": "x", "markersize": 5, "color": FAINT, "linestyle": "none"}
BESIDE: dict[str, Any] = {"loc": "outside right upper", "alignment": "left"}


@rc_context(STYLE)
def learning_rate_figure(validation: Document, axis: str) -> Figure:
    """Loss against log2 eta, a curve a size, with the optima and the transferred eta."""
    verdict, curves = axis_verdict(validation, axis), ladder_curves(validation, axis)
    along = str(validation.get("along", "eta"))
    letter = "η" if along == "eta" else along
    figure, (ax,) = _panels(1, 1, 3.5)
    means = [_means(curve, along) for curve in curves]
    top = _scale(ax, means, median)
    _strip(ax, top)
    handles = []
    for index, (curve, points) in enumerate(zip(curves, means, strict=True)):
        color, marker = _look(index, len(curves))
        _seeds(ax, curve, color, along)
        aside = (index - (len(curves) - 1) / 2) * 0.07
        _curve(ax, points, top, color, marker, aside)
        _tips(ax, points, top, f"{axis} {label_size(curve, axis)}, log2 {letter}", aside=aside)
        optimum = _optimum(ax, _size_verdict(verdict, curve), color) if verdict else ""
        label = f"{label_size(curve, axis)}{':' if verdict else ''} {optimum}"
        handles.append(_key(label, color=color, marker=marker, linestyle="-"))
    centre = number(validation.get(f"transferred_log2_{along}"))
    centre = number(validation.get(f"planned_log2_{along}", centre))
    if math.isfinite(centre):
        ax.axvline(centre, color=INK, linewidth=1, linestyle=DASHED, zorder=1.5)
        handles.append(_key(f"transferred: {centre:.2f}", color=INK, linestyle=DASHED))
    ax.set_xlabel("learning rate log2 η" if along == "eta" else f"log2 {along}", parse_math=False)
    ax.set_ylabel(LOSS_LABEL)
    answer = verdict.get("answer", "no verdict yet")
    words = axis.replace("_", " ")
    subject = "" if along == "eta" else f"of {along} "
    ax.set_title(f"Transfer {subject}over {words}: {answer}", parse_math=False)
    handles += [_key("optimum, 95 % interval", color=FAINT, **STAR)] if verdict else []
    handles += _off_scale(means, top)
    if handles:
        title = f"{words}: optimum log2 {letter}" if verdict else words
        figure.legend(handles=handles, title=title, **BESIDE)
    return figure


@rc_context(STYLE)
def best_loss_figure(search: Document) -> Figure:
    """The best loss found against the runs spent, with the search's phases."""
    figure, (ax,) = _panels(1, 1, 2.7)
    points = _points(search.get("best_loss_curve"))
    runs, losses = [run for run, _ in points], [_drawn(loss) for _, loss in points]
    # The first runs may be very bad; what matters is how the best one was reached.
    bottom, top = _limits([points], median, reach=8.0)
    ax.set(xlim=(0, max(runs, default=1.0) * 1.02), ylim=(bottom, top))
    _phases(ax, search.get("phase_ends") or {})
    ax.step(runs, losses, where="post", color=LINE_COLOR, linewidth=1.6)
    ax.plot(runs[-1:], losses[-1:], "o", color=LINE_COLOR, markersize=4)
    steps = [
        after for before, after in pairwise([(0.0, math.nan), *points]) if after[1] != before[1]
    ]
    _tips(ax, [*steps, *points[-1:]], math.inf, "best after runs")
    best = losses[-1] if losses else math.nan
    if not math.isfinite(best):
        _nothing(ax)
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
    figure, panels = _panels(rows, columns, 0.9 + 1.7 * rows)
    curves = [_points(line.get("points_log2")) for line in lines]
    top = _scale(panels[0], curves, max)
    for ax, line, points in zip(panels, lines, curves, strict=False):
        _line(ax, line, points, top, (search.get("space_log2") or {}).get(line["name"]) or {})
    for ax in panels[max(1, len(lines)) :]:
        ax.remove()
    figure.supylabel(LOSS_LABEL, fontsize=9)
    figure.supxlabel("hyperparameter, log2", fontsize=9)
    handles = [_key("optimum", color=LINE_COLOR, **STAR)]
    handles.append(_key("default", color=FAINT, linestyle=DOTTED))
    stopped = {
        (i, float(x)) for i, line in enumerate(lines) for x in line.get("stopped_log2") or ()
    }
    left = [[p for p in points if (i, p[0]) not in stopped] for i, points in enumerate(curves)]
    handles += [_key("stopped early", **STOPPED)] if stopped else []
    handles += _off_scale(left, top)
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


@rc_context(STYLE)
def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write `figure` as PNG and as SVG to `path` plus the suffix, each file atomically."""
    image, drawing = BytesIO(), BytesIO()
    for tip in figure.findobj(lambda artist: str(artist.get_gid()).startswith(TOOLTIP_PREFIX)):
        tip.remove()
    figure.savefig(image, format="png", dpi=160, metadata={"Software": None})
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    png, vector = (path.with_name(f"{path.name}.{end}") for end in ("png", "svg"))
    write_atomically(png, image.getvalue())
    write_atomically(vector, drawing.getvalue())
    return png, vector


@rc_context(STYLE)
def svg(figure: Figure, name: str = "figure") -> str:
    """`figure` as an <svg> element for an HTML page: see-through, as wide as its box.

    Its ids begin with `name`, which must be unique in the page. Equal figures give equal text.
    """
    buffer = StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # A style element would reach out of the drawing and into the page.
    text = re.sub("<style.*?</style>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(
        rf'<g id="{TOOLTIP_PREFIX}([^"]*)">', r'<g class="tip"><title>\g<1></title>', text
    )
    text = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r' (width|height)="[0-9.]+pt"', "", text, count=2)
    return text.replace("<svg", '<svg style="stroke-linejoin: round"', 1)


def _panels(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """An empty figure, and its panels row by row on one loss axis."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)


def _points(pairs: Iterable[Sequence[object]] | None) -> Points:
    """(value, loss) pairs from a document, ascending."""
    return sorted((number(value), number(loss)) for value, loss in pairs or ())


def _losses(point: Document) -> list[float]:
    """A point's losses, one a seed; NaN (the run failed) counts as a run that diverged."""
    values = [number(value) for value in point.get("losses") or ()]
    return [math.inf if math.isnan(value) else value for value in values]


def _means(curve: Document, along: str) -> Points:
    """(log2 value of `along`, mean over the seeds) of a curve, ascending."""
    points = curve.get("points") or ()
    return sorted((number(p[f"log2_{along}"]), fmean(_losses(p))) for p in points if _losses(p))


def _limits(
    curves: Sequence[Points], typical: Callable[[list[float]], float], reach: float = 4.0
) -> tuple[float, float]:
    """Bottom and top of a loss axis that shows the basins.

    A curve's basin is as deep as its minimum lies below its median; the top is `reach` times
    the `typical` depth above the highest minimum, so that one huge loss does not squash the rest.
    """
    finite = [sorted(y for _, y in points if math.isfinite(y)) for points in curves]
    finite = [losses for losses in finite if losses]
    if not finite:
        return 0.0, 1.0
    low, high = min(v[0] for v in finite), max(v[0] for v in finite)
    depth = typical([median(v) - v[0] for v in finite])
    top = min(max(v[-1] for v in finite), max(high + reach * depth, high + (high - low) / 4))
    room = 0.06 * max(top - low, 1e-3 * abs(low), 1e-6)
    return low - room, top + room


def _scale(ax: Axes, curves: Sequence[Points], typical: Callable[[list[float]], float]) -> float:
    """Set the loss axis, with a strip on top for points off the scale; the strip's lower edge."""
    bottom, top = _limits(curves, typical)
    losses = [y for points in curves for _, y in points]
    strip = 0.09 * (top - bottom) if max(losses, default=0.0) > top else 0.0
    ax.set_ylim(bottom, top + strip)
    ax.set_yticks(
        [
            tick
            for tick in MaxNLocator(6, steps=TICK_STEPS).tick_values(bottom, top)
            if bottom < tick < top
        ]
    )
    if not any(map(math.isfinite, losses)):
        _nothing(ax)
    return top


def _strip(ax: Axes, top: float) -> None:
    """Cover what is above `top` when there is room for a strip; its rim hides clipped lines."""
    upper = ax.get_ylim()[1]
    if upper > top:
        look: dict[str, Any] = {"facecolor": STRIP, "edgecolor": STRIP, "linewidth": 0.8}
        ax.axhspan(top, upper, clip_on=False, zorder=2.4, **look)


def _nothing(ax: Axes) -> None:
    """Say that there is nothing to draw, on an axis whose numbers would mean nothing."""
    ax.set_yticks([])
    look: dict[str, Any] = {"color": FAINT, "ha": "center", "backgroundcolor": "white"}
    ax.text(0.5, 0.5, "no finite loss", transform=ax.transAxes, **look)


def _drawn(loss: float) -> float:
    """What to draw for `loss`: a gap where it is not finite."""
    return loss if math.isfinite(loss) else math.nan


def _look(index: int, count: int) -> tuple[Any, str]:
    """Colour and marker of a size: from green to dark violet as it grows, none too pale."""
    share = index / (count - 1) if count > 1 else 1.0
    return colormaps["viridis"](0.76 * (1 - share)), MARKERS[index % len(MARKERS)]


def _curve(
    ax: Axes, points: Points, top: float, color: Any, marker: str, aside: float = 0.0
) -> None:
    """A curve; its points off the scale are triangles in the strip, moved `aside` a little."""
    ax.plot(*_columns(points), marker=marker, markersize=3.5, color=color, linewidth=1.3)
    middle = (top + ax.get_ylim()[1]) / 2
    for x, y in points:
        if y > top:
            face = color if math.isinf(y) else "white"
            look = {"color": color, "markerfacecolor": face, "markersize": 5}
            ax.plot(x + aside, middle, "^", zorder=4, **look)


def _tips(ax: Axes, points: Points, top: float, what: str, **kinds: Any) -> None:
    """Invisible marks over drawn points, which say their numbers on the page; see `svg`."""
    middle, stopped = (top + ax.get_ylim()[1]) / 2, kinds.get("stopped") or ()
    for x, y in points:
        said = f"{y:.4f} nats" if math.isfinite(y) else "diverged or failed"
        text = f"{TOOLTIP_PREFIX}{what} {x:g}: {'stopped early' if x in stopped else said}"
        place = (x, y) if y <= top else (x + kinds.get("aside", 0.0), middle)
        if math.isfinite(place[1]):
            ax.plot(*place, "o", markersize=9, alpha=0.0, zorder=9, gid=text)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [_drawn(y) for _, y in points]


def _seeds(ax: Axes, curve: Document, color: Any, along: str) -> None:
    """The range of the seeds, as a band."""
    points = sorted((number(p[f"log2_{along}"]), _losses(p)) for p in curve.get("points") or ())
    shown = [(eta, losses) for eta, losses in points if losses and math.isfinite(max(losses))]
    lows, highs = [min(losses) for _, losses in shown], [max(losses) for _, losses in shown]
    ax.fill_between([eta for eta, _ in shown], lows, highs, color=color, alpha=0.18, linewidth=0)


def _size_verdict(verdict: Document, curve: Document) -> Document:
    """The verdict on the size of `curve`, empty when there is none."""
    sizes = verdict.get("sizes") or ()
    return next((size for size in sizes if is_curve_of(size["size"], curve)), {})


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
    _strip(ax, top)
    stopped = {number(value) for value in line.get("stopped_log2") or ()}
    _curve(ax, [(x, y) for x, y in points if x not in stopped], top, LINE_COLOR, "o")
    for x in stopped:
        ax.plot(x, (top + ax.get_ylim()[1]) / 2, zorder=4, **STOPPED)
    what = f"{line['name']}{', place' if choices else ', log2'}"
    _tips(ax, points, top, what, stopped=stopped)
    if choices:
        texts = [_short(str(choice), 12) for choice in choices]
        ax.set_xticks(range(len(choices)), texts, parse_math=False)
    best, loss = number(line.get("optimum_log2")), number(line.get("objective"))
    has_optimum = math.isfinite(best) and math.isfinite(loss)
    if has_optimum:
        ax.plot(best, loss, color=LINE_COLOR, zorder=5, **STAR)
    value = f"{choices[round(best)]}" if choices and has_optimum else f"{best:.4g}"
    title = f"{_short(line['name'])}\n" + (f"optimum {value}" if has_optimum else "no optimum")
    ax.set_title(title, fontsize=8, parse_math=False)


def _short(name: str, most: int = 27) -> str:
    """A name that fits over a panel."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _phases(ax: Axes, ends: Mapping[str, object]) -> None:
    """Shade every other phase, and name them above the axes, where there is room for a name."""
    names = sorted(ends, key=lambda name: number(ends[name]))
    edges = [0.0, *(number(ends[name]) for name in names)]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    for low, high in list(pairwise(edges))[1::2]:
        ax.axvspan(low, high, facecolor=STRIP, edgecolor="none", zorder=0)
    room = [True, *(after - before > 0.12 * edges[-1] for before, after in pairwise(middles))]
    texts = [_short(name, 16) if free else "" for name, free in zip(names, room, strict=False)]
    above = ax.secondary_xaxis("top")
    above.set_xticks(middles, texts, color=FAINT, parse_math=False)
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)


def _key(label: str, **look: Any) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], label=label, **{"linestyle": "none", "markersize": 5, **look})


def _off_scale(curves: Sequence[Points], top: float) -> list[Line2D]:
    """Legend entries for the kinds of points off the scale that there are."""
    above = [y for points in curves for _, y in points if y > top]
    kinds = [("diverged", FAINT, any(map(math.isinf, above)))]
    kinds.append(("above the axis", "white", any(map(math.isfinite, above))))
    look = {"color": FAINT, "marker": "^"}
    return [_key(name, markerfacecolor=face, **look) for name, face, there in kinds if there]
