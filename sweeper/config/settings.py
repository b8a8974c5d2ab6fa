"""The resolved configuration as records: every value is checked here, before anything runs.

`resolve` is where a key of conf/ becomes a checked field. A group (optimizer, search, ...) is built
as the class that it names, a section (train, transfer, check, study) as a record; both by
`records.call_checked`, which reads names, types and bounds from the annotations. A model is built
without weights (`engine/prepare.py`). `resolve` stands first with its steps behind it, then the
search space, then what it returns: `Settings`, and `Experiment`, which makes trials of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeper import schedule
from sweeper.check.judge import CheckRule
from sweeper.config.command_line import key_of
from sweeper.data.corpus import Corpus, Source, UserData, placeholder_data
from sweeper.engine.architecture import build_named, check_build
from sweeper.engine.optimizers.optimizer import Optimizer
from sweeper.engine.prepare import PreparedSpec, optional_hyperparameters, prepare
from sweeper.errors import ConfigError, flag, key_prefix, suggest
from sweeper.gone import gone
from sweeper.launch.code import MAIN, main_code, user_modules
from sweeper.launch.executor import Launcher, RunnerSettings
from sweeper.launch.inline import Inline
from sweeper.laws.law import Law
from sweeper.models.fp8 import Fp8
from sweeper.plan.plan import make_plan, sets_text
from sweeper.records import call_checked, to_json, user_code
from sweeper.registry import (
    TARGET,
    build_plugin,
    classes_in,
    import_plugin,
    is_shipped,
    plugin_name,
    plugin_target,
    with_names,
)
from sweeper.scaling.gamma import GAMMAS, check_names, group_gammas, groups_of
from sweeper.scaling.prescription import decayed_of
from sweeper.scaling.spec import RULE_KEYS, Parameterization
from sweeper.search.fresh import FreshSeeds, Settled
from sweeper.search.optuna.url import redact
from sweeper.search.strategy import FRESH_SEEDS, Strategy, chosen_axes
from sweeper.stats.ladder import (
    DEFAULT_WIDTHS,
    JOINT_AXIS,
    LADDER_AXES,
    LADDER_KEYS,
    LadderRule,
    LadderSize,
    Size,
    label_size,
)
from sweeper.study.logs.log import Logger
from sweeper.study.study import check_study_name, read_root
from sweeper.trial import (
    Axis,
    Choice,
    Log2Hps,
    PluginSpec,
    Space,
    TrainSettings,
    Trial,
    TrialSpec,
    defaults,
    numerics_beside,
    plain,
    split,
)

MAX_SIZE = Size(width=2**20, depth=2**12)
"""A larger size is a slip of the pen, and building its model would take forever."""
MAX_TRIALS = 10**6
"""Likewise for the trials of a search, or of one size's learning-rate curve."""

MODEL_SIZES = ("model.width", "model.depth", "model.ffn_ratio")
"""What a model refuses that cannot have a size."""

GROUPS = (
    *("parameterization", "model", "optimizer", "search", "runner"),
    *("launcher", "data", "logger", "fp8", "law"),
)
SECTIONS = (*GROUPS, "study", "train", "transfer", "check")
"""The mappings that make up a configuration, beside the key `root`."""


def resolve(raw: Mapping[str, Any], overrides: Sequence[str] = ()) -> Settings:
    """The checked tree with its plugins; ConfigError names the first key that is invalid."""
    keys = {*SECTIONS, "root"}
    for key in raw:
        if key not in keys:
            near = gone(key) or f"; {suggest(key, keys)}"
            raise ConfigError(key, raw[key], f"there is no such key{near}")
    for key in SECTIONS:
        if not isinstance(raw.get(key), Mapping):
            raise ConfigError(key, raw.get(key), "a mapping, which no configuration can do without")
    if "root" not in raw:
        raise ConfigError("root", None, "the path of a folder")

    def plugin(group: str, kind: type) -> Any:
        with key_prefix(group):
            return checked_plugin(raw[group], kind)

    def section(key: str, kind: type) -> Any:
        with key_prefix(key):
            return call_checked(kind, raw[key], {})

    def base_size(key: str) -> int:
        value, limit = raw["model"].get(key), getattr(MAX_SIZE, key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
            raise ConfigError(f"model.{key}", value, f"a whole number from 1 to {limit}")
        return value

    optimizer = plugin("optimizer", Optimizer)
    with key_prefix("parameterization"):
        space = read_space(raw["parameterization"], optional_hyperparameters(optimizer))
    study: StudySettings = section("study", StudySettings)
    base = Size(width=base_size("width"), depth=base_size("depth"))
    search = plugin("search", Strategy)
    settings = Settings(
        raw=raw,
        name=check_study_name(study.name if study.name is not None else default_name(raw)),
        storage=study.storage,
        root=read_root(raw["root"]),
        space=space,
        search=search,
        runner=plugin("runner", RunnerSettings),
        launcher=plugin("launcher", Launcher),
        launcher_chosen=any(word.lstrip("+").startswith("launcher") for word in overrides),
        source=plugin("data", Source),
        logger=plugin("logger", Logger),
        fp8=plugin("fp8", Fp8),
        law=plugin("law", Law),
        transfer=section("transfer", LadderRule),
        check=section("check", CheckRule),
        base=base,
    )
    # Order matters: the model is built at its base first, and what it has no place for leaves the
    # space; counts and ladders are judged on the space that is left.
    with key_prefix("runner"):
        settings.runner.precision(settings.launcher)
    _check_runner(settings)
    for target in classes_in(raw):
        if target.startswith(f"{MAIN}."):
            name = target.rpartition(".")[2]
            settings = settings.trained_here(
                f"{name} was defined in a notebook or in the script that runs, where no other "
                "process can import it",
                f"Write it to a file, as with %%writefile net.py in a notebook's cell, and import "
                f"it: from net import {name}",
            )
    check_model_size(settings, settings.base)
    if not settings.scaled_by_user:
        settings = _fitted_to_model(settings)
    # A strategy of the user's own may not know of fresh seeds: it gets the usual number.
    fresh = getattr(search, "fresh_seeds", FRESH_SEEDS)
    # Without {seed} in a command all of them would be the run that was chosen.
    seeds = fresh if settings.runner.takes("seed") else 0
    if getattr(search, "until", "planned") == "settled":
        if not settings.runner.takes("seed"):
            allowed = "planned, as the command takes no {seed}: all seeds would be one run"
            raise ConfigError("search.until", "settled", allowed)
        search = Settled(strategy=search)
    of_command = bool(settings.raw["runner"].get("command"))
    settings = replace(
        settings, search=FreshSeeds(strategy=search, seeds=seeds, of_command=of_command)
    )
    with key_prefix("search"):
        phases = settings.search.plan(settings.space)
    if (trials := sum(phase.trials for phase in phases)) > MAX_TRIALS:
        raise ConfigError("search", f"{trials} trials", f"at most {MAX_TRIALS}")
    rule = settings.transfer
    if (trials := rule.points_per_line() * rule.seeds) > MAX_TRIALS:
        raise ConfigError("transfer", f"{trials} trials a size", f"at most {MAX_TRIALS}")
    return _with_possible_ladders(settings)


def checked_plugin(config: Mapping[str, Any], kind: type) -> Any:
    """Build a plugin; ConfigError for one that lacks a member of the protocol `kind`."""
    with user_code(TARGET, config.get(TARGET), "a class that takes these values"):
        return build_plugin(config, protocol=kind)


def default_name(raw: Mapping[str, Any]) -> str:
    """`<parameterization>-<search>-w<width>-d<depth>`; a user's own class by its module."""
    names = [plugin_name(g, str(raw[g][TARGET])) for g in ("parameterization", "search")]
    parts = [name.split(".")[-2] if "." in name else name for name in names]
    return "-".join([*parts, f"w{raw['model']['width']}", f"d{raw['model']['depth']}"])


def _check_runner(settings: Settings) -> None:
    runner = settings.runner
    try:
        runner.check_use(tuple(settings.space), scaled_by_user=settings.scaled_by_user)
    except ConfigError as error:
        # A runner names its own keys; one that speaks of another section names it whole.
        whole = error.key.partition(".")[0] in SECTIONS
        raise error if whole else error.below("runner") from error
    if not runner.takes("data") and not isinstance(settings.source, UserData):
        name = settings.plugin_spec("data").name
        raise ConfigError("data", name, "data=own: the command reads its own")
    check_seeds(settings, "search.seeds", getattr(settings.search, "seeds", 1))
    _check_schedule(settings)


def _check_schedule(settings: Settings) -> None:
    config = settings.raw["train"].get("schedule", schedule.DEFAULT)
    train = settings.spec({"digest": ""}, "float32", settings.base).train
    with key_prefix("train"):
        # A function of the user's own is called here for the first time: at both ends, and where
        # the warm-up ends.
        train.lr_factors(sorted({0, train.span.warmup, train.steps - 1}))
    takes = any(map(settings.runner.takes, schedule.PLACEHOLDERS))
    if schedule.complete(config) != schedule.DEFAULT and not takes:
        listed = ", ".join(f"{{{name}}}" for name in schedule.PLACEHOLDERS)
        raise ConfigError(
            "train.schedule",
            schedule.name_of(config),
            f"a command that takes one of {listed}; or runner.uses=[schedule], where the script "
            "reads it from trial.json",
        )


def check_seeds(settings: Settings, key: str, seeds: int) -> None:
    """ConfigError for several seeds where they would all be the same run."""
    if seeds > 1 and not settings.runner.takes("seed"):
        raise ConfigError(
            key,
            seeds,
            "1 alone: the command takes no {seed}, so that all runs of a point would be the same. "
            f"Where the script takes one, add it and search again: {flag('seed')}={{seed}}, or "
            "runner.uses=[seed] where it reads trial.json",
        )


def check_model_size(settings: Settings, size: Size, *, classified: bool = True) -> None:
    """Build the model of `size` without weights; ConfigError names the invalid `model.` key.

    It is `classified`, too, unless it is enough that it can be built, a tenth of the time.
    """
    for key in ("width", "depth"):
        if getattr(size, key) > (limit := getattr(MAX_SIZE, key)):
            raise ConfigError(f"model.{key}", getattr(size, key), f"at most {limit}")
    if settings.scaled_by_user:
        return  # the model is the command's, and nobody else can build it
    target = settings.raw["model"].get(TARGET)
    spec = settings.spec(placeholder_data(settings.source), "float32", size)
    with user_code(f"model.{TARGET}", target, "a model that can be built"):
        if classified:
            prepare(spec)
        else:
            rules: Parameterization = build_named("parameterization", spec.parameterization)
            check_build(spec, rules.unit_scaled)


def _fitted_to_model(settings: Settings) -> Settings:
    """The settings without hyperparameters that change nothing in the model, and notes on it.

    To search them would spend trials on noise. ConfigError for one that is asked for by name.
    """
    prepared = prepare(settings.spec(placeholder_data(settings.source), "float32", settings.base))
    dead = [name for name in prepared.dead_hyperparameters() if name in settings.space]
    pairs = getattr(settings.search, "pairs", None) or ()
    asked = {*(getattr(settings.search, "axes", None) or ()), *(n for pair in pairs for n in pair)}
    for name in dead:
        if name in asked or name == settings.transfer.hyperparameter:
            of_curves = name == settings.transfer.hyperparameter
            key = "transfer.hyperparameter" if of_curves else "search"
            allowed = "it changes nothing in this model: a hyperparameter that does"
            raise ConfigError(key, name, allowed)
    space = {name: axis for name, axis in settings.space.items() if name not in dead}
    notes = prepared.left_out(plain(defaults(space)))
    if dead:
        notes.insert(0, f"{', '.join(dead)}: changes nothing in this model, and is not searched")
    notes += prepared.architecture.cautions
    settings = replace(settings, space=space, notes=(*settings.notes, *notes))
    if is_shipped(str(settings.raw["model"].get(TARGET))) and prepared.by_engine:
        return settings
    return _with_decay_of_own_model(settings, prepared)


def _with_decay_of_own_model(settings: Settings, prepared: PreparedSpec) -> Settings:
    """What of a user's model decays, decided where it is left open, and a note on what is set.

    With norms the matrices do, as in most recipes. Studies of earlier versions have no such key,
    and all of their parameters decay.
    """
    optimizer = settings.raw["optimizer"]
    if optimizer.get("decayed", "all") is None:
        optimizer = {**optimizer, "decayed": decayed_of(prepared.optimizer, prepared.specs)}
        settings = replace(settings, raw={**settings.raw, "optimizer": optimizer})
        prepared = prepare(
            settings.spec(placeholder_data(settings.source), "float32", settings.base)
        )
    base, hps = settings.base, plain(defaults(settings.space))
    plan = make_plan(prepared, base, base, hps, {})
    note = sets_text(plan, in_script=not prepared.by_engine, clip=prepared.train.clip)
    return replace(settings, notes=(*settings.notes, note))


def _with_possible_ladders(settings: Settings) -> Settings:
    """The settings, the sizes of ladders and the hyperparameter of their curves checked.

    Of widths that nobody typed, those that the model cannot have are left out.
    """
    hyperparameter, base = settings.transfer.hyperparameter, settings.base
    chosen_axes(settings.space, [hyperparameter], key="transfer.hyperparameter")
    if settings.space[hyperparameter].choices:
        raise ConfigError(
            "transfer.hyperparameter", hyperparameter, "a hyperparameter with a range, not choices"
        )
    by_default = settings.transfer.widths == DEFAULT_WIDTHS
    if by_default:
        # Of the default alone: a width that somebody typed and the model cannot have is an error
        # below.
        def possible(width: int) -> bool:
            try:
                check_model_size(settings, replace(base, width=width), classified=False)
            except ConfigError as error:
                if error.key not in MODEL_SIZES:
                    raise
                return False
            return True

        widths = tuple(filter(possible, DEFAULT_WIDTHS))
        # None is left beside the base: a ladder has to have a second step.
        if not {*widths} - {base.width}:
            widths = tuple(filter(possible, (base.width, 2 * base.width, 4 * base.width)))
        if widths != DEFAULT_WIDTHS:
            rule = replace(settings.transfer, widths=widths)
            listed = ", ".join(map(str, sorted({*widths, base.width})))
            note = f"the model cannot have all widths of transfer.widths: its ladder is {listed}"
            settings = replace(settings, transfer=rule, notes=(*settings.notes, note))
    for axis, sizes in settings.ladders().items():
        for size in () if by_default and axis == "width" else sizes:
            try:
                check_model_size(settings, size)
            except ConfigError as error:
                # No fault of the size: it is said under its own key.
                if error.key not in MODEL_SIZES:
                    raise
                key = LADDER_AXES.get(axis, "sizes")
                joint = axis == JOINT_AXIS
                value = label_size(asdict(size), axis) if joint else getattr(size, axis)
                allowed = f"sizes that the model can have ({error})"
                raise ConfigError(f"transfer.{key}", value, allowed) from error
    return settings


def read_space(parameterization: Mapping[str, Any], optional_names: Sequence[str]) -> Space:
    """The search space of a parameterization's config: every hyperparameter it has, no other.

    Gammas, and `optional_names`, factors on settings of the training, may be in any space and need
    not be; the gamma of a group that the configuration names must.
    `parameterization=own` has no hyperparameters: there the user names them, the learning rate eta
    first, and an axis may be a list of choices.
    """
    space = parameterization.get("space")
    if not isinstance(space, Mapping):
        raise ConfigError("space", space, "a mapping from hyperparameter to {low, high, default}")
    config = {key: value for key, value in parameterization.items() if key != "space"}
    rules = checked_plugin(config, Parameterization)
    check_names(groups_of(rules))
    for group, name in zip(groups_of(rules), group_gammas(rules), strict=True):
        if space.get(name) is None:
            allowed = f"an axis of the group {group}: "
            allowed += f"'+parameterization.space.{name}={{low: -3, high: 3, default: 0}}'"
            raise ConfigError(f"space.{name}", None, allowed)
    # Of a parameterization every hyperparameter, each with its range: one without a value would be
    # half a rule. `own` has none, and there the space itself says which there are.
    required = rules.hyperparameters
    named_by_user = not required
    if named_by_user:
        for name in space:
            if not (isinstance(name, str) and name.isidentifier()):
                raise ConfigError("space", name, "names of letters, digits and underscores")
        if "eta" not in space:
            allowed = "eta among them: here that is the learning rate"
            raise ConfigError("space", sorted(space), allowed)
        required = ("eta", *(name for name in space if name != "eta"))
    else:
        required = (*required, *group_gammas(rules))
        optional_names = (*GAMMAS, *optional_names)
    choices = (*required, *optional_names)
    for name in space:
        if name not in choices:
            allowed = f"no such name; {suggest(name, choices)}"
            raise ConfigError(f"space.{name}", space[name], allowed)
    names = (*required, *(name for name in optional_names if name in space))
    return {
        name: _axis(f"space.{name}", space.get(name), may_choose=named_by_user and name != "eta")
        for name in names
    }


def _axis(key: str, value: Any, *, may_choose: bool) -> Axis:
    if not isinstance(value, Mapping):
        listed = ", or {choices, default}" if may_choose else ""
        raise ConfigError(key, value, f"a mapping {{low, high, default}}, in log2{listed}")
    if "choices" not in value:
        with key_prefix(key):
            axis: Axis = call_checked(Axis, value, {})
        return axis
    if not may_choose:
        raise ConfigError(f"{key}.choices", value["choices"], "a range {low, high, default}")
    if other := sorted(set(value) - {"choices", "default"}):
        raise ConfigError(f"{key}.{other[0]}", value[other[0]], "choices and default alone")
    choices = value["choices"]
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise ConfigError(f"{key}.choices", choices, "a list of values")
    for choice in choices:
        # Of all numbers NaN alone differs from itself.
        if not isinstance(choice, Choice) or choice in (math.inf, -math.inf) or choice != choice:
            raise ConfigError(f"{key}.choices", choice, "texts, finite numbers, true or false")
    # 1, 1.0 and true are equal in Python, and three values of a command line.
    kinds = [(type(choice), choice) for choice in choices]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"{key}.choices", list(choices), "each value once")
    default = value.get("default", choices[0])
    if (type(default), default) not in kinds:
        raise ConfigError(f"{key}.default", default, f"one of {list(choices)}")
    place = float(kinds.index((type(default), default)))
    return Axis(low=0.0, high=len(choices) - 1.0, default=place, choices=tuple(choices))


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """A study's name (None: made from the configuration) and its Optuna URL (None: a journal)."""

    name: str | None = None
    storage: str | None = None

    def __post_init__(self) -> None:
        if self.storage is not None and "://" not in self.storage:
            allowed = "null, or a URL such as mysql://host/name"
            raise ConfigError("storage", redact(self.storage), allowed)


def defaults_left_out(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a plugin that JSON names only where they are set, at their defaults."""
    kind = import_plugin(config.get(TARGET))
    if not is_dataclass(kind):
        return {}
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
        if field.metadata.get("written_if_set")
    }


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One command's configuration. `raw` is the resolved tree that it was read from.

    `notes` are sentences for the user: what of the parameterization the model has no place for, and
    why no other process trains it. `launcher_chosen`: by a word of the command, not by default.
    `steps_of` are a size's steps where `transfer.tokens_per_parameter` sets them, known once the
    data are: see `sweep.study_replay.at_fixed_ratio`.
    """

    raw: Mapping[str, Any]
    name: str
    storage: str | None
    root: Path
    space: Space
    search: Strategy
    runner: RunnerSettings
    launcher: Launcher
    launcher_chosen: bool
    source: Source
    logger: Logger
    fp8: Fp8
    law: Law
    transfer: LadderRule
    check: CheckRule
    base: Size
    notes: tuple[str, ...] = ()
    steps_of: Callable[[LadderSize], int] | None = None

    @property
    def scaled_by_user(self) -> bool:
        """Whether a command scales by itself: no parameterization of sweeper's says anything."""
        target = str(self.raw["parameterization"].get(TARGET))
        return plugin_name("parameterization", target) == "own"

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.root / self.name

    def trained_here(self, why: str, remedy: str) -> Settings:
        """Settings for one process, for the reason `why`; ConfigError for another launcher."""
        if isinstance(self.launcher, Inline):
            return self
        if self.launcher_chosen:
            name = self.plugin_spec("launcher").name
            raise ConfigError("launcher", name, f"inline: {why}. {remedy}")
        raw = {**self.raw, "launcher": {TARGET: plugin_target("launcher", "inline")}}
        notes = (*self.notes, f"{why}: this one trains")
        return replace(self, raw=raw, launcher=Inline(), notes=notes)

    def timed(self, size: Size) -> Size:
        """The target `size` with its steps, where these follow from its parameters."""
        if self.steps_of is None or isinstance(size, LadderSize):
            return size
        return self.with_steps(replace(self.ladder_base, width=size.width, depth=size.depth))

    @property
    def not_taken(self) -> tuple[str, ...]:
        """Sizes of training that runs are not given: a user command may take no {batch_size}."""
        return tuple(name for name in ("steps", "batch_size") if not self.runner.takes(name))

    @property
    def ladder_base(self) -> LadderSize:
        """The base as a step of the ladders."""
        return LadderSize.of(self.base, self.raw["model"], self.raw["train"])

    def ladders(self) -> Mapping[str, list[LadderSize]]:
        """`LadderRule.ladders` around the base, each size with its steps."""
        ladders = self.transfer.ladders(self.ladder_base)
        return {axis: list(map(self.with_steps, sizes)) for axis, sizes in ladders.items()}

    def up_to(self, width: int, overrides: Sequence[str] = ()) -> Settings:
        """The settings with the widths of a ladder that nobody typed ending at a target of `width`.

        Where neither the configuration nor `overrides` say anything of ladders, with cheap ones.
        """
        kept, default = self.raw["transfer"], to_json(LadderRule(widths=DEFAULT_WIDTHS))
        if kept["widths"] != default["widths"]:
            return self
        rule, cheap = self.transfer, self.transfer.cheap(self.base.width, width)
        typed = {key_of(word).removeprefix("transfer.") for word in overrides} & {*LADDER_KEYS}
        if typed or any(kept.get(key, default[key]) != default[key] for key in LADDER_KEYS):
            widths = tuple(size for size in rule.widths if size <= width)
            cheap = replace(rule, widths=widths if {*widths} - {self.base.width} else rule.widths)
        return replace(self, transfer=cheap)

    def with_steps(self, size: LadderSize) -> LadderSize:
        """The size with the steps of `steps_of`; the base, which says its own, is as it is."""
        if self.steps_of is None or size == self.ladder_base:
            return size
        return replace(size, steps=self.steps_of(size))

    def plugin_spec(self, group: str) -> PluginSpec:
        """The plugin of a group by its stable name, with the arguments it is built with."""
        config = with_names(group, self.raw[group])
        non_arguments = {"parameterization": ("space",), "model": ("width", "depth")}
        omitted = (TARGET, *non_arguments.get(group, ()))
        # What says nothing is left out: a key that was never given, or that came later, is no other
        # trial.
        rules = RULE_KEYS if group == "model" else ()
        silent = defaults_left_out(self.raw[group]) if group == "parameterization" else {}
        arguments = {
            key: value
            for key, value in config.items()
            if key not in omitted and (value or key not in rules)
            if key not in silent or value != silent[key]
            if not (group == "optimizer" and key == "decayed" and value != "matrices")
        }
        return PluginSpec(name=str(config.get(TARGET)), arguments=arguments)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The runner's part of a trial's key; the content of modules of the user's own is in it."""
        # Two versions of a user's class under one name must not share trials: their files are
        # digested.
        names = []
        for group in ("parameterization", "model", "optimizer"):
            plugin = self.plugin_spec(group)
            # A parameterization may change another one, which is among its arguments.
            inner = (value for value in plugin.arguments.values() if isinstance(value, Mapping))
            names += [plugin.name, *(str(value.get(TARGET, "")) for value in inner)]
        modules = {name.rpartition(".")[0] for name in names if not name.startswith("sweeper.")}
        modules |= set(schedule.modules(self.raw["train"].get("schedule", schedule.DEFAULT)))
        digests = {
            k: v for name in sorted(modules - {"", MAIN}) for k, v in user_modules(name).items()
        }
        for name in classes_in(self.raw):
            digests |= main_code(name)
        runner = {**self.runner.identity(), **({"modules": digests} if digests else {})}
        return {**runner, **numerics_beside(runner, names, self.raw)}

    def spec(self, data: Mapping[str, Any], precision: str, size: Size) -> TrialSpec:
        """What determines a trial of `size` beside its hyperparameters and its seed."""
        train = {**self.raw["train"], **size.train_overrides()}
        # What "auto" is on this machine becomes part of the key: precisions train differently.
        if train["precision"] == "auto":
            train["precision"] = precision
        with key_prefix("train"):
            train_settings: TrainSettings = call_checked(TrainSettings, train, {})
        base_steps, steps = self.raw["train"]["steps"], train_settings.steps
        shape = schedule.built_in(train_settings.schedule)
        if shape and shape.steady and steps != base_steps:
            # As many steps at every horizon: runs are then the same up to where the shorter decays.
            warmup = min(1.0, round(train_settings.warmup * base_steps) / steps)
            train_settings = replace(train_settings, warmup=warmup)
        return TrialSpec(
            runner=self.identity,
            parameterization=self.plugin_spec("parameterization"),
            model=self.plugin_spec("model").with_arguments(size.model_overrides()),
            width=size.width,
            depth=size.depth,
            base_width=self.base.width,
            base_depth=self.base.depth,
            optimizer=self.plugin_spec("optimizer"),
            data=dict(data),
            train=train_settings,
            # Without casts it is left out, so that a config that casts nothing is no other trial.
            fp8=self.plugin_spec("fp8") if self.fp8.casts else None,
        )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Settings with their corpus at hand: makes trials of any size."""

    settings: Settings
    corpus: Corpus
    precision: str
    # Every look at a ladder asks for all its specifications and trials, and keys take time.
    _specs: dict[Size, TrialSpec] = field(default_factory=dict, init=False, compare=False)
    _trials: dict[tuple[Any, ...], Trial] = field(default_factory=dict, init=False, compare=False)

    def spec(self, size: Size) -> TrialSpec:
        """The specification of the trials of `size`."""
        if size not in self._specs:
            spec = self.settings.spec(self.corpus.identity(), self.precision, size)
            self._specs[size] = spec
        return self._specs[size]

    def prepared(self, size: Size) -> PreparedSpec:
        """What the trials of `size` share."""
        return prepare(self.spec(size))

    def trial(self, size: Size, log2_hps: Log2Hps, seed: int, phase: str) -> Trial:
        """A trial of `size` at a point of the space."""
        key = (size, tuple(log2_hps.items()), seed, phase)
        if key not in self._trials:
            numbers, choices = split(self.settings.space, log2_hps)
            self._trials[key] = Trial(
                spec=self.spec(size), log2_hps=numbers, seed=seed, phase=phase, choices=choices
            )
        return self._trials[key]
