"""Does the best learning rate stay over width for AdamH and MuonH, whose weights keep their norm?

By the published rule, a share of the norm that no width changes, and by muP's exponents for steps
of that kind, which ask for width^-1/2 where Adam's direction has a low rank (and of MuonH's hidden
matrices for nothing); beside AdamW under muP. docs/parameterizations.md derives both.

python scripts/figures/hyperball.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping

from lab import (
    NOTHING,
    Document,
    Lab,
    below,
    compared,
    curves,
    estimate,
    farthest,
    least,
    paired,
    panels,
    shifts,
    student,
    verdict,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.report.drawing import STYLE

PUBLISHED = "marin, ArchScale"
ETA = "parameterization.space.eta={low: -10, high: -1, default: -6}"
CANDIDATES: Mapping[str, tuple[str, str, str]] = {
    "adamw": ("AdamW under muP", "Tensor Programs V", "mup"),
    "adamh-published": ("AdamH, one rate at all widths", PUBLISHED, "standard"),
    "adamh": ("AdamH under muP", "own derivation", "mup"),
    "muonh-published": ("MuonH, one rate at all widths", PUBLISHED, "standard"),
    "muonh": ("MuonH under muP", "own derivation", "mup"),
}
"""By study: what it is, where it is from, and its parameterization; its optimizer names it."""


def main() -> None:
    """A search and a ladder over width for each, then whether the best eta stays."""
    lab = Lab.of("hyperball")
    found = {name: _ladder(lab, name) for name in CANDIDATES}
    for name, (title, source, _) in CANDIDATES.items():
        lab.stays(source, title, verdict(found[name], "width"), f"; {_drift(found[name])}")
    for first, second in (("adamh", "adamh-published"), ("muonh", "adamw"), ("muonh", "adamh")):
        far = farthest(verdict(found[first], "width"))["size"]
        less = paired(least(found[first], far), least(found[second], far))
        lab.claim(
            CANDIDATES[first][1],
            f"{CANDIDATES[first][0]}: the loss at the best η is below that of "
            f"{CANDIDATES[second][0]}",
            f"{compared(less)} at width {far['width']}, seed by seed",
            below(less, NOTHING),
        )
    lab.finish(_figure(found))


def _ladder(lab: Lab, name: str) -> Document:
    optimizer, (_, _, parameterization) = name.partition("-")[0], CANDIDATES[name]
    words = (f"optimizer={optimizer}", f"parameterization={parameterization}", ETA)
    base = lab.search(name, *words)["base"]["width"]
    return lab.transfer(name, 2 * base)


def _drift(found: Document) -> str:
    trend = found["trend"]
    slope = estimate(trend["slope"]) if trend else student([float("nan")])
    return f"per doubling {within(slope)}"


@rc_context(STYLE)
def _figure(found: Mapping[str, Document]) -> Figure:
    """Each one's curves over width, and the shifts of all of them."""
    figure, axes = panels(2, 3)
    for ax, (name, validation) in zip(axes, found.items(), strict=False):
        curves(ax, validation, "width", CANDIDATES[name][0])
    shifts(
        axes[-1],
        {CANDIDATES[name][0]: verdict(v, "width") for name, v in found.items()},
        "width",
    )
    figure.supylabel("training loss (nats)", fontsize=9)
    return figure


if __name__ == "__main__":
    main()
