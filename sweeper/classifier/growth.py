"""What parameters are, from traces of their model at the base, wider, deeper, and as asked for.

`Growth` says which of their dimensions grow with the width, and which with the depth. Fans are
counted at each size by itself, or inferred for a size that is too large to be traced.
`SizeComparison` puts them together to the specs, and collects what cannot be decided.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    lies_in,
    repeated_containers,
    user_role,
)
from sweeper.classifier.state import Undecided, Use, UseKind, UseSignature, decisive_uses
from sweeper.classifier.trace import ModelTrace, Sizes
from sweeper.errors import BadInput, ConfigError, suggest
from sweeper.scaling.spec import DEPTH_NAME, ParamSpec, Role, ScaledOp


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
    rounded: list[str] = field(default_factory=list)

    @cached_property
    def matching(self) -> LayerMatching:
        """Counterparts of the target's parameters in the base."""
        return LayerMatching(self.base.shapes, self.target.shapes)

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
        pairs = [(name, self.matching.counterpart(name)) for name in self.target.shapes]
        for name, base_name in pairs:
            # Without a counterpart there is something else to refuse, which `_spec` does.
            if base_name is None or base_name not in self.wider.shapes:
                return
            if self.width_dims(name, base_name):
                return
        tried = [described(size) for size in (wider, target) if size != base]
        raise BadInput(
            f"no parameter of the model at {' or '.join(dict.fromkeys(tried))} is larger than at "
            f"{described(base)}: the model ignores its width. Have build make its layers of it"
        )

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


def differing_dims(name: str, base: ModelTrace, other: ModelTrace) -> tuple[int, ...]:
    """Dimensions of a parameter that differ between two models; BadInput if their number does."""
    shape, grown = base.shapes[name], other.shapes[name]
    if len(shape) != len(grown):
        raise BadInput(
            f"parameter {name} has shape {list(shape)} in the base model and {list(grown)} in a "
            "larger one: the number of its dimensions must not change"
        )
    return tuple(i for i, (a, b) in enumerate(zip(shape, grown, strict=True)) if a != b)


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
OF_ENDS = re.compile(r"(^|_)(obs|observation|state|act|action|context|cond|reward)s?(_|$)")
"""Found in the names of what is likely no width, where another size may be."""


def widths(base: Sizes, target: Sizes, named: Sequence[str] = ()) -> list[str]:
    """Names of the sizes that are widths: whole numbers that are no depth.

    First comes the one that stands for all: called width, or else one that differs, or else one of
    a usual name. Those that the user `named` are all of them, in that order. Else a size that grows
    beside the width is one by its name; BadInput for one whose name does not say.
    """
    ranked = _ranked(base, target, "width", deep=False)
    if named:
        if unknown := [name for name in named if name not in ranked]:
            allowed = f"names of sizes that are whole numbers and no depth: {', '.join(ranked)}"
            raise ConfigError("widths", unknown[0], allowed)
        return [*named]
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


def of_the_task(base: Sizes, target: Sizes, named: Sequence[str] = ()) -> dict[str, Any]:
    """The sizes that differ and are neither widths nor depths, as they are at the target.

    Roles are told with these in base and target alike: a head of ten times the classes is a head.
    """
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


def is_whole(value: object) -> bool:
    """Whether a size is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def described(sizes: Sizes) -> str:
    """Sizes in words."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _larger(a: object, b: object) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float) and a > b


# Fan-in and fan-out of a parameter at one of a model's sizes.


def uses_of(trace: ModelTrace, name: str) -> dict[UseSignature, Use]:
    """The uses that count; Undecided if there are none to go by."""
    if trace.uses is None:
        raise Undecided("the forward pass was not traced")
    return decisive_uses(trace.uses[name], trace.shapes[name])


def fans_by_layout(shape: Sequence[int], role: Role, width_dims: Sequence[int]) -> tuple[int, int]:
    """Fans of a role that was given, by torch's layout [out, in, ...].

    A vector feeds its dimensions that grow, or its last one: others count vectors (experts).
    """
    if role is Role.VECTOR or len(shape) < 2:
        wide = [shape[dim] for dim in width_dims] or [*shape][-1:]
        return 1, prod(wide)
    rows, rest = shape[0], prod(shape[1:])
    # A table is [words, width]: its rows are inputs. A Linear is [out, in].
    return (rows, rest) if role is Role.EMBEDDING else (rest, rows)


def _use(trace: ModelTrace, name: str, signature: UseSignature) -> Use:
    """The use with this signature; Undecided if the model of this size has none."""
    use = uses_of(trace, name).get(signature)
    if use is None:
        raise Undecided("the model of the size asked for uses it in other ways than the base model")
    return use


def groups_as_used(trace: ModelTrace, name: str, decision: RoleDecision) -> int:
    """How many independent weights a parameter holds, where their number grows; 1 elsewhere.

    Only if the fan-in is fixed, or in a convolution: experts, of which the output is the sum, are
    as many as there are, and each feeds as much as it does alone.
    """
    if decision.signature is None or not decision.growing_groups:
        return 1
    use = _use(trace, name, decision.signature)
    if decision.role not in (Role.EMBEDDING, Role.UP) and use.op != "convolution":
        return 1
    return prod(use.group_extents.get(dim, 1) for dim in decision.growing_groups)


def inferred_fans(
    pairs: Sequence[tuple[ModelTrace, str]],
    shape: Sequence[int],
    signature: UseSignature,
    width_dims: Sequence[int],
) -> tuple[int, int]:
    """Fans at `shape`, of a model too large to be traced, from those of smaller ones.

    `pairs` are the smaller models and the parameter's name there. Undecided unless a fan is the
    same share of the dimensions that it spans in all of them.
    """
    # Fractions, not floats: a share of a third must be the same at all sizes, to the last digit.
    shares: set[tuple[Fraction, Fraction]] = set()
    for trace, name in pairs:
        use, small = _use(trace, name, signature), trace.shapes[name]
        # A convolution's kernel, say, makes its fan 9 times the dimension at every width.
        spans = [_spanned(use, width_dims, small, side) for side in ("in", "out")]
        fans = use.fans(width_dims)
        shares.add((Fraction(fans[0], spans[0]), Fraction(fans[1], spans[1])))
    if len(shares) != 1:
        raise Undecided("its fans at the size asked for do not follow from those at smaller sizes")
    fan_in, fan_out = (
        share * _spanned(use, width_dims, shape, side)
        for share, side in zip(shares.pop(), ("in", "out"), strict=True)
    )
    return round(fan_in), round(fan_out)


def _spanned(use: Use, width_dims: Sequence[int], shape: Sequence[int], side: str) -> int:
    """Entries of the dimensions of `shape` that the use sums over, or feeds."""
    dims: Collection[int] = use.in_extents if side == "in" else use.out_extents
    if use.kind in (UseKind.MUL, UseKind.ADD, UseKind.INSERT) and not use.summed:
        wide = [dim for dim in use.out_extents if dim in width_dims] or [*use.out_extents][-1:]
        dims = () if side == "in" else wide
    return prod(shape[dim] for dim in dims)


NORM = "starts as the norm of {}, by which the model divides"
NORMS = {"linalg_vector_norm", "norm", "_weight_norm_interface"}
"""Statistics of a weight by which what is divided has the length 1."""


def _statistics(uses: Iterable[Use]) -> set[str]:
    """What is computed of a weight beside its use: a norm, a spread, a spectral norm's products."""
    return {u.op for u in uses if u.kind is UseKind.STATISTIC or not u.depends_on_input}


class Untraced(BadInput):
    """No forward pass could be traced: why, and how many parameters have no role for that."""

    ADVICE = (
        "Give another call by inputs=: other arguments (no mask, no cache, no labels), tensors of "
        'other shapes, or a model whose attn_implementation is "eager" or "sdpa"'
    )

    def __init__(self, failure: str, roleless: int, advice: str = ADVICE) -> None:
        """The message ends with what to do."""
        self.failure, self.roleless = failure, roleless
        super().__init__(
            f"{failure}\n  {advice}. Without a trace {roleless} parameters have no role, and no "
            "parameterization can scale them"
        )


@dataclass(frozen=True, kw_only=True)
class SizeComparison:
    """A model at the base, wider, deeper, and at the size asked for: `growth` has the traces.

    `roles` are the user's, by pattern. `problems` collects what cannot be decided, so that one
    refusal names it all; `made` has the specs by name, None of what cannot.
    """

    growth: Growth
    depth: int
    base_depth: int
    roles: Mapping[str, Role]
    problems: list[str] = field(default_factory=list)
    made: dict[str, ParamSpec | None] = field(default_factory=dict)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """The width at the base and at the target; 1 where no size is one."""
        base, _, target = self.growth.sizes
        name = next(iter(widths(base, target)), None)
        return (base[name], target[name]) if name else (1, 1)

    @property
    def base(self) -> ModelTrace:
        """The model at the base."""
        return self.growth.base

    @property
    def wider(self) -> ModelTrace:
        """The model that is wider than the base."""
        return self.growth.wider

    @property
    def target(self) -> ModelTrace:
        """The model at the size asked for."""
        return self.growth.target

    def specs(self) -> list[ParamSpec]:
        """All specs; BadInput lists the parameters that cannot be decided."""
        for pattern, role in self.roles.items():
            if not any(fnmatchcase(name, pattern) for name in self.target.shapes):
                allowed = f"no parameter matches; {suggest(pattern, self.target.shapes)}"
                raise ConfigError(f"roles[{pattern}]", str(role), allowed)
        self.growth.check()
        specs = [spec for name in self.target.shapes if (spec := self._spec(name)) is not None]
        if self.problems:
            raise self._refusal()
        return specs

    def tied(self, specs: Iterable[ParamSpec]) -> list[ScaledOp]:
        """The readouts that are tied to an embedding, as operations to scale."""
        ops = [self._tied(spec) for spec in specs if spec.readout_fan_in]
        names = [op.name for op in ops]
        # Of a module that computes several, each goes by its parameter.
        return [
            replace(op, name=op.geometry["parameter"]) if names.count(op.name) > 1 else op
            for op in ops
        ]

    def accounted(self, specs: Iterable[ParamSpec], trace: ModelTrace) -> list[Factor]:
        """What a model of the growth multiplies the logits of tied readouts by, and nothing else.

        Plans divide the readout's factor by it (`_tied`).
        """
        tied: list[Factor] = []
        others: list[Factor] = []
        readouts = {}
        for spec in specs:
            if spec.readout_fan_in:
                base_name = self.growth.matching.counterpart(spec.name) or spec.name
                decision = self._traced(spec.name, base_name, spec.width_dims)
                readouts[base_name] = decision.readout
        for name, uses in (trace.uses or {}).items() if readouts else ():
            for use in uses:
                is_readout = name in readouts and use.signature == readouts[name]
                (tied if is_readout else others).extend(use.multiplied)
        # By identity: in a loop over layers equal records are many.
        known = set(map(id, others))
        return [factor for factor in tied if id(factor) not in known]

    def own_factors(self, specs: Iterable[ParamSpec]) -> dict[str, float]:
        """What the model itself multiplies the outputs of parameters by, where that is not 1.

        Not of tied readouts, which are operations.
        """
        found = {}
        for spec in specs:
            trace, name = self.target, spec.name
            if trace.uses is None:
                trace, name = self.base, self.growth.matching.counterpart(name) or name
            if spec.readout_fan_in or trace.uses is None:
                continue
            uses = trace.uses.get(name, ())
            factors = [u.factor for u in uses if u.signature[0] is UseKind.CONTRACTION]
            if differing := [factor for factor in factors if not isclose(factor, 1.0)]:
                found[spec.name] = differing[0]
        return found

    def _refusal(self) -> BadInput:
        """Every parameter that cannot be decided, why, and what to give."""
        # One cause for all: without a trace every parameter is undecided, and naming each says
        # nothing.
        failure = self.base.failure or self.wider.failure or self.target.failure
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
        """The spec of one parameter; None, and a problem more, if it cannot be decided."""
        if name not in self.made:
            self.made[name] = self._made(name)
        return self.made[name]

    def _made(self, name: str) -> ParamSpec | None:
        base_name = self.growth.matching.counterpart(name)
        if base_name is None and name in self.base.shapes:
            differing_dims(name, self.base, self.target)  # refuses another number of dimensions
        if base_name is None or base_name not in self.wider.shapes:
            raise BadInput(
                f"parameter {name} has no counterpart in the base model: a parameter must keep its "
                "name when the width grows"
            )
        width_dims = self.growth.width_dims(name, base_name)
        norm_of = self._spec(weight) if (weight := self._norm_of(name, base_name)) else None
        if weight and norm_of is None:
            return None
        try:
            decision = self._decide(name, base_name, width_dims)
            known = self._fans(name, base_name, decision, width_dims)
            if norm_of:
                decision, known = self._gain_role(name, weight, decision, known)
            known |= self._without_stack(name, base_name, decision, width_dims, known)
        except Undecided as error:
            # Collected: one refusal names all parameters, and the user gives all roles at once.
            self.problems.append(f"{name} {list(self.target.shapes[name])}: {error}")
            return None
        kind = decision.signature[0] if decision.signature else None
        return ParamSpec(
            name=name,
            role=decision.role,
            shape=self.target.shapes[name],
            base_shape=self.base.shapes[base_name],
            **known,
            width=self.widths[1],
            base_width=self.widths[0],
            residual=lies_in(name, self.growth.repeated),
            depth=self.depth,
            base_depth=self.base_depth,
            init=decision.init,
            width_dims=width_dims,
            depth_dims=self.growth.depth_dims(base_name),
            lookup=kind is UseKind.LOOKUP and decision.role is not Role.VECTOR,
            tied=self.target.tied.get(name, ()),
            frozen=name in self.target.frozen,
            matrix=self._matrix(name, base_name, decision, width_dims, known.get("groups", 1)),
            norm_of=norm_of,
            reparameterized=self._reparameterized(base_name, decision),
            note="; ".join(filter(None, (decision.note, *self._cautions(base_name, decision)))),
        )

    def _matrix(
        self,
        name: str,
        base_name: str,
        decision: RoleDecision,
        width_dims: tuple[int, ...],
        growing: int = 1,
    ) -> tuple[int, int]:
        """How a hidden parameter is made of matrices, and the rows of one; see `ParamSpec`.

        The first dimensions that are neither summed over nor the output's last one, and do not
        grow, count matrices: experts, layers, or a fixed number of heads. What grows is part of
        the one matrix, [heads x size, width]. A convolution's is [first, all others], and
        each of its groups, which are `growing` in number or not, is one of its own.
        """
        shape, signature = self.target.shapes[name], decision.signature
        if decision.role is not Role.HIDDEN or len(shape) < 3 or signature is None:
            return 1, 0
        use = _use(self.base, base_name, signature)
        if use.op == "convolution":
            groups = growing if decision.growing_groups else use.group_extents.get(0, 1)
            return (groups, shape[0] // groups) if groups > 1 else (1, 0)
        outs = [dim for dim in range(len(shape)) if dim not in use.in_extents]
        stacked = [dim for dim in outs[:-1] if dim not in width_dims]
        stacked += [dim for dim in outs[-1:] if dim in use.group_extents]
        rest = [dim for dim in range(len(shape)) if dim not in stacked]
        sides = [dim in use.in_extents for dim in rest]
        turns = [i for i in range(1, len(rest)) if sides[i] != sides[i - 1]]
        if stacked != [*range(len(stacked))] or len(turns) != 1:
            return 0, 0
        return prod(shape[dim] for dim in stacked), prod(shape[dim] for dim in rest[: turns[0]])

    def _without_stack(
        self,
        name: str,
        base_name: str,
        decision: RoleDecision,
        width_dims: tuple[int, ...],
        known: Mapping[str, int],
    ) -> dict[str, int]:
        """The fan-outs of one matrix of a stack, where an input feeds all of them."""
        stack, _ = self._matrix(name, base_name, decision, width_dims)
        if stack < 2 or decision.signature is None:
            return {}
        use = _use(self.base, base_name, decision.signature)
        shape = self.target.shapes[name]
        dims = next(n for n in range(1, len(shape)) if prod(shape[:n]) >= stack)
        fed = [dim for dim in range(dims) if dim in use.out_extents]
        if use.op == "convolution" or not fed:
            return {}
        there = self.base.shapes[base_name]
        return {
            "fan_out": known["fan_out"] // prod(shape[dim] for dim in fed),
            "base_fan_out": known["base_fan_out"] // prod(there[dim] for dim in fed),
        }

    def _reparameterized(self, base_name: str, decision: RoleDecision) -> str:
        """Why a weight's start is not that of what the model multiplies; "" where it is."""
        growing = decision.role not in (Role.VECTOR, Role.FIXED)
        if not growing or decision.signature is None or self.base.uses is None:
            return ""
        uses = self.base.uses[base_name]
        main = [use for use in uses if use.signature == decision.signature and use.transformed]
        if any(use.bent for use in main):
            return "it goes through a function that is not linear"
        if main and (ops := _statistics(uses)) and not self._gain(base_name):
            return f"it is divided by what is computed of itself ({', '.join(ops)})"
        return ""

    def _gain(self, base_name: str) -> str:
        """The one parameter that multiplies a weight which is divided by its norm; else ""."""
        uses = (self.base.uses or {}).get(base_name, ())
        gains = [*self.base.gains.get(base_name, ())]
        if len(gains) != 1 or not (ops := _statistics(uses)) or not ops <= NORMS:
            return ""
        shape, gain = self.base.shapes[base_name], self.base.shapes[gains[0]]
        fits = len(gain) == len(shape) and all(
            a in (1, b) for a, b in zip(gain, shape, strict=True)
        )
        bent = any(use.bent for use in (self.base.uses or {})[gains[0]])
        return gains[0] if (fits or not gain) and not bent else ""

    def _norm_of(self, name: str, base_name: str) -> str:
        """The weight whose norm a gain starts as: what the model multiplies is then that weight."""
        normed = self._normed.get(base_name, ())

        # Of many layers the one that the gain is in.
        def alike(other: str) -> int:
            pairs = zip(other, name, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return max(normed, key=alike, default="")

    @cached_property
    def _normed(self) -> dict[str, list[str]]:
        """The weights of the target that start with a norm, by the base's name of their gain."""
        gains = {weight: self._gain(weight) for weight in self.base.gains}
        normed: dict[str, list[str]] = {}
        # Once for all parameters: asked for each it would be depth^2 work.
        for name in self.target.shapes if any(gains.values()) else ():
            if gain := gains.get(self.growth.matching.counterpart(name) or ""):
                normed.setdefault(gain, []).append(name)
        return normed

    def _gain_role(
        self, name: str, weight: str, traced: RoleDecision, known: dict[str, Any]
    ) -> tuple[RoleDecision, dict[str, Any]]:
        """The role of a gain that starts as the norm of `weight`, and its fans.

        y = g (v / |v|) x. Where outputs that do not grow sum over the inputs that g has a number
        for, n steps of g add up: it is a readout, or a projection down, as the weight is. Elsewhere
        y moves by a share: g is a vector, or fixed, and its steps are shares of what it starts as.
        """
        base_weight = self.growth.matching.counterpart(weight) or weight
        width_dims = self.growth.width_dims(weight, base_weight)
        decision = self._decide(weight, base_weight, width_dims)
        gain, summed = self.target.shapes[name], (decision.signature or ("", ()))[1]
        over_inputs = any(gain[dim] > 1 for dim in summed if dim < len(gain))
        start: dict[str, Any] = {"init": "norm", "note": NORM.format(weight)}
        if over_inputs and decision.role in (Role.READOUT, Role.DOWN):
            known = self._fans(weight, base_weight, decision, width_dims)
            return replace(decision, **start), known
        if traced.role is Role.FIXED:
            return replace(traced, **start), known
        base_gain = self.base.shapes[self.growth.matching.counterpart(name) or name]
        fans = {
            "fan_in": 1,
            "fan_out": prod(gain),
            "base_fan_in": 1,
            "base_fan_out": prod(base_gain),
        }
        return replace(traced, role=Role.VECTOR, **start), {**known, **fans}

    def _decide(self, name: str, base_name: str, width_dims: tuple[int, ...]) -> RoleDecision:
        """The traced role, or the one that the user gave."""
        # The first pattern that matches counts, as the user wrote them.
        override = next((r for p, r in self.roles.items() if fnmatchcase(name, p)), None)
        try:
            traced = self._traced(name, base_name, width_dims)
        except Undecided as error:
            if override is None and name in self.target.frozen:
                return RoleDecision(role=Role.FIXED, note=f"not trained; {error}")
            if override is None:
                raise
            return user_role(override, (self.base.uses or {}).get(base_name, ()), None)
        # A role that agrees with the trace keeps what the trace knows beside it: fans, groups,
        # init.
        if override is None or traced.role is override:
            return traced
        return user_role(override, (self.base.uses or {})[base_name], traced)

    def _traced(self, name: str, base_name: str, width_dims: tuple[int, ...]) -> RoleDecision:
        """The role as the traces tell it.

        A readout's outputs go to the loss, and muP starts them small: their gradient is of order
        1, and what it sends back to each of the many inputs must not be. The keys and values of a
        fixed number of heads are as few, and grow in their input alone. But each is read by the
        queries of a number of heads that grows; a small start would make attention uniform and
        its output vanish with the width, where it is to stay of order 1 like any activation
        inside. So an output whose entries enter inner products with other activations, more of
        them the wider the model is, belongs to a hidden weight, whose fan-out is the products.
        Adam's learning rate is the same for both roles; only the start, and alpha_output, differ.

        Other outputs of a fixed size that go on into something that grows with the width are
        within the body: of LoRA's A, of a bottleneck, of attention all of which is of a fixed size.
        They are to be of order 1 as well, but at a readout's gradient: a projection down. What
        stays a readout is the end, and a router, whose softmax gives shares of one whatever it is
        given, and starts best at equal shares.

        What grows in its output alone is an embedding at the network's input, and a projection up
        where its input was made by weights that grow, or has channels whose number does.
        """
        base, wider = (uses_of(trace, base_name) for trace in (self.base, self.wider))
        at_target = None
        if self.growth.at_target and self.target.uses is not None:
            at_target = uses_of(self.target, name)
        decision = decide_role(base, wider, width_dims, at_target)
        # See above: what more heads read the wider the model is, is no readout.
        few, many = (trace.products.get(base_name, 0) for trace in (self.base, self.wider))
        if decision.role is Role.READOUT and many > few:
            return replace(decision, role=Role.HIDDEN, note=REPEATED.format(decision.note))
        if decision.role is Role.READOUT and self._goes_on(base_name):
            return replace(decision, role=Role.DOWN, note=f"{decision.note}; {GOES_ON}")
        summed = decision.signature is not None and decision.signature[0] is UseKind.CONTRACTION
        is_input = decision.role is Role.EMBEDDING and decision.readout is None and summed
        if is_input and (decision.growing_groups or self._is_fed_by_width(base_name)):
            return replace(decision, role=Role.UP)
        return decision

    def _goes_on(self, base_name: str) -> bool:
        """Whether what a parameter makes goes into something that grows with the width."""
        known = [t.reaches if base_name in t.products else t.meets for t in (self.base, self.wider)]
        few, many = (of.get(base_name, 0) for of in known)
        return many > few

    def _is_fed_by_width(self, base_name: str) -> bool:
        """Whether weights that grow with the width made what a parameter is multiplied with."""
        seen, ahead = set[str](), [base_name]
        while ahead:
            for source in set(self.base.fed_by.get(ahead.pop(), ())) - seen:
                if source in self.wider.shapes and differing_dims(source, self.base, self.wider):
                    return True
                seen.add(source)
                ahead.append(source)
        return False

    def _fans(
        self, name: str, base_name: str, decision: RoleDecision, width_dims: tuple[int, ...]
    ) -> dict[str, Any]:
        """The fields of a `ParamSpec` that count entries, at the target and at the base."""
        known: dict[str, Any] = {}
        for prefix, trace, at in (("", self.target, name), ("base_", self.base, base_name)):
            if decision.signature is None:
                fans = fans_by_layout(trace.shapes[at], decision.role, width_dims)
            else:
                fans = self._fans_of(trace, at, base_name, decision.signature, width_dims)
            known[f"{prefix}groups"] = self._groups(trace, at, base_name, decision)
            known[f"{prefix}fan_in"], known[f"{prefix}fan_out"] = fans
            if decision.readout is not None:
                readout = self._fans_of(trace, at, base_name, decision.readout, width_dims)
                known[f"{prefix}readout_fan_in"] = readout[0]
        return known

    def _groups(self, trace: ModelTrace, name: str, base_name: str, decision: RoleDecision) -> int:
        """Growing groups, as traced, or in proportion to their dimensions."""
        if trace.uses is not None:
            return groups_as_used(trace, name, decision)
        small, shape = self.base.shapes[base_name], trace.shapes[name]
        groups = Fraction(groups_as_used(self.base, base_name, decision))
        # Of a target too large to be traced: as many more as its dimensions are larger.
        growth = (Fraction(shape[dim], small[dim]) for dim in decision.growing_groups)
        return round(groups * prod(growth)) if groups > 1 else 1

    def _fans_of(
        self,
        trace: ModelTrace,
        name: str,
        base_name: str,
        signature: UseSignature,
        width_dims: tuple[int, ...],
    ) -> tuple[int, int]:
        """Fans of one use, as traced, or as they follow from the smaller models."""
        if trace.uses is not None:
            return _use(trace, name, signature).fans(width_dims)
        smaller = [(t, base_name) for t in (self.base, self.wider)]
        return inferred_fans(smaller, trace.shapes[name], signature, width_dims)

    def _cautions(self, base_name: str, decision: RoleDecision) -> Iterator[str]:
        """What the user should mind beside the role."""
        if decision.role is Role.READOUT and base_name in self.base.contracted_again:
            yield "its output feeds further layers: consider the role hidden"
        # Products in the order of the pass, which is the same at both widths.
        pairs = zip(self.base.activation_products, self.wider.activation_products, strict=False)
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

    def _tied(self, spec: ParamSpec) -> ScaledOp:
        """The readout that an embedding is tied to."""
        base_name = self.growth.matching.counterpart(spec.name) or spec.name
        decision = self._traced(spec.name, base_name, spec.width_dims)
        uses = [
            uses_of(trace, at)[decision.readout]
            for trace, at in ((self.target, spec.name), (self.base, base_name))
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
        name = at_target.module or spec.name
        return ScaledOp(name=name, kind="tied_readout", geometry=geometry)
