"""Whether one configuration is better than another: their losses compared seed by seed.

Runs of one seed share their draws of weights and batches, and what a seed does to both cancels in
their difference. The mean of these differences has Student's interval.

**A run that diverged** has no loss, so a pair with one has no difference. What it says is this, in
`compare`, where `settle` adds seeds to it, and in the last runs of a search alike:

- Both diverged: the pair says nothing of which is better, and is left out.
- One diverged: that configuration lost the pair, and nobody knows by how much: a sign without a
  size. A mean would need the size. Taken as infinite, one run in a thousand would decide against
  any gain; left out, a configuration that half of its runs do not survive would win by the others.

From that follow three rules. Where a configuration diverges more often than the other one, beyond
chance, it is worse by no finite number (`divergence_error`). Until then the differences of the
other pairs give the interval; but the end that would say that a configuration is better in spite of
its divergence stays infinite until the signs of all pairs, those with it among them, say so too
(`sign_error`): at 95 % eight won pairs beside a lost one, where six without it would do. And the
other end stays as it is: a lost pair more never makes a configuration better.

So with one of eight seeds diverged and the others 0.02 nats better for sure nothing is decided;
with one of nine the gain is.

A point of a ladder's curve is not compared in pairs: there the run that diverged closes the point
for a plan, and as nobody knows how far below it training would have failed, the interval of the
optimum reaches up to it (`stats/curve.py`): a sign without a size as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sweeper.stats.estimate import UNKNOWN, Array, Estimate, binomial_from, mean_estimate

LONE = 1 / 4
"""The most often that one of two alike configurations diverges alone: p (1 - p) at p = 1/2."""


@dataclass(frozen=True, eq=False)
class SeedPairs:
    """What the pairs of two configurations say of the first one.

    `differences` are its losses less the other's, where both trained; with so many seeds it alone
    diverged, `lost`, or the other alone, `won`, or `both` did.
    """

    differences: Array
    lost: int
    won: int
    both: int

    @classmethod
    def of(cls, losses: Array, others: Array) -> SeedPairs:
        """The pairs of `losses` and `others` [seeds], in which +inf is a run that diverged."""
        wild, other_wild = np.isinf(losses), np.isinf(others)
        trained = ~(wild | other_wild)
        return cls(
            losses[trained] - others[trained],
            lost=int((wild & ~other_wild).sum()),
            won=int((other_wild & ~wild).sum()),
            both=int((wild & other_wild).sum()),
        )

    def by_divergence(self, alpha: float) -> float:
        """+inf where the first diverges more often for sure, -inf where the other does, else 0."""
        # Pairs that say nothing count as well.
        count = len(self.differences) + self.lost + self.won + self.both
        if divergence_error(self.lost, self.won, count) > alpha:
            return 0.0
        return math.inf if self.lost > self.won else -math.inf

    def difference(self, alpha: float) -> Estimate:
        """How much higher the first one's loss is, with an interval of level 1 - `alpha`."""
        if end := self.by_divergence(alpha):
            return Estimate(value=end, low=end, high=end)
        if not len(self.differences):
            # All pairs that say anything were lost, or won, and too few of them.
            sign = (self.lost > 0) - (self.won > 0)
            return replace(UNKNOWN, value=sign * math.inf) if sign else UNKNOWN
        mean = mean_estimate(self.differences, alpha)
        # A pair that is equal to the last digit is no toss of the coin: it is on neither side.
        worse = int((self.differences > 0).sum()) + self.lost
        better = int((self.differences < 0).sum()) + self.won
        sure = sign_error(worse, better) <= alpha
        return Estimate(
            value=mean.value,
            low=mean.low if not self.won or (sure and worse > better) else -math.inf,
            high=mean.high if not self.lost or (sure and better > worse) else math.inf,
        )


def paired_difference(losses: Array, others: Array, alpha: float) -> Estimate:
    """`losses` less `others` [seeds], seed by seed, with an interval of level 1 - `alpha`.

    NaN is a run that failed, which is no divergence and says nothing: then nothing is known.
    """
    if np.isnan(losses).any() or np.isnan(others).any():
        return UNKNOWN
    return SeedPairs.of(losses, others).difference(alpha)


def sign_error(side: int, other: int) -> float:
    """The chance of so unlike counts, or unliker ones, of a fair coin's two sides."""
    count, few = side + other, min(side, other)
    # Both tails of Bin(count, 1/2), which are alike.
    return min(1.0, 2 * binomial_from(count - few, count, 0.5))


def divergence_error(lost: int, won: int, count: int) -> float:
    """The chance that one of two alike configurations diverges alone so much more often.

    Of the seeds with which one alone diverged each is a toss of a fair coin. Where it is always the
    same one, its number among all `count` seeds tells as well, since it is at most `LONE` of them
    in the mean: three of three would be six tosses alike.
    """
    by_sign = sign_error(lost, won)
    if min(lost, won):
        return by_sign
    return min(by_sign, 2 * binomial_from(max(lost, won), count, LONE))


def by_losses(losses: Array) -> tuple[int, float]:
    """What configurations are ordered by: runs that diverged, then the mean of the others."""
    finite = losses[np.isfinite(losses)]
    return len(losses) - len(finite), float(finite.mean()) if len(finite) else math.inf
