"""Is a run on its band? One CUSUM of its losses, and its end by scaling the band.

Of the run's log losses z over the stretches of its band, with the band's mean m and covariance
C = L L', the innovations

    e = L^-1 (z - m)

are independent if the run is on the band: e_i is what stretch i has that those before it did not
tell, in standard deviations. Its scale is known by the ladder's seeds and the stretches so far
alone; by Student's distribution, of as many degrees of freedom, e_i becomes a normal number x_i.

The CUSUM of both sides (Page, 1954) is the log likelihood ratio of a shift by one standard
deviation, from its likeliest begin on:

    S_i = max(0, S_i-1 + x_i - 1/2)     above,      max(0, S_i-1 - x_i - 1/2)     below.

exp(S) is at most the sum of these ratios over all begins (Shiryaev and Roberts); that sum less the
number of stretches is a martingale. So the chance that S ever reaches log(2 n / alarm) in n
stretches is at most `alarm` on the band (Doob), however often one looks. It steps over its limit,
which lowers the one of normal steps by 1.166 (Siegmund, 1985) at half that chance.

The end is the band's, scaled by what was seen of the run: its normal distribution given z. Behind
an alarm a shift of any size since its begin is part of the covariance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import ndtri, stdtr, stdtrit

from sweeper.errors import ConfigError, Keyword, spelled
from sweeper.evidence.follow.reading import (
    NOT_NUMBERS,
    Event,
    Expected,
    Places,
    Readings,
    Stretches,
    check_followed,
    is_a,
    number_of,
    read_prediction,
)
from sweeper.evidence.predict.band import Band
from sweeper.evidence.predict.decision import Prediction
from sweeper.evidence.predict.earlier import Expectation
from sweeper.stats.estimate import ZERO, Array, Estimate

EARLY, ON, ABOVE, BELOW = "not enough yet", "on the band", "above", "below"
DIVERGED, UNKNOWN, SILENT, RATE = "diverged", "cannot say", "no loss", "rate jumped"
OFF = (ABOVE, BELOW, DIVERGED, SILENT, RATE)
CLIPPED = 3.0
"""Standard deviations that a stretch counts at most: tested on tails of Student's t of 3."""
OVERSHOOT = 1.166
"""By theory: twice the mean by which a sum of normal steps passes its limit."""
MOST_FREEDOM = 20
"""Degrees of freedom of the scale by the ladder, at most: tested on rare logs, noisier than it."""
LR_JUMP = 2.0
"""Times the rate before it: behind the warm-up no schedule rises by more between two readings."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is seen of a run.

    `since`: the step at which it left the band; None on it. `gap`: how far the last stretch lies
    above the band's middle, as a share of the loss. `forecast` is that of the end, with its 95 %
    interval, and at the end what was read; `compute` what that is worth: how many times the run's
    compute would give it on course. `evidence`: the highest CUSUM so far, an alarm from `alarm_at`
    on.
    """

    state: str
    step: int
    steps: int
    since: int | None
    gap: float
    forecast: Estimate
    predicted: Estimate
    compute: Estimate
    evidence: float
    alarm_at: float
    reach: tuple[float, float] = (0.0, math.inf)
    """Between which the law says what compute gives; an end of it is a bound."""
    reasons: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    ended: bool = False
    end: float | None = None
    """The mean of the last `averaged` losses; None where the prediction is of a held-out loss."""
    averaged: int = 0
    end_is: str = ""
    last: float | None = None

    @property
    def off(self) -> bool:
        """Whether the run is off the band."""
        return self.state in OFF


class BandModel:
    """What a band says of a run: its stretches' mean and covariance, and those of its end."""

    def __init__(self, band: Band, level: tuple[float, float], alarm: float) -> None:
        """`level` is the predicted log end with its standard deviation."""
        count = len(band)
        self.first = min(math.ceil(band.warmup * count), count - 1)
        self.alarm_at = math.log(2 * (count - self.first) / alarm) - OVERSHOOT
        self.smooth, self.white = band.covariance(level[1])
        self.rough = (1 + band.leverage) * np.array(band.rough) ** 2
        # The band is of training losses, the level of the objective: `gap` lies between the two.
        self.mean = level[0] - band.gap + np.array(band.mean)
        self.end_mean, self.weights = level[0], band.end_weights
        self.gap_variance = band.gap_deviation**2
        self.freedom = min(band.freedom, MOST_FREEDOM)
        # A stretch of the ladder is a mean of so many steps; one of a rare log, of fewer.
        self.usual = 1.0 if band.places else band.steps / count
        # Of a ladder of rare logs a reading stands for the stretches behind it.
        is_stairs = np.mean(np.abs(np.diff(self.mean)) < 1e-9) > 0.25
        self.places = None if is_stairs else band.middles

    def off(self, seen: Stretches, steps: int) -> Array:
        """How far stretches lie above the band's middle, in log loss, at where they were read."""
        middle = self.mean[seen.at]
        if self.places is not None:
            middle = np.interp(seen.middles / steps, self.places, self.mean)
        return np.log(seen.losses) - middle


@dataclass(frozen=True)
class Judged:
    """The CUSUM, where an alarm began and its side; the log `end` and its 95 % half width."""

    sums: Array
    since: int | None
    is_above: bool
    end: float
    half: float


def judged(course: BandModel, seen: Stretches, off: Array) -> Judged:
    """What the stretches of a run say of it, those of the warm-up left out."""
    tested = seen.at >= course.first
    at, counts, off = seen.at[tested], seen.counts[tested], off[tested]
    covariance, to_end, end_variance = _covariance(course, at, counts)
    errors, scales = innovations(covariance, off, course.freedom)
    sums, since, is_above = cusum(errors / scales, course)
    if since is not None:
        # A shift of any size since then, which the end has too.
        shift = (np.arange(len(off)) >= since).astype(float)
        covariance, to_end = covariance + np.outer(shift, shift), to_end + shift
        end_variance += 1.0
        errors, scales = innovations(covariance, off, course.freedom)
    scale = math.sqrt((course.freedom + errors @ errors) / (course.freedom + len(off)))
    solved = solve_triangular(np.linalg.cholesky(covariance), to_end, lower=True)
    rest = max(end_variance - float(solved @ solved), 1e-12)
    # Never less than the band's own: a run that is quiet so far may not stay so.
    width = float(stdtrit(course.freedom + len(off), 0.975)) * max(scale, 1.0)
    end = course.end_mean + float(solved @ errors)
    return Judged(sums, since, is_above, end, width * math.sqrt(rest + course.gap_variance))


def _covariance(course: BandModel, at: Places, counts: Array) -> tuple[Array, Array, float]:
    """Covariances of stretches' log losses, of these with the log end, and its variance."""
    noise = course.white + course.rough
    own = course.white[at] * np.maximum(course.usual / counts, 1.0) + course.rough[at]
    covariance = course.smooth[np.ix_(at, at)] + np.diag(own)
    to_end = (course.smooth @ course.weights)[at] + own * course.weights[at]
    end = course.weights @ (course.smooth + np.diag(noise)) @ course.weights
    return covariance, to_end, float(end)


def innovations(covariance: Array, off: Array, freedom: int) -> tuple[Array, Array]:
    """What each stretch has that those before it did not tell, and its scale, known before it."""
    lower, count = np.linalg.cholesky(covariance), len(off)
    errors, scales = np.zeros(count), np.zeros(count)
    squares = float(freedom)
    for k in range(count):
        scales[k] = scale = math.sqrt(squares / (freedom + k))
        error = float(off[k] - lower[k, :k] @ errors[:k]) / float(lower[k, k])
        # Those that come after see the clipped one: a spike is no news of the stretches behind it.
        errors[k] = min(max(error, -CLIPPED * scale), CLIPPED * scale)
        squares += errors[k] ** 2
    return errors, scales


def cusum(scaled: Array, course: BandModel) -> tuple[Array, int | None, bool]:
    """The larger of both sides' sums [stretches]; the begin of the one that raised an alarm."""
    freedom = course.freedom + np.arange(len(scaled))
    normal = ndtri(stdtr(freedom, scaled))
    sums, begins, highest = [0.0, 0.0], [0, 0], []
    since, is_above = None, False
    for place, x in enumerate(normal.tolist()):
        for side, sign in enumerate((1, -1)):
            if sums[side] == 0:
                begins[side] = place
            sums[side] = max(0.0, sums[side] + sign * x - 0.5)
            # The sum may fall again; an alarm that was raised stays.
            if since is None and sums[side] >= course.alarm_at:
                since, is_above = begins[side], side == 0
        highest.append(max(sums))
    return np.array(highest), since, is_above


def follow(
    prediction: str | PathLike[str] | Prediction, *, steps: int | None = None, alarm: float = 0.01
) -> Watch:
    """A watch over a run of a training loop: `watch.update(step, loss)` after every step.

    `prediction` is the `prediction.json` of a study, or what it holds. `steps` of the
    run, by default the prediction's tokens at the ladder's batch. `alarm`: the chance that a run
    which is on course is ever said to be off. BadInput and ConfigError for what cannot be followed.
    """
    followed = prediction if isinstance(prediction, Prediction) else read_prediction(prediction)
    return Watch(followed, steps=steps, alarm=alarm)


class Watch:
    """See `follow`."""

    def __init__(
        self, prediction: Expected, *, steps: int | None = None, alarm: float = 0.01
    ) -> None:
        self.prediction, self.band = prediction, check_followed(prediction)
        if not (is_a(Real, alarm) and 0 < alarm < 0.5):
            raise ConfigError(Keyword("alarm"), alarm, "a rate between 0 and 0.5, such as 0.01")
        # Fewer steps than stretches would leave some without a reading for good.
        if steps is not None and not (is_a(Integral, steps) and steps >= len(self.band)):
            least = f"at least {len(self.band)}, as many as the band has stretches"
            raise ConfigError(Keyword("steps"), steps, f"a whole number, {least}")
        self.steps, self.alarm = steps or self.band.steps, alarm
        predicted = prediction.prediction
        assert predicted is not None
        self.predicted = predicted.estimate
        # A prediction that is next to certain must still leave the covariance an inverse.
        deviation = max((math.log(predicted.high) - math.log(predicted.low)) / (2 * 1.96), 1e-6)
        self.course = BandModel(self.band, (math.log(predicted.loss), deviation), alarm)
        self.readings = Readings(self.steps, self.band.edges)
        is_last = isinstance(prediction, Expectation) and prediction.is_last
        self._is_held_out = self.band.gap_deviation > 0 and not is_last
        self._window = 0.0 if is_last else self.band.window
        self._end_is = f"the mean loss of its last {100 * self._window:.3g} %"
        if is_last or self._is_held_out:
            self._end_is = "its last loss" if is_last else "its held-out loss at the end"
        self.missing = 0
        """Updates that gave None for the loss, or no number."""
        self.silent = False
        """Whether the run's log goes on without a loss behind the last one."""
        self._last_rate = (0, 0.0)
        self._jumped: int | None = None
        self.seen = self.look()

    def update(self, step: int, loss: float | None, lr: float | None = None) -> Seen:
        """Take the loss of a step, and its learning rate if known; what is seen of the run.

        Steps may be left out, and may go back: what is behind is then forgotten. A loss of None is
        passed over, and counted in `missing`. ConfigError for a text, and what else is no number,
        before anything was read: a loop that passes such is wrong from its first step on. Later it
        is passed over too, as a run of weeks must not end by its watch.
        """
        try:
            at, rate = int(number_of("step", step)), None if lr is None else number_of("lr", lr)
            value = None if loss is None else number_of("loss", loss)
        except ConfigError:
            # At the first reading nothing is lost by an error, and later a run of weeks is.
            if not self.readings.at:
                raise
            value = None
        if value is None:
            self.missing += 1
            return self.seen
        if self.readings.trouble:
            return self.seen
        try:
            if rate is not None:
                self.rate(at, rate)
            # A look costs a forecast: it is due as a stretch ends, and at the end.
            if self.readings.take(at, value) or at >= self.steps - 1:
                self.seen = self.look()
        except Exception as error:  # a run of weeks must not end by its watch
            self.readings.trouble = (f"the watch failed ({type(error).__name__}: {error})",)
            self.seen = replace(self.seen, state=UNKNOWN)
        return self.seen

    def finish(self) -> Seen:
        """The run is over, or there is no more of it to read: its last stretch is counted too."""
        self.seen = self.look(whole=True)
        return self.seen

    @property
    def error(self) -> str:
        """Why nothing can be said of what was given; empty where something can."""
        return spelled(self.readings.trouble)

    def rate(self, step: int, lr: float) -> None:
        """Take the learning rate of a step: a jump of it is seen, whatever its schedule is."""
        (last, before), self._last_rate = self._last_rate, (step, lr)
        if step < last:
            # The checkpoint's rate is not that of the last reading: no jump lies between the two.
            before = 0.0
            if self._jumped is not None and self._jumped >= step:
                self._jumped = None
        tested = (step + 0.5) / self.steps >= self.band.warmup + 2 / len(self.band)
        if tested and self._jumped is None and lr > LR_JUMP * before > 0:
            self._jumped = step
            text = f"the learning rate went from {before:.3g} to {lr:.3g}"
            self.readings.note(RATE, step, step, text)
            self.seen = self.look()

    def look(self, *, whole: bool = False) -> Seen:
        """What is seen at this moment; `update` gives what was seen at the last stretch's end.

        With `whole`, the last stretch counts where half of it is there.
        """
        readings, course = self.readings, self.course
        stretches = readings.stretches(whole=whole)
        off = course.off(stretches, self.steps)
        judgement = judged(course, stretches, off)
        forecast = self.predicted
        if len(judgement.sums):
            ends = (judgement.end, judgement.end - judgement.half, judgement.end + judgement.half)
            value, low, high = (math.exp(min(end, 700.0)) for end in ends)
            forecast = Estimate(value=value, low=low, high=high)
        state, since = self._state(stretches, judgement)
        step = int(readings.at[-1]) if readings.at else 0
        losses = readings.last(self._window) if readings.ended else np.empty(0)
        end = None if self._is_held_out or not len(losses) else float(losses.mean())
        if end is not None:
            forecast = Estimate(value=end, low=end, high=end)
        compute = ZERO
        # A run that has diverged or is silent will not come to the end that is forecast.
        if state not in (DIVERGED, SILENT):
            ends = forecast.value, forecast.high, forecast.low
            value, low, high = (worth(self.prediction, loss) for loss in ends)
            compute = Estimate(value=value, low=low, high=high)
        return Seen(
            state=state,
            step=step,
            steps=self.steps,
            since=since,
            gap=math.expm1(off[-1]) if len(judgement.sums) else 0.0,
            forecast=forecast,
            predicted=self.predicted,
            compute=compute,
            evidence=float(judgement.sums.max(initial=0.0)),
            alarm_at=course.alarm_at,
            reach=(worth(self.prediction, math.inf), worth(self.prediction, math.ulp(0.0))),
            reasons=self.prediction.reasons,
            events=tuple(readings.events),
            ended=readings.ended,
            end=end,
            averaged=len(losses),
            end_is=self._end_is,
            last=float(readings.losses[-1]) if readings.at else None,
        )

    def _state(self, stretches: Stretches, judgement: Judged) -> tuple[str, int | None]:
        readings, tested = self.readings, stretches.at[stretches.at >= self.course.first]
        if readings.trouble:
            return UNKNOWN, None
        if len(readings.bad) >= NOT_NUMBERS:
            return DIVERGED, readings.bad[0]
        # Worse than at its first reading: it learns no more.
        if len(tested) and stretches.losses[-1] > readings.losses[0]:
            return DIVERGED, int(readings.begins[tested[-1]])
        if self.silent and readings.at:
            return SILENT, int(readings.at[-1])
        if judgement.since is not None:
            begin = int(readings.begins[tested[judgement.since]])
            return ABOVE if judgement.is_above else BELOW, begin
        if self._jumped is not None:
            return RATE, self._jumped
        return ON if len(tested) else EARLY, None


def worth(prediction: Expected, loss: float) -> float:
    """The share of the target's compute, or its bound, at which the law has `loss`; or nan."""
    if isinstance(prediction, Expectation):
        return math.nan
    points = [(p.loss.value, p.flops) for p in prediction.curve if p.loss.value > 0]
    predicted = prediction.prediction
    if predicted is None or prediction.aim is None or len(points) < 2 or loss <= 0:
        return math.nan
    # Falling losses over log compute; beyond its ends the law says nothing.
    losses = np.minimum.accumulate(np.log([p[0] for p in points]))
    computes = np.log([p[1] for p in points])
    keep = np.concatenate([[True], np.diff(losses) < 0])
    x, y = -losses[keep], computes[keep]
    if len(x) < 2:
        return math.nan

    there, expected = np.interp([-math.log(loss), -math.log(predicted.loss)], x, y)
    return math.exp(float(there - expected))
