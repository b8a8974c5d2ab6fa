"""Batch and tokens together, near Complete(d)P."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.laws.law import Factors, Scale, changed_betas, check_exponents, growth


@dataclass(frozen=True, kw_only=True)
class Joint:
    """`eta ~ B^batch T^tokens`, `beta2 ~ beta2^B`, `eps ~ (B / T)^eps`: B the batch, T the tokens.

    Complete(d)P (arXiv:2512.22382) has eta go as the root of r = B / T, from the stochastic
    differential equation of Adam: `law.tokens=-0.5`. The rules here are those that marin trains
    by, which call themselves close to it (marin-community/marin, `CompletedAdamHHeuristic`): 0.3
    in place of the tokens' 1/2, eps as the root of T / B, beta1 fixed, and beta2 to the power
    B / B0, which keeps the number of tokens after which a squared gradient counts for half.

    `weight_decay=1` has decay go as B / T, the rule of `law=timescale`: a whole run decays as much
    as the base's.
    """

    batch: float = 0.5
    tokens: float = -0.3
    eps: float = -0.5
    beta2: bool = True
    weight_decay: float = 0.0

    source: ClassVar[str] = "arXiv:2512.22382, with the exponents of marin-community/marin"

    @property
    def held(self) -> str:
        """What stays."""
        betas = "beta1" if self.beta2 else "betas"
        return betas if self.weight_decay else f"{betas}, and weight decay"

    def __post_init__(self) -> None:
        """Refuse what is no exponent."""
        check_exponents(self, "batch", "tokens", "eps", "weight_decay")

    def factors(self, base: Scale, target: Scale) -> Factors:
        """Factors on eta, eps and decay, and the new beta2."""
        batch, tokens = growth(base, target)
        names = ("beta2",) if self.beta2 and batch != 1 else ()
        powers = {name: beta**batch for name, beta in (base.betas or {}).items()}
        return Factors(
            eta=batch**self.batch * tokens**self.tokens,
            eps=(batch / tokens) ** self.eps,
            weight_decay=(batch / tokens) ** self.weight_decay,
            betas=changed_betas(base, names, powers),
        )
