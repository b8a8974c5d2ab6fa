"""The law that a study's own ladders measured: eta as a power of batch and tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from sweeper.errors import BadInput, Keyword
from sweeper.laws.law import Factors, OutsideLaw, Scale, growth
from sweeper.stats.estimate import Estimate

Direction = tuple[float, float]
"""How log2 of the batch and log2 of the tokens change."""
DIRECTIONS: Mapping[str, Direction] = {
    "tokens at a fixed batch": (0.0, 1.0),
    "batch at fixed tokens": (1.0, 0.0),
    "batch at fixed steps": (1.0, 1.0),
}


class EtaExponents(Protocol):
    """What was measured: log2 eta is linear in log2 of the batch and of the tokens."""

    @property
    def batches(self) -> tuple[int, int]:
        """The least and the largest that were measured."""

    @property
    def tokens(self) -> tuple[int, int]:
        """The least and the most that were measured."""

    def log2_eta(self, direction: Direction) -> Estimate | None:
        """The change of log2 eta along a direction, with its 95 % interval; None: not measured."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """`eta ~ B^batch T^tokens` with the exponents of the measured optima.

    `measured` is what the ladders gave; without it the law says nothing yet. Betas, eps and decay
    stay, since nothing measured them.
    """

    measured: EtaExponents | None = field(default=None, repr=False)

    source: ClassVar[str] = "the study's own ladders over batch size and steps"
    fixed: ClassVar[str] = "betas, eps and weight decay"

    def __post_init__(self) -> None:
        """Refuse exponents that are written down: they come from ladders."""
        if isinstance(self.measured, Mapping | Sequence):
            raise BadInput(
                "law.measured is not given but measured; for exponents of your own take law=joint, "
                "as in law=joint law.batch=0.4 law.tokens=-0.2 law.beta2=false law.eps=0"
            )

    def fitted_to(self, exponents: EtaExponents) -> Fit:
        """The law with what was measured."""
        return replace(self, measured=exponents)

    def factors(self, base: Scale, target: Scale) -> Factors:
        """The factor on eta; `OutsideLaw` where nothing was measured in that direction."""
        direction = self._direction(base, target)
        if direction == (0.0, 0.0):
            return Factors()
        if self.measured is None:
            raise OutsideLaw(
                "law=fit has nothing to go by: measure ladders over the steps and the batch first, "
                "by ",
                Keyword("validate"),
                " with transfer.steps=[...] and transfer.batches=[...]",
            )
        if (log2_eta := self.measured.log2_eta(direction)) is None:
            raise OutsideLaw(
                f"law=fit was not measured in this direction, {_describe(direction)}: "
                "add a ladder, transfer.steps=[...] for the tokens at a fixed batch, "
                "transfer.batches=[...] for the batch at fixed steps; together they give every "
                "direction"
            )
        # The estimate alone; its interval is said in `notes`, and widens no plan.
        return Factors(eta=2.0**log2_eta.value)

    def notes(self, base: Scale, target: Scale) -> list[str]:
        """The interval of the factor, and a warning where it is far from what was measured."""
        direction = self._direction(base, target)
        if self.measured is None or direction == (0.0, 0.0):
            return []
        log2_eta = self.measured.log2_eta(direction)
        assert log2_eta is not None  # `factors` comes first, and raises
        value, low, high = (2.0**end for end in (log2_eta.value, log2_eta.low, log2_eta.high))
        # For one doubling the change of log2 eta is the exponent itself.
        doubled = ((name, self.measured.log2_eta(way)) for name, way in DIRECTIONS.items())
        powers = [f"{n} {e.value:+.2f} [{e.low:+.2f}, {e.high:+.2f}]" for n, e in doubled if e]
        notes = [
            f"the factor on eta is {value:.3g}, from {low:.3g} to {high:.3g} (95 %)",
            f"measured exponents: {', '.join(powers)}",
        ]
        batch = far("batch", target.batch, self.measured.batches)
        tokens = far("number of tokens", target.tokens, self.measured.tokens)
        return [*notes, *filter(None, (batch, tokens))]

    def _direction(self, base: Scale, target: Scale) -> Direction:
        batch, tokens = growth(base, target)
        return math.log2(batch), math.log2(tokens)


def far(name: str, asked: float, measured: tuple[int, int]) -> str:
    """A warning where `asked` is further from the ladder than the ladder is long, else empty."""
    low, high = measured
    # In factors, as the law is a power: a ladder over a factor of 8 is trusted for 8 more.
    factor, beyond = high / low, max(asked / high, low / asked)
    if beyond <= factor or beyond <= 1:
        return ""
    return (
        f"the {name}, {asked:,}, is {beyond:.3g} times beyond the ladder's, {low:,} to {high:,}, "
        f"and the ladder itself spans a factor of {factor:.3g} alone: that the power law goes on "
        "so far is an assumption, which no interval holds"
    )


def _describe(direction: Direction) -> str:
    parts = zip(("the batch", "the tokens"), direction, strict=True)
    return " and ".join(f"{2**log2:.4g} times {name}" for name, log2 in parts if log2)


@dataclass(frozen=True, kw_only=True)
class PrintedExponents:
    """Exponents of eta that somebody printed: of batch and tokens; None where nothing is said."""

    name: str
    source: str
    batch: float | None
    tokens: float | None

    def along(self, direction: Direction) -> float | None:
        """What they say of a direction; None where an exponent that it needs is not printed."""
        # log2 eta = batch * log2 B + tokens * log2 T; an axis that stays needs no exponent.
        pairs = zip((self.batch, self.tokens), direction, strict=True)
        needed = [(exponent, log2) for exponent, log2 in pairs if log2]
        if any(exponent is None for exponent, _ in needed):
            return None
        return sum(exponent * log2 for exponent, log2 in needed if exponent is not None)


PUBLISHED = (
    PrintedExponents(
        name="horizon", source="arXiv:2409.19913, 2603.28743", batch=None, tokens=-0.32
    ),
    PrintedExponents(name="batch", source="arXiv:2205.10287", batch=0.5, tokens=None),
    PrintedExponents(name="joint", source="marin-community/marin", batch=0.5, tokens=-0.3),
    PrintedExponents(name="Complete(d)P", source="arXiv:2512.22382", batch=0.5, tokens=-0.5),
)
