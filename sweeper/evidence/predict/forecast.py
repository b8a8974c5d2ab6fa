"""What the law says of a run that nobody has made: with its interval, tested backwards first.

The interval holds four doubts: the law's parameters, its form (forms averaged, each as likely as
the runs make it), what no smooth law follows (what runs lie off it, and share: `misfit.py`),
and the seed of the run to come. It grows with the distance from the runs by itself, and is widened
until runs lie inside as often as is claimed where shorter ladders were tried on farther rungs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.evidence.predict.misfit import (
    FAR,
    FURTHEST,
    LEAST_LIKELY,
    NO_NOISE,
    LawMisfit,
    LawPoints,
    doubted,
    likely,
)
from sweeper.evidence.runs.loss_runs import Design, LossRuns, Rungs
from sweeper.stats.estimate import Estimate, quantile
from sweeper.stats.power_law import (
    COMPUTE,
    FIXED,
    Array,
    Fits,
    Known,
    LawForm,
    awake,
    fit,
    refit,
    regress,
    residuals,
    slopes,
    spread,
)

DRAWS = 1000
"""Of the law's parameters, over all forms."""
ROLLOUTS, ROLLOUT_DRAWS = 4, 200
"""How many shorter ladders a law is tried on, and the draws of each."""
QUICK, REDRAWN = 40, 8
"""Iterations of a fit that is refined later, and of draws, which begin at their fit."""
MANY, DIRECTIONS = 100, 8
"""Runs from which on draws are fitted in few directions, and draws that tell these."""
DOUBTED, BEFORE, NARROWEST = 5.0, 1.6, 0.5
"""A widening before any rung was tried is worth so many rungs, and is so large: what published
tables ask for of laws that were not tried. What tried ones ask for counts from the last on."""
EXPONENTS_APART = 0.2
"""The logarithm of beta / alpha, as a standard deviation: 0.19, 0.05, 0.27 and 0.22 in Hoffmann's,
Epoch AI's, the Open-Athena isoFLOPs' and Kaplan's laws."""
SHARES = (0.2, 0.8)
"""Between which the size's share of the loss above the floor lies, at the centre of a ladder."""
LEVEL = 0.95
"""Of every interval."""
LEAST_WEIGHT = 0.05
"""Of a form that is averaged over: one of less would have a few draws, and change no interval."""
STRAY, RARE = 5.0, 0.05
"""Standard deviations from what the other runs say beyond which a run is named as a stray one; the
share of runs up to which these went wrong, and say nothing of one that does not."""
GAP = 1.0
"""The largest share of what compute gains that half an interval may be wide: `settled`."""
NARROW = 0.05
"""A half interval below this share of the loss says enough, whatever is left to gain."""
NOTHING: Mapping[str, float] = {}
"""No parameter is known beforehand."""


@dataclass(frozen=True, eq=False)
class Bend:
    """What one power of compute lacks where the truth has two, of size and of tokens.

    Along a line of N and D, A/N^alpha + B/D^beta is R (w C^-a + (1 - w) C^-b) in the compute C from
    the runs' centre. A single power fits a ladder of it closely, with a wrong floor, and is off
    beyond. No noise shows that: how far is drawn, from what the exponents of published laws are
    apart. `truth` has R, w, a and b [4, draws], `fits` single powers fitted to it at the runs.
    """

    floor: float
    truth: Array
    fits: Fits

    @classmethod
    def drawn(
        cls, best: Fits, runs: LossRuns, random: np.random.Generator, draws: int, threshold: float
    ) -> Bend | None:
        """Of the fit's own floor and exponent; None for forms that hold of every law."""
        if best.form is not COMPUTE:
            return None
        floor, level, exponent = np.exp(best.values[0])
        # Half of what is between the exponents to each side: their mean is the one that was fitted.
        apart = np.exp(0.5 * EXPONENTS_APART * random.standard_normal(draws))
        share, amount = random.uniform(*SHARES, draws), np.full(draws, level)
        truth = np.stack([amount, share, exponent * apart, exponent / apart])
        bend = cls(float(floor), truth, best)
        losses, weights = np.exp(bend._log(runs.params, runs.tokens)), np.ones((draws, len(runs)))
        # What a single power fits where the truth is such: right at the runs, off elsewhere.
        fits = refit(best, runs.params, runs.tokens, losses, weights, threshold=threshold)
        return replace(bend, fits=fits)

    def off(self, params: Array, tokens: Array) -> Array:
        """How far the truth lies above the fit, in log L [draws, points]."""
        return self._log(params, tokens) - np.log(self.fits.loss(params, tokens))

    def _log(self, params: Array, tokens: Array) -> Array:
        centre = math.log(self.fits.centre[0]) + math.log(self.fits.centre[1])
        compute = np.log(params) + np.log(tokens) - centre
        level, share, a, b = self.truth[:, :, None]
        powers = share * np.exp(-a * compute) + (1 - share) * np.exp(-b * compute)
        logs: Array = np.log(self.floor + level * powers)
        return logs


@dataclass(frozen=True, eq=False)
class Member:
    """A form with one covariance of what runs lie off it: its `best`, `draws`, and its `weight`.

    `explained` [draws, runs] is what the runs' residuals say of places beside them, `whiten` the
    factor that makes these independent. `stretch` is Student's: how well the noise is known.
    """

    best: Fits
    draws: Fits
    weight: float
    misfit: LawMisfit
    points: LawPoints
    whiten: Array
    explained: Array
    stretch: float
    bend: Bend | None = None

    def log_loss(self, params: Array, tokens: Array) -> Array:
        """Log L [draws, places], stretched: the law, what runs nearby lie off it, not its bend."""
        logs = np.log(self.draws.loss(params, tokens))
        # What runs nearby lie off the law goes on a little way (kriging), and is 0 far from them.
        logs += self.explained @ self.misfit.between(self.points, LawPoints.to_come(params, tokens))
        middle = np.median(logs, axis=0)
        # Student's: draws are of a noise that is known, and it was read off few residuals.
        stretched: Array = middle + self.stretch * (logs - middle)
        return stretched

    def bent(self, params: Array, tokens: Array) -> Array:
        """What its bend adds to them [draws, places]."""
        if self.bend is None:
            return np.zeros((len(self.explained), len(params)))
        return self.bend.off(params, tokens)

    def deviation(self, params: Array, tokens: Array) -> Array:
        """Of a single run at each place about the law, its seed in it [places]."""
        there = LawPoints.to_come(params, tokens)
        known = self.whiten @ self.misfit.between(self.points, there)
        # What the runs do not explain of a place: the prior's variance less what they tell.
        left = np.maximum(self.misfit.at(there) - (known**2).sum(0), 0.0)
        total: Array = self.stretch * np.sqrt(left + self.misfit.noise_at(there) ** 2)
        return total

    def paths(self, params: Array, tokens: Array, random: np.random.Generator) -> Array:
        """Log L [draws, places] with the smooth part of the misfit drawn, the same for all runs."""
        # Without what single sizes, trainings, cells are off: they must not choose a best size.
        smooth = replace(self.misfit, size=0.0, training=0.0, cell=0.0)
        there = LawPoints.to_come(params, tokens)
        known = self.whiten @ smooth.between(self.points, there)
        covariance = smooth.between(there, there) - known.T @ known
        # Places that lie close have no inverse: eigenvalues below 0 are rounding.
        values, vectors = np.linalg.eigh(covariance)
        drawn = random.standard_normal((len(self.explained), len(there)))
        off = drawn @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        drawn_logs: Array = self.log_loss(params, tokens) + self.stretch * off
        return drawn_logs


@dataclass(frozen=True, eq=False)
class Tried:
    """A shorter ladder's law, held against a farther rung: `z` [runs] in its own deviations."""

    kept: int
    rung: int
    z: Array


@dataclass(frozen=True, eq=False)
class LossLaw:
    """Laws fitted to `runs`, averaged.

    `noise` is the standard deviation of log L over seeds, `misfit` that of (N, D) around the law
    beyond it. Intervals are `widened` by what back-tested runs asked for, its bend by `bent`: how
    large that is, other laws tell, and not the runs. `strays` are places of runs far off the law.
    """

    runs: LossRuns
    design: Design
    members: tuple[Member, ...]
    noise: float
    misfit: float
    strays: tuple[int, ...]
    seed: int
    widened: float = 1.0
    bent: float = 1.0

    def log_losses(self, params: Array, tokens: Array) -> Array:
        """Log L of the law, without noise [draws, places]: members as often as they are likely."""
        logs = np.concatenate([member.log_loss(params, tokens) for member in self.members])
        return self._widened(logs, params, tokens)

    def paths(self, params: Array, tokens: Array) -> Array:
        """Log L [draws, places] of one smooth law a draw, what runs lie off it drawn with it."""
        random = np.random.default_rng([self.seed, 6])
        logs = np.concatenate([member.paths(params, tokens, random) for member in self.members])
        return self._widened(logs, params, tokens)

    def _widened(self, logs: Array, params: Array, tokens: Array) -> Array:
        middle, bends = np.median(logs, axis=0), [m.bent(params, tokens) for m in self.members]
        return middle + self.widened * (logs - middle) + self.bent * np.concatenate(bends)

    def of_runs(self, params: Array, tokens: Array) -> Array:
        """Log L of single runs [draws, places]: what they lie off the law with it."""
        return self.log_losses(params, tokens) + self.scatter(params, tokens)

    def loss(self, params: float, tokens: float) -> Estimate:
        """The loss of one run (N, D), its seed and the law's misfit in the interval."""
        at = np.array([params]), np.array([tokens])
        value = float(self.mean_loss(*at)[0])
        return estimate_of(np.exp(self.of_runs(*at))[:, 0], value)

    def mean_loss(self, params: Array, tokens: Array) -> Array:
        """The law's loss at places, the middle of its draws."""
        return np.exp(np.median(self.log_losses(params, tokens), axis=0))

    def floor(self) -> Estimate:
        """E, over all members: the middle of the draws, as the law's losses are.

        Its interval holds the likeliest fit, as that form's own does.
        """
        floor = estimate_of(np.concatenate([self._drawn(member)["E"] for member in self.members]))
        likeliest = max(self.members, key=lambda member: member.weight)
        fitted = float(likeliest.best.natural()["E"][0])
        # The likeliest fit is no draw: with few, or a floor at a bound, it may lie outside.
        return replace(floor, low=min(floor.low, fitted), high=max(floor.high, fitted))

    def forms(self) -> list[tuple[LawForm, float, dict[str, Estimate]]]:
        """Every form with its weight, and its parameters by name."""
        found = []
        for form in dict.fromkeys(member.best.form for member in self.members):
            members = [member for member in self.members if member.best.form is form]
            first = max(members, key=lambda member: member.weight)
            drawn = [self._drawn(member) for member in members]
            best = first.best.natural()
            values = {
                name: estimate_of(np.concatenate([d[name] for d in drawn]), float(best[name][0]))
                for name in best
            }
            found.append((form, sum(member.weight for member in members), values))
        return found

    def _drawn(self, member: Member) -> dict[str, Array]:
        """Its parameters' draws by name, stretched; no floor lies above the lowest loss."""
        drawn = {
            name: _stretched(values, member.stretch * self.widened)
            for name, values in member.draws.natural().items()
        }
        # A floor above a loss that was reached is impossible, whatever a stretched draw says.
        drawn["E"] = np.minimum(drawn["E"], float(self.runs.loss.min()))
        return drawn

    def best_loss(self, params: Array, tokens: Array) -> Array:
        """The loss at places by the members' best fits alone, averaged: quick, for searches."""
        logs = [m.weight * np.log(m.best.loss(params, tokens)[0]) for m in self.members]
        averaged: Array = np.exp(np.sum(logs, axis=0))
        return averaged

    def compute_for(self, params: float, tokens: float, loss: float) -> float:
        """How many times the compute of (N, D) the law's loss would be `loss` at.

        Both grow as the root of the compute, or along the line of the runs. inf: at none.
        """
        sizes, horizons = self.scaled(params, tokens, FACTORS)
        return _crossing(np.log(self.mean_loss(sizes, horizons)), math.log(loss))

    def scaled(self, params: float, tokens: float, factors: Array) -> tuple[Array, Array]:
        """(N, D) at `factors` times the compute, as far as runs were varied."""
        form = self.members[0].best.form
        if form.name == "size":
            return params * factors, np.full_like(factors, tokens)
        if form.name == "tokens":
            return np.full_like(factors, params), tokens * factors
        # Along the runs' own line of N and D; without one both grow alike, as the root.
        slope = self.design.line[1] if self.design.line else 1.0
        sizes = params * factors ** (1 / (1 + slope))
        return sizes, tokens * (sizes / params) ** slope

    def scatter(self, params: Array, tokens: Array) -> Array:
        """What single runs lie off the law [draws, places]."""
        # Seeds of their own for each kind of draw: what is asked first does not change the rest.
        random = np.random.default_rng([self.seed, 1])
        parts = [
            member.deviation(params, tokens)
            * random.standard_normal((len(member.explained), len(params)))
            for member in self.members
        ]
        return self.widened * np.concatenate(parts)


def fit_law(
    runs: LossRuns,
    *,
    threshold: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    forms: Sequence[LawForm] = (),
    fixed: Mapping[str, float] = NOTHING,
) -> LossLaw:
    """The law of `runs`; ValueError where there are fewer (N, D) than it has parameters.

    `threshold` is Huber's, on log L; None: by the residuals. `forms`: those to take; else those
    that the design allows. `fixed` are parameters by name that are known.
    """
    design = Design.of(runs)
    cells = runs.cells
    count = int(cells.max()) + 1
    # As many (N, D) as parameters leave nothing to see misfit by; seeds still show the noise.
    least = count + (len(runs) > count)
    allowed = tuple(
        form for form in forms or design.forms if len({*form.parameters} - {*fixed}) < least
    )
    if not allowed:
        raise ValueError(
            f"{count} different sizes and horizons: the law {design.forms[0].formula} has "
            f"{len(design.forms[0].parameters)} parameters and needs one more, or several seeds"
        )
    points = LawPoints(np.log(runs.params), np.log(runs.tokens), cells, runs.trainings)
    # Forms and covariances in one list: their evidences compare, and doubts about both add up.
    found = [part for form in allowed for part in _fitted(form, runs, points, threshold, fixed)]
    scores = np.array([part.score for part in found])
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    pairs = zip(found, weights, strict=True)
    kept = [(part, weight) for part, weight in pairs if weight > LEAST_WEIGHT]
    total = sum(weight for _, weight in kept)
    members = tuple(
        _member(part, runs, points, weight / total, draws, [seed, index])
        for index, (part, weight) in enumerate(kept)
    )
    noise = math.sqrt(sum(m.weight * m.misfit.noise**2 for m in members))
    misfit = math.sqrt(sum(m.weight * m.misfit.shared**2 for m in members))
    likeliest = max(found, key=lambda part: part.score)
    # A run's doubt is its distance in units of `FAR`: `STRAY` is told in standard deviations.
    strays = tuple(np.flatnonzero(likeliest.doubt > STRAY / FAR).tolist())
    return LossLaw(runs, design, members, noise, misfit, strays, seed)


@dataclass(frozen=True, eq=False)
class _Part:
    """A form under one covariance, before draws; `score` is its log evidence."""

    best: Fits
    misfit: LawMisfit
    whiten: Array
    known: Known
    doubt: Array
    score: float


def _fitted(
    form: LawForm,
    runs: LossRuns,
    points: LawPoints,
    threshold: float | None,
    fixed: Mapping[str, float],
) -> list[_Part]:
    """A form by generalized least squares, under each of the likeliest covariances."""
    known, places = Known.of(form, runs.loss, fixed), (runs.params, runs.tokens)
    # Robust first: a covariance by likelihood needs residuals that one wild run has not bent.
    robust = fit(form, *places, runs.loss, threshold=threshold, iterations=QUICK)
    off = residuals(robust, *places, runs.loss)[0]
    wide = FAR * max(spread(off, len(form.parameters)), NO_NOISE)
    none, alone = np.ones(len(runs)), np.clip(np.abs(off) / wide, 1.0, FURTHEST)
    # A few runs that are far off may have gone wrong, or be where the law does not hold.
    few = 0 < int((alone > 2).sum()) <= max(1, round(RARE * len(runs)))
    parts = [
        part
        for doubt in (none, alone)[: 1 + few]
        for part in _explained(robust, runs, points, threshold, known, doubt)
    ]
    best = max(part.score for part in parts)
    ranked = sorted(parts, key=lambda part: part.score)
    # In ascending order, so that of one covariance, but for the level of its noise, the best stays.
    likeliest = {replace(part.misfit, noise=1.0): part for part in ranked}
    return [part for part in likeliest.values() if part.score > best - LEAST_LIKELY]


def _explained(
    best: Fits,
    runs: LossRuns,
    points: LawPoints,
    threshold: float | None,
    known: Known,
    doubt: Array,
) -> list[_Part]:
    """A form's fit under the likeliest covariances, where runs are doubted so at first."""
    places, target = (runs.params, runs.tokens), np.log(runs.loss)
    ranked: Sequence[tuple[float, LawMisfit]] = ()
    # Twice: the covariance follows from the residuals, and the fit from the covariance.
    for _ in range(2):
        off = residuals(best, *places, runs.loss)[0]
        ranked = likely(points, off, slopes(best, *places)[0], known.inverse, doubt)
        whiten = ranked[0][1].whitening(points, doubt)
        # A threshold is given on log L; whitened residuals are in units of the noise.
        limit = FAR if threshold is None else threshold / ranked[0][1].noise
        doubt = doubted(off, whiten, doubt, limit)
        whiten = ranked[0][1].whitening(points, doubt)
        best = regress(best, *places, target, whiten, known, iterations=QUICK)
    parts = []
    for _, misfit in ranked:
        whiten = misfit.whitening(points, doubt)
        fitted = regress(best, *places, target, whiten, known, iterations=QUICK)
        slope = np.concatenate([slopes(fitted, *places)[0] @ whiten.T, np.diag(known.inverse)], 1)
        # Laplace's: the likelihood at the fit, times the volume that parameters have around it.
        score = float(np.log(np.diag(whiten)).sum()) - float(fitted.objectives[0])
        score += known.evidence - 0.5 * float(np.linalg.slogdet(slope @ slope.T)[1])
        parts.append(_Part(fitted, misfit, whiten, known, doubt, score))
    return parts


def _member(
    part: _Part, runs: LossRuns, points: LawPoints, weight: float, of: int, seed: list[int]
) -> Member:
    """Draws of a part: runs and what is known, each with its own doubt drawn, fitted again."""
    best, whiten, known = part.best, part.whiten, part.known
    random = np.random.default_rng([*seed, 0])
    # Draws by weight: all members' draws together are then the mixture, each draw counting as one.
    places, draws = (runs.params, runs.tokens), max(round(of * weight), 1)
    # By the inverse of the whitening they have the covariance of what runs lie off the law.
    off = np.linalg.solve(whiten, random.standard_normal((len(runs), draws))).T
    middles = known.middle + random.standard_normal((draws, len(known.middle))) / known.inverse
    # About the fit's own values, from which the prior does not pull them.
    middles += best.values - known.middle
    drawn = regress(
        best,
        *places,
        np.log(best.loss(*places)[0]) + off,
        _reduced(part, runs, random) if len(runs) > MANY else whiten,
        known,
        start=awake(best.form, best.values).repeat(draws, 0),
        middle=middles,
        iterations=REDRAWN,
    )
    # What is left of the real losses, not of the drawn ones: places nearby follow the real runs.
    left = -residuals(drawn, *places, runs.loss)
    explained = left @ whiten.T @ whiten
    stretch = quantile(_freedom(part, runs), 0.975) / 1.96
    # A threshold would have no use: the bent truth has no strays.
    bend = Bend.drawn(best, runs, np.random.default_rng([*seed, 5]), draws, math.inf)
    return Member(best, drawn, weight, part.misfit, points, whiten, explained, stretch, bend)


def _reduced(part: _Part, runs: LossRuns, random: np.random.Generator) -> Array:
    """The factor that makes residuals independent, of the few directions in which laws differ.

    What lies beside these no change of the parameters touches: it is the same for all draws.
    """
    best, places, whiten = part.best, (runs.params, runs.tokens), part.whiten
    slope = slopes(best, *places)[0] @ whiten.T
    inner = np.linalg.inv(slope @ slope.T + np.diag(part.known.inverse**2))
    steps = random.standard_normal((DIRECTIONS, len(inner))) @ np.linalg.cholesky(inner).T
    # The best and steps to both sides of it: where laws differ, the curvature of log L counts too.
    near = replace(best, values=np.concatenate([best.values, best.values + 2 * steps]))
    rows = np.concatenate([*slopes(near, *places), np.log(near.loss(*places))]) @ whiten.T
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    reduced: Array = basis[sizes > 1e-7 * sizes[0]] @ whiten
    return reduced


def _freedom(part: _Part, runs: LossRuns) -> int:
    """How many independent residuals tell of the noise.

    Repeated runs tell noise and not misfit: they count by the noise's share of a cell's variance.
    Of points of one training no more is free than there are trainings.
    """
    count, clusters = int(runs.cells.max()) + 1, len(np.unique(runs.cluster))
    noise, shared = part.misfit.noise, part.misfit.shared
    share = noise**2 / (noise**2 + len(runs) / count * shared**2)
    known = int((part.known.inverse >= 1 / FIXED).sum())
    free = count - len(part.best.form.parameters) + known + round(share * (len(runs) - count))
    return max(1, min(free, clusters - 1) if clusters < count else free)


@dataclass(frozen=True, kw_only=True)
class LossBackTest:
    """The law without the farthest rungs, held against them.

    `left_out` names them. Of their mean log loss: `predicted` with its interval, `measured`, both
    as losses; `z` in standard deviations of the prediction. `within` of `count` runs lie in
    their own intervals. `reducible`: the miss as a share of the loss above the floor; `compute`:
    how many times the compute would give the loss that was measured.
    """

    left_out: tuple[str, ...]
    predicted: Estimate
    measured: float
    z: float
    within: int
    count: int
    nats: float
    reducible: float | None
    compute: float

    @property
    def hit(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.predicted.low <= self.measured <= self.predicted.high

    @property
    def failed(self) -> bool:
        """Whether fewer than half of the runs lie in their own intervals."""
        return 2 * self.within < self.count


@dataclass(frozen=True, eq=False)
class ShortLaw:
    """The law of the first `kept` rungs, and what it was off at each farther one."""

    kept: int
    law: LossLaw
    tried: tuple[Tried, ...]


def short_laws(
    runs: LossRuns,
    rungs: Rungs,
    *,
    threshold: float | None = None,
    seed: int = 0,
    forms: Sequence[LawForm] = (),
    fixed: Mapping[str, float] = NOTHING,
    strays: Sequence[int] = (),
) -> list[ShortLaw]:
    """Laws of shorter ladders, held against the rungs beyond; the longest comes last.

    Runs far off the law of all, `strays`, say nothing of one that goes right.
    """
    usable = np.ones(len(runs), bool)
    # Where more than a few are far off, it is the law that is wrong, and they stay.
    if len(strays) <= RARE * len(runs):
        usable[list(strays)] = False
    shorts = []
    # The longest ladders: what a law of two rungs misses says little of one of ten.
    for kept in range(max(2, len(rungs) - ROLLOUTS), len(rungs)):
        near, farther = runs.only(rungs.index < kept), runs.only(rungs.index >= kept)
        two_axes = len(Design.of(runs).forms[0].terms) == 2
        if kept < (2 if two_axes and (kept == len(rungs) - 1 or rungs.kind == "budget") else 3):
            continue
        try:
            law = fit_law(
                near, threshold=threshold, draws=ROLLOUT_DRAWS, seed=seed, forms=forms, fixed=fixed
            )
            # A rung that the short law's own design has no way to reach tells nothing of it.
            for n, d in zip(farther.params, farther.tokens, strict=True):
                law.design.check_target(near, n, d)
        except ValueError:
            continue
        tried = []
        for rung in range(kept, len(rungs)):
            far = runs.only((rungs.index == rung) & usable)
            if len(far):
                drawn = law.of_runs(far.params, far.tokens)
                low, middle, high = np.percentile(drawn, [2.5, 50, 97.5], axis=0)
                # From percentiles, as draws are far from normal where a floor is not identified.
                z = (np.log(far.loss) - middle) / np.maximum((high - low) / (2 * 1.96), 1e-12)
                tried.append(Tried(kept, rung, z))
        shorts.append(ShortLaw(kept, law, tuple(tried)))
    return shorts


def widening(
    tried: Sequence[Tried], rungs: int, *, before: float = BEFORE, doubted: float = DOUBTED
) -> tuple[float, float]:
    """By how much intervals are widened so that back-tested runs lie inside as often as claimed.

    Of rungs among the first `rungs` alone. Each rung of each law counts as one; few say little. The
    second is that of a ladder's bend, which no runs tell of and published laws do.
    """
    tried = [t for t in tried if t.rung < rungs]
    asked, share = asked_for(tried), len(tried) / (len(tried) + doubted)
    # In logs, as factors: with few rungs what was asked before counts, with many what they ask for.
    # A ladder's bend is not narrowed, and no more widened than its own rungs ask for.
    return asked**share * before ** (1 - share), max(asked, 1.0) ** share


def asked_for(tried: Sequence[Tried]) -> float:
    """The factor by which as many runs of a rung lie inside as claimed; 1 where none was tried."""
    if not tried:
        return 1.0
    sizes = np.concatenate([np.abs(t.z) for t in tried])
    # Each rung counts as one: a rung of thirty runs is off in one way, not in thirty.
    weights = np.concatenate([np.full(len(t.z), 1 / len(t.z)) for t in tried])
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / weights.sum()
    return max(float(np.interp(LEVEL, reached, sizes[order])) / 1.96, NARROWEST)


def back_test(
    runs: LossRuns, rungs: Rungs, short: ShortLaw, tried: Sequence[Tried]
) -> LossBackTest:
    """A short law, widened by what shorter ones said, beside the rungs that it lacks."""
    widened, bent = widening(tried, short.kept)
    law, kept = replace(short.law, widened=widened, bent=bent), short.kept
    far = runs.only(rungs.index >= kept)
    drawn = law.of_runs(far.params, far.tokens)
    measured = np.log(far.loss)
    low, high = _ends(drawn)
    # Runs of a rung are off together as far as they share a misfit; noise is each training's own.
    logs = law.log_losses(far.params, far.tokens).mean(1)
    random = np.random.default_rng([law.seed, 2])
    width = math.hypot(law.misfit, law.noise / math.sqrt(len(np.unique(far.trainings))))
    means = logs + widened * width * random.standard_normal(len(logs))
    middle, mean = float(np.median(logs)), float(measured.mean())
    deviation = max(float(np.std(means)), 1e-12)
    params, tokens = middle_of(far.params), middle_of(far.tokens)
    predicted, real = math.exp(middle), math.exp(mean)
    there = float(law.mean_loss(np.array([params]), np.array([tokens]))[0])
    return LossBackTest(
        left_out=rungs.names[kept:],
        predicted=estimate_of(np.exp(means), predicted),
        measured=real,
        z=(mean - middle) / deviation,
        within=int(((low <= measured) & (measured <= high)).sum()),
        count=len(far),
        nats=real - predicted,
        reducible=share_above(real - predicted, predicted, law.floor().value),
        compute=law.compute_for(params, tokens, there + real - predicted),
    )


def share_above(miss: float, loss: float, floor: float) -> float | None:
    """A miss as a share of what a loss has above its floor; None where that is about nothing."""
    return miss / (loss - floor) if loss - floor > LEAST_ABOVE * loss else None


LEAST_ABOVE = 0.005
"""Of a loss: less above the floor is no measure of anything."""


def speed_up(law: LossLaw, other: LossLaw, at: RunSize, others: RunSize) -> Estimate:
    """How many times less compute a run of `law` takes than one of `other` for the same loss.

    The loss is that of `law` at its (N, D, FLOPs) `at`. `other` is scaled from its own point,
    `others`, until it reaches it. Draws of both are paired at random. inf: it never does.
    """
    (params, tokens, flops), (theirs, horizon, price) = at, others
    reached = law.log_losses(np.array([params]), np.array([tokens]))[:, 0]
    sizes, horizons = other.scaled(theirs, horizon, FACTORS)
    curves = other.log_losses(sizes, horizons)
    random = np.random.default_rng([law.seed, 4])
    count = min(len(reached), len(curves))
    pairs = zip(random.permutation(reached)[:count], curves[:count], strict=True)
    needed = np.array([_crossing(curve, loss) for loss, curve in pairs])
    middle = _crossing(np.median(curves, axis=0), float(np.median(reached)))
    return estimate_of(needed * price / flops, middle * price / flops)


RunSize = tuple[float, float, float]
"""Parameters, tokens, FLOPs."""
FACTORS = np.exp(np.linspace(-12, 12, 481))
"""Of compute, between which a law is searched for a loss."""


def _crossing(curve: Array, loss: float) -> float:
    """The factor of compute at which log losses over `FACTORS` come to `loss`; 0 or inf outside."""
    curve = np.minimum.accumulate(curve)  # what runs lie off the law may bend it a little
    if not curve[-1] < loss < curve[0]:
        return math.inf if loss <= curve[-1] else 0.0
    return float(np.exp(np.interp(-loss, -curve, np.log(FACTORS))))


def settled(law: LossLaw, params: float, tokens: float, loss: Estimate) -> bool:
    """Whether the interval of a run says something of it, by its width.

    Half of it is at most what the compute beyond the largest run gains, or a few per cent of the
    loss: else a loss that is no better than today's would be as good a prediction.
    """
    half = 0.5 * (loss.high - loss.low)
    beyond = params * tokens * law.runs.flops_per_product / float(law.runs.flops.max())
    # What today's largest compute reaches on the path: the gain to compare with.
    today = law.mean_loss(*law.scaled(params, tokens, np.array([1 / max(beyond, 1.0)])))[0]
    return half <= max(GAP * (float(today) - loss.value), NARROW * loss.value)


def _stretched(drawn: Array, stretch: float) -> Array:
    """Positive draws pulled from their middle, on the log scale."""
    logs = np.log(drawn)
    middle = np.median(logs)
    stretched: Array = np.exp(middle + stretch * (logs - middle))
    return stretched


def estimate_of(drawn: Array, value: float | None = None) -> Estimate:
    """A value, the middle of its draws if not given, with the interval of these."""
    low, high = _ends(drawn)
    middle = float(np.median(drawn)) if value is None else float(value)
    # A robust best and the middle of its draws differ a little: the value lies in its interval.
    return Estimate(value=middle, low=min(float(low), middle), high=max(float(high), middle))


def _ends(drawn: Array) -> Array:
    tail = 50 * (1 - LEVEL)
    # "nearest" takes draws themselves: between infinite ones nothing can be interpolated.
    return np.percentile(drawn, [tail, 100 - tail], axis=0, method="nearest")


def middle_of(values: Array) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(values).mean()))
