"""Pictures of a search's trials, by Optuna, from their history to parallel coordinates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import optuna
from matplotlib import pyplot, rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial
from optuna.visualization import matplotlib as pictures

from sweeper.report.drawing import LOSS_LABEL, STYLE, WIDTH, loss_limits, shortened
from sweeper.search.optuna.mapping import ended, quiet, ranges_of
from sweeper.trial import Result, Space

MOST_TRIALS = 1000
"""So many trials are drawn, evenly over all: a page stays below a megabyte."""
MOST_DRAWN = 6
PANELS = 3
"""Slices beside each other: more would be too small to be read."""
LEAST_TRIALS = 20
"""Fewer tell nothing of which hyperparameters matter."""
LEAST_PAIRS = 12
"""So many points of two hyperparameters, off a cross, make contours."""


def search_pictures(results: Sequence[Result], space: Space) -> dict[str, Figure]:
    """What Optuna draws of results, by name; `space` has the ranges of their hyperparameters.

    A loss far above the others, and one that diverged, is drawn at the top of the rest.
    """
    results = [
        result
        for result in results
        if not math.isnan(result.objective)
        and all(0 < value < math.inf for value in result.trial.hps.values())
    ]
    results = results[:: max(1, math.ceil(len(results) / MOST_TRIALS))]
    finite = {result.objective for result in results if math.isfinite(result.objective)}
    names = varied(results)
    if len(finite) < 2 or not names:
        return {}
    losses = [(0.0, result.objective) for result in results]
    bottom, top = loss_limits([losses])
    ranges = ranges_of((result.trial for result in results), space)
    with quiet():
        study = optuna.create_study()
        study.add_trials([ended(result, ranges) for result in results])

    def loss_of(trial: FrozenTrial) -> float:
        return top if trial.value is None else min(trial.value, top)

    def drawn(plot: Callable[..., Any], size: tuple[float, float], **options: Any) -> Figure:
        options = {"target": loss_of, "target_name": LOSS_LABEL} | options
        with rc_context({**STYLE, "figure.constrained_layout.use": True}):
            axes = plot(study, **options)
            figure: Figure = np.ravel(axes)[0].figure
            pyplot.close(figure)  # a page's, and none that a notebook shows
            figure.set(size_inches=size, facecolor="none")
            _make_readable(figure)
        return figure

    made: dict[str, Figure] = {}
    with quiet():
        made["history"] = drawn(pictures.plot_optimization_history, (WIDTH, 2.7), target=None)
        made["history"].axes[0].set_ylim(bottom, top)
        if len(results) >= LEAST_TRIALS and len(names) > 1:
            judge = PedAnovaImportanceEvaluator()
            matters = get_param_importances(study, evaluator=judge, params=names, target=loss_of)
            names = sorted(names, key=lambda name: -matters[name])
            size = WIDTH, 0.9 + 0.3 * len(names)
            plot = pictures.plot_param_importances
            made["importance"] = drawn(plot, size, evaluator=judge, params=names)
        names = names[:MOST_DRAWN]
        for start in range(0, len(names), PANELS):
            few = names[start : start + PANELS]
            size = WIDTH, 2.4
            made[f"slices-{start}"] = drawn(pictures.plot_slice, size, params=few)
        if len(names) > 1:
            size = max(WIDTH, 1.2 * (len(names) + 1)), 3.4
            made["parallel"] = drawn(pictures.plot_parallel_coordinate, size, params=names)
        if (pair := tried_together(results)) is not None:
            made["contours"] = drawn(pictures.plot_contour, (WIDTH, 3.6), params=[*pair])
    return made


def _make_readable(figure: Figure) -> None:
    """Optuna's figure in the page's letters: its titles are in the caption."""
    figure.suptitle("")
    for ax in figure.axes:
        ax.set_title("")
        if (legend := ax.get_legend()) is not None:
            legend.remove()  # of a single entry, the loss
        ax.tick_params(labelsize=7, length=2)
        ax.grid(visible=False)
        for axis in (ax.xaxis, ax.yaxis):
            axis.label.set_fontsize(8)
            axis.label.set_text(shortened(axis.label.get_text()))
            if axis.get_scale() == "log":  # values are powers of two
                axis.set_major_locator(LogLocator(base=2, numticks=4))
                axis.set_major_formatter(_power if axis is ax.xaxis else "{x:.3g}")
                axis.set_minor_locator(NullLocator())
        for label in ax.get_yticklabels():  # lines pass under those of parallel coordinates
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.7})
        for text in ax.texts:
            text.set_fontsize(8)


def _power(x: float, _: object) -> str:
    return f"2^{math.log2(x):g}\n{x:.3g}"


def varied(results: Sequence[Result]) -> list[str]:
    """The hyperparameters that all trials have and not all have alike, eta first."""
    values = [result.trial.values for result in results]
    names = [
        name
        for name in (values[0] if values else ())
        if all(name in each for each in values) and len({each[name] for each in values}) > 1
    ]
    return sorted(names, key=lambda name: name != "eta")


def tried_together(results: Sequence[Result]) -> tuple[str, str] | None:
    """The two hyperparameters that were tried most together; None where none were."""
    values = [result.trial.hps for result in results]
    names = [name for name in varied(results) if name not in results[0].trial.choices]

    def together(pair: tuple[str, str]) -> int:
        # Lines through one point make a cross, whose arms say nothing of what lies between.
        points = {tuple(math.log2(each[name]) for name in pair) for each in values}
        usual = [Counter(each[name] for each in values).most_common(1)[0][0] for name in pair]
        if np.linalg.matrix_rank(np.array([*points]) - np.mean([*points], axis=0)) < 2:
            return 0  # they lie on a line
        return sum(x != math.log2(usual[0]) and y != math.log2(usual[1]) for x, y in points)

    best = max(combinations(names, 2), key=together, default=None)
    return best if best and together(best) >= LEAST_PAIRS else None
