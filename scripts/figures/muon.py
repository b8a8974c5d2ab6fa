"""Why Muon's best learning rate falls with width under sqrt(d_out/d_in), and a rule that keeps it.

Each candidate is switched on alone, over a ladder of widths; the cause is the one without which the
drift is gone. docs/parameterizations.md has the mechanism and what was excluded.

python scripts/figures/muon.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab import (
    ANSWERS,
    NOTHING,
    Document,
    Lab,
    below,
    compared,
    curves,
    estimate,
    farthest,
    forest,
    least,
    paired,
    panels,
    slope,
    verdict,
    why,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.report.drawing import STYLE

OWN = "own candidate"
"""muP says of its readout's initial weights nothing for Muon."""
READOUT = "a readout of muP's init"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is switched: overrides of the config, or the rate that the curves are over.

    The ladder ends at 4 times the base's width, or, `whole`, where the config's does.
    """

    title: str
    overrides: tuple[str, ...] = ()
    hyperparameter: str = "eta"
    whole: bool = False


MUP = "parameterization=spectral_mup"
HIDDEN_RATE = "parameterization.space.gamma_hidden.default=-2"
READOUT_RATE = "parameterization.space.gamma_readout.default=2"
CANDIDATES: Mapping[str, Candidate] = {
    "standard": Candidate(title="nothing changed", whole=True),
    "readout": Candidate(title=READOUT, overrides=(MUP,), whole=True),
    "hidden": Candidate(title="the hidden matrices' rate alone", hyperparameter="gamma_hidden"),
    "own": Candidate(
        title="a quarter of the rate for hidden matrices", overrides=(HIDDEN_RATE,), whole=True
    ),
    "own-readout": Candidate(
        title=f"{READOUT} and a quarter of the rate for hidden matrices",
        overrides=(MUP, HIDDEN_RATE),
        whole=True,
    ),
    "readout-rate": Candidate(title="four times the readout's rate", overrides=(READOUT_RATE,)),
    "both": Candidate(title=f"{READOUT} and four times its rate", overrides=(MUP, READOUT_RATE)),
    "split": Candidate(title="q, k, v, up and gate apart", overrides=("+optimizer.split=true",)),
    "exact": Candidate(
        title="exact orthogonalisation",
        # The singular values' polynomial (15 s - 10 s^3 + 3 s^5) / 8 converges to 1.
        overrides=("optimizer.coefficients=[1.875,-1.25,0.375]", "optimizer.steps=20"),
        whole=True,
    ),
}


def main() -> None:
    """A search and a ladder for each candidate, then what became of the drift."""
    lab = Lab.of("muon")
    found = {name: _ladder(lab, name, one) for name, one in CANDIDATES.items()}
    for name in ("standard", "own", "readout", "own-readout"):
        _stays(lab, name, found[name])
    for name in CANDIDATES:
        lab.drifts_not(OWN, f"Muon, {CANDIDATES[name].title}", found[name])
    for first, second in (
        ("readout", "standard"),
        ("own-readout", "own"),
        ("own-readout", "standard"),
    ):
        _lower(lab, first, second, found)
    lab.finish(lambda: _figure(found))


def _ladder(lab: Lab, name: str, one: Candidate) -> Document:
    base = lab.search(name, *one.overrides)["base"]["width"]
    if one.whole:
        return lab.transfer(name, 8 * base, hyperparameter=one.hyperparameter)
    widths = f"transfer.widths=[{base},{2 * base},{4 * base}]"
    return lab.transfer(name, 4 * base, widths, hyperparameter=one.hyperparameter)


def _stays(lab: Lab, name: str, found: Document) -> None:
    judged = verdict(found, "width")
    far = farthest(judged)
    lab.claim(
        OWN,
        f"Muon, {CANDIDATES[name].title}: the best η stays over width",
        f"shift {within(estimate(far['shift_log2']))} at width {far['size']['width']}{why(judged)}",
        ANSWERS[judged["answer"]],
    )


def _lower(lab: Lab, first: str, second: str, found: Mapping[str, Document]) -> None:
    """Both at their own best eta at the largest width, so that no transfer is in it."""
    far = farthest(verdict(found[first], "width"))["size"]
    less = paired(least(found[first], far), least(found[second], far))
    lab.claim(
        OWN,
        f"Muon, {CANDIDATES[first].title}: the loss at the best η is below that with "
        f"{CANDIDATES[second].title}",
        f"{compared(less)} at width {far['width']}, seed by seed",
        below(less, NOTHING),
    )


@rc_context(STYLE)
def _figure(found: Mapping[str, Document]) -> Figure:
    """Each candidate's curves over width, and last all drifts per doubling."""
    figure, axes = panels(2, 5)
    for ax, (name, validation) in zip(axes, found.items(), strict=False):
        one = CANDIDATES[name]
        curves(
            ax, validation, "width", one.title.replace(" and ", "\nand ").replace(" for ", "\nfor ")
        )
        ax.set_xlabel(f"log2 {one.hyperparameter}".replace(" eta", " η"), fontsize=8)
    forest(axes[-1], {name: slope(one) for name, one in found.items()}, "drift per doubling")
    figure.supylabel("training loss (nats)", fontsize=9)
    return figure


if __name__ == "__main__":
    main()
