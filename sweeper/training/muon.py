"""Muon: orthogonalised momentum for hidden matrices, AdamW for all else (Jordan et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.errors import ConfigError
from sweeper.scaling.spec import ParamSpec, Role, Update
from sweeper.training.optimizer import Factors, Now, State
from sweeper.training.updates import (
    adam,
    adam_roots,
    blend,
    check,
    decay,
    empty,
    rates,
    searched,
    spread,
)
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Muon:
    """`p -= share * (lr * O(m) + weight_decay * p)`, where O makes all singular values about 1.

    m is the gradient's running average by `momentum` (with `nesterov` looking a step ahead), O
    is `steps` of Newton-Schulz with the polynomial's `coefficients`, as in torch's Muon. More
    than two dimensions are one matrix, [first, all others]. `bfloat16` iterates in that type,
    torch's way; else in the weights' own. eps bounds the norm that m is divided by, and is
    AdamW's. The decay is independent of the learning rate.

    Nothing multiplies O by shape here: that is the scheme's to say, as it knows which side is
    the fan-in. `parameterization=spectral` has every published rule by name (sqrt(d_out/d_in),
    sqrt(max(1, d_out/d_in)), 0.2 sqrt(max)); in schemes relative to a base model the ratio of
    a matrix's sides belongs to the base, and its share of the growth is in their exponents.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = (
        "one_minus_momentum",
        "one_minus_beta1",
        "one_minus_beta2",
    )

    momentum: float = 0.95
    nesterov: bool = True
    steps: int = 5
    coefficients: tuple[float, ...] = (3.4445, -4.7750, 2.0315)
    bfloat16: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 2.0**-13

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check(self, "momentum", "beta1", "beta2")
        if not 1 <= self.steps < 100:
            raise ConfigError("steps", self.steps, "from 1 to 99")
        if len(self.coefficients) != 3:
            raise ConfigError("coefficients", self.coefficients, "three numbers")

    def kind(self, spec: ParamSpec) -> Update:
        """Orthogonal of hidden matrices, like a sign of all else."""
        hidden = spec.role is Role.HIDDEN and len(spec.shape) >= 2
        return Update.ORTHOGONAL if hidden else Update.SIGN

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """`momentum`, `beta1` and `beta2`."""
        return searched(self, hps)

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero `first` moments of the parameters' shapes; `second` ones of what AdamW trains."""
        return {
            "first": [torch.zeros_like(p) for p in params],
            "second": [
                empty(p) if kind is Update.ORTHOGONAL else torch.zeros_like(p)
                for p, kind in zip(params, kinds, strict=True)
            ],
        }

    def roots(self, state: State, factors: Factors, step: int) -> list[Tensor]:
        """What Adam divides by before eps is added; see `Optimizer`."""
        return adam_roots(state["second"], factors, step)

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, factors: Factors, now: Now
    ) -> None:
        """One step in place, each trial with rates, eps, decay, betas and momentum of its own."""
        for orthogonal, step in ((False, adam), (True, self._orthogonal)):
            part = [
                i for i, k in enumerate(factors.kinds) if (k is Update.ORTHOGONAL) == orthogonal
            ]
            if part:
                own, slopes, first, second = (
                    [values[i] for i in part]
                    for values in (params, grads, state["first"], state["second"])
                )
                step(own, slopes, first, second, _of(factors, part), now)

    def _orthogonal(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        factors: Factors,
        now: Now,
    ) -> None:
        """The step of hidden matrices; `second` is empty."""
        momentum, lr = factors.own["momentum"], rates(params, factors, now)
        blend(first, grads, momentum)
        decay(params, factors, now)
        ahead = spread(momentum, params)
        for i, (p, m) in enumerate(zip(params, first, strict=True)):
            m = torch.lerp(grads[i], m, ahead[i]) if self.nesterov else m
            floor = factors.eps[i].reshape(-1, 1, 1)
            p.sub_(lr[i] * self._newton_schulz(m.reshape(*m.shape[:2], -1), floor).view_as(p))

    def _newton_schulz(self, matrices: Tensor, floor: Tensor) -> Tensor:
        """Matrices [K, rows, columns] with singular values moved to about 1."""
        a, b, c = self.coefficients
        x = matrices.bfloat16() if self.bfloat16 else matrices
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = x / torch.maximum(torch.linalg.matrix_norm(x, keepdim=True), floor.to(x.dtype))
        for _ in range(self.steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return (x.mT if tall else x).to(matrices.dtype)


def _of(factors: Factors, part: list[int]) -> Factors:
    """The factors of some of the parameters."""
    return Factors(
        kinds=[factors.kinds[i] for i in part],
        lr=[factors.lr[i] for i in part],
        eps=[factors.eps[i] for i in part],
        weight_decay=[factors.weight_decay[i] for i in part],
        own=factors.own,
    )
