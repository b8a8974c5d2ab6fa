"""The test over time, and the forecast of the end: a run's log losses against a Gaussian process.

Whitening: with L L' the covariance of what was seen, e = L^-1 (z - mean) are independent of each
other and of standard deviation 1, if the run is on the band; e_i needs z_1..z_i alone. A change of
shape f, from stretch t on, gives them the mean a s, s = L^-1 f.

The test: for each (f, t) the Bayes factor of "a ~ N(0, g sigma^2)" over "a = 0", the scale sigma^2
of all innovations unknown in both, with the same prior. Their mixture over f, t and g, of weights
that sum to 1, has the expectation 1 on the band whatever was seen so far: it is a martingale, and
the chance that it ever reaches 1/alarm is at most `alarm` (Ville's inequality). So it may be looked
at after every stretch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sweeper.evidence.predict.band import Band
from sweeper.stats.power_law import Array

FORMS = ("jump", "eta", "drift")
"""A step that stays; one that follows the learning rate down; a line that grows for a while."""
AMPLITUDES = (0.5, 2.0, 8.0)
"""Standard deviations of a change, in those of a single stretch."""
CLIPPED = 3.0
"""Standard deviations beyond which a stretch counts as this far in the test: one is no alarm."""
MOST_FREEDOM = 20
CHANGE = 0.01
"""Prior chance of a change, for the forecast."""
RISE, DRIFT_LENGTH = 0.03, 0.25
"""Shares of the run: how fast a loss follows a learning rate; how long a drift goes on growing."""


class ChangeFinding(NamedTuple):
    """The likeliest change: form, first stretch, size at present in log loss; forms' `shares`."""

    form: str
    since: int
    size: float
    shares: dict[str, float]


@dataclass(frozen=True)
class Forecast:
    """Of the log of the end: mean and standard deviation."""

    mean: float
    deviation: float


class Sequence:
    """Stretches of a run, taken one after the other; the last ones may be taken back.

    `level`: the predicted log end with its standard deviation.
    """

    def __init__(self, band: Band, level: tuple[float, float]) -> None:
        """Nothing is seen yet. Stretches of the warm-up are not tested."""
        count = len(band)
        self.band, self.weights = band, band.end_weights
        self.first = min(math.ceil(band.warmup * count), count - 1)
        self.smooth, self.white = band.covariance(level[1])
        self.rough = (1 + band.leverage) * np.array(band.rough) ** 2
        # The band is of training losses, the level of the objective: `gap` lies between the two.
        self.mean = level[0] - band.gap + np.array(band.mean)
        self.end_mean = level[0]
        self.end_variance = (
            float(self.weights @ (self.smooth + np.diag(self.white + self.rough)) @ self.weights)
            + band.gap_deviation**2
        )
        self.to_end = self.smooth @ self.weights
        self.freedom = float(min(band.freedom + 2, MOST_FREEDOM))
        self.shapes, self.of_end = self._shapes()
        tested = count - self.first
        self.prior = -math.log(tested * len(FORMS) * len(AMPLITUDES))
        unit = float(np.sqrt(np.median(self.white + np.diag(self.smooth) * (1 - 0.9))))
        self.amplitudes = (np.array(AMPLITUDES) * unit) ** 2
        # Rows are stretches that were seen.
        self.at = np.zeros(count, np.int64)
        self.inverse = np.zeros((count, count))
        self.innovations = np.zeros(count)
        self.raw, self.off = np.zeros(count), np.zeros(count)
        changes = self.shapes.shape[1]
        self.signatures, self.ends = np.zeros((count, changes)), np.zeros(count)
        # Behind as many stretches: squares, clipped and not, e to_end, to_end to_end; of changes
        # s e, clipped and not, s s, s to_end.
        self.squares, self.sums = np.zeros((count + 1, 4)), np.zeros((count + 1, 4, changes))
        self.seen = 0
        self.evidence: list[float] = []
        self._logs = self._factors(1)

    def _shapes(self) -> tuple[Array, Array]:
        """Every change [stretches, forms x begins], and what it adds to the end."""
        count = len(self.band)
        begins = np.arange(self.first, count)
        after = np.arange(count)[:, None] - begins + 1.0
        on = after > 0
        lr = np.maximum(np.array(self.band.lr), 1e-9)
        follows = (1 - np.exp(-after / (RISE * count))) * lr[:, None] / lr[begins]
        # A drift that grew for ever would be told by the end of the run alone: it levels off.
        drifts = np.clip(after / (DRIFT_LENGTH * count), 0, 1)
        shapes = [on * 1.0, np.where(on, follows, 0.0), drifts]
        joined = np.concatenate(shapes, 1)
        return joined, self.weights @ joined

    def add(self, stretch: int, log_loss: float, white: float | None = None) -> None:
        """The mean loss of a stretch behind all that were seen; `white`: variance of its noise."""
        k, at = self.seen, self.at[: self.seen]
        # The noise of readings is the run's own where it is known; the ladder's logs may be rarer.
        noise = float(self.white[stretch]) if white is None else white
        noise += float(self.rough[stretch])
        # One row more of a Cholesky factor L of the covariance of all that was seen, C = L L', and
        # of its inverse: `row` is L's, `deviation` its diagonal. Innovations e = L^-1 (loss - mean)
        # are independent and of unit variance under the band, however stretches are correlated.
        row = self.inverse[:k, :k] @ self.smooth[at, stretch]
        deviation = math.sqrt(max(float(self.smooth[stretch, stretch]) + noise - row @ row, 1e-12))
        off = log_loss - self.mean[stretch]
        # Two series: clipped ones for the alarm, raw ones for what the change is and where it ends.
        raw = (off - float(row @ self.raw[:k])) / deviation
        clipped = (off - float(row @ self.innovations[:k])) / deviation
        # Those that come after see the clipped one: a spike is no news of the stretches behind it.
        clipped = min(max(clipped, -CLIPPED), CLIPPED)
        self.at[k], self.off[k] = stretch, off
        self.raw[k], self.innovations[k] = raw, clipped
        self.inverse[k, :k] = -(row @ self.inverse[:k, :k]) / deviation
        self.inverse[k, k] = 1 / deviation
        # Changes and the end in the same coordinates: there every regression is a plain sum.
        self.signatures[k] = (self.shapes[stretch] - row @ self.signatures[:k]) / deviation
        own = float(self.to_end[stretch]) + noise * float(self.weights[stretch])
        self.ends[k] = (own - float(row @ self.ends[:k])) / deviation
        end, signature = self.ends[k], self.signatures[k]
        self.squares[k + 1] = self.squares[k] + (clipped**2, raw**2, raw * end, end**2)
        factors = np.array([clipped, raw, 0.0, end])[:, None]
        self.sums[k + 1] = self.sums[k] + factors * signature
        self.sums[k + 1, 2] += signature**2
        self.seen += 1
        self._logs = self._factors(1)
        self.evidence.append(self._evidence())

    def cut(self, seen: int) -> None:
        """Take back all but the first `seen` stretches."""
        # Rows behind are left as they are: `seen` says how many count, and they are written again.
        self.seen = min(self.seen, seen)
        del self.evidence[self.seen :]
        self._logs = self._factors(1)

    def _factors(self, innovations: int) -> Array:
        """Log Bayes factors [amplitudes, changes], by the clipped innovations, 0, or by all, 1."""
        # A change of size b ~ N(0, g s^2) with signature x, the noise's scale s^2 not known but
        # with the freedom of the ladder's seeds: the ratio of two Student's t in closed form,
        #     (1 + g x.x)^-1/2 (1 - g (x.e)^2 / ((1 + g x.x) (nu + e.e)))^-(nu + n)/2.
        products, squares = self.sums[self.seen, [innovations, 2]]
        total = self.freedom + self.squares[self.seen, innovations]
        g = self.amplitudes[:, None]
        shrunk = 1 + g * squares
        logs: Array = -0.5 * np.log(shrunk) - 0.5 * (self.freedom + self.seen) * np.log1p(
            -g * products**2 / shrunk / total
        )
        return logs

    def _evidence(self) -> float:
        """Log of the martingale: changes that lie ahead have the factor 1."""
        logs = self._factors(0)
        # A mean of martingales that all begin at 1 is one: it exceeds 1 / alpha with a probability
        # of at most alpha, whenever one looks (Ville). The sum is taken with its largest term out.
        most = float(logs.max())
        return most + math.log(float(np.exp(logs - most).sum())) + self.prior

    def finding(self) -> ChangeFinding:
        """The likeliest change among those that can be seen."""
        logs, (_, products, squares, _) = self._logs, self.sums[self.seen]
        begun = (squares > 0)[None]
        weights = np.where(begun, np.exp(logs - logs.max()), 0.0)
        weights /= weights.sum()
        by_change = weights.sum(0)
        best = int(by_change.argmax())
        tested = len(self.band) - self.first
        # The posterior mean: least squares, shrunk by the prior of the likeliest amplitude.
        g = float(self.amplitudes[int(weights[:, best].argmax())])
        size = g * products[best] / (1 + g * squares[best])
        now = int(self.at[self.seen - 1])
        by_form = by_change.reshape(len(FORMS), tested).sum(1)
        return ChangeFinding(
            form=FORMS[best // tested],
            since=self.first + best % tested,
            # As it stands now: a drift grows, and one that follows the rate fades.
            size=float(size * self.shapes[now, best]),
            shares=dict(zip(FORMS, by_form.tolist(), strict=True)),
        )

    def forecast(self) -> Forecast:
        """Of the log end, given all that was seen; averaged over there being a change or none."""
        k = self.seen
        _, innovated, shift, explained = self.squares[k].tolist()
        # The scale of innovations is known by the ladder and by the run so far.
        scale = (self.freedom + innovated) / (self.freedom + k)
        mean = self.end_mean + shift
        # Never less than the band's own: a run that is quiet so far may not stay so.
        variance = max(self.end_variance - explained, 1e-12) * max(scale, 1.0)
        if not k:
            return Forecast(mean, math.sqrt(variance))
        logs, (_, products, squares, of_ends) = self._logs, self.sums[k]
        g = self.amplitudes[:, None]
        shrunk = 1 + g * squares
        # Beyond what the stretches so far, which have the change too, already say of the end.
        left = self.of_end - of_ends
        shifts = g * products / shrunk * left
        doubts = variance + g / shrunk * left**2 * scale
        odds = math.log(CHANGE / (1 - CHANGE)) + self.prior
        # A change that has not begun tells nothing of a run so far: its share is that of none.
        begun = np.broadcast_to(squares > 0, logs.shape)
        all_logs = np.concatenate([[0.0], (logs + odds)[begun]])
        weights = np.exp(all_logs - all_logs.max())
        weights /= weights.sum()
        means = np.concatenate([[0.0], shifts[begun]])
        variances = np.concatenate([[variance], doubts[begun]])
        middle = float(weights @ means)
        spread = float(weights @ (variances + means**2)) - middle**2  # of a mixture
        return Forecast(mean + middle, math.sqrt(max(spread, 1e-12)))
