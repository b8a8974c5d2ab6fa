"""A sequential design: looks at more and more runs, and what each may be wrong by.

Looking several times gives chance several tries. So each look has an error of its own, smaller than
that of the whole design, and it is spent in one of two ways. Where all looks are at one thing, and
few, it is Pocock's (Biometrika 64, 1977): looks share most of their runs, so that six looks of 3 %
err in 5 % to one side. Where many pairs are compared, it is Bonferroni's: the error divided by the
looks and pairs, whatever they share.

Whether to go on is asked of what is seen so far. A mean of more runs lies around that of the first
ones, with the variance that goes (Spiegelhalter, Freedman and Blackburn, 1986): `Foretold`. A
design that is hardly going to decide with all that its budget has ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.stats.estimate import normal_above

LOOKS = 6
"""A ladder is judged so many times at most."""
CONFIDENCE = 0.97
"""Of the intervals at each of these looks: six of them miss a threshold from one side with 5 % at
most.

Pocock's constant for six looks and 10 % to both sides is 2.164, a level of 0.9695. How often an
answer is wrong then is measured (`scripts/bench/verdict.py`)."""
HOPELESS = 0.1
"""A design ends where all that is left of its budget decides it with less than this chance."""


@dataclass(frozen=True)
class Foretold:
    """A mean as more runs will show it: `half` to both sides, `moves` (normal) around `value`."""

    value: float
    moves: float
    half: float

    def above(self, limit: float) -> float:
        """The chance that the whole interval lies above `limit`."""
        return normal_above((limit + self.half - self.value) / self.moves)

    def within(self, limit: float) -> float:
        """The chance that the whole interval lies between -`limit` and `limit`."""
        # The whole interval lies within where its middle is so far from both limits.
        room = max(0.0, limit - self.half)
        return normal_above((-room - self.value) / self.moves) - normal_above(
            (room - self.value) / self.moves
        )
