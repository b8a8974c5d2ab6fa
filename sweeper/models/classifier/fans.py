"""Fan-in and fan-out of a parameter at one of a model's sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from math import prod

from sweeper.models.classifier.model_trace import ModelTrace
from sweeper.models.classifier.roles import RoleDecision
from sweeper.models.classifier.uses import Undecided, Use, UseKind, UseSignature, decisive_uses
from sweeper.scaling.spec import Role


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
    return (rows, rest) if role is Role.EMBEDDING else (rest, rows)


def fans_as_used(
    trace: ModelTrace, name: str, signature: UseSignature, width_dims: Sequence[int]
) -> tuple[int, int]:
    """Fans of the use with this signature; Undecided if the model of this size has none."""
    return _use(trace, name, signature).fans(width_dims)


def _use(trace: ModelTrace, name: str, signature: UseSignature) -> Use:
    use = uses_of(trace, name).get(signature)
    if use is None:
        raise Undecided("the model of the size asked for uses it in other ways than the base model")
    return use


def groups_as_used(trace: ModelTrace, name: str, decision: RoleDecision) -> int:
    """How many independent weights it holds where their number grows; 1 elsewhere.

    Only if the fan-in is fixed, or in a convolution: experts, of which the output is the sum, are
    as many as there are, and each feeds as much as it does alone.
    """
    if decision.signature is None or not decision.growing_groups:
        return 1
    use = _use(trace, name, decision.signature)
    if decision.role is not Role.EMBEDDING and use.op != "convolution":
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
    shares: set[tuple[Fraction, Fraction]] = set()
    for trace, name in pairs:
        use, small = _use(trace, name, signature), trace.shapes[name]
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
