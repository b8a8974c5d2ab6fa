"""u-muP paper, Figures 1 (left) and 6: the best learning rate over width, depth, batch and steps.

python scripts/figures/lr_transfer.py [size=paper] [OVERRIDES]
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
    mean,
    paired,
    panels,
    verdict,
    within,
)
from matplotlib.figure import Figure

PARAMETERIZATIONS = {"umup": "u-muP", "mup": "muP", "standard": "standard"}
AXES = {"width": "Fig. 1", "depth": "Fig. 6", "batch_size": "Fig. 6", "steps": "Fig. 6"}


def main() -> None:
    """A search of eta and a validation over four ladders, for each parameterization."""
    lab = Lab.of("lr_transfer")
    found = {}
    for parameterization in PARAMETERIZATIONS:
        searched = lab.search(parameterization, f"parameterization={parameterization}")
        found[parameterization] = lab.transfer(parameterization, 8 * searched["base"]["width"])
    for parameterization in ("umup", "mup"):
        for axis, figure in AXES.items():
            _stays(lab, parameterization, axis, figure, found[parameterization])
    # The standard parameterization is the contrast: there eta has to move.
    lab.moves("u-muP, 2.1; muP", "standard", verdict(found["standard"], "width"))
    _better(lab, found)
    lab.finish(lambda: _figure(found))


def _figure(found: Mapping[str, Document]) -> Figure:
    """A row of curves for each parameterization, a column a ladder."""
    figure, axes = panels(len(PARAMETERIZATIONS), len(AXES), share=True)
    for index, (parameterization, axis) in enumerate(
        (s, a) for s in PARAMETERIZATIONS for a in AXES
    ):
        answer = verdict(found[parameterization], axis)["answer"]
        title = f"{PARAMETERIZATIONS[parameterization]}: {answer}"
        curves(axes[index], found[parameterization], axis, title)
    low, high = axes[-1].get_ylim()
    axes[-1].set_ylim(low, high + 0.25 * (high - low))  # one line climbs to the key of its row
    figure.supxlabel("learning rate, log2 η")
    figure.supylabel("training loss (nats)")
    return figure


def _stays(lab: Lab, parameterization: str, axis: str, source: str, found: Document) -> None:
    judged = verdict(found, axis)
    most = max(abs(estimate(size["shift_log2"]).value) for size in judged["sizes"])
    name = PARAMETERIZATIONS[parameterization]
    lab.stays(f"u-muP, {source}", name, judged, f", at most {most:.2f} on the ladder")


def _better(lab: Lab, found: Mapping[str, Document]) -> None:
    """At the far end of the ladder over width, all but eta at their defaults."""
    umup, mup = (
        farthest(verdict(found[parameterization], "width")) for parameterization in ("umup", "mup")
    )
    where = f"at width {umup['size']['width']}"
    losses = [least(found[name], far["size"]) for name, far in (("umup", umup), ("mup", mup))]
    less = paired(*losses)
    lab.claim(
        "u-muP, Fig. 1",
        "u-muP's loss at its default hyperparameters is below muP's",
        f"u-muP {mean(losses[0]):.3f}, muP {mean(losses[1]):.3f} nats {where}; seed by seed "
        f"u-muP {compared(less)}",
        below(less, NOTHING),
    )
    ours, theirs = estimate(umup["basin"]["width_log2"]), estimate(mup["basin"]["width_log2"])
    lab.claim(
        "u-muP, Fig. 1",
        "u-muP's range of η within 1 % of the least loss is wider than muP's",
        f"u-muP {within(ours, '{:.2f}')}, muP {within(theirs, '{:.2f}')} in log2 {where}",
        below(theirs, ours),
    )


if __name__ == "__main__":
    main()
