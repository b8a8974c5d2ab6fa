"""Figures of a search's trials: parallel coordinates, slices, and which hyperparameters matter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean, median
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.drawing import (
    DASHED,
    DEEP,
    FAINT,
    INK,
    KEY,
    LINE_COLOR,
    LOSS_LABEL,
    PALE,
    STYLE,
    TOOLTIP_PREFIX,
    WIDTH,
    draw_strip,
    draw_tips,
    legend_key,
    loss_limits,
    name_choices,
    new_panels,
    off_scale,
    run_id,
    say_nothing,
    set_scale,
    shortened,
)
from sweeper.search.strategy import Conclusion, LineResult
from sweeper.table import Cell, Column, Table, short
from sweeper.trial import Choice, Result, Trial

MOST_LINES = 300
"""So many trials are drawn: the best third of that, and the rest evenly over all others."""
MOST_AXES = 12
"""So many hyperparameters are told apart beside each other."""
MOST_TOLD = 100
"""So many of them say their numbers."""
MOST_ROWS = 1500
"""So many trials are in the page's table, the last ones: a page stays below a megabyte."""
BRUSHED = "brush"
"""The id of a figure whose lines can be chosen by ranges of its axes."""


@dataclass(frozen=True)
class SearchedAxis:
    """A hyperparameter that takes several values: those of all trials, in their order.

    Places in `choices` where they are no numbers on a scale, else log2.
    """

    name: str
    values: Sequence[float]
    choices: Sequence[Choice] = ()

    def text(self, value: float) -> str:
        """A value as people read it."""
        return str(self.choices[round(value)]) if self.choices else f"2^{round(value, 2):g}"


def searched_axes(results: Sequence[Result]) -> list[SearchedAxis]:
    """The hyperparameters that all trials have and not all have alike, eta first."""
    axes = []
    for name in results[0].trial.log2_hps if results else ():
        values = [result.trial.log2_hps.get(name, math.nan) for result in results]
        if len(set(values)) > 1 and not any(map(math.isnan, values)):
            axes.append(SearchedAxis(name, values))
    for name in results[0].trial.choices if results else ():
        chosen = [result.trial.choices.get(name) for result in results]
        kinds = sorted({choice for choice in chosen if choice is not None}, key=str)
        if len(kinds) > 1 and None not in chosen:
            places = [float(kinds.index(choice)) for choice in chosen if choice is not None]
            axes.append(SearchedAxis(name, places, kinds))
    return sorted(axes, key=lambda axis: axis.name != "eta")


def drawn_of(results: Sequence[Result]) -> list[Result]:
    """The trials that are drawn where there are too many, worst first; what failed has no loss."""
    told = [result for result in results if not math.isnan(result.objective)]
    ranked = sorted(told, key=lambda result: result.objective)
    best, rest = ranked[: MOST_LINES // 3], ranked[MOST_LINES // 3 :]
    stride = max(1, math.ceil(len(rest) / (MOST_LINES - len(best)))) if rest else 1
    return [*best, *rest[::stride]][::-1]


def drawn_axes(results: Sequence[Result], axes: list[SearchedAxis]) -> list[SearchedAxis]:
    """The axes that parallel coordinates have room for: where it is known, those that matter."""
    if len(axes) <= MOST_AXES:
        return axes
    matters = importance(None, results, draws=0)
    values = matters.values if isinstance(matters, Importance) else {}
    first = sorted(axes, key=lambda axis: -values.get(axis.name, (0.0,))[0])[:MOST_AXES]
    return [axis for axis in axes if axis in first]


def hidden_note(results: Sequence[Result]) -> str:
    """What of the trials is not drawn as parallel coordinates."""
    axes = len(searched_axes(results))
    said = (
        f"Of {axes} hyperparameters the {MOST_AXES} that matter most." if axes > MOST_AXES else ""
    )
    told = sum(not math.isnan(result.objective) for result in results)
    drawn = len(drawn_of(results))
    if drawn != told:
        said = f"Drawn are {drawn} of {told} trials, the best among them. {said}".strip()
    return said


def _colors(losses: Sequence[float], top: float) -> list[Any]:
    """Dark where the loss is low; grey where there is none."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    low = min(finite, default=0.0)
    span = max(top - low, 1e-9)
    viridis = colormaps["viridis"]
    return [
        viridis(DEEP + (PALE + 0.16 - DEEP) * min(1.0, (loss - low) / span))
        if math.isfinite(loss)
        else FAINT
        for loss in losses
    ]


@rc_context(STYLE)
def parallel_figure(results: Sequence[Result]) -> Figure:
    """Parallel coordinates: a line a trial through its hyperparameters to its loss."""
    shown = drawn_of(results)
    axes = drawn_axes(results, searched_axes(shown))
    losses = [result.objective for result in shown]
    bottom, top = loss_limits([[(0.0, loss) for loss in losses]], median)
    count = len(axes)
    figure = Figure(figsize=(max(WIDTH, 1.15 * (count + 1)), 3.4), layout="constrained")
    figure.set_gid(BRUSHED)
    ax = figure.subplots()
    rows = []
    for axis in axes:
        low, high = min(axis.values), max(axis.values)
        rows.append([(value - low) / (high - low) for value in axis.values])
    # The loss: above 1 what is off its scale, and above that what diverged.
    heights = [
        (loss - bottom) / (top - bottom) if loss <= top else 1.06 if math.isfinite(loss) else 1.12
        for loss in losses
    ]
    best = losses.index(min(losses)) if any(map(math.isfinite, losses)) else -1
    for index, color in enumerate(_colors(losses, top)):
        places = [*(row[index] for row in rows), heights[index]]
        look: dict[str, Any] = {"color": color, "linewidth": 0.9, "alpha": 0.75}
        if not math.isfinite(losses[index]):
            look |= {"linestyle": DASHED, "linewidth": 0.6, "alpha": 0.6}
        if index == best:
            look |= {"linewidth": 2.4, "alpha": 1.0, "zorder": 4}
        ax.plot(range(count + 1), places, gid=run_id([shown[index]]), **look)
    for place, axis in enumerate(axes):
        low, high = min(axis.values), max(axis.values)
        ax.axvline(place, color=INK, linewidth=0.8, zorder=5)
        ticks = range(len(axis.choices)) if axis.choices else (low, (low + high) / 2, high)
        for tick in ticks:
            _label(ax, place, (tick - low) / (high - low), shortened(axis.text(tick), 12))
    ax.axvline(count, color=INK, linewidth=0.8, zorder=5)
    losses_named = (bottom, (bottom + top) / 2, top) if best >= 0 else ()
    digits = 4 if len({f"{tick:.4g}" for tick in losses_named}) == len(losses_named) else 6
    for tick in losses_named:
        _label(ax, count, (tick - bottom) / (top - bottom), f"{tick:.{digits}g}")
    for index in range(max(0, len(shown) - MOST_TOLD), len(shown)):
        at = ", ".join(f"{axis.name} {axis.text(axis.values[index])}" for axis in axes)
        loss = f"{losses[index]:.4f} nats" if math.isfinite(losses[index]) else "diverged"
        gid = f"{TOOLTIP_PREFIX}{at}: {loss}"
        ax.plot(count, heights[index], "o", markersize=7, alpha=0.0, zorder=9, gid=gid)
    above = [loss for loss in losses if loss > top]
    if any(map(math.isinf, above)):
        ax.annotate("diverged", (count, 1.12), (5, 0), "data", "offset points", **_SMALL)
    if any(map(math.isfinite, above)):
        ax.annotate("above", (count, 1.06), (5, 0), "data", "offset points", **_SMALL)
    ax.set(xlim=(-0.1, count + 0.75), ylim=(-0.06, 1.17 if above else 1.06))
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    # Long names of neighbours stand on two lines, one above the other.
    names = [shortened(axis.name, 26) for axis in axes]
    long = max(map(len, names), default=0) * (count + 1) > 80
    names = ["\n" * (long and index % 2) + name for index, name in enumerate(names)]
    ax.set_xticks(range(count + 1), [*names, "loss (nats)"], parse_math=False)
    return figure


_SMALL: dict[str, Any] = {"fontsize": 7, "color": FAINT, "va": "center"}


def _label(ax: Axes, place: float, height: float, text: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    look: dict[str, Any] = {"fontsize": 7, "va": "center", "zorder": 6, "bbox": box}
    offset: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "parse_math": False}
    ax.annotate(text, (place, height), **offset, **look)


@rc_context(STYLE)
def slices_figure(results: Sequence[Result]) -> Figure:
    """A panel a hyperparameter: every trial's loss against its value, later trials darker."""
    told = [result for result in results if not math.isnan(result.objective)]
    # Evenly over the search, so that early and late ones are seen.
    told = told[:: max(1, math.ceil(len(told) / (2 * MOST_LINES)))]
    axes = searched_axes(told)
    losses = [result.objective for result in told]
    figure, panels = new_panels(len(axes), 1.7, edge=0.7)
    curves = [
        [(value, loss) for value, loss in zip(axis.values, losses, strict=True)] for axis in axes
    ]
    top = set_scale(panels[0], curves[:1], max)
    viridis = colormaps["viridis"]
    colors = [
        viridis(0.85 - 0.85 * index / max(1, len(losses) - 1)) for index in range(len(losses))
    ]
    least = min(range(len(losses)), key=lambda index: losses[index])
    for ax, axis, points in zip(panels, axes, curves, strict=True):
        draw_strip(ax, top)
        middle = (top + ax.get_ylim()[1]) / 2
        on = [index for index, loss in enumerate(losses) if loss <= top]
        off = [index for index, loss in enumerate(losses) if loss > top]
        ax.scatter(
            [axis.values[index] for index in on],
            [losses[index] for index in on],
            s=9,
            c=[colors[index] for index in on],
            linewidths=0,
            alpha=0.85,
            zorder=3,
            gid=run_id(told[index] for index in on),
        )
        look: dict[str, Any] = {"marker": "^", "s": 14, "edgecolors": FAINT, "linewidths": 0.7}
        look["zorder"] = 4  # over the strip
        for faces, which in (
            (FAINT, [index for index in off if math.isinf(losses[index])]),
            ("none", [index for index in off if math.isfinite(losses[index])]),
        ):
            ax.scatter(
                [axis.values[i] for i in which], [middle] * len(which), facecolors=faces, **look
            )
        if math.isfinite(losses[least]):
            said = f"best at {axis.text(axis.values[least])}"
            ax.axvline(axis.values[least], color=LINE_COLOR, linewidth=0.9, linestyle=DASHED)
            draw_tips(ax, [points[least]], top, f"{axis.name}, the best trial:")
        else:
            said = "no finite loss"
        if axis.choices:
            name_choices(ax, axis.choices)
        ax.set_title(f"{shortened(axis.name)}\n{said}", fontsize=8, parse_math=False)
    figure.supylabel(LOSS_LABEL, fontsize=9)
    figure.supxlabel("hyperparameter, log2", fontsize=9)
    handles = [
        legend_key("early", color=viridis(0.85), marker="o"),
        legend_key("late", color=viridis(0.0), marker="o"),
        legend_key("best trial", color=LINE_COLOR, linestyle=DASHED),
        *off_scale(curves[:1], top),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


LEAST_PAIRS = 12
"""So many points of two hyperparameters, off a cross, make contours."""


def contoured(results: Sequence[Result]) -> tuple[SearchedAxis, SearchedAxis] | None:
    """The two hyperparameters that were tried most together; None where none were."""
    if len({result.objective for result in results if math.isfinite(result.objective)}) < 2:
        return None
    axes = [axis for axis in searched_axes(results) if not axis.choices]

    def together(pair: tuple[SearchedAxis, SearchedAxis]) -> int:
        # Lines through one point make a cross, whose arms say nothing of what lies between.
        usual = [Counter(axis.values).most_common(1)[0][0] for axis in pair]
        points = {*zip(*(axis.values for axis in pair), strict=True)}
        middle = np.array([*points]).mean(0)
        if np.linalg.matrix_rank(np.array([*points]) - middle) < 2:
            return 0  # they lie on a line
        return sum(x != usual[0] and y != usual[1] for x, y in points)

    best = max(combinations(axes, 2), key=together, default=None)
    return best if best and together(best) >= LEAST_PAIRS else None


@rc_context(STYLE)
def contour_figure(results: Sequence[Result]) -> Figure:
    """Contours of the least loss over two hyperparameters, and the trials that they rest on."""
    told = [result for result in results if not math.isnan(result.objective)]
    pair = contoured(told)
    assert pair is not None
    least = dict[tuple[float, float], Result]()
    for point, result in zip(zip(*(a.values for a in pair), strict=True), told, strict=True):
        x, y = point
        if (x, y) not in least or result.objective < least[x, y].objective:
            least[x, y] = result
    losses = [result.objective for result in least.values()]
    _, top = loss_limits([[(0.0, loss) for loss in losses]], median)
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    ax = figure.subplots()
    xs, ys = ([point[n] for point in least] for n in (0, 1))
    heights = [min(loss, top) for loss in losses]
    shown = ax.tricontourf(xs, ys, heights, levels=12, cmap="viridis", zorder=1)
    figure.colorbar(shown, label=f"least {LOSS_LABEL}, the best of the others")
    look: dict[str, Any] = {"s": 14, "linewidths": 0.6, "edgecolors": "white", "zorder": 3}
    ax.scatter(xs, ys, c=INK, gid=run_id(least.values()), **look)
    best = min(least, key=lambda point: least[point].objective)
    ax.plot(*best, "*", markersize=11, color="white", markeredgecolor=INK, zorder=4)
    ax.set_xlabel(f"{shortened(pair[0].name)}, log2", parse_math=False)
    ax.set_ylabel(f"{shortened(pair[1].name)}, log2", parse_math=False)
    ax.grid(visible=False)
    return figure


def trials_table(results: Sequence[Result], *, deep: bool) -> Table:
    """A row a trial, the last ones first: what it was, how it ended, where its files lie.

    Not `deep`: trials take no depth.
    """
    shown = sorted(results, key=lambda result: -result.finished_at)[:MOST_ROWS]
    every = dict.fromkeys(name for r in shown for name in (*r.trial.log2_hps, *r.trial.choices))
    values = {name: {str(in_use_of(r.trial).get(name)) for r in shown} for name in every}
    # What all have in common would push the reason of a failure out of the page.
    names = [name for name in every if len(values[name]) > 1]
    shared = [f"{name} {_used(shown[0], name)}" for name in every if name not in names]
    logged = any(r.trial.spec.runner.get("name") == "command" for r in shown)
    told = any(result.error for result in shown)
    table = Table("All trials", [Column("trial", left=True)], key="trials", detail=True)
    table.columns = [
        *table.columns,
        Column("status", left=True),
        Column("loss", form=".4f"),
        Column("phase", left=True),
        *(Column(name) for name in names),
        *(Column(name) for name in ("width", *["depth"] * deep, "seed", "steps")),
        Column("time"),
        *[Column("reason", left=True)] * told,
        *[Column("log", left=True)] * logged,
    ]
    for result in shown:
        trial = result.trial
        log = f"trials/{trial.key}/log.txt" if trial.spec.runner.get("name") == "command" else ""
        loss = "" if math.isnan(result.objective) else result.objective
        table.add(
            trial.key[:KEY],
            result.status,
            loss,
            trial.phase,
            *(_used(result, name) for name in names),
            *(trial.width, *[trial.spec.depth] * deep, trial.seed, result.steps),
            Cell(result.seconds, f"{result.seconds:.4g} s"),
            *[" ".join(result.error.split())[:300]] * told,
            *[Cell(log, log, link=log) if log else ""] * logged,
        )
    said = [f"The last {len(shown):,} of {len(results):,} trials."] * (len(shown) < len(results))
    said += [f"All have {', '.join(shared)}."] * bool(shared)
    table.legend = [" ".join(said)] * bool(said)
    return table


def _used(result: Result, name: str) -> str | Choice | None:
    value = in_use_of(result.trial).get(name)
    return short(value) if isinstance(value, float) else value


def in_use_of(trial: Trial) -> dict[str, Choice]:
    """A trial's hyperparameters as they are used: plain numbers, and choices."""
    return {**trial.hps, **trial.choices}


# Which hyperparameters matter.


LEAST_TRIALS = 20
"""Fewer tell nothing of which hyperparameters matter."""
DRAWS = 16


@dataclass(frozen=True, kw_only=True)
class Importance:
    """A number a hyperparameter, with the least and the largest where it was found repeatedly.

    `unit` is what the numbers are, `basis` what they rest on.
    """

    values: dict[str, tuple[float, float, float]]
    unit: str
    basis: str


def importance(
    conclusion: Conclusion | None, results: Sequence[Result], *, draws: int = DRAWS
) -> Importance | str | None:
    """Which hyperparameters matter; in words why nobody can say; None where there is one alone.

    By the lines of an independent search, else by Optuna's PED-ANOVA (Watanabe, Bansal and Hutter,
    2023), whose spread at most so many `draws` tell.
    """
    lines = [line for line in conclusion.lines if _is_line(line)] if conclusion else []
    if len(lines) > 1:
        costs = {line.name: _cost_of_two(line) for line in lines}
        return Importance(
            values={name: (cost, cost, cost) for name, cost in costs.items()},
            unit="nats lost by a factor of two",
            basis="The search's own lines: what half and twice the best value lose on average, "
            "read off the measured points, all other hyperparameters fixed. A choice: what the "
            "other values lose. ∞: it diverges there.",
        )
    axes = searched_axes(results)
    if len(axes) < 2:
        return None
    ended = [result for result in results if not math.isnan(result.objective)]
    finite = [result for result in ended if math.isfinite(result.objective)]
    if len(finite) < LEAST_TRIALS:
        return (
            f"Which hyperparameters matter is not said before {LEAST_TRIALS} trials have a loss; "
            f"{len(finite)} have one."
        )
    if len({result.objective for result in ended}) == 1:
        return "Which hyperparameters matter cannot be said: all trials have the same loss."
    return _by_anova(ended, draws)


def _is_line(line: LineResult) -> bool:
    return math.isfinite(line.objective) and len(line.points_log2) > 1


def _cost_of_two(line: LineResult) -> float:
    """Mean loss over the optimum's at one in log2 to either side, where the line reaches it."""
    points = sorted(line.points_log2)
    if line.choices:
        return fmean(
            max(0.0, loss - line.objective) for x, loss in points if x != line.optimum_log2
        )
    costs = []
    for wanted in (line.optimum_log2 - 1, line.optimum_log2 + 1):
        for (x0, y0), (x1, y1) in pairwise(points):
            if x0 <= wanted <= x1 and x1 > x0:
                share = (wanted - x0) / (x1 - x0)
                # inf * 0 is NaN: a measured point is that point, whatever lies beside it.
                at = y0 if share == 0 else y1 if share == 1 else y0 + share * (y1 - y0)
                costs.append(max(0.0, at - line.objective))
                break
    return fmean(costs) if costs else math.nan


def _by_anova(results: Sequence[Result], draws: int) -> Importance:
    # It brings Optuna, which no other figure needs.
    from sweeper.search.optuna.importance import importances

    axes = searched_axes(results)
    # Adding trials to a study is what takes time: fewer draws of many.
    draws = min(draws, max(4, 2000 // len(results)))
    diverged = sum(math.isinf(result.objective) for result in results)
    return Importance(
        values=importances(
            {a.name: [*map(a.text, a.values)] if a.choices else a.values for a in axes},
            [result.objective for result in results],
            draws,
        ),
        unit="share of the importance",
        basis=f"Optuna's PED-ANOVA over {len(results)} trials"
        f"{f', {diverged} diverged ones among the worst' if diverged else ''}: how far the values "
        "of the best tenth differ from all values that were tried. It ranks; it says nothing of "
        "the loss. Thin lines: the least and the largest share in "
        f"{draws} draws of the trials with replacement.",
    )


@rc_context(STYLE)
def importance_figure(found: Importance) -> Figure:
    """A bar a hyperparameter, the most important on top."""

    def rank(name: str) -> float:
        value = found.values[name][0]
        return -math.inf if math.isnan(value) else value

    names = sorted(found.values, key=rank)
    figure = Figure(figsize=(WIDTH, 0.75 + 0.3 * len(names)), layout="constrained")
    ax = figure.subplots()
    known = [high for _, _, high in found.values.values() if math.isfinite(high)]
    reach = max(known, default=0.0) or 1.0
    for row, name in enumerate(names):
        value, low, high = found.values[name]
        width = value if math.isfinite(value) else reach if math.isinf(value) else 0.0
        ax.barh(row, width, height=0.6, color=LINE_COLOR if math.isfinite(value) else FAINT)
        if high > low:
            ax.plot([low, high], [row, row], color=INK, linewidth=0.9, zorder=4)
        text = "∞" if math.isinf(value) else "not known" if math.isnan(value) else f"{value:.3g}"
        end = max(width, high) if math.isfinite(high) else width
        ax.annotate(text, (end, row), (4, 0), "data", "offset points", va="center", fontsize=8)
    if not names:
        say_nothing(ax)
    ax.set_yticks(range(len(names)), [shortened(name, 30) for name in names], parse_math=False)
    ax.set(xlim=(0, 1.15 * reach), xlabel=found.unit)
    ax.grid(visible=False, axis="y")
    return figure
