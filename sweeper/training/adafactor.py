"""Adafactor: factored second moments, steps as shares of the weight (arXiv:1804.04235)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.errors import ConfigError
from sweeper.scaling.spec import ParamSpec, Update
from sweeper.training.optimizer import Factors, Now, State, along
from sweeper.training.updates import check, decay, empty, rates
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Adafactor:
    """`p -= share * (lr * max(rms_floor, RMS(p)) * u / max(1, RMS(u) / clip) + weight_decay * p)`.

    `u = g / sqrt(v)` and v follows g^2 with weight `t^beta2_decay` for the newest; of a matrix
    only the means of v by row and by column are kept (Shazeer and Stern, Algorithms 4 and 5).
    As torch's Adafactor, sqrt(v) is held at eps and the mean of the row means at eps, but for:
    the decay is independent of the learning rate; eps is the paper's, 1e-15, not the type's
    machine epsilon; and torch's cap on lr of t^-1/2 is left out, as it would hold back the
    larger of the learning rates compared.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ()

    beta2_decay: float = -0.8
    clip: float = 1.0
    rms_floor: float = 1e-3
    eps: float = 1e-15
    weight_decay: float = 2.0**-13

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check(self)
        if not -1 <= self.beta2_decay <= 0:
            raise ConfigError("beta2_decay", self.beta2_decay, "from -1 to 0")
        for key in ("clip", "rms_floor"):
            if getattr(self, key) <= 0:
                raise ConfigError(key, getattr(self, key), "a positive number")

    def kind(self, spec: ParamSpec) -> Update:
        """As the parameter's RMS, of every parameter."""
        return Update.PARAMETER

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """Nothing of its own."""
        return {}

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero means `row` [K, ..., rows, 1] and `column` [K, ..., 1, columns], or `full`."""
        return {
            "row": [torch.zeros_like(p[..., :1]) if _factored(p) else empty(p) for p in params],
            "column": [
                torch.zeros_like(p[..., :1, :]) if _factored(p) else empty(p) for p in params
            ],
            "full": [empty(p) if _factored(p) else torch.zeros_like(p) for p in params],
        }

    def roots(self, state: State, factors: Factors, step: int) -> list[Tensor]:
        """sqrt(v) before it is held at eps; see `Optimizer`."""
        means = zip(state["row"], state["column"], state["full"], strict=True)
        return [_root(*mean, eps) for mean, eps in zip(means, factors.eps, strict=True)]

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, factors: Factors, now: Now
    ) -> None:
        """One step in place, each trial with rates, eps and decay of its own."""
        lr = rates(params, factors, now)
        scale = [_rms(p).clamp(min=self.rms_floor) for p in params]
        decay(params, factors, now)
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            newest = now.step.to(p.dtype) ** self.beta2_decay
            row, column, full = (state[name][i] for name in ("row", "column", "full"))
            _take_in(row, column, full, g, newest)
            u = g / torch.maximum(_root(row, column, full, factors.eps[i]), factors.eps[i])
            p.sub_(u.mul_(lr[i] * scale[i] / (_rms(u) / self.clip).clamp(min=1.0)))


def _factored(param: Tensor) -> bool:
    """Whether a trial's slice is a matrix, or a stack of them."""
    return param.dim() > 2


def _rms(values: Tensor) -> Tensor:
    """Root mean square of each trial's slice, [K, 1, ..., 1]."""
    return along(values.reshape(len(values), -1).square().mean(1).sqrt(), values)


def _take_in(row: Tensor, column: Tensor, full: Tensor, g: Tensor, newest: Tensor) -> None:
    """Let the means that there are take g^2 in, with weight `newest`."""
    squares = g.square()
    if not _factored(g):
        full.lerp_(squares, newest)
        return
    row.lerp_(squares.mean(-1, keepdim=True), newest)
    column.lerp_(squares.mean(-2, keepdim=True), newest)


def _root(row: Tensor, column: Tensor, full: Tensor, eps: Tensor) -> Tensor:
    """sqrt(v) of the parameter's shape."""
    if full.numel():
        return full.sqrt()
    norm = torch.maximum(row.mean(-2, keepdim=True), eps)
    return (row / norm * column).sqrt_()
