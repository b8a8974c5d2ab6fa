"""The factors of a plan's forward pass, one by one: attention, residual branches, loss, tied heads.

`needs` says in words what differs from a plain model. Here every factor is a record with its
value, also where it is the usual one, for what writes the plan into another trainer's words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper.scaling.spec import Parameterization, ParamSpec, Role, ScaledOp
from sweeper.transfer.needs import author_name
from sweeper.transfer.unseen import USUAL_HEAD, USUAL_LENGTH, may_attend, scheme_factors
from sweeper.trial import PlainHps

if TYPE_CHECKING:  # it brings torch
    from sweeper.models.attention_watch import SeenAttention


@dataclass(frozen=True, kw_only=True)
class PlannedFactor:
    """A factor of one operation: `value` by the plan, where the model by itself has `usual`.

    `kind` and `factor` are those of a `ScaledOp`: an attention's "logit" multiplies q k^T and is
    absolute, its `usual` being head size^-1/2. `head_size` is an attention's, else 0. `branch` is
    the number of a residual branch, odd for attention's, else 0. `where` names the operation, or
    says that it was not seen.
    """

    kind: str
    factor: str
    where: str
    value: float
    usual: float = 1.0
    head_size: int = 0
    branch: int = 0


def planned_factors(
    scheme: Parameterization,
    hps: PlainHps,
    specs: Sequence[ParamSpec],
    scaled_ops: Sequence[ScaledOp],
    depths: tuple[int, int],
    *,
    plain: bool,
    attentions: Collection[SeenAttention] = (),
) -> tuple[PlannedFactor, ...]:
    """Every factor of the operations `scaled_ops`, and of those that a `plain` model may have too.

    `depths` are the target's and the base's. `attentions` are those that ran, where the model's
    own are not among `scaled_ops`. A kind of which nothing was seen is given as the scheme has it,
    attention only where a parameter's name looks like it.
    """
    found = [one for op in scaled_ops for one in _of_operation(op, scheme.scale_op(op, hps))]
    if plain:
        seen = {op.kind for op in scaled_ops}
        if "attention" not in seen and may_attend(specs, attentions):
            found += _attentions(scheme, hps, attentions)
        if "residual" not in seen:
            found += _branches(scheme, hps, specs, depths)
        if "gated_silu" not in seen:
            found += _unseen(scheme, hps, "gated_silu")
        if "loss" not in seen:
            classes = next((spec.fan_out for spec in specs if spec.role is Role.READOUT), 1)
            found += _unseen(scheme, hps, "loss", classes=classes)
    return tuple(found)


def _of_operation(op: ScaledOp, factors: Mapping[str, float]) -> Iterator[PlannedFactor]:
    """Of an operation that was seen. A scale of the model's own multiplies that of attention."""
    size, own = op.geometry.get("head_size", 0), op.geometry.get("own", 1.0)
    for key, value in factors.items():
        logit = (op.kind, key) == ("attention", "logit")
        yield PlannedFactor(
            kind=op.kind,
            factor=key,
            where=author_name(op),
            value=value * own if logit else value,
            usual=float(size) ** -0.5 if logit else 1.0,
            head_size=size,
            branch=op.geometry.get("branch", 0),
        )


def _attentions(
    scheme: Parameterization, hps: PlainHps, attentions: Collection[SeenAttention]
) -> Iterator[PlannedFactor]:
    """Of attention that was only watched; without any, of heads of a usual size."""
    sizes = {seen.head_size: seen for seen in attentions}
    for size in sorted(sizes) or [USUAL_HEAD]:
        seen = sizes.get(size)
        length = (seen and seen.seq_len) or USUAL_LENGTH
        where = f"attention of heads of {size}" if seen else f"attention, none seen; at {size}"
        geometry: dict[str, Any] = {"head_size": size, "seq_len": length, "causal": True}
        for key, value in scheme_factors(scheme, hps, "attention", **geometry).items():
            usual = ((seen and seen.scale) or size**-0.5) if key == "logit" else 1.0
            yield PlannedFactor(
                kind="attention",
                factor=key,
                where=where,
                value=value,
                usual=usual,
                head_size=size,
            )


def _branches(
    scheme: Parameterization, hps: PlainHps, specs: Sequence[ParamSpec], depths: tuple[int, int]
) -> Iterator[PlannedFactor]:
    """Of residual branches, two a layer; where none was seen, of as many as the depths say."""
    on_branch = next((spec for spec in specs if spec.residual), None)
    depth, base_depth = (on_branch.depth, on_branch.base_depth) if on_branch else depths
    geometry = {"branches": 2 * depth, "base_branches": 2 * base_depth}
    for branch in range(1, 2 * depth + 1):
        for key, value in scheme_factors(
            scheme, hps, "residual", branch=branch, **geometry
        ).items():
            where = "residual branches" if on_branch else "residual branches, none seen"
            yield PlannedFactor(
                kind="residual", factor=key, where=where, value=value, branch=branch
            )


def _unseen(
    scheme: Parameterization, hps: PlainHps, kind: str, **geometry: object
) -> Iterator[PlannedFactor]:
    for key, value in scheme_factors(scheme, hps, kind, **geometry).items():
        where = f"{kind.replace('_', ' ')}, where the model has one"
        yield PlannedFactor(kind=kind, factor=key, where=where, value=value)
