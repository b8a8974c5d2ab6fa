"""What runs lie off a smooth law, and how much of it runs share: a covariance, by likelihood.

No law of N and D holds to the noise of its runs. What is left is no noise: small models, few tokens
a parameter and another aspect are off together, and neighbours by as much. It is taken to be a
Gaussian process over (log N, log D) beside the law, as in universal kriging (Cressie, Statistics
for Spatial Data, 1993, 3.4): a smooth part, one that all horizons of a size share, one that points
of a training share, one of each (N, D), and noise, which is larger below some tokens a parameter.
How large each is, the restricted likelihood says of the runs; what it leaves open is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sweeper.stats.estimate import Array
from sweeper.stats.gp import Process

Index = np.ndarray[tuple[int], np.dtype[np.int64]]

REACH, OF_SIZE = 2.5, 0.3
"""Over how much of log N and log D the smooth part is alike; of log N what sizes are off."""
UNDERTRAINED = math.log(3.0)
"""Log tokens per parameter below which noise grows."""
GRID, TILTS = (0.0, 1.0, 3.0, 9.0), (0.0, 0.5, 1.0)
"""Standard deviations that are tried, in those of the noise, and powers of its growth."""
MOST = 4
"""Covariances of which a law is drawn."""
FEWEST, NOISE = 1.0, 1e-3
"""What is known of the noise of log L before any run: it counts as so many runs of so much."""


@dataclass(frozen=True, eq=False)
class RunPoints:
    """Runs, or places of runs to come: logs of N and D, the (N, D) and the training of each."""

    size: Array
    horizon: Array
    cell: Index
    training: Index

    @classmethod
    def to_come(cls, params: Array, tokens: Array) -> RunPoints:
        """Places of runs that are in no training yet."""
        none = np.full(len(params), -1)
        # Python's whole numbers may be beyond 64 bits.
        return cls(np.log(params.astype(float)), np.log(tokens.astype(float)), none, none)

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def alike(self) -> Mapping[str, Array]:
        """How much of each part points share with each other: many covariances ask it."""
        return _alike(self, self)


def _alike(points: RunPoints, others: RunPoints) -> Mapping[str, Array]:
    apart = (points.size[:, None] - others.size) ** 2
    both = apart + (points.horizon[:, None] - others.horizon) ** 2
    correlations = {
        "smooth": np.exp(-0.5 * both / REACH**2),
        "size": np.exp(-0.5 * apart / OF_SIZE**2),
    }
    for name in ("training", "cell"):
        mine, theirs = getattr(points, name)[:, None], getattr(others, name)
        # -1 is no training: runs to come share none with each other either.
        correlations[name] = ((mine == theirs) & (mine >= 0)).astype(float)
    return correlations


@dataclass(frozen=True, kw_only=True)
class LossMisfit:
    """Standard deviations in units of the noise: `noise` is in log L, and 1 where it is left open.

    Noise is that of enough tokens a parameter, and grows as the power `tilt` of what is lacking.
    """

    noise: float = 1.0
    smooth: float = 0.0
    size: float = 0.0
    training: float = 0.0
    cell: float = 0.0
    tilt: float = 0.0

    @property
    def shared(self) -> float:
        """The deviation of all but noise."""
        return math.hypot(self.smooth, self.size, self.training, self.cell)

    def noise_at(self, points: RunPoints) -> Array:
        """The noise of a single run at each point."""
        lacking = np.maximum(UNDERTRAINED - (points.horizon - points.size), 0.0)
        return np.asarray(np.exp(self.tilt * lacking))

    def between(self, points: RunPoints, others: RunPoints) -> Array:
        """What points share with others, less noise: a covariance [points, others]."""
        alike = points.alike if others is points else _alike(points, others)
        total = np.zeros((len(points), len(others)))
        for name, share in alike.items():
            if deviation := getattr(self, name):
                total += deviation**2 * share
        return total

    def process(self, points: RunPoints, off: Array, slopes: Array, doubt: Array) -> Process:
        """The process of what runs are `off`, in log L; the law can move along its `slopes`.

        `doubt` [points] are factors on the noise: runs that are far off count less.
        """
        covariance = self.between(points, points)
        covariance[np.diag_indices(len(points))] += (doubt * self.noise_at(points)) ** 2
        # Orthogonal: a term that has gone has no slope, and its exponent none apart from others'.
        basis, sizes, _ = np.linalg.svd(slopes.T, full_matrices=False)
        return Process(covariance, off, basis[:, sizes > 1e-7 * sizes[0]])


def likely(points: RunPoints, off: Array, slopes: Array, doubt: Array) -> list[LossMisfit]:
    """The likeliest covariances of residuals `off`, the best first, each with its noise.

    `slopes` [parameters, points] are the law's: the likelihood is that of what no change of the
    parameters explains (REML).
    """
    scored = dict[LossMisfit, tuple[float, float]]()

    def score(misfit: LossMisfit) -> float:
        if misfit not in scored:
            process = misfit.process(points, off, slopes, doubt)
            noise = math.sqrt(float(process.variance) + FEWEST * NOISE**2 / len(off))
            scored[misfit] = float(process.log_likelihood_of_any_scale), noise
        return scored[misfit][0]

    # One group of parts after another, as all together are 768 covariances, each to be inverted;
    # and twice, as what one part is likely to be depends on the others.
    best = LossMisfit()
    for _ in range(2):
        for names in _searched(points):
            every = [best]
            for name in names:
                values = TILTS if name == "tilt" else GRID
                every = [replace(m, **{name: value}) for m in every for value in values]
            best = max([best, *every], key=score)
    ranked = sorted(scored, key=lambda misfit: -scored[misfit][0])[:MOST]
    return [replace(misfit, noise=scored[misfit][1]) for misfit in ranked]


def _searched(points: RunPoints) -> list[tuple[str, ...]]:
    ratio = points.horizon - points.size
    # That noise grows below some tokens a parameter shows where runs lie on both sides of it.
    tilted = ratio.min() < UNDERTRAINED < ratio.max()
    parts: list[tuple[str, ...]] = [("smooth", *("tilt",) * bool(tilted))]
    sizes, cells = (len(np.unique(values)) for values in (points.size.round(6), points.cell))
    # What a size shares shows where its horizons are off alike.
    if 2 < sizes < cells:
        parts.append(("size",))
    # What an (N, D) shares shows where it was run several times.
    if cells < len(points):
        parts.append(("cell",))
    trainings = len(np.unique(points.training))
    # Where each size has one training its share is the size's; of two sizes none is tried.
    if sizes < trainings < len(points) or (trainings < len(points) and sizes <= 2):
        parts.append(("training",))
    return parts
