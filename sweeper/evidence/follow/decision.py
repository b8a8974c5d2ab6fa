"""A run as it goes: its losses taken step by step, and what is seen of them so far."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.errors import BadInput, Call, ConfigError, Keyword, Text, spelled
from sweeper.evidence.follow.sequential import ChangeFinding, Sequence
from sweeper.evidence.predict.band import Band
from sweeper.evidence.predict.decision import Prediction
from sweeper.evidence.predict.earlier import Expectation
from sweeper.files import RECORD_ERRORS, parse_record, read_bounded
from sweeper.records import from_json
from sweeper.schedule import OWN
from sweeper.stats.estimate import ZERO, Estimate

EARLY, ON, ABOVE, BELOW = "not enough yet", "on the band", "above", "below"
SPIKE, SPIKES, DIVERGED, UNKNOWN = "spike", "spikes", "diverged", "cannot say"
SILENT, RATE = "no loss", "rate jumped"
OFF = (ABOVE, BELOW, SPIKES, DIVERGED, SILENT, RATE)
LEAST = 3
"""Stretches after the warm-up before which nothing is said."""
SPIKE_SIGMAS, BACK_SIGMAS, LEAST_SPIKE = 6.0, 3.0, 0.02
"""A reading this far above the level begins a spike, this near it ends; in log loss at least."""
LEVEL_RATE, NOISE_RATE, FIRST_READINGS = 0.1, 0.03, 20
SPIKE_SHARE, SPIKE_BEGINS = 0.3, 10
"""Of the rate of false alarms that is spent on the number of spikes; begins that are tried."""
SPIKE_RATE, SPIKE_FACTORS = 1e-3, (10.0, 50.0)
"""Spikes a reading that a run on course has at most, and how many times that the test looks for."""
NOT_A_NUMBER, NOT_NUMBERS = "not a number", 3
"""An event's kind, and how many such readings in a row make a run diverged."""
BACK_JUMPS, BACK_SHARE = 20, 0.02
"""Steps that go back, in number and of all readings: more come from two writers."""
LARGEST = 1e300
"""No loss is as large."""
LR_JUMP = 2.0
"""Times the rate before it: behind the warm-up no schedule rises by more between two readings."""
LR_OFF, LR_READINGS = 0.1, 5
"""Of the peak: by how much a learning rate may differ from the ladder's, and how often in a row."""
MOST_EVENTS = 200


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that befell the run between two steps, in words."""

    kind: str
    step: int
    until: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Hint:
    """What usually causes such a picture, and how much of the evidence is for it, from 0 to 1."""

    name: str
    share: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is seen of a run.

    `since`: the step at which it left the band; None on it. `gap`: how far the last stretch lies
    above the band's middle, as a share of the loss. `forecast` is that of the end, with its 95 %
    interval, `compute` what that is worth: how many times the run's compute would give it on
    course. `evidence`: the test's, an alarm from `alarm_at` on.
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
    """Why the prediction itself cannot say yet."""
    hints: tuple[Hint, ...] = ()
    events: tuple[Event, ...] = ()
    ended: bool = False
    end: float | None = None

    @property
    def off(self) -> bool:
        """Whether the run is off the band."""
        return self.state in OFF


def read_prediction(path: str | PathLike[str]) -> Prediction:
    """The prediction in a file; BadInput where it is none, or says nothing of the way there."""
    try:
        record = parse_record(read_bounded(Path(path)))
        prediction = from_json(Prediction, record)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}: ", Call("predict"), " writes it") from error
    except RECORD_ERRORS as error:
        raise BadInput(f"{path} is no prediction of ", Call("predict"), f": {error}") from error
    check_followed(prediction, str(path))
    return prediction


def check_followed(prediction: Prediction | Expectation, name: str = "the prediction") -> Band:
    """Its band; BadInput where it has none."""
    if prediction.prediction is None:
        raise BadInput(
            f"{name} says nothing of a run: give ", Call("predict"), " its size and tokens"
        )
    if prediction.band is None:
        why = prediction.no_band or "it was made from a table, which has no training curves"
        raise BadInput(f"{name} has no band to follow: {why}")
    return prediction.band


def follow(
    prediction: str | PathLike[str] | Prediction,
    *,
    steps: int | None = None,
    alarm: float = 0.01,
    spike_steps: int | None = None,
) -> Watch:
    """A watch over a run of a training loop: `watch.update(step, loss)` after every step.

    `prediction` is the `prediction.json` of a study, or what it holds. `steps` of the
    run, by default the prediction's tokens at the ladder's batch. `alarm`: the chance that a run
    which is on course is ever said to be off. A spike returns within `spike_steps`, by default a
    hundredth of the run. BadInput and ConfigError for what cannot be followed.
    """
    followed = prediction if isinstance(prediction, Prediction) else read_prediction(prediction)
    return Watch(followed, steps=steps, alarm=alarm, spike_steps=spike_steps)


def _is_real(value: object) -> bool:
    # Numbers of numpy and torch's own are no `float`, and are real.
    return isinstance(value, Real)


def _is_whole(value: object) -> bool:
    # True is a whole number to Python, and a mistake here.
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(name: str, value: Any) -> float:
    """A number, or what holds one, such as a tensor; ConfigError for a text and the like."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
        # A step that is none cannot be placed; a loss that is none is a reading, of divergence.
        if name == "step" and not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(name, value, "a number, as in watch.update(step, loss.item())") from error
    return number


@dataclass
class _Level:
    """A running level of log losses and their noise, by which a spike is told."""

    level: float = 0.0
    variance: float = 0.0
    count: int = 0
    spike: int | None = None
    top: float = 0.0


@dataclass
class _Stretch:
    """Readings within one stretch."""

    index: int
    total: float = 0.0
    count: int = 0
    squares: float = 0.0
    """Of differences from one reading to the next."""
    differences: int = 0
    spikes: int = 0
    spiked: float = 0.0
    """The sum of what lies in spikes, of as many readings."""
    spiked_count: int = 0
    places: int = 0
    """The sum of the steps of what `total` sums."""
    first: int = 0
    """The place of its first reading."""
    level: _Level = field(default_factory=_Level)
    """As it was before that."""


class Watch:
    """See `follow`."""

    def __init__(
        self,
        prediction: Prediction | Expectation,
        *,
        steps: int | None = None,
        alarm: float = 0.01,
        spike_steps: int | None = None,
    ) -> None:
        """Nothing is seen yet."""
        self.prediction, self.band = prediction, check_followed(prediction)
        if not (_is_real(alarm) and 0 < alarm < 0.5):
            raise ConfigError(Keyword("alarm"), alarm, "a rate between 0 and 0.5, such as 0.01")
        # Fewer steps than stretches would leave some without a reading for good.
        if steps is not None and not (_is_whole(steps) and steps >= len(self.band)):
            least = f"at least {len(self.band)}, as many as the band has stretches"
            raise ConfigError(Keyword("steps"), steps, f"a whole number, {least}")
        self.steps = steps or self.band.steps
        self.begins = np.round(self.band.edges * self.steps).astype(int).tolist()
        if spike_steps is not None and not (_is_whole(spike_steps) and spike_steps >= 1):
            raise ConfigError(Keyword("spike_steps"), spike_steps, "a whole number, at least 1")
        self.spike_steps = spike_steps or max(10, self.steps // len(self.band))
        # The rate of false alarms is shared: drifts and spikes are two tests, each with its own
        # limit (Ville's inequality), and together they err by `alarm` at most.
        self.drift_at = math.log(1 / (alarm * (1 - SPIKE_SHARE)))
        self.spikes_at = math.log(1 / (alarm * SPIKE_SHARE))
        predicted = prediction.prediction
        assert predicted is not None
        self.predicted = Estimate(value=predicted.loss, low=predicted.low, high=predicted.high)
        # A prediction that is next to certain must still leave the covariance an inverse.
        deviation = max((math.log(predicted.high) - math.log(predicted.low)) / (2 * 1.96), 1e-6)
        self.level = math.log(predicted.loss), deviation
        self.sequence = Sequence(self.band, self.level)
        self._middles = self.band.middles * self.steps
        # The ladder's own log was as rare: its readings stand for the stretches behind them.
        # Stretches of equal means: then the band is read as steps, and not along lines between
        # middles.
        self._stairs = float(np.mean(np.abs(np.diff(self.sequence.mean)) < 1e-9)) > 0.25
        self.at, self.losses = array("q"), array("d")
        self.stretches: list[_Stretch] = []
        self.events: list[Event] = []
        self.forecasts: list[tuple[int, Estimate]] = []
        self.trouble: Text = ()
        """Why nothing can be said of what was given: for a command, bad input."""
        self.missing = 0
        """Updates that gave None for the loss, or no number."""
        self._back = self._not_numbers = self._lr_off = self._pairs = 0
        self._trend = self._product = self._square = self._own_before = 0.0
        self._lr_peak = self._lr_before = 0.0
        self._jumped: int | None = None
        self.silent = False
        """Whether the run's log goes on without a loss behind the last one."""
        self._running = _Level()
        self._spiky: int | None = None
        self.seen = self.look()

    def update(self, step: int, loss: float | None, lr: float | None = None) -> Seen:
        """Take the loss of a step, and its learning rate if known; what is seen of the run.

        Steps may be left out, and may go back: what is behind is then forgotten. A loss of None is
        passed over, and counted in `missing`. ConfigError for a text, and what else is no number,
        before anything was read: a loop that passes such is wrong from its first step on. Later it
        is passed over too, as a run of weeks must not end by its watch.
        """
        try:
            at, rate = int(_number("step", step)), None if lr is None else _number("lr", lr)
            value = None if loss is None else _number("loss", loss)
        except ConfigError:
            # At the first reading nothing is lost by an error, and later a run of weeks is.
            if not self.at:
                raise
            value = None
        if value is None:
            self.missing += 1
            return self.seen
        try:
            self._take(at, value, rate)
        except Exception as error:  # a run of weeks must not end by its watch
            self._refuse(f"the watch failed ({type(error).__name__}: {error})")
        return self.seen

    def finish(self) -> Seen:
        """The run is over, or there is no more of it to read: its last stretch is counted too."""
        if self.stretches and not self.trouble:
            last = self.stretches[-1]
            begin, end = self._edges(last.index)
            # Of a last stretch of which half is missing the mean is no stretch's.
            if self.at[-1] >= begin + (end - begin) / 2:
                self._close(last)
            self.seen = self.look()
        return self.seen

    @property
    def error(self) -> str:
        """Why nothing can be said of what was given; empty where something can."""
        return spelled(self.trouble)

    def _refuse(self, *why: str | Keyword) -> None:
        self.trouble, self.seen = why, replace(self.seen, state=UNKNOWN)

    # Readings.

    def _take(self, step: int, loss: float, lr: float | None) -> None:
        if self.trouble:
            return
        if step < 0 or step > self.steps * (1 + 1 / len(self.band)):
            self._refuse(
                f"it reports step {step:,} of {self.steps:,}: give the steps of the run with ",
                Keyword("steps", ...),
                ", and let its log count steps",
            )
            return
        if self.at and step < self.at[-1]:
            self._resume(step)
            if self.trouble:
                return
        if lr is not None:
            self._check_lr(step, lr)
        if not math.isfinite(loss) or loss <= 0:
            self._not_numbers += 1
            if self._not_numbers == 1:
                self._event(NOT_A_NUMBER, step, step, f"the loss is {loss:g}")
            elif (place := self._last(NOT_A_NUMBER)) is not None:
                self.events[place] = replace(self.events[place], until=step)
            # One such reading is a logger's slip; some in a row are a run that no longer trains.
            if self._not_numbers >= NOT_NUMBERS:
                self.seen = self.look()
            return
        self._not_numbers = 0
        log = math.log(loss)
        index = min(bisect_right(self.begins, step), len(self.band)) - 1
        begins = not self.stretches or self.stretches[-1].index != index
        if begins:
            if self.stretches:
                self._close(self.stretches[-1])
                last = self.at[-1]
                # An empty stretch alone is no gap: a log of every tenth step may skip one.
                if index > self.stretches[-1].index + 1 and step - last > self._longest():
                    self._event("gap", last, step, f"no loss between steps {last:,} and {step:,}")
            # The level before its first reading: a stretch that is read again begins with it.
            self.stretches.append(_Stretch(index, first=len(self.at), level=replace(self._running)))
        self.at.append(step)
        self.losses.append(loss)
        before = self._running.spike
        self._spike(step, log)
        self._add(step, loss)
        # A look costs a forecast: it is due as a stretch ends, or a spike begins or ends.
        changed = (self._running.spike is None) != (before is None)
        if begins or changed or step >= self.steps - 1:
            self.seen = self.look()

    def _longest(self) -> float:
        """Steps between two readings beyond which some are missing, by the log's own cadence."""
        lately = np.diff(self.at[-LATELY:])
        lately = lately[lately > 0]
        if len(lately) < LEAST_INTERVALS:
            return math.inf
        # By the last one too: a log that becomes rarer has one gap, not one a reading.
        return GAP_INTERVALS * max(float(np.median(lately)), float(lately[-1]))

    def _expected(self, place: float) -> float:
        """The band's middle, log loss, at a place between two steps."""
        mean = self.sequence.mean
        if self._stairs:
            return float(mean[min(bisect_right(self.begins, place), len(mean)) - 1])
        return float(np.interp(place, self._middles, mean))

    def _add(self, step: int, loss: float) -> None:
        stretch = self.stretches[-1]
        if self._running.spike is not None:
            stretch.spiked += loss  # a spike is no drift; where it stays, what follows is
            stretch.spiked_count += 1
            return
        stretch.total += loss
        stretch.count += 1
        stretch.places += step
        if len(self.losses) > 1:
            # Neighbours differ by noise alone, but for the fall that the band has between them: in
            # a log of every tenth step that is more than the noise.
            difference = math.log(loss) - math.log(self.losses[-2])
            difference -= self._expected(step + 0.5) - self._expected(self.at[-2] + 0.5)
            # Cut off, as a spike would count for noise, and hide what comes after it.
            stretch.squares += min(difference**2, self._most_squared())
            stretch.differences += 1
            # Before, a loss of little noise falls by more than it, and faster than the band says.
            if stretch.index >= self.sequence.first:
                self._smoothness(difference)

    def _smoothness(self, difference: float) -> None:
        """Refuse losses that somebody smoothed: they lag behind, and hide their noise.

        Differences of independent readings have a correlation of -1/2 with the next one, those of a
        running mean of weight b on what was before, -(1 - b)/2.
        """
        # Differences are cut off alike: one spike would be two large products of opposite signs.
        size = math.sqrt(self._most_squared())
        difference = min(max(difference, -size), size)
        # The level's own fall is no noise: what differs from the differences of late.
        self._trend += (difference - self._trend) / min(self._pairs + 1, SMOOTH_READINGS)
        own = difference - self._trend
        self._pairs += 1
        rate = 1 / min(self._pairs, SMOOTH_READINGS)
        self._product += rate * (own * self._own_before - self._product)
        self._square += rate * (own**2 - self._square)
        self._own_before = own
        if self._pairs >= SMOOTH_READINGS and self._product > SMOOTHED * self._square:
            self._refuse(
                "its losses look smoothed (each is mostly the one before it): a running mean lags "
                "behind the band and hides the noise. Log the loss of each step, or plain means of "
                "several"
            )

    def _most_squared(self) -> float:
        # Until a noise is known nothing is cut: its first readings may differ by any amount.
        running = self._running
        return 2 * CLIPPED_NOISE * running.variance if running.count > FIRST_READINGS else 1.0

    def _spike(self, step: int, log: float) -> None:
        """Whether a reading lies so far above its level that it begins, is in, or ends a spike."""
        running = self._running
        sigma = math.sqrt(running.variance)
        off = log - running.level
        is_known = running.count >= FIRST_READINGS
        if running.spike is not None:
            running.top = max(running.top, log)
            if off < max(BACK_SIGMAS * sigma, LEAST_SPIKE / 2):
                last = max(self.at[-2] if len(self.at) > 1 else step, running.spike)
                text = f"up to {math.exp(running.top):.4g}, from {math.exp(running.level):.4g}"
                self._event(SPIKE, running.spike, last, text)
                running.spike = None
            elif step - running.spike >= self.spike_steps:
                # No spike: the run goes on up there. The test of drifts sees it.
                text = f"to {math.exp(log):.4g}, from {math.exp(running.level):.4g}, and stays"
                self._event("jump", running.spike, step, text)
                # The run goes on here: else every further reading would be a spike.
                running.spike, running.level, running.count = None, log, FIRST_READINGS
                return
            else:
                return
        elif is_known and off > max(SPIKE_SIGMAS * sigma, LEAST_SPIKE):
            running.spike, running.top = step, log
            self.stretches[-1].spikes += 1
            return
        running.count += 1
        if running.count == 1:
            running.level = log
            return
        rate = max(LEVEL_RATE, 1 / running.count)
        # Below a spike a reading may still be far off: it moves the level by three deviations.
        bounded = min(max(off, -3 * sigma), 3 * sigma) if is_known else off
        running.level += rate * bounded
        rate = max(NOISE_RATE, 1 / running.count)
        running.variance += rate * (bounded**2 - running.variance)

    def _resume(self, step: int) -> None:
        """Forget what lies at `step` and behind: the run went on from a checkpoint before it."""
        last = self.at[-1]
        self._back += 1
        # Both in number and in share: a short log with a few resumes is none of two writers.
        if self._back > BACK_JUMPS and self._back > BACK_SHARE * len(self.at):
            self._refuse(
                f"steps go back {self._back} times among {len(self.at):,} readings: two runs, or "
                "several ranks, write into it. Name one, as in ",
                Keyword("metric", "rank0.*loss (?P<loss>...)"),
            )
            return
        kept = bisect_left(self.at, step)
        what = "begun anew" if kept == 0 else "resumed"
        self._event(what, step, last, f"after step {last:,} comes step {step:,}")
        while self.stretches and self.stretches[-1].first >= kept:
            self._running = replace(self.stretches.pop().level)
        readings = [(s, x) for s, x in zip(self.at[:kept], self.losses[:kept], strict=True)]
        # The open stretch is read again: its sums cannot be taken apart.
        if self.stretches:
            open_stretch = self.stretches.pop()
            self._running = replace(open_stretch.level)
            del self.at[open_stretch.first :], self.losses[open_stretch.first :]
            closed = self.sequence.at[: self.sequence.seen]
            self.sequence.cut(int(np.searchsorted(closed, open_stretch.index)))
            for again, loss in readings[open_stretch.first :]:
                self._take(again, loss, None)
        else:
            del self.at[:], self.losses[:]
            self._running = _Level()
            self.sequence.cut(0)
        self.forecasts = [forecast for forecast in self.forecasts if forecast[0] < step]
        self._not_numbers = 0
        if self._spiky is not None and self._spiky >= step:
            self._spiky = None
        if self._jumped is not None and self._jumped >= step:
            self._jumped = None
        # The checkpoint's rate is not that of the last reading: no jump lies between the two.
        self._lr_before = 0.0

    def rate(self, step: int, lr: float) -> None:
        """Take the learning rate of a step, whatever its schedule is: a jump of it is seen."""
        before, self._lr_before = self._lr_before, lr
        tested = (step + 0.5) / self.steps >= self.band.warmup + 2 / len(self.band)
        if tested and self._jumped is None and lr > LR_JUMP * before > 0:
            self._jumped = step
            text = f"the learning rate went from {before:.3g} to {lr:.3g}"
            self._event(RATE, step, step, text)
            self.seen = self.look()

    def _check_lr(self, step: int, lr: float) -> None:
        self.rate(step, lr)
        if self.band.schedule == OWN or self._jumped is not None:
            return  # there is none to compare with
        self._lr_peak = max(self._lr_peak, lr)
        share = (step + 0.5) / self.steps
        if not self._lr_peak > 0 or share < self.band.warmup + 2 / len(self.band):
            return
        places = (np.arange(len(self.band)) + 0.5) / len(self.band)
        expected = float(np.interp(share, places, self.band.lr))
        # Of its own peak so far: the ladder's was that of another size.
        of_peak = lr / self._lr_peak
        self._lr_off = self._lr_off + 1 if abs(of_peak - expected) > LR_OFF else 0
        if self._lr_off >= LR_READINGS:
            self._refuse(
                f"its learning rate at step {step:,} of {self.steps:,} is {of_peak:.2f} of its "
                "peak, "
                f"the ladder's was {expected:.2f} there ({self.band.schedule}, warm-up "
                f"{self.band.warmup:.0%}): ".replace("%", " %")
                + "runs of another schedule have another band. Are ",
                Keyword("steps", ...),
                " right?",
            )

    def _event(self, kind: str, step: int, until: int, text: str) -> None:
        self.events.append(Event(kind=kind, step=step, until=until, text=text))
        del self.events[:-MOST_EVENTS]

    # Stretches.

    def _edges(self, index: int) -> tuple[int, int]:
        """Its first step, and the one behind its last."""
        return self.begins[index], self.begins[index + 1]

    def _close(self, stretch: _Stretch) -> None:
        """Test a stretch that is over."""
        sequence = self.sequence
        closed = sequence.at[: sequence.seen]
        if (
            not stretch.count
            or stretch.index < sequence.first
            or (len(closed) and closed[-1] >= stretch.index)
        ):
            return
        log = self._log_of(stretch)
        if stretch.spiked_count:
            # Where the ladder has the same batches in the same order it has the same spike.
            count = stretch.count + stretch.spiked_count
            whole = math.log((stretch.total + stretch.spiked) / count)
            before = float(sequence.off[sequence.seen - 1]) if sequence.seen else 0.0
            level = float(sequence.mean[stretch.index]) + before
            log = min(log, whole, key=lambda value: abs(value - level))
        sequence.add(stretch.index, log, self._white(stretch))
        forecast = sequence.forecast()
        width = STUDENT * forecast.deviation
        ends = (forecast.mean, forecast.mean - width, forecast.mean + width)
        value, low, high = (math.exp(min(end, 700.0)) for end in ends)
        step = min(self._edges(stretch.index)[1], self.steps)
        self.forecasts.append((step, Estimate(value=value, low=low, high=high)))
        if stretch.spikes and self._spiky is None and self._spike_evidence() >= self.spikes_at:
            # Spikes of the warm-up are told, and not tested.
            first = self._edges(self.sequence.first)[0]
            tested = (e.step for e in self.events if e.kind == SPIKE and e.step >= first)
            self._spiky = next(tested, step)

    def _log_of(self, stretch: _Stretch) -> float:
        """Log mean loss of a stretch, as if its readings lay around its middle.

        A log of every tenth step may have a stretch's first step alone, where the loss is higher.
        """
        place = stretch.places / stretch.count + 0.5
        moved = self._expected(place) - float(self.sequence.mean[stretch.index])
        return math.log(stretch.total / stretch.count) - moved

    def _white(self, stretch: _Stretch) -> float:
        """Variance of the noise in the mean of a stretch: by the run's own readings where known.

        The difference of two neighbours has twice the variance of one, and says nothing of their
        mean, so that the stretch's own may be used.
        """
        # Backwards until there are enough: noise changes over a run, and that of now is asked for.
        squares, differences = 0.0, 0
        for each in reversed(self.stretches):
            squares += each.squares
            differences += each.differences
            # Where the loss falls most, in the warm-up, runs differ in more than noise.
            enough = FEW_READINGS if each.index <= self.sequence.first else WHITE_READINGS
            if differences >= enough:
                break
        ladder = float(self.sequence.white[stretch.index])
        if not differences:
            return ladder
        # Of few readings the variance may be seen too small, which would be an alarm.
        variance = squares / differences / 2 * (1 + FEW_READINGS / differences) / stretch.count
        # Runs that see the same batches in the same order share their noise, and the band has it.
        if (seen := self.sequence.seen) > FIRST_READINGS:
            moves = np.diff(self.sequence.off[:seen]) ** 2
            # A mean, since a median would take noise with long tails for quiet; a jump is cut off.
            usual = float(np.median(moves)) / MEDIAN_SQUARE
            shared = float(np.minimum(moves, CLIPPED_NOISE * usual).mean()) / 2
            variance = min(variance, shared * (1 + FEW_READINGS / seen))
        return max(variance, ladder * (LEAST_WHITE if differences >= FIRST_READINGS else 1.0))

    def _spike_evidence(self) -> float:
        """Log of the martingale of the number of spikes, begins and rates averaged."""
        first = self.sequence.first
        tested = [s for s in self.stretches if s.index >= first]
        if not any(s.spikes for s in tested):
            return 0.0
        spikes = np.array([s.spikes for s in tested], float)
        others = np.array([s.count for s in tested], float) - spikes
        places = np.array([s.index for s in tested])
        # For each begin and factor a likelihood ratio; a mean of such is a martingale as well.
        begins = np.linspace(first, len(self.band), SPIKE_BEGINS, endpoint=False)
        after = places >= begins[:, None]
        logs = []
        for factor in SPIKE_FACTORS:
            gain = spikes * math.log(factor)
            # Readings without a spike speak against more of them, a little each.
            gain += others * math.log((1 - factor * SPIKE_RATE) / (1 - SPIKE_RATE))
            logs.append(after @ gain)
        joined = np.concatenate(logs)
        most = float(joined.max())
        return most + math.log(float(np.exp(joined - most).mean()))

    # What is seen.

    def look(self) -> Seen:
        """What is seen at this moment; `update` gives what was seen at the last stretch's end."""
        sequence = self.sequence
        step = int(self.at[-1]) if self.at else 0
        forecast = self.forecasts[-1][1] if self.forecasts else self.predicted
        evidence = sequence.evidence[-1] if sequence.evidence else 0.0
        ended = bool(self.at) and step >= self.steps - 1 - self._interval()
        state, since, finding = ON, None, None
        # Later states replace earlier ones: what is worse, or surer, is told in the end.
        if sequence.seen < LEAST:
            state = EARLY
        if self._running.spike is not None:
            state, since = SPIKE, self._running.spike
        # The evidence may fall again; an alarm that was raised stays.
        alarmed = next((k for k, e in enumerate(sequence.evidence) if e >= self.drift_at), None)
        if alarmed is not None:
            finding = sequence.finding()
            since = self._edges(finding.since)[0]
            # Where no size is found, by the side on which the stretch lay that raised it.
            above = finding.size >= 0 if finding.size else bool(sequence.raw[alarmed] > 0)
            state = ABOVE if above else BELOW
        elif self._spiky is not None:
            state, since = SPIKES, self._spiky
        if self._jumped is not None and state not in OFF:
            state, since = RATE, self._jumped
        if self.silent and self.at:
            state, since = SILENT, int(self.at[-1])
        if (begin := self._diverged()) is not None:
            state, since = DIVERGED, begin
        if self.trouble:
            state, since = UNKNOWN, None
        gap = 0.0
        if sequence.seen:
            last = int(sequence.at[sequence.seen - 1])
            closed = next(s for s in reversed(self.stretches) if s.index == last)
            gap = math.exp(self._log_of(closed) - float(sequence.mean[last])) - 1
        end = self._end() if ended else None
        end_estimate = forecast if end is None else Estimate(value=end, low=end, high=end)
        compute = ZERO
        # A run that has diverged or is silent will not come to the end that is forecast.
        if state not in (DIVERGED, SILENT):
            ends = (end_estimate.value, end_estimate.high, end_estimate.low)
            value, low, high = (worth(self.prediction, loss) for loss in ends)
            compute = Estimate(value=value, low=low, high=high)
        return Seen(
            state=state,
            step=step,
            steps=self.steps,
            since=since,
            gap=gap,
            forecast=forecast,
            predicted=self.predicted,
            compute=compute,
            evidence=evidence,
            alarm_at=self.drift_at,
            reach=(worth(self.prediction, LARGEST), worth(self.prediction, 1 / LARGEST)),
            reasons=self.prediction.reasons,
            hints=self._hints(state, finding),
            events=tuple(self.events),
            ended=ended,
            end=end,
        )

    def _interval(self) -> int:
        """Steps between the last two readings of different steps."""
        if len(self.at) < 2:
            return 0
        return max(int(self.at[-1] - self.at[-2]) - 1, 0)

    def _last(self, kind: str) -> int | None:
        """The place of the last event of a kind: others may have befallen the run since."""
        places = [i for i, event in enumerate(self.events) if event.kind == kind]
        return places[-1] if places else None

    def _diverged(self) -> int | None:
        if self._not_numbers >= NOT_NUMBERS:
            place = self._last(NOT_A_NUMBER)
            return int(self.at[-1]) if place is None else self.events[place].step
        closed = [s for s in self.stretches if s.index >= self.sequence.first and s.count]
        if closed and self.sequence.seen:
            # Worse than at its first reading, in a stretch that is half there: it learns no more.
            last, usual = closed[-1], len(self.at) / max(len(self.stretches), 1)
            if last.total / last.count > self.losses[0] and last.count * 2 >= usual:
                return int(self.at[last.first])
        return None

    def _end(self) -> float | None:
        """The mean loss over the last part of the run that the prediction is of."""
        if self.band.places:
            # Of a rare log few readings stand there: it is weighed as the earlier runs' are.
            means = [math.log(s.total / s.count) for s in self.stretches if s.count]
            weights = self.band.end_weights[[s.index for s in self.stretches if s.count]]
            told = float(weights.sum())
            return math.exp(float(weights @ np.array(means)) / told) if told > 0 else None
        first = math.floor((1 - self.band.window) * self.steps)
        place = bisect_left(self.at, first)
        losses = self.losses[place:]
        gap = self.band.gap if self.band.gap_deviation else 0.0
        return float(np.mean(losses) * math.exp(gap)) if losses else None

    def _hints(self, state: str, finding: ChangeFinding | None) -> tuple[Hint, ...]:
        if state == DIVERGED:
            text = "the learning rate is too high for this size, or numerics overflow"
            return (Hint(name="diverged", share=1.0, text=text),)
        if state == SPIKES:
            return (Hint(name="bad batches", share=1.0, text=TEXTS["bad batches"]),)
        if finding is None or state == SILENT:
            return ()
        shares: dict[str, float] = {}
        # Off since the test began: what begins later was not seen, so that no form is told.
        from_start = finding.since <= self.sequence.first + 1
        for form, share in finding.shares.items():
            name = "from the start" if from_start else CAUSES[state, form]
            shares[name] = shares.get(name, 0.0) + share
        # Three spikes tell of batches, whatever form their sum looks like.
        if state == ABOVE and sum(s.spikes for s in self.stretches) >= 3:
            shares = {"bad batches": 1.0}
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        hints = [Hint(name=n, share=round(s, 3), text=TEXTS[n]) for n, s in ranked if s >= 0.1]
        return tuple(hints)


LATELY, LEAST_INTERVALS, GAP_INTERVALS = 21, 3, 3.0
"""Readings by which a log's cadence is told, the least intervals of theirs, and those of a gap."""
STUDENT = 2.06
"""Times the standard deviation: Student's, as the scale is known by twenty stretches or so."""
CLIPPED_NOISE = 16.0
"""Squared standard deviations at which the difference of two readings is cut off: a spike's."""
MEDIAN_SQUARE = 0.455
"""The median of the square of a normal number."""
SMOOTH_READINGS, SMOOTHED = 150, -0.12
"""Of so many differences, the correlation with the next from which losses are smoothed."""
WHITE_READINGS, FEW_READINGS, LEAST_WHITE = 100, 6, 0.25
"""Noise is that of so many readings, and at least this share of the ladder's."""

CAUSES = {
    (ABOVE, "jump"): "data changed",
    (ABOVE, "eta"): "eta too high",
    (ABOVE, "drift"): "drifts up",
    (BELOW, "jump"): "easier data",
    (BELOW, "eta"): "eta too low",
    (BELOW, "drift"): "data repeated",
}
TEXTS = {
    "data changed": "a jump that stays: other data or labels, another mix, another batch or length",
    "eta too high": "up within a few per cent of the run, and the gap follows the learning rate: "
    "a learning rate that is too high, or a batch that is smaller than planned",
    "drifts up": "a gap that grows from nothing: numerics (a format, an accumulation), a decay or "
    "a clip that was lost, a part of the weights that is no longer trained",
    "easier data": "a jump down that stays: easier data, padding counted in the loss, a leak of "
    "the targets",
    "eta too low": "down at once, and less and less so: a learning rate that was lowered, or that "
    "decays before its time; such a run ends above the band, not below",
    "data repeated": "lower and lower: training data that come again (hold the loss on held-out "
    "data against it), or a leak of the targets",
    "bad batches": "single steps lie far above their neighbours: batches of broken or shifted "
    "labels, damaged shards, a rank that fails now and then",
    "from the start": "off since the test began: hyperparameters, data or tokenizer other than the "
    "ladder's, or a prediction that is wrong",
}


def worth(prediction: Prediction | Expectation, loss: float) -> float:
    """The share of the target's compute at which the law reaches `loss`; nan where it has none.

    Beyond the compute that the law was drawn for it is a bound, that of its end.
    """
    if isinstance(prediction, Expectation):
        return math.nan
    points = [(p.loss.value, p.flops) for p in prediction.curve if p.loss.value > 0]
    predicted, aim = prediction.prediction, prediction.target
    flops = aim.flops if aim else prediction.optimum.flops if prediction.optimum else None
    if predicted is None or flops is None or len(points) < 2 or loss <= 0:
        return math.nan
    # Falling losses over log compute; beyond its ends the law says nothing.
    losses = np.minimum.accumulate(np.log([p[0] for p in points]))
    computes = np.log([p[1] for p in points])
    keep = np.concatenate([[True], np.diff(losses) < 0])
    x, y = -losses[keep], computes[keep]
    if len(x) < 2:
        return math.nan

    there, said = np.interp([-math.log(loss), -math.log(predicted.loss)], x, y)
    return math.exp(float(there - said))
