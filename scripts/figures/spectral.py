"""Spectral learning-rate rules: which keep the change of activations, and so Muon's best rate.

The rules are those that lecture, notes, and the papers of Muon print. What one step of a layer does
under each is measured by tests/scaling/test_spectral.py; here Muon trains over a ladder of widths.

python scripts/figures/spectral.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lab import (
    ANSWERS,
    NOTHING,
    Document,
    Lab,
    below,
    curves,
    estimate,
    farthest,
    student,
    verdict,
    why,
    within,
)
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.report.drawing import STYLE
from sweeper.stats.estimate import Estimate


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A rule of Muon's as a source prints it, and who says what is claimed of it."""

    source: str
    formula: str


MUON: Mapping[str, Printed] = {
    "root_ratio": Printed(source="lecture, I.6 and I.9", formula="√(d_out/d_in)"),
    "root_ratio_floored": Printed(source="own question", formula="√max(1, d_out/d_in)"),
    "root_max": Printed(source="own question", formula="0.2 √max(d_in, d_out)"),
}


def main() -> None:
    """A search and a ladder over width for each of Muon's rules."""
    lab = Lab.of("spectral")
    found = {rule: _ladder(lab, rule) for rule in MUON}
    for rule in ("root_ratio", "root_ratio_floored"):
        _stays(lab, rule, found[rule])
    _falls(lab, found["root_max"])
    _faster(lab, found)
    lab.finish(lambda: _figure(found))


def _ladder(lab: Lab, rule: str) -> Document:
    searched = lab.search(rule, f"parameterization.rule={rule}")
    return lab.transfer(rule, 8 * searched["base"]["width"])


def _measured(found: Document) -> str:
    """The shift at the far end of the ladder, and the slope over all of it."""
    far = farthest(verdict(found, "width"))
    width, shift = far["size"]["width"], within(estimate(far["shift_log2"]))
    return f"shift {shift} at width {width}; per doubling {within(_slope(found))}"


def _stays(lab: Lab, rule: str, found: Document) -> None:
    """The floor errs by a factor of shape alone, which is the same at every width."""
    judged = verdict(found, "width")
    lab.claim(
        MUON[rule].source,
        f"Muon: under {MUON[rule].formula} the best η stays over width",
        _measured(found) + why(judged),
        ANSWERS[judged["answer"]],
    )


def _falls(lab: Lab, found: Document) -> None:
    """The rule grows with the root of the width, so eta must fall as that, if matrices rule."""
    far = farthest(verdict(found, "width"))
    lab.claim(
        MUON["root_max"].source,
        f"Muon: under {MUON['root_max'].formula} the best η falls with width (theory: "
        "by 0.5 per doubling, in log2, if hidden matrices alone decide)",
        _measured(found),
        below(estimate(far["shift_log2"]), NOTHING),
    )


def _faster(lab: Lab, found: Mapping[str, Document]) -> None:
    """What all that is no hidden matrix does to eta is in both."""
    slopes = [_slope(found[rule]) for rule in ("root_max", "root_ratio")]
    names = [MUON[rule].formula for rule in ("root_max", "root_ratio")]
    lab.claim(
        MUON["root_max"].source,
        f"Muon: the best η falls faster under {names[0]} than under {names[1]} (theory: by 0.5)",
        f"per doubling {within(slopes[0])} under the first, {within(slopes[1])} under the second",
        below(*slopes),
    )


def _slope(found: Document) -> Estimate:
    """The trend of log2 eta over log2 width; unknown where fewer than two optima are."""
    trend = found["trend"]
    return estimate(trend["slope"]) if trend else student([math.nan])


@rc_context(STYLE)
def _figure(found: Mapping[str, Document]) -> Figure:
    """The curves over width."""
    figure = Figure(figsize=(2.5 * len(found) + 0.6, 2.8), layout="constrained")
    axes = figure.subplots(1, len(found), sharey=True)
    for ax, (rule, validation) in zip(axes, found.items(), strict=True):
        answer = verdict(validation, "width")["answer"]
        curves(ax, validation, "width", f"Muon, {MUON[rule].formula}\ntransfer: {answer}")
        ax.get_legend().remove()
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, title="width", loc="outside right center")
    figure.supxlabel("learning rate, log2 η", fontsize=9)
    figure.supylabel("training loss (nats)", fontsize=9)
    return figure


if __name__ == "__main__":
    main()
