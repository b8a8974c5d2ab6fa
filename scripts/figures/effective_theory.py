"""Effective Theory of Transformers (arXiv:2304.02034), II.1: four strategies for learning rates.

A Vision Transformer, each strategy with its own tuned (lr, wd): one rate for all, and s = 0
("neural-tangent"), 1/2 (hybrid) and 1 (maximal-update) of the family. Initial weights, head bias,
label smoothing and schedule are the paper's (II.1.C, D). The digits are tiny: 1,438 images to train
on, moved by a pixel and partly erased, where the paper has ImageNet and five augmentations.

python scripts/figures/effective_theory.py [data=idx data.path=DIR] [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from lab import NOTHING, Lab, below, paired, within
from strategies import (
    CENTRES,
    FAMILY,
    HYBRID,
    MAXIMAL,
    ONE_RATE,
    TANGENT,
    Strategy,
    draw,
    judge_extreme,
    judge_falls,
    judge_product,
    judge_rate,
    judge_stays,
    tuned_strategy,
)

FIG_1, FIG_2 = "Effective theory, Fig. 1", "Effective theory, Fig. 2"
TUNED = "Effective theory, II.1.E"
ABOUT = (
    "All four begin and train as in the paper (`conf/experiment/effective_theory.yaml`), Λ is 1; "
    "images are moved by up to a pixel, a quarter partly erased."
)


def main() -> None:
    """For each strategy a grid over (lr, wd) with the neighbour test, and curves over width."""
    lab = Lab.of("effective_theory")
    found = {name: tuned_strategy(lab, name) for name in CENTRES}
    judge(lab, found)
    lab.finish(lambda: draw(found), ABOUT)


def judge(lab: Lab, found: Mapping[str, Strategy]) -> None:
    """All claims."""
    errors = {name: one.errors(base=True) for name, one in found.items()}
    width = found[ONE_RATE].size(base=True)["width"]
    _lower(lab, found, width)
    judge_extreme(lab, FIG_2, errors, HYBRID, "best", width)
    judge_extreme(lab, FIG_2, errors, MAXIMAL, "worst", width)
    for name in FAMILY:
        _calmer(lab, found[name], found[ONE_RATE])
    judge_product(lab, TUNED, found)
    judge_rate(lab, TUNED, found)
    judge_falls(lab, found[ONE_RATE])
    for name in FAMILY:
        judge_stays(lab, found[name])


def _lower(lab: Lab, found: Mapping[str, Strategy], width: int) -> None:
    """Judged by the paper's measure, top-1 accuracy."""
    ours, theirs = found[TANGENT], found[ONE_RATE]
    less = paired(ours.errors(base=True), theirs.errors(base=True))
    loss = paired(ours.heldout(base=True), theirs.heldout(base=True))
    lab.claim(
        FIG_2,
        f"{TANGENT} rates do better than one rate",
        f"top-1 error {within(less)} points, held-out loss {within(loss, '{:+.3f}')} nats, paired "
        f"by seed, width {width}",
        below(less, NOTHING),
    )


def _calmer(lab: Lab, one: Strategy, other: Strategy) -> None:
    """Judged where both were tuned; what becomes of it at the largest width is told."""
    ours, theirs = one.spikes(base=True), other.spikes(base=True)
    far = [fmean(strategy.spikes(base=False)) for strategy in (one, other)]
    widths = [one.size(base=base)["width"] for base in (True, False)]
    less = paired(ours, theirs)
    lab.claim(
        FIG_1,
        f"fewer spikes in training under {one.name} rates than under one rate",
        f"{one.name} {fmean(ours):.2f}, one rate {fmean(theirs):.2f} a run at width {widths[0]}, "
        f"difference {within(less)}; transferred to width {widths[1]}: {one.name} {far[0]:.2f}, "
        f"one rate {far[1]:.2f}",
        below(less, NOTHING),
    )


if __name__ == "__main__":
    main()
