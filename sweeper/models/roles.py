"""From uses at two widths to a role: what is summed over, and whether that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sweeper.models.provenance import Use
from sweeper.scaling.spec import Role

TIED = "tied: embedding's init and learning rate, its output as a readout multiplied by 1/m"
UNUSED = "never used in this forward pass: it gets no gradient"

Signature = tuple[str, tuple[int, ...]]
"""Kind of a use, and the dimensions of the parameter that it sums over."""


class Undecided(Exception):
    """Why a parameter has no role; the caller names the parameter."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A parameter's role, the use it comes from, and its fans at the wider size."""

    role: Role
    signature: Signature | None = None
    init: str = "normal"
    note: str = ""


def settled(uses: Sequence[Use], shape: Sequence[int]) -> dict[Signature, Use]:
    """The uses that count, one for each signature; Undecided if one is not understood.

    A use by the model's inputs outweighs one by constants (the norm of a spectral norm), and
    any use outweighs a mere statistic of the parameter.
    """
    for use in uses:
        if use.kind == "unknown":
            raise Undecided(f"it goes through {use.op}")
        if use.summed and use.kept:
            raise Undecided("its element-wise product is both summed and used as it is")
    counted = [use for use in uses if use.kind != "reduced"]
    if uses and not counted:
        raise Undecided(f"only a statistic of it is used ({uses[0].op})")
    live = [use for use in counted if use.live]
    found: dict[Signature, list[Use]] = {}
    for use in live or counted:
        kind = "sum" if use.summed else use.kind
        found.setdefault((kind, tuple(sorted(use.ins))), []).append(use)
    return {signature: _largest(same, shape) for signature, same in found.items()}


def _largest(uses: Sequence[Use], shape: Sequence[int]) -> Use:
    """One of several uses in the same way, its outputs those that one input feeds in all.

    Slices of a fused projection that meet the same input count together.
    """
    best = max(uses, key=lambda use: (use.fan_in, use.fan_out))
    by_input: dict[int, dict[int, int]] = {}
    for use in uses:
        total = by_input.setdefault(use.key, {})
        for dim, n in use.outs.items():
            whole = shape[dim] // prod(t.get(dim, 1) for t in (use.ins, use.groups))
            total[dim] = min(max(whole, n), total.get(dim, 0) + n)
    outs = max(by_input.values(), key=lambda o: prod(o.values()))
    groups, ins = best.groups, best.ins
    merged = Use(best.kind, best.op, ins, outs, groups, best.fan_in, best.factor_out)
    merged.shifted, merged.bent, merged.summed = best.shifted, best.bent, best.summed
    return merged


def judge(base: dict[Signature, Use], wider: dict[Signature, Use], grows: Sequence[int]) -> Verdict:
    """The role, from the uses at two widths; `grows` are the dimensions that grow."""
    if not base and not wider:
        return Verdict(role=Role.FIXED, note=UNUSED)
    if base.keys() != wider.keys():
        raise Undecided("it is used in other ways at the other width")
    found = {s: _role(s[0], base[s], wider[s], grows) for s in base}
    roles = set(found.values())
    if len(roles) == 1:
        signature = max(found, key=lambda s: wider[s].fan_in)
        return _verdict(found[signature], signature, base, len(found) > 1)
    if roles == {Role.EMBEDDING, Role.READOUT}:
        signature = next(s for s, role in found.items() if role is Role.EMBEDDING)
        return Verdict(role=Role.EMBEDDING, signature=signature, note=TIED)
    ways = "; ".join(f"{role} in {base[s].op}" for s, role in found.items())
    raise Undecided(f"it has several uses that differ: {ways}")


def _role(kind: str, base: Use, wider: Use, grows: Sequence[int]) -> Role:
    """The role of one use (papers: width-scaling-policy, "Classification Rule")."""
    if kind == "sum" and base.fan_in != wider.fan_in:
        feeds = base.fan_out != wider.fan_out
        return Role.HIDDEN if feeds else Role.READOUT
    apart = set(base.ins) if kind == "lookup" else set()
    outside = [dim for dim in grows if dim not in apart]
    if kind in ("mul", "add"):
        spans = sum(
            max(base.outs.get(dim, 1), wider.outs.get(dim, 1)) > 1
            for dim in base.outs.keys() | wider.outs.keys()
        )
        if spans == 1 or (spans > 1 and kind == "mul"):
            return Role.VECTOR
    return Role.EMBEDDING if outside else Role.FIXED


def _verdict(
    role: Role, signature: Signature, uses: Mapping[Signature, Use], both: bool
) -> Verdict:
    use, kind = uses[signature], signature[0]
    init = "normal"
    if kind == "mul" and (use.op == "mul" or "norm" in use.op) and not use.bent:
        init = "zeros" if use.shifted else "ones"
    elif kind == "add" and role in (Role.VECTOR, Role.FIXED):
        init = "zeros"
    notes = {
        "sum": f"summed over in {use.op}",
        "lookup": f"rows picked by {use.op}",
        "mul": f"multiplied element by element in {use.op}",
        "add": f"added element by element in {use.op}",
        "join": f"set among the activations by {use.op}",
    }
    bent = "; it goes through a function first, so where it starts is not read off"
    note = notes[kind] + (bent if kind == "mul" and use.bent else "")
    note += "; used in two ways, the larger fan-in counts" if both else ""
    return Verdict(role=role, signature=signature, init=init, note=note)


def fans(use: Use, grows: Sequence[int]) -> tuple[int, int]:
    """Fan-in and fan-out of a use; of a table that is added, the dimensions that grow count."""
    if use.kind in ("mul", "add", "join") and not use.summed:
        wide = [n for dim, n in use.outs.items() if dim in grows] or list(use.outs.values())[-1:]
        return 1, prod(wide)
    return use.fan_in, use.fan_out
