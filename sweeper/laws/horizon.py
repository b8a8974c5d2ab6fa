"""The horizon: a longer run wants a smaller learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.laws.law import Factors, OutsideLaw, Scale, check_exponents, growth


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """`eta ~ D^tokens` at a fixed batch, D the tokens of the run.

    -0.32 is what arXiv:2409.19913 measured for AdamW, and arXiv:2603.28743 (with the code
    microsoft/ArchScale) again for Muon on a sphere.
    """

    tokens: float = -0.32

    source: ClassVar[str] = "arXiv:2409.19913 and arXiv:2603.28743"
    held: ClassVar[str] = "the batch, betas, eps and weight decay"

    def __post_init__(self) -> None:
        """Refuse what is no exponent."""
        check_exponents(self, "tokens")

    def factors(self, base: Scale, target: Scale) -> Factors:
        """The factor on eta; `OutsideLaw` for another batch."""
        batch, tokens = growth(base, target)
        if batch != 1:
            raise OutsideLaw(
                f"law=horizon holds at a fixed batch, and {target.batch} is not the base's "
                f"{base.batch}: take law=joint, which has a rule for both"
            )
        return Factors(eta=tokens**self.tokens)
