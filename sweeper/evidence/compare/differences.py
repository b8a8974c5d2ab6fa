"""What differences between variants become at another size: one Gaussian process of all of them.

The runs of variant v at size c have the mean loss

    L = level_c + g_v(c) + e,        e ~ N(0, s^2 / runs)

The level of a size is free, so that losses are compared within a size alone, and what is odd of a
size, or of the baseline's run at it, is told once. The g_v are alike, and independent:

    cov(g(c), g(c')) = A^2 f(c) f(c') (1 + r^2 [c = c']) + (d^2 + r^2 A^2) min(c, c')
    f(c)             = 2^-(beta (n + t))

n and t are octaves of parameters and of tokens from the largest size, and min(c, c') is Brownian
motion along both from the smallest size on. So a difference of scale A fades by beta an octave of
compute, drifts, and each size has something of its own. The last two have a part in proportion to
A: what differs by 0.6 nats does not stay within what 0.01 does. A straight line through small
differences would say which variant gains faster, which two or three sizes do not tell.

A, beta and s are learned from all variants together, over a grid of them (`stats/gp.py`). What a
variant without effect seems to win by its noise is shrunk by that, the more so the more variants
there are without any.

**Back-test.** The largest size is left out and said by the others: with r the differences that were
missed by, and C the covariance that they should have, r' C^-1 r is about their number. The
deviations of all that is said are multiplied by how far it is off, wider or narrower.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.evidence.compare.reading import VariantRuns
from sweeper.stats.estimate import UNKNOWN, Array, Estimate
from sweeper.stats.gp import Mixture, Process, shares

Whole = np.ndarray[tuple[int], np.dtype[np.int64]]
USUAL = 0.8, 4.0
"""Losses in nats a token and bits a byte, for which the priors are: of others they are shares."""
RUN_NOISE, SPREAD = 0.003, 0.3
"""Of a run where no seeds are told apart, in nats, and the spread of its log: what its rate and its
other settings miss is in it. Published recipes; tested on changes of a MoE and made-up tables."""
SEED_NOISE = 0.002
"""Where seeds tell it, around which with a spread of 1: twice that of 171 public runs of a recipe,
at 3.28 nats; models and data differ. Tested on draws of these runs, and on made-up tables."""
FADING = 0.1, 0.05
"""Mean and spread of beta: of a published table of twelve optimizers; tested on all others."""
DRIFT = 0.0006
"""d, for the root of an octave: of published recipes. Tested on changes of a MoE, and made-up."""
IN_PROPORTION = 0.03
"""r. By leaving one table out, `scripts/bench/decide.py --only constants`; tested on that table."""
EFFECT = 0.01, 1.5
"""The middle of A, and the spread of its log: wide, since no two tables have the same."""
BEFORE, LEAST_SCALE = 10, 0.7
"""The back-test counts as after so many differences that were as foretold, and narrows no more."""
SPAN = 0.2
"""Octaves of compute without which nothing tells what compute is worth."""
FLOORS = np.linspace(0.0, 0.92, 24)
"""Floors of the loss that are tried, as shares of the lowest one."""
EXPONENT, EXPONENT_SPREAD = math.log(0.1), 0.5
"""Mean and spread of the log of the exponent of (loss - floor) over compute, before the runs: of
published laws. Tested on the speed-ups that a MoE's authors state."""
TILT = 0.03
"""The spread of how much more a parameter gains than a token, as an exponent."""
LIKELY = 1e-4
"""Of a grid's places those that have so little of the likeliest one's share are left out."""
LARGE = 2e7
"""Numbers of all matrices that are held at once."""


@dataclass(frozen=True, eq=False)
class VariantLosses:
    """Mean losses of variants at sizes, and what seeds say of the noise.

    `sizes` are log2 of parameters and of tokens [sizes, 2]; `means` and `counts` of runs are
    [variants, sizes], NaN and 0 where nothing was run. `squares` is the sum of squares of runs
    about the mean of their seeds, of `freedom` degrees.
    """

    names: Sequence[str]
    sizes: Array
    means: Array
    counts: Array
    squares: float = 0.0
    freedom: int = 0

    def of(self, kept: Sequence[int] | Whole) -> VariantLosses:
        """Takes some of the variants, the first of them the baseline."""
        names = [self.names[int(i)] for i in kept]
        at = np.asarray(kept)
        return replace(self, names=names, means=self.means[at], counts=self.counts[at])

    @cached_property
    def unit(self) -> float:
        """What one nat of the priors is of losses such as these."""
        return usual_unit(self.means[self.counts > 0])


def usual_unit(losses: Array) -> float:
    """What one nat of the priors is of these losses."""
    middle = float(np.median(np.abs(losses)))
    # Around zero a small loss says nothing of what losses differ by; a large one does.
    if losses.min() < 0 < losses.max() or not middle:
        middle = max(middle, USUAL[0])
    # Between the usual losses 1, so that priors in nats hold of them; outside in proportion.
    return middle / min(max(middle, USUAL[0]), USUAL[1])


@dataclass(frozen=True, eq=False)
class Carried:
    """The variants at places: a normal distribution for each of a grid, of `weights` that sum to 1.

    `means` and `variances` are of every variant less the first one [grid, places, variants],
    `joint` has the covariances of these at the first place [grid, variants, variants]. `noise` is
    that of a run, `fading` and `drift` what differences do with compute, `scale` what the back-test
    multiplied deviations by.
    """

    weights: Array
    means: Array
    variances: Array
    joint: Array
    noise: float
    fading: float
    drift: float
    scale: float

    def difference(self, variant: int, place: int = 0) -> Mixture:
        """How much higher the variant's loss is than the first one's."""
        return self._mixture(self.means[:, place, variant], self.variances[:, place, variant])

    def chance(self, variant: int, below: float = 0.0) -> float:
        """Probability that a variant's loss, less the first one's, lies `below`; first place."""
        return float(self.difference(variant).below(below))

    def better(self) -> Array:
        """The chance that one has the lower loss at the first place than another [one, other]."""
        mean, own = self.means[:, 0], self.variances[:, 0]
        variance = own[:, :, None] + own[:, None] - 2 * self.joint
        return self._mixture(mean[:, :, None] - mean[:, None], variance).below(0.0)

    def estimate(self, variant: int, place: int, tail: float) -> Estimate:
        """The difference, with an interval that has the chance `tail` beyond either end."""
        return self.difference(variant, place).estimate(1 - 2 * tail)

    def _mixture(self, means: Array, variances: Array) -> Mixture:
        middle = np.tensordot(self.weights, means, 1)
        deviations = self.scale * np.sqrt(np.maximum(variances, 1e-30))
        return Mixture(middle + self.scale * (means - middle), deviations, self.weights)


def carry(losses: VariantLosses, places: Array) -> Carried:
    """What is known of the variants at `places` [places, 2]; ValueError where none share a size."""
    model = _Model.of(losses, places)
    weights = model.weights()
    kept = np.flatnonzero(weights > LIKELY * weights.max())
    model, weights = replace(model, grid=model.grid[kept]), weights[kept] / weights[kept].sum()
    means, variances, joint = model.posterior()
    effect, noise, fading = model.grid.T
    drift = np.sqrt(2 * (DRIFT**2 + (IN_PROPORTION * effect) ** 2))
    return Carried(
        weights,
        means * losses.unit,
        variances * losses.unit**2,
        joint * losses.unit**2,
        noise=float(weights @ noise) * losses.unit,
        fading=float(weights @ fading),
        drift=float(weights @ drift) * losses.unit,
        scale=_back_tested(losses),
    )


def _back_tested(losses: VariantLosses) -> float:
    """How far off the largest size is of what the others say, in deviations; 1 where few say it."""
    there = losses.counts > 0
    shared = np.flatnonzero(there[0] & (there.sum(axis=0) > 1))
    if len(shared) < 3:
        return 1.0
    last = int(shared[losses.sizes[shared].sum(axis=1).argmax()])
    without_last = losses.counts.copy()
    without_last[:, last] = 0
    place = losses.sizes[[last]]
    model = _Model.of(replace(losses, counts=without_last), place)
    weights = model.weights()
    means, _, joint = model.posterior()
    # The mean of all, with how far those of the grid lie from each other.
    middle = np.tensordot(weights, means[:, 0], 1)
    apart = means[:, 0] - middle
    spread = np.tensordot(weights, joint, 1) + (weights * apart.T) @ apart
    variants = np.flatnonzero(there[:, last])[1:]
    noise = float(weights @ model.grid[:, 1] ** 2)
    spread = spread[np.ix_(variants, variants)] + noise / losses.counts[0, last]
    spread += noise * np.diag(1 / losses.counts[variants, last])
    measured = (losses.means[variants, last] - losses.means[0, last]) / losses.unit
    missed = measured - middle[variants]
    squares = float(missed @ np.linalg.solve(spread, missed))
    return max(LEAST_SCALE, math.sqrt((BEFORE + squares) / (BEFORE + len(variants))))


def shrinks(losses: VariantLosses, more: VariantLosses, place: Array) -> float:
    """The deviation of the last variant's difference at `place` with `more` runs over that without.

    By the likeliest place of the grid: how far runs narrow a difference depends little on it.
    """
    now, then = (_Model.of(each, place[None]) for each in (losses, more))
    likely = now.grid[[int(now.weights().argmax())]]
    own = [replace(each, grid=likely).posterior()[1][0, 0, -1] for each in (now, then)]
    return math.sqrt(float(own[1] / own[0]))


@dataclass(frozen=True, eq=False)
class _Model:
    variant: Whole
    size: Whole
    values: Array
    runs: Array
    octaves: Array
    brown: Array
    grid: Array
    sizes: int
    variants: int
    freedom: int
    squares: float

    @classmethod
    def of(cls, losses: VariantLosses, places: Array) -> _Model:
        there = losses.counts > 0
        # A size with one variant alone tells of no difference: its free level takes the loss whole.
        there &= there.sum(axis=0) > 1
        if not there.any():
            raise ValueError("no two variants were run at one size")
        variant, size = np.nonzero(there)
        # A level of a size is free: less their mean the losses lose no digits.
        levels = np.where(there, losses.means, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        points = np.concatenate([losses.sizes, places])
        # Brownian motion along an axis has the covariance min(x, y) from where it begins: the
        # smallest count, where no drift has been yet.
        above = points - points.min(axis=0)
        largest = losses.sizes[there.any(axis=0)].sum(axis=1).max()
        squares = losses.squares / losses.unit**2
        return cls(
            variant=variant,
            size=size,
            values=(losses.means[variant, size] - levels[size]) / losses.unit,
            runs=losses.counts[variant, size],
            # From the largest size, so that an effect has its prior where most is known of it.
            octaves=points.sum(axis=1) - largest,
            brown=np.minimum(above[:, None], above[None]).sum(axis=2),
            grid=_grid(losses.freedom, squares),
            sizes=len(losses.sizes),
            variants=len(losses.names),
            freedom=losses.freedom,
            squares=squares,
        )

    def kernels(self, grid: Array) -> Array:
        """Covariances of one variant between all sizes and places [grid, points, points]."""
        effect, _, fading = grid.T
        faded = effect[:, None] * np.exp2(-fading[:, None] * self.octaves)
        own = 1 + IN_PROPORTION**2 * np.eye(len(self.octaves))
        drift = DRIFT**2 + (IN_PROPORTION * effect) ** 2
        kernels: Array = faded[:, :, None] * faded[:, None] * own
        kernels += drift[:, None, None] * self.brown
        return kernels

    def _process(self, grid: Array, kernels: Array) -> Process:
        alike = self.variant[:, None] == self.variant
        between = kernels[:, self.size[:, None], self.size] * alike
        noise = (grid[:, 1] ** 2)[:, None, None] * np.diag(1 / self.runs)
        levels = (self.size[:, None] == np.unique(self.size)).astype(float)
        return Process(between + noise, self.values, levels)

    def _parts(self) -> list[Array]:
        numbers = len(self.grid) * len(self.values) * (len(self.values) + self.variants)
        return np.array_split(self.grid, min(len(self.grid), math.ceil(numbers / LARGE)))

    def weights(self) -> Array:
        """How likely each of the grid is, by differences within sizes and by seeds [grid]."""
        logs = [self._process(part, self.kernels(part)).log_likelihood for part in self._parts()]
        effect, noise, fading = self.grid.T
        log = np.concatenate(logs) - ((fading - FADING[0]) / FADING[1]) ** 2 / 2
        log -= (np.log(effect / EFFECT[0]) / EFFECT[1]) ** 2 / 2
        middle, spread = (SEED_NOISE, 1.0) if self.freedom else (RUN_NOISE, SPREAD)
        log -= (np.log(noise / middle) / spread) ** 2 / 2
        # Squares of runs about their means are the noise's variance times chi^2.
        log -= self.freedom * np.log(noise) + self.squares / noise**2 / 2
        return shares(log)

    def posterior(self) -> tuple[Array, Array, Array]:
        """Means, variances and joint covariances at the places, as `Carried` has them."""
        parts = list[tuple[Array, Array, Array]]()
        less = np.eye(self.variants) - np.eye(self.variants)[:1]
        mine = np.arange(self.variants)[:, None] == self.variant
        basis = np.zeros((self.variants, len(np.unique(self.size))))
        for part in self._parts():
            kernels = self.kernels(part)
            process = self._process(part, kernels)
            means, variances = list[Array](), list[Array]()
            joint: Array = np.empty(0)
            for place in range(self.sizes, len(self.octaves)):
                shared = kernels[:, place, self.size][:, None] * mine
                own = kernels[:, place, place, None, None] * np.eye(self.variants)
                mean, between = process.at(shared, own, basis)
                between = less @ between @ less.T
                means.append((less @ mean)[..., 0])
                variances.append(np.diagonal(between, axis1=1, axis2=2))
                joint = between if place == self.sizes else joint
            parts.append((np.stack(means, 1), np.stack(variances, 1), joint))
        means_, variances_, joints = (np.concatenate(each) for each in zip(*parts, strict=True))
        return means_, variances_, joints


def _grid(freedom: int, squares: float) -> Array:
    """Places [grid, 3] of A, of a run's noise, and of beta."""
    effects = 3e-4 * 2.0 ** np.arange(14)
    middle, spread = math.log(RUN_NOISE), SPREAD
    steps = np.linspace(-1.5, 1.5, 3)
    if freedom:
        # About where the squares and the prior together have it.
        measured = 0.5 * math.log(max(squares / freedom, 1e-12))
        spread = 1 / math.sqrt(1 + 2 * freedom)
        middle = math.log(SEED_NOISE) + (measured - math.log(SEED_NOISE)) * 2 * freedom * spread**2
        steps = np.linspace(-3, 3, 7)
    fading = FADING[0] + FADING[1] * np.linspace(-2, 2, 5)
    return np.array([*itertools.product(effects, np.exp(middle + spread * steps), fading)])


@dataclass(frozen=True, kw_only=True)
class VariantQuestion:
    """The counts of the run that is asked about, by role; and what is known of the loss already.

    `floor` and `exponent` are those of the loss over compute, where a lab has its own. `error` is
    the chance that any variant without effect is called better. `trained_only`: runs are proposed
    at the sizes that there are, where no others can be trained.
    """

    counts: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None
    exponent: float | None = None
    error: float = 0.05
    trained_only: bool = False


@dataclass(frozen=True, eq=False)
class ComputeLaw:
    """log2(loss - floor) = level - exponent u - tilt w: u octaves of compute, w of N over D.

    An entry a `floors`, with `weights` that sum to 1; `levels` are the baseline's. Not
    `identified`: one budget alone was run, and no exponent is given.
    """

    floors: Array
    weights: Array
    exponents: Array
    tilts: Array
    levels: Array
    identified: bool

    @classmethod
    def of(cls, runs: VariantRuns, question: VariantQuestion) -> ComputeLaw:
        """Fits all losses, a level for each variant; BadInput for none above the floor."""
        rows = [
            (cell.variant, *cell.log2, float(np.mean(finite)))
            for cell in runs.cells
            if len(finite := cell.losses[np.isfinite(cell.losses)])
        ]
        if not rows:
            raise BadInput("no run of any variant has a finite loss: none trained")
        table = np.array(rows)
        variant, loss = table[:, 0].astype(int), table[:, 3]
        u, w = table[:, 1] + table[:, 2], table[:, 1] - table[:, 2]
        lowest = float(loss.min())
        if question.floor is not None and not -math.inf < question.floor < lowest:
            allowed = f"finite, and below the lowest loss, {lowest:g}"
            raise ConfigError(Keyword("fixed"), f"E={question.floor:g}", allowed)
        # Losses below 0 (differences, log scores) have no floor that a share of them names.
        usual = FLOORS * lowest if lowest > 0 else np.array([lowest - 1.0])
        floors = usual if question.floor is None else np.array([question.floor])
        noise = RUN_NOISE * usual_unit(loss)
        alone = np.eye(variant.max() + 1)[variant]
        fits = []
        for floor in floors:
            above = np.log2(loss - floor)
            # As noise of its log2 above the floor: d log2(L - E) = dL / ((L - E) ln 2).
            weight = (loss - floor) * math.log(2) / noise
            # A Gaussian prior is a row more of least squares, by its inverse deviation.
            columns = np.column_stack([alone, -u, -w])
            prior = np.zeros(len(columns.T))
            centre = np.zeros(len(columns.T))
            prior[-1] = 1 / TILT
            centre[-2] = math.exp(EXPONENT)
            prior[-2] = 1 / (EXPONENT_SPREAD * math.exp(EXPONENT))
            # Levels are next to free, but for a variant whose few runs tell none.
            prior[:-2] = 1e-4
            # A lab's own law is of compute alone: pinned, and no tilt beside it.
            if question.exponent is not None:
                centre[-2], prior[-2] = question.exponent, 1e6
                prior[-1] = 1e6
            system = np.concatenate([columns * weight[:, None], np.diag(prior)])
            wanted = np.concatenate([above * weight, centre * prior])
            values, *_ = np.linalg.lstsq(system, wanted, rcond=None)
            misfit = float(((system @ values - wanted) ** 2).sum())
            fits.append((*values[[-2, -1, 0]], misfit))
        exponents, tilts, levels, misfits = np.array(fits).T
        # By the likelihood of its best fit; a floor at which compute gains nothing is out.
        weights = np.exp(-(misfits - misfits.min()) / 2) * (exponents > 1e-4)
        identified = np.ptp(u) > SPAN or question.exponent is not None
        identified = identified and bool(weights.sum() > 0)
        # Of one budget nothing tells a floor: all are alike, and no factor of compute is told.
        weights = weights if identified else np.ones(len(floors))
        return cls(floors, weights / weights.sum(), exponents, tilts, levels, identified)

    def loss(self, place: Array) -> Array:
        """The baseline's loss at `place`, by every floor."""
        u, w = place[0] + place[1], place[0] - place[1]
        above: Array = np.exp2(self.levels - self.exponents * u - self.tilts * w)
        return self.floors + above

    def moved(self, loss: float, start: tuple[float, float], end: Array) -> float:
        """A loss at `start` as it would be at `end`, a little aside."""
        du = float(end.sum() - sum(start))
        dw = float(end[0] - end[1] - start[0] + start[1])
        # A little aside along a law that nobody knows: the loss as it is, rather than a guess.
        if abs(du) + abs(dw) < 1e-3 or not self.identified:
            return loss
        above = (loss - self.floors) * np.exp2(-self.exponents * du - self.tilts * dw)
        return float(self.weights @ (self.floors + above))

    def factor(self, loss: Array | float, difference: Estimate) -> Estimate:
        """How many times less compute takes the baseline's `loss`, by a `difference` in loss."""
        if not self.identified or not math.isfinite(difference.value):
            return UNKNOWN

        if not (loss - self.floors > 1e-12).all():
            return UNKNOWN  # at the floor no compute gains any more

        def times(by: float) -> Array:
            ratio = (loss - self.floors) / np.maximum(loss + by - self.floors, 1e-12)
            return np.log(ratio) / np.maximum(self.exponents, 1e-6)

        of_value = times(difference.value)
        value = _weighted(of_value, self.weights, 0.5)
        ends = []
        # A loss that is higher takes more compute, so that the ends change places.
        for end, level in ((difference.high, 0.025), (difference.low, 0.975)):
            # Of the floor and of the difference, independent: as root of squares.
            of_floor = _weighted(of_value, self.weights, level) - value
            of_loss = _weighted(times(end), self.weights, 0.5) - value if math.isfinite(end) else 0
            side = 1.0 if level > 0.5 else -1.0
            ends.append(
                value + side * (math.hypot(of_floor, of_loss) if math.isfinite(end) else math.inf)
            )
        low, value, high = (math.exp(min(x, 700.0)) for x in (ends[0], value, ends[1]))
        return Estimate(value=value, low=low, high=high)

    def break_even(self, place: Array, throughput: float) -> float:
        """The difference in loss that a throughput, times the baseline's, makes up for."""
        gap = (self.loss(place) - self.floors) * (throughput**self.exponents - 1)
        return float(self.weights @ gap)


def _weighted(values: Array, weights: Array, level: float) -> float:
    order = np.argsort(values)
    at = int(np.searchsorted(np.cumsum(weights[order]), level))
    return float(values[order][min(at, len(values) - 1)])
