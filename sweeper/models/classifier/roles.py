"""From the uses of a parameter at two widths to its role.

A role is read off two sizes: the fan-in and fan-out that differ between two widths grow with the
width, and the role is nothing but which of the two grows (width-scaling-policy, "Classification
Rule"). One width would not do: 64 may be the width or the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.models.classifier.uses import Undecided, Use, UseKind, UseSignature
from sweeper.scaling.spec import Role

TIED = "tied: embedding's init and learning rate, its output as a readout multiplied by 1/m"
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

    `signature` is None where no use decides: fans are then those of torch's layout.
    """

    role: Role
    signature: UseSignature | None = None
    init: str = "normal"
    note: str = ""


def decide_role(
    base: Mapping[UseSignature, Use], wider: Mapping[UseSignature, Use], width_dims: Sequence[int]
) -> RoleDecision:
    """The role, from the uses at two widths; `width_dims` are the dimensions that grow.

    Undecided where uses differ between the widths, or call for different roles.
    """
    if not base and not wider:
        return RoleDecision(role=Role.FIXED, note=UNUSED)
    if base.keys() != wider.keys():
        raise Undecided("the wider model uses it in other ways than the base model")
    roles = {s: _role_of_use(s[0], base[s], wider[s], width_dims) for s in base}
    if len(set(roles.values())) == 1:
        signature = max(roles, key=lambda s: wider[s].fan_in)
        use = base[signature]
        return RoleDecision(
            role=roles[signature],
            signature=signature,
            init=_init(roles[signature], signature[0], use),
            note=_note(signature[0], use, several=len(roles) > 1),
        )
    if set(roles.values()) == {Role.EMBEDDING, Role.READOUT}:
        signature = next(s for s, role in roles.items() if role is Role.EMBEDDING)
        return RoleDecision(role=Role.EMBEDDING, signature=signature, note=TIED)
    conflicts = "; ".join(f"{role} in {base[s].op}" for s, role in roles.items())
    raise Undecided(f"it has several uses that differ: {conflicts}")


def _role_of_use(kind: UseKind, base: Use, wider: Use, width_dims: Sequence[int]) -> Role:
    """The role of one use (papers: width-scaling-policy, "Classification Rule")."""
    if kind is UseKind.CONTRACTION and base.fan_in != wider.fan_in:
        return Role.HIDDEN if base.fan_out != wider.fan_out else Role.READOUT
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


def _init(role: Role, kind: UseKind, use: Use) -> str:
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
