"""What all layers exchange: a trial, and its result.

A trial is a specification (model, data, optimizer, and how it is trained), hyperparameters within
a space, and a seed. Its key is a digest of all that determines its result, which is judged from its
losses in the same way for every runner.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NewType, cast

from sweeper.errors import ConfigError
from sweeper.records import WRITTEN_IF_SET, Bounds, Build, check_bounds, to_json
from sweeper.schedule import DEFAULT, Config, Span, after_warmup, built_in, complete, name_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ONE_OR_MORE = Bounds(least=1)
LOG2 = Bounds(least=-60, most=60, allowed="a base-2 logarithm between -60 and 60")
LOG2_OR_NULL = Bounds(least=-60, most=60, allowed=f"{LOG2}, or null")
SHARE = Bounds(least=0, most=1, allowed="a share between 0 and 1")
SCHEDULE_HPS = ("warmup", "final_lr")
"""Hyperparameters that any space may hold: factors on settings of the schedule."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Length, batch, schedule, precision and objective of a run.

    `warmup` and `objective_window` are fractions of `steps`; by `schedule`, one of
    `sweeper.schedule`, the learning rate ends at `final_lr` times its peak. The objective is the
    mean training loss over the last `objective_window`, or the loss on held-out data at the end.
    A batch is computed in `accumulate` equal parts, whose gradients are averaged.
    `clip` bounds the norm of a trial's gradients, all parameters together; None leaves them.
    `min_lr` is the last learning rate itself, in place of a share: `final_lr` is it over eta.
    Precision bfloat16 is an autocast over float32 weights, float16 another with a scaled loss, tf32
    the matrix products of float32 with the shorter mantissa of a GPU's tensor cores.
    """

    steps: Annotated[int, ONE_OR_MORE]
    batch_size: Annotated[int, ONE_OR_MORE]
    seq_len: Annotated[int, ONE_OR_MORE]
    warmup: Annotated[float, SHARE] = 0.1
    final_lr: Annotated[float, SHARE] = 0.1
    accumulate: Annotated[int, ONE_OR_MORE] = 1
    objective: Literal["training", "heldout"] = "training"
    objective_window: Annotated[float, Bounds(above=0, most=1)] = 0.1
    heldout_batches: Annotated[
        int | None, Bounds(least=1, allowed="1 or more, or null: all that there is")
    ] = 8
    precision: Literal["float32", "tf32", "float16", "bfloat16", "bfloat16_stream", "float64"] = (
        "float32"
    )
    clip: Annotated[float | None, Bounds(above=0, allowed="null, or a positive number")] = None
    # Not written at its default: trials from before there was a choice keep their keys.
    schedule: Config = field(default=DEFAULT, metadata=WRITTEN_IF_SET)
    min_lr: Annotated[float | None, Bounds(least=0, allowed="null, or a learning rate")] = field(
        default=None, metadata=WRITTEN_IF_SET
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        object.__setattr__(self, "schedule", complete(self.schedule))
        if self.batch_size % self.accumulate:
            allowed = f"a divisor of batch_size, which is {self.batch_size}"
            raise ConfigError("accumulate", self.accumulate, allowed)

    def __hash__(self) -> int:
        # Not of all fields: the schedule may be a mapping.
        length = (self.steps, self.batch_size, self.seq_len, self.warmup, self.final_lr)
        return hash((*length, name_of(self.schedule)))

    def with_hps(self, hps: PlainHps) -> TrainSettings:
        """The settings of a trial with hyperparameters `hps`, which may change its schedule."""
        names = [name for name in SCHEDULE_HPS if name in hps]
        # A fraction of the run, or of the peak, cannot exceed 1.
        schedule = {name: min(1.0, getattr(self, name) * hps[name]) for name in names}
        if self.min_lr is not None and "eta" in hps:
            schedule["final_lr"] = min(1.0, self.min_lr / hps["eta"])
        return replace(self, **schedule) if schedule else self

    def window(self) -> int:
        """Steps in the objective's last stretch."""
        return max(1, ceil(self.objective_window * self.steps))

    @property
    def span(self) -> Span:
        """The run as its schedule sees it."""
        warmup = round(self.warmup * self.steps)
        return Span(steps=self.steps, warmup=warmup, final_lr=self.final_lr)

    def lr_factors(self, steps: Iterable[int]) -> list[float]:
        """The factors on the peak learning rate at `steps`, from 0: linear warm-up, then as told.

        ConfigError for a schedule of the user's own that gives none.
        """
        span = self.span
        after = after_warmup(self.schedule, span)
        # From 1/warmup up to 1: at 0 the first step would change nothing.
        return [(step + 1) / span.warmup if step < span.warmup else after(step) for step in steps]

    @property
    def decay_start(self) -> int:
        """The step at which the last decay begins: up to it another horizon may be the same run.

        Of a schedule of the user's own nobody knows: the end of its warm-up.
        """
        schedule = built_in(self.schedule)
        return schedule.decay_start(self.span) if schedule else self.span.warmup


UNSTACKED = {"llama", "vit", "mlp", "encoder_decoder"}
"""Models none of whose parameters is a stack of matrices, nor a projection within the body."""


def numerics_beside(
    runner: Mapping[str, Any], plugins: Iterable[str], tree: Mapping[str, Any]
) -> dict[str, int]:
    """Versions of numerics that only some of the engine's trials have in their keys.

    To raise `NUMERICS` for a correction would disown all old results, where it changed few.

    - norm_gains: those of u-muP with trained norm gains and clipping, which sees that a gain's
      gradient is divided by the root of the tokens.
    - inputs: those of `vit` and `mlp` but for u-muP's. Their input projection was divided by the
      root of its fan-in twice, in its init std and in its forward pass.
    - stacks: those of matrices by Muon, Shampoo or SOAP in models that may stack some: a stack was
      one matrix.
    - body: those of models that may have projections within the body, which had the rules of the
      network's ends, or weights of a norm, whose gains kept the model's own start.
    - relative: those by Adafactor whose steps, as shares of a weight, were too small for it: of a
      readout under spectral_mup, and of experts that are cut.
    - sides: those of rules relative to a base with steps of a matrix or a weight, in models where
      one side of it may grow alone.
    """
    if runner.get("name") != "engine":
        return {}
    names = [name.lower() for name in plugins]
    unit = any("umup" in name for name in names)
    clipped = tree["train"].get("clip") is not None and tree["model"].get("norm_gain")
    versions = {"norm_gains": 2} if unit and clipped else {}
    if {"muon", "shampoo", "soap"}.intersection(names) and not UNSTACKED.intersection(names):
        versions["stacks"] = 2
    if not {*UNSTACKED, "moe"}.intersection(names):
        versions["body"] = 2
    if "adafactor" in names and {"spectral_mup", "moe"}.intersection(names):
        versions["relative"] = 2
    by_side = {"muon", "muonh", "shampoo", "soap", "adafactor", "adamh"}
    apart = {"umup", "spectral"}
    if by_side.intersection(names) and not {*UNSTACKED, *apart, "spectral_mup"}.intersection(names):
        versions["sides"] = 2
    return versions | ({"inputs": 2} if not unit and {"vit", "mlp"}.intersection(names) else {})


Status = Literal["complete", "diverged", "pruned", "failed"]

FORMAT = 4
"""The version of all records. It rises when their content changes, a field of `TrialSpec` or of
`TrainSettings` included. Another version's records are refused, never taken for damaged ones."""

Log2Hps = NewType("Log2Hps", Mapping[str, float])
"""Hyperparameters by name, as base-2 logarithms."""
PlainHps = NewType("PlainHps", Mapping[str, float])
"""Hyperparameters by name, as they are used."""


Choice = str | int | float | bool
"""One of a list of values that are no numbers on a scale."""


def plain(hps: Log2Hps) -> PlainHps:
    """Hyperparameters as they are used: 2 to the power of each, +inf where no float holds it."""
    return PlainHps({n: 2.0**value if value < 1024 else math.inf for n, value in hps.items()})


def log2(hps: PlainHps) -> Log2Hps:
    """Base-2 logarithms of hyperparameters; ValueError for one that is not positive."""
    return Log2Hps({name: math.log2(value) for name, value in hps.items()})


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One hyperparameter's range; `low`, `high` and `default` are base-2 logarithms.

    Of a list of `choices` they are places in the list: strategies know numbers alone. `step` is the
    spacing of its own grid, where it has one.
    """

    low: Annotated[float, LOG2]
    high: Annotated[float, LOG2]
    default: Annotated[float, LOG2] = 0.0
    choices: tuple[Choice, ...] = ()
    step: Annotated[float | None, Bounds(least=2.0**-6, most=16)] = None

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.low > self.high:
            raise ConfigError("low", self.low, f"at most high, which is {self.high:g}")

    def place(self, choice: Choice) -> float:
        """Where a choice is in the list; ValueError if it is not: 1, 1.0 and true are three."""
        # 1 == 1.0 == True in Python; to a training script they are three different texts.
        kinds = [(type(each), each) for each in self.choices]
        return float(kinds.index((type(choice), choice)))

    def grid(self, step: float) -> list[float]:
        """The points from `low` to `high`, `step` apart in log2 or by its own; of choices, all."""
        if self.choices:
            return [float(place) for place in range(len(self.choices))]
        step = self.step or step
        # 1e-9, so that a range of whole steps keeps its end where the division falls short of it.
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [self.low + i * step for i in range(count)]


Space = Mapping[str, Axis]
"""The hyperparameters that may be searched, by name."""


def defaults(space: Space) -> Log2Hps:
    """Every hyperparameter at its default."""
    return Log2Hps({name: axis.default for name, axis in space.items()})


def split(space: Space, hps: Log2Hps) -> tuple[Log2Hps, dict[str, Choice]]:
    """A point of `space` in two parts: base-2 logarithms of its numbers, and its choices.

    A point has a choice as its place in the axis's list.
    """
    chosen = {name: axis.choices for name, axis in space.items() if axis.choices}
    if not chosen:
        return hps, {}
    numbers = Log2Hps({name: value for name, value in hps.items() if name not in chosen})
    return numbers, {name: choices[round(hps[name])] for name, choices in chosen.items()}


def named(space: Space, hps: Log2Hps) -> dict[str, Choice]:
    """A point of `space` for a record: logarithms, and choices by themselves."""
    numbers, choices = split(space, hps)
    return {**numbers, **choices}


def in_use(space: Space, hps: Log2Hps) -> dict[str, Choice]:
    """A point of `space` as it is used: plain numbers, and choices."""
    numbers, choices = split(space, hps)
    return {**plain(numbers), **choices}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A configuration to train with a seed, and the phase that asks for it."""

    log2_hps: Log2Hps
    seed: int
    phase: str

    @property
    def id(self) -> tuple[tuple[tuple[str, float], ...], int]:
        """Its configuration and seed; equal for equal points."""
        return hps_key(self.log2_hps), self.seed


def hps_key(hps: Log2Hps) -> tuple[tuple[str, float], ...]:
    """A configuration as a hashable value; log2 values equal to 1e-9 are one."""
    # + 0.0 turns -0.0 into 0.0.
    return tuple(sorted([(name, round(float(value), 9) + 0.0) for name, value in hps.items()]))


def digest(value: object) -> str:
    """SHA-256 of a JSON value, keys sorted and without spaces, so that equal values agree."""
    # 1 and 1.0 are written differently: whoever makes values for a key keeps to one of them.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PluginSpec:
    """A plugin by its stable name, see `registry.plugins`, with the arguments it is built with."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def with_arguments(self, changed: Mapping[str, Any]) -> PluginSpec:
        """The same plugin, built with `changed` in place of its own arguments of these names."""
        return replace(self, arguments={**self.arguments, **changed}) if changed else self


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialSpec:
    """All that determines a trial's result beside its hyperparameters and its seed.

    `runner` is what the runner adds to the key. `width` and `depth` are the model's, `base_width`
    and `base_depth` those at which the hyperparameters are tuned. `data` identifies the data by
    content. Two specifications are equal when their `digest` is.
    """

    # Keys are digests of these fields as JSON. A new one changes every key, and so FORMAT, unless
    # it is left out at its default (WRITTEN_IF_SET).
    runner: Mapping[str, Any]
    parameterization: PluginSpec
    model: PluginSpec
    width: int
    depth: int
    base_width: int
    base_depth: int
    optimizer: PluginSpec
    data: Mapping[str, Any]
    train: TrainSettings
    fp8: PluginSpec | None = field(default=None, metadata=WRITTEN_IF_SET)

    @property
    def plugins(self) -> tuple[PluginSpec, ...]:
        """The plugins that build its model and train it."""
        always = (self.parameterization, self.model, self.optimizer)
        return always if self.fp8 is None else (*always, self.fp8)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of it as JSON."""
        return digest(to_json(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrialSpec) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def read_json(cls, record: Mapping[str, Any], build: Build) -> TrialSpec:
        """Equal records give one object: the trials of a study share few specifications."""
        # One object also means that its digest, which it caches, is computed once.
        text = json.dumps(record)
        if (spec := _SPECS.get(text)) is None:
            if len(_SPECS) >= MOST_SPECS:
                _SPECS.clear()
            spec = _SPECS[text] = build(record)
        return spec


_SPECS: dict[str, TrialSpec] = {}
"""Specifications that were read, by their text."""
MOST_SPECS = 256


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run, fully resolved.

    `seed` draws the initial weights and the batches. `measurement` names what a run measures
    beside its loss. `phase` only describes; it is no part of the key. `choices` are the
    hyperparameters that are no numbers on a scale.
    """

    log2_hps: Log2Hps
    seed: int = 0
    phase: str = field(default="", compare=False)
    measurement: str = field(default="", metadata=WRITTEN_IF_SET)
    choices: Mapping[str, Choice] = field(default_factory=dict, metadata=WRITTEN_IF_SET)
    spec: TrialSpec

    JSON_SHOWS: ClassVar[tuple[str, ...]] = ("hps",)

    @cached_property
    def key(self) -> str:
        """Digest of everything that determines the result; two equal trials are one."""
        # Rounded, because arithmetic on a grid's values differs in the last digits; + 0.0 turns
        # -0.0, whose JSON is another text, into 0.0. `phase` is left out: two phases share a run.
        hps = {name: round(float(value), 9) + 0.0 for name, value in self.log2_hps.items()}
        content = {"spec": self.spec.digest, "log2_hps": hps, "seed": self.seed}
        # Left out when empty, as they were before there were any: old trials keep their keys.
        extras = {"measurement": self.measurement, "choices": dict(self.choices)}
        return digest(content | {name: value for name, value in extras.items() if value})[:32]

    @cached_property
    def hps(self) -> PlainHps:
        """Hyperparameters that are numbers, as they are used."""
        return plain(self.log2_hps)

    @property
    def values(self) -> Mapping[str, Choice]:
        """All hyperparameters as they are used."""
        return {**self.hps, **self.choices}

    @property
    def train(self) -> TrainSettings:
        """Its settings with what its hyperparameters change of the schedule.

        Those of a command that scales by itself are no factors, whatever their names.
        """
        as_they_are = self.spec.parameterization.name == "own"
        return self.spec.train if as_they_are else self.spec.train.with_hps(self.hps)

    @property
    def width(self) -> int:
        """Width of the trial's model."""
        return self.spec.width

    @property
    def depth(self) -> int:
        """Depth (layers) of the trial's model."""
        return self.spec.depth

    @classmethod
    def read_json(cls, record: Mapping[str, Any], build: Build) -> Trial:
        """ValueError where hyperparameters as they are used are not those of the logarithms."""
        trial: Trial = build(record)
        if not all(map(math.isfinite, trial.log2_hps.values())):
            raise ValueError("a hyperparameter is not a number")
        hps = record["hps"]
        # The logarithms are exact; powers may differ in the last digit from machine to machine.
        if hps.keys() != trial.hps.keys() or not all(
            math.isclose(float(hps[name]), value, rel_tol=1e-9) for name, value in trial.hps.items()
        ):
            raise ValueError("hps and log2_hps do not agree")
        return trial


class OtherFormat(ValueError):
    """A record of another version of sweeper; `format` is the one it names."""

    def __init__(self, format: int) -> None:
        self.format = format
        super().__init__(f"it has format {format}, and this sweeper reads {FORMAT}")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a trial.

    `objective` is the training loss in nats averaged over the last stretch that was trained, or
    where `train.objective` says so the `heldout` one of a complete run; +inf when the run diverged
    and NaN only when it failed for another reason (`error`). `heldout` is the loss on held-out text
    at the end, NaN when a run was pruned before it; `curve` is the training loss, averaged over
    equal stretches of the run; `seconds` is this trial's share of its batch's time on `device`.
    `measurements` is what a run that measures returns, as plain JSON. `accuracy` is the share of
    held-out samples whose class is the likeliest (top-1), of classifiers that tell. `clipped` is
    the share of steps in which `train.clip` was active; None where there is no clip.
    """

    status: Status
    objective: float
    heldout: float = math.nan
    curve: tuple[float, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    finished_at: float = 0.0
    error: str = ""
    device: str = ""
    measurements: Any = field(default=None, metadata=WRITTEN_IF_SET)
    clipped: float | None = field(default=None, metadata=WRITTEN_IF_SET)
    accuracy: float | None = field(default=None, metadata=WRITTEN_IF_SET)
    trial: Trial

    JSON_SHOWS: ClassVar[tuple[str, ...]] = ("format", "key")
    format: ClassVar[int] = FORMAT

    @property
    def key(self) -> str:
        """The trial's key."""
        return self.trial.key

    @classmethod
    def read_json(cls, record: Mapping[str, Any], build: Build) -> Result:
        """ValueError for a record that is not that of its own key.

        `OtherFormat` where another version of sweeper wrote it.
        """
        if (version := record.get("format")) != FORMAT:
            if isinstance(version, int):
                raise OtherFormat(version)
            raise ValueError("it names no format")
        # A study's line ends in the sum of its text, which the study compares.
        result: Result = build({name: value for name, value in record.items() if name != "sum"})
        # Checks the content against what was written, and that this version makes the same key.
        if result.key != record.get("key"):
            raise ValueError("the record's key does not match its content")
        return result


CURVE_POINTS = 100
"""A result keeps its loss curve as at most this many averages."""
DIVERGENCE_RATIO = 2.0
"""A run that ends above this multiple of its first loss has diverged, finite or not."""


def judged(
    losses: NDArray[np.float64], heldout: float | None, stopped: str, train: TrainSettings
) -> tuple[Status, float, float]:
    """Status, objective and held-out loss of a run with `losses` [steps], from its first step.

    `stopped` is how it ended: complete, pruned or diverged. A run has diverged, and its objective
    is +inf, when a loss was not finite, or a complete one ends at more than DIVERGENCE_RATIO times
    its first loss. A held-out loss that is not finite becomes +inf; None, where none is
    measured, NaN.
    """
    objective = float(losses[-train.window() :].mean())
    # All losses, not the objective alone: a run that recovers from an overflow is no good point.
    finite = all(map(math.isfinite, losses.tolist()))
    status = stopped
    # A loss below zero, such as a log-density, is no scale to measure by.
    too_high = losses[0] > 0 and objective > DIVERGENCE_RATIO * float(losses[0])
    if not finite or (status == "complete" and too_high):
        return "diverged", math.inf, math.inf
    if heldout is None or status != "complete":
        return cast(Status, status), objective, math.nan if heldout is None else heldout
    heldout = heldout if math.isfinite(heldout) else math.inf
    if train.objective == "heldout":
        return "complete" if math.isfinite(heldout) else "diverged", heldout, heldout
    return "complete", objective, heldout


def curve(losses: NDArray[np.float64]) -> list[float]:
    """`losses` averaged over at most CURVE_POINTS equal stretches; not finite becomes +inf."""
    import numpy as np  # `--help` reads this file, and loads no numpy

    pieces = np.array_split(losses, min(CURVE_POINTS, len(losses)))
    means = (float(piece.mean()) for piece in pieces)
    return [round(mean, 5) if math.isfinite(mean) else math.inf for mean in means]
