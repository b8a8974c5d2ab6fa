"""Weights of fixed norm: does the best learning rate stay over width, depth and steps?

AdamH and MuonH with a rate of Adam's own under muP and depth-muP, over steps under the published
law; lr_transfer.py has AdamW beside them.

python scripts/figures/hyperball.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping

from lab import (
    ANSWERS,
    Document,
    Lab,
    curves,
    estimate,
    panels,
    shifts,
    verdict,
    why,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.report.drawing import STYLE

OWN_RATE = "+parameterization.space.gamma_adam={low: -4, high: 4, default: 2}"
"""What Adam trains learns at four times eta."""
ABOUT = (
    "What Adam trains learns at 4 η (`gamma_adam`); `depth_mup`, and over steps `law=hyperball`."
)
AXES = ("width", "depth", "steps")
SOURCES: Mapping[str, str] = {"AdamH": "own candidate", "MuonH": "marin"}
"""Who says that eta stays over width at these rates; that it does over depth and steps, marin."""


def main() -> None:
    """A search and its ladders for each optimizer, then what became of the best rate."""
    lab = Lab.of("hyperball")
    found = {name: _ladders(lab, name.lower()) for name in SOURCES}
    for name in SOURCES:
        for axis in AXES:
            _stays(lab, name, verdict(found[name], axis))
    lab.finish(draw(found), ABOUT)


def _ladders(lab: Lab, name: str) -> Document:
    study = f"{name}-own"
    base = lab.search(study, f"optimizer={name}", OWN_RATE)["base"]["width"]
    return lab.transfer(study, 4 * base, "transfer.check=false", "law=hyperball")


def _stays(lab: Lab, name: str, judged: Document) -> None:
    """Claim that the best eta stays, with the shift at every size: a ladder has two ends."""
    axis = judged["axis"]
    moved = [
        f"{within(estimate(size['shift_log2']))} at {axis} {size['size'][axis]}"
        for size in judged["sizes"]
        if not size["is_base"]
    ]
    lab.claim(
        SOURCES[name] if axis == "width" else "marin",
        f"{name}: the best η stays over {axis}",
        f"shift {', '.join(moved)}{why(judged)}",
        ANSWERS[judged["answer"]],
    )


@rc_context(STYLE)
def draw(found: Mapping[str, Document]) -> Figure:
    """A row of curves an optimizer, then the shifts of both."""
    figure, axes = panels(len(found) + 1, len(AXES))
    figure.set_figwidth(9.0)
    for row, (name, validation) in enumerate(found.items()):
        for ax, axis in zip(axes[row * len(AXES) :], AXES, strict=False):
            curves(ax, validation, axis, f"{name}: {verdict(validation, axis)['answer']}")
            ax.set_xlabel("log2 η")
            ax.set_ylabel("training loss (nats)")
    for ax, axis in zip(axes[-len(AXES) :], AXES, strict=True):
        judged = {name: verdict(one, axis) for name, one in found.items()}
        shifts(ax, judged, axis, "best η against the base's")
        ax.legend(loc="best", fontsize=7, handlelength=1.2)
    return figure


if __name__ == "__main__":
    main()
