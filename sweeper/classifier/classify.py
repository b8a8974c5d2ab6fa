"""What every parameter of a model is, read off its forward pass at several sizes.

A model is built and run without values if possible (`places.py`), while `trace.py` hands every
ATen operation to a rule (`rules.py`). The rules keep in a `TraceState` (`state.py`) which tensors
are made of which parameters, and what these are used for; `numbers.py` keeps what a model
multiplies by. Here the model is traced at its sizes. `growth.py` compares the traces: what grows,
and what is summed over; `roles.py` tells roles from uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sweeper.classifier.growth import (
    MAX_DEPTHS,
    Growth,
    SizeComparison,
    own_factors,
    tied_factors,
    tied_readouts,
)
from sweeper.classifier.numbers import Factor, width_dependent
from sweeper.classifier.roles import UNUSED
from sweeper.classifier.trace import Inputs, ModelTrace, Sizes, Tracer, Traces, described
from sweeper.errors import BadInput, ConfigError
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.spec import (
    DEPTH_NAME,
    ParamSpec,
    Role,
    ScaledOp,
    layer_of,
    parse_role,
    with_layer,
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a model is at one size beside another.

    `tied` are the readouts that are tied to an embedding (kind "tied_readout"), in the order of
    the embeddings; their `name` is the module whose output are the logits, or the parameter where
    no module of its own computes them. `cautions` are sentences about the whole model, for the
    user. `own_factors` has by parameter what the model's own code multiplies its output by.
    """

    specs: list[ParamSpec]
    tied: list[ScaledOp]
    cautions: list[str]
    own_factors: Mapping[str, float] = field(default_factory=dict)


def compare(
    build: Callable[..., nn.Module],
    *,
    base: Sizes,
    target: Sizes,
    inputs: Inputs = None,
    roles: Mapping[str, Role | str] | None = None,
    traces: Traces | None = None,
    times: int = 2,
) -> Comparison:
    """Every parameter of `build(**target)`, beside its counterpart in `build(**base)`.

    `base` and `target` are keyword arguments of `build`, a width and mostly a depth. They may be
    equal: growth is read off a model of `times` the base's width, and checked against the target.
    One layer more tells the repeated blocks, which are residual branches. `inputs` and `roles` as
    in `classify`; `traces` are those of the same `build` and `inputs`, and gets more of them.
    """
    depth = "depth" if "depth" in base else None
    # The first of these that can be built counts: some depths must be even. The target's own depth
    # comes last: it may be large, and is only needed where no small one works.
    deeper: list[Sizes] = []
    if depth:
        deeper += [{**base, depth: base[depth] + 1}, {**base, depth: 2 * base[depth]}]
    if depth and target[depth] != base[depth]:
        deeper.append({**base, depth: target[depth]})
    return _compare(
        Tracer(build=build, inputs=inputs, traces=traces),
        base=base,
        # Twice: what grows by any power of the width differs, and a small base stays small.
        wider={**base, "width": times * base["width"]},
        deeper=deeper,
        target=target,
        depth=depth,
        roles=roles,
    )


def classify(
    build: Callable[..., nn.Module],
    base: Sizes,
    other: Sizes,
    inputs: Inputs = None,
    roles: Mapping[str, Role | str] | None = None,
    *,
    widths: Sequence[str] = (),
) -> dict[str, ParamSpec]:
    """Every parameter of `build(**other)`, beside its counterpart in `build(**base)`, by name.

    `base` and `other` are keyword arguments of `build`, such as {"width": 64} and {"width": 128};
    those named depth or layers may differ too. Of several others the names say which are widths,
    and which are sizes of the task, such as classes; `widths` names them where they do not.
    `inputs` is what the model is called with: a tensor, a tuple, a dict of named arguments, or a
    function of the sizes that returns one of them; models that say so themselves need none
    (`example_inputs()`, `seq_len`, or a configuration of transformers). `roles` decides where the
    trace cannot: patterns of names, and the role of the parameters that match, the first that
    matches counts. The prefix that `torch.compile` gives to names is left out.

    Nothing is allocated where the model runs without values; a small model that does not is
    built and run on the CPU. BadInput names every parameter that cannot be decided, with the
    reason and the override to give.
    """
    if base.keys() != other.keys():
        raise BadInput(f"base and other must name the same sizes: {[*base]} and {[*other]}")
    deep = [name for name in base if DEPTH_NAME.search(name) and base[name] != other[name]]
    base = {**base, **of_the_task(base, other, widths)}
    wide = [name for name in base if name not in deep and base[name] != other[name]]
    if not wide:
        raise BadInput("base and other must differ in a width: roles are read off its growth")
    comparison = _compare(
        Tracer(build=build, inputs=inputs),
        base=base,
        wider={**base, **{name: other[name] for name in wide}},
        deeper=[{**base, **{name: other[name] for name in deep}}] if deep else [],
        target=other,
        depth=deep[0] if deep else None,
        roles=roles,
    )
    return {spec.name: spec for spec in comparison.specs}


def _compare(
    tracer: Tracer,
    *,
    base: Sizes,
    wider: Sizes,
    deeper: Sequence[Sizes],
    target: Sizes,
    depth: str | None,
    roles: Mapping[str, Role | str] | None,
) -> Comparison:
    """Trace the model at its sizes.

    Three are traced: the base and a wider model tell what grows; the target has fans of its own,
    which do not follow from the others where sizes are no multiples of the base's. Of the deeper
    model the names and shapes are enough.
    """
    # Where no forward pass works at the base none is tried elsewhere: roles given by hand need the
    # shapes alone.
    base_trace = tracer.trace(base)
    wider_trace = tracer.trace(wider) if base_trace.uses is not None else tracer.shapes(wider)
    # Often the target is one of the two that are traced already.
    traced = next((t for s, t in ((base, base_trace), (wider, wider_trace)) if s == target), None)
    growth = Growth(
        base=base_trace,
        wider=wider_trace,
        target=traced or _target(tracer, target, base_trace),
        deeper=_first_built(tracer, deeper),
        sizes=(base, wider, target),
        tracer=tracer,
        depth=depth,
    )
    if depth is not None and base[depth] != target[depth]:
        _check_layers(growth, depth)
    wide = next(iter(widths(base, target)), None)
    specs = SizeComparison(
        growth=growth,
        widths=(base[wide], target[wide]) if wide else (1, 1),
        depths=(int(base[depth]), int(target[depth])) if depth else (1, 1),
        roles={pattern: parse_role(pattern, role) for pattern, role in (roles or {}).items()},
    ).specs()
    # A plan's factors of tied readouts count the model's own: nothing is left to say of those.
    counted = [f for t in (growth.base, growth.wider) for f in tied_factors(growth, specs, t)]
    return Comparison(
        specs=specs,
        tied=tied_readouts(growth, specs),
        cautions=[*_unused(specs), *_cautions(growth, counted), *_depth_cautions(growth, depth)],
        own_factors=own_factors(growth, specs),
    )


def _target(tracer: Tracer, target: Sizes, base: ModelTrace) -> ModelTrace:
    if base.uses is None:
        return tracer.shapes(target)
    traced = tracer.trace(target)
    # Too large is no failure: its fans follow from those of the smaller ones (`inferred_fans`).
    return replace(traced, failure="") if traced.too_large else traced


def _first_built(tracer: Tracer, sizes: Sequence[Sizes]) -> ModelTrace | None:
    failure: BadInput | None = None
    for size in sizes:
        try:
            return tracer.shapes(size)
        except BadInput as error:
            failure = failure or error
    if failure:
        raise failure
    return None


def _check_layers(growth: Growth, depth: str) -> None:
    missing = growth.matching.missing()
    if not missing:
        return
    base, _, target = growth.sizes
    names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
    deep = next((deep for deep, there in growth.longer_bases() if not there.missing()), None)
    advice = f"take a base of {depth}={deep}, which has layers of every kind"
    if deep is None:
        last = min(target[depth], base[depth] + MAX_DEPTHS)
        advice = f"no {depth} of the base up to {last} has layers of every kind"
    raise BadInput(
        f"parameters at {described(target)} have no counterpart at {described(base)}, in a layer "
        f"of the same kind: {names}; {advice}"
    )


def _unused(specs: Sequence[ParamSpec]) -> Iterator[str]:
    unused = dict.fromkeys(
        with_layer(spec.name, "*") for spec in specs if spec.note == UNUSED and not spec.frozen
    )
    names = list(unused)
    if names:
        more = f" and {len(names) - 5} more" if names[5:] else ""
        yield (
            f"{', '.join(names[:5])}{more}: never used in the traced forward pass, so taken as "
            "fixed, with a rate that no width changes; if training uses them, give their roles"
        )


def _cautions(growth: Growth, counted: Sequence[Factor]) -> Iterator[str]:
    """What the user should know of the model as a whole; nothing of factors that a plan counts."""
    base, wider, target = growth.sizes
    if growth.base.way:
        yield (
            f"the forward pass was traced {growth.base.way}: parameters that are used in "
            "training alone, or for inputs of another kind, are taken as unused"
        )
    if growth.rounded:
        names = ", ".join(growth.rounded[:3])
        more = len(growth.rounded) - 3
        yield (
            f"{names}{f' and {more} more' if more > 0 else ''} have dimensions that are the same "
            f"at {described(base)} and at {described(wider)} but not at {described(target)}: sizes "
            "are rounded, and the base is another shape than the target, not a small copy of it"
        )
    # Factors are named by their power of the width; the first size that differs stands for it.
    sizes = [name for name in base if base[name] != wider[name]]
    ratio = wider[sizes[0]] / base[sizes[0]] if isinstance(base[sizes[0]], int) else 1.0
    by_plan = set(map(id, counted))
    at_base, at_wider = (
        [f for f in trace.factors if id(f) not in by_plan] for trace in (growth.base, growth.wider)
    )
    yield from width_dependent(at_base, at_wider, described(base), described(wider), ratio)


def _depth_cautions(growth: Growth, depth: str | None) -> Iterator[str]:
    base, _, target = growth.sizes
    names = growth.base.shapes.keys(), growth.target.shapes.keys()
    # Layers at the target alone, and no depth between: an argument is a depth by another name.
    new = [name for name in names[1] - names[0] if layer_of(name) is not None]
    deeper = depth is not None and base[depth] != target[depth]
    if new and not deeper:
        yield (
            f"{min(new)} and others are at {described(target)} alone, yet no depth differs, so "
            "that no branch gets a factor of it: a size is a depth where its name has depth, layer "
            "or blocks in it, such as n_layers"
        )
    if deeper and names[0] == names[1]:
        yield (
            f"its parameters are the same at {described(base)} and at {described(target)}: it "
            "ignores its depth, or its layers share them"
        )


def scaled_ops(model: nn.Module) -> list[ScaledOp]:
    """Every scalable operation of `model`, by the name of its module."""
    modules = [(n, m) for n, m in model.named_modules() if isinstance(m, ScaledModule)]
    return [op for name, module in modules if (op := module.scale_op(name)) is not None]


WIDTH_NAME = re.compile(r"width|emb|hidden|model|dim|channels")
"""Found in the usual names of a width, and not in that of the number of heads."""
WITH_WIDTH = re.compile(
    r"width|emb|hidden|model|channels|heads?|inner|intermediate|mlp|filters|planes|units|forward|"
    r"^dims?$|(^|_)(kv|d?ffn?|base|block|attn|attention|encoder|decoder|key|value|rnn|lstm|gru)(_|$)"
)
"""Found in the names of sizes that grow with a width; other dimensions may be the task's: those of
actions, of conditions."""
_WIDE_END = r"(dim|width|hidden|channels|embd?)(_size)?$"
OF_TASK = re.compile(
    r"^(?!.*(emb|hidden)).*(image|img|pixel|resol)|(^|_)(in|out|input|output)(_|$)|"
    r"(^|_)n(um)?_embeddings|"
    rf"^(?!.*{_WIDE_END}).*(class|vocab|label|token|seq|len|ctx|context|block_size|position|expert|"
    r"patch|kernel|window|bins|batch)"
)
"""Found in the names of sizes of the task, which change no role: words, classes, places."""
OF_NO_WIDTH = re.compile(
    rf"{DEPTH_NAME.pattern}|{OF_TASK.pattern}|head_?(dim|size)|(dim|size)_head|d_head|"
    r"^n(um)?_channels$"
)
"""Found in the names of sizes that need not grow with a width: of a head, say, there are more."""
OF_ENDS = re.compile(r"(^|_)(obs|observation|state|act|action|context|cond|reward)s?(_|$)")
"""Found in the names of what is likely no width, where another size may be."""


def widths(base: Sizes, target: Sizes, named: Sequence[str] = ()) -> list[str]:
    """Names of the sizes that are widths: whole numbers that are no depth.

    First comes the one that stands for all: called width, or else one that differs, or else one of
    a usual name. Those that the user `named` are all of them, those that differ first. Else a
    size that grows beside the width is one by its name; BadInput for one whose name does not say.
    """
    ranked = _ranked(base, target, "width", deep=False)
    if named:
        if unknown := [name for name in named if name not in ranked]:
            allowed = f"names of sizes that are whole numbers and no depth: {', '.join(ranked)}"
            raise ConfigError("widths", unknown[0], allowed)
        return sorted(named, key=lambda name: base[name] == target[name])
    ranked = [name for name in ranked if not OF_TASK.search(name)]
    grown = [name for name in ranked if base[name] != target[name]]
    for name in grown[1:]:
        if not WITH_WIDTH.search(name):
            own = [other for other in grown if not OF_ENDS.search(other)]
            likely = own if own and own != grown else grown[:1]
            raise BadInput(
                f"{name} differs beside {grown[0]}, {base[name]} and {target[name]}, and its name "
                "does not say whether it is a width, whose growth tells roles, or a size of the "
                f"task, as classes are: give widths={likely}, or widths={grown} where all are "
                "widths. A depth has depth, layer or blocks in its name"
            )
    return ranked


def widened(base: Sizes, width: str) -> list[str]:
    """The sizes that a wider model has more of, to read roles where base and target are as wide.

    With the `width` those go that have a name of what grows beside one: had an FFN's inner width
    stayed, its matrices would be projections up and down.
    """
    return [
        name
        for name, value in base.items()
        if name == width
        or (is_size(value) and WITH_WIDTH.search(name) and not OF_NO_WIDTH.search(name))
    ]


def of_the_task(base: Sizes, target: Sizes, named: Sequence[str] = ()) -> dict[str, Any]:
    """Sizes that differ and are no widths or depths, at the target; the base's roles take them."""
    wide = widths(base, target, named)
    differing = (name for name in base if base[name] != target[name])
    return {
        name: target[name]
        for name in differing
        if not DEPTH_NAME.search(name)
        and name not in wide
        # A list, as of channels by stage, is a width unless its name or the user says otherwise.
        and (is_whole(base[name]) or (name not in named and OF_TASK.search(name)))
    }


def depths(base: Sizes, target: Sizes) -> list[str]:
    """Names of the sizes that are depths (`DEPTH_NAME`), in the order of `widths`."""
    return _ranked(base, target, "depth", deep=True)


def _ranked(base: Sizes, target: Sizes, plain: str, *, deep: bool) -> list[str]:
    names = [n for n, v in base.items() if is_whole(v) and bool(DEPTH_NAME.search(n)) == deep]
    # False sorts first: called `plain`, then one that differs, then one of a usual name.
    usual = {n for n in names if WIDTH_NAME.search(n) and WITH_WIDTH.search(n)}
    return sorted(names, key=lambda n: (n != plain, base[n] == target[n], n not in usual))


def is_size(value: object) -> bool:
    """Whether a value is a whole number, or a list of them."""
    return is_whole(value) or (isinstance(value, list | tuple) and all(map(is_size, value)))


def is_whole(value: object) -> bool:
    """Whether a size is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
