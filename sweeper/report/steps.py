"""The loss over the steps of chosen trials: some of the search, and one of each width."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.drawing import (
    LINE_COLOR,
    LOSS_LABEL,
    STYLE,
    WIDTH,
    draw_tips,
    look_of,
)
from sweeper.report.ledger import loss_curve
from sweeper.setup import LADDER_PHASE, Trials
from sweeper.trial import Result

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
    ended = [one for one in trials.searched if one.status == "complete" and one.curve]
    ranked = sorted(ended, key=lambda one: one.objective)
    if not ranked:
        return []
    places = {"best": 0, "median": (len(ranked) - 1) // 2, "worst": len(ranked) - 1}
    taken: dict[int, str] = {}
    for name, place in places.items():
        taken.setdefault(place, name)
    return [Chosen(name=name, result=ranked[place]) for place, name in taken.items()]


def chosen_widths(trials: Trials) -> list[Chosen]:
    """Of every width of the ladder, the first seed at the learning rate of the least mean loss."""
    proofs = [one for one in trials.current if one.trial.phase == LADDER_PHASE]
    if not proofs:
        return []
    kind, _ = Counter(map(_kind, proofs)).most_common(1)[0]
    by_width: defaultdict[int, defaultdict[float, list[Result]]]
    by_width = defaultdict(lambda: defaultdict(list))
    for one in trials.current:
        if _kind(one) == kind and one.status == "complete" and one.curve:
            by_width[one.trial.width][one.trial.log2_hps.get("eta", 0.0)].append(one)
    chosen = []
    for width, points in sorted(by_width.items()):
        runs = min(points.values(), key=lambda runs: fmean(one.objective for one in runs))
        first = min(runs, key=lambda one: one.trial.seed)
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
    every = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for ax, group in zip(every, groups, strict=True):
        for index, one in enumerate(group):
            color = SEARCHED.get(one.name) or look_of(index, len(group))[0]
            _draw(ax, one, color)
        ax.set_title("the search" if group is search else "each width at its best η")
        ax.legend(loc="upper right")
        ax.set_xlabel("steps")
    every[0].set_ylabel(LOSS_LABEL)
    every[0].set_ylim(*_limits([*search, *ladder]))
    return figure


def _draw(ax: Axes, one: Chosen, color: Any) -> None:
    points = [(float(step), loss) for step, loss in loss_curve(one.result)]
    finite = [(step, loss) for step, loss in points if math.isfinite(loss)]
    label = f"{one.name}: {one.result.objective:.3f}"
    ax.plot(*zip(*finite, strict=True), color=color, linewidth=1.3, label=label)
    stride = max(1, len(finite) // MOST_TIPS)
    what = f"{one.name}, {_words(one.result)}, step"
    draw_tips(ax, finite[stride - 1 :: stride], math.inf, what)


def _words(result: Result) -> str:
    """A trial in a few words."""
    eta = result.trial.log2_hps.get("eta")
    where = "" if eta is None else f"log2 η {eta:g}, "
    return f"{where}seed {result.trial.seed}"


def _limits(every: Sequence[Chosen]) -> tuple[float, float]:
    """The loss axis: the first steps of a run may lie above it."""
    curves = [[loss for loss in one.result.curve if math.isfinite(loss)] for one in every]
    curves = [losses for losses in curves if losses]
    low, high = min(map(min, curves)), max(losses[0] for losses in curves)
    worst = max(median(losses) for losses in curves)
    top = min(high, worst + (worst - low))
    room = 0.05 * max(top - low, 1e-6)
    return low - room, max(top, low) + room
