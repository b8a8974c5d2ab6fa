"""Depth: what a residual branch and its weights are given as layers are added."""

from __future__ import annotations

from typing import Literal

from sweeper.errors import ConfigError
from sweeper.scaling.spec import Update

DepthRule = Literal["none", "depth_mup", "completep"]
"""No rule; branches over the root of the depth; CompleteP with an alpha of its own."""


def branch_exponent(rule: DepthRule, completep_alpha: float) -> float | None:
    """alpha: a branch is multiplied by (depth / base depth)^-alpha; None for no rule at all.

    depth-muP (Tensor Programs VI) is CompleteP (Dey et al., arXiv:2505.01618) at alpha = 1/2.
    """
    return {"none": None, "depth_mup": 0.5, "completep": completep_alpha}[rule]


def check_alpha(completep_alpha: float) -> None:
    """ConfigError outside [1/2, 1]: below it branches add up to more than the stream."""
    if not 0.5 <= completep_alpha <= 1:
        raise ConfigError("completep_alpha", completep_alpha, "from 0.5 (depth-muP) to 1")


def branch_factor(growth: float, alpha: float | None) -> float:
    """Multiplier of a residual branch, `growth` = depth / base depth."""
    return 1.0 if alpha is None else float(growth**-alpha)


def depth_lr(growth: float, alpha: float | None, update: Update) -> float:
    """Learning rate of weights and gains on a branch: all branches together move by O(1).

    `growth` branches, each times growth^-alpha, need updates of growth^(alpha-1). A gradient
    (SGD) brings a factor growth^-alpha itself, so that its rate goes as growth^(2 alpha - 1).
    """
    if alpha is None:
        return 1.0
    return float(growth ** (2 * alpha - 1 if update is Update.GRADIENT else alpha - 1))
