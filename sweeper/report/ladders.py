"""Several studies side by side: loss against the learning rate, a line a width, on one scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.files import write_atomically
from sweeper.report.documents import Document, axis_verdict, ladder_curves, number, planned_value
from sweeper.report.drawing import (
    BESIDE,
    DASHED,
    LOSS_LABEL,
    MARKERS,
    STYLE,
    Points,
    draw_curve,
    draw_strip,
    draw_tips,
    legend_key,
    means_of,
    off_scale,
    set_scale,
    shortened,
    size_verdict,
)

AXIS = "width"
MOST_COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 2.9, 3.0
"""Inches."""
MOST_LETTERS = 30
"""So long is a title over a panel."""
MARGIN = 0.3
"""Octaves of the learning rate beside the outermost points."""


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


LIGHT = Theme(ink="#222222", faint="#777777", grid="#e4e4e4", strip="#f0f0f0", pale=0.76, deep=0.0)
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
        columns = min(MOST_COLUMNS, len(panels))
        rows = math.ceil(len(panels) / columns)
        size = (1.3 + PANEL_WIDTH * columns, 0.4 + PANEL_HEIGHT * rows)
        figure = Figure(figsize=size, layout="constrained")
        every = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
        for ax in every[len(panels) :]:
            ax.remove()
        shown = [points for panel in panels for points in panel.points.values()]
        top = set_scale(every[0], shown, median)
        looks = _looks(panels, theme)
        span = max((high - low for low, high in map(_reach, panels)), default=1.0)
        for ax, panel in zip(every, panels, strict=False):
            _draw(ax, panel, top, looks, theme)
            middle = sum(_reach(panel)) / 2
            ax.set_xlim(middle - span / 2 - MARGIN, middle + span / 2 + MARGIN)
        figure.supxlabel("learning rate, log2 η", fontsize=9)
        figure.supylabel(LOSS_LABEL, fontsize=9)
        handles = _legend(looks, theme) + off_scale(shown, top)
        figure.legend(handles=handles, title=AXIS, **BESIDE)
    return figure


def write_picture(panels: Sequence[Panel], path: Path) -> tuple[Path, Path]:
    """Write the figure to `path`, and for dark pages beside it as NAME-dark.svg; no background.

    Letters are drawn as shapes, so that it looks alike wherever it is shown.
    """
    dark = path.with_name(f"{path.stem}-dark.svg")
    for file, theme in ((path, LIGHT), (dark, DARK)):
        figure, buffer = ladders_figure(panels, theme), StringIO()
        for tip in figure.findobj(lambda artist: str(artist.get_gid()).startswith("tip ")):
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


def _looks(panels: Sequence[Panel], theme: Theme) -> dict[int, dict[str, Any]]:
    """Colour and marker of every width, the same in all panels."""
    widths = sorted({width for panel in panels for width in panel.curves})
    looks = {}
    for index, width in enumerate(widths):
        share = index / (len(widths) - 1) if len(widths) > 1 else 1.0
        color = colormaps["viridis"](theme.pale + share * (theme.deep - theme.pale))
        looks[width] = {"color": color, "marker": MARKERS[index % len(MARKERS)]}
    return looks


def _draw(
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
    answer, drift = verdict.get("answer", "no verdict yet"), _drift(verdict)
    title = f"{panel.title}: {answer}"
    if len(title) > MOST_LETTERS:
        title, drift = shortened(panel.title, MOST_LETTERS), f"{answer}; {drift}"
    ax.set_title(title, pad=17, parse_math=False, fontweight="bold")
    note = ax.annotate(drift, (0, 1), (0, 6), "axes fraction", "offset points")
    note.set(fontsize=8.5, color=theme.faint, in_layout=False)


_STAR: dict[str, Any] = {"marker": "*", "markersize": 11, "markeredgewidth": 0.7, "zorder": 5}


def _drift(verdict: Document) -> str:
    """How far the optima lie apart, in words."""
    sizes = verdict.get("sizes") or ()
    shifts = [number((size.get("shift_log2") or {}).get("value")) for size in sizes]
    known = [shift for shift in shifts if math.isfinite(shift)]
    if not known:
        return "no optimum"
    return f"best η moves by {max(known) - min(known):.1f} octaves"


def _legend(looks: Mapping[int, dict[str, Any]], theme: Theme) -> list[Any]:
    handles = [legend_key(str(width), linestyle="-", **look) for width, look in looks.items()]
    star = _STAR | {"markeredgecolor": theme.ink, "color": theme.faint, "linestyle": "-"}
    handles.append(legend_key("best η", **star | {"markersize": 9}))
    handles.append(legend_key("transferred η", color=theme.faint, linestyle=DASHED))
    return handles
