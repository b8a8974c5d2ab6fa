"""What the law says of a run that nobody has made: with its interval, tested backwards first.

Of run i, at parameters N and tokens D,

    log L_i = log L(theta; N_i, D_i) + m_i + e_i

with the law's parameters theta, of which published laws say a little (`LossLawPrior`), what runs
lie off it and share, m, a Gaussian process (`misfit.py`), and noise e. Parameters are drawn from
their posterior by importance: proposed about the likeliest ones, along the curvature there, under
each of the likeliest covariances, and drawn as often as the runs and what is known say. A draw has
its own level of noise. So the interval holds the doubt of the parameters, what no smooth law
follows, and the seed of the run to come; it grows with the distance by itself, and is widened by
what shorter ladders were off at farther rungs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import gmean
from scipy.stats import t as student

from sweeper.evidence.predict.misfit import FEWEST, NOISE, LossMisfit, RunPoints, likely
from sweeper.evidence.runs.loss_runs import Design, LossRuns, Rungs
from sweeper.stats.estimate import Estimate
from sweeper.stats.gp import Process
from sweeper.stats.power_law import Array, LossForm, LossLawPrior, LossLaws, fit, regress

DRAWS = 600
"""Of the law's parameters."""
PROPOSED, TAILS = 2000, 5.0
"""Laws that are proposed under each covariance, and Student's freedom of their distances."""
ROLLOUTS = 4
"""How many shorter ladders a law is tried on."""
BEFORE, OFF, MOST_OFF = 3.0, 1.5, 2.0
"""A law's own width counts for so many rungs beside those it was tried on, that are off by so much
more than it says; one that is off by more counts as so much, as no rung tells of all. Chosen on
published tables, each by the others (`scripts/bench/tables.py --leave-one-out`)."""
FAR, STRAY, RARE = 2.5, 5.0, 0.05
"""Standard deviations from what the other runs say beyond which a run counts less, and is a stray
that is named; the share of runs up to which these went wrong, and say nothing of one that does
not."""
NARROW = 0.05
"""Half an interval of this share of the loss says enough, whatever is left to gain: `settled`."""
LEAST_ABOVE = 0.005
"""Of a loss: less above the floor is no measure of anything."""


@dataclass(frozen=True, eq=False)
class Member:
    """The law's `draws` under one covariance of what runs lie off it.

    `explained` [draws, runs] is what the runs' residuals say of places beside them, `whiten` the
    factor that makes these independent, `level` [draws] the noise of each draw.
    """

    best: LossLaws
    draws: LossLaws
    weight: float
    misfit: LossMisfit
    points: RunPoints
    whiten: Array
    explained: Array
    level: Array

    def log_loss(self, params: Array, tokens: Array) -> Array:
        """Log L [draws, places]: the law, and what runs nearby lie off it (kriging)."""
        there = RunPoints.to_come(params, tokens)
        near = self.explained @ self.misfit.between(self.points, there)
        return np.asarray(np.log(self.draws.loss(params, tokens)) + near)

    def deviation(self, params: Array, tokens: Array) -> Array:
        """A single run's deviation about that at each place, its seed in it [draws, places]."""
        there = RunPoints.to_come(params, tokens)
        explained = self.whiten @ self.misfit.between(self.points, there)
        # What the runs do not explain of a place: the prior's variance less what they tell.
        rest = np.maximum(self.misfit.shared**2 - (explained**2).sum(0), 0.0)
        return np.asarray(self.level[:, None] * np.sqrt(rest + self.misfit.noise_at(there) ** 2))

    def mean_deviation(self, params: Array, tokens: Array, trainings: int) -> Array:
        """The deviation [draws] of the mean of runs in so many trainings, which share a misfit."""
        there = RunPoints.to_come(params, tokens)
        explained = self.whiten @ self.misfit.between(self.points, there)
        # Less what the runs tell: all of the prior's variance would say far too much.
        shared = float(self.misfit.between(there, there).mean() - (explained.mean(1) ** 2).sum())
        own = float((self.misfit.noise_at(there) ** 2).mean())
        own += self.misfit.training**2 + self.misfit.cell**2
        return np.asarray(self.level * math.sqrt(max(shared, 0.0) + own / trainings))

    def paths(self, params: Array, tokens: Array, random: np.random.Generator) -> Array:
        """Log L [draws, places] with the smooth part of the misfit drawn, the same for all runs."""
        # Without what single sizes, trainings, cells are off: they must not choose a best size.
        smooth = replace(self.misfit, size=0.0, training=0.0, cell=0.0)
        there = RunPoints.to_come(params, tokens)
        explained = self.whiten @ smooth.between(self.points, there)
        covariance = smooth.between(there, there) - explained.T @ explained
        # Places that lie close have no inverse: eigenvalues below 0 are rounding.
        values, vectors = np.linalg.eigh(covariance)
        drawn = self.level[:, None] * random.standard_normal((len(self.level), len(there)))
        off: Array = drawn @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return self.log_loss(params, tokens) + off


@dataclass(frozen=True, eq=False)
class RungMiss:
    """A shorter ladder's law, held against a farther rung: `z` [runs] in its own deviations."""

    kept: int
    rung: int
    z: Array


@dataclass(frozen=True, eq=False)
class LossLaw:
    """A law fitted to `runs`, its draws under each likely covariance.

    `noise` is the standard deviation of log L over seeds. Intervals are `widened` by what
    back-tested runs asked for. `strays` are places of runs far off the law.
    """

    runs: LossRuns
    design: Design
    form: LossForm
    members: tuple[Member, ...]
    noise: float
    strays: tuple[int, ...]
    widened: float = 1.0

    def log_losses(self, params: Array, tokens: Array) -> Array:
        """Log L of the law, without noise [draws, places]."""
        return self._widened([member.log_loss(params, tokens) for member in self.members])

    def paths(self, params: Array, tokens: Array) -> Array:
        """Log L [draws, places] of one smooth law a draw, what runs lie off it drawn with it."""
        random = np.random.default_rng([0, 6])
        return self._widened([member.paths(params, tokens, random) for member in self.members])

    def _widened(self, parts: Sequence[Array]) -> Array:
        logs = np.concatenate(parts)
        middle = np.median(logs, axis=0)
        return np.asarray(middle + self.widened * (logs - middle))

    def of_runs(self, params: Array, tokens: Array) -> Array:
        """Log L of single runs [draws, places]: what they lie off the law with it."""
        # Seeds of their own for each kind of draw: what is asked first does not change the rest.
        random = np.random.default_rng([0, 1])
        off = np.concatenate([member.deviation(params, tokens) for member in self.members])
        off = off * random.standard_normal(off.shape)
        return self.log_losses(params, tokens) + self.widened * off

    def loss(self, params: float, tokens: float) -> Estimate:
        """The loss of one run (N, D), its seed and the law's misfit in the interval."""
        at = np.array([params]), np.array([tokens])
        value = float(self.mean_loss(*at)[0])
        return Estimate.from_draws(value, np.exp(self.of_runs(*at))[:, 0])

    def mean_loss(self, params: Array, tokens: Array) -> Array:
        """The law's loss at places, the middle of its draws."""
        return np.exp(np.median(self.log_losses(params, tokens), axis=0))

    def values(self) -> dict[str, Estimate]:
        """The law's parameters by name."""
        drawn = [member.draws.natural() for member in self.members]
        best = self.members[0].best.natural()
        estimates = dict[str, Estimate]()
        for name in best:
            logs = np.log(np.concatenate([d[name] for d in drawn]))
            middle = np.median(logs)
            values = np.exp(middle + self.widened * (logs - middle))
            # A floor above a loss that was reached is impossible, whatever a widened draw says.
            if name == "E":
                values = np.minimum(values, float(self.runs.loss.min()))
            estimates[name] = Estimate.from_draws(float(best[name][0]), values)
        return estimates

    def compute_for(self, params: float, tokens: float, loss: float) -> float:
        """How many times the compute of (N, D) the law's loss would be `loss` at; inf at none."""
        sizes, horizons = self.scaled(params, tokens, FACTORS)
        return _crossing(np.log(self.mean_loss(sizes, horizons)), math.log(loss))

    def scaled(self, params: float, tokens: float, factors: Array) -> tuple[Array, Array]:
        """(N, D) at `factors` times the compute, as far as runs were varied."""
        if self.form.name == "size":
            return params * factors, np.full_like(factors, tokens)
        if self.form.name == "tokens":
            return np.full_like(factors, params), tokens * factors
        # Along the runs' own line of N and D; without one both grow alike, as the root.
        slope = self.design.line[1] if self.design.line else 1.0
        sizes = params * factors ** (1 / (1 + slope))
        return sizes, tokens * (sizes / params) ** slope


def fit_law(
    runs: LossRuns, *, draws: int = DRAWS, fixed: Mapping[str, float] | None = None
) -> LossLaw:
    """The law of `runs`, some parameters `fixed`; ValueError for fewer (N, D) than the others."""
    design = Design.of(runs)
    form = design.form
    cells = runs.cells
    count = int(cells.max()) + 1
    # As many (N, D) as parameters leave nothing to see misfit by; seeds still show the noise.
    fixed = fixed or {}
    if len({*form.parameters} - {*fixed}) >= count + (len(runs) > count):
        raise ValueError(
            f"{count} different sizes and horizons: the law {form.formula} has "
            f"{len(form.parameters)} parameters and needs one more, or several seeds"
        )
    points = RunPoints(np.log(runs.params), np.log(runs.tokens), cells, runs.trainings)
    prior = LossLawPrior.of(form, runs.loss, fixed)
    at = runs.params, runs.tokens, runs.loss
    best = fit(form, *at)
    # A covariance by likelihood needs residuals that one wild run has not bent.
    size = np.abs(_off(best, runs)[0])
    doubt: Array = np.maximum(size / (FAR * max(1.4826 * float(np.median(size)), NOISE)), 1.0)
    # Where more than a few are far off, it is the law that is wrong.
    if (doubt > STRAY / FAR).sum() > max(1, RARE * len(runs)):
        doubt = np.ones(len(runs))
    # Three times: the covariance follows from the residuals, the fit from the covariance, and who
    # is a stray from both.
    for _ in range(3):
        off, slopes = _off(best, runs)[0], best.slopes(*at[:2])[0]
        ranked = likely(points, off, slopes, doubt)
        process = ranked[0].process(points, off, slopes, doubt)
        left, deviation = process.left_out()
        # A run that fits the others after all gets its weight back.
        doubt = np.maximum(doubt * np.abs(left[:, 0]) / (ranked[0].noise * deviation) / FAR, 1.0)
        process = ranked[0].process(points, off, slopes, doubt)
        best, _ = regress(best, *at, whiten=_whiten(process) / ranked[0].noise, prior=prior)
    pools = [_proposed(best, misfit, runs, points, prior, doubt) for misfit in ranked]
    members = _drawn(pools, runs, points, draws)
    noise = math.sqrt(sum(m.weight * m.misfit.noise**2 for m in members))
    strays = tuple(np.flatnonzero(doubt > STRAY / FAR).tolist())
    return LossLaw(runs, design, form, members, noise, strays)


def _off(laws: LossLaws, runs: LossRuns) -> Array:
    return np.log(laws.loss(runs.params, runs.tokens)) - np.log(runs.loss)


def _whiten(process: Process) -> Array:
    return process.whitened(np.eye(len(process.values)))


@dataclass(frozen=True, eq=False)
class _Pool:
    """Laws under one covariance: log importances `scores`, `squares` of whitened residuals."""

    best: LossLaws
    proposed: LossLaws
    misfit: LossMisfit
    whiten: Array
    squares: Array
    scores: Array


def _proposed(
    best: LossLaws,
    misfit: LossMisfit,
    runs: LossRuns,
    points: RunPoints,
    prior: LossLawPrior,
    doubt: Array,
) -> _Pool:
    at = runs.params, runs.tokens
    whiten = _whiten(misfit.process(points, _off(best, runs)[0], best.slopes(*at)[0], doubt))
    best, _ = regress(best, *at, runs.loss, whiten=whiten / misfit.noise, prior=prior)
    slopes = best.slopes(*at)[0] @ whiten.T / misfit.noise
    root = np.linalg.cholesky(slopes @ slopes.T + np.diag(prior.deviation**-2.0))
    # Student's t about the likeliest law, along the curvature there: its tails reach beyond.
    random, width = np.random.default_rng([0, 0]), len(root)
    steps = random.standard_normal((PROPOSED, width))
    steps *= np.sqrt(TAILS / random.chisquare(TAILS, (PROPOSED, 1)))
    proposed = replace(best, values=best.values + steps @ np.linalg.inv(root))
    squares = ((_off(proposed, runs) @ whiten.T) ** 2).sum(1) + FEWEST * NOISE**2
    # The likelihood with the level of the noise integrated out, and what is known.
    scores = -0.5 * (len(runs) + FEWEST) * np.log(squares) + float(np.log(np.diag(whiten)).sum())
    scores -= 0.5 * (prior.off(proposed.values) ** 2).sum(1)
    # Less the density of what was proposed.
    scores += 0.5 * (TAILS + width) * np.log1p((steps**2).sum(1) / TAILS)
    scores -= float(np.log(np.diag(root)).sum())
    return _Pool(best, proposed, misfit, whiten, squares, scores)


def _drawn(
    pools: Sequence[_Pool], runs: LossRuns, points: RunPoints, draws: int
) -> tuple[Member, ...]:
    """Draws laws of all pools, each as often as it is likely; the likeliest pool comes first."""
    random = np.random.default_rng([0, 5])
    scores = np.array([pool.scores for pool in pools])
    shares = np.exp(scores - scores.max())
    # Evenly spaced over the shares' sum: no law comes more often than its share asks for.
    places = (np.arange(draws) + random.random()) / draws * shares.sum()
    chosen = np.searchsorted(np.cumsum(shares), places).clip(0, shares.size - 1)
    # Of the points of one training no more residuals are independent than there are trainings.
    clusters, cells = len(np.unique(runs.cluster)), int(runs.cells.max()) + 1
    free = (clusters if clusters < cells else len(runs)) + FEWEST
    members = []
    for index, pool in enumerate(pools):
        of = chosen[chosen // PROPOSED == index] % PROPOSED
        if not len(of):
            continue
        laws = replace(pool.proposed, values=pool.proposed.values[of])
        noise = pool.squares[of] / (len(runs) + FEWEST)
        level = np.sqrt(noise * free / random.chisquare(free, len(of)))
        # Places nearby follow what the real runs lie off each law.
        explained = -_off(laws, runs) @ pool.whiten.T @ pool.whiten
        weight, best = len(of) / draws, pool.best
        members.append(
            Member(best, laws, weight, pool.misfit, points, pool.whiten, explained, level)
        )
    return tuple(sorted(members, key=lambda member: -member.weight))


@dataclass(frozen=True, kw_only=True)
class LossBackTest:
    """The law without the farthest rungs, held against them.

    `left_out` names them. Of their mean log loss: `predicted` with its interval, `measured`, both
    as losses. `within` of `count` runs lie in their own intervals. `reducible`: the miss as a share
    of the loss above the floor; `compute`: how many times the compute would give the loss that was
    measured.
    """

    left_out: tuple[str, ...]
    predicted: Estimate
    measured: float
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
class ShortLadderLaw:
    """The law of the first `kept` rungs, and what it was off at each farther one."""

    kept: int
    law: LossLaw
    tried: tuple[RungMiss, ...]


def short_laws(
    runs: LossRuns,
    rungs: Rungs,
    *,
    draws: int = DRAWS,
    fixed: Mapping[str, float] | None = None,
    strays: Sequence[int] = (),
) -> list[ShortLadderLaw]:
    """Laws of shorter ladders, the longest last, against the rungs beyond that are no `strays`."""
    usable = np.ones(len(runs), bool)
    # Where more than a few are far off, it is the law that is wrong, and they stay.
    if len(strays) <= RARE * len(runs):
        usable[list(strays)] = False
    shorts = []
    # The longest ladders: what a law of two rungs misses says little of one of ten.
    for kept in range(max(2, len(rungs) - ROLLOUTS), len(rungs)):
        near, farther = runs.only(rungs.index < kept), runs.only(rungs.index >= kept)
        two_axes = len(Design.of(runs).form.terms) == 2
        if kept < (2 if two_axes and (kept == len(rungs) - 1 or rungs.kind == "budget") else 3):
            continue
        try:
            law = fit_law(near, draws=draws, fixed=fixed)
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
                tried.append(RungMiss(kept, rung, z))
        shorts.append(ShortLadderLaw(kept, law, tuple(tried)))
    return shorts


def widening(
    tried: Sequence[RungMiss], rungs: int, *, before: float = BEFORE, off: float = OFF
) -> float:
    """The factor on intervals for what shorter ladders were off.

    Of rungs among the first `rungs` alone, and each rung of each law counts as one. Their mean
    square of z is what a law's own width has to be multiplied by; it is known by as many rungs, and
    by those that count `before`, each `off` by as much: Student's t of so much freedom.
    """
    squares = [min(float(np.mean(t.z**2)), MOST_OFF**2) for t in tried if t.rung < rungs]
    free = before + len(squares)
    level = math.sqrt((before * off**2 + sum(squares)) / free)
    return level * float(student.ppf(0.975, free)) / 1.96


def back_test(
    runs: LossRuns, rungs: Rungs, short: ShortLadderLaw, tried: Sequence[RungMiss]
) -> LossBackTest:
    """A short law, widened by what shorter ones said, beside the rungs that it lacks."""
    kept = short.kept
    law = replace(short.law, widened=widening(tried, kept))
    far = runs.only(rungs.index >= kept)
    drawn = law.of_runs(far.params, far.tokens)
    measured = np.log(far.loss)
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0, method="nearest")
    logs = law.log_losses(far.params, far.tokens).mean(1)
    random = np.random.default_rng([0, 2])
    of_runs = far.params, far.tokens, len(np.unique(far.trainings))
    off = np.concatenate([member.mean_deviation(*of_runs) for member in law.members])
    means = logs + law.widened * off * random.standard_normal(len(logs))
    params, tokens = float(gmean(far.params)), float(gmean(far.tokens))
    predicted, real = math.exp(float(np.median(logs))), math.exp(float(measured.mean()))
    there = float(law.mean_loss(np.array([params]), np.array([tokens]))[0])
    return LossBackTest(
        left_out=rungs.names[kept:],
        predicted=Estimate.from_draws(predicted, np.exp(means)),
        measured=real,
        within=int(((low <= measured) & (measured <= high)).sum()),
        count=len(far),
        nats=real - predicted,
        reducible=share_above(real - predicted, predicted, law.values()["E"].value),
        compute=law.compute_for(params, tokens, there + real - predicted),
    )


def share_above(miss: float, loss: float, floor: float) -> float | None:
    """A miss as a share of what a loss has above its floor; None where that is about nothing."""
    return miss / (loss - floor) if loss - floor > LEAST_ABOVE * loss else None


FACTORS = np.exp(np.linspace(-12, 12, 481))
"""Of compute, between which a law is searched for a loss."""


def _crossing(curve: Array, loss: float) -> float:
    """The factor of compute at which log losses over `FACTORS` come to `loss`; 0 or inf outside."""
    # What runs lie off the law may bend it: of several crossings the one next to the factor 1.
    half = len(curve) // 2
    larger = np.minimum.accumulate(curve[half:])
    smaller = np.maximum.accumulate(curve[half::-1])[::-1]
    curve = np.concatenate([smaller[:-1], larger])
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
    return half <= max(float(today) - loss.value, NARROW * loss.value)
