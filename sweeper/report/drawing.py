"""What all figures share, how they become files, and the curves over a ladder."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from io import BytesIO, StringIO
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sweeper.decide.ladder_verdict import Verdict
from sweeper.decide.validation import Validation
from sweeper.errors import printable
from sweeper.files import write_atomically
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import SizeCurve, label_size

Points = Sequence[tuple[float, float]]
"""(log2 value, mean loss), ascending; +inf where a run diverged."""

# Any, because the stubs want every key spelled out as a literal.
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    # Losses that are nearly alike are read as they are, not as what they have above the least.
    "axes.formatter.useoffset": False,
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
MOST_COLUMNS = 3
WIDTH = 6.5
"""Inches: the text of a page in a paper."""
INK, FAINT, STRIP = "#222222", "#777777", "#f0f0f0"
LINE_COLOR = "#31688e"
MARKERS = "osDPXhdp"
"""One a size, so that curves can be told apart without colour; triangles mean off the scale."""
PALE, DEEP = 0.76, 0.0
"""Places in viridis of the smallest and the largest size: green, not too pale, to dark violet."""
LOSS_LABEL = "loss (nats)"
TICK_STEPS = [1, 2, 2.5, 5, 10]
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
STAR: dict[str, Any] = {"marker": "*", "markersize": 8, "markeredgecolor": INK}
STAR |= {"markeredgewidth": 0.6, "linestyle": "none"}
BESIDE: dict[str, Any] = {"loc": "outside right upper", "alignment": "left"}


@rc_context(STYLE)
def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write `figure` as PNG and as SVG to `path` plus the suffix, each file atomically."""
    image, drawing = BytesIO(), StringIO()
    # Without dates and versions equal figures are equal files.
    figure.savefig(image, format="png", dpi=160, metadata={"Software": None})
    figure.set_layout_engine(None)  # once is enough, and takes as long as to draw
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    png, vector = (path.with_name(f"{path.name}.{end}") for end in ("png", "svg"))
    write_atomically(png, image.getvalue())
    # Names lie in its comments as they are, and XML has no controls.
    write_atomically(vector, printable(drawing.getvalue()).encode())
    return png, vector


@rc_context(STYLE)
def svg(figure: Figure, name: str = "figure") -> str:
    """`figure` as an <svg> element for an HTML page: see-through, as wide as its box.

    Its ids begin with `name`, which must be unique in the page. Equal figures give equal text.
    """
    buffer = StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    figure.set_layout_engine(None)  # as on the page, so in its files; "none" would draw twice
    text = printable(buffer.getvalue())
    text = text[text.index("<svg") :]
    # A style element would reach out of the drawing and into the page.
    text = re.sub("<style.*?</style>", "", text, count=1, flags=re.DOTALL)
    # Ids hold for a whole page: two drawings would take each other's clip paths and glyphs.
    text = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r' (width|height)="[0-9.]+pt"', "", text, count=2)
    return text.replace("<svg", '<svg style="stroke-linejoin: round"', 1)


_pyplot = ContextVar("pyplot", default=False)
"""Whether figures are pyplot's, which a notebook shows at the end of a cell."""


@contextmanager
def pyplot_figures() -> Iterator[None]:
    """Figures that are made in here are pyplot's: their user shows, changes and closes them."""
    from matplotlib import pyplot

    # Loads the backend now: a notebook's makes matplotlib interactive, else nothing is shown, and
    # within a figure's `rc_context` that would be undone.
    pyplot.draw_if_interactive()  # type: ignore[no-untyped-call]
    token = _pyplot.set(True)
    try:
        yield
    finally:
        _pyplot.reset(token)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    options: dict[str, Any] = {"figsize": (width, height), "layout": "constrained"}
    if not _pyplot.get():
        return Figure(**options)
    from matplotlib import pyplot

    return pyplot.figure(**options)


def new_panels(
    count: int, height: float, *, edge: float = 0.0, width: float = WIDTH
) -> tuple[Figure, list[Axes]]:
    """A figure, `edge` inches higher than its rows of `height`, and its panels, or an empty one."""
    columns = min(MOST_COLUMNS, max(1, count))
    rows = max(1, math.ceil(count / columns))
    figure = new_figure(width, edge + height * rows)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for ax in panels[max(1, count) :]:
        ax.remove()
    return figure, panels[: max(1, count)]


def means_of(curve: SizeCurve) -> Points:
    """(log2 value, mean over the seeds) of a curve, ascending; a run that failed counts as +inf."""
    means = ((x, fmean(losses)) for x, losses in sorted(curve.losses.items()) if losses)
    return [(x, math.inf if math.isnan(mean) else mean) for x, mean in means]


def loss_limits(curves: Sequence[Points]) -> tuple[float, float]:
    """Bottom and top of a loss axis that shows the optima.

    A curve is as deep as its minimum lies below its median; the top is four times the median
    depth above the highest minimum, so that one huge loss does not squash the rest.
    """
    finite = [sorted(y for _, y in points if math.isfinite(y)) for points in curves]
    finite = [losses for losses in finite if losses]
    if not finite:
        return 0.0, 1.0
    low, high = min(v[0] for v in finite), max(v[0] for v in finite)
    # At least a quarter of the spread of the minima above the highest one, and no empty space.
    depth = median([median(v) - v[0] for v in finite])
    top = min(max(v[-1] for v in finite), max(high + 4.0 * depth, high + (high - low) / 4))
    room = 0.06 * max(top - low, 1e-3 * abs(low), 1e-6)
    return low - room, top + room


def set_scale(
    ax: Axes,
    curves: Sequence[Points],
) -> float:
    """Set the loss axis, with a strip on top for points off the scale; the strip's lower edge."""
    bottom, top = loss_limits(curves)
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
        # Nothing to draw, on an axis whose numbers would mean nothing.
        ax.set_yticks([])
        look: dict[str, Any] = {"color": FAINT, "ha": "center", "backgroundcolor": "white"}
        ax.text(0.5, 0.5, "no finite loss", transform=ax.transAxes, **look)
    return top


def draw_strip(ax: Axes, top: float) -> None:
    """Cover what is above `top` when there is room for a strip; its rim hides clipped lines."""
    upper = ax.get_ylim()[1]
    if upper > top:
        look: dict[str, Any] = {"facecolor": STRIP, "edgecolor": STRIP, "linewidth": 0.8}
        ax.axhspan(top, upper, clip_on=False, zorder=2.4, **look)


def look_of(index: int, count: int) -> tuple[Any, str]:
    """Colour and marker of a size, deeper in viridis as it grows."""
    share = index / (count - 1) if count > 1 else 1.0
    return colormaps["viridis"](PALE + share * (DEEP - PALE)), MARKERS[index % len(MARKERS)]


def draw_curve(
    ax: Axes, points: Points, top: float, color: Any, marker: str, aside: float = 0.0
) -> None:
    """A curve; its points off the scale are triangles in the strip, moved `aside` a little."""
    losses = [y if math.isfinite(y) else math.nan for _, y in points]  # NaN: a gap
    look = {"marker": marker, "markersize": 3.5, "color": color, "linewidth": 1.3}
    ax.plot([x for x, _ in points], losses, **look)
    middle = (top + ax.get_ylim()[1]) / 2
    for x, y in points:
        if y > top:
            face = color if math.isinf(y) else "none"
            ax.plot(x + aside, middle, "^", color=color, mfc=face, markersize=5, zorder=4)


def powers(*axes: Axis) -> None:
    """Name log2 values on axes as powers, with the numbers below them: 2^-7, 0.00781."""
    for axis in axes:
        axis.set_major_formatter(lambda x, _: f"2^{x:g}\n{2.0**x:.3g}")


def error_bar(ax: Axes, x: float, estimate: Estimate, **look: Any) -> None:
    """A value with its interval upwards and downwards: matplotlib wants lengths, and not ends."""
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    ax.errorbar([x], [estimate.value], [[below], [above]], **look)


def legend_key(label: str, **look: Any) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], label=label, **{"linestyle": "none", "markersize": 5, **look})


def legend_below(figure: Figure, handles: Sequence[Any], **look: Any) -> None:
    """A legend under the panels, for which the figure grows: beside them a phone would cut it."""
    rows = math.ceil(len(handles) / MOST_COLUMNS) + ("title" in look)
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.17 * rows)
    below: dict[str, Any] = {"loc": "outside lower left", "alignment": "left"}
    figure.legend(handles=handles, ncols=MOST_COLUMNS, **below, **look)


def off_scale(curves: Sequence[Points], top: float) -> list[Line2D]:
    """Legend entries for the kinds of points off the scale that there are."""
    above = [y for points in curves for _, y in points if y > top]
    kinds = [("diverged", FAINT, any(map(math.isinf, above)))]
    kinds.append(("above the axis", "none", any(map(math.isfinite, above))))
    look = {"color": FAINT, "marker": "^"}
    return [legend_key(name, markerfacecolor=face, **look) for name, face, there in kinds if there]


def shortened(name: str, most: int = 27) -> str:
    """A name that fits over a panel."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


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
