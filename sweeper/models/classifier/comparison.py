"""What parameters are, from traces of their model at the base, wider, deeper, and as asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from math import prod
from typing import Any

from sweeper.errors import BadInput, ConfigError, suggest
from sweeper.models.classifier.fans import (
    fans_as_used,
    fans_by_layout,
    groups_as_used,
    inferred_fans,
    uses_of,
)
from sweeper.models.classifier.growth import Growth, differing_dims, width_of
from sweeper.models.classifier.layers import lies_in
from sweeper.models.classifier.model_trace import ModelTrace
from sweeper.models.classifier.roles import REPEATED, RoleDecision, decide_role, given_role
from sweeper.models.classifier.uses import Undecided, UseKind, UseSignature
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp


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
            "scheme can scale them"
        )


@dataclass(frozen=True, kw_only=True)
class SizeComparison:
    """A model at the base, wider, deeper, and at the size asked for: `growth` has the traces.

    `roles` are the user's, by pattern. `problems` collects what cannot be decided, so that one
    refusal names it all.
    """

    growth: Growth
    depth: int
    base_depth: int
    roles: Mapping[str, Role]
    problems: list[str] = field(default_factory=list)

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
        self._check_roles()
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

    def _check_roles(self) -> None:
        for pattern, role in self.roles.items():
            if not any(fnmatchcase(name, pattern) for name in self.target.shapes):
                allowed = f"no parameter matches; {suggest(pattern, self.target.shapes)}"
                raise ConfigError(f"roles[{pattern}]", str(role), allowed)

    def _refusal(self) -> BadInput:
        """Every parameter that cannot be decided, why, and what to give."""
        failure = self.base.failure or self.wider.failure or self.target.failure
        if "give inputs=" in failure:
            return BadInput(failure)
        if failure:
            return Untraced(failure, len(self.problems))
        first = self.problems[0].partition(" ")[0]
        lines = [
            "these parameters cannot be classified, so no scheme can scale them:",
            *self.problems,
            f'give their roles, such as roles={{"{first}": "hidden"}}; names may be patterns, '
            f"roles are {', '.join(Role)}",
        ]
        return BadInput("\n  ".join(lines))

    def _spec(self, name: str) -> ParamSpec | None:
        """The spec of one parameter; None, and a problem more, if it cannot be decided."""
        base_name = self.growth.matching.counterpart(name)
        if base_name is None and name in self.base.shapes:
            differing_dims(name, self.base, self.target)  # refuses another number of dimensions
        if base_name is None or base_name not in self.wider.shapes:
            raise BadInput(
                f"parameter {name} has no counterpart in the base model: a parameter must keep its "
                "name when the width grows"
            )
        width_dims = self.growth.width_dims(name, base_name)
        try:
            decision = self._decide(name, base_name, width_dims)
            known = self._fans(name, base_name, decision, width_dims)
        except Undecided as error:
            self.problems.append(f"{name} {list(self.target.shapes[name])}: {error}")
            return None
        kind = decision.signature[0] if decision.signature else None
        return ParamSpec(
            name=name,
            role=decision.role,
            shape=self.target.shapes[name],
            base_shape=self.base.shapes[base_name],
            **known,
            width=width_of(self.growth.sizes[2]),
            base_width=width_of(self.growth.sizes[0]),
            residual=lies_in(name, self.growth.repeated),
            depth=self.depth,
            base_depth=self.base_depth,
            init=decision.init,
            width_dims=width_dims,
            depth_dims=self.growth.depth_dims(base_name),
            lookup=kind is UseKind.LOOKUP and decision.role is not Role.VECTOR,
            tied=self.target.tied.get(name, ()),
            frozen=name in self.target.frozen,
            note="; ".join(filter(None, (decision.note, *self._cautions(base_name, decision)))),
        )

    def _decide(self, name: str, base_name: str, width_dims: tuple[int, ...]) -> RoleDecision:
        """The traced role, or the one that the user gave."""
        given = next((r for p, r in self.roles.items() if fnmatchcase(name, p)), None)
        try:
            traced = self._traced(name, base_name, width_dims)
        except Undecided as error:
            if given is None and name in self.target.frozen:
                return RoleDecision(role=Role.FIXED, note=f"not trained; {error}")
            if given is None:
                raise
            return given_role(given, (self.base.uses or {}).get(base_name, ()), None)
        if given is None or traced.role is given:
            return traced
        return given_role(given, (self.base.uses or {})[base_name], traced)

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

        It stays a readout where nothing multiplies it again: a router (its softmax gives shares of
        one whatever it is given, and starts best at equal shares), LoRA's A and bottlenecks (what
        is next is a weight of their own, which fans out and has an init of its own), and
        attention all of which is of a fixed size.
        """
        base, wider = (uses_of(trace, base_name) for trace in (self.base, self.wider))
        at_target = None
        if self.growth.at_target and self.target.uses is not None:
            at_target = uses_of(self.target, name)
        decision = decide_role(base, wider, width_dims, at_target)
        few, many = (trace.products.get(base_name, 0) for trace in (self.base, self.wider))
        if decision.role is Role.READOUT and many > few:
            return replace(decision, role=Role.HIDDEN, note=REPEATED.format(decision.note))
        return decision

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
            return fans_as_used(trace, name, signature, width_dims)
        smaller = [(t, base_name) for t in (self.base, self.wider)]
        return inferred_fans(smaller, trace.shapes[name], signature, width_dims)

    def _cautions(self, base_name: str, decision: RoleDecision) -> Iterator[str]:
        """What the user should mind beside the role."""
        if decision.role is Role.READOUT and base_name in self.base.contracted_again:
            yield "its output feeds further layers: consider the role hidden"
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
        at_target, at_base = uses[0], uses[-1]
        geometry = {
            "fan_in": spec.readout_fan_in,
            "base_fan_in": spec.base_readout_fan_in,
            "own": at_target.factor / at_base.factor,
            "parameter": spec.name,
            "lookup": spec.lookup,
        }
        name = at_target.module or spec.name
        return ScaledOp(name=name, kind="tied_readout", geometry=geometry)
