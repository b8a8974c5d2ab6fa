"""AdamW with independent weight decay (Loshchilov and Hutter, arXiv:1711.05101)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.scaling.spec import ParamSpec, Update
from sweeper.training.optimizer import State, StepInfo, UpdateHps
from sweeper.training.updates import adam, adam_roots, check_ranges, searched_settings
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """`p -= schedule * (lr * m / (sqrt(v) + eps) + weight_decay * p)`, moments bias-corrected.

    The decay is independent: it follows the schedule but not the learning rate, so its optimum
    does not move with eta or with a parameter's learning-rate factor (u-muP paper, Table 6).
    With `atan2` the step is `lr * 4/pi * atan2(m, sqrt(v))` and eps plays no part: it has no
    scale that gradients could fall below (Everett et al., section 4.3). The 4/pi
    makes it 1 at m = sqrt(v), as Adam's is (erratum E3, docs/errata.md).
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("one_minus_beta1", "one_minus_beta2")

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 2.0**-13
    atan2: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_ranges(self, "beta1", "beta2")

    def kind(self, spec: ParamSpec) -> Update:
        """Like a sign, of every parameter."""
        return Update.SIGN

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """`beta1` and `beta2`."""
        return searched_settings(self, hps)

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero moments, `first` and `second`, of the parameters' shapes."""
        return {name: [torch.zeros_like(p) for p in params] for name in ("first", "second")}

    def second_moment_roots(self, state: State, hps: UpdateHps, step: int) -> list[Tensor]:
        """What Adam divides by before eps is added; see `Optimizer`."""
        return adam_roots(state["second"], hps, step)

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay and betas."""
        adam(params, grads, state["first"], state["second"], hps, now, atan2=self.atan2)
