"""u-muP paper, Figure 4: the best learning rate of the embedding over width, under u-muP.

Curves along eta_emb, the embedding's rate as a multiple of eta and of u-muP's rule,
1/sqrt(width). Without the rule the same runs have eta_emb / sqrt(width): that panel of the paper's
is this one, each curve moved by half a unit per doubling of the width. One set of curves answers
for both.

python scripts/figures/embedding.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import math

from lab import (
    ANSWERS,
    AS_RULE,
    DRIFT,
    NOTHING,
    RULE,
    Document,
    Lab,
    below,
    curves,
    estimate,
    farthest,
    near,
    panels,
    shifts,
    verdict,
    why,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from sweeper.report.drawing import STYLE
from sweeper.stats.estimate import Estimate

SOURCE = "u-muP, Fig. 4"


def main() -> None:
    """The base's search, curves over width, and what they say with the rule and without."""
    lab = Lab.of("embedding")
    base = lab.search("umup")["base"]["width"]
    found = lab.transfer("umup", 4 * base, hyperparameter="eta_emb")
    judge(lab, found)
    eta = found["log2_hps"]["eta"]
    about = f"u-muP at its defaults, with η = 2^{eta:g}, the best that its search found."
    lab.finish(lambda: draw(found), about)


def judge(lab: Lab, found: Document) -> None:
    """Both panels of the figure, and the exponent that the rule has."""
    judged, trend = verdict(found, "width"), found["trend"]
    far = farthest(judged)
    base = next(one["size"]["width"] for one in judged["sizes"] if one["is_base"])
    width, shift = far["size"]["width"], estimate(far["shift_log2"])
    bare = moved(shift, RULE * math.log2(width / base))
    slope = Estimate(value=0.0, low=-1e9, high=1e9)
    if trend:
        slope = moved(estimate(trend["slope"]), RULE)
    lab.claim(
        f"{SOURCE} (right)",
        "u-muP, with its rule for the embedding: the best η_emb stays over width",
        f"shift {within(shift)} at width {width}{why(judged)}",
        ANSWERS[judged["answer"]],
    )
    lab.claim(
        f"{SOURCE} (left)",
        "u-muP, without the rule: the best η_emb falls as the width grows",
        f"as width^{within(slope)}; shift {within(bare)} at width {width}",
        below(slope, NOTHING),
    )
    lab.claim(
        f"u-muP, A.3 and {SOURCE.removeprefix('u-muP, ')}",
        f"u-muP, without the rule: {AS_RULE}",
        f"as width^{within(slope)}",
        near(slope, RULE, DRIFT),
    )


def moved(found: Estimate, by: float) -> Estimate:
    """A number and its interval, moved."""
    return Estimate(value=found.value + by, low=found.low + by, high=found.high + by)


@rc_context(STYLE)
def draw(found: Document) -> Figure:
    """The curves, and how their optima move."""
    figure, (left, right) = panels(1, 2)
    curves(left, found, "width", f"u-muP: {verdict(found, 'width')['answer']}")
    left.set_xlabel("η_emb, log2")
    left.set_ylabel("training loss (nats)")
    left.xaxis.set_major_locator(MultipleLocator(1))
    shifts(right, {"with the rule": verdict(found, "width")}, "width")
    right.set_ylabel("shift of the best η_emb (log2)")
    return figure


if __name__ == "__main__":
    main()
