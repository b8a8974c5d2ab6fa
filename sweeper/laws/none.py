"""No law: nothing changes, and nothing is said of another batch or another number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.catalog import plugins
from sweeper.laws.law import Factors, OutsideLaw, Scale


@dataclass(frozen=True, kw_only=True)
class NoLaw:
    """Hyperparameters go to another width and depth as the parameterization has them."""

    source: ClassVar[str] = ""
    held: ClassVar[str] = "batch and tokens"

    def factors(self, base: Scale, target: Scale) -> Factors:
        """None; `OutsideLaw` for another batch or another number of tokens."""
        if (base.batch, base.tokens) != (target.batch, target.tokens):
            laws = [name for name in plugins()["law"] if name != "none"]
            raise OutsideLaw(
                "law=none has no rule for another batch or another number of tokens: choose a law, "
                f"one of {', '.join(laws)}, as in law=joint; docs/laws.md says when to use which"
            )
        return Factors()
