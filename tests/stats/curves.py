"""Learning-rate curves made up: a parabola in log2 eta, a cliff, an offset a seed, and noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sweeper.stats import curve
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve
from sweeper.trial import Point

BASE = LadderSize(width=32, depth=2, batch_size=8, steps=100)
LARGE = replace(BASE, width=256)


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "DRAWS", 400)


def fit_curve(one: SizeCurve, transferred: float) -> curve.CurveFit | None:
    return curve.fit_curves([one], transferred - one.planned_log2)[one.size]


@dataclass(frozen=True, kw_only=True)
class Valley:
    """Nats at log2 eta: `floor + curvature * (eta - optimum)^2`, +inf beyond `edge` past it."""

    optimum: float = 0.0
    floor: float = 3.0
    curvature: float = 0.05
    edge: float = math.inf
    noise: float = 0.0
    number: int = 0
    """Seeds the noise."""

    def value(self) -> Callable[[Point], float]:
        generator, losses = (
            np.random.default_rng([self.number, 5]),
            dict[tuple[float, int], float](),
        )
        # Never none at all: seeds that all lose the same measure no noise.
        offsets = generator.normal(0, 10 * self.noise or 1e-10, 16)

        def loss(point: Point) -> float:
            x = point.log2_hps["eta"] - self.optimum
            if x > self.edge:
                return math.inf
            run = point.log2_hps["eta"], point.seed
            if run not in losses:
                losses[run] = offsets[point.seed] + generator.normal(0, self.noise)
            return self.floor + self.curvature * x * x + losses[run]

        return loss

    def curve(self, size: LadderSize = BASE, rule: LadderRule | None = None) -> SizeCurve:
        rule, value, best = rule or LadderRule(widths=(32,)), self.value(), {"eta": 0.0}
        etas = rule.line(best, value).losses
        losses = {eta: tuple(value(point) for point in rule.runs_at(best, eta)) for eta in etas}
        return SizeCurve(size=size, losses=losses)


def table(losses: dict[float, float | tuple[float, ...]], size: LadderSize = BASE) -> SizeCurve:
    every = {eta: v if isinstance(v, tuple) else (v, v) for eta, v in losses.items()}
    return SizeCurve(size=size, losses=every)
