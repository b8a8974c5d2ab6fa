"""A parameter's role, fans and growing dimensions, from traces of its model at several sizes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from math import prod

from torch import nn

from sweeper.errors import BadInput, ConfigError, suggest
from sweeper.models.classifier.model_trace import (
    Inputs,
    ModelTrace,
    Sizes,
    build_on_meta,
    trace_shapes,
    trace_uses,
)
from sweeper.models.classifier.roles import UNUSED, RoleDecision, decide_role
from sweeper.models.classifier.uses import Undecided, Use, UseKind, UseSignature, decisive_uses
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.spec import NUMBER, ParamSpec, Role, ScaledOp

Build = Callable[[int, int], nn.Module]
"""Makes the model of a given width and depth."""

MAX_SHOWN = 10
"""Parameters that a refusal lists where one reason, a failed trace, holds for all of them."""
_DEPTH = re.compile(r"depth|layers?($|_)")


def classify(
    build: Callable[..., nn.Module],
    base: Sizes,
    other: Sizes,
    inputs: Inputs = None,
    roles: Mapping[str, Role | str] | None = None,
) -> dict[str, ParamSpec]:
    """Every parameter of `build(**other)`, beside its counterpart in `build(**base)`, by name.

    `base` and `other` are keyword arguments of `build`, such as {"width": 64} and
    {"width": 128}; those named depth or layers may differ too, all others are widths. `inputs`
    is what the model is called with: a tensor, a tuple, a dict of named arguments, or a
    function of the sizes that returns one of them; models that say so themselves need none
    (`example_inputs()`, `seq_len`, or a configuration of transformers). `roles` decides where
    the trace cannot: patterns of names, and the role of the parameters that match, the first
    that matches counts. The prefix that `torch.compile` gives to names is left out.

    Nothing is allocated: models live on the meta device. BadInput names every parameter that
    cannot be decided, with the reason and the override to give.
    """
    if base.keys() != other.keys():
        raise BadInput(f"base and other must name the same sizes: {[*base]} and {[*other]}")
    deep = [name for name in base if _DEPTH.search(name) and base[name] != other[name]]
    wide = [name for name in base if name not in deep and base[name] != other[name]]
    if not wide:
        raise BadInput("base and other must differ in a width: roles are read off its growth")
    comparison = _compare(
        build,
        base=base,
        wider={**base, **{name: other[name] for name in wide}},
        deeper={**base, **{name: other[name] for name in deep}} if deep else None,
        target=other,
        depth_name=deep[0] if deep else None,
        inputs=inputs,
        roles=roles,
    )
    return {spec.name: spec for spec in comparison.specs()}


def specs_between(
    build: Build,
    *,
    base: tuple[int, int],
    target: tuple[int, int],
    inputs: Inputs = None,
    roles: Mapping[str, Role | str] | None = None,
) -> list[ParamSpec]:
    """Every parameter of the model at `target` (width, depth), beside `base`.

    Roles come from the model at the base and at twice its width, where a dimension that grows
    shows itself; one layer more tells the repeated blocks, which are residual branches.
    """
    width, depth = base
    comparison = _compare(
        lambda width, depth: build(width, depth),
        base={"width": width, "depth": depth},
        wider={"width": 2 * width, "depth": depth},
        deeper={"width": width, "depth": depth + 1},
        target={"width": target[0], "depth": target[1]},
        depth_name="depth",
        inputs=inputs,
        roles=roles,
    )
    return comparison.specs()


def _compare(
    build: Callable[..., nn.Module],
    *,
    base: Sizes,
    wider: Sizes,
    deeper: Sizes | None,
    target: Sizes,
    depth_name: str | None,
    inputs: Inputs,
    roles: Mapping[str, Role | str] | None,
) -> _SizeComparison:
    """Trace the model at its sizes.

    Three are traced: the base and a wider model tell what grows; the target has fans of its own,
    which do not follow from the others where sizes are no multiples of the base's. Of the deeper
    model the names and shapes are enough.
    """

    def built(sizes: Sizes) -> nn.Module:
        return build_on_meta(partial(build, **sizes), sizes)

    base_trace, wider_trace = (trace_uses(built(s), s, inputs) for s in (base, wider))
    traced = next((t for s, t in ((base, base_trace), (wider, wider_trace)) if s == target), None)
    return _SizeComparison(
        base=base_trace,
        wider=wider_trace,
        target=traced or trace_uses(built(target), target, inputs),
        deeper=trace_shapes(built(deeper)) if deeper is not None else None,
        depth=int(target[depth_name]) if depth_name else 1,
        base_depth=int(base[depth_name]) if depth_name else 1,
        width=_width(target),
        base_width=_width(base),
        roles={pattern: _parse_role(pattern, role) for pattern, role in (roles or {}).items()},
    )


def _width(sizes: Sizes) -> int:
    """The size that is called width, if one is a number; else 1."""
    value = sizes.get("width", 1)
    return value if isinstance(value, int) else 1


def _parse_role(pattern: str, role: Role | str) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise ConfigError(f"roles[{pattern!r}]", role, suggest(str(role), list(Role))) from None


@dataclass(frozen=True, kw_only=True)
class _SizeComparison:
    """A model at the base, wider, deeper, and at the size asked for.

    `roles` are the user's, by pattern. `problems` collects what cannot be decided, so that one
    refusal names it all.
    """

    base: ModelTrace
    wider: ModelTrace
    target: ModelTrace
    deeper: ModelTrace | None
    depth: int
    base_depth: int
    width: int
    base_width: int
    roles: Mapping[str, Role]
    problems: list[str] = field(default_factory=list)

    def specs(self) -> list[ParamSpec]:
        """All specs; BadInput lists the parameters that cannot be decided."""
        self._check_roles()
        specs = [spec for name in self.target.shapes if (spec := self._spec(name)) is not None]
        if self.problems:
            raise BadInput(self._refusal())
        unused = [spec.name for spec in specs if spec.note == UNUSED]
        if unused:
            warnings.warn(
                f"never used in the traced forward pass: {', '.join(unused)}. If training uses "
                "them, give inputs= that do",
                stacklevel=3,
            )
        return specs

    def _refusal(self) -> str:
        """Every parameter that cannot be decided, why, and what to give."""
        failure = self.base.failure or self.wider.failure or self.target.failure
        shown = self.problems[:MAX_SHOWN] if failure else self.problems
        hidden = len(self.problems) - len(shown)
        first = self.problems[0].partition(" ")[0]
        return "\n  ".join(
            [
                *([failure] if failure else []),
                "these parameters cannot be classified, so no scheme can scale them:",
                *shown,
                *([f"and {hidden} more"] if hidden else []),
                f'give their roles, such as roles={{"{first}": "hidden"}}; names may be patterns, '
                f"roles are {', '.join(Role)}",
            ]
        )

    def _check_roles(self) -> None:
        for pattern, role in self.roles.items():
            if not any(fnmatchcase(name, pattern) for name in self.target.shapes):
                allowed = f"no parameter matches; {suggest(pattern, self.target.shapes)}"
                raise ConfigError(f"roles[{pattern!r}]", str(role), allowed)

    def _spec(self, name: str) -> ParamSpec | None:
        """The spec of one parameter; None, and a problem more, if it cannot be decided."""
        shape, base_shapes = self.target.shapes[name], self.base.shapes
        # Of the layers that only a deeper target has, the first layer is the counterpart.
        base_name = name if name in base_shapes else _first_layer(name, base_shapes)
        if base_name not in base_shapes or base_name not in self.wider.shapes:
            raise BadInput(
                f"parameter {name} has no counterpart in the base model: a parameter must keep its "
                "name when the width grows"
            )
        width_dims = _differing_dims(base_name, self.base, self.wider)
        try:
            decision = self._decide(name, base_name, width_dims)
            fan_in, fan_out = _fans(self.target, name, decision, width_dims)
            base_fan_in, base_fan_out = _fans(self.base, base_name, decision, width_dims)
        except Undecided as error:
            self.problems.append(f"{name} {list(shape)}: {error}")
            return None
        kind = decision.signature[0] if decision.signature else None
        return ParamSpec(
            name=name,
            role=decision.role,
            shape=shape,
            base_shape=base_shapes[base_name],
            fan_in=fan_in,
            fan_out=fan_out,
            base_fan_in=base_fan_in,
            base_fan_out=base_fan_out,
            width=self.width,
            base_width=self.base_width,
            residual=_first_layer(base_name, base_shapes) in self._repeated(),
            depth=self.depth,
            base_depth=self.base_depth,
            init=decision.init,
            width_dims=width_dims,
            depth_dims=self._depth_dims(base_name),
            lookup=kind is UseKind.LOOKUP,
            tied=self.target.tied.get(name, ()),
            note="; ".join(filter(None, (decision.note, *self._cautions(base_name, decision)))),
        )

    def _decide(self, name: str, base_name: str, width_dims: tuple[int, ...]) -> RoleDecision:
        """The traced role, or the one that the user gave."""
        given = next((r for p, r in self.roles.items() if fnmatchcase(name, p)), None)
        try:
            base, wider = (_uses(trace, base_name) for trace in (self.base, self.wider))
            traced = decide_role(base, wider, width_dims)
        except Undecided:
            if given is None:
                raise
            return RoleDecision(role=given, note="role given; fans by torch's layout")
        if given is None or traced.role is given:
            return traced
        note = f"role given, traced as {traced.role}: {traced.note}"
        return RoleDecision(role=given, signature=traced.signature, init=traced.init, note=note)

    def _repeated(self) -> set[str]:
        """Parameters of the first of the blocks that a deeper model has more of."""
        more = self.deeper.shapes.keys() ^ self.base.shapes.keys() if self.deeper else ()
        return {_first_layer(name, self.base.shapes) for name in more}

    def _depth_dims(self, base_name: str) -> tuple[int, ...]:
        if self.deeper is None or base_name not in self.deeper.shapes:
            return ()
        return _differing_dims(base_name, self.base, self.deeper)

    def _cautions(self, base_name: str, decision: RoleDecision) -> Iterable[str]:
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
                f"its output enters a product of activations over {size} entries, which grow "
                "with the width (head size): attention needs 1/d, not 1/sqrt(d)"
            )


def _first_layer(name: str, names: Container[str]) -> str:
    """`name` with one of its numbers replaced by 0, if that is one of `names`; else `name`."""
    for match in NUMBER.finditer(name):
        first = f"{name[: match.start()]}0{name[match.end() :]}"
        if first in names:
            return first
    return name


def _differing_dims(name: str, base: ModelTrace, other: ModelTrace) -> tuple[int, ...]:
    shape, grown = base.shapes[name], other.shapes[name]
    if len(shape) != len(grown):
        raise BadInput(
            f"parameter {name} has shape {list(shape)} in the base model and {list(grown)} in a "
            "larger one: the number of its dimensions must not change"
        )
    return tuple(i for i, (a, b) in enumerate(zip(shape, grown, strict=True)) if a != b)


def _uses(trace: ModelTrace, name: str) -> dict[UseSignature, Use]:
    if trace.uses is None:
        raise Undecided("the forward pass was not traced")
    return decisive_uses(trace.uses[name], trace.shapes[name])


def _fans(
    trace: ModelTrace, name: str, decision: RoleDecision, width_dims: tuple[int, ...]
) -> tuple[int, int]:
    """Fans as used; of a given role without a use, by torch's layout [out, in, ...]."""
    if decision.signature is None:
        shape = trace.shapes[name]
        if len(shape) < 2:
            return 1, prod(shape)
        rows, rest = shape[0], prod(shape[1:])
        return (rows, rest) if decision.role is Role.EMBEDDING else (rest, rows)
    use = _uses(trace, name).get(decision.signature)
    if use is None:
        raise Undecided("the model of the size asked for uses it in other ways than the base model")
    return use.fans(width_dims)


def scaled_ops(model: nn.Module) -> list[ScaledOp]:
    """Every scalable operation of `model`, by the name of its module."""
    modules = [(n, m) for n, m in model.named_modules() if isinstance(m, ScaledModule)]
    return [op for name, module in modules if (op := module.scale_op(name)) is not None]
