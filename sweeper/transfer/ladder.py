"""Which trials validate a transfer: learning-rate lines along ladders of sizes, batch or steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sweeper.errors import ConfigError
from sweeper.search.line import LineRule, LineState, replay_line
from sweeper.search.strategy import Point
from sweeper.trial import Axis, Log2Hps

Value = Callable[[Point], float | None]
"""The objective of a point at one size, None while it is not known."""


@dataclass(frozen=True, kw_only=True, order=True)
class Size:
    """A model's width and depth."""

    width: int
    depth: int

    def __str__(self) -> str:
        return f"width {self.width}, depth {self.depth}"

    def train(self) -> Mapping[str, int]:
        """The settings of the training that it sets in place of the study's."""
        return {}


@dataclass(frozen=True, kw_only=True, order=True)
class LadderSize(Size):
    """A step of a ladder: a size, and how many examples a step and steps it is trained for."""

    batch_size: int
    steps: int

    def __str__(self) -> str:
        return f"{super().__str__()}, batch size {self.batch_size}, {self.steps} steps"

    def train(self) -> Mapping[str, int]:
        """Batch size and steps, under their names in `train`."""
        return {"batch_size": self.batch_size, "steps": self.steps}


AXES = {"width": "widths", "depth": "depths", "batch_size": "batches", "steps": "steps"}
"""What a ladder may climb, and the key of its values in `transfer`."""
SEVERAL = "size"
"""The axis of the ladder `transfer.sizes`, on which several of these change at once."""
UNSCALED = ("batch_size", "steps")
"""Axes that no parameterization has a rule for: the learning rate is transferred as it is."""


def named(size: Size, axis: str) -> str:
    """A step in words by its place on the ladder: width 64, batch size 32."""
    return str(size) if axis == SEVERAL else f"{axis.replace('_', ' ')} {getattr(size, axis)}"


def place(size: Mapping[str, Any], axis: str) -> str:
    """The same for a column of that name: 64, or w64 d4 b32 s1000 where several change."""
    if axis == SEVERAL:
        return " ".join(f"{key[0]}{size[key]}" for key in AXES)
    return str(size[axis])


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the ladder `transfer.sizes`: what it sets; the rest is the base's."""

    width: int | None = None
    depth: int | None = None
    batch_size: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no size."""
        for key, value in self.given().items():
            if value < 1:
                raise ConfigError(key, value, "a size of at least 1")

    def given(self) -> Mapping[str, int]:
        """What it sets."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class LadderRule:
    """The ladders to train, how their curves over eta are laid, and the verdict's thresholds.

    `steps` is the ladder over training steps, `sizes` one on which several change at once; `span`
    and `step` are in log2 eta. `along` names another hyperparameter to lay the curves along, eta
    held at the transferred one. `max_shift` is the largest move of the optimum from the base's
    (log2), `max_regret` the largest loss by training at the base's optimum, as a share of the
    size's best loss. `eta` (log2) replaces the study's, in the plan and as the curves' centre.
    `correct` lets the plan use the optimum that the trend over width predicts.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    sizes: tuple[Step, ...] = ()
    along: str = "eta"
    seeds: int = 2
    span: float = 2.0
    step: float = 0.5
    extend: int = 4
    max_shift: float = 1.0
    max_regret: float = 0.01
    eta: float | None = None
    correct: bool = False

    def __post_init__(self) -> None:
        """Refuse an empty grid and impossible numbers."""
        if not self.sizes and not any(getattr(self, key) for key in AXES.values()):
            raise ConfigError("widths", [], "at least one width, as in [64,128,256]")
        for key in AXES.values():
            for value in getattr(self, key):
                if value < 1:
                    raise ConfigError(key, value, "sizes of at least 1")
        if self.seeds < 1:
            raise ConfigError("seeds", self.seeds, "at least 1")
        for key in ("span", "max_shift", "max_regret"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(key, getattr(self, key), "a positive number")
        LineRule(step=self.step, extend=self.extend)
        if self.step > self.span:
            raise ConfigError("step", self.step, f"at most span, which is {self.span:g}")
        if self.eta is not None and not abs(self.eta) <= 60:
            raise ConfigError("eta", self.eta, "a base-2 logarithm between -60 and 60, or null")
        if self.correct and self.along != "eta":
            raise ConfigError("correct", True, "false where along is not eta: there is no trend")

    def ladders(self, base: LadderSize) -> Mapping[str, list[LadderSize]]:
        """Rungs by axis, ascending, the base among them; an axis without a second one is none."""
        found = {}
        for axis, key in AXES.items():
            own = getattr(base, axis)
            rungs = [replace(base, **{axis: value}) for value in {*getattr(self, key), own}]
            if len(rungs) > 1:
                found[axis] = sorted(rungs)
        several = {base, *(replace(base, **step.given()) for step in self.sizes)}
        if len(several) > 1:
            found[SEVERAL] = sorted(several)
        return found

    def allowed(self, loss: float) -> float:
        """The largest cost in nats that is none, at a size whose best loss is `loss`."""
        return self.max_regret * abs(loss)

    def points_per_line(self) -> int:
        """Values of eta of one size's curve before any extension."""
        return 2 * int(self.span / self.step + 1e-9) + 1

    def line(self, best_log2: Log2Hps, value: Value) -> LineState:
        """One size's curve around the middle, extended while its optimum is at its end."""
        reach = int(self.span / self.step + 1e-9) * self.step
        centre = best_log2[self.along]
        axis = Axis(low=centre - reach, high=centre + reach, default=centre)
        rule = LineRule(step=self.step, points=self.points_per_line(), extend=self.extend)

        def evaluate(place: float) -> float | None:
            values = [value(point) for point in self.seeded(best_log2, place)]
            known = [v for v in values if v is not None]
            return sum(known) / len(known) if len(known) == len(values) else None

        return replay_line(rule, axis, evaluate)

    def seeded(self, best_log2: Log2Hps, place: float) -> list[Point]:
        """The runs of one point of a curve."""
        hps = Log2Hps({**best_log2, self.along: place})
        return [Point(log2_hps=hps, seed=seed, phase="validate") for seed in range(self.seeds)]

    def missing(self, best_log2: Log2Hps, value: Value) -> list[Point]:
        """Runs that one size's curve still needs."""
        places = self.line(best_log2, value).missing
        points = [point for place in places for point in self.seeded(best_log2, place)]
        return [point for point in points if value(point) is None]


@dataclass(frozen=True, kw_only=True)
class SizeCurve:
    """A measured curve: losses by log2 eta (or the rule's `along`), one a seed, +inf: diverged."""

    size: Size
    losses: Mapping[float, tuple[float, ...]] = field(default_factory=dict)
