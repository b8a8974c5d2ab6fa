"""CompleteP, Figure 1, and the u-muP paper, Figure 6: the best learning rate over depth.

Three rules for residual branches, all under muP: none, depth-muP, CompleteP.

python scripts/figures/depth.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    least,
    paired,
    panels,
    shifts,
    verdict,
    why,
    within,
)
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.drawing import STYLE

RULES = {"none": "no rule", "depth_mup": "depth-muP", "completep": "CompleteP"}
"""The decay of CompleteP is `scaled`; the other two keep the parameterization's."""
ALONE = ("transfer.widths=[]", "transfer.batches=[]", "transfer.steps=[]")
"""The ladder over depth is the only one, at every size."""


def main() -> None:
    """A search of eta at the base and a validation over depth, for each rule."""
    lab = Lab.of("depth")
    found = {}
    for rule in RULES:
        words = [f"parameterization.depth={rule}", *ALONE]
        words += ["parameterization.decay=scaled"] if rule == "completep" else []
        searched = lab.search(rule, *words)
        found[rule] = lab.transfer(rule, searched["base"]["width"])
    judge(lab, found)
    lab.finish(lambda: draw(found))


def judge(lab: Lab, found: Mapping[str, Document]) -> None:
    """All claims."""
    _falls(lab, "CompleteP, Fig. 1", "none", found)
    _stays(lab, "u-muP, Fig. 6", "depth_mup", found)
    _falls(lab, "CompleteP, Fig. 1", "depth_mup", found)
    _stays(lab, "CompleteP, Fig. 1", "completep", found)
    for other in ("none", "depth_mup"):
        _cheaper(lab, other, found)
        _better(lab, other, found)


@rc_context(STYLE)
def draw(found: Mapping[str, Document]) -> Figure:
    """A panel of curves for each rule, and one of the shifts."""
    judged = {name: verdict(found[rule], "depth") for rule, name in RULES.items()}
    figure, axes = panels(2, 2)
    for ax, (rule, name) in zip(axes, RULES.items(), strict=False):
        curves(ax, found[rule], "depth", f"{name}: {judged[name]['answer']}")
        ax.set_xlabel("learning rate, log2 η")
        ax.set_ylabel("training loss (nats)")
    _share(axes[: len(RULES)])
    shifts(axes[-1], judged, "depth", "best η against the base's")
    return figure


def _far(found: Document) -> tuple[Document, int]:
    """The verdict on the deepest model, and its depth."""
    far = farthest(verdict(found, "depth"))
    return far, far["size"]["depth"]


def _stays(lab: Lab, source: str, rule: str, found: Mapping[str, Document]) -> None:
    far, depth = _far(found[rule])
    judged = verdict(found[rule], "depth")
    lab.claim(
        source,
        f"{RULES[rule]}: the best η stays over depth",
        f"shift {within(estimate(far['shift_log2']))} at depth {depth}{why(judged)}",
        ANSWERS[judged["answer"]],
    )


def _falls(lab: Lab, source: str, rule: str, found: Mapping[str, Document]) -> None:
    far, depth = _far(found[rule])
    shift = estimate(far["shift_log2"])
    lab.claim(
        source,
        f"{RULES[rule]}: the best η falls with depth",
        f"shift {within(shift)} at depth {depth}",
        below(shift, NOTHING),
    )


def _cheaper(lab: Lab, other: str, found: Mapping[str, Document]) -> None:
    """The loss gap of the base's best eta at the deepest model."""
    far, depth = _far(found["completep"])
    ours, theirs = estimate(far["loss_gap"]), estimate(_far(found[other])[0]["loss_gap"])
    lab.claim(
        "CompleteP, Fig. 1",
        f"keeping the base's best η costs less under CompleteP than under {RULES[other]}",
        f"CompleteP {within(ours, '{:.4f}')}, {RULES[other]} {within(theirs, '{:.4f}')} nats "
        f"at depth {depth}",
        below(ours, theirs),
    )


def _better(lab: Lab, other: str, found: Mapping[str, Document]) -> None:
    """The losses at the best eta of each, paired by seed."""
    size = _far(found["completep"])[0]["size"]
    less = paired(least(found["completep"], size), least(found[other], size))
    lab.claim(
        "CompleteP, Fig. 1",
        f"at the best η of each CompleteP's loss is below {RULES[other]}'s",
        f"CompleteP's {compared(less, '{:.4f}')} at depth {size['depth']}, paired by seed",
        below(less, NOTHING),
    )


def _share(axes: Sequence[Axes]) -> None:
    """One axis of losses for panels that are to be compared, with room for the keys below."""
    low = min(ax.get_ylim()[0] for ax in axes)
    high = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(low - 0.45 * (high - low), high)
        rows: Any = {"ncols": 4, "columnspacing": 1, "handlelength": 1.2}
        ax.legend(title="depth", loc="lower center", **rows)


if __name__ == "__main__":
    main()
