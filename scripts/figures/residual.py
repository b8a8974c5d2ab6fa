"""u-muP paper, Figures 1 and 5: its loss against muP's over steps, and what alpha_residual does.

At alpha_residual = 1 a third of the residual stream's variance is the embedding's at
initialization; the rest is random functions of it. At 2^-2 it is 89 %.

python scripts/figures/residual.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lab import (
    NOTHING,
    Document,
    Lab,
    below,
    compared,
    estimate,
    least,
    mean,
    paired,
    panels,
    shade,
    verdict,
)
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.drawing import MARKERS, STYLE

OWN = "own question"
"""What Fig. 5 says of the embedding's rule is of large widths; here the width is the base's."""
ALPHA = "parameterization.space.alpha_residual.default"
VARIANTS: Mapping[str, list[str]] = {
    "muP": ["parameterization=mup"],
    "u-muP": [],
    "u-muP, 2^-2": [f"{ALPHA}=-2"],
    "u-muP, no rule": ["parameterization.scaled_embedding_lr=false"],
}
"""The defaults, another alpha_residual, and no rule for the embedding's learning rate."""
ETA = "parameterization.space.eta"
MUP_RANGE = f"{ETA}={{low:-8,high:-4,default:-6}}"
UMUP_RANGE = f"{ETA}={{low:-3,high:1,default:-1}}"
"""Of eta: as wide as the paper's (Table 6), around where its optimum is at small sizes."""
ALONE = ("transfer.widths=[]", "transfer.depths=[]", "transfer.batches=[]")
"""The ladder over steps is the only one, at every size."""


def main() -> None:
    """A search of eta at the base and curves over eta at every number of steps, for each."""
    lab = Lab.of("residual")
    found = {}
    for index, (name, words) in enumerate(VARIANTS.items()):
        study = f"{index}-" + re.sub(r"[^\w]+", "-", name.replace("u-muP", "umup"))
        small = "size=paper" not in lab.words
        eta = MUP_RANGE if name == "muP" else UMUP_RANGE
        searched = lab.search(study, *words, *[eta] * small, *ALONE)
        found[name] = lab.transfer(study, searched["base"]["width"])
    judge(lab, found)
    lab.finish(lambda: draw(found))


def judge(lab: Lab, found: Mapping[str, Document]) -> None:
    """The two claims at every number of steps, and what alpha_residual makes of the first."""
    for size in _sizes(found):
        for name in ("u-muP", "u-muP, 2^-2"):
            # The paper's defaults, over steps; its Fig. 1 says nothing of another alpha_residual.
            alpha, source = ("2^-2", OWN) if "2^-2" in name else ("1", "u-muP, Fig. 1 and F.2")
            claim = f"u-muP's loss at alpha_residual = {alpha} is below muP's"
            _lower(lab, source, claim, found, size, name, "muP")
    for size in _sizes(found):
        claim = "u-muP's loss is lower at alpha_residual = 2^-2 than at 1"
        _lower(lab, OWN, claim, found, size, "u-muP, 2^-2", "u-muP")
    for size in _sizes(found):
        claim = "u-muP: with the rule for the embedding's rate the loss is lower than without"
        _lower(lab, OWN, claim, found, size, "u-muP", "u-muP, no rule")


def _sizes(found: Mapping[str, Document]) -> list[Document]:
    """The sizes of the ladder over steps."""
    return [one["size"] for one in verdict(found["muP"], "steps")["sizes"]]


def _lower(
    lab: Lab,
    source: str,
    claim: str,
    found: Mapping[str, Document],
    size: Document,
    first: str,
    second: str,
) -> None:
    """Whether the first's loss is below the second's, each at its best eta, paired by seed."""
    losses = [least(found[name], size) for name in (first, second)]
    less = paired(*losses)
    lab.claim(
        source,
        f"after {size['steps']} steps {claim}",
        f"{mean(losses[0]):.3f} against {mean(losses[1]):.3f} nats, {compared(less)}",
        below(less, NOTHING),
    )


@rc_context(STYLE)
def draw(found: Mapping[str, Document]) -> Figure:
    """Left the loss less muP's over steps; right the best eta less that of the fewest steps."""
    figure, axes = panels(1, 2)
    sizes = _sizes(found)
    for index, name in enumerate(found):
        look: dict[str, Any] = {"color": shade(index, len(found)), "marker": MARKERS[index]}
        look |= {"label": name, "markersize": 4, "capsize": 2, "linewidth": 1.2}
        if name != "muP":
            _less(axes[0], found, sizes, name, look)
        judged = verdict(found[name], "steps")["sizes"]
        optima = [estimate(one["optimum_log2"]).value for one in judged]
        moved = [optimum - optima[0] for optimum in optima]
        axes[1].errorbar([size["steps"] for size in sizes], moved, **look)
    for ax in axes:
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_xscale("log")
        ax.set_xlabel("steps")
    axes[0].set_ylabel("loss less muP's (nats)")
    axes[1].set_ylabel("best η, log2, less the first")
    axes[1].legend(fontsize=7)
    figure.set_size_inches(7.0, 3.0)
    return figure


def _less(
    ax: Axes,
    found: Mapping[str, Document],
    sizes: list[Document],
    name: str,
    look: Mapping[str, Any],
) -> None:
    """A line of differences from muP, paired by seed, with their intervals."""
    less = [paired(least(found[name], size), least(found["muP"], size)) for size in sizes]
    bars = [[one.value - one.low for one in less], [one.high - one.value for one in less]]
    ax.errorbar([size["steps"] for size in sizes], [one.value for one in less], yerr=bars, **look)


if __name__ == "__main__":
    main()
