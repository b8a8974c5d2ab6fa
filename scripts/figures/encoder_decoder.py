"""Effective Theory of Transformers (arXiv:2304.02034), II.2: span denoising by encoder-decoders.

Each of four strategies with its own tuned (lr, wd), where the paper tunes lr alone, of two. Initial
weights, dropout, clip, schedule, Adam's constants, Poisson lengths of spans and permuted sentences
are the paper's (II.2.A, C, D). Here the text is bytes, and a window has exact counts of tokens and
of spans cut out.

python scripts/figures/encoder_decoder.py [data.path=FILE] [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from lab import NOTHING, Lab, below, by_eta, mean, paired, within
from strategies import (
    CENTRES,
    FAMILY,
    ONE_RATE,
    TANGENT,
    Strategy,
    draw,
    judge_falls,
    judge_product,
    judge_rate,
    judge_stays,
    tuned_strategy,
)

FIG_3, FIG_4 = "Effective theory, Fig. 3", "Effective theory, Fig. 4"
ABOUT = (
    "All four begin and train as BART-large in the paper (`conf/experiment/encoder_decoder.yaml`), "
    "Λ is 1; under one rate words have a C of 0.0004, not 1, and the output is not rescaled."
)
LOWER = 2
"""How far, in log2, a rate lies below the tuned one where robustness is told."""


def main() -> None:
    """For each strategy a grid over (lr, wd) with the neighbour test, and curves over width."""
    lab = Lab.of("encoder_decoder")
    found = {name: tuned_strategy(lab, name) for name in CENTRES}
    _marginal(lab, found)
    _robust(lab, found)
    judge_rate(lab, "Effective theory, II.2.E", found)
    judge_product(lab, "own question", found)
    judge_falls(lab, found[ONE_RATE])
    for name in FAMILY:
        judge_stays(lab, found[name])
    lab.finish(lambda: draw(found), ABOUT)


def _marginal(lab: Lab, found: Mapping[str, Strategy]) -> None:
    """The paper has one run of each."""
    losses = {name: one.heldout(base=True) for name, one in found.items()}
    more = paired(losses[TANGENT], losses[ONE_RATE])
    means = ", ".join(f"{name} {fmean(values):.3f}" for name, values in losses.items())
    width = found[ONE_RATE].size(base=True)["width"]
    lab.claim(
        FIG_4,
        f"one rate does a little better than {TANGENT} rates",
        f"held-out loss of {TANGENT} rates {within(more, '{:+.3f}')} nats against one rate, paired "
        f"by seed, width {width}; means: {means}",
        below(NOTHING, more),
    )


def _robust(lab: Lab, found: Mapping[str, Strategy]) -> None:
    """What a rate that is too low costs, by seed."""
    costs = {name: _cost(found[name]) for name in (ONE_RATE, TANGENT)}
    less = paired(costs[TANGENT], costs[ONE_RATE])
    lab.claim(
        FIG_3,
        f"{TANGENT} rates suffer less from a learning rate that is too low",
        f"a rate {2**LOWER} times below the best costs {fmean(costs[TANGENT]):.3f} nats against "
        f"{fmean(costs[ONE_RATE]):.3f} under one rate, difference {within(less, '{:+.3f}')}",
        below(less, NOTHING),
    )


def _cost(one: Strategy) -> list[float]:
    """Training loss that is lost, one number a seed, on the curve of the base."""
    curve = by_eta(one.found, one.size(base=True))
    best = min(curve, key=lambda eta: mean(curve[eta]))
    low = min(curve, key=lambda eta: abs(eta - (best - LOWER)))
    return [more - least for more, least in zip(curve[low], curve[best], strict=True)]


if __name__ == "__main__":
    main()
