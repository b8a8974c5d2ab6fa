"""Schedules of the learning rate: factors on its peak, step by step, the same for every optimizer.

Every schedule begins with a linear warm-up (`TrainSettings.lr_factor`) and says what follows it.
`train.schedule` is the name of one here, a mapping of its `name` and arguments, or a mapping of
`_target_`, a function of the user's own, and its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from sweeper.errors import ConfigError, key_prefix, suggest
from sweeper.records import Bounded, Bounds, call_checked, user_code
from sweeper.registry import TARGET, import_plugin

SHARE_OF_RUN = Bounds(above=0, most=1, allowed="a share of the run, above 0 and at most 1")
Shape = Literal["linear", "1-sqrt"]
Factor = Callable[[int], float]
"""The factor on the peak learning rate at a step, from 0."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """The part of a run that a schedule sees: its steps, its warm-up, its last factor."""

    steps: int
    warmup: int
    final_lr: float

    def falling(self, step: int, first: int, last: int, shape: Callable[[float], float]) -> float:
        """Factors from 1 at step `first` to `final_lr` at step `last`, by a `shape` from 1 to 0."""
        # `last` is the last step that is trained, and has `final_lr` itself; torch's schedules get
        # there a step later.
        progress = (step - first) / max(1, last - first)
        return self.final_lr + (1 - self.final_lr) * shape(progress)


@dataclass(frozen=True, kw_only=True)
class Constant(Bounded):
    """The peak to the end; `final_lr` is not used."""

    steady: ClassVar[bool] = True

    def factor(self, step: int, span: Span) -> float:
        """1 at every step."""
        return 1.0

    def decay_start(self, span: Span) -> int:
        """It never decays."""
        return span.steps


@dataclass(frozen=True, kw_only=True)
class LinearDecay(Bounded):
    """A line to `final_lr` at the last step."""

    steady: ClassVar[bool] = False

    def factor(self, step: int, span: Span) -> float:
        """PyTorch's LinearLR; with one step less, get_linear_schedule_with_warmup."""
        return span.falling(step, span.warmup, span.steps - 1, _SHAPES["linear"])

    def decay_start(self, span: Span) -> int:
        """The decay begins where the warm-up ends."""
        return span.warmup


@dataclass(frozen=True, kw_only=True)
class Cosine(LinearDecay):
    """Half a cosine to `final_lr` at the last step, from where a line begins."""

    def factor(self, step: int, span: Span) -> float:
        """PyTorch's CosineAnnealingLR; with one step less, get_cosine_schedule_with_warmup."""
        progress = (step - span.warmup) / max(1, span.steps - 1 - span.warmup)
        # Not by `falling`: the order of these products is part of all losses so far.
        return span.final_lr + (1 - span.final_lr) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True, kw_only=True)
class Wsd(Bounded):
    """Warm-up, stable, decay (Hu et al., MiniCPM, arXiv:2404.06395): over the last share `decay`.

    `shape` "1-sqrt" is that of Hägele et al., arXiv:2405.18392.
    """

    steady: ClassVar[bool] = True
    decay: Annotated[float, SHARE_OF_RUN] = 0.2
    shape: Shape = "linear"

    def factor(self, step: int, span: Span) -> float:
        """get_wsd_schedule with one step of decay less: the last step trains at `final_lr`."""
        start = self.decay_start(span)
        return (
            1.0 if step < start else span.falling(step, start, span.steps - 1, _SHAPES[self.shape])
        )

    def decay_start(self, span: Span) -> int:
        """The first of the last `decay` of the steps, after the warm-up."""
        return max(span.warmup, span.steps - round(self.decay * span.steps))


@dataclass(frozen=True, kw_only=True)
class Wsds(Bounded):
    """WSD-S (Wen et al., arXiv:2410.05192): decays at several horizons, and back to the peak.

    `horizons` are shares of the run, rising; its end is always one. Up to a horizon the decay takes
    the last share `decay` of its steps, as that of `Wsd` in a run that ends there.
    """

    steady: ClassVar[bool] = True
    horizons: tuple[Annotated[float, SHARE_OF_RUN], ...] = (0.25, 0.5)
    decay: Annotated[float, SHARE_OF_RUN] = 0.2
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.horizons) != sorted(set(self.horizons)):
            raise ConfigError("horizons", list(self.horizons), "shares of the run that rise")

    def factor(self, step: int, span: Span) -> float:
        """1 between the decays."""
        for start, end in self._decays(span):
            if step < end:
                shape = _SHAPES[self.shape]
                return 1.0 if step < start else span.falling(step, start, end - 1, shape)
        return 1.0

    def decay_start(self, span: Span) -> int:
        """The first step of the last decay."""
        return self._decays(span)[-1][0]

    def _decays(self, span: Span) -> list[tuple[int, int]]:
        decays, before = list[tuple[int, int]](), span.warmup
        ends = [round(share * span.steps) for share in self.horizons]
        for end in dict.fromkeys([*ends, span.steps]):
            # A horizon within the warm-up, or one that rounds to the step of another, is none.
            if end > before or end == span.steps:
                decays.append((max(before, end - round(self.decay * end)), end))
                before = end
        return decays


_SHAPES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "1-sqrt": lambda progress: 1 - math.sqrt(progress),
}

BuiltIn = Constant | LinearDecay | Cosine | Wsd | Wsds
SCHEDULES: Mapping[str, type[BuiltIn]] = {
    "constant": Constant,
    "linear": LinearDecay,
    "cosine": Cosine,
    "wsd": Wsd,
    "wsds": Wsds,
}
DEFAULT = "cosine"
OWN = "the script's own"
"""In a record in place of a schedule: that of a command which takes none, and is not known."""
PLACEHOLDERS = ("schedule", "decay_steps", "warmup_steps")
"""What a command may ask of a schedule, beside the steps: its name, and the steps of its parts."""
Config = str | Mapping[str, Any]
"""`train.schedule`: a name, a name with arguments, or a function of the user's own."""


def built_in(config: Config) -> BuiltIn | None:
    """The schedule here that a config names; None for a function of the user's own.

    ConfigError for what names neither, or an argument that it does not have.
    """
    if isinstance(config, Mapping) and TARGET in config:
        return None
    record = {"name": config} if isinstance(config, str) else config
    name = record.get("name") if isinstance(record, Mapping) else config
    if not isinstance(name, str) or name not in SCHEDULES:
        by_user = f"or {{{TARGET}: package.module.function}}"
        near = suggest(str(name), SCHEDULES)
        raise ConfigError("schedule", name, f"one of {', '.join(SCHEDULES)} ({near}), {by_user}")
    with key_prefix("schedule"):
        arguments = {key: value for key, value in record.items() if key != "name"}
        schedule: BuiltIn = call_checked(SCHEDULES[name], arguments, {})
    return schedule


def complete(config: Config) -> Config:
    """The config with every argument: two that mean the same are the same.

    A schedule without arguments is its name.
    """
    if (schedule := built_in(config)) is None:
        return config
    name = config if isinstance(config, str) else config["name"]
    arguments = asdict(schedule)
    return {"name": name, **arguments} if arguments else str(name)


def name_of(config: Config) -> str:
    """The schedule's name; the dotted path of a user's own."""
    return config if isinstance(config, str) else str(config.get("name") or config[TARGET])


def after_warmup(config: Config, span: Span) -> Factor:
    """The factor at each step after the warm-up.

    ConfigError for a function of the user's own that cannot be called, or gives no factor.
    """
    if (schedule := built_in(config)) is not None:
        return partial(schedule.factor, span=span)
    assert not isinstance(config, str)
    key, name = f"schedule.{TARGET}", config[TARGET]
    target = import_plugin(name, key)
    arguments = {argument: value for argument, value in config.items() if argument != TARGET}

    def user_factor(step: int) -> float:
        # Factors are worked out ahead in blocks, of which the last goes beyond the run.
        step = min(step, span.steps - 1)
        with user_code(key, name, "a function that gives a factor"), key_prefix("schedule"):
            value = call_checked(target, arguments, {"step": step, **asdict(span)})
        # 1e6 bounds slips of the pen: factors are on a peak that was searched for.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            allowed = f"a function that gives a factor, 0 or more; at step {step} it gives {value}"
            raise ConfigError(key, name, allowed)
        return float(value)

    return user_factor


def modules(config: Config) -> list[str]:
    """The module of a function of the user's own, if the config names one."""
    target = config.get(TARGET) if isinstance(config, Mapping) else None
    return [target.rpartition(".")[0]] if isinstance(target, str) else []


def record(config: Config, span: Span) -> dict[str, Any]:
    """What a plan says of the schedule: the config's arguments, and its steps in numbers."""
    kind = built_in(config)
    parts = {**({} if isinstance(config, str) else config), "name": name_of(config), **asdict(span)}
    return parts if kind is None else parts | {"decay_start": kind.decay_start(span)}
