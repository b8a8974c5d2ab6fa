"""Weights of fixed norm: does the best learning rate stay over width, depth and steps?

AdamH and MuonH with a rate of Adam's own, and AdamW, under muP and depth-muP, over steps under the
published laws of each.

python scripts/figures/hyperball.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

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
    "What Adam trains beside AdamH and MuonH learns at 4 η (`gamma_adam`); `depth_mup`, and over "
    "steps `law=hyperball`, for AdamW `law=joint`."
)
AXES = ("width", "depth", "steps")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimizer, its law for other steps, and who says that eta stays over width and depth."""

    law: str = "hyperball"
    space: tuple[str, ...] = (OWN_RATE,)
    width: str = "own candidate"
    depth: str = "marin"


RECIPES: Mapping[str, Recipe] = {
    "AdamH": Recipe(),
    "MuonH": Recipe(width="marin"),
    "AdamW": Recipe(law="joint", space=(), width="muP", depth="depth-muP"),
}


PARTS: Mapping[str, str] = {
    "gamma_hidden": "its hidden matrices' rate alone",
    "gamma_readout": "its readout's rate alone",
    "gamma_adam": "Adam's rate alone",
}
"""Of MuonH whose best rate moves over width, all others held at the base's best."""
WIDTH_ALONE = ("transfer.check=false", "law=hyperball", "transfer.depths=[]", "transfer.steps=[]")


def main() -> None:
    """A search and its ladders for each optimizer, then what became of the best rate."""
    lab = Lab.of("hyperball")
    found = {name: _ladders(lab, name) for name in RECIPES}
    for name in RECIPES:
        for axis in AXES:
            _stays(lab, name, verdict(found[name], axis))
    parts = {part: lab.transfer("muonh", 128, *WIDTH_ALONE, hyperparameter=part) for part in PARTS}
    for name in RECIPES:
        lab.drifts_not("own question", f"{name} over width", found[name])
    for part, title in PARTS.items():
        lab.drifts_not("own question", f"MuonH, {title}", parts[part])
    lab.finish(lambda: draw(found, parts), ABOUT)


def _ladders(lab: Lab, name: str) -> Document:
    study, recipe = name.lower(), RECIPES[name]
    base = lab.search(study, f"optimizer={study}", *recipe.space)["base"]["width"]
    return lab.transfer(study, 8 * base, "transfer.check=false", f"law={recipe.law}")


def _stays(lab: Lab, name: str, judged: Document) -> None:
    """Claim that the best eta stays, with the shift at every size: a ladder has two ends."""
    axis, recipe = judged["axis"], RECIPES[name]
    moved = [
        f"{within(estimate(size['shift_log2']))} at {axis} {size['size'][axis]}"
        for size in judged["sizes"]
        if not size["is_base"]
    ]
    lab.claim(
        {"width": recipe.width, "depth": recipe.depth}.get(axis, "marin"),
        f"{name}: the best η stays over {axis}",
        f"shift {', '.join(moved)}{why(judged)}",
        ANSWERS[judged["answer"]],
    )


@rc_context(STYLE)
def draw(found: Mapping[str, Document], parts: Mapping[str, Document]) -> Figure:
    """A row of curves an optimizer, one of MuonH's parts over width, then the shifts of all."""
    rows = [
        [(one, axis, f"{name}: {verdict(one, axis)['answer']}", "log2 η") for axis in AXES]
        for name, one in found.items()
    ]
    rows += [[(parts[part], "width", f"MuonH, {PARTS[part]}", f"log2 {part}") for part in PARTS]]
    figure, axes = panels(len(rows) + 1, len(AXES))
    figure.set_figwidth(9.0)
    for ax, (one, axis, title, rate) in zip(axes, chain(*rows), strict=False):
        curves(ax, one, axis, title)
        ax.set_xlabel(rate)
        ax.set_ylabel("training loss (nats)")
    for ax, axis in zip(axes[-len(AXES) :], AXES, strict=True):
        judged = {name: verdict(one, axis) for name, one in found.items()}
        shifts(ax, judged, axis, "best η against the base's")
        ax.legend(loc="best", fontsize=7, handlelength=1.2)
    return figure


if __name__ == "__main__":
    main()
