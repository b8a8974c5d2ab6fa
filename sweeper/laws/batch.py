"""The batch under Adam, where the number of tokens stays: the square-root rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.errors import ConfigError
from sweeper.laws.law import Factors, OutsideLaw, Scale, changed_betas, check_exponents, growth

BETAS = ("beta1", "beta2")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`eta ~ B^eta`, `1 - beta ~ B`, `eps ~ B^eps`, B the batch (arXiv:2205.10287).

    With kappa times the batch and as many tokens, hence 1/kappa of the steps, Adam follows the
    same stochastic differential equation where eta is multiplied by the root of kappa, both
    1 - beta by kappa, and eps by 1 / the root. `betas` names those that follow the batch.
    """

    eta: float = 0.5
    eps: float = -0.5
    betas: tuple[str, ...] = BETAS

    source: ClassVar[str] = "arXiv:2205.10287"

    @property
    def held(self) -> str:
        """What stays beside the tokens."""
        fixed = [name for name in BETAS if name not in self.betas]
        return ", ".join(["the number of tokens", *fixed, "weight decay"])

    def __post_init__(self) -> None:
        """Refuse what is no exponent, and betas that Adam does not have."""
        check_exponents(self, "eta", "eps")
        if unknown := [name for name in self.betas if name not in BETAS]:
            raise ConfigError("betas", unknown[0], f"a list of {' and '.join(BETAS)}, or []")

    def factors(self, base: Scale, target: Scale) -> Factors:
        """Factors on eta and eps, and new betas; `OutsideLaw` for another number of tokens."""
        kappa, _ = growth(base, target)
        # Whole steps of another batch may miss the same number of tokens by half a step.
        if 2 * abs(target.tokens - base.tokens) * target.steps > target.tokens:
            raise OutsideLaw(
                "law=batch holds at a fixed number of tokens, and "
                f"{target.tokens:,} is not the base's {base.tokens:,}: take law=joint, which has a "
                "rule for both"
            )
        known = base.betas or {}
        betas = {name: 1 - kappa * (1 - known[name]) for name in self.betas if name in known}
        if below := [name for name, beta in betas.items() if beta < 0]:
            most = min(1 / (1 - known[name]) for name in below)
            rest = ",".join(name for name in self.betas if name not in below)
            raise OutsideLaw(
                f"law=batch would make {below[0]} negative at {kappa:g} times the batch; it goes "
                f"to {most:g} times. Hold {' and '.join(below)} fixed with law.betas=[{rest}], or "
                "take law=joint"
            )
        return Factors(
            eta=kappa**self.eta,
            eps=kappa**self.eps,
            betas=changed_betas(base, self.betas, betas) if kappa != 1 else {},
        )
