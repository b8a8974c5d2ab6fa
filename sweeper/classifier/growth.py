"""What parameters are, from traces of their model at the base, wider, deeper, and as asked for.

`Growth` says which of their dimensions grow with the width, and which with the depth. It counts
fans at each size by itself, or infers those of a size that is too large to be traced.
`SizeComparison` puts them together to the specs, and collects what cannot be decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from itertools import takewhile
from math import isclose, prod
from typing import Any

from sweeper.classifier.numbers import Factor
from sweeper.classifier.roles import (
    GOES_ON,
    REPEATED,
    LayerMatching,
    RoleDecision,
    decide_role,
    fans_by_layout,
    groups_as_used,
    inferred_fans,
    lies_in,
    repeated_containers,
    use_of,
    user_role,
    uses_of,
)
from sweeper.classifier.state import Undecided, Use, UseKind, UseSignature
from sweeper.classifier.trace import ModelTrace, Sizes, Tracer, described
from sweeper.errors import BadInput, ConfigError, suggest
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp

MAX_DEPTHS = 16
"""Depths that are tried, one by one, for a base that has layers of all kinds."""


@dataclass(frozen=True)
class ParameterPair:
    """A parameter of the target, the same in the base, and its dimensions that grow in width."""

    name: str
    base_name: str
    width_dims: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Shapes of a model at the base, wider, deeper, and at the size asked for (the target).

    `sizes` are those of the base, the wider model and the target. `rounded` collects parameters
    that grow at the target alone.
    """

    base: ModelTrace
    wider: ModelTrace
    target: ModelTrace
    deeper: ModelTrace | None
    sizes: tuple[Sizes, Sizes, Sizes]
    tracer: Tracer
    depth: str | None
    rounded: list[str] = field(default_factory=list)

    @cached_property
    def matching(self) -> LayerMatching:
        """Counterparts of the target's parameters in the base."""
        return LayerMatching(self.base.shapes, self.target.shapes)

    def longer_bases(self) -> Iterator[tuple[int, LayerMatching]]:
        """Depths of the base from its own towards the target's, each with its counterparts."""
        (base, _, target), depth = self.sizes, self.depth
        if depth is None:
            return
        # One by one: kinds of layers may alternate in any pattern.
        start = min(base[depth] + 1, target[depth])
        for deep in range(start, min(target[depth], base[depth] + MAX_DEPTHS) + 1):
            with suppress(BadInput):
                there = self.tracer.shapes({**base, depth: deep})
                yield deep, LayerMatching(there.shapes, self.target.shapes)

    @cached_property
    def longer(self) -> Growth | None:
        """The growth of a base that has inner layers, first and last ones where the target has."""
        for deep, of in self.longer_bases():
            if all(of.alike(name, of.counterpart(name) or "") for name in self.target.shapes):
                sizes = ({**size, self.depth: deep} for size in self.sizes[:2])
                small, large = map(self.tracer.trace, sizes)
                return replace(self, base=small, wider=large) if small.uses and large.uses else None
        return None

    @cached_property
    def repeated(self) -> set[str]:
        """Containers of the blocks that a deeper model has more of."""
        return repeated_containers(self.base.shapes, self.deeper.shapes) if self.deeper else set()

    @cached_property
    def at_target(self) -> bool:
        """Whether the target differs from the base in a width."""
        base, wider, target = self.sizes
        return any(base[s] != target[s] for s in base if base[s] != wider[s])

    def check(self) -> None:
        """BadInput if the model ignores its width."""
        base, wider, target = self.sizes
        for name in self.target.shapes:
            base_name = self.matching.counterpart(name)
            # Without a counterpart there is something else to refuse, which `pair` does.
            if base_name is None or base_name not in self.wider.shapes:
                return
            if self.width_dims(name, base_name):
                return
        tried = [described(size) for size in (wider, target) if size != base]
        raise BadInput(
            f"no parameter of the model at {' or '.join(dict.fromkeys(tried))} is larger than at "
            f"{described(base)}: the model ignores its width. Have build make its layers of it"
        )

    def pair(self, name: str) -> ParameterPair:
        """A parameter beside its counterpart; BadInput without one."""
        base_name = self.matching.counterpart(name)
        if base_name is None and name in self.base.shapes:
            differing_dims(name, self.base, self.target)  # refuses another number of dimensions
        if base_name is None or base_name not in self.wider.shapes:
            raise BadInput(
                f"parameter {name} has no counterpart in the base model: a parameter must keep its "
                "name when the width grows"
            )
        return ParameterPair(name, base_name, self.width_dims(name, base_name))

    def width_dims(self, name: str, base_name: str) -> tuple[int, ...]:
        """Dimensions that grow with the width, in the wider model or at the target."""
        grown = differing_dims(base_name, self.base, self.wider)
        if not self.at_target:
            return grown
        # A size that is rounded up to a multiple may be equal at base and wider, and larger at the
        # target: that dimension grows too.
        shape, there = self.base.shapes[base_name], self.target.shapes[name]
        deep = self.depth_dims(base_name)
        late = [i for i, (a, b) in enumerate(zip(shape, there, strict=True)) if a != b]
        more = {i for i in late if i not in deep} - {*grown}
        if more and name not in self.rounded:
            self.rounded.append(name)
        # A dimension that grows with the width must not shrink towards a wider target.
        base, wider, target = self.sizes
        up = [s for s in base if _larger(wider[s], base[s]) and _larger(target[s], base[s])]
        down = [s for s in base if _larger(base[s], target[s])]
        large = self.wider.shapes[base_name]
        if up and not down and any(there[i] < shape[i] < large[i] for i in grown):
            raise BadInput(
                f"parameter {name} is {list(shape)} at {described(base)}, {list(large)} at "
                f"{described(wider)}, but {list(there)} at {described(target)}: it grows with the "
                "width and shrinks, so no rule of width holds. Take sizes that divide evenly"
            )
        return tuple(sorted({*grown, *more}))

    def depth_dims(self, base_name: str) -> tuple[int, ...]:
        """Dimensions that grow with the depth (layers in one stacked parameter)."""
        if self.deeper is None or base_name not in self.deeper.shapes:
            return ()
        return differing_dims(base_name, self.base, self.deeper)

    def fans(self, pair: ParameterPair, decision: RoleDecision) -> dict[str, Any]:
        """The fields of a `ParamSpec` that count entries, at the target and at the base."""
        counts: dict[str, Any] = {}
        places = (("", self.target, pair.name), ("base_", self.base, pair.base_name))
        for prefix, trace, name in places:
            if decision.signature is None:
                fans = fans_by_layout(trace.shapes[name], decision.role, pair.width_dims)
            else:
                fans = self._fans_of(trace, name, pair, decision.signature)
            counts[f"{prefix}groups"] = self._groups(trace, name, pair, decision)
            counts[f"{prefix}fan_in"], counts[f"{prefix}fan_out"] = fans
            if decision.readout is not None:
                readout = self._fans_of(trace, name, pair, decision.readout)
                counts[f"{prefix}readout_fan_in"] = readout[0]
        return counts

    def _fans_of(
        self, trace: ModelTrace, name: str, pair: ParameterPair, signature: UseSignature
    ) -> tuple[int, int]:
        if trace.uses is not None:
            return use_of(trace, name, signature).fans(pair.width_dims)
        smaller = [(t, pair.base_name) for t in (self.base, self.wider)]
        return inferred_fans(smaller, trace.shapes[name], signature, pair.width_dims)

    def _groups(
        self, trace: ModelTrace, name: str, pair: ParameterPair, decision: RoleDecision
    ) -> int:
        if trace.uses is not None:
            return groups_as_used(trace, name, decision)
        small, shape = self.base.shapes[pair.base_name], trace.shapes[name]
        groups = Fraction(groups_as_used(self.base, pair.base_name, decision))
        # Of a target too large to be traced: as many more as its dimensions are larger.
        growth = (Fraction(shape[dim], small[dim]) for dim in decision.growing_groups)
        return round(groups * prod(growth)) if groups > 1 else 1

    def matrix(
        self, pair: ParameterPair, decision: RoleDecision, growing: int = 1
    ) -> tuple[int, int]:
        """How a hidden parameter is made of matrices, and the rows of one; see `ParamSpec`.

        The first dimensions that are neither summed over nor the output's last one, and do not
        grow, count matrices: experts, layers, or a fixed number of heads. What grows is part of
        the one matrix, [heads x size, width]. A convolution's is [first, all others], and
        each of its groups, which are `growing` in number or not, is one of its own.
        """
        shape, signature = self.target.shapes[pair.name], decision.signature
        if decision.role is not Role.HIDDEN or len(shape) < 3 or signature is None:
            return 1, 0
        use = use_of(self.base, pair.base_name, signature)
        if use.op == "convolution":
            groups = growing if decision.growing_groups else use.group_extents.get(0, 1)
            return (groups, shape[0] // groups) if groups > 1 else (1, 0)
        outs = [dim for dim in range(len(shape)) if dim not in use.in_extents]
        stacked = [dim for dim in outs[:-1] if dim not in pair.width_dims]
        stacked += [dim for dim in outs[-1:] if dim in use.group_extents]
        rest = [dim for dim in range(len(shape)) if dim not in stacked]
        sides = [dim in use.in_extents for dim in rest]
        turns = [i for i in range(1, len(rest)) if sides[i] != sides[i - 1]]
        if stacked != [*range(len(stacked))] or len(turns) != 1:
            return 0, 0
        return prod(shape[dim] for dim in stacked), prod(shape[dim] for dim in rest[: turns[0]])

    def outs_of_one_matrix(
        self, pair: ParameterPair, decision: RoleDecision, fans: Mapping[str, int]
    ) -> dict[str, int]:
        """The fan-outs of one matrix of a stack, where an input feeds all of them."""
        stack, _ = self.matrix(pair, decision)
        if stack < 2 or decision.signature is None:
            return {}
        use = use_of(self.base, pair.base_name, decision.signature)
        shape, base_shape = self.target.shapes[pair.name], self.base.shapes[pair.base_name]
        dims = next(n for n in range(1, len(shape)) if prod(shape[:n]) >= stack)
        fed = [dim for dim in range(dims) if dim in use.out_extents]
        if use.op == "convolution" or not fed:
            return {}
        return {
            "fan_out": fans["fan_out"] // prod(shape[dim] for dim in fed),
            "base_fan_out": fans["base_fan_out"] // prod(base_shape[dim] for dim in fed),
        }


def differing_dims(name: str, base: ModelTrace, other: ModelTrace) -> tuple[int, ...]:
    """Dimensions of a parameter that differ between two models; BadInput if their number does."""
    shape, grown = base.shapes[name], other.shapes[name]
    if len(shape) != len(grown):
        raise BadInput(
            f"parameter {name} has shape {list(shape)} in the base model and {list(grown)} in a "
            "larger one: the number of its dimensions must not change"
        )
    return tuple(i for i, (a, b) in enumerate(zip(shape, grown, strict=True)) if a != b)


def _larger(a: object, b: object) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float) and a > b


def traced_role(growth: Growth, pair: ParameterPair) -> RoleDecision:
    """The role, read at a longer base where it goes by the place, and the base has no such one."""
    decision = _role_of_pair(growth, pair)
    by_place = decision.role in (Role.READOUT, Role.DOWN, Role.EMBEDDING, Role.UP)
    if not by_place or growth.matching.alike(pair.name, pair.base_name) or not growth.longer:
        return decision
    return _role_of_pair(growth.longer, growth.longer.pair(pair.name))


def _role_of_pair(growth: Growth, pair: ParameterPair) -> RoleDecision:
    """The role as the traces tell it.

    A readout's outputs go to the loss, and muP starts them small: their gradient is of order
    1, and what it sends back to each of the many inputs must not be. The keys and values of a
    fixed number of heads are as few, and grow in their input alone. But each is read by the
    queries of a number of heads that grows; a small start would make attention uniform and
    its output vanish with the width, where it is to stay of order 1 like any activation
    inside. So an output whose entries enter inner products with other activations, more of
    them the wider the model is, belongs to a hidden weight, whose fan-out is the products.
    Adam's learning rate is the same for both roles; only the start, and alpha_output, differ.

    Other outputs of a fixed size that go on, through any weights of a fixed size, into something
    that grows with the width are within the body: of LoRA's A, of a bottleneck, of attention within
    it. They are to be of order 1 as well, but at a readout's gradient: a projection down. What
    stays a readout is the end, and a router, whose softmax gives shares of one whatever it is
    given, and starts best at equal shares.

    What grows in its output alone is an embedding at the network's input, and a projection up
    where its input was made by weights that grow, or has channels whose number does.
    """
    traces = growth.base, growth.wider
    base, wider = (uses_of(trace, pair.base_name) for trace in traces)
    at_target = None
    if growth.at_target and growth.target.uses is not None:
        at_target = uses_of(growth.target, pair.name)
    decision = decide_role(base, wider, pair.width_dims, at_target)
    # See above: what more heads read the wider the model is, is no readout.
    few, many = (trace.flow.products.get(pair.base_name, 0) for trace in traces)
    if decision.role is Role.READOUT and many > few:
        return replace(decision, role=Role.HIDDEN, note=REPEATED.format(decision.note))
    if decision.role is Role.READOUT and _goes_on(growth, pair.base_name):
        return replace(decision, role=Role.DOWN, note=f"{decision.note}; {GOES_ON}")
    summed = decision.signature is not None and decision.signature[0] is UseKind.CONTRACTION
    is_input = decision.role is Role.EMBEDDING and decision.readout is None and summed
    if is_input and (decision.growing_groups or _is_fed_by_width(growth, pair.base_name)):
        return replace(decision, role=Role.UP)
    return decision


def _goes_on(growth: Growth, base_name: str) -> bool:
    flows = growth.base.flow, growth.wider.flow
    seen, ahead = set[str](), [base_name]
    while ahead:
        seen.add(name := ahead.pop())
        few, many = (f.reaches[name] if name in f.products else f.meets[name] for f in flows)
        if many > few:
            return True
        fed = (flows[0].fed_by if name in flows[0].products else flows[0].takes).items()
        ahead += [weight for weight, sources in fed if name in sources and weight not in seen]
    return False


def _is_fed_by_width(growth: Growth, base_name: str) -> bool:
    seen, ahead = set[str](), [base_name]
    while ahead:
        for source in set(growth.base.flow.fed_by.get(ahead.pop(), ())) - seen:
            if source in growth.wider.shapes and differing_dims(source, growth.base, growth.wider):
                return True
            seen.add(source)
            ahead.append(source)
    return False


NORM = "starts as the norm of {}, by which the model divides"
NORMS = {"linalg_vector_norm", "norm", "_weight_norm_interface"}
"""Statistics of a weight by which what is divided has the length 1."""


def _statistics(uses: Iterable[Use]) -> set[str]:
    """What is computed of a weight beside its use: a norm, a spread, a spectral norm's products."""
    return {u.op for u in uses if u.kind is UseKind.STATISTIC or not u.depends_on_input}


def reparameterized(base: ModelTrace, base_name: str, decision: RoleDecision) -> str:
    """Why a weight's start is not that of what the model multiplies; "" where it is."""
    growing = decision.role not in (Role.VECTOR, Role.FIXED)
    if not growing or decision.signature is None or base.uses is None:
        return ""
    uses = base.uses[base_name]
    main = [use for use in uses if use.signature == decision.signature and use.transformed]
    if any(use.bent for use in main):
        return "it goes through a function that is not linear"
    if main and (ops := _statistics(uses)) and not _gain(base, base_name):
        return f"it is divided by what is computed of itself ({', '.join(ops)})"
    return ""


def _gain(base: ModelTrace, base_name: str) -> str:
    """The one parameter that multiplies a weight which is divided by its norm; else ""."""
    uses = base.uses or {}
    gains = [*base.flow.gains.get(base_name, ())]
    if len(gains) != 1 or not (ops := _statistics(uses.get(base_name, ()))) or not ops <= NORMS:
        return ""
    shape, gain = base.shapes[base_name], base.shapes[gains[0]]
    fits = len(gain) == len(shape) and all(a in (1, b) for a, b in zip(gain, shape, strict=True))
    bent = any(use.bent for use in uses[gains[0]])
    return gains[0] if (fits or not gain) and not bent else ""


def tied_readouts(growth: Growth, specs: Iterable[ParamSpec]) -> list[ScaledOp]:
    """The readouts that are tied to an embedding, as operations to scale."""
    ops = [_tied(growth, spec) for spec in specs if spec.readout_fan_in]
    names = [op.name for op in ops]
    # Of a module that computes several, each goes by its parameter.
    return [
        replace(op, name=op.geometry["parameter"]) if names.count(op.name) > 1 else op for op in ops
    ]


def _tied(growth: Growth, spec: ParamSpec) -> ScaledOp:
    pair = growth.pair(spec.name)
    decision = traced_role(growth, pair)
    uses = [
        uses_of(trace, name)[decision.readout]
        for trace, name in ((growth.target, pair.name), (growth.base, pair.base_name))
        if decision.readout is not None and trace.uses is not None
    ]
    # One trace alone where the target is too large: its own factor then counts as the base's.
    at_target, at_base = uses[0], uses[-1]
    geometry = {
        "fan_in": spec.readout_fan_in,
        "base_fan_in": spec.base_readout_fan_in,
        "built_in": at_target.factor / at_base.factor,
        "own": at_target.factor,
        "parameter": spec.name,
        "lookup": spec.lookup,
    }
    return ScaledOp(name=at_target.module or spec.name, kind="tied_readout", geometry=geometry)


def tied_factors(growth: Growth, specs: Iterable[ParamSpec], trace: ModelTrace) -> list[Factor]:
    """What a model of the growth multiplies the logits of tied readouts by, and nothing else."""
    pairs = [growth.pair(spec.name) for spec in specs if spec.readout_fan_in]
    readouts = {pair.base_name: traced_role(growth, pair).readout for pair in pairs}
    tied: list[Factor] = []
    others: list[Factor] = []
    for name, uses in (trace.uses or {}).items() if readouts else ():
        for use in uses:
            is_readout = name in readouts and use.signature == readouts[name]
            (tied if is_readout else others).extend(use.multiplied)
    # By identity: in a loop over layers equal records are many.
    elsewhere = set(map(id, others))
    return [factor for factor in tied if id(factor) not in elsewhere]


def own_factors(growth: Growth, specs: Iterable[ParamSpec]) -> dict[str, float]:
    """What the model multiplies the outputs of parameters by, if not 1; not of tied readouts."""
    factors = {}
    for spec in specs:
        trace, name = growth.target, spec.name
        if trace.uses is None:
            trace, name = growth.base, growth.matching.counterpart(name) or name
        if spec.readout_fan_in or trace.uses is None:
            continue
        uses = trace.uses.get(name, ())
        contracted = [u.factor for u in uses if u.signature[0] is UseKind.CONTRACTION]
        if differing := [factor for factor in contracted if not isclose(factor, 1.0)]:
            factors[spec.name] = differing[0]
    return factors


class Untraced(BadInput):
    """No forward pass could be traced: why, and how many parameters have no role for that."""

    ADVICE = (
        "Give another call by inputs=: other arguments (no mask, no cache, no labels), tensors of "
        'other shapes, or a model whose attn_implementation is "eager" or "sdpa"'
    )

    def __init__(self, failure: str, roleless: int, advice: str = ADVICE) -> None:
        self.failure, self.roleless = failure, roleless
        super().__init__(
            f"{failure}\n  {advice}. Without a trace {roleless} parameters have no role, and no "
            "parameterization can scale them"
        )


@dataclass(frozen=True, kw_only=True)
class SizeComparison:
    """The specs of a model, from the traces of its `growth`.

    `widths` and `depths` are those of the base and of the target. `roles` are the user's, by
    pattern. `problems` collects what cannot be decided, so that one refusal names it all; `made`
    has the specs by name, None of what cannot.
    """

    growth: Growth
    widths: tuple[int, int]
    depths: tuple[int, int]
    roles: Mapping[str, Role]
    problems: list[str] = field(default_factory=list)
    made: dict[str, ParamSpec | None] = field(default_factory=dict)

    def specs(self) -> list[ParamSpec]:
        """All specs; BadInput lists the parameters that cannot be decided."""
        shapes = self.growth.target.shapes
        for pattern, role in self.roles.items():
            if not any(fnmatchcase(name, pattern) for name in shapes):
                allowed = f"no parameter matches; {suggest(pattern, shapes)}"
                raise ConfigError(f"roles[{pattern}]", str(role), allowed)
        self.growth.check()
        specs = [spec for name in shapes if (spec := self._spec(name)) is not None]
        if self.problems:
            raise self._refusal()
        return specs

    def _refusal(self) -> BadInput:
        # One cause for all: without a trace every parameter is undecided, and naming each says
        # nothing.
        growth = self.growth
        failure = growth.base.failure or growth.wider.failure or growth.target.failure
        if "give inputs=" in failure:
            return BadInput(failure)
        if failure:
            return Untraced(failure, len(self.problems))
        first = self.problems[0].partition(" ")[0]
        lines = [
            "these parameters cannot be classified, so no parameterization can scale them:",
            *self.problems,
            f'give their roles, such as roles={{"{first}": "hidden"}}; names may be patterns, '
            f"roles are {', '.join(Role)}",
        ]
        return BadInput("\n  ".join(lines))

    def _spec(self, name: str) -> ParamSpec | None:
        if name not in self.made:
            self.made[name] = self._made(self.growth.pair(name))
        return self.made[name]

    def _made(self, pair: ParameterPair) -> ParamSpec | None:
        growth, shape = self.growth, self.growth.target.shapes[pair.name]
        norm_of = self._spec(weight) if (weight := self._norm_of(pair)) else None
        if weight and norm_of is None:
            return None
        try:
            decision = self._decide(pair)
            fans = growth.fans(pair, decision)
            if norm_of:
                decision, fans = self._gain_role(pair, weight, decision, fans)
            fans |= growth.outs_of_one_matrix(pair, decision, fans)
        except Undecided as error:
            # Collected: one refusal names all parameters, and the user gives all roles at once.
            self.problems.append(f"{pair.name} {list(shape)}: {error}")
            return None
        kind = decision.signature[0] if decision.signature else None
        cautions = _cautions(growth, pair.base_name, decision)
        return ParamSpec(
            name=pair.name,
            role=decision.role,
            shape=shape,
            base_shape=growth.base.shapes[pair.base_name],
            **fans,
            width=self.widths[1],
            base_width=self.widths[0],
            residual=lies_in(pair.name, growth.repeated),
            depth=self.depths[1],
            base_depth=self.depths[0],
            init=decision.init,
            width_dims=pair.width_dims,
            depth_dims=growth.depth_dims(pair.base_name),
            lookup=kind is UseKind.LOOKUP and decision.role is not Role.VECTOR,
            gain=kind is UseKind.MUL and decision.role is Role.VECTOR,
            tied=growth.target.tied.get(pair.name, ()),
            frozen=pair.name in growth.target.frozen,
            matrix=growth.matrix(pair, decision, fans["groups"]),
            norm_of=norm_of,
            reparameterized=reparameterized(growth.base, pair.base_name, decision),
            note="; ".join(filter(None, (decision.note, *cautions))),
        )

    def _decide(self, pair: ParameterPair) -> RoleDecision:
        # The first pattern that matches counts, as the user wrote them.
        override = next((r for p, r in self.roles.items() if fnmatchcase(pair.name, p)), None)
        uses = (self.growth.base.uses or {}).get(pair.base_name, ())
        try:
            traced = traced_role(self.growth, pair)
        except Undecided as error:
            if override is None and pair.name in self.growth.target.frozen:
                return RoleDecision(role=Role.FIXED, note=f"not trained; {error}")
            if override is None:
                raise
            return user_role(override, uses, None)
        # A role that agrees with the trace keeps what the trace knows beside it: fans, groups,
        # init.
        if override is None or traced.role is override:
            return traced
        return user_role(override, uses, traced)

    def _norm_of(self, pair: ParameterPair) -> str:
        # Of many layers the one that the gain is in.
        """The weight whose norm a gain starts as: what the model multiplies is then that weight."""

        def alike(other: str) -> int:
            letters = zip(other, pair.name, strict=False)
            return sum(1 for _ in takewhile(lambda two: two[0] == two[1], letters))

        return max(self._normed.get(pair.base_name, ()), key=alike, default="")

    @cached_property
    def _normed(self) -> dict[str, list[str]]:
        base, matching = self.growth.base, self.growth.matching
        gains = {weight: _gain(base, weight) for weight in base.flow.gains}
        normed: dict[str, list[str]] = {}
        # Once for all parameters: asked for each it would be depth^2 work.
        for name in self.growth.target.shapes if any(gains.values()) else ():
            if gain := gains.get(matching.counterpart(name) or ""):
                normed.setdefault(gain, []).append(name)
        return normed

    def _gain_role(
        self, pair: ParameterPair, weight: str, traced: RoleDecision, fans: dict[str, Any]
    ) -> tuple[RoleDecision, dict[str, Any]]:
        """The role of a gain that starts as the norm of `weight`, and its fans.

        y = g (v / |v|) x. Where outputs that do not grow sum over the inputs that g has a number
        for, n steps of g add up: it is a readout, or a projection down, as the weight is. Elsewhere
        y moves by a share: g is a vector, or fixed, and its steps are shares of what it starts as.
        """
        normed = self.growth.pair(weight)
        decision = self._decide(normed)
        gain, summed = self.growth.target.shapes[pair.name], (decision.signature or ("", ()))[1]
        over_inputs = any(gain[dim] > 1 for dim in summed if dim < len(gain))
        start: dict[str, Any] = {"init": "norm", "note": NORM.format(weight)}
        if over_inputs and decision.role in (Role.READOUT, Role.DOWN):
            return replace(decision, **start), self.growth.fans(normed, decision)
        if traced.role is Role.FIXED:
            return replace(traced, **start), fans
        outs = prod(gain), prod(self.growth.base.shapes[pair.base_name])
        vector = {"fan_in": 1, "fan_out": outs[0], "base_fan_in": 1, "base_fan_out": outs[1]}
        return replace(traced, role=Role.VECTOR, **start), fans | vector


def _cautions(growth: Growth, base_name: str, decision: RoleDecision) -> Iterator[str]:
    flows = growth.base.flow, growth.wider.flow
    products = (product.source_params for product in flows[0].activation_products)
    is_fed = (base_name in sources for sources in (*flows[0].fed_by.values(), *products))
    if decision.role is Role.READOUT and any(is_fed):
        yield "its output feeds further layers: consider the role hidden"
    # Products in the order of the pass, which is the same at both widths.
    pairs = zip(*(flow.activation_products for flow in flows), strict=False)
    growing = {
        base.size
        for base, wider in pairs
        if base.size != wider.size and base_name in base.source_params
    }
    for size in sorted(growing):
        yield (
            f"its output enters a product of activations over {size} entries, which grow with "
            "the width: if it is q k^T, divide it by the head size, not by its root"
        )
