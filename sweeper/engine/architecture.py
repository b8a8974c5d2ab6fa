"""The model of a specification: built at any size, classified, its operations given scales."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.classifier.attention import AttentionWatch, Hints, SeenAttention
from sweeper.classifier.classify import Build, Comparison, compare, scaled_ops
from sweeper.classifier.compare import Untraced
from sweeper.classifier.operations import (
    OpSite,
    apply_scales,
    branch_names,
    check_branch_patterns,
    observe,
)
from sweeper.classifier.trace import Tracer
from sweeper.data.spans import Corruption
from sweeper.errors import ConfigError, MissingValue, key_prefix
from sweeper.models.initial_values import own_values, padding_rows, special_parameters
from sweeper.models.scaled import Linear
from sweeper.registry import (
    TARGET,
    UNKNOWN_KEY,
    arguments,
    build_plugin,
    call_checked,
    import_target,
    with_targets,
)
from sweeper.scaling.spec import RULE_KEYS, ModelRules, ParamSpec, Role, ScaledOp, matching
from sweeper.trial import PluginSpec, TrainSettings, TrialSpec

_SIZED = (
    "a class or function that takes width and depth, such as "
    "def build(width, depth): return Net(hidden=width, layers=depth)"
)
DATA_SHAPES = ("classes", "input_shape", "spans")
"""What of a corpus's identity a model is built by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """A model at its size: what its parameters and operations are, and what can be scaled in it.

    `scale_buffers` are the names of buffers that are filled. `sites` are the operations of a
    plain model that got such buffers. `parts` counts the fused matrices of a parameter, blocks of
    its rows, where a model declares several. `unseen_ties` are readouts tied to an embedding whose
    logits no call computes that could be scaled. `padding` is the row of each table that stays 0.
    `complete` tells that the model declares all operations that it has. `cautions` are sentences
    for the user about the whole model. `hints` are modules that seem to have an operation, by kind.
    """

    specs: tuple[ParamSpec, ...]
    scaled_ops: tuple[ScaledOp, ...]
    sites: tuple[OpSite, ...]
    scale_buffers: frozenset[str]
    parts: Mapping[str, int] = field(default_factory=dict)
    unseen_ties: tuple[ScaledOp, ...] = ()
    complete: bool = False
    padding: Mapping[str, int] = field(default_factory=dict)
    cautions: tuple[str, ...] = ()
    hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def rules_of(spec: TrialSpec) -> ModelRules:
    """The user's rules for the model of `spec`; ConfigError for what is none."""
    given = {key: spec.model.arguments[key] for key in RULE_KEYS if key in spec.model.arguments}
    with key_prefix("model"):
        rules: ModelRules = call_checked(ModelRules, given, {})
        rules.role_patterns()  # refuses what is no role
    return rules


def build_model(spec: TrialSpec, unit: bool, width: int, depth: int) -> nn.Module:
    """The model of `spec` at another size; ConfigError names a `model.` key that is refused."""
    data = spec.data
    offered = {"classes": data["classes"], "base_depth": spec.base_depth, "unit": unit}
    # Never two: a model for another kind of data misses an argument, and is refused here.
    if "input_shape" in data:
        offered["input_shape"] = tuple(data["input_shape"])
    elif "spans" in data:
        source_len, target_len = span_lengths(data, spec.train.seq_len)
        offered |= {"source_len": source_len, "target_len": target_len}
        offered["start"] = data["classes"] - 1
    else:
        offered["seq_len"] = spec.train.seq_len
    config = plugin_config("model", spec.model)
    target = config[TARGET]
    if spec.fp8 is not None:
        offered["fp8"] = _build_fp8(target, spec.fp8)
    config = {key: value for key, value in config.items() if key not in RULE_KEYS}
    try:
        with redirect_stdout(sys.stderr):  # stdout is the command's; models may print
            model = build_plugin(config | {"width": width, "depth": depth}, offered)
    except ConfigError as error:
        kinds = {
            "seq_len": "sequences of tokens",
            "input_shape": "arrays, such as data=digits",
            "source_len": "sequences and what is missing in them: data=spans",
        }
        if error.key in kinds and error.value is None:
            allowed = f"a model for this kind of data: this one takes {kinds[error.key]}"
            raise ConfigError("model._target_", target, allowed) from error
        if error.key in ("width", "depth") and error.allowed.startswith(UNKNOWN_KEY):
            taken = ", ".join(arguments(import_target(target))) or "nothing"
            raise ConfigError("model._target_", target, f"{_SIZED}; it takes {taken}") from error
        if isinstance(error, MissingValue):
            raise _missing(error.key, target, offered) from error
        raise error.below("model") from error
    if not isinstance(model, nn.Module):
        raise ConfigError("model._target_", target, "an nn.Module")
    return model


def _missing(key: str, target: str, offered: Collection[str]) -> MissingValue:
    """An argument of the model without a value: how to give it one, or to name it."""
    taken = arguments(import_target(target))
    names = ", ".join(name for name in offered if name not in taken)
    advice = f"; give +model.{key}=..." + f", or name it as what is offered: {names}" * bool(names)
    return MissingValue(f"model.{key}", advice)


def span_lengths(data: Mapping[str, Any], seq_len: int) -> tuple[int, int]:
    """Tokens of an input and of a target, of data whose windows have spans cut out."""
    how = {"sentinels": 0, **data["spans"]}  # how many there are changes no length
    return Corruption(**how).lengths(seq_len)


def plugin_config(group: str, plugin: PluginSpec) -> dict[str, Any]:
    """The config that builds a plugin; ConfigError for a name that is not in the registry."""
    try:
        return with_targets(group, {TARGET: plugin.name, **plugin.arguments})
    except ConfigError as error:
        raise error.below(group) from error


def build_named(group: str, plugin: PluginSpec) -> Any:
    """The plugin itself; ConfigError names the key of `group` that is refused."""
    config = plugin_config(group, plugin)
    try:
        return build_plugin(config)
    except ConfigError as error:
        raise error.below(group) from error


def _build_fp8(target: str, fp8: PluginSpec) -> Any:
    """The FP8 parameterization; ConfigError if it is refused, or the model `target` takes none."""
    taken = arguments(import_target(target, "model._target_"))
    if "fp8" not in taken and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        allowed = f"none: {target} takes no argument fp8"
        raise ConfigError("fp8", dict(fp8.arguments), allowed)
    return build_named("fp8", fp8)


def architecture(spec: TrialSpec, unit: bool) -> Architecture:
    """The model of `spec` at its size; trials that differ in other things share the object."""
    anything = PluginSpec(name="")
    return _architecture(
        replace(
            spec,
            runner={},
            parameterization=anything,
            optimizer=anything,
            data={key: spec.data[key] for key in DATA_SHAPES if key in spec.data},
            train=TrainSettings(steps=1, batch_size=1, seq_len=spec.train.seq_len),
        ),
        unit,
    )


@lru_cache(maxsize=64)
def _architecture(spec: TrialSpec, unit: bool) -> Architecture:
    """See `architecture`; the model runs four times, mostly without values."""
    rules = rules_of(spec)
    sizes = {"width": spec.width, "depth": spec.depth}
    called = _Called(spec, unit)
    tracer = Tracer(build=called.build, inputs=called.inputs)
    compared = _compared(tracer, spec, rules)
    tied = _tied_geometries(compared)
    base_branches = 0
    if rules.branches and spec.depth != spec.base_depth:
        base_branches = tracer.watch(
            {**sizes, "depth": spec.base_depth},
            lambda model, _: len(branch_names(model, rules.branches)),
        )

    def look(model: nn.Module, run: Callable[[], object]) -> tuple[set[str], Architecture]:
        modules = (name for name, _ in model.named_modules() if name)
        matching("model.branches", rules.branches, modules, "module")
        check_branch_patterns(model, rules.branches)
        hints = Hints()
        with hints.watching(model):
            sites = observe(model, run, tied, rules.branches, base_branches)
        apply_scales(model, sites)
        ops = tuple(scaled_ops(model))
        # One that declares operations beside those sites is taken to declare all that it has.
        complete = len(ops) > len(sites) and getattr(model, "declares_all_operations", True)
        return _frozen(model, rules.frozen), Architecture(
            specs=tuple(_with_inner_growth(model, compared.specs)),
            scaled_ops=ops,
            sites=tuple(sites),
            scale_buffers=frozenset(name for name, _ in model.named_buffers()),
            parts={
                f"{name}.weight": module.parts
                for name, module in model.named_modules()
                if isinstance(module, Linear) and module.parts > 1
            },
            unseen_ties=tuple(
                ScaledOp(name=name, kind="tied_readout", geometry=geometry)
                for name, geometry in tied.items()
                if name not in {site.parameter for site in sites}
            ),
            complete=complete,
            padding=padding_rows(model),
            cautions=tuple(compared.cautions),
            hints=hints.names(),
        )

    frozen, seen = tracer.watch(sizes, look)
    kept = matching("model.keep_init", rules.keep_init, (s.name for s in compared.specs))
    inits = tuple((s.name, s.init) for s in compared.specs)
    kept |= _special(replace(spec, width=spec.base_width), unit, inits)
    return replace(seen, specs=tuple(overridden(seen.specs, kept, frozen)))


def _with_inner_growth(model: nn.Module, specs: Sequence[ParamSpec]) -> list[ParamSpec]:
    """The specs, of experts that are cut beside the whole ones: see `ParamSpec.inner_growth`."""
    growths: Mapping[str, float] = getattr(model, "inner_growth", dict)()
    return [
        replace(s, inner_growth=growth, base_fan_in=round(s.base_fan_in / growth))
        if (growth := growths.get(s.name, 1.0)) != 1.0
        else s
        for s in specs
    ]


class _Called:
    """Builds the model of a specification at any size, and knows what the last one takes."""

    def __init__(self, spec: TrialSpec, unit: bool) -> None:
        self.spec, self.unit, self.model = spec, unit, nn.Module()

    def build(self, width: int, depth: int) -> nn.Module:
        self.model = build_model(self.spec, self.unit, width, depth)
        return self.model

    def inputs(self, sizes: Mapping[str, Any]) -> tuple[Tensor, ...]:
        return example_inputs(self.spec, self.model)


def _compared(tracer: Tracer, spec: TrialSpec, rules: ModelRules) -> Comparison:
    """The model beside its base; what is refused is named as a configuration gives it."""
    try:
        return compare(
            tracer.build,
            base={"width": spec.base_width, "depth": spec.base_depth},
            target={"width": spec.width, "depth": spec.depth},
            inputs=tracer.inputs,
            roles=rules.role_patterns(),
        )
    except Untraced as error:
        raise Untraced(error.failure, error.roleless, _CALL) from error
    except ConfigError as error:
        raise error.below("model") if error.key.startswith("roles") else error from error


_CALL = (
    "The model is called as forward(inputs, targets), for text two tensors of "
    "[2, train.seq_len], or with the inputs alone if its forward takes one argument: wrap it in a "
    "module that takes these (docs/your-model.md; beside a command docs/your-trainer.md). An "
    'attn_implementation of transformers must be "eager" or "sdpa"'
)
"""What a configuration cannot change, and what its user can."""


@lru_cache(maxsize=64)
def _special(spec: TrialSpec, unit: bool, inits: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Parameters whose own values mean something, of a model at its base width: once a ladder."""
    build = partial(build_model, spec, unit, spec.width, spec.depth)
    return frozenset(special_parameters(build, dict(inits)))


def overridden(
    specs: Iterable[ParamSpec], kept: Collection[str], frozen: Collection[str]
) -> list[ParamSpec]:
    """The specs with what the user and the model say: frozen parameters keep their values too."""

    def one(spec: ParamSpec) -> ParamSpec:
        still = spec.frozen or spec.name in frozen
        return replace(spec, init="kept" if still or spec.name in kept else spec.init, frozen=still)

    return _tied_inits([one(spec) for spec in specs])


def _tied_geometries(compared: Comparison) -> dict[str, Mapping[str, Any]]:
    """The geometry of every tied readout, by the name of its parameter."""
    names = (spec.name for spec in compared.specs if spec.readout_fan_in)
    return {name: op.geometry for name, op in zip(names, compared.tied, strict=True)}


def example_inputs(spec: TrialSpec, model: nn.Module) -> tuple[Tensor, ...]:
    """Two examples on the meta device: inputs, and targets if the model's forward takes them."""
    targets: tuple[int, ...] = (2,)
    if "input_shape" in spec.data:
        x = torch.empty(2, *spec.data["input_shape"], device="meta")
    elif "spans" in spec.data:
        source_len, target_len = span_lengths(spec.data, spec.train.seq_len)
        targets = (2, target_len)
        x = torch.empty(2, source_len, dtype=torch.long, device="meta")
    else:
        targets = (2, spec.train.seq_len)
        x = torch.empty(targets, dtype=torch.long, device="meta")
    takes = inspect.signature(getattr(model, "_orig_mod", model).forward).parameters.values()
    if sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in takes) == 1:
        return (x,)
    return x, torch.empty(targets, dtype=torch.long, device="meta")


def _frozen(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """Parameters that the user freezes, or the model itself."""
    parameters = dict(model.named_parameters())
    own = {name for name, value in parameters.items() if not value.requires_grad}
    frozen = own | matching("model.frozen", patterns, parameters)
    if frozen == parameters.keys():
        raise ConfigError("model.frozen", sorted(frozen)[:3], "a model that trains some parameters")
    return frozen


def initial_values(spec: TrialSpec, unit: bool, seed: int) -> dict[str, Tensor]:
    """All parameters of the model of `spec` as its own code sets them, by name."""
    return own_values(partial(build_model, spec, unit, spec.width, spec.depth), seed)


def _tied_inits(specs: Sequence[ParamSpec]) -> list[ParamSpec]:
    """Embeddings beside a tied one start at its scale: their sum goes into one stream."""
    heads = [s.base_readout_fan_in for s in specs if s.base_readout_fan_in and s.lookup]
    if not heads:
        return list(specs)
    beside = [s.role is Role.EMBEDDING and not s.projection for s in specs]
    return [
        replace(s, head_init_fan_in=max(heads)) if b else s
        for s, b in zip(specs, beside, strict=True)
    ]


# All that a plan asks of a model: its parameters, its operations, and what stays as it is.


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """A model at its target, beside its base: parameters, scalable operations, attention."""

    specs: tuple[ParamSpec, ...]
    scaled_ops: tuple[ScaledOp, ...]
    attentions: frozenset[SeenAttention]
    cautions: tuple[str, ...] = ()


def read_model(
    build: Build,
    base: tuple[int, int],
    target: tuple[int, int],
    *,
    inputs: Any = None,
    roles: Mapping[str, Role | str] | None = None,
    keep_init: Iterable[str] = (),
    frozen: Iterable[str] = (),
) -> ModelReading:
    """Read `build(width, depth)` between two sizes, as `compare`.

    Parameters that match a pattern of `keep_init` keep their own initial values, and so do those
    whose values mean something: the model of the base's width is built on the CPU to see them.
    Frozen are those that match a pattern of `frozen`, and those that the model itself does not
    train. ConfigError names a pattern that matches nothing.
    """
    watch = AttentionWatch()
    with watch:
        compared = compare(
            lambda width, depth: build(width, depth),
            base={"width": base[0], "depth": base[1]},
            target={"width": target[0], "depth": target[1]},
            inputs=inputs,
            roles=roles,
        )
    specs = compared.specs
    model = _built(build, target)
    untrained = {
        name.replace("_orig_mod.", "")
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    }
    names = [spec.name for spec in specs]
    kept = matching("keep_init", keep_init, names)
    kept |= special_parameters(
        lambda: build(base[0], target[1]), {spec.name: spec.init for spec in specs}
    )
    untrained |= matching("frozen", frozen, names)
    return ModelReading(
        specs=tuple(overridden(specs, kept, untrained)),
        scaled_ops=(*scaled_ops(model), *compared.tied),
        cautions=tuple(compared.cautions),
        attentions=frozenset(watch.seen),
    )


def _built(build: Build, target: tuple[int, int]) -> nn.Module:
    """The model without memory, or with it where its own code needs values."""
    try:
        with torch.device("meta"):
            return build(*target)
    except Exception:
        return build(*target)
