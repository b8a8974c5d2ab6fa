"""What the law says of a run that nobody has made: with its interval, tested backwards first.

The interval holds four doubts: the law's parameters (a bootstrap of the runs), its form (forms
averaged, each as likely as the runs make it), what no smooth law follows (the scatter of sizes and
horizons around it), and the seed of the run to come. It grows with the distance from the runs by
itself, since the parameters' doubt does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.runs.loss_runs import Design, LossRuns, Rungs
from sweeper.stats.estimate import Estimate, quantile
from sweeper.stats.power_law import (
    COMPUTE,
    ROBUST,
    Array,
    Fits,
    LawForm,
    fit,
    refit,
    residuals,
    spread,
)

DRAWS = 1000
"""Of the bootstrap, over all forms."""
ROLLOUTS, ROLLOUT_DRAWS = 4, 100
"""How many shorter ladders a law is tried on, and the draws of each."""
FEW_FREE = 4
"""Degrees of freedom below which misfit is not seen, and taken to be no less than what seeds leave
in a mean."""
PLENTY = 20
"""Clusters per parameter from which on they are resampled. Of fewer a draw loses whole corners of
the grid, and intervals come out up to three times too wide: noise and misfit are drawn anew."""
MANY = 20
"""Runs from which on their residuals are drawn as they are, heavy tails with them; else normal."""
EXPONENTS_APART = 0.2
"""The logarithm of beta / alpha, as a standard deviation: 0.19, 0.05, 0.27 and 0.22 in Hoffmann's,
Epoch AI's, the Open-Athena isoFLOPs' and Kaplan's laws."""
SHARES = (0.2, 0.8)
"""Between which the size's share of the loss above the floor lies, at the centre of a ladder."""
LEVEL = 0.95
"""Of every interval."""
MISS = 2.576
"""|z| of a back-test that counts as failed: one true law in a hundred does by chance."""
STRAY, RARE = 5.0, 0.05
"""Standard deviations from the law beyond which a run is named as a stray one; the share of runs up
to which these went wrong, and say nothing of one that does not."""
GAP = 0.5
"""The largest share of the gain still to come that half an interval may be wide: `settled`."""
NARROW = 0.01
"""A half interval below this share of the loss says enough, whatever is left to gain."""


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
        apart = np.exp(0.5 * EXPONENTS_APART * random.standard_normal(draws))
        share, amount = random.uniform(*SHARES, draws), np.full(draws, level)
        truth = np.stack([amount, share, exponent * apart, exponent / apart])
        bend = cls(float(floor), truth, best)
        losses, weights = np.exp(bend._log(runs.params, runs.tokens)), np.ones((draws, len(runs)))
        fits = refit(best, runs.params, runs.tokens, losses, weights, threshold=threshold)
        return replace(bend, fits=fits)

    def off(self, params: Array, tokens: Array) -> Array:
        """How far the truth lies above the fit, in log L [draws, points]."""
        gap: Array = self._log(params, tokens) - np.log(self.fits.loss(params, tokens))
        return gap

    def _log(self, params: Array, tokens: Array) -> Array:
        centre = math.log(self.fits.centre[0]) + math.log(self.fits.centre[1])
        compute = np.log(params) + np.log(tokens) - centre
        level, share, a, b = self.truth[:, :, None]
        powers = share * np.exp(-a * compute) + (1 - share) * np.exp(-b * compute)
        logs: Array = np.log(self.floor + level * powers)
        return logs


@dataclass(frozen=True, eq=False)
class Member:
    """A form that was fitted: its `best`, `draws` of the bootstrap, and how likely it is."""

    best: Fits
    draws: Fits
    weight: float
    stretch: float
    """By how much draws are pulled from their middle: degrees of freedom, and Student's t."""
    bend: Bend | None = None

    def log_loss(self, params: Array, tokens: Array) -> Array:
        """Log L [draws, points], stretched; with what the form may be off by itself."""
        logs = np.log(self.draws.loss(params, tokens))
        middle = np.median(logs, axis=0)
        stretched: Array = middle + self.stretch * (logs - middle)
        return stretched if self.bend is None else stretched + self.bend.off(params, tokens)


@dataclass(frozen=True, eq=False)
class LossLaw:
    """Laws fitted to `runs`, averaged.

    `noise` is the standard deviation of log L over seeds, `misfit` that of (N, D) around the law
    beyond it, `off` the residuals of log L [runs]. `drift` is the standard deviation of what the
    law itself was off, in log L per unit of log compute beyond the runs, when it was tried on its
    own farther rungs: what its parameters' doubt does not explain.
    """

    runs: LossRuns
    design: Design
    members: tuple[Member, ...]
    noise: float
    misfit: float
    off: Array
    seed: int
    drift: float = 0.0

    @property
    def likeliest(self) -> Member:
        """The form that the runs make likeliest."""
        return max(self.members, key=lambda member: member.weight)

    def log_losses(self, params: Array, tokens: Array) -> Array:
        """Log L of the law, without noise [draws, points]: each form as often as it is likely."""
        parts = []
        for member in self.members:
            logs = member.log_loss(params, tokens)
            # Draws are in no order: the first so many are a sample as good as any.
            parts.append(logs[: round(member.weight * len(logs))])
        logs = np.concatenate(parts)
        if self.drift:
            # Python's whole numbers become int64, in which params * tokens may wrap around.
            compute = params.astype(float) * tokens * self.runs.flops_per_product
            beyond = np.maximum(np.log(compute), 0)
            beyond = np.maximum(beyond - math.log(self.runs.flops.max()), 0)
            random = np.random.default_rng([self.seed, 3])
            # One drift a draw, the same at all points: it is the law that is off.
            logs = logs + self.drift * random.standard_normal((len(logs), 1)) * beyond
        return logs

    def loss(self, params: float, tokens: float) -> Estimate:
        """The loss of one run (N, D), its seed and the law's misfit in the interval."""
        logs = self.log_losses(np.array([params]), np.array([tokens]))
        return _estimate(np.exp(logs + self.scatter(*logs.shape))[:, 0], np.exp(np.median(logs)))

    def mean_loss(self, params: Array, tokens: Array) -> Array:
        """The law's loss at points, the middle of its draws."""
        return np.exp(np.median(self.log_losses(params, tokens), axis=0))

    def floor(self) -> Estimate:
        """E, over all forms: the middle of the draws, as the law's losses are.

        Its interval holds the likeliest form's fit, as that form's own does.
        """
        parts = []
        for member in self.members:
            drawn = self._drawn(member)["E"]
            parts.append(drawn[: max(1, round(member.weight * len(drawn)))])
        floor = _estimate(np.concatenate(parts))
        fitted = float(self.likeliest.best.natural()["E"][0])
        return replace(floor, low=min(floor.low, fitted), high=max(floor.high, fitted))

    def parameters(self, member: Member) -> dict[str, Estimate]:
        """Of a form, by name."""
        best, drawn = member.best.natural(), self._drawn(member)
        return {name: _estimate(drawn[name], float(best[name][0])) for name in best}

    def _drawn(self, member: Member) -> dict[str, Array]:
        """Its parameters' draws by name, stretched; no floor lies above the lowest loss."""
        drawn = {
            name: _stretched(values, member.stretch)
            for name, values in member.draws.natural().items()
        }
        drawn["E"] = np.minimum(drawn["E"], float(self.runs.loss.min()))
        return drawn

    def best_loss(self, params: Array, tokens: Array) -> Array:
        """The loss at points by the forms' best fits alone, averaged: quick, for searches."""
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
        slope = self.design.line[1] if self.design.line else 1.0
        sizes = params * factors ** (1 / (1 + slope))
        return sizes, tokens * (sizes / params) ** slope

    def scatter(self, draws: int, points: int) -> Array:
        """What a single run lies off the law [draws, points], as the runs themselves do."""
        random = np.random.default_rng([self.seed, 1])
        parameters = len(self.likeliest.best.form.parameters)
        if len(self.off) < MANY:
            return math.hypot(self.noise, self.misfit) * random.standard_normal((draws, points))
        off = self.off[right(self)]
        # Residuals are smaller than errors by the freedom that the fit took.
        inflated = off * math.sqrt(len(off) / (len(off) - parameters))
        return random.choice(inflated, (draws, points))


def fit_law(
    runs: LossRuns,
    *,
    threshold: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    forms: Sequence[LawForm] = (),
) -> LossLaw:
    """The law of `runs`; ValueError where there are fewer (N, D) than it has parameters.

    `threshold` is Huber's, on log L; None: by the residuals. `forms`: those to take; else those
    that the design allows.
    """
    design = Design.of(runs)
    cells = runs.cells
    count = int(cells.max()) + 1
    # As many (N, D) as parameters leave nothing to see misfit by; seeds still show the noise.
    least = count + (len(runs) > count)
    allowed = tuple(f for f in forms or design.forms if len(f.parameters) < least)
    if not allowed:
        raise ValueError(
            f"{count} different sizes and horizons: the law {design.forms[0].formula} has "
            f"{len(design.forms[0].parameters)} parameters and needs one more, or several seeds"
        )
    fits = [fit(form, runs.params, runs.tokens, runs.loss, threshold=threshold) for form in allowed]
    # Forms differ in parameters: their likelihoods are compared by BIC. The scale is that of the
    # residuals under the likeliest, so that runs far off count as Huber's loss has them.
    offs = [residuals(best, runs.params, runs.tokens, runs.loss)[0] for best in fits]
    scales = [spread(off, len(form.parameters)) for off, form in zip(offs, allowed, strict=True)]
    scale = max(min(scales), 1e-6)
    scores = [
        float(_huber(off / scale, ROBUST).sum()) + 0.5 * len(form.parameters) * math.log(count)
        for off, form in zip(offs, allowed, strict=True)
    ]
    weights = np.exp(min(scores) - np.array(scores))
    likeliest = int(np.argmin(scores))
    off = offs[likeliest]
    noise, misfit = _noise(off, cells, scale)
    if len(runs) > count and count - len(allowed[likeliest].parameters) < FEW_FREE:
        misfit = max(misfit, noise / math.sqrt(len(runs) / count))
    clusters = len(np.unique(runs.cluster))
    members = []
    for best, weight in zip(fits, weights / weights.sum(), strict=True):
        number = len(best.form.parameters)
        limit = ROBUST * scale if threshold is None else threshold
        random = np.random.default_rng([seed, 0])
        if clusters >= PLENTY * number:
            drawn = _resampled(best, runs, random, draws, limit)
            free = min(count, clusters) - number
            # Draws are too narrow by the freedom that the fit took.
            stretch = math.sqrt((free + number) / free) * quantile(free, 0.975) / 1.96
        else:
            drawn = _redrawn(best, runs, random, draws, limit, noise, misfit)
            # The noise that is drawn was estimated with that freedom: Student's t alone is lacking.
            # Repeated runs tell noise and not misfit: they count by the noise's share of a cell's
            # variance. Of points of one training no more is free than there are trainings.
            share = noise**2 / max(noise**2 + len(runs) / count * misfit**2, 1e-30)
            free = count - number + round(share * (len(runs) - count))
            free = min(free, clusters - 1) if clusters < count else free
            # A form that takes every cell leaves nothing that shows its error: as wide as one does.
            stretch = quantile(max(1, free), 0.975) / 1.96
        bend = Bend.drawn(best, runs, np.random.default_rng([seed, 5]), draws, limit)
        members.append(Member(best, drawn, float(weight), stretch, bend))
    return LossLaw(runs, design, tuple(members), noise, misfit, off, seed)


def _resampled(
    best: Fits, runs: LossRuns, random: np.random.Generator, draws: int, threshold: float
) -> Fits:
    """The bootstrap of clusters: each drawn as often as chance has it."""
    names, cluster = np.unique(runs.cluster, return_inverse=True)
    counts = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    weights = counts[:, cluster.reshape(-1)].astype(float)
    return refit(best, runs.params, runs.tokens, runs.loss, weights, threshold=threshold)


def _redrawn(
    best: Fits,
    runs: LossRuns,
    random: np.random.Generator,
    draws: int,
    threshold: float,
    noise: float,
    misfit: float,
) -> Fits:
    """The bootstrap of few runs: the law's own losses with noise and misfit drawn anew."""
    cells, trainings = runs.cells, runs.trainings
    off = misfit * random.standard_normal((draws, int(cells.max()) + 1))[:, cells]
    # Points of one training are off together, and beside it each by itself: that is what tells of
    # the tokens, where one training gives all horizons of a size.
    count = int(trainings.max()) + 1
    off += noise * random.standard_normal((draws, count))[:, trainings]
    if count < len(runs):
        own_offs = residuals(best, runs.params, runs.tokens, runs.loss)[0]
        means = np.bincount(trainings, own_offs) / np.bincount(trainings)
        squares = float(((own_offs - means[trainings]) ** 2).sum()) / max(len(runs) - count - 2, 1)
        own = math.sqrt(max(squares - misfit**2, 0.0))
        off += own * random.standard_normal((draws, len(runs)))
    losses = best.loss(runs.params, runs.tokens) * np.exp(off)
    weights = np.ones((draws, len(runs)))
    return refit(best, runs.params, runs.tokens, losses, weights, threshold=threshold)


def _noise(
    off: Array, cells: np.ndarray[tuple[int], np.dtype[np.int64]], scale: float
) -> tuple[float, float]:
    """Noise and misfit from residuals of log L: what differs within (N, D), and between them.

    Without two runs of any (N, D) they cannot be told apart: all is noise.
    """
    # The plain deviation, or the robust one where that is larger: strays are runs too.
    counts = np.bincount(cells)
    free = len(off) - len(counts)
    if free == 0:
        return scale, 0.0
    means = np.bincount(cells, off) / counts
    noise = math.sqrt(float(((off - means[cells]) ** 2).sum()) / free)
    between = max(scale**2 - noise**2, 0.0)
    return noise, math.sqrt(between)


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
        """Whether chance alone would miss by as much once in a hundred times."""
        return abs(self.z) > MISS


def back_test(
    runs: LossRuns,
    rungs: Rungs,
    leave: int,
    *,
    threshold: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    forms: Sequence[LawForm] = (),
) -> LossBackTest | None:
    """Without the `leave` farthest rungs; None where what is left is too little for a law."""
    out = rungs.index >= len(rungs) - leave
    near, far = runs.only(~out), runs.only(out)
    two_axes = len(Design.of(runs).forms[0].terms) == 2
    if len(rungs) - leave < (2 if two_axes and leave == 1 else 3):
        return None
    try:
        law = fit_law(near, threshold=threshold, draws=draws, seed=seed, forms=forms)
        inner = replace(rungs, index=rungs.index[~out], names=rungs.names[: len(rungs) - leave])
        law = with_drift(law, inner, threshold=threshold, forms=forms)
        for n, d in zip(far.params, far.tokens, strict=True):
            law.design.check_target(near, n, d)
    except ValueError:
        return None
    logs = law.log_losses(far.params, far.tokens)
    measured = np.log(far.loss)
    low, high = _ends(logs + law.scatter(*logs.shape))
    # What the cells of one rung lie off the law need not cancel: misfit counts once, noise by
    # training.
    random = np.random.default_rng([seed, 2])
    width = math.hypot(law.misfit, law.noise / math.sqrt(len(np.unique(far.trainings))))
    means = logs.mean(1) + width * random.standard_normal(len(logs))
    middle, mean = float(np.median(logs.mean(1))), float(measured.mean())
    deviation = max(float(np.std(means)), 1e-12)
    params, tokens = _middle(far.params), _middle(far.tokens)
    floor = law.floor().value
    predicted, real = math.exp(middle), math.exp(mean)
    there = float(law.mean_loss(np.array([params]), np.array([tokens]))[0])
    return LossBackTest(
        left_out=rungs.names[len(rungs) - leave :],
        predicted=_estimate(np.exp(means), predicted),
        measured=real,
        z=(mean - middle) / deviation,
        within=int(((low <= measured) & (measured <= high)).sum()),
        count=len(far),
        nats=real - predicted,
        reducible=share_above(real - predicted, predicted, floor),
        compute=law.compute_for(params, tokens, there + real - predicted),
    )


def share_above(miss: float, loss: float, floor: float) -> float | None:
    """A miss as a share of what a loss has above its floor; None where that is about nothing."""
    return miss / (loss - floor) if loss - floor > LEAST_ABOVE * loss else None


LEAST_ABOVE = 0.005
"""Of a loss: less above the floor is no measure of anything."""


def with_drift(
    law: LossLaw, rungs: Rungs, *, threshold: float | None = None, forms: Sequence[LawForm] = ()
) -> LossLaw:
    """The law with the drift that it shows on its own rungs.

    The law of the first k rungs is held against each rung after them, for the last ROLLOUTS k.
    A miss m (log L, mean of a rung) at a distance x (log compute) whose prediction has the
    variance v says (m^2 - v) / x^2 of the drift's variance, give or take sqrt(2) v / x^2 where it
    is 0: their mean, weighed by that, counts where it is positive.
    """
    usable = right(law)
    variances, weights = [], []
    first = max(3, len(rungs) - ROLLOUTS)
    for kept in range(first, len(rungs)):
        near = law.runs.only(rungs.index < kept)
        try:
            short = fit_law(
                near, threshold=threshold, draws=ROLLOUT_DRAWS, seed=law.seed, forms=forms
            )
        except ValueError:
            continue
        for rung in range(kept, len(rungs)):
            far = law.runs.only((rungs.index == rung) & usable)
            if not len(far):
                continue
            distance = math.log(_middle(far.flops) / float(near.flops.max()))
            if distance < math.log(1.5):
                continue
            means = short.log_losses(far.params, far.tokens).mean(1)
            miss = float(np.log(far.loss).mean() - np.median(means))
            variance = float(np.var(means)) + short.misfit**2
            variance += short.noise**2 / len(np.unique(far.trainings))
            variances.append((miss**2 - variance) / distance**2)
            weights.append((distance**2 / variance) ** 2)
    drift = math.sqrt(max(float(np.average(variances, weights=weights)), 0.0)) if variances else 0.0
    return replace(law, drift=drift)


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
    return _estimate(needed * price / flops, middle * price / flops)


RunSize = tuple[float, float, float]
"""Parameters, tokens, FLOPs."""
FACTORS = np.exp(np.linspace(-12, 12, 481))
"""Of compute, between which a law is searched for a loss."""


def _crossing(curve: Array, loss: float) -> float:
    """The factor of compute at which log losses over `FACTORS` come to `loss`; 0 or inf outside."""
    if not curve[-1] < loss < curve[0]:
        return math.inf if loss <= curve[-1] else 0.0
    return float(np.exp(np.interp(-loss, -curve, np.log(FACTORS))))


@dataclass(frozen=True, kw_only=True)
class Valley:
    """What another size costs at the budget: `times` the best size, its loss, the loss lost."""

    times: float
    params: float
    tokens: float
    loss: float
    gap: Estimate
    compute: float


@dataclass(frozen=True, kw_only=True)
class BudgetOptimum:
    """The best size and tokens for `flops`, by the law."""

    flops: float
    params: Estimate
    tokens: Estimate
    loss: Estimate
    valley: tuple[Valley, ...]


def optimum(law: LossLaw, flops: float) -> BudgetOptimum:
    """Minimize L(N, C / (k N)) over N, k FLOPs a parameter and token, of every draw.

    ValueError where sizes and tokens were not varied apart, or the best is at no finite size.
    """
    if len(law.members[0].best.form.terms) < 2:
        raise ValueError(
            f"the runs varied {law.design.varied}: which size is best for a budget needs runs "
            "that vary the size and the tokens apart"
        )
    product = flops / law.runs.flops_per_product
    middle = 0.5 * math.log(product)
    sizes = np.exp(middle + np.linspace(-9, 9, 721))
    logs = law.log_losses(sizes, product / sizes)
    at = logs.argmin(1)
    inner = np.clip(at, 1, len(sizes) - 2)
    left, here, right = (logs[np.arange(len(logs)), inner + i] for i in (-1, 0, 1))
    shift = 0.5 * (left - right) / np.maximum(left - 2 * here + right, 1e-15)
    best = np.log(sizes)[inner] + np.clip(shift, -1, 1) * (math.log(sizes[1] / sizes[0]))
    best = np.where(at == inner, best, np.log(sizes)[at])
    mean = law.mean_loss(sizes, product / sizes)
    chosen = int(mean.argmin())
    if chosen in (0, len(sizes) - 1):
        raise ValueError("by this law no finite size is best: one of its two terms is 0")
    center = _parabola(np.log(sizes), np.log(mean), chosen)
    params = np.exp(best)
    size = math.exp(center)
    # The loss of the size that is planned, not of each draw's own best: that is what one will get.
    reached = law.loss(size, product / size)
    valley = []
    for times in (0.25, 0.5, 2.0, 4.0):
        there = law.log_losses(
            np.array([size, times * size]), np.array([product / size, product / size / times])
        )
        gap = _estimate(np.exp(there[:, 1]) - np.exp(there[:, 0]))
        loss = float(law.mean_loss(np.array([times * size]), np.array([product / size / times]))[0])
        valley.append(
            Valley(
                times=times,
                params=times * size,
                tokens=product / size / times,
                loss=loss,
                gap=gap,
                compute=law.compute_for(size, product / size, loss),
            )
        )
    return BudgetOptimum(
        flops=flops,
        params=_estimate(params, size),
        tokens=_estimate(product / params, product / size),
        loss=reached,
        valley=tuple(valley),
    )


def _parabola(grid: Array, values: Array, at: int) -> float:
    left, here, right = values[at - 1 : at + 2]
    return float(grid[at] + 0.5 * (left - right) / (left - 2 * here + right) * (grid[1] - grid[0]))


def strays(law: LossLaw) -> list[int]:
    """Runs that lie far off the law: their places."""
    best = law.likeliest.best
    off = residuals(best, law.runs.params, law.runs.tokens, law.runs.loss)[0]
    width = max(spread(off, len(best.form.parameters)), 1e-6)
    return [int(i) for i in np.flatnonzero(np.abs(off) > STRAY * width)]


def right(law: LossLaw) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """All runs [runs] but strays, where these are so few that they went wrong, each by itself."""
    usable, wrong = np.ones(len(law.runs), bool), strays(law)
    if len(wrong) <= RARE * len(usable):
        usable[wrong] = False
    return usable


def settled(law: LossLaw, target: Estimate) -> bool:
    """Whether the interval at a target says something of it.

    Half of it is at most half of what is still to be gained over the best run, or one per cent of
    the loss: else any loss from "no better than today" on would be as good a prediction.
    """
    half = 0.5 * (target.high - target.low)
    gain = float(law.runs.loss.min()) - target.value
    return half <= max(GAP * abs(gain), NARROW * target.value)


def _huber(off: Array, threshold: float) -> Array:
    size = np.abs(off)
    inner = np.minimum(size, threshold)
    losses: Array = 0.5 * inner**2 + threshold * (size - inner)
    return losses


def _stretched(drawn: Array, stretch: float) -> Array:
    """Positive draws pulled from their middle, on the log scale."""
    logs = np.log(drawn)
    middle = np.median(logs)
    stretched: Array = np.exp(middle + stretch * (logs - middle))
    return stretched


def _estimate(drawn: Array, value: float | None = None) -> Estimate:
    low, high = _ends(drawn)
    middle = float(np.median(drawn)) if value is None else float(value)
    # A robust best and the middle of its draws differ a little: the value lies in its interval.
    return Estimate(value=middle, low=min(float(low), middle), high=max(float(high), middle))


def _ends(drawn: Array) -> Array:
    tail = 50 * (1 - LEVEL)
    # "nearest" takes draws themselves: between infinite ones nothing can be interpolated.
    ends: Array = np.percentile(drawn, [tail, 100 - tail], axis=0, method="nearest")
    return ends


def _middle(values: Array) -> float:
    return float(np.exp(np.log(values).mean()))
