"""Everett et al. (arXiv:2407.05872), section 4.2: do the constants of the layer types transfer?

All of them and eta are searched together at the base. Then each is varied at every width, while
the rest is carried over: its best value there is that of the base, or it is not.

python scripts/figures/gammas.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping

from lab import (
    ANSWERS,
    Document,
    Lab,
    curves,
    estimate,
    farthest,
    panels,
    shifts,
    verdict,
    why,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.report.drawing import STYLE

GAMMAS = ("gamma_embedding", "gamma_hidden", "gamma_readout")
ALONE = ("transfer.depths=[]", "transfer.batches=[]", "transfer.steps=[]")
"""The ladder over width is the only one, at every size."""


def main() -> None:
    """One search of all constants, and a validation over width along each of them."""
    lab = Lab.of("gammas")
    searched = lab.search("gammas", *ALONE)
    width = 4 * searched["base"]["width"]
    found = {name: lab.transfer("gammas", width, hyperparameter=name) for name in GAMMAS}
    judge(lab, found)
    lab.finish(lambda: draw(found))


def judge(lab: Lab, found: Mapping[str, Document]) -> None:
    """A claim for each constant."""
    for name, record in found.items():
        judged = verdict(record, "width")
        far = farthest(judged)
        tuned = record["log2_hps"][name]
        lab.claim(
            "Everett et al., 4.2",
            f"the best {name}, searched with all others at the base, stays over width",
            f"searched 2^{tuned:g}; shift {within(estimate(far['shift_log2']))} at width "
            f"{far['size']['width']}{why(judged)}",
            ANSWERS[judged["answer"]],
        )


@rc_context(STYLE)
def draw(found: Mapping[str, Document]) -> Figure:
    """A panel of curves for each constant, and one of the shifts."""
    layers = {name: name.removeprefix("gamma_") for name in found}
    judged = {layers[name]: verdict(record, "width") for name, record in found.items()}
    figure, axes = panels(2, 2)
    figure.set_figwidth(8.0)
    for ax, (name, record) in zip(axes, found.items(), strict=False):
        curves(ax, record, "width", f"{layers[name]}: {judged[layers[name]]['answer']}")
        ax.set_xlabel(f"log2 {name}")
        ax.set_ylabel("training loss (nats)")
    shifts(axes[-1], judged, "width", "best constant against the base's")
    axes[-1].set_ylabel("shift (log2)")
    return figure


if __name__ == "__main__":
    main()
