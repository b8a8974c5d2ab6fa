"""Spectral learning-rate rules: which keep the change of activations, and so Muon's best rate.

The rules are those that lecture, notes, and the papers of Muon print; the first part measures one
step of a layer, the second trains with Muon over a ladder of widths.

python scripts/figures/spectral.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.check.rules import MAX_SPREAD
from sweeper.report.drawing import MARKERS, STYLE
from sweeper.stats.estimate import Estimate


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A rule as a source prints it; `keeps`: it is said to keep the change of activations."""

    source: str
    formula: str
    optimizer: str
    keeps: bool = True


PRINTED: Mapping[tuple[str, str], Printed] = {
    ("inverse_fan_in", "sign"): Printed(
        source="lecture, I.3, for signs", formula="1/d_in", optimizer="Adam"
    ),
    ("inverse_root_product", "sign"): Printed(
        source="notes", formula="1/√(d_in d_out)", optimizer="Adam"
    ),
    ("inverse_root_fan_in", "sign"): Printed(
        source="lecture, III", formula="1/√d_in", optimizer="Adam"
    ),
    ("root_ratio", "orthogonal"): Printed(
        source="lecture, I.3", formula="√(d_out/d_in)", optimizer="Muon"
    ),
    ("root_ratio_floored", "orthogonal"): Printed(
        source="Muon (Jordan et al.)", formula="√max(1, d_out/d_in)", optimizer="Muon"
    ),
    ("root_max", "orthogonal"): Printed(
        source="Moonlight (Liu et al.)",
        formula="0.2 √max(d_in, d_out)",
        optimizer="Muon",
        keeps=False,
    ),
    ("root_ratio", "normalized"): Printed(
        source="lecture, I.3", formula="√(d_out/d_in)", optimizer="unit Frobenius norm"
    ),
}
MUON = {rule: printed for (rule, update), printed in PRINTED.items() if update == "orthogonal"}


def main() -> None:
    """The table of rules; then a search and a ladder over width for each of Muon's."""
    lab = Lab.of("spectral")
    folder = str(lab.folder / "rules")
    rows = lab.sweeper("check", "--rules", "--folder", folder)["rules"]
    found = {rule: _ladder(lab, rule) for rule in MUON}
    for row in rows:
        _keeps(lab, row)
    for rule in ("root_ratio", "root_ratio_floored"):
        _stays(lab, rule, found[rule])
    _falls(lab, found["root_max"])
    _faster(lab, found)
    lab.finish(_figure(rows, found))


def _ladder(lab: Lab, rule: str) -> Document:
    searched = lab.search(rule, f"parameterization.rule={rule}")
    return lab.transfer(rule, 8 * searched["base"]["width"])


def _keeps(lab: Lab, row: Document) -> None:
    """Measured on one draw: an update of given inputs, with no noise of training."""
    printed = PRINTED[row["rule"], row["update"]]
    what = "keeps the change of activations" if printed.keeps else "lets the change grow"
    changes = row["changes"].values()
    lab.claim(
        printed.source,
        f"{printed.optimizer}: {printed.formula} {what} over shapes and widths",
        f"changes from {min(changes):.2f} to {max(changes):.2f} over {len(changes)} shapes, "
        f"a factor of {row['spread']:.2f} (constant: at most {MAX_SPREAD})",
        "reproduced" if row["keeps"] == printed.keeps else "not reproduced",
    )


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
def _figure(rows: Sequence[Document], found: Mapping[str, Document]) -> Figure:
    """Above the changes by shape, below the curves over width."""
    figure = Figure(figsize=(2.5 * len(found) + 0.6, 5.4), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    upper, lower = parts
    _changes(upper.subplots(), rows)
    axes = lower.subplots(1, len(found), sharey=True)
    for ax, (rule, validation) in zip(axes, found.items(), strict=True):
        answer = verdict(validation, "width")["answer"]
        curves(ax, validation, "width", f"Muon, {MUON[rule].formula}\ntransfer: {answer}")
        ax.get_legend().remove()
    lower.legend(*axes[0].get_legend_handles_labels(), title="width", loc="outside right center")
    lower.supxlabel("learning rate, log2 η", fontsize=9)
    lower.supylabel("training loss (nats)", fontsize=9)
    return figure


def _changes(ax: Axes, rows: Sequence[Document]) -> None:
    """RMS of the change over its value at the first shape: a right rule is a flat line."""
    for index, row in enumerate(rows):
        printed = PRINTED[row["rule"], row["update"]]
        shapes, changes = list(row["changes"]), list(row["changes"].values())
        label = f"{printed.optimizer}: {printed.formula}"
        right: dict[str, Any] = {"linestyle": "-" if row["keeps"] else (0, (4, 2)), "markersize": 4}
        relative = [change / changes[0] for change in changes]
        names = [shape.replace("x", " x ") for shape in shapes]
        ax.plot(names, relative, marker=MARKERS[index], label=label, **right)
    ax.set_yscale("log", base=2)
    ax.set(ylabel="RMS of the change, relative", title="One step: solid rules keep the change")
    ax.set_xlabel("shape, out x in")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


if __name__ == "__main__":
    main()
