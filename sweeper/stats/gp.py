"""One Gaussian process for all questions: a linear mean, integrated out, and what is left of it.

Values y at n points are a linear mean, something smooth or shared, and noise:

    y = H b + f + e,      f + e ~ N(0, C),      b flat.

What they say (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, 2.7; flat b is
universal kriging: Cressie, Statistics for Spatial Data, 1993, 3.4). With A = H' C^-1 H:

    the mean's terms        b^ = A^-1 H' C^-1 y                     covariance A^-1
    at other points *       m  = H* b^ + K* C^-1 (y - H b^)
                            V  = K** - K* C^-1 K*' + U A^-1 U'      U = H* - K* C^-1 H
    restricted likelihood   -2 log L = log|C| + log|A| + q
                            q = (y - H b^)' C^-1 (y - H b^)
    C known but for its     -2 log L = log|C| + log|A| + (n - r) log q         r terms in b
    scale s^2               s^2^     = q / (n - r)
    one point left out      y_i - m_-i = (Q y)_i / Q_ii,   variance 1 / Q_ii
                            Q = C^-1 - C^-1 H A^-1 H' C^-1

K* is the covariance of f between the other points and these, K** that among the others. b is
integrated out, so that no point is used twice, once for the mean and once for what is left: that is
what makes the likelihood a restricted one (Patterson and Thompson, Biometrika 58, 1971; the scale
is integrated out by 1 / s). Leaving a point out fits its mean anew, without a fit (Dubrule, 1983).

Which C it is the likelihood says: a caller has a small grid of them, `shares` are how likely each
is, and what each says of a place is a normal in a `Mixture`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sweeper.stats.estimate import Array, Estimate


def alike_near(x: Array, others: Array, length: float) -> Array:
    """Correlations [x, others] of a function that is smooth over `length`."""
    return np.asarray(np.exp(-(((x[:, None] - others) / length) ** 2) / 2))


@dataclass(frozen=True, eq=False)
class Process:
    """A Gaussian process, given values at n points.

    `covariance` [..., n, n] is C, noise on its diagonal; a stack of them is as many processes of
    the same values. `values` [n], or [n, copies]: copies share C, and each has a b of its own.
    `basis` [n, terms] is H.

    Raises numpy.linalg.LinAlgError where a covariance is not positive definite.
    """

    covariance: Array
    values: Array
    basis: Array

    @cached_property
    def root(self) -> Array:
        """The lower triangle [..., n, n] whose inverse makes f + e independent, of variance 1."""
        return np.asarray(np.linalg.cholesky(self.covariance))

    def whitened(self, columns: Array) -> Array:
        """The inverse root times `columns` [n, any]."""
        return np.asarray(np.linalg.solve(self.root, columns))

    @cached_property
    def _white(self) -> tuple[Array, Array]:
        """The values and the basis, whitened [..., n, copies] and [..., n, terms]."""
        values = self.values.reshape(len(self.values), -1)
        white = self.whitened(np.hstack([values, self.basis]))
        copies = values.shape[1]
        return white[..., :copies], white[..., copies:]

    @cached_property
    def _fit(self) -> tuple[Array, Array, Array]:
        """Orthonormal columns [..., n, terms], the triangle R with A = R' R, and what is left.

        By QR rather than by A, whose condition is the square of the basis'.
        """
        values, basis = self._white
        columns, triangle = np.linalg.qr(basis)
        rest = values - columns @ (_turned(columns) @ values)
        return np.asarray(columns), np.asarray(triangle), rest

    @property
    def residuals(self) -> Array:
        """What no term of the mean explains, whitened [..., n, copies]."""
        return self._fit[2]

    @property
    def squares(self) -> Array:
        """The misfit q, summed over the copies [...]."""
        return np.asarray((self.residuals**2).sum(axis=(-2, -1)))

    @property
    def freedom(self) -> int:
        """Points less the terms, times the copies."""
        points, copies = self.residuals.shape[-2:]
        return int(copies * (points - self.basis.shape[1]))

    @property
    def variance(self) -> Array:
        """s^2^ [...], by which C is to be multiplied if its scale is not known."""
        return self.squares / self.freedom

    @cached_property
    def _log_size(self) -> Array:
        """log|C| + log|A|, once a copy [...]."""
        diagonal = np.diagonal(self.root, axis1=-2, axis2=-1)
        triangle = np.diagonal(self._fit[1], axis1=-2, axis2=-1)
        size = 2 * np.log(diagonal).sum(axis=-1) + 2 * np.log(np.abs(triangle)).sum(axis=-1)
        return np.asarray(self.residuals.shape[-1] * size)

    @property
    def log_likelihood(self) -> Array:
        """The likelihood's logarithm [...], but for a constant of the points and terms."""
        return np.asarray(-(self._log_size + self.squares) / 2)

    @property
    def log_likelihood_of_any_scale(self) -> Array:
        """Log-likelihood with the scale of C integrated out [...]."""
        # Values that the mean fits exactly would have no logarithm.
        squares = np.maximum(self.squares, np.finfo(float).tiny)
        return np.asarray(-(self._log_size + self.freedom * np.log(squares)) / 2)

    def estimator(self, shared: Array, basis: Array) -> Array:
        """The matrix [..., places, n] that makes m; K* [..., places, n], H* [places, terms]."""
        weights, beyond = self._carried(shared, basis)
        by_white = _turned(weights) + beyond @ _turned(self._fit[0])
        return np.asarray(by_white @ self.whitened(np.eye(len(self.values))))

    def at(self, shared: Array, own: Array, basis: Array) -> tuple[Array, Array]:
        """The mean m [..., places, copies] and the covariance V [..., places, places].

        `shared` and `basis` as in `estimator`; `own` [..., places, places] is K**.
        """
        (weights, beyond), (columns, triangle, _) = self._carried(shared, basis), self._fit
        terms = np.linalg.solve(triangle, _turned(columns) @ self._white[0])
        means = basis @ terms + _turned(weights) @ self.residuals
        return means, own - _turned(weights) @ weights + beyond @ _turned(beyond)

    def _carried(self, shared: Array, basis: Array) -> tuple[Array, Array]:
        """K*', whitened [..., n, places], and U R^-1 [..., places, terms]."""
        weights = self.whitened(_turned(shared))
        beyond = basis - _turned(weights) @ self._white[1]
        return weights, _turned(np.asarray(np.linalg.solve(_turned(self._fit[1]), _turned(beyond))))

    def left_out(self) -> tuple[Array, Array]:
        """Each value less what the others say of it [..., n, copies], and its deviation [..., n].

        The deviation is infinite where the others say nothing: a term is that point's alone.
        """
        whitener, columns = self.whitened(np.eye(len(self.values))), self._fit[0]
        precision = _turned(whitener) @ (whitener - columns @ (_turned(columns) @ whitener))
        own = np.maximum(np.diagonal(precision, axis1=-2, axis2=-1), np.finfo(float).tiny)
        values = self.values.reshape(len(self.values), -1)
        return precision @ values / own[..., None], own**-0.5


def _turned(matrix: Array) -> Array:
    return np.asarray(np.swapaxes(matrix, -2, -1))


def shares(logs: Array, prior: Array | float = 1.0) -> Array:
    """How likely each of a grid is [grid], by its log likelihood and its prior."""
    weights = prior * np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def normal_draws(generator: np.random.Generator, covariance: Array, count: int) -> Array:
    """Normal draws [count, n] around 0, of a covariance [n, n] that may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    # Where nothing varies no direction is left; rounding makes some of the least ones negative.
    kept = values > 1e-12 * values[-1]
    root = vectors[:, kept] * np.sqrt(values[kept])
    return np.asarray(generator.normal(size=(count, int(kept.sum()))) @ root.T)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Normals of `weights` [normal] that add up to 1: one of each C that is likely.

    `means` and `deviations` are [normal], or [normal, ...] of as many mixtures with those weights.
    """

    means: Array
    deviations: Array
    weights: Array

    @property
    def mean(self) -> Array:
        """The mean of each mixture [...]."""
        return np.asarray(np.tensordot(self.weights, self.means, axes=1))

    def below(self, value: Array | float) -> Array:
        """The chance of less than `value` [...]."""
        # Not above: SciPy takes a third of a second, which reading a study would pay for.
        from scipy.special import ndtr

        chances = ndtr((value - self.means) / self.deviations)
        return np.asarray(np.tensordot(self.weights, chances, axes=1))

    def quantile(self, probability: float) -> Array:
        """Below which each mixture has that chance [...], by bisection."""
        # 40 deviations hold all of the mass that doubles can tell: the bracket needs no check.
        low = (self.means - 40 * self.deviations).min(axis=0)
        high = (self.means + 40 * self.deviations).max(axis=0)
        # Each step halves the bracket; 64 leave no digit of a double.
        for _ in range(64):
            middle = (low + high) / 2
            more = self.below(middle) > probability
            low, high = np.where(more, low, middle), np.where(more, middle, high)
        return np.asarray((low + high) / 2)

    def estimate(self, level: float = 0.95) -> Estimate:
        """The mean of a single mixture with its interval."""
        low, high = self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)
        return Estimate(value=float(self.mean), low=float(low), high=float(high))

    def draws(self, count: int, generator: np.random.Generator) -> Array:
        """Draws [count] of a single mixture, in no order."""
        # Systematic: every normal has its share of the draws to within one.
        places = (generator.random() + np.arange(count)) / count
        # Rounding may leave the last cumulative weight below 1.
        chosen = np.minimum(np.searchsorted(self.weights.cumsum(), places), len(self.weights) - 1)
        drawn = self.means[chosen] + self.deviations[chosen] * generator.normal(size=count)
        # Normals come in order: draws that are paired with others' draws must not share it.
        return np.asarray(generator.permutation(drawn))

    def widened(self, deviation: Array | float) -> Mixture:
        """Adds an independent error of that deviation."""
        return Mixture(self.means, np.hypot(self.deviations, deviation), self.weights)


def positive(covariance: Array) -> Array:
    """The covariance [n, n], a billionth of its mean variance added: no longer singular."""
    size = len(covariance)
    return np.asarray(covariance + 1e-9 * np.trace(covariance) / size * np.eye(size))
