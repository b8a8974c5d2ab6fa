"""Rules of contractions: matrix products, convolutions, attention."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from sweeper.models.elementwise import element
from sweeper.models.ledger import Activation, Call, Ledger, Made, Product, key
from sweeper.models.provenance import (
    FOREIGN,
    Dims,
    Layout,
    Use,
    extents,
    lay,
)

FACTORS: dict[str, tuple[int, int, int | None]] = {
    "mm": (0, 1, None),
    "addmm": (1, 2, 0),
    "_addmm_activation": (1, 2, 0),
    "mv": (0, 1, None),
    "addmv": (1, 2, 0),
    "dot": (0, 1, None),
    "vdot": (0, 1, None),
    "bmm": (0, 1, None),
    "baddbmm": (1, 2, 0),
    "_grouped_mm": (0, 1, None),
    "_scaled_mm": (0, 1, None),
    "_int_mm": (0, 1, None),
    "linear": (0, 1, 2),
}
"""Matrix products: where the two factors and the added term stand among the arguments."""


def multiply(ledger: Ledger, call: Call) -> Made:
    """A matrix product of any kind: the last dimension of one factor with the first of another."""
    left, right, added = FACTORS[call.name]
    a, b = call.args[left], call.args[right]
    if call.name == "linear":  # not taken apart under inference mode
        b = b.t()
    sides = [(a, b, a.dim() - 1), (b, a, max(b.dim() - 2, 0))]
    made = _contract(ledger, call, [side for side in sides if ledger.is_weight(side[0])])
    ledger.fed |= ledger.sources((a, b))
    if made is None:
        ledger.products.append(Product(a.shape[-1], ledger.sources((a, b))))
        made = Made()
    if added is not None and ledger.is_weight(dict(enumerate(call.args)).get(added)):
        # The bias is added to what the product made: its stacked dimension is the product's.
        grouped = replace(call, given=(call.args[added], *_stamped(ledger, call, made)))
        element(ledger, grouped, call.args[added], "add", call.out[0].shape)
    return made


def _stamped(ledger: Ledger, call: Call, made: Made) -> list[Tensor]:
    """The output, already on record with its groups, so that a bias can be compared with it."""
    live = ledger.is_live(call.given)
    ledger.settle(call.out[:1], Activation(live=live, groups=made.groups))
    return [call.out[0]]


def _contract(ledger: Ledger, call: Call, sides: list[tuple[Tensor, Tensor, int]]) -> Made | None:
    """Record the contraction of the weights among the factors; None if there is none."""
    if not sides:
        return None
    if len(sides) == 2:
        data = [side for side in sides if _repeated(ledger, side[0])]
        if len(data) != 1:
            for weight, _, _ in sides:
                for layout, _ in ledger.dims(weight):
                    why = "a product with another parameter, before any input is met"
                    ledger.refuse(layout.name, why)
            return Made(sources=frozenset())
        element(ledger, replace(call, given=()), data[0][0], "join")
        sides = [side for side in sides if side is not data[0]]
    weight, other, dim = sides[0]
    names, groups = [], []
    for layout, dims in ledger.dims(weight):
        batch = [i for i in range(len(dims) - 2) if i != dim]
        use = _sum(ledger, call, layout, dims, ([dim], batch), other)
        ledger.record(layout.name, use)
        names.append(layout.name)
        if call.out[0].dim() == len(dims) == 3:
            groups.append(_stamp(layout, dims, call.out[0]))
    return Made(sources=frozenset(names), groups=tuple(groups))


def _stamp(layout: Layout, dims: Dims, out: Tensor) -> Layout:
    """Where the independent weights of a batched product lie in its output [batch, ., .]."""
    kept = (dims[0], *(((FOREIGN, n),) if n > 1 else () for n in out.shape[1:]))
    return replace(layout, pieces=lay(kept, out.shape, out.stride()))


def _repeated(ledger: Ledger, weight: Tensor) -> bool:
    """Whether a weight was repeated (over the batch), as data is and weights are not."""
    return any(FOREIGN in {d for a in dims for d, _ in a} for _, dims in ledger.dims(weight))


def _sum(
    ledger: Ledger,
    call: Call,
    layout: Layout,
    dims: Dims,
    where: tuple[list[int], list[int]],
    other: Tensor,
) -> Use:
    """The contraction of `dims` over the dimensions `where[0]`; `where[1]` are batched."""
    summed, batch = where
    ins, groups = extents([dims[i] for i in summed]), extents([dims[i] for i in batch])
    outs = extents([a for i, a in enumerate(dims) if i not in {*summed, *batch}])
    total = prod(n for i in summed for _, n in dims[i])
    scale = layout.scale or (not ins and bool(outs))
    return Use(
        "mul" if scale and total > 1 else "sum",
        call.name,
        ins,
        outs,
        groups,
        fan_in=total,
        key=key(other),
        live=ledger.is_live((other,)),
    )


def convolve(ledger: Ledger, call: Call) -> Made:
    """aten.convolution(input, weight, bias, stride, padding, dilation, transposed, _, groups)."""
    x, weight, bias, stride, _, _, transposed, _, groups = call.args[:9]
    names = []
    for layout, dims in ledger.dims(weight) if ledger.is_weight(weight) else ():
        kernel = range(2, len(dims))
        use = _sum(ledger, call, layout, dims, ([0 if transposed else 1, *kernel], []), x)
        out_dim = 1 if transposed else 0
        _spread(use, weight.shape, stride, groups, out_dim)
        ledger.record(layout.name, use)
        names.append(layout.name)
    ledger.fed |= ledger.sources((x,))
    if ledger.is_weight(bias):
        element(ledger, call, bias, "add")
    return Made(sources=frozenset(names))


def _spread(use: Use, shape: torch.Size, stride: list[int], groups: int, out_dim: int) -> None:
    """Count how many kernel positions an entry meets, and set the groups apart."""
    strides = stride * (len(shape) - 2) if len(stride) == 1 else stride
    meets = prod(-(-n // s) for n, s in zip(shape[2:], strides, strict=True))
    whole = prod(shape[2:])
    if use.kind != "sum":
        return
    if out_dim == 1:  # transposed: an output meets some positions, an input feeds them all
        use.fan_in, use.factor_out = shape[0] // groups * meets, whole
        if 0 in use.ins:
            use.ins[0] //= groups
    else:
        use.fan_in, use.factor_out = shape[1] * whole, meets
        if 0 in use.outs:
            use.outs[0] //= groups
    if groups > 1:
        use.groups[0] = groups


def attend(ledger: Ledger, call: Call) -> Made:
    """Fused attention (query, key, value, ...): the logits contract the last dimension."""
    ledger.refuse_all(call)
    query = call.args[0]
    sources = ledger.sources(call.args[:2])
    ledger.products.append(Product(query.shape[-1], sources))
    ledger.fed |= ledger.sources(call.args[:3])
    return Made()
