"""Four strategies for learning rates (arXiv:2304.02034), each with its own tuned (lr, wd).

One rate for all, and s = 0 ("neural-tangent"), 1/2 (hybrid) and 1 (maximal-update) of the family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean

from lab import (
    ANSWERS,
    NOTHING,
    Answer,
    Document,
    Lab,
    below,
    by_eta,
    curves,
    estimate,
    farthest,
    mean,
    near,
    paired,
    panels,
    shade,
    verdict,
    why,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sweeper.report.drawing import STYLE
from sweeper.search.fresh import FINAL_SEED
from sweeper.stats.estimate import Estimate
from sweeper.study.study import StudyRecord

ONE_RATE, TANGENT, HYBRID, MAXIMAL = "standard", "neural-tangent", "hybrid", "maximal-update"
CENTRES = {ONE_RATE: -7, TANGENT: 0, HYBRID: -1, MAXIMAL: -2}
"""log2 eta in the middle of each grid: hidden weights then have about 2^-7 at width 32."""
FAMILY = {TANGENT: 0.0, HYBRID: 0.5, MAXIMAL: 1.0}
DECAY, UNIT = -8, -1
"""log2 of lr x wd, the share of a weight that a step removes, in the middle of every grid; and of
the config's `optimizer.weight_decay`, of which the space's is a multiple."""
ALONE = ("transfer.depths=[]", "transfer.batches=[]", "transfer.steps=[]")
STRETCH, RISE = 0.05, 0.1
"""A spike is a stretch of this share of a run whose mean loss is so many nats above the least
mean before it; neighbouring ones are one spike."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a ladder does not have of a run: held-out loss, accuracy, the training curve's means."""

    width: int
    eta: float
    seed: int
    heldout: float
    accuracy: float | None
    means: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One strategy: the best of its search, its grid, its validation, the runs of its curves."""

    name: str
    best: Mapping[str, float]
    grid: Document
    found: Document
    every: Sequence[Run]

    def size(self, *, base: bool) -> Document:
        """The size that was searched, or the one farthest from it."""
        judged = verdict(self.found, "width")
        near = next(one for one in judged["sizes"] if one["is_base"])
        size: Document = (near if base else farthest(judged))["size"]
        return size

    def runs(self, eta: float, *, base: bool) -> list[Run]:
        """The runs of one point of a curve, by seed: all but eta as it was tuned."""
        width = self.size(base=base)["width"]
        chosen = [run for run in self.every if (run.width, run.eta) == (width, eta)]
        return sorted(chosen, key=lambda run: run.seed)

    def best_runs(self, *, base: bool) -> list[Run]:
        """The runs, one a seed, at the eta of the least training loss."""
        curve = by_eta(self.found, self.size(base=base))
        return self.runs(min(curve, key=lambda eta: mean(curve[eta])), base=base)

    def heldout(self, *, base: bool) -> list[float]:
        """Held-out losses of `best_runs`."""
        return [run.heldout for run in self.best_runs(base=base)]

    def errors(self, *, base: bool) -> list[float]:
        """Top-1 errors of `best_runs` on held-out images: 1 less the accuracy, in percent."""
        runs = self.best_runs(base=base)
        return [100 * (1 - run.accuracy) for run in runs if run.accuracy is not None]

    def spikes(self, *, base: bool) -> list[float]:
        """Spikes a run, one number a seed, over the runs with eta at most a factor of 2 off."""
        tuned = self.found["log2_hps"]["eta"]
        etas = [eta for eta in by_eta(self.found, self.size(base=base)) if abs(eta - tuned) <= 1]
        counts = [[spikes(run.means) for run in self.runs(eta, base=base)] for eta in etas]
        return [fmean(seed) for seed in zip(*counts, strict=True)]


def spikes(means: Sequence[float]) -> int:
    """How often the loss rises by `RISE` nats above the least mean of a stretch before."""
    above = [means[i] > min(means[:i]) + RISE for i in range(1, len(means))]
    return sum(now and not before for before, now in pairwise([False, *above]))


def curve_means(curve: Sequence[float]) -> list[float]:
    """Means of a curve over stretches of the share `STRETCH`."""
    long = max(1, round(STRETCH * len(curve)))
    return [fmean(curve[start : start + long]) for start in range(0, len(curve), long)]


def tuned_strategy(lab: Lab, name: str) -> Strategy:
    """A line over lr, a grid over (lr, wd) around its optimum, then curves over width."""
    searched = lab.search(name, *_words(lab, name), *ALONE)
    found = lab.transfer(name, 4 * searched["base"]["width"])
    kept = lab.measured(name, lambda: _measured(lab, name, searched))
    every = [
        Run(**{**run, "means": [*map(float, run["means"])], "heldout": float(run["heldout"])})
        for run in kept["runs"]
    ]
    return Strategy(name=name, best=kept["best"], grid=kept["grid"], found=found, every=every)


def _measured(lab: Lab, name: str, searched: Document) -> Document:
    """What is not in a ladder: the tuned point, its grid, and what else the runs gave."""
    best, (grid,) = searched["best_log2"], searched["pairs"]
    runs = [
        Run(
            width=result.trial.width,
            eta=result.trial.log2_hps["eta"],
            seed=result.trial.seed,
            heldout=result.heldout,
            accuracy=result.accuracy,
            means=curve_means(result.curve),
        )
        for result in StudyRecord.read(lab.folder / name).results()
        # The search's last runs, on fresh seeds, are no points of a curve.
        if {**result.trial.log2_hps, "eta": best["eta"]} == best and result.trial.seed < FINAL_SEED
    ]
    return {
        "best": best,
        "grid": {key: grid[key] for key in ("names", "values_log2", "losses")},
        "runs": [asdict(run) for run in runs],
    }


def _words(lab: Lab, name: str) -> list[str]:
    """The strategy, with ranges of the grid that all of them have alike."""
    eta, space = CENTRES[name], "parameterization.space"
    ranges = {"eta": eta, "weight_decay": DECAY - UNIT - eta}
    words = [f"parameterization.s={FAMILY.get(name, 'null')}"]
    if lab.name == "encoder_decoder" and name == ONE_RATE:
        # II.2.C: C_WE is 1 but here, where a table of std 0.02 is the head of a std of 0.02.
        words.append("parameterization.constants={embedding.weight: 0.0004}")
    return words + [
        f"{space}.{key}={{low: {middle - 2}, high: {middle + 2}, default: {middle}}}"
        for key, middle in ranges.items()
    ]


def judge_extreme(
    lab: Lab, source: str, errors: Mapping[str, Sequence[float]], name: str, place: str, width: int
) -> None:
    """Whether one strategy's top-1 error is the least or the largest, each pair of them by seed."""
    sign = 1 if place == "best" else -1
    gaps = [paired(errors[name], errors[other]) for other in errors if other != name]
    answers = {below(gap, NOTHING) if sign > 0 else below(NOTHING, gap) for gap in gaps}
    answer: Answer = "cannot say" if "cannot say" in answers else "reproduced"
    means = ", ".join(f"{other} {fmean(values):.2f} %" for other, values in errors.items())
    lab.claim(
        source,
        f"of the four the {name} strategy does {place}",
        f"top-1 errors {means}, width {width}",
        "not reproduced" if "not reproduced" in answers else answer,
    )


def judge_product(lab: Lab, source: str, found: Mapping[str, Strategy]) -> None:
    """Two points within their grids, each known to a factor of 2."""
    best = {name: found[name].best for name in (ONE_RATE, TANGENT)}
    products = [one["eta"] + one["weight_decay"] + UNIT for one in best.values()]
    inside = all(_within_grid(found[name]) for name in best)
    gap = products[1] - products[0]
    apart = Estimate(value=gap, low=gap - 2, high=gap + 2)
    lab.claim(
        source,
        f"the best lr x wd is the same under one rate and {TANGENT} rates (to a factor of 4)",
        f"one rate 2^{products[0]:g}, {TANGENT} 2^{products[1]:g}, each to a factor of 2: "
        f"{within(apart)} in log2" + ("" if inside else "; a best point lies at its grid's end"),
        near(apart, 0.0, 2.0) if inside else "cannot say",
    )


def _within_grid(one: Strategy) -> bool:
    """Whether the best point has neighbours on all sides of its grid."""
    axes = zip(one.grid["names"], one.grid["values_log2"], strict=True)
    return all(values[0] < one.best[name] < values[-1] for name, values in axes)


def judge_rate(lab: Lab, source: str, found: Mapping[str, Strategy]) -> None:
    """Hidden weights' rate at the base: eta, and eta n^-3/2 (1.110)-(1.115) for s = 0."""
    one, other = found[ONE_RATE], found[TANGENT]
    sizes = (verdict(strategy.found, "width")["sizes"] for strategy in (one, other))
    ours, theirs = (
        estimate(next(s for s in part if s["is_base"])["optimum_log2"]) for part in sizes
    )
    width = one.size(base=True)["width"]
    less = 1.5 * math.log2(width)
    gap = Estimate(
        value=theirs.value - less - ours.value,
        low=theirs.low - less - ours.high,
        high=theirs.high - less - ours.low,
    )
    lab.claim(
        source,
        "hidden weights' best learning rate is the same under both (to a factor of 2)",
        f"{TANGENT} against one rate {within(gap)} in log2 at width {width}",
        near(gap, 0.0, 1.0),
    )


def judge_falls(lab: Lab, one: Strategy) -> None:
    """The theory's rates of hidden weights fall as n^-3/2: does a rate common to all?"""
    far = farthest(verdict(one.found, "width"))
    shift = estimate(far["shift_log2"])
    lab.claim(
        "own question",
        "one rate for all: its best value falls with width",
        f"shift {within(shift)} at width {far['size']['width']}",
        below(shift, NOTHING),
    )


def judge_stays(lab: Lab, one: Strategy) -> None:
    """The verdict on the transfer over width."""
    judged = verdict(one.found, "width")
    far = farthest(judged)
    gap = within(estimate(far["loss_gap"]), "{:.4f}")
    lab.claim(
        "own question",
        f"{one.name} rates: the best η stays over width",
        f"shift {within(estimate(far['shift_log2']))} at width {far['size']['width']}; keeping η "
        f"costs {gap} nats of {float(far['loss']['value']):.3f}{why(judged)}",
        ANSWERS[judged["answer"]],
    )


@rc_context(STYLE)
def draw(found: Mapping[str, Strategy]) -> Figure:
    """Above loss against eta, below the largest size in training; a column a strategy."""
    figure, axes = panels(2, len(found), share=True)
    upper, lower = axes[: len(found)], axes[len(found) :]
    for ax, below_it, (name, one) in zip(upper, lower, found.items(), strict=True):
        curves(ax, one.found, "width", f"{name}:\n{verdict(one.found, 'width')['answer']}")
        ax.set_xlabel("learning rate, log2 η")
        runs = one.runs(one.found["log2_hps"]["eta"], base=False)
        for index, run in enumerate(runs):
            shares = [100 * (place + 0.5) / len(run.means) for place in range(len(run.means))]
            below_it.plot(shares, run.means, color=shade(index, len(runs)), linewidth=1)
        below_it.set_title(f"width {one.size(base=False)['width']}, {len(runs)} seeds")
        below_it.set_xlabel("% of the steps")
    upper[0].set_yscale("log")
    upper[0].relim()
    upper[0].autoscale(axis="y")
    low, high = upper[0].get_ylim()
    upper[0].set_ylim(low, high * (high / low) ** 0.35)  # room for the keys
    upper[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    upper[0].yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
    upper[0].yaxis.set_minor_formatter(NullFormatter())
    figure.supylabel("training loss (nats)")
    return figure
