"""Which ladder to train next, as settings: a study's first, and the one that settles a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweeper.decide.transfer import MAX_SEED_FACTOR, Verdict
from sweeper.decide.validation import Validation
from sweeper.records import to_json
from sweeper.stats.ladder import DEFAULT_WIDTHS, LADDER_AXES, LadderRule
from sweeper.study.searched import config_tree

DEFAULT_LADDER = {
    key: value
    for key, value in to_json(LadderRule(widths=DEFAULT_WIDTHS)).items()
    if key in ("widths", "depths", "seeds", "step", "span")
}
"""What the configuration says of ladders where nobody has said anything."""


def first_ladder(folder: Path, width: int, target: int) -> list[str]:
    """Overrides for cheap ladders from `width`, none wider than `target`.

    None where the configuration of the study in `folder` says anything of ladders.
    """
    try:
        tree = config_tree(folder)
        transfer, head_size = tree["transfer"], int(tree["model"].get("head_size") or 1)
    except (KeyError, TypeError, AttributeError, ValueError):
        transfer, head_size = {}, 1
    if any(transfer.get(key) != value for key, value in DEFAULT_LADDER.items()):
        return []
    widths: list[int] = []
    # Three widths from the base on are cheap where they end within the default's.
    if width < target and 4 * width <= max(DEFAULT_WIDTHS):
        # Four widths carry an answer far beyond them, three do not (docs/verdict.md).
        far = [8 * width] * (target >= 16 * width)
        widths = [size for size in (width, 2 * width, 4 * width, *far) if size <= target]
        widths = widths if len(widths) > 1 else [width, target]
    elif width < target:
        # A width that no head fits into is none of the default's either.
        default = [size for size in DEFAULT_WIDTHS if size % head_size == 0]
        within = [size for size in default if size <= target]
        widths = within if within != default else []
    named = [f"transfer.widths=[{','.join(map(str, widths))}]"] * bool(widths)
    return [*named, "transfer.seeds=3", "transfer.step=1"]


def settling_ladder(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Settings that would settle all open `verdicts` at once; none where none is known to."""
    asked: dict[str, float] = {}
    for key, text in (override.split("=", 1) for each in verdicts for override in each.settle):
        # One command answers all: the finest step, and of all else the most.
        least = min if key == "transfer.step" else max
        asked[key] = least(asked.get(key, float(text)), float(text))
    return asked


def without_settled(verdicts: Sequence[Verdict]) -> list[str]:
    """Overrides that leave out the ladders which ask for nothing."""
    return [
        f"transfer.{LADDER_AXES[verdict.axis]}=[]"
        for verdict in verdicts
        if not verdict.settle and verdict.axis in LADDER_AXES
    ]


def settling_budget(validation: Validation) -> int | None:
    """The runs that likely settle a ladder which was to be, and did not; None where none would."""
    runs = sum(len(seeds) for curve in validation.curves for seeds in curve.losses.values())
    less_noise = any(key.startswith("train.") for v in validation.axes for key in v.settle)
    if less_noise or not runs < validation.needed <= MAX_SEED_FACTOR * runs:
        return None
    return validation.needed
