"""From the uses of a parameter at two widths to its role, and to its fans.

A role is read off two sizes: the fan-in and fan-out that differ between two widths grow with the
width, and the role is nothing but which of the two grows (width-scaling-policy, "Classification
Rule"). One width would not do: 64 may be the width or the vocabulary. The size asked for is a
third one: what is rounded up to a multiple grows there, and may not between the other two.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

from sweeper.classifier.state import (
    ELEMENTWISE,
    Undecided,
    Use,
    UseKind,
    UseSignature,
    decisive_uses,
)
from sweeper.scaling.spec import NUMBER, Init, Role

if TYPE_CHECKING:
    from sweeper.classifier.trace import ModelTrace

_LAYER = re.compile(rf"{NUMBER.pattern}|(?<=_l)\d+(?=_|$)")
"""A layer's number: a whole part of a name, or as torch's recurrent layers write it."""

Shapes = Mapping[str, tuple[int, ...]]


def pattern_of(name: str) -> str:
    """The name with # for every layer's number."""
    return _LAYER.sub("#", name)


def repeated_containers(base: Iterable[str], deeper: Iterable[str]) -> set[str]:
    """Containers (patterns that end with a dot) that hold other numbers in a deeper model.

    Their items are the repeated blocks, whatever their kind: of layers that are dense first and
    have experts later, a deeper model has more of the second kind alone.
    """
    before, after = _layer_numbers(base), _layer_numbers(deeper)
    return {pattern_of(at) for at in before.keys() & after.keys() if before[at] != after[at]}


def _layer_numbers(names: Iterable[str]) -> dict[str, set[str]]:
    """The numbers in the names, by what stands before them: {"layers.": {"0", "1"}}."""
    numbers: dict[str, set[str]] = {}
    for name in names:
        for match in NUMBER.finditer(name):
            numbers.setdefault(name[: match.start()], set()).add(match[0])
    return numbers


def lies_in(name: str, containers: set[str]) -> bool:
    """Whether a parameter belongs to an item of one of the `containers`."""
    return any(pattern_of(name[: match.start()]) in containers for match in NUMBER.finditer(name))


@dataclass(frozen=True)
class LayerMatching:
    """Counterparts of parameters of `target` among those of a shallower or deeper `base`.

    The counterpart has the same name but for the layers' numbers and, in the target itself, the
    same shape: it stands in a layer of the same kind. Of several, the one counts whose block holds
    the same parameters, that is the first or last one where the target's is, that differs in the
    fewest numbers, and that is nearest.
    """

    base: Shapes
    target: Shapes
    _by_pattern: dict[str, list[str]] = field(default_factory=dict)
    _kinds: dict[str, set[str]] = field(default_factory=dict)
    _places: dict[str, list[tuple[int, list[int]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.base:
            self._by_pattern.setdefault(pattern_of(name), []).append(name)
        for model, shapes in (("base ", self.base), ("target ", self.target)):
            found: dict[tuple[str, str], list[int]] = {}
            for name in shapes:
                for match in _LAYER.finditer(name):
                    number, after = int(match[0]), pattern_of(name[match.end() :])
                    self._kinds.setdefault(model + name[: match.end()], set()).add(after)
                    ends = found.setdefault((name[: match.start()], after), [number, number])
                    ends[:] = min(ends[0], number), max(ends[1], number)
                    self._places.setdefault(model + name, []).append((number, ends))

    def counterpart(self, name: str) -> str | None:
        """The parameter of the base that `name` corresponds to; None if there is none."""
        if len(self.base.get(name, ())) == len(self.target[name]) and self.alike(name, name):
            return name
        alike = [c for c in self._by_pattern.get(pattern_of(name), ()) if self._fits(name, c)]
        return max(alike, key=lambda other: self._likeness(name, other), default=None)

    def alike(self, name: str, other: str) -> bool:
        """Whether `other` of the base is a first, inner or last layer as `name` of the target."""
        return other in self.base and self._ends("target " + name) == self._ends("base " + other)

    def missing(self) -> list[str]:
        """Parameters of the target without a counterpart."""
        return [name for name in self.target if self.counterpart(name) is None]

    def _ends(self, name: str) -> list[bool]:
        return [number == end for number, ends in self._places.get(name, ()) for end in ends]

    def _fits(self, name: str, other: str) -> bool:
        # Where the target lacks the layer `other`, it has layers of that kind at other places.
        there = self.target.get(other)
        if there is None:
            return len(self.base[other]) == len(self.target[name])
        return there == self.target[name] and len(there) == len(self.base[other])

    def _likeness(self, name: str, other: str) -> tuple[bool, int, int, int]:
        pairs = list(zip(_LAYER.finditer(name), _LAYER.finditer(other), strict=True))
        differ = [(a, b) for a, b in pairs if a[0] != b[0]]
        at = [*differ, *pairs][0]
        kinds = [
            self._kinds.get(model + n[: match.end()])
            for model, n, match in (("target ", name, at[0]), ("base ", other, at[1]))
        ]
        ends = zip(self._ends("target " + name), self._ends("base " + other), strict=True)
        distance = sum(abs(int(a[0]) - int(b[0])) for a, b in differ)
        # Tuples compare from the left: kind of block, then ends, few differing numbers, near ones.
        return kinds[0] == kinds[1], sum(a == b for a, b in ends), -len(differ), -distance


REPEATED = "{}; as many outputs at any width, read by products of a number that grows (heads)"
GOES_ON = "what it makes goes on into what grows with the width"
TIED = "tied: embedding's init and learning rate, its output as a readout multiplied by 1/m"
BOTH_WAYS = (
    "used both ways, and not looked up by numbers: embedding's init and learning rate, its product "
    "over the width multiplied by 1/m"
)
UNUSED = "never used in this forward pass: it gets no gradient"
_NOTES = {
    UseKind.CONTRACTION: "summed over in {}",
    UseKind.LOOKUP: "rows picked by {}",
    UseKind.MUL: "multiplied element by element in {}",
    UseKind.ADD: "added element by element in {}",
    UseKind.INSERT: "set among the activations by {}",
}


@dataclass(frozen=True, kw_only=True)
class RoleDecision:
    """A parameter's role, the use that decides it, how its values start, and what to say of it.

    `signature` is None where no use decides: fans are then those of torch's layout. `readout` is
    the other use of an embedding that is tied to the readout. `growing_groups` are dimensions
    whose number of independent weights grows with the width.
    """

    role: Role
    signature: UseSignature | None = None
    init: Init = "normal"
    note: str = ""
    readout: UseSignature | None = None
    growing_groups: frozenset[int] = frozenset()


def decide_role(
    base: Mapping[UseSignature, Use],
    wider: Mapping[UseSignature, Use],
    width_dims: Sequence[int],
    target: Mapping[UseSignature, Use] | None = None,
) -> RoleDecision:
    """The role, from the uses at two widths; `width_dims` are the dimensions that grow.

    Of the uses at the `target` only the fans over `width_dims` count, as its depth may differ.
    Undecided where uses differ between the widths, or call for different roles.
    """
    if not base and not wider:
        return RoleDecision(role=Role.FIXED, note=UNUSED, init="kept")
    if base.keys() != wider.keys():
        raise Undecided("the wider model uses it in other ways than the base model")
    at_target = target or {}
    roles = {s: _role_of_use(s[0], base[s], wider[s], width_dims, at_target.get(s)) for s in base}
    if len(set(roles.values())) == 1:
        # The larger fan-in asks for the smaller start and rate: safe for the other uses too.
        signature = max(roles, key=lambda s: wider[s].fan_in)
        use = base[signature]
        return RoleDecision(
            role=roles[signature],
            signature=signature,
            init=_init(roles[signature], signature[0], use),
            note=_note(signature[0], use, several=len(roles) > 1),
            growing_groups=_growing_groups(use, wider[signature], at_target.get(signature)),
        )
    # Tied: one table is looked up going in and multiplied with going out.
    if set(roles.values()) == {Role.EMBEDDING, Role.READOUT}:
        tables = [s for s, role in roles.items() if role is Role.EMBEDDING]
        signature = next((s for s in tables if s[0] is UseKind.LOOKUP), tables[0])
        readout = next(s for s, role in roles.items() if role is Role.READOUT)
        note = TIED if signature[0] is UseKind.LOOKUP else BOTH_WAYS
        return RoleDecision(role=Role.EMBEDDING, signature=signature, note=note, readout=readout)
    conflicts = "; ".join(f"{role} in {base[s].op}" for s, role in roles.items())
    raise Undecided(f"it has several uses that differ: {conflicts}")


def _growing_groups(base: Use, wider: Use, target: Use | None) -> frozenset[int]:
    others = [use.group_extents for use in (wider, target) if use is not None]
    return frozenset(
        dim
        for dim in set().union(base.group_extents, *others)
        if any(groups.get(dim, 1) != base.group_extents.get(dim, 1) for groups in others)
    )


def _role_of_use(
    kind: UseKind, base: Use, wider: Use, width_dims: Sequence[int], target: Use | None
) -> Role:
    grows_in, grows_out = base.fan_in != wider.fan_in, base.fan_out != wider.fan_out
    if target is not None:
        wide = set(width_dims)
        summed = wide & (base.in_extents.keys() | target.in_extents.keys())
        fed = wide & (base.out_extents.keys() | target.out_extents.keys())
        grows_in |= bool(summed) and base.fan_in != target.fan_in
        grows_out |= bool(fed) and base.fan_out != target.fan_out
    if kind is UseKind.CONTRACTION and grows_in:
        return Role.HIDDEN if grows_out else Role.READOUT
    if kind in (UseKind.MUL, UseKind.ADD):
        # At either width: a dimension may be 1 at the base.
        spanned = sum(
            max(base.out_extents.get(dim, 1), wider.out_extents.get(dim, 1)) > 1
            for dim in base.out_extents.keys() | wider.out_extents.keys()
        )
        # A table that is added (positions) is no vector, but one row of it for each input.
        if spanned == 1 or (spanned > 1 and kind is UseKind.MUL):
            return Role.VECTOR
    # More rows to look up are more inputs, of which one is met at a time: no growing output.
    looked_up = set(base.in_extents) if kind is UseKind.LOOKUP else set()
    return Role.EMBEDDING if set(width_dims) - looked_up else Role.FIXED


def _init(role: Role, kind: UseKind, use: Use) -> Init:
    """How values start: a gain at 1 (one that is stored as 1 + w at 0), what is added at 0."""
    is_gain = kind is UseKind.MUL and (use.op == "mul" or "norm" in use.op)
    if is_gain and not use.transformed:
        return "zeros" if use.shifted else "ones"
    return "zeros" if kind is UseKind.ADD and role in (Role.VECTOR, Role.FIXED) else "normal"


def _note(kind: UseKind, use: Use, *, several: bool) -> str:
    note = _NOTES[kind].format(use.op)
    if kind is UseKind.MUL and use.transformed:
        note += "; it goes through a function first, so where it starts is not read off"
    return note + ("; used in two ways, the larger fan-in counts" if several else "")


def user_role(role: Role, uses: Sequence[Use], traced: RoleDecision | None) -> RoleDecision:
    """The decision for a role that the user gave; `traced` is what the trace says, if it does.

    What is not a contraction has no fan-in: a vector is applied entry by entry, and starts at 0,
    or at 1 if some use multiplies by it.
    """
    if role is Role.VECTOR:
        gain = next((use for use in uses if use.kind is UseKind.MUL), None)
        init = "zeros" if gain is None else _init(role, UseKind.MUL, gain)
        signature = traced.signature if traced else None
        keep = signature if signature and signature[0] in ELEMENTWISE else None
        return RoleDecision(role=role, signature=keep, init=init, note=_user_role_note(traced))
    if traced is None:
        return RoleDecision(role=role, note=_user_role_note(traced))
    # A start at 0 or 1 belongs to what is added or multiplied, entry by entry.
    init = "normal" if role in (Role.HIDDEN, Role.READOUT) else traced.init
    return replace(traced, role=role, init=init, note=_user_role_note(traced), readout=None)


def _user_role_note(traced: RoleDecision | None) -> str:
    if traced is None:
        return "role given; fans by torch's layout"
    return f"role given, traced as {traced.role}: {traced.note}"


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


def use_of(trace: ModelTrace, name: str, signature: UseSignature) -> Use:
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
    use = use_of(trace, name, decision.signature)
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
        use, small = use_of(trace, name, signature), trace.shapes[name]
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
    dims: Collection[int] = use.in_extents if side == "in" else use.out_extents
    if use.kind in (UseKind.MUL, UseKind.ADD, UseKind.INSERT) and not use.summed:
        wide = [dim for dim in use.out_extents if dim in width_dims] or [*use.out_extents][-1:]
        dims = () if side == "in" else wide
    return prod(shape[dim] for dim in dims)
