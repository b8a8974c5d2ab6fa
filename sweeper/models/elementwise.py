"""Rules of operations that work entry by entry, and of sums over their results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from torch import Tensor

from sweeper.models.ledger import Call, Ledger, Made, key
from sweeper.models.provenance import (
    Layout,
    Use,
    broadcast,
    extents,
    lay,
    rank,
    read,
)

COPIES = {"clone", "_to_copy", "lift_fresh_copy", "_unsafe_view", "_reshape_copy", "view_copy"}
"""What a copy holds is known as well as the original."""
_ADDS = {"add", "sub", "rsub"}
_JOINS = {"where", "copy", "masked_fill", "cat", "stack", "index_put", "slice_scatter"}


def _kind(name: str) -> str:
    if name in _ADDS:
        return "add"
    return "join" if name in _JOINS else "mul"


def element(
    ledger: Ledger, call: Call, weight: Tensor, kind: str, shape: Iterable[int] | None = None
) -> list[tuple[Layout, Use]]:
    """Record that `weight` meets activations element by element; `shape` is the result's."""
    to = tuple(weight.shape if shape is None else shape)
    grouped = set[int]().union(*(ledger.group_dims(t) for t in call.given))
    found = []
    for layout, own in ledger.dims(weight):
        dims = broadcast(own, weight.shape, to)
        free = [a for i, a in enumerate(dims) if i - len(dims) not in grouped]
        fixed = [a for i, a in enumerate(dims) if i - len(dims) in grouped]
        outs = extents(free)
        ins = {dim: ledger.shapes[layout.name][dim] for dim in layout.picked}
        outs = {dim: n for dim, n in outs.items() if dim not in ins}
        use = Use(
            "lookup" if layout.picked else kind,
            call.name,
            ins,
            outs,
            extents(fixed),
            fan_in=prod(ins.values()),
            live=ledger.is_live(call.given),
            shifted=layout.shifted,
            bent=layout.bent,
        )
        ledger.record(layout.name, use)
        found.append((replace(layout, pieces=()), use, dims))
    out = call.out[0]
    return [
        (replace(layout, pieces=lay(dims, out.shape, out.stride())), use)
        for layout, use, dims in found
        if len(dims) == out.dim() and use.kind == "mul"
    ]


def pointwise(ledger: Ledger, call: Call) -> Made:
    """Every output entry is made of the input entries in the same place."""
    weights = [t for t in call.given if ledger.is_weight(t)]
    if not weights:
        return Made()
    out = call.out[0]
    if ledger.is_live(call.given):
        products = []
        for weight in weights:
            products += element(ledger, call, weight, _kind(call.name), out.shape)
        return Made(products=tuple(products))
    shifted = call.name in _ADDS and len(call.given) == 1
    bent = not shifted and call.name not in COPIES
    found = [
        (
            replace(layout, shifted=layout.shifted or shifted, bent=layout.bent or bent),
            broadcast(dims, w.shape, out.shape),
        )
        for w in weights
        for layout, dims in ledger.dims(w)
    ]
    most = max((rank(dims) for _, dims in found), default=0)
    names = {layout.name for layout, dims in found if rank(dims) == most}
    for layout, dims in sorted(found, key=lambda item: -rank(item[1])):
        gain = layout.name not in names
        ledger.hand_on(replace(layout, scale=layout.scale or gain), dims, out)
    return Made()


def copied(ledger: Ledger, call: Call) -> Made:
    """A copy or a cast: also what is known of an activation goes along."""
    pointwise(ledger, call)
    source, out = call.given[0], call.out[0]
    activation = ledger.activations.get(key(source))
    if activation is None or source.shape != out.shape:
        return Made()

    def move(layout: Layout) -> Layout | None:
        dims = read(layout, source.shape, source.stride())
        return None if dims is None else replace(layout, pieces=lay(dims, out.shape, out.stride()))

    products = tuple((to, use) for at, use in activation.products if (to := move(at)))
    return Made(products=products, groups=tuple(to for at in activation.groups if (to := move(at))))


GAINS = {
    "native_layer_norm": (2, 3),
    "_fused_rms_norm": (2,),
    "native_group_norm": (1, 2),
    "native_batch_norm": (1, 2),
    "_native_batch_norm_legit": (1, 2),
    "_native_batch_norm_legit_functional": (1, 2),
    "_native_batch_norm_legit_no_training": (1, 2),
    "_batch_norm_with_update": (1, 2),
    "_batch_norm_no_update": (1, 2),
    "cudnn_batch_norm": (1, 2),
}
"""Normalizations: where the gain and the bias stand among the arguments."""


def normalize(ledger: Ledger, call: Call) -> Made:
    """A normalization with a gain and a bias."""
    for index, kind in zip(GAINS[call.name], ("mul", "add"), strict=False):
        if index < len(call.args) and ledger.is_weight(call.args[index]):
            element(ledger, call, call.args[index], kind)
    return Made()


def reduce(ledger: Ledger, call: Call) -> Made:
    """Sums, means, norms: of a weight a mere statistic, of a product a contraction."""
    for tensor in call.given:
        for layout, _ in ledger.dims(tensor):
            ledger.record(layout.name, Use("reduced", call.name, {}, {}, {}))
    if call.name in ("sum", "mean"):
        _sum_products(ledger, call)
    return Made()


def _sum_products(ledger: Ledger, call: Call) -> None:
    """A sum over element-wise products with a parameter is a contraction written at length."""
    x = call.given[0]
    activation = ledger.activations.get(key(x))
    over = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], list) else []
    at = {i % x.dim() for i in over} if over else set(range(x.dim()))
    for layout, use in activation.products if activation else ():
        dims = read(layout, x.shape, x.stride())
        ins = extents([atoms for i, atoms in enumerate(dims or ()) if i in at])
        if dims is None or not ins:
            use.kept = True
            continue
        use.summed, use.ins, use.fan_in = True, ins, prod(ins.values())
        use.outs = extents([atoms for i, atoms in enumerate(dims) if i not in at])
