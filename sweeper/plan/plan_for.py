"""`plan_for`: the plan of anybody's model, from the function that builds it.

No data, no study, no folder. First the model's sizes, under the names that its author gave them,
as widths and depths (`SizePair`); then its parameterization, optimizer, hyperparameters and law.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from math import prod
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import yaml  # type: ignore[import-untyped]
from torch import nn

from sweeper.classifier.classify import OF_NO_WIDTH, depths, is_whole, of_the_task, widened
from sweeper.classifier.classify import widths as widths_of
from sweeper.classifier.trace import Tracer
from sweeper.engine.architecture import read_model
from sweeper.engine.optimizers.optimizer import BaseOptimizer, Optimizer
from sweeper.engine.prepare import check_update
from sweeper.errors import BadInput, ConfigError, key_prefix, suggest
from sweeper.laws.law import AppliedLaw, Law, NoLaw, Scale, ask, decay_notes
from sweeper.models.initial_values import special_parameters
from sweeper.plan.plan import Rules, TransferPlan, plan_of
from sweeper.records import to_json, user_code
from sweeper.registry import (
    TARGET,
    build_plugin,
    conf_folder,
    plugin_name,
    plugins,
    with_names,
    with_targets,
)
from sweeper.scaling.gamma import GAMMAS, group_gammas, named_by_user
from sweeper.scaling.prescription import SETTING_FACTORS, decayed_of, held_norms
from sweeper.scaling.spec import DEPTH_NAME, ModelRules, Parameterization, ParamSpec, Role
from sweeper.stats.ladder import Size
from sweeper.trial import SCHEDULE_HPS, PlainHps, PluginSpec

Sizes = Mapping[str, Any]
"""Keyword arguments of a function that builds a model, such as {"n_embd": 64, "n_layer": 4}."""


@dataclass(frozen=True, kw_only=True)
class SizePair:
    """A model's sizes at base and target; `width` and `depth` name the one that stands for each.

    `depth` is None where no size is a depth. `task` are the sizes of the task, at the target, with
    which models of all widths are built. `named` are the widths that the user named.
    """

    base: Sizes
    target: Sizes
    width: str
    depth: str | None
    task: Sizes = field(default_factory=dict)
    named: Sequence[str] = ()

    @classmethod
    def of(cls, base: Sizes, target: Sizes, named: Sequence[str] = ()) -> SizePair:
        """Choose the sizes that stand for all; ConfigError or BadInput for what cannot be one."""
        if base.keys() != target.keys():
            raise BadInput(f"base and target must name the same sizes: {[*base]} and {[*target]}")
        for which, sizes in (("base", base), ("target", target)):
            for name, value in sizes.items():
                if is_whole(value) and not 1 <= value < 2**63:
                    allowed = "a size of at least 1" if value < 1 else "a size of less than 2^63"
                    raise ConfigError(f"{which}[{name!r}]", value, allowed)
                if is_whole(value) != is_whole(base[name]):
                    allowed = f"what base has, {base[name]!r}: both a whole number, or neither"
                    raise ConfigError(f"{which}[{name!r}]", value, allowed)
        width = next(iter(widths_of(base, target, named)), None)
        if width is None:
            allowed = "sizes with a width that is a whole number, such as {'width': 64}"
            raise ConfigError("base", dict(base), allowed)
        depth = next(iter(depths(base, target)), None)
        task = of_the_task(base, target, named)
        pair = cls(base=base, target=target, width=width, depth=depth, task=task, named=named)
        others = [name for name in pair._changed() if name != width]
        # The first width stands for all: where it stays and others grow, m would be 1.
        if base[width] == target[width] and others:
            raise BadInput(
                f"base and target are equally wide ({width}={base[width]}), yet differ in "
                f"{', '.join(others)}: give another name to what is not the width"
            )
        return pair

    def size(self, sizes: Sizes) -> Size:
        """Width and depth of `sizes`; a depth that nobody names counts as 1."""
        return Size(width=sizes[self.width], depth=sizes[self.depth] if self.depth else 1)

    def at(self, width: int, depth: int) -> dict[str, Any]:
        """All sizes of a model of the given width and depth.

        Other sizes than the base's and the target's are wider or deeper ones, to compare with:
        what grows towards the target is as many times larger, and depths are as many layers more.
        """
        sizes = {**self.base, **self.task}
        for name, value in self.base.items():
            asked, main = (depth, self.depth) if DEPTH_NAME.search(name) else (width, self.width)
            if main is None or asked == self.base[main]:
                continue
            if asked == self.target[main]:
                sizes[name] = self.target[name]
            elif DEPTH_NAME.search(name):
                sizes[name] = _each(name, value, more=asked - self.base[main])
            elif name in self._grown():
                sizes[name] = _each(name, value, times=asked // self.base[main])
        return sizes

    @property
    def times(self) -> int:
        """How many times wider the wider model is: not the target, where a named width stays."""
        stays = any(self.base[name] == self.target[name] for name in self.named)
        return 3 if stays and self.target[self.width] == 2 * self.base[self.width] else 2

    def _grown(self) -> Sequence[str]:
        return [*self.named, *self._changed()] or widened(self.base, self.width)

    def cautions(self) -> Iterator[str]:
        """Sizes that may grow with the width and stay, where the user does not name the widths."""
        names, grown = widths_of(self.base, self.target, self.named), self._grown()
        # Where all stay, these grow. Heads are parts of what grows, whatever their number.
        usual = widened(self.base, widths_of(self.base, self.base)[0])
        may = [n for n in usual if "head" not in n] if self._changed() else names
        stayed = [n for n in names if n in may and n not in grown and not OF_NO_WIDTH.search(n)]
        if stayed:
            may_grow = ", ".join(stayed)
            yield (
                f"roles were read as {', '.join(grown)} grows and {may_grow} stays; where "
                f"{may_grow} grows with it, give widths={[*grown, *stayed]}"
            )

    def _changed(self) -> list[str]:
        names = (n for n in self.base if not DEPTH_NAME.search(n) and n not in self.task)
        return [name for name in names if self.base[name] != self.target[name]]


def _each(name: str, value: Any, *, times: int = 1, more: int = 0) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_each(name, entry, times=times, more=more) for entry in value)
    if not is_whole(value):
        raise ConfigError(f"base[{name!r}]", value, "a size that is a whole number, or a list")
    return times * value + more


RUNS = ("base_run", "target_run")
Named = str | Mapping[str, Any] | PluginSpec
"""A plugin by its name, or with options: {"name": "mup", "depth": "completep"}."""


def plan_for(
    build: Callable[..., Any],
    base: Sizes,
    target: Sizes,
    parameterization: Named | Parameterization,
    hps: Mapping[str, float],
    *,
    optimizer: Named | Optimizer = "adamw",
    inputs: Any = None,
    roles: Mapping[str, Role | str] | None = None,
    keep_init: Iterable[str] = (),
    frozen: Iterable[str] = (),
    branches: Iterable[str] = (),
    widths: Iterable[str] = (),
    law: Named | Law = "none",
    base_run: Mapping[str, int] | None = None,
    target_run: Mapping[str, int] | None = None,
) -> TransferPlan:
    """What `build(**target)` is trained with, given hyperparameters tuned at `build(**base)`.

    `base`, `target`, `inputs` and `roles` are those of `classify`; base and target may be equally
    wide. Sizes of the task that differ, such as classes, words and places, change no role: their
    names say what they are, or `widths` names the sizes that are widths, the first of which stands
    for all. `parameterization` is a name, such as "mup", a mapping with options, such as {"name":
    "mup", "depth": "completep"}, or an object; `optimizer` likewise. `hps` are plain values, not
    logarithms: those that are left out take the default of the parameterization's space. Parameters
    that match a pattern of `keep_init` keep the values that the model's own code gives them, as do
    special values (a small layer scale, a gate of 0); those of `frozen`, and those that do not
    require a gradient, are left alone. `branches` are patterns of modules whose output is added to
    the residual stream, so that the plan has the factor of each. A `law`, such as "joint", carries
    the hyperparameters on from `base_run`, {"steps": 2000, "batch_size": 32, "seq_len": 512}, to
    `target_run`; without "seq_len" an example counts as one.

    No weight decays but where `optimizer` says so, as {"name": "adamw", "weight_decay": 2**-13}:
    the share of a weight that a step removes. In a model with norms the matrices alone decay, no
    norms, biases and embeddings; with "decayed": "all" all do.

    Nothing is trained or written, and nothing wider than the base is allocated. ConfigError and
    BadInput name what is refused, and every parameter whose role cannot be read.
    """
    _check_build(build, base, target)
    roles = {} if roles is None else roles
    for key, mapping, example in (
        ("hps", hps, "{'eta': 2**-7}"),
        ("roles", roles, "{'*.bias': 'vector'}"),
    ):
        if not (isinstance(mapping, Mapping) and all(isinstance(name, str) for name in mapping)):
            raise ConfigError(key, mapping, f"a mapping, such as {example}")
    rules_of_model = ModelRules(
        roles={pattern: str(role) for pattern, role in roles.items()},
        keep_init=_patterns("keep_init", keep_init),
        frozen=_patterns("frozen", frozen),
        branches=_patterns("branches", branches),
    )
    sizes = SizePair.of(base, target, _patterns("widths", widths))
    rules = _rules(parameterization, optimizer)
    plain = _hyperparameters(rules, hps)
    small, large = sizes.size(base), sizes.size(target)

    def build_at(width: int, depth: int) -> Any:
        asked = sizes.at(width, depth)
        made = build(**asked)
        if not isinstance(made, nn.Module):
            named = ", ".join(f"{name}={value!r}" for name, value in asked.items())
            raise ConfigError(
                "build",
                getattr(build, "__name__", repr(build)),
                f"a function that returns a torch.nn.Module; with {named} it returned "
                f"{made!r:.60}, of type {type(made).__name__}",
            )
        return made

    def special(inits: dict[str, str]) -> set[str]:
        # Only values at the base's width are looked at: nothing wider is allocated.
        return special_parameters(lambda: build_at(small.width, large.depth), inits)

    def inputs_at(asked: Sizes) -> Any:
        # A tracer asks by width and depth; the user's function takes sizes by their own names.
        asked = sizes.at(asked["width"], asked["depth"])
        with user_code("inputs", getattr(inputs, "__name__", inputs), "a function of the sizes"):
            return inputs(asked)

    model = read_model(
        Tracer(build=build_at, inputs=inputs_at if callable(inputs) else inputs),
        asdict(small),
        asdict(large),
        rules_of_model,
        special,
        must_run=False,
        times=sizes.times,
    )
    model = replace(model, cautions=(*model.cautions, *sizes.cautions()))
    with key_prefix("parameterization"):
        model = replace(model, specs=named_by_user(model.specs, rules.parameterization))
    if sizes.task:
        # Roles were told at the target's words or classes; the base itself has its own.
        shapes = Tracer(build=build).shapes(base).shapes
        specs = (replace(s, base_shape=shapes.get(s.name, s.base_shape)) for s in model.specs)
        model = replace(model, specs=tuple(specs))
    rules = _with_decayed(rules, model.specs)
    trained = [spec for spec in model.specs if not spec.frozen]
    name = rules.parameterization_spec.name
    check_update(name, rules.parameterization, rules.optimizer, trained)
    applied = _law(law, (small, large), (base_run, target_run), model.specs, rules, plain)
    source = {
        "made_by": "sweeper.plan_for",
        "sizes": {"base": dict(base), "target": dict(target)},
        "parameterization": asdict(rules.parameterization_spec),
    }
    depth_known = sizes.depth is not None
    return plan_of(model, rules, small, large, plain, source, depth_known=depth_known, law=applied)


def _check_build(build: object, base: object, target: object) -> None:
    example = "plan_for(GPT, {'width': 64}, {'width': 1024}, 'mup', {'eta': 2**-7})"
    if isinstance(build, nn.Module) or not callable(build):
        allowed = f"what builds the model, a class or function, as it is built twice: {example}"
        value = type(build).__name__ if isinstance(build, nn.Module) else build
        raise ConfigError("build", value, allowed)
    for key, sizes in (("base", base), ("target", target)):
        if not isinstance(sizes, Mapping):
            allowed = f"the arguments that build the model there, as a mapping: {example}"
            value = type(sizes).__name__ if isinstance(sizes, nn.Module) else sizes
            raise ConfigError(key, value, allowed)


def _with_decayed(rules: Rules, specs: Iterable[ParamSpec]) -> Rules:
    """The rules, what decays decided by the model where the optimizer leaves it open."""
    optimizer, arguments = rules.optimizer, dict(rules.optimizer_spec.arguments)
    if not isinstance(optimizer, BaseOptimizer):
        return rules
    decayed = arguments.pop("decayed", None) or decayed_of(optimizer, specs)
    if decayed == "matrices":
        optimizer, arguments["decayed"] = replace(optimizer, decayed="matrices"), decayed
    spec = PluginSpec(name=rules.optimizer_spec.name, arguments=arguments)
    return replace(rules, optimizer=optimizer, optimizer_spec=spec)


MEANT = {
    "lr": "eta is the learning rate here: hps={'eta': ...}",
    "learning_rate": "eta is the learning rate here: hps={'eta': ...}",
    "wd": "the decay is the optimizer's: optimizer={'name': 'adamw', 'weight_decay': ...}, the "
    "share of a weight that a step removes: torch's lr x weight_decay",
    "betas": "they are the optimizer's: optimizer={'name': 'adamw', 'beta1': ..., 'beta2': ...}",
    "momentum": "it is the optimizer's: optimizer={'name': 'sgd', 'momentum': ...}",
}
"""What names of torch's stand for here."""


def _patterns(key: str, patterns: Iterable[str]) -> tuple[str, ...]:
    several = isinstance(patterns, Iterable) and not isinstance(patterns, str)
    names = (*patterns,) if several else ()
    if not (several and all(isinstance(name, str) for name in names)):
        raise ConfigError(key, patterns, "a list of patterns, such as ['*.bias']")
    return names


def _law(
    named: Named | Law,
    sizes: tuple[Size, Size],
    runs: tuple[Mapping[str, int] | None, Mapping[str, int] | None],
    specs: Sequence[ParamSpec],
    rules: Rules,
    hps: PlainHps,
) -> AppliedLaw | None:
    law, spec = _plugin("law", named, Law)
    if isinstance(law, NoLaw):
        for name, run in zip(RUNS, runs, strict=True):
            if run is not None:
                raise ConfigError(name, run, "given where a law is, such as law='joint'")
        return None
    betas = {n: v for n, v in rules.optimizer.settings(hps).items() if n.startswith("beta")}
    holding = held_norms(rules.optimizer, specs)
    # Weights at base and target: laws may go by tokens per weight.
    counts = [
        sum(prod(getattr(parameter, of)) for parameter in specs) for of in ("base_shape", "shape")
    ]
    base, target = (
        replace(_scale(name, size, run), parameters=count, betas=betas, held=holding)
        for name, size, run, count in zip(RUNS, sizes, runs, counts, strict=True)
    )
    # Tokens of one run beside examples of the other would be a change of the horizon that is none.
    with_length = ["seq_len" in run for run in runs if run is not None]
    if len(set(with_length)) > 1:
        lacking = with_length.index(False)
        raise ConfigError(RUNS[lacking], runs[lacking], "with seq_len, as the other run has it")
    counted = "tokens" if all(with_length) else "examples"
    applied = ask(law, spec, base, target, counted=counted)
    rule = str(rules.parameterization_spec.arguments.get("decay", "independent"))
    return replace(applied, notes=(*applied.notes, *decay_notes(rule, applied.factors)))


def _scale(key: str, size: Size, run: Mapping[str, int] | None) -> Scale:
    example = '{"steps": 2000, "batch_size": 32, "seq_len": 512}, in whole numbers'
    fields = {"seq_len": 1, **run} if isinstance(run, Mapping) else {}
    whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in fields.values())
    good = whole and fields.keys() == {"steps", "batch_size", "seq_len"}
    if not (good and min(fields.values()) > 0):
        raise ConfigError(key, run, f"how it is trained, such as {example}")
    fields = {name: int(n) for name, n in fields.items()}
    steps, batch = fields["steps"], fields["batch_size"]
    tokens = steps * batch * fields["seq_len"]
    return Scale(width=size.width, depth=size.depth, batch=batch, steps=steps, tokens=tokens)


def _rules(parameterization: Named | Parameterization, optimizer: Named | Optimizer) -> Rules:
    made, spec = _plugin("parameterization", parameterization, Parameterization)
    # Ours decay by default, as the u-muP paper's do: a search then tunes with it. Hyperparameters
    # that were tuned elsewhere come with the decay that they were tuned with, or with none.
    usual: dict[str, Any] = {"weight_decay": 0.0}
    if isinstance(optimizer, PluginSpec):  # a plan's record, where nothing is left to be decided
        usual["decayed"] = "all"
    made_optimizer, optimizer_spec = _plugin("optimizer", optimizer, Optimizer, usual)
    return Rules(
        parameterization_spec=spec,
        parameterization=made,
        optimizer_spec=optimizer_spec,
        optimizer=made_optimizer,
    )


def _plugin(
    group: str, asked: Any, protocol: type, usual: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Any, PluginSpec]:
    """The plugin itself, and as plans name it, ours with `usual` options; ConfigError for none."""
    if not isinstance(asked, str | Mapping | PluginSpec):
        return asked, _described(group, asked, protocol)
    if isinstance(asked, PluginSpec):
        asked = {"name": asked.name, **asked.arguments}
    options = {"name": asked} if isinstance(asked, str) else dict(asked)
    # Under either key; what is left are the plugin's options.
    name = options.pop("name", options.pop(TARGET, None))
    if not isinstance(name, str):
        names = ", ".join(plugins()[group])
        raise ConfigError(group, asked, f"a name ({names}), or a mapping with a name and options")
    # A class of the user's own, by its dotted path, may know none of the usual ones.
    options = {**usual, **options} if name in plugins()[group] else options
    try:
        config = with_targets(group, {TARGET: name, **options})
        plugin = build_plugin(config)
    except ConfigError as error:
        if error.key == TARGET:
            raise ConfigError(group, error.value, error.allowed) from error
        raise error.below(group) from error
    named = with_names(group, config)
    return plugin, PluginSpec(name=named.pop(TARGET), arguments=named)


def _described(group: str, plugin: object, protocol: type) -> PluginSpec:
    if isinstance(plugin, type):
        raise ConfigError(group, plugin.__name__, f"an object: {plugin.__name__}(...)")
    members = {*vars(protocol), *protocol.__annotations__}
    lacking = sorted(m for m in members if not m.startswith("_") and not hasattr(plugin, m))
    if lacking:
        allowed = f"a name, a mapping with options, or an object; this has no {', '.join(lacking)}"
        raise ConfigError(group, plugin, allowed)
    kind = type(plugin)
    arguments = to_json(plugin) if is_dataclass(plugin) else {}
    name = plugin_name(group, f"{kind.__module__}.{kind.__qualname__}")
    return PluginSpec(name=name, arguments=arguments)


def _hyperparameters(rules: Rules, hps: Mapping[str, float]) -> PlainHps:
    of_groups = group_gammas(rules.parameterization)
    required = (*rules.parameterization.hyperparameters, *of_groups)
    optional = (*GAMMAS, *SETTING_FACTORS, *SCHEDULE_HPS, *rules.optimizer.hyperparameters)
    for name, value in hps.items():
        key = f"hps[{name!r}]"
        if name not in (*required, *optional):
            meant = MEANT.get(name) or suggest(name, {*required, *optional})
            raise ConfigError(key, value, f"no hyperparameter of the parameterization; {meant}")
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError(key, value, "a number")
        if not 0 < value <= sys.float_info.max:
            raise ConfigError(key, value, "a positive number; plain values, not logarithms")
    if "weight_decay" in hps and not rules.optimizer.weight_decay:
        decaying = {"name": rules.optimizer_spec.name, "weight_decay": 2.0**-13}
        allowed = f"a factor on the optimizer's decay, which is 0: optimizer={decaying}"
        raise ConfigError("hps['weight_decay']", hps["weight_decay"], allowed)
    of_space = _defaults(rules.parameterization_spec.name)
    for name in required:
        if name not in hps and name not in of_space:
            raise ConfigError(
                f"hps[{name!r}]", None, "it needs a value: the parameterization has no default"
            )
    extra = [name for name in hps if name not in required]
    values = {**of_space, **hps}
    return PlainHps({name: float(values[name]) for name in (*required, *extra)})


def _defaults(parameterization: str) -> dict[str, float]:
    path = conf_folder() / "parameterization" / f"{parameterization}.yaml"
    if not path.is_file():
        return {}
    space = yaml.safe_load(path.read_text(encoding="utf-8"))["space"]
    return {name: 2.0 ** axis["default"] for name, axis in space.items()}
