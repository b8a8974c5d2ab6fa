"""Effective Theory of Transformers (arXiv:2304.02034), II.1: four strategies for learning rates.

A Vision Transformer, each strategy with its own tuned (lr, wd): one rate for all, and s = 0
("neural-tangent"), 1/2 (hybrid) and 1 (maximal-update) of the family. The digits are tiny: 1,437
images to train on, where the paper has ImageNet; positions begin at a std of 1, there at 0.02.

python scripts/figures/effective_theory.py [data=idx data.path=DIR] [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    paired,
    panels,
    shade,
    verdict,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.report.plots import STYLE
from sweeper.study import Study
from sweeper.transfer.estimate import Estimate
from sweeper.trial import Result

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
FIG_1, FIG_2 = "Effective theory, Fig. 1", "Effective theory, Fig. 2"


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What one strategy's study holds: its search, its validation, all of its runs."""

    name: str
    searched: Document
    found: Document
    results: Sequence[Result]

    def size(self, *, base: bool) -> Document:
        """The size that was searched, or the one farthest from it."""
        judged = verdict(self.found, "width")
        near = next(one for one in judged["sizes"] if one["is_base"])
        size: Document = (near if base else farthest(judged))["size"]
        return size

    def runs(self, eta: float, *, base: bool) -> list[Result]:
        """The runs of one point of a curve, by seed: all but eta as it was tuned."""
        hps, size = {**self.searched["best_log2"], "eta": eta}, self.size(base=base)
        chosen = [r for r in self.results if r.trial.hps == hps and r.trial.width == size["width"]]
        return sorted(chosen, key=lambda run: run.trial.seed)

    def heldout(self, *, base: bool) -> list[float]:
        """Held-out losses, one a seed, at the eta of the least training loss."""
        curve = by_eta(self.found, self.size(base=base))
        best = min(curve, key=lambda eta: mean(curve[eta]))
        return [run.heldout for run in self.runs(best, base=base)]

    def spikes(self) -> list[float]:
        """Spikes a run, one number a seed: the largest size, eta at most a factor of 2 off."""
        tuned = self.found["transferred_log2_eta"]
        etas = [eta for eta in by_eta(self.found, self.size(base=False)) if abs(eta - tuned) <= 1]
        counts = [[spikes(r.curve) for r in self.runs(eta, base=False)] for eta in etas]
        return [fmean(seed) for seed in zip(*counts, strict=True)]


def spikes(curve: Sequence[float]) -> int:
    """How often the loss rises by `RISE` nats above the least mean of a stretch before."""
    means = curve_means(curve)
    above = [means[i] > min(means[:i]) + RISE for i in range(1, len(means))]
    return sum(now and not before for before, now in pairwise([False, *above]))


def curve_means(curve: Sequence[float]) -> list[float]:
    """Means of a curve over stretches of the share `STRETCH`."""
    long = max(1, round(STRETCH * len(curve)))
    return [fmean(curve[start : start + long]) for start in range(0, len(curve), long)]


def main() -> None:
    """For each strategy a grid over (lr, wd) with the neighbour test, and curves over width."""
    lab = Lab.of("effective_theory")
    found = {name: _strategy(lab, name) for name in CENTRES}
    judge(lab, found)
    lab.finish(draw(found))


def _strategy(lab: Lab, name: str) -> Strategy:
    searched = lab.search(name, *_words(name), *ALONE)
    found = lab.transfer(name, 4 * searched["base"]["width"])
    results = Study.read(lab.folder / name).results()
    return Strategy(name=name, searched=searched, found=found, results=results)


def _words(name: str) -> list[str]:
    """The parameterization, with ranges of the grid that all strategies have alike."""
    eta, decay = CENTRES[name], "+parameterization.space.weight_decay"
    words = ["parameterization=standard", "parameterization.decay=scaled"]
    if name in FAMILY:
        words, decay = [f"parameterization.s={FAMILY[name]}"], decay[1:]
    ranges = {"parameterization.space.eta": eta, decay: DECAY - UNIT - eta}
    return words + [
        f"{key}={{low: {middle - 2}, high: {middle + 2}, default: {middle}}}"
        for key, middle in ranges.items()
    ]


def judge(lab: Lab, found: Mapping[str, Strategy]) -> None:
    """All claims."""
    losses = {name: one.heldout(base=True) for name, one in found.items()}
    width = found[ONE_RATE].size(base=True)["width"]
    _lower(lab, losses, width)
    _extreme(lab, losses, HYBRID, "best", width)
    _extreme(lab, losses, MAXIMAL, "worst", width)
    counts = {name: one.spikes() for name, one in found.items()}
    for name in FAMILY:
        _calmer(lab, counts, name)
    _product(lab, found)
    _rate(lab, found)
    for name in FAMILY:
        _stays(lab, found[name])


def _lower(lab: Lab, losses: Mapping[str, Sequence[float]], width: int) -> None:
    less = paired(losses[TANGENT], losses[ONE_RATE])
    lab.claim(
        FIG_2,
        f"{TANGENT} rates do better than one rate",
        f"held-out loss {within(less, '{:+.3f}')} nats, paired by seed, width {width}",
        below(less, NOTHING),
    )


def _extreme(
    lab: Lab, losses: Mapping[str, Sequence[float]], name: str, place: str, width: int
) -> None:
    """Whether one strategy is the best or the worst of all, each pair of them by seed."""
    sign = 1 if place == "best" else -1
    gaps = [paired(losses[name], losses[other]) for other in losses if other != name]
    answers = {below(gap, NOTHING) if sign > 0 else below(NOTHING, gap) for gap in gaps}
    answer: Answer = "cannot say" if "cannot say" in answers else "borne out"
    means = ", ".join(f"{other} {fmean(values):.3f}" for other, values in losses.items())
    lab.claim(
        FIG_2,
        f"of the four the {name} strategy does {place}",
        f"held-out losses {means}, width {width}",
        "not borne out" if "not borne out" in answers else answer,
    )


def _calmer(lab: Lab, counts: Mapping[str, Sequence[float]], name: str) -> None:
    less = paired(counts[name], counts[ONE_RATE])
    lab.claim(
        FIG_1,
        f"fewer spikes in training under {name} rates than under one rate",
        f"{fmean(counts[name]):.2f} and {fmean(counts[ONE_RATE]):.2f} a run, "
        f"difference {within(less)}",
        below(less, NOTHING),
    )


def _product(lab: Lab, found: Mapping[str, Strategy]) -> None:
    """The product of the two accepted points; the neighbour test knows them to a factor of 2."""
    best = {name: found[name].searched["best_log2"] for name in (ONE_RATE, TANGENT)}
    products = [one["eta"] + one["weight_decay"] + UNIT for one in best.values()]
    notes = [note for name in best for note in found[name].searched["notes"]]
    accepted = sum(note.startswith("accepted") for note in notes) == len(best)
    answer: Answer = "borne out" if abs(products[0] - products[1]) <= 1 else "not borne out"
    lab.claim(
        "Effective theory, II.1.E",
        f"the best lr x wd is the same under one rate and {TANGENT} rates",
        f"2^{products[0]:g} and 2^{products[1]:g}, to a factor of 2"
        + ("" if accepted else "; not all neighbours were worse"),
        answer if accepted else "cannot say",
    )


def _rate(lab: Lab, found: Mapping[str, Strategy]) -> None:
    """Hidden weights' rate at the base: eta, and eta n^-3/2 (1.110)-(1.115) for s = 0."""
    one, other = found[ONE_RATE], found[TANGENT]
    sizes = (verdict(strategy.found, "width")["sizes"] for strategy in (one, other))
    ours, theirs = (estimate(next(s for s in part if s["is_base"])["optimum"]) for part in sizes)
    width = one.size(base=True)["width"]
    less = 1.5 * math.log2(width)
    gap = Estimate(
        value=theirs.value - less - ours.value,
        low=theirs.low - less - ours.high,
        high=theirs.high - less - ours.low,
    )
    inside, outside = gap.low >= -1 and gap.high <= 1, gap.low > 1 or gap.high < -1
    lab.claim(
        "Effective theory, II.1.E",
        "hidden weights' best learning rate is the same under both (to a factor of 2)",
        f"{TANGENT} against one rate {within(gap)} in log2 at width {width}",
        "borne out" if inside else "not borne out" if outside else "cannot say",
    )


def _stays(lab: Lab, one: Strategy) -> None:
    judged = verdict(one.found, "width")
    far = farthest(judged)
    lab.claim(
        "Effective theory, (1.108)-(1.116)",
        f"{one.name} rates: the best η stays over width",
        f"shift {within(estimate(far['shift']))} at width {far['size']['width']}",
        ANSWERS[judged["answer"]],
    )


@rc_context(STYLE)
def draw(found: Mapping[str, Strategy]) -> Figure:
    """Above loss against eta, below the largest size in training; a column a strategy."""
    figure, axes = panels(2, len(found), share=True)
    for column, (name, one) in enumerate(found.items()):
        curves(axes[column], one.found, "width", f"{name}: {verdict(one.found, 'width')['answer']}")
        axes[column].set_xlabel("learning rate, log2 η")
        ax, runs = (
            axes[len(found) + column],
            one.runs(one.found["transferred_log2_eta"], base=False),
        )
        for index, run in enumerate(runs):
            means = curve_means(run.curve)
            shares = [100 * (place + 0.5) / len(means) for place in range(len(means))]
            ax.plot(shares, means, color=shade(index, len(runs)), linewidth=1)
        ax.set_title(f"width {one.size(base=False)['width']}, {len(runs)} seeds")
        ax.set_xlabel("% of the steps")
    figure.supylabel("training loss (nats)")
    return figure


if __name__ == "__main__":
    main()
