"""The model of a specification: built at any size, classified, its operations given scales."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.classifier.classify import compare, scaled_ops
from sweeper.classifier.growth import Untraced
from sweeper.classifier.operations import (
    Observation,
    OpSite,
    SeenAttention,
    apply_scales,
    branch_names,
    check_branch_patterns,
    observe,
)
from sweeper.classifier.running import uncompiled
from sweeper.classifier.trace import DoesNotRun, Sizes, TooFewRows, Tracer, Traces
from sweeper.data.spans import Corruption
from sweeper.errors import (
    BadInput,
    ConfigError,
    MissingValue,
    SweeperError,
    key_prefix,
    user_frames,
)
from sweeper.models.initial_values import own_values, padding_rows, special_parameters
from sweeper.models.scaled import Linear
from sweeper.records import UNKNOWN_KEY, arguments, call_checked
from sweeper.registry import TARGET, build_plugin, import_plugin, plugin_target, with_targets
from sweeper.scaling.spec import RULE_KEYS, Init, ModelRules, ParamSpec, Role, ScaledOp, matching
from sweeper.trial import PluginSpec, TrainSettings, TrialSpec

_SIZED = (
    "a class or function that takes width and depth, such as "
    "def build(width, depth): return Net(hidden=width, layers=depth)"
)
DATA_SHAPES = ("classes", "input_shape", "spans")
"""What of a corpus's identity a model is built by."""
_CALL = (
    "The model is called as forward(inputs, targets), for text two tensors of "
    "[2, train.seq_len], or with the inputs alone if its forward takes one argument: give a class "
    "that inherits from it and takes these, as a wrapper would change the names of its parameters "
    "(docs/your-model.md; beside a command docs/your-trainer.md). An "
    'attn_implementation of transformers must be "eager" or "sdpa"'
)
"""What a configuration cannot change, and what its user can."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """A model at its size: what its parameters and operations are, and what can be scaled in it.

    `scale_buffers` are the names of buffers that are filled. `sites` are the operations of a
    plain model that got such buffers, and `attentions` those that got none. `parts` counts the
    fused matrices of a parameter, blocks of its rows, where a model declares several. `unseen_ties`
    are readouts tied to an embedding whose logits no call computes that could be scaled. `padding`
    is the row of each table that stays 0. `complete` tells that the model declares all operations
    that it has. `cautions` are sentences for the user about the whole model. `hints` are modules
    that seem to have an operation, by kind. `own_factors` has by parameter what a plain model's own
    code multiplies its output by.
    """

    specs: tuple[ParamSpec, ...]
    scaled_ops: tuple[ScaledOp, ...]
    sites: tuple[OpSite, ...] = ()
    scale_buffers: frozenset[str] = frozenset()
    parts: Mapping[str, int] = field(default_factory=dict)
    unseen_ties: tuple[ScaledOp, ...] = ()
    attentions: frozenset[SeenAttention] = frozenset()
    complete: bool = False
    padding: Mapping[str, int] = field(default_factory=dict)
    cautions: tuple[str, ...] = ()
    hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_factors: Mapping[str, float] = field(default_factory=dict)


def read_model(
    tracer: Tracer,
    base: Sizes,
    target: Sizes,
    rules: ModelRules,
    special: Callable[[dict[str, str]], Collection[str]],
    *,
    must_run: bool = True,
    times: int = 2,
) -> Architecture:
    """What the tracer's model is at `target`, beside `base`; both name a width and a depth.

    Parameters that match the rules' `keep_init` keep their own initial values, as do those that
    `special` returns, given the init of all by name: values that mean something. Frozen are those
    that match `frozen`, and those that the model does not train. It runs at the base, `times` wider
    and at the target. Of one that does not run there, unless it `must_run`, attention is seen at
    the base. ConfigError names a pattern that matches nothing, under the rule's own key.
    """
    compared = compare(
        tracer.build,
        base=base,
        target=target,
        inputs=tracer.inputs,
        roles=rules.role_patterns(),
        traces=tracer.traces,
        times=times,
    )
    tied = {str(op.geometry["parameter"]): op.geometry for op in compared.tied}
    base_branches = 0
    # A branch's factor goes by the base's number of branches, which only a model of its depth
    # tells.
    if rules.branches and target["depth"] != base["depth"]:
        base_branches = tracer.watch(
            {**target, "depth": base["depth"]},
            lambda model, _: len(branch_names(model, rules.branches)),
        )

    def observed(model: nn.Module, run: Callable[[], object]) -> tuple[nn.Module, Observation]:
        modules = (uncompiled(name) for name, _ in model.named_modules())
        matching("branches", rules.branches, filter(None, modules), "module")
        check_branch_patterns(model, rules.branches)
        return model, observe(model, run, tied, rules.branches, base_branches)

    try:
        model, observation = tracer.watch(target, observed)
    except DoesNotRun:
        if must_run or rules.branches:
            raise
        # Names and shapes need no run; what attention does is seen at the base.
        model, observation = tracer.built(target), _observed_at_base(tracer, base)
    # From here on the model has its buffers for scales: operations are asked of it afterwards.
    apply_scales(model, observation.sites)
    ops = tuple(scaled_ops(model))
    scaled_ties = {site.parameter for site in observation.sites}
    names = [spec.name for spec in compared.specs]
    untrained = {uncompiled(n) for n, p in model.named_parameters() if not p.requires_grad}
    untrained |= matching("frozen", rules.frozen, names)
    kept = matching("keep_init", rules.keep_init, names)
    # Last, and given what roles say of the init: only values that differ from that mean something.
    kept |= {*special({spec.name: spec.init for spec in compared.specs})}
    specs = _overridden(_with_inner_growth(model, compared.specs), kept, untrained)
    _check_starts(specs, rules.role_patterns())
    # One that declares operations beside those sites is taken to declare all that it has.
    complete = len(ops) > len(observation.sites) and getattr(model, "declares_all_operations", True)
    return Architecture(
        specs=tuple(specs),
        scaled_ops=ops,
        sites=observation.sites,
        scale_buffers=frozenset(name for name, _ in model.named_buffers()),
        parts={
            f"{name}.weight": module.parts
            for name, module in model.named_modules()
            if isinstance(module, Linear) and module.parts > 1
        },
        unseen_ties=tuple(
            op for op in compared.tied if op.geometry["parameter"] not in scaled_ties
        ),
        attentions=observation.attentions,
        complete=complete,
        padding=padding_rows(model),
        cautions=tuple(compared.cautions),
        hints=observation.hints,
        own_factors={} if complete else compared.own_factors,
    )


def _check_starts(specs: Iterable[ParamSpec], roles: Collection[str]) -> None:
    """BadInput for weights made of what is drawn, unless the user gave their role or start."""
    lines = [
        f"{spec.name} {list(spec.shape)}: {spec.reparameterized}"
        for spec in specs
        if spec.reparameterized and spec.init != "kept"
        if not any(fnmatchcase(spec.name, pattern) for pattern in roles)
    ]
    if lines:
        name = lines[0].partition(" ")[0]
        raise BadInput(
            "the model multiplies other weights than those that are drawn, whose size no "
            "parameterization can prescribe:\n  " + "\n  ".join(lines) + "\n  Take the "
            f'reparametrization off, keep the model\'s own start, keep_init=["{name}"], or give '
            "the role to have it scaled as if there were none"
        )


def _observed_at_base(tracer: Tracer, base: Sizes) -> Observation:
    """Attention and hints of the base, for a target too large to run; a site's place is unknown."""
    try:
        seen = tracer.watch(base, lambda model, run: observe(model, run, {}, ()))
    except DoesNotRun:
        return Observation()
    fused = (site.geometry for site in seen.sites if site.kind == "attention")
    attentions = {
        SeenAttention(g["head_size"], g["head_size"] ** -0.5, g["seq_len"]) for g in fused
    }
    return replace(seen, sites=(), attentions=seen.attentions | attentions)


def _with_inner_growth(model: nn.Module, specs: Sequence[ParamSpec]) -> list[ParamSpec]:
    """The specs, of experts that are cut beside the whole ones: see `ParamSpec.inner_growth`."""
    growths: Mapping[str, float] = getattr(model, "inner_growth", dict)()
    return [
        replace(s, inner_growth=growth, base_fan_in=round(s.base_fan_in / growth))
        if (growth := growths.get(s.name, 1.0)) != 1.0
        else s
        for s in specs
    ]


def _overridden(
    specs: Iterable[ParamSpec], kept: Collection[str], untrained: Collection[str]
) -> list[ParamSpec]:
    changed = []
    for spec in specs:
        frozen = spec.frozen or spec.name in untrained
        # The norm of a kept weight is kept.
        starts = {spec.name, *([spec.norm_of.name] if spec.norm_of else [])}
        init: Init = "kept" if frozen or starts & ({*kept} | {*untrained}) else spec.init
        changed.append(replace(spec, init=init, frozen=frozen))
    # Embeddings beside a tied one start at its scale: their sum goes into one stream.
    heads = [s.base_readout_fan_in for s in changed if s.base_readout_fan_in and s.lookup]
    if not heads:
        return changed
    return [
        replace(s, head_init_fan_in=max(heads))
        if s.role is Role.EMBEDDING and not s.projection
        else s
        for s in changed
    ]


def few_rows(spec: TrialSpec, rows: int, error: BaseException) -> ConfigError:
    """Sequences are longer than a table of positions of the model's."""
    length = spec.train.seq_len
    place, own = "; ".join(user_frames(error)[-1:]), own_argument(spec.model, rows, length)
    allowed = (
        f"at most {rows}: a table of the model's has so many rows{f' ({place})' * bool(place)}"
    )
    return ConfigError("train.seq_len", length, allowed + f"; or {own}" * bool(own))


def own_argument(model: PluginSpec, rows: int, wanted: int) -> str:
    """How to set an argument of the model's own that seems to be a table's number of rows."""
    arguments = model.arguments
    try:
        target = import_plugin(plugin_target("model", model.name))
        parameters = inspect.signature(target).parameters.values()
    except (SweeperError, TypeError, ValueError):
        return ""
    names = [p.name for p in parameters if arguments.get(p.name, p.default) == rows > 0]
    if len(names) != 1:
        return ""
    key = f"model.{names[0]}" if names[0] in arguments else f"+model.{names[0]}"
    return f"give it {key}={wanted}"


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
        takes = arguments(import_plugin(target, "model._target_"))
        if "fp8" not in takes and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            allowed = f"none: {target} takes no argument fp8"
            raise ConfigError("fp8", dict(spec.fp8.arguments), allowed)
        offered["fp8"] = build_named("fp8", spec.fp8)
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
        # `build_plugin` names an argument that nobody offers: one that another kind of data would.
        if error.key in kinds and error.value is None:
            allowed = f"a model for this kind of data: this one takes {kinds[error.key]}"
            raise ConfigError("model._target_", target, allowed) from error
        if error.key in ("width", "depth") and error.allowed.startswith(UNKNOWN_KEY):
            taken = ", ".join(arguments(import_plugin(target))) or "nothing"
            raise ConfigError("model._target_", target, f"{_SIZED}; it takes {taken}") from error
        if isinstance(error, MissingValue):  # give it a value, or name it as what is offered
            own = arguments(import_plugin(target))
            names = ", ".join(name for name in offered if name not in own)
            advice = f"; give +model.{error.key}=..."
            advice += f", or name it as what is offered: {names}" * bool(names)
            raise MissingValue(f"model.{error.key}", advice) from error
        raise error.below("model") from error
    if not isinstance(model, nn.Module):
        raise ConfigError("model._target_", target, "an nn.Module")
    return model


def span_lengths(data: Mapping[str, Any], seq_len: int) -> tuple[int, int]:
    """Tokens of an input and of a target, of data whose windows have spans cut out."""
    how = {"sentinels": 0, **data["spans"]}  # how many there are changes no length
    return Corruption(**how).sizes(seq_len)


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


def check_build(spec: TrialSpec, unit: bool) -> None:
    """Build the model of `spec` without values, and no more; ConfigError where it cannot be."""
    tracer = Tracer(build=partial(build_model, spec, unit))
    tracer.built({"width": spec.width, "depth": spec.depth})


def architecture(spec: TrialSpec, unit: bool) -> Architecture:
    """The model of `spec` at its size; trials that differ in other things share the object."""
    # All that no model depends on is blanked, so that one key of the cache serves a whole sweep.
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
    """What `architecture` returns, cached; ConfigError names keys as a configuration has them."""
    chosen = {key: spec.model.arguments[key] for key in RULE_KEYS if key in spec.model.arguments}
    with key_prefix("model"):
        rules: ModelRules = call_checked(ModelRules, chosen, {})
        rules.role_patterns()  # raises for what is no role
    last = nn.Module()

    def build(width: int, depth: int) -> nn.Module:
        nonlocal last
        last = build_model(spec, unit, width, depth)
        return last

    def special(inits: dict[str, str]) -> Collection[str]:
        at_base = replace(spec, width=spec.base_width)
        return _special(at_base, unit, tuple(inits.items()))

    try:
        read = read_model(
            # What a model takes is read off its forward, so off the one that was built last.
            Tracer(
                build=build,
                inputs=lambda _: example_inputs(spec, last),
                traces=_traces(replace(spec, width=spec.base_width, depth=spec.base_depth), unit),
            ),
            {"width": spec.base_width, "depth": spec.base_depth},
            {"width": spec.width, "depth": spec.depth},
            rules,
            special,
        )
    except Untraced as error:
        raise Untraced(error.failure, error.roleless, _CALL) from error
    except TooFewRows as error:
        if error.wanted != spec.train.seq_len:
            raise
        raise few_rows(spec, error.rows, error) from error
    except ConfigError as error:
        if error.key.partition("[")[0] not in RULE_KEYS:
            raise
        raise error.below("model") from error
    frozen = [spec.name for spec in read.specs if spec.frozen]
    if len(frozen) == len(read.specs):
        raise ConfigError("model.frozen", sorted(frozen)[:3], "a model that trains some parameters")
    return read


@lru_cache(maxsize=64)
def _traces(spec: TrialSpec, unit: bool) -> Traces:
    return {}


@lru_cache(maxsize=64)
def _special(spec: TrialSpec, unit: bool, inits: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Parameters whose own values mean something, of a model at its base width: once a ladder."""
    build = partial(build_model, spec, unit, spec.width, spec.depth)
    return frozenset(special_parameters(build, dict(inits)))


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


def initial_values(spec: TrialSpec, unit: bool, seed: int) -> dict[str, Tensor]:
    """All parameters of the model of `spec` as its own code sets them, by name."""
    return own_values(partial(build_model, spec, unit, spec.width, spec.depth), seed)
