"""Which of several configurations has the least loss, with as few seeds as decide it.

All are trained with the same seeds, round by round, and compared seed by seed: what a seed does to
all of them cancels. Who is worse than another one for sure drops out. It ends with one left, or
where those that are left are alike. What is asked for follows from the losses so far alone.

Looking several times gives chance several tries, so every look has an error of its own: see
`LEVEL`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import NormalDist
from typing import Literal

import numpy as np

from sweeper.decide.settle import CHANCE
from sweeper.errors import ConfigError, Keyword
from sweeper.stats.estimate import UNKNOWN, Estimate, quantile
from sweeper.stats.line import FLAT
from sweeper.stats.noise import Array

ROUNDS = (3, 5, 8, 12, 18, 27, 40, 60, 90)
"""Seeds of each after every round; one more round takes all that the budget has left."""
LEVEL = 0.0005
"""The error of one look at one pair, to both sides.

Ten looks at equal configurations with normal losses then rank them in 0.4 % of cases; the rest of
1 % is for losses that are skewed (`scripts/bench/ranking.py`)."""
DEFAULT_SEEDS = 40
"""Seeds of each that the budget allows where nothing else is said."""
PROMISING = 5
"""Seeds from which on a ranking is given up: fewer do not show how large the noise is."""

Ended = Literal["decided", "alike", "budget", "hopeless", "stuck"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One configuration's mean loss (nats), over `seeds`, `diverged` of them.

    `gap` is that above the first, seed by seed, with an interval that allows for all looks and
    pairs. `out`: it is worse than another one for sure.
    """

    name: str
    loss: float
    seeds: int
    diverged: int
    gap: Estimate
    out: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended, in a word and a sentence; `needed` runs would likely have decided it."""

    ended: Ended
    sentence: str
    needed: int | None = None


class Ranking:
    """Configurations on their way to a ranking.

    `loss` knows the runs so far by name and seed: NaN where one failed, +inf where it diverged,
    None where it is not known. `budget` is in runs of all together, `affordable` how many may be
    trained by what those so far took; at least `slots` are trained at a time.
    """

    def __init__(
        self,
        names: Sequence[str],
        loss: Callable[[str, int], float | None],
        *,
        budget: int | None = None,
        affordable: Callable[[], int] | None = None,
        slots: int = 1,
    ) -> None:
        """Nothing is asked of `loss` yet. ConfigError for a budget that is too small to begin."""
        self.left, self._loss = list(names), loss
        self._affordable, self._slots = affordable, slots
        self.budget = budget or DEFAULT_SEEDS * len(names)
        if (least := ROUNDS[0] * len(names)) > self.budget:
            raise ConfigError(
                Keyword("budget"), self.budget, f"at least {least}: {ROUNDS[0]} seeds each"
            )
        pairs = len(names) * (len(names) - 1) // 2
        self._level = LEVEL / pairs
        self.looks = 0
        self.seeds = dict.fromkeys(names, 0)
        self.places: list[Place] = []
        self.outcome: Outcome | None = None
        self._add(ROUNDS[0])

    @property
    def runs(self) -> int:
        """Runs of all rounds so far, the present one's included."""
        return sum(self.seeds.values())

    def missing(self) -> list[tuple[str, int]]:
        """The runs that the round lacks, by name and seed; none once it has ended."""
        while self.outcome is None:
            lacking = [
                (name, seed)
                for name in self.left
                for seed in range(self.seeds[name])
                if self._loss(name, seed) is None
            ]
            if lacking:
                return lacking
            self._look()
        return []

    def _add(self, seeds: int) -> None:
        """Train those that are left with so many seeds, more where runs would leave slots idle."""
        now = self.seeds[self.left[0]]
        room = (self.budget - self.runs) // len(self.left)
        filled = now + math.ceil(self._slots / len(self.left))
        for name in self.left:
            self.seeds[name] = now + min(room, max(seeds, filled) - now)

    def _losses(self, name: str) -> Array:
        found = [self._loss(name, seed) for seed in range(self.seeds[name])]
        return np.array([math.nan if loss is None else loss for loss in found])

    def _look(self) -> None:
        """Compare, and end or begin the next round."""
        self.looks += 1
        losses = {name: self._losses(name) for name in self.seeds}
        if failed := [name for name, found in losses.items() if np.isnan(found).any()]:
            sentence = f"Not decided: runs of {' and '.join(failed)} failed, and none stands for it"
            self.outcome = Outcome(ended="stuck", sentence=sentence)
            return
        # By the runs that diverged, then by the mean of the others: so they are compared, too.
        order = sorted(self.left, key=lambda name: _by_losses(losses[name]))
        gaps = {
            (a, b): difference(losses[a], losses[b], self._level) for a, b in permutations(order, 2)
        }
        out = {a for (a, _), gap in gaps.items() if gap.low > 0}
        first = next(name for name in order if name not in out)
        last = {place.name: place for place in self.places}
        self.places = [
            Place(
                name=name,
                loss=float(losses[name][np.isfinite(losses[name])].mean())
                if np.isfinite(losses[name]).any()
                else math.inf,
                seeds=len(losses[name]),
                diverged=int(np.isinf(losses[name]).sum()),
                gap=gaps[name, first] if name != first else Estimate(value=0.0, low=0.0, high=0.0),
                out=name in out,
            )
            for name in order
        ] + [last[name] for name in self.seeds if name not in self.left]
        self.left = [name for name in order if name not in out]
        self._end_or_go_on([gaps[name, first] for name in self.left if name != first], losses)

    def _end_or_go_on(self, gaps: Sequence[Estimate], losses: dict[str, Array]) -> None:
        """What follows from the gaps of those that are left above the first of them."""
        leader, now = self.places[0], self.seeds[self.left[0]]
        if math.isinf(leader.loss):
            self.outcome = Outcome(ended="stuck", sentence="Not decided: all runs diverged")
            return
        spent = f"{self.runs} runs, looked at {self.looks} time{'s' * (self.looks != 1)}"
        if not gaps:
            sentence = f"Decided with {spent}"
            self.outcome = Outcome(ended="decided", sentence=sentence)
            return
        flat = FLAT * abs(leader.loss)
        if all(-flat < gap.low and gap.high < flat for gap in gaps):
            sentence = f"Settled with {spent}: {' and '.join(self.left)} differ by less than "
            sentence += f"{100 * FLAT:g} % of the loss for sure"
            self.outcome = Outcome(ended="alike", sentence=sentence)
            return
        if self._affordable is not None:
            self.budget = min(self.budget, self._affordable())
        most = now + max(0, self.budget - self.runs) // len(self.left)
        with np.errstate(invalid="ignore"):  # NaN where both diverged
            pairs = [losses[name] - losses[self.left[0]] for name in self.left[1:]]
        needed, why = self._needed(pairs, flat), self._why_open(losses)
        if most <= now:
            sentence = f"Not decided with {spent}: the budget of {self.budget} runs is spent"
            sentence += why + self._advice(needed)
            self.outcome = Outcome(ended="budget", sentence=sentence, needed=needed)
        elif now >= PROMISING and self._chance(pairs, flat, most) < CHANCE:
            sentence = f"Not decided with {spent}, and the budget of {self.budget} runs would "
            sentence += f"hardly do{why}{self._advice(needed)}"
            self.outcome = Outcome(ended="hopeless", sentence=sentence, needed=needed)
        else:
            later = [seeds for seeds in ROUNDS if seeds > now]
            self._add(later[0] if later else most)

    def _why_open(self, losses: dict[str, Array]) -> str:
        """Why it stays open where runs diverged; "" where none did."""
        counts = {name: int(np.isinf(losses[name]).sum()) for name in self.left}
        wild = [
            f"{name} diverged with {count} of {len(losses[name])} seeds"
            for name, count in counts.items()
            if count
        ]
        if not wild:
            return ""
        return (
            f"; {', '.join(wild)}, and then only seeds with which one alone diverges tell: "
            f"{self._lone()} of them at least"
        )

    def _lone(self) -> int:
        """Seeds with which one of two alone diverges that a sign test takes."""
        return math.ceil(1 - math.log2(self._level))

    def _advice(self, needed: int | None) -> str:
        """What would decide it."""
        if needed is None:
            return ""
        return f"; about {needed} would, if the losses stay as they are now"

    def _chance(self, pairs: Sequence[Array], flat: float, seeds: int) -> float:
        """That all pairs are decided with so many seeds, by their differences so far.

        The mean of all of them lies around that of the first ones with the variance that goes.
        """
        chance, quantile_then = 1.0, quantile(seeds - 1, 1 - self._level / 2)
        for pair in pairs:
            count = len(pair)
            if not np.isfinite(pair).all():
                # No test ends it unless enough pairs are left in which one alone diverges.
                lone = np.isinf(pair).sum() + seeds - count
                chance *= 2 * 0.5**lone <= self._level
                continue
            mean, spread = float(pair.mean()), float(pair.std(ddof=1)) + 1e-300
            half = quantile_then * spread / math.sqrt(seeds)
            moves = spread * math.sqrt(1 / count - 1 / seeds)
            apart = _above((half - mean) / moves) + _above((half + mean) / moves)
            room = max(0.0, flat - half)
            alike = _above((-room - mean) / moves) - _above((room - mean) / moves)
            chance = min(chance, apart + alike)
        return chance

    def _needed(self, pairs: Sequence[Array], flat: float) -> int | None:
        """Runs in all with which the pairs are told apart, or alike, if all stays as it is."""
        z = -NormalDist().inv_cdf(self._level / 2)
        seeds = self.seeds[self.left[0]] + 1
        for pair in pairs:
            if not np.isfinite(pair).all():
                one, other = int((pair == np.inf).sum()), int((pair == -np.inf).sum())
                if min(one, other) or not max(one, other):
                    return None
                seeds = max(seeds, math.ceil(self._lone() * len(pair) / max(one, other)))
                continue
            mean = abs(float(pair.mean()))
            far = max(mean, flat - mean)
            if far <= 0:
                return None
            seeds = max(seeds, math.ceil((z * float(pair.std(ddof=1)) / far) ** 2) + 2)
        return self.runs + (seeds - self.seeds[self.left[0]]) * len(self.left)

    def progress(self) -> str:
        """The last look in a line: what leads, by how much, and who is still in it."""
        parts = [f"{self.places[0].name} leads"]
        for place in self.places[1:]:
            known = math.isfinite(place.gap.low) and math.isfinite(place.gap.high)
            above = f"{place.gap.value:.4f} [{place.gap.low:.4f}, {place.gap.high:.4f}] above"
            parts.append(f"{place.name} {above if known else 'not known'}{', out' * place.out}")
        return f"{sum(place.seeds for place in self.places)} runs; {'; '.join(parts)}"


def difference(losses: Array, others: Array, level: float) -> Estimate:
    """`losses` less `others` [seeds], seed by seed, with an interval of error `level`.

    Student's interval, made longer where Hall's is: differences of losses are skewed where one of
    the two has the wilder runs, and Student's is then too short on that side (Hall, J. R. Stat.
    Soc. B 54, 1992: g(t) = t + a (1 + 2 t^2) + 4/3 a^2 t^3, a = skewness / (6 sqrt n)).

    Where runs diverged the sign test tells, by the seeds with which one of the two alone did.
    """
    wild, other_wild = np.isinf(losses), np.isinf(others)
    if wild.any() or other_wild.any():
        worse, better = int((wild & ~other_wild).sum()), int((other_wild & ~wild).sum())
        if _sign_test(worse, better) > level:
            return UNKNOWN
        end = math.inf if worse > better else -math.inf
        return Estimate(value=end, low=end, high=end)
    pairs = losses - others
    count, mean = len(pairs), float(pairs.mean())
    if count < 2:
        return UNKNOWN
    error = float(pairs.std(ddof=1)) / math.sqrt(count)
    t = quantile(count - 1, 1 - level / 2)
    if error == 0:
        return Estimate(value=mean, low=mean, high=mean)
    skewness = float((((pairs - mean) / pairs.std()) ** 3).mean())
    a = skewness / (6 * math.sqrt(count))

    def inverse(value: float) -> float:
        # g(t) - a = ((1 + 2 a t)^3 - 1) / (6 a)
        if abs(a) < 1e-9:
            return value
        return (float(np.cbrt(1 + 6 * a * (value - a))) - 1) / (2 * a)

    low = mean - error * max(t, inverse(t))
    high = mean + error * max(t, -inverse(-t))
    return Estimate(value=mean, low=low, high=high)


def _by_losses(losses: Array) -> tuple[int, float]:
    finite = losses[np.isfinite(losses)]
    return len(losses) - len(finite), float(finite.mean()) if len(finite) else math.inf


def _sign_test(one: int, other: int) -> float:
    """The chance of so unlike counts, or unliker ones, of a fair coin's sides."""
    count, few = one + other, min(one, other)
    ways = sum(math.comb(count, k) for k in range(few + 1))
    return min(1.0, math.ldexp(ways, 1 - count))


def _above(z: float) -> float:
    """Of a standard normal, the chance to lie above."""
    return math.erfc(z / math.sqrt(2)) / 2
