"""Which trials validate a transfer: learning-rate lines along ladders of sizes, batch or steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

from sweeper.errors import ConfigError
from sweeper.records import (
    AT_LEAST_ONE,
    NOT_WRITTEN,
    WRITTEN_IF_SET,
    AtLeastOne,
    Bounded,
    Bounds,
    Positive,
    check_bounds,
)
from sweeper.stats.line import SPACING, LineRule, LineState, points_from, replay_line
from sweeper.trial import LOG2_OR_NULL, ONE_OR_MORE, Axis, Log2Hps, Point, TrialSpec

LossLookup = Callable[[Point], float | None]


@dataclass(frozen=True, kw_only=True, order=True)
class Size:
    """A model's width and depth."""

    width: AtLeastOne
    depth: AtLeastOne

    def __str__(self) -> str:
        return f"width {self.width}, depth {self.depth}"

    def train_overrides(self) -> Mapping[str, int]:
        """The settings of the training that it replaces, under their names in `train`."""
        return {}

    def model_overrides(self) -> Mapping[str, int]:
        """The arguments of the model that it replaces, beside width and depth."""
        return {}


MODEL_AXES = {"experts": "experts", "top_k": "top_ks", "granularity": "granularities"}
"""Arguments of a model that a ladder may change, and the key of its values in `transfer`."""


@dataclass(frozen=True, kw_only=True, order=True)
class ModelSize(Size):
    """A model's size with those of its experts; 0 of what the model does not have."""

    experts: int = field(default=0, metadata=WRITTEN_IF_SET)
    top_k: int = field(default=0, metadata=WRITTEN_IF_SET)
    granularity: int = field(default=0, metadata=WRITTEN_IF_SET)

    def __str__(self) -> str:
        each = {key.replace("_", " "): size for key, size in self.model_overrides().items()}
        return ", ".join([super().__str__(), *(f"{key} {size}" for key, size in each.items())])

    def model_overrides(self) -> Mapping[str, int]:
        """The experts' number and sizes, of a model that has them."""
        return {key: size for key in MODEL_AXES if (size := getattr(self, key))}


@dataclass(frozen=True, kw_only=True, order=True)
class LadderSize(ModelSize):
    """A size on a ladder, with the batch size and the number of steps that it is trained with."""

    batch_size: int
    steps: int

    def __str__(self) -> str:
        return f"{super().__str__()}, batch size {self.batch_size}, {self.steps} steps"

    @classmethod
    def of(cls, size: Size, model: Mapping[str, Any], train: Mapping[str, Any]) -> LadderSize:
        """`size` with what the configuration's `model` and `train` have beside it."""
        experts = {key: model[key] for key in MODEL_AXES if type(model.get(key)) is int}
        trained = {key: int(train[key]) for key in ("batch_size", "steps")}
        return cls(width=size.width, depth=size.depth, **trained, **experts)

    @classmethod
    def of_spec(cls, spec: TrialSpec) -> LadderSize:
        """The size that a trial is specified with."""
        size = Size(width=spec.width, depth=spec.depth)
        return cls.of(size, spec.model.arguments, vars(spec.train))

    @property
    def model_size(self) -> ModelSize:
        """The size without its training."""
        return ModelSize(**{part.name: getattr(self, part.name) for part in fields(ModelSize)})

    def train_overrides(self) -> Mapping[str, int]:
        """Batch size and steps."""
        return {"batch_size": self.batch_size, "steps": self.steps}


BEYOND = 2
"""Points beyond a curve's lowest one, on a grid with as many a side and a step below 1 in log2.

A single one tells little of how steep that side is. On a coarse grid it lies far enough off, and a
grid with one point a side is meant to be small.
"""
DEFAULT_WIDTHS = (32, 64, 128, 256)
LADDER_AXES = {
    "width": "widths",
    "depth": "depths",
    "batch_size": "batches",
    "steps": "steps",
    **MODEL_AXES,
}
"""What changes along a ladder, and the key of its values in `transfer`."""
LADDER_KEYS = (*LADDER_AXES.values(), "sizes", "seeds", "span", "step")
JOINT_AXIS = "size"
"""The axis of the ladder `transfer.sizes`, along which several of these change at once."""
UNSCALED_AXES = ("batch_size", "steps")
"""Axes that no parameterization has a rule for: without a law the learning rate stays."""


def describe_size(size: Size, axis: str) -> str:
    """A size of the ladder over `axis` in words: width 64, batch size 32."""
    return str(size) if axis == JOINT_AXIS else f"{axis.replace('_', ' ')} {getattr(size, axis)}"


def extent(axis: str, sizes: Sequence[LadderSize]) -> str:
    """The sizes of a ladder over `axis` in words: widths 16 to 64."""
    if axis == JOINT_AXIS:
        return f"{len(sizes)} sizes"
    values = sorted(int(getattr(size, axis)) for size in sizes)
    return (
        f"{plural(axis)} {values[0]} to {values[-1]}" if values else f"no {axis.replace('_', ' ')}"
    )


def plural(axis: str) -> str:
    """What several sizes along `axis` are called: widths, batch sizes, params."""
    name = "granularitie" if axis == "granularity" else axis.replace("_", " ").removesuffix("s")
    return f"{name}s"


def label_size(size: Mapping[str, Any], axis: str) -> str:
    """The cell of a size in a column headed `axis`: 64, or w64 d4 b32 s1000 for `JOINT_AXIS`."""
    if axis == JOINT_AXIS:
        return " ".join(f"{key[0]}{size[key]}" for key in LADDER_AXES if size.get(key))
    return str(size[axis])


SizeOrNull = Annotated[int | None, AT_LEAST_ONE]
Sizes = tuple[AtLeastOne, ...]


@dataclass(frozen=True, kw_only=True)
class SizeOverrides(Bounded):
    """An entry of `transfer.sizes`: what differs from the base; None where nothing does."""

    width: SizeOrNull = None
    depth: SizeOrNull = None
    batch_size: SizeOrNull = None
    steps: SizeOrNull = None
    experts: SizeOrNull = None
    top_k: SizeOrNull = None
    granularity: SizeOrNull = None

    def changes(self) -> Mapping[str, int]:
        """What differs, by name."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class LadderRule:
    """The ladders to train, the grid of each learning-rate curve, and the verdict's thresholds.

    - `widths`, `depths`, `batches`, `steps`, and of a model with experts `experts`, `top_ks`
      and `granularities` each give a ladder over that axis alone; `sizes` gives one along which
      several axes change at once. Unnamed axes stay at the base's value.
    - `tokens_per_parameter` sets the steps of every size; the base's must have that ratio already.
    - `hyperparameter` is what varies on the curves' horizontal axis. With another one than eta,
      eta stays at the transferred value.
    - `seeds` runs are trained at each point. `span` and `step` (log2) are the half-width and the
      spacing of a curve. A curve with fewer than `BEYOND` points beyond its lowest one grows by
      up to `extend` points on that side.
    - A size holds when its optimum is within `max_shift` (log2) of the base's, and training at
      the base's optimum loses at most the fraction `max_loss_gap` of the size's least loss.
    - `eta` (log2) replaces the study's eta in the plan and as the middle of the curves.
    - `correct` lets the plan use the eta that the trend over width predicts, where warranted.
    - `theory` lets half of the prior on a drift over width be the theory's (`decide/target.py`);
      None: where the parameterization has one.
    - `check` has the coordinate check run at small widths beside every plan.
    """

    widths: Sizes
    depths: Sizes = ()
    batches: Sizes = ()
    steps: Sizes = ()
    experts: Sizes = ()
    top_ks: Sizes = ()
    granularities: Sizes = ()
    sizes: tuple[SizeOverrides, ...] = ()
    tokens_per_parameter: Annotated[float, Bounds(above=0)] | None = None
    hyperparameter: str = "eta"
    seeds: Annotated[int, ONE_OR_MORE] = 2
    span: Positive = 2.0
    step: Annotated[float, SPACING] = 0.5
    extend: Annotated[int, points_from(0)] = 4
    max_shift: Positive = 1.0
    max_loss_gap: Positive = 0.01
    eta: Annotated[float | None, LOG2_OR_NULL] = None
    correct: bool = False
    theory: bool | None = None
    check: bool = True

    def __post_init__(self) -> None:
        if not self.sizes and not any(getattr(self, key) for key in LADDER_AXES.values()):
            raise ConfigError("widths", [], "at least one width, as in [64,128,256]")
        check_bounds(self)
        if self.tokens_per_parameter is not None:
            named = [*self.steps, *(size.steps for size in self.sizes if size.steps)]
            if named:
                key = "steps" if self.steps else "sizes"
                allowed = "no steps beside transfer.tokens_per_parameter, which sets every size's"
                raise ConfigError(key, named, allowed)
        if self.step > self.span:
            raise ConfigError("step", self.step, f"at most span, which is {self.span:g}")
        if self.correct and self.hyperparameter != "eta":
            raise ConfigError(
                "correct", True, "false where hyperparameter is not eta: there is no trend"
            )

    def cheap(self, base: int, target: int) -> LadderRule:
        """At most four widths, none above `target`: what is trained if nobody named any."""
        # Three widths from the base on are cheap where they end within the default's; four carry
        # an answer far beyond them, three do not (docs/transfer.md).
        far = [8 * base] * (target >= 16 * base)
        widths = [size for size in (base, 2 * base, 4 * base, *far) if size <= target]
        widths = widths if len(widths) > 1 else [base, target]
        if base >= target or 4 * base > max(DEFAULT_WIDTHS):
            widths = [size for size in self.widths if size <= target]
        widths = widths if {*widths} - {base} else [*self.widths]
        return replace(self, widths=tuple(widths), seeds=3, step=1.0)

    def ladders(self, base: LadderSize) -> Mapping[str, list[LadderSize]]:
        """The sizes of every ladder by axis, ascending, the base among them.

        An axis without a size beside the base has none. ConfigError for one that the model lacks.
        """
        ladders = {}
        for axis, key in MODEL_AXES.items():
            asked = getattr(self, key) or [value for s in self.sizes if (value := getattr(s, axis))]
            if asked and not getattr(base, axis):
                allowed = f"nothing with a model that has no {axis}: model=moe has"
                raise ConfigError(f"transfer.{key}", [*asked], allowed)
        for axis, key in LADDER_AXES.items():
            values = {*getattr(self, key), getattr(base, axis)}
            if len(values) > 1:
                ladders[axis] = [replace(base, **{axis: value}) for value in sorted(values)]
        joint = {base, *(replace(base, **overrides.changes()) for overrides in self.sizes)}
        if len(joint) > 1:
            ladders[JOINT_AXIS] = sorted(joint)
        return ladders

    def allowed_gap(self, loss: float) -> float:
        """The largest loss gap, in nats, with which a size holds whose least loss is `loss`."""
        return self.max_loss_gap * abs(loss)

    def points_per_line(self) -> int:
        """Values of eta of one size's curve before any extension."""
        # 0.6 / 0.2 is 2.9999999999999996 in binary: a point of each side would be lost.
        return 2 * int(self.span / self.step + 1e-9) + 1

    def line(self, best_log2: Log2Hps, loss: LossLookup) -> LineState:
        """One size's curve around `best_log2`, extended while its lowest point is near its end."""
        side = int(self.span / self.step + 1e-9)
        reach, centre = side * self.step, best_log2[self.hyperparameter]
        axis = Axis(low=centre - reach, high=centre + reach, default=centre)
        beyond = BEYOND if side >= BEYOND and self.step < 1 else 1
        points = self.points_per_line()
        rule = LineRule(step=self.step, points=points, extend=self.extend, beyond=beyond)

        def mean_loss(value: float) -> float | None:
            losses = [loss(point) for point in self.runs_at(best_log2, value)]
            # A mean of some seeds would let the order in which runs end decide where the line goes.
            finished = [loss for loss in losses if loss is not None]
            return sum(finished) / len(finished) if len(finished) == len(losses) else None

        return replay_line(rule, axis, mean_loss)

    def around(self, best_log2: Log2Hps, planned: Log2Hps) -> Log2Hps:
        """The middle of a size's curve: what is `planned`, on the grid of `best_log2`."""
        moved = planned[self.hyperparameter] - best_log2[self.hyperparameter]
        middle = best_log2[self.hyperparameter] + self.step * round(moved / self.step)
        return Log2Hps({**planned, self.hyperparameter: middle})

    def runs_at(self, best_log2: Log2Hps, value: float) -> list[Point]:
        """The runs of one point of a curve, one a seed: `hyperparameter` has `value` (log2)."""
        hps = Log2Hps({**best_log2, self.hyperparameter: value})
        return [Point(log2_hps=hps, seed=seed, phase="validate") for seed in range(self.seeds)]


@dataclass(frozen=True, kw_only=True)
class KnownNoise:
    """A run's standard deviation in nats, where others than a curve's own seeds show it.

    `freedom` are its degrees of freedom: how many differences between runs it was read off.
    `single`: it was read off the curves of single runs. Of `excess` kurtosis is what the runs show
    for sure, 0 of normal noise.
    """

    deviation: float
    freedom: int
    single: bool = False
    excess: float = 0.0

    def freedom_of_difference(self, counts: tuple[float, float]) -> int:
        """Degrees of freedom of Student's distribution, for a difference of means of so many runs.

        Where noise has heavy tails, those of the distribution with the difference's kurtosis.
        """
        share, other_share = (1 / count for count in counts)
        excess = self.excess * (share**3 + other_share**3) / (share + other_share) ** 2
        # Student's has an excess of 6 / (freedom - 4).
        return min(self.freedom, round(4 + 6 / excess)) if excess > 0 else self.freedom


@dataclass(frozen=True, kw_only=True)
class LadderPoint:
    """A point of one size's curve while it is trained: `runs` are planned, `losses` are known.

    `value` is log2 of the rule's hyperparameter; a run that failed has NaN, one that diverged +inf.
    """

    size: LadderSize
    value: float
    runs: int
    losses: tuple[float, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all its runs have ended."""
        return len(self.losses) >= self.runs


@dataclass(frozen=True, kw_only=True)
class LadderSoFar:
    """A ladder as it fills: points of all sizes; sizes that may come `later` have none."""

    hyperparameter: str
    points: tuple[LadderPoint, ...] = ()
    later: tuple[LadderSize, ...] = field(default=(), metadata=WRITTEN_IF_SET)


@dataclass(frozen=True, kw_only=True)
class Cliff:
    """Losses jump out of a basin at `log2`, from `below` to `above`; not `sure`: or climb."""

    log2: float
    below: float
    above: float
    sure: bool = True


@dataclass(frozen=True, kw_only=True)
class SizeCurve:
    """A measured curve: losses by log2 of the rule's hyperparameter, one a seed; +inf: diverged.

    Points of which a run failed are not among them; `failed` counts those runs. `planned_log2` is
    log2 of the factor that a law plans with at this size; 0 without a law. `noise` stands in for
    that of the seeds. A fit's curve has +inf beyond its `cliff`.
    """

    size: LadderSize
    losses: Mapping[float, tuple[float, ...]] = field(default_factory=dict)
    failed: int = 0
    planned_log2: float = 0.0
    noise: KnownNoise | None = None
    cliff: Cliff | None = field(default=None, compare=False, metadata=NOT_WRITTEN)


def curves_along(
    axis: str, curves: Sequence[SizeCurve], sizes: Sequence[LadderSize]
) -> list[SizeCurve]:
    """The curves along `axis`, ascending, of sizes otherwise as in `sizes`: axes share one list."""
    if axis == JOINT_AXIS:
        by_size = {curve.size: curve for curve in curves}
        return [by_size[size] for size in sizes if size in by_size]

    def others(size: LadderSize) -> tuple[int, ...]:
        return tuple(getattr(size, key) for key in LADDER_AXES if key != axis)

    # Without a verdict the base is not known: it is what most curves have beside the axis.
    shared = [others(size) for size in sizes or [curve.size for curve in curves]]
    fixed = max(shared, key=shared.count, default=None)
    along = (curve for curve in curves if others(curve.size) == fixed)
    return sorted(along, key=lambda curve: int(getattr(curve.size, axis)))
