"""Exponents of eta in batch and tokens, fitted to the optima of ladders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sweeper.laws.fit import DIRECTIONS, PUBLISHED, Direction
from sweeper.laws.law import Scale
from sweeper.transfer.curve import BIAS, Estimate, fit_curves
from sweeper.transfer.ladder import SizeCurve
from sweeper.transfer.noise import Array
from sweeper.transfer.power_law import fit_plane
from sweeper.trial import encode

MIN_SIZES = 3
"""Curves that a fit in one direction needs; any two lie on a line. Each further one takes one."""


@dataclass(frozen=True, kw_only=True)
class PublishedExponent:
    """What a law prints for a direction, and whether it lies inside the measured interval."""

    law: str
    source: str
    exponent: float
    inside: bool


@dataclass(frozen=True, kw_only=True)
class Exponent:
    """eta goes as a power of what grows in a direction: measured, and printed by laws."""

    direction: str
    measured: Estimate
    published: tuple[PublishedExponent, ...]

    def __str__(self) -> str:
        """For people, in a line."""
        found = self.measured
        text = f"{self.direction}: {found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        for words, side in (("inside: ", True), ("outside: ", False)):
            laws = [f"{p.law} {p.exponent:+.2f}" for p in self.published if p.inside is side]
            text += f"; {words}{', '.join(laws)}" if laws else ""
        return text


@dataclass(frozen=True, kw_only=True)
class FittedExponents:
    """log2 eta = a + batch log2 B + tokens log2 T through the optima of ladders.

    `draws` [3, 1 + n] holds a, batch and tokens: as fitted, then n bootstrap draws. `measured`
    [2, 2] projects onto the directions in which curves differ. `batches` and `tokens` are the
    ends of what was measured.
    """

    batches: tuple[int, int]
    tokens: tuple[int, int]
    sizes: int
    draws: Array = field(repr=False, compare=False)
    measured: Array = field(repr=False, compare=False)

    def log2_eta(self, direction: Direction) -> tuple[float, float, float] | None:
        """The change of log2 eta along a direction, with its 95 % interval; None: not measured."""
        way = np.array(direction)
        if not np.allclose(self.measured @ way, way, atol=1e-6 * float(np.abs(way).max())):
            return None
        along = way @ self.draws[1:]
        found = Estimate.from_draws(float(along[0]), along[1:])
        return found.value, found.low, found.high

    def exponents(self) -> list[Exponent]:
        """Every direction that was measured, beside what laws print for it."""
        told = []
        for name, direction in DIRECTIONS.items():
            if (along := self.log2_eta(direction)) is None:
                continue
            measured = Estimate(value=along[0], low=along[1], high=along[2])
            printed = [(one, one.along(direction)) for one in PUBLISHED]
            published = tuple(
                PublishedExponent(
                    law=one.name,
                    source=one.source,
                    exponent=value,
                    inside=measured.low <= value <= measured.high,
                )
                for one, value in printed
                if value is not None
            )
            told.append(Exponent(direction=name, measured=measured, published=published))
        return told

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: what is told, not the draws."""
        record: dict[str, Any] = encode(
            {
                "sizes": self.sizes,
                "batches": self.batches,
                "tokens": self.tokens,
                "exponents": [asdict(one) for one in self.exponents()],
            }
        )
        return record


def fit_exponents(
    curves: Sequence[tuple[Scale, SizeCurve]], transferred: float
) -> FittedExponents | None:
    """The exponents from curves of one width and depth; None where too few tell any.

    Curves whose lowest point is at their end, or without an interval, are left out.
    """
    fits = fit_curves([curve for _, curve in curves], transferred)
    usable = [
        (scale, fit)
        for scale, curve in curves
        if (fit := fits[curve.size]) and not fit.at_end and not fit.noise_unknown
    ]
    if not usable:
        return None
    optima = np.array([fit.optimum.value for _, fit in usable])
    draws = np.array([fit.free_optimum_draws for _, fit in usable])
    seed = [number for scale, _ in usable for number in (scale.batch, scale.steps)]
    draws += np.random.default_rng(seed).normal(0.0, BIAS, draws.shape)
    return exponents_of([scale for scale, _ in usable], optima, draws)


def exponents_of(scales: Sequence[Scale], optima: Array, draws: Array) -> FittedExponents | None:
    """The exponents from `optima` [sizes] in log2 eta and their bootstrap `draws` [sizes, n].

    None where the sizes do not differ in batch or tokens, or are too few for what they differ in.
    """
    logs = np.log2(np.array([[scale.batch, scale.tokens] for scale in scales], dtype=np.float64))
    away = (logs - logs[0]).T
    rank = int(np.linalg.matrix_rank(away, tol=1e-6))
    if rank == 0 or len(scales) < MIN_SIZES + rank - 1:
        return None
    basis = np.linalg.svd(away)[0][:, :rank]
    # Along the measured directions alone: their coefficients are then all told apart.
    x = np.vstack([np.ones(len(scales)), basis.T @ away])
    fitted = fit_plane(x, optima, draws)
    batches, tokens = ([getattr(s, key) for s in scales] for key in ("batch", "tokens"))
    return FittedExponents(
        batches=(min(batches), max(batches)),
        tokens=(min(tokens), max(tokens)),
        sizes=len(scales),
        draws=np.vstack([fitted[:1], basis @ fitted[1:]]),
        measured=basis @ basis.T,
    )
