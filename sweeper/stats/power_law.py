"""Laws of the loss over parameters N and tokens D: their forms, and how they are fitted.

    L(N, D) = E + A/N^alpha + B/D^beta                        (Hoffmann et al., arXiv:2203.15556)

and what is left of it where one axis alone was varied, or both along a line. For given exponents
the amplitudes are linear, and none is negative: a fit starts there, exponents from a grid and
amplitudes by non-negative least squares. From the best starts all parameters, as logs, are refined
together, residuals being those of log L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

STARTS = (0.03, 0.06, 0.12, 0.24, 0.5, 1.0)
"""Where exponents are searched. Published ones lie between 0.05 and 0.8."""
REFINED = 4
"""Of the grid's exponents, how many are refined."""
USUAL = {"E": (0.5, 1.0), "amplitude": (0.2, 1.5), "exponent": (0.33, 0.5)}
"""Of published laws the middle, and the standard deviation of the log; amplitudes in the loss."""
ROBUST = 0.01
"""Of log L: where a covariance is not known yet, runs that are farther off pull less."""
FIXED = 1e-4
"""The standard deviation of the log of a parameter that the user knows."""


@dataclass(frozen=True)
class LossForm:
    """A form of the law.

    `terms` are amplitude and exponent of each term above the floor, and the powers of N and D in
    units of the exponent: ("A", "alpha", 1, 0) is A/N^alpha.
    """

    name: str
    formula: str
    terms: tuple[tuple[str, str, int, int], ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The floor, amplitudes, exponents."""
        amplitudes, exponents, *_ = zip(*self.terms, strict=True)
        return ("E", *amplitudes, *exponents)

    @property
    def amplitudes(self) -> int:
        """How many, the floor's with them."""
        return 1 + len(self.terms)

    @property
    def powers(self) -> Array:
        """The powers of N and D [terms, 2]."""
        return np.array([term[2:] for term in self.terms], float)


ADDITIVE = LossForm(
    "additive", "E + A/N^alpha + B/D^beta", (("A", "alpha", 1, 0), ("B", "beta", 0, 1))
)
SIZE = LossForm("size", "E + A/N^alpha", (("A", "alpha", 1, 0),))
TOKENS = LossForm("tokens", "E + B/D^beta", (("B", "beta", 0, 1),))
COMPUTE = LossForm("compute", "E + A/(N D)^gamma", (("A", "gamma", 1, 1),))
"""Along a line of N and D varied together: the compute is N D but for a constant."""


@dataclass(frozen=True, eq=False)
class LossLaws:
    """Laws of one `form`: `values` [laws, parameters] are logs.

    N and D are in units of `centre`, the geometric means of the runs fitted: amplitudes are then
    losses at the centre, and the fit is as well conditioned as its data allow.
    """

    form: LossForm
    values: Array
    centre: tuple[float, float]

    def loss(self, params: Array | float, tokens: Array | float) -> Array:
        """L [laws, points] at points (N, D)."""
        floor, terms, _ = self._parts(params, tokens)
        return np.asarray(floor + terms.sum(1))

    def slopes(self, params: Array, tokens: Array) -> Array:
        """D log L / d parameter [laws, parameters, points], all parameters being logs."""
        floor, terms, falls = self._parts(params, tokens)
        total = (floor + terms.sum(1))[:, None]
        return np.concatenate([floor[:, None] / total, terms / total, falls / total], 1)

    def natural(self) -> dict[str, Array]:
        """Every parameter by name [laws], with N and D as they are."""
        form, values = self.form, self.values.copy()
        exponents = np.exp(values[:, form.amplitudes :])
        # In units of the centre N0 the amplitude of A/N^alpha is A/N0^alpha.
        values[:, 1 : form.amplitudes] += exponents * (form.powers @ np.log(self.centre))
        return dict(zip(form.parameters, np.exp(values).T, strict=True))

    def _parts(self, params: Array | float, tokens: Array | float) -> tuple[Array, Array, Array]:
        """The floor [laws, points], terms above it, and these by log exponent [., terms, .]."""
        count = self.form.amplitudes
        distance = self.form.powers @ _logs(params, tokens, self.centre)
        # A step of a fit may go anywhere; beyond these no number is a loss.
        fall = np.exp(np.minimum(self.values[:, count:], 3.0))[:, :, None] * distance
        terms = np.exp(np.minimum(self.values[:, 1:count, None] - fall, 100.0))
        floor = np.exp(np.minimum(self.values[:, :1], 100.0)) * np.ones(distance.shape[1])
        return floor, terms, -terms * fall


@dataclass(frozen=True, eq=False)
class LossLawPrior:
    """Before any run: `middle` and `deviation` [parameters] of logs, amplitudes at the centre."""

    middle: Array
    deviation: Array

    @classmethod
    def of(cls, form: LossForm, loss: Array, fixed: Mapping[str, float]) -> LossLawPrior:
        """Published laws' parameters for such losses; the user knows those that are `fixed`."""
        middle, deviation = np.zeros(len(form.parameters)), np.zeros(len(form.parameters))
        for index, name in enumerate(form.parameters):
            kind = "E" if name == "E" else "amplitude" if index < form.amplitudes else "exponent"
            value, deviation[index] = USUAL[kind]
            middle[index] = math.log(value)
            if name in fixed:
                middle[index], deviation[index] = math.log(fixed[name]), FIXED
            # `USUAL` has amplitudes as fractions of the loss.
            elif index < form.amplitudes:
                middle[index] += float(np.log(loss).mean())
        return cls(middle, deviation)

    def off(self, values: Array) -> Array:
        """How many deviations parameters [laws, parameters] lie off it."""
        return (values - self.middle) / self.deviation


def fit(
    form: LossForm, params: Array, tokens: Array, loss: Array, *, noise: float = ROBUST
) -> LossLaws:
    """The best fit of `form` to runs (N, D, L), all [runs]; strays beyond `noise` pull little."""
    centre = float(np.exp(np.log(params).mean())), float(np.exp(np.log(tokens).mean()))
    fits = [
        regress(LossLaws(form, start[None], centre), params, tokens, loss, noise=noise)
        for start in _starts(form, _logs(params, tokens, centre), loss)
    ]
    return min(fits, key=lambda law_and_cost: law_and_cost[1])[0]


def regress(
    first: LossLaws,
    params: Array,
    tokens: Array,
    loss: Array,
    *,
    noise: float = ROBUST,
    whiten: Array | None = None,
    prior: LossLawPrior | None = None,
) -> tuple[LossLaws, float]:
    """The law near `first` that is likeliest, and its cost, residuals being those of log L.

    Either runs are independent, of a standard deviation `noise` and with strays among them (Huber's
    loss), or `whiten` makes them so. What is known of the parameters counts as runs do.
    """
    from scipy.optimize import least_squares

    form, centre, target = first.form, first.centre, np.log(loss)

    def law(values: Array) -> LossLaws:
        return LossLaws(form, values[None], centre)

    def residuals(values: Array) -> Array:
        off = np.log(law(values).loss(params, tokens)[0]) - target
        off = off / noise if whiten is None else whiten @ off
        return off if prior is None else np.concatenate([off, prior.off(values)])

    def slopes(values: Array) -> Array:
        slope = law(values).slopes(params, tokens)[0].T
        slope = slope / noise if whiten is None else whiten @ slope
        return slope if prior is None else np.concatenate([slope, np.diag(1 / prior.deviation)])

    # Without strays by MINPACK's own Levenberg-Marquardt, which knows no other loss.
    robust = whiten is None
    solution = least_squares(
        residuals,
        first.values[0],
        slopes,
        method="trf" if robust else "lm",
        loss="huber" if robust else "linear",
    )
    return law(solution.x), float(solution.cost)


def _logs(params: Array | float, tokens: Array | float, centre: tuple[float, float]) -> Array:
    points = np.stack([np.atleast_1d(params), np.atleast_1d(tokens)]).astype(float)
    return np.asarray(np.log(points) - np.log(np.array(centre))[:, None])


def _starts(form: LossForm, logs: Array, loss: Array) -> Array:
    """Parameters [starts, parameters]: the best exponents of the grid, amplitudes by least squares.

    Residuals are relative, (predicted - L) / L, which is that of log L to first order.
    """
    from scipy.optimize import nnls

    starts = []
    for exponents in product(STARTS, repeat=len(form.terms)):
        powers = np.exp(-np.array(exponents)[:, None] * (form.powers @ logs))
        columns = np.concatenate([np.ones_like(powers[:1]), powers]) / loss
        amplitudes, off = nnls(columns.T, np.ones(len(loss)))
        # An amplitude of 0 has no slope as a log: a thousandth of the largest has one.
        awake = np.maximum(amplitudes, 1e-3 * amplitudes.max())
        starts.append((off, [*np.log(awake), *np.log(exponents)]))
    starts.sort(key=lambda start: start[0])
    return np.array([values for _, values in starts[:REFINED]])
