"""Adafactor: factored second moments, steps relative to the weight (arXiv:1804.04235)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.errors import ConfigError
from sweeper.scaling.spec import ParamSpec, Update
from sweeper.training.optimizer import State, StepInfo, UpdateHps, unsqueeze_like
from sweeper.training.updates import apply_weight_decay, check_ranges, current_lrs, empty_state
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Adafactor:
    """One step: `p -= schedule * (lr * scale * u / max(1, RMS(u) / clip) + weight_decay * p)`.

    `scale = max(rms_floor, RMS(p))`, `u = g / sqrt(v)`, and v averages g^2, the newest with weight
    `t^beta2_decay`; of a matrix only the means of v by row and by column are kept (Shazeer and
    Stern, Algorithms 4 and 5). sqrt(v) and the mean of the row means are at least eps, as in
    torch's Adafactor. Unlike there, the decay is independent of the learning rate; eps is the
    paper's, 1e-15, not the type's machine epsilon; and there is no cap on lr of t^-1/2, which
    would hold back the larger of the learning rates compared.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ()

    beta2_decay: float = -0.8
    clip: float = 1.0
    rms_floor: float = 1e-3
    eps: float = 1e-15
    weight_decay: float = 2.0**-13

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_ranges(self)
        if not -1 <= self.beta2_decay <= 0:
            raise ConfigError("beta2_decay", self.beta2_decay, "from -1 to 0")
        for key in ("clip", "rms_floor"):
            if getattr(self, key) <= 0:
                raise ConfigError(key, getattr(self, key), "a positive number")

    def kind(self, spec: ParamSpec) -> Update:
        """As the parameter's RMS, of every parameter."""
        return Update.PARAMETER

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """No setting is searched."""
        return {}

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero means `row` [K, ..., rows, 1] and `column` [K, ..., 1, columns], or `full`."""
        return {
            "row": [
                torch.zeros_like(p[..., :1]) if _factored(p) else empty_state(p) for p in params
            ],
            "column": [
                torch.zeros_like(p[..., :1, :]) if _factored(p) else empty_state(p) for p in params
            ],
            "full": [empty_state(p) if _factored(p) else torch.zeros_like(p) for p in params],
        }

    def second_moment_roots(self, state: State, hps: UpdateHps, step: int) -> list[Tensor]:
        """sqrt(v) before eps bounds it; see `Optimizer`."""
        means = zip(state["row"], state["column"], state["full"], strict=True)
        return [_root(*mean, eps) for mean, eps in zip(means, hps.eps, strict=True)]

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps and decay."""
        lr = current_lrs(params, hps, now)
        # The weight before the decay, as in torch.
        scale = [_rms(p).clamp(min=self.rms_floor) for p in params]
        apply_weight_decay(params, hps, now)
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            # At step 1 the weight is 1: v starts as g^2 and needs no bias correction.
            weight = now.step.to(p.dtype) ** self.beta2_decay
            row, column, full = (state[name][i] for name in ("row", "column", "full"))
            _accumulate(row, column, full, g, weight)
            u = g / torch.maximum(_root(row, column, full, hps.eps[i]), hps.eps[i])
            p.sub_(u.mul_(lr[i] * scale[i] / (_rms(u) / self.clip).clamp(min=1.0)))


def _factored(param: Tensor) -> bool:
    """Whether a trial's slice is a matrix, or a stack of them."""
    return param.dim() > 2


def _rms(values: Tensor) -> Tensor:
    """Root mean square of each trial's slice, [K, 1, ..., 1]."""
    return unsqueeze_like(values.reshape(len(values), -1).square().mean(1).sqrt(), values)


def _accumulate(row: Tensor, column: Tensor, full: Tensor, g: Tensor, weight: Tensor) -> None:
    """Update the averages that this parameter has, g^2 with `weight`."""
    squares = g.square()
    if not _factored(g):
        _move(full, squares, weight)
        return
    _move(row, squares.mean(-1, keepdim=True), weight)
    _move(column, squares.mean(-2, keepdim=True), weight)


def _move(average: Tensor, values: Tensor, weight: Tensor) -> None:
    """Move `average` towards `values` by `weight`.

    Written out: torch 2.11 compiles a `lerp` among others on a CPU to wrong numbers.
    """
    average.add_(weight * (values - average))


def _root(row: Tensor, column: Tensor, full: Tensor, eps: Tensor) -> Tensor:
    """sqrt(v) of the parameter's shape."""
    if full.numel():
        return full.sqrt()
    # The outer product of the row and column means, over the mean of all: exact for v of rank 1.
    norm = torch.maximum(row.mean(-2, keepdim=True), eps)
    return (row / norm * column).sqrt_()
