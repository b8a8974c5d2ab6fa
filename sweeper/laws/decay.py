"""Weight decay over the width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.laws.law import Factors, OutsideLaw, Scale, check_exponents

SOURCES = {
    0.0: "arXiv:2510.19093 and arXiv:2405.13698 (AdamW)",
    -0.5: "arXiv:2510.15262 (AdamW under muP)",
    -1.0: "arXiv:2512.05620 (Muon, SOAP, Shampoo)",
}
"""Where each power was published. They disagree, and each was measured for its own optimizer."""


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Independent weight decay goes as `m^power`, m the width over the base's.

    It is the share of a weight that a step removes. arXiv:2510.15262 writes it as eta lambda with
    lambda ~ sqrt(m) and eta ~ 1 / m, which is m^-1/2; a lambda fixed beside muP's eta ~ 1 / m is
    m^-1.
    """

    power: float = -0.5

    held: ClassVar[str] = "eta, betas and eps, the batch and the number of tokens"

    @property
    def source(self) -> str:
        """The paper of the power in use."""
        return SOURCES.get(self.power, "a power of your own")

    def __post_init__(self) -> None:
        """Refuse what is no power."""
        check_exponents(self, "power")

    def factors(self, base: Scale, target: Scale) -> Factors:
        """The factor on weight decay; `OutsideLaw` for another batch or number of tokens."""
        if (base.batch, base.tokens) != (target.batch, target.tokens):
            raise OutsideLaw(
                "law=decay says what the width does to weight decay, and nothing of another batch "
                "or another number of tokens: take law=joint, or law=timescale for the decay"
            )
        return Factors(weight_decay=(target.width / base.width) ** self.power)
