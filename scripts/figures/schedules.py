"""Does the best learning rate, and the verdict over width, depend on the schedule?

Four schedules under u-muP, all of the same steps: constant, linear, cosine (to a tenth), WSD.

python scripts/figures/schedules.py [size=paper] [OVERRIDES]
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
    near,
    paired,
    panels,
    verdict,
    within,
)
from matplotlib.figure import Figure

from sweeper.stats.estimate import Estimate

SCHEDULES = ("cosine", "linear", "constant", "wsd")
"""Cosine is the default, which the others are compared with."""
ALONE = ("transfer.depths=[]", "transfer.batches=[]", "transfer.steps=[]")
FACTOR = 1.0
"""Octaves within which a best rate is taken to be cosine's: the threshold of a transfer."""


def main() -> None:
    """A search of eta at the base and a validation over width, for each schedule."""
    lab = Lab.of("schedules")
    found = {}
    for schedule in SCHEDULES:
        searched = lab.search(schedule, f"train.schedule={schedule}", *ALONE)
        found[schedule] = lab.transfer(schedule, 8 * searched["base"]["width"])
    for schedule in SCHEDULES:
        lab.stays("own question", schedule, verdict(found[schedule], "width"))
    for schedule in SCHEDULES[1:]:
        _same_rate(lab, schedule, found)
    for schedule in SCHEDULES[1:]:
        _better(lab, schedule, found)
    lab.finish(lambda: _figure(found))


def _figure(found: Mapping[str, Document]) -> Figure:
    """A panel of curves for each schedule."""
    figure, axes = panels(2, 2)
    for ax, schedule in zip(axes, SCHEDULES, strict=True):
        answer = verdict(found[schedule], "width")["answer"]
        curves(ax, found[schedule], "width", f"{schedule}: {answer}")
    figure.supxlabel("learning rate, log2 η")
    figure.supylabel("training loss (nats)")
    return figure


def _same_rate(lab: Lab, schedule: str, found: Mapping[str, Document]) -> None:
    """The best rates at the largest width, by the root of the sum of both errors' squares."""
    far = {name: farthest(verdict(found[name], "width")) for name in ("cosine", schedule)}
    ours, cosine = (estimate(far[name]["optimum_log2"]) for name in (schedule, "cosine"))
    value = ours.value - cosine.value
    low = value - ((ours.value - ours.low) ** 2 + (cosine.high - cosine.value) ** 2) ** 0.5
    high = value + ((ours.high - ours.value) ** 2 + (cosine.value - cosine.low) ** 2) ** 0.5
    apart = Estimate(value=value, low=low, high=high)
    lab.claim(
        "own question",
        f"{schedule}: the best η is within a factor of 2 of cosine's",
        f"{within(apart)} in log2 at width {far[schedule]['size']['width']}",
        near(apart, 0.0, FACTOR),
    )


def _better(lab: Lab, schedule: str, found: Mapping[str, Document]) -> None:
    """The losses at the best eta of each, paired by seed."""
    size = farthest(verdict(found["cosine"], "width"))["size"]
    less = paired(least(found[schedule], size), least(found["cosine"], size))
    lab.claim(
        "own question",
        f"at the best η of each {schedule}'s loss is below cosine's",
        f"{schedule}'s {compared(less, '{:.4f}')} at width {size['width']}, paired by seed",
        below(less, NOTHING),
    )


if __name__ == "__main__":
    main()
