"""AdamW's timescale: the decay that keeps how much of a run the weights look back over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.laws.law import Factors, OutsideLaw, Scale, check_exponents, growth


@dataclass(frozen=True, kw_only=True)
class Timescale:
    """`tau = B / (eta lambda D)` goes as `(D / N)^ratio`: D tokens, N parameters.

    AdamW's weights are an average of their last 1 / (eta lambda) updates, a share tau of the run's
    D / B steps (arXiv:2405.13698). That share stays: ratio 0. In one pass over the data its
    optimum was measured to fall as (tokens per parameter)^-0.527 (arXiv:2505.13738):
    `law.ratio=-0.527`. Here eta lambda is weight decay itself, the share that a step removes, so
    decay goes as (B / D) / (D / N)^ratio, whatever eta does.
    """

    ratio: float = 0.0

    held: ClassVar[str] = "eta, betas and eps"

    @property
    def source(self) -> str:
        """The paper of the exponent in use."""
        return "arXiv:2505.13738" if self.ratio else "arXiv:2405.13698"

    def __post_init__(self) -> None:
        """Refuse what is no exponent."""
        check_exponents(self, "ratio")

    def factors(self, base: Scale, target: Scale) -> Factors:
        """The factor on weight decay; `OutsideLaw` where the parameters are not known."""
        batch, tokens = growth(base, target)
        if not self.ratio:
            return Factors(weight_decay=batch / tokens)
        if base.parameters is None or target.parameters is None:
            raise OutsideLaw(
                "law=timescale with a ratio needs the number of parameters, and the model is known "
                "to its own command alone: take law.ratio=0"
            )
        ratio = tokens / (target.parameters / base.parameters)
        return Factors(weight_decay=batch / tokens / ratio**self.ratio)
