"""Rules of lookups, choices, joins and changes of length."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from sweeper.models.elementwise import element
from sweeper.models.ledger import Call, Ledger, Made
from sweeper.models.provenance import (
    FOREIGN,
    Atom,
    Dims,
    Layout,
    Use,
    extents,
    rank,
    resized,
)


def embed(ledger: Ledger, call: Call) -> Made:
    """Rows of a table, by their numbers."""
    table, index = call.args[:2]
    for layout, dims in ledger.dims(table) if ledger.is_weight(table) else ():
        ins, outs = extents(dims[:1]), extents(dims[1:])
        live = ledger.is_live((index,))
        ledger.record(
            layout.name, Use("lookup", call.name, ins, outs, {}, table.shape[0], live=live)
        )
    return Made(sources=frozenset())


def index_select(ledger: Ledger, call: Call) -> Made:
    """aten.index_select(self, dim, index)."""
    table, dim, index = call.args[:3]
    return _pick(ledger, call, table, [dim % max(table.dim(), 1)], [index])


def index(ledger: Ledger, call: Call) -> Made:
    """aten.index(self, indices): list indexing, such as `table[tokens]`."""
    table, indices = call.args[:2]
    picked = [i for i, entry in enumerate(indices) if entry is not None]
    if picked and picked == list(range(picked[0], picked[-1] + 1)):
        return _pick(ledger, call, table, picked, [indices[i] for i in picked])
    ledger.refuse_all(call)
    return Made()


def _pick(ledger: Ledger, call: Call, table: Tensor, at: list[int], numbers: list[Tensor]) -> Made:
    """Entries of `table` along the dimensions `at`: a lookup, or a choice of whole weights."""
    live = ledger.is_live(numbers)
    for layout, dims in list(ledger.dims(table)):
        rows = extents([dims[i] for i in at])
        rest = [atoms for i, atoms in enumerate(dims) if i not in at]
        if live and rank(tuple(rest)) < 2 and ledger.sources(numbers):
            ledger.refuse(
                layout.name,
                f"aten.{call.name} by numbers that the model computes: a bias of one expert of "
                "several (vector), or a row of a codebook (embedding)?",
            )
        elif live and rank(tuple(rest)) < 2:
            size = prod(table.shape[i] for i in at)
            ledger.record(layout.name, Use("lookup", call.name, rows, extents(rest), {}, size))
        else:
            moved = _picked(dims, at, rows, call.out[0].shape, keep=not live)
            picked = layout.picked | frozenset(rows)
            ledger.hand_on(replace(layout, picked=picked), moved, call.out[0])
    if not ledger.is_weight(table):
        return Made()
    return Made(sources=frozenset(), chosen=ledger.is_weight(call.out[0]))


def _picked(
    dims: Dims, at: list[int], rows: dict[int, int], out: torch.Size, *, keep: bool
) -> Dims:
    """Dimensions after picking; with `keep`, those picked in a row stay the parameter's own."""
    count = len(out) - (len(dims) - len(at))
    new: list[tuple[Atom, ...]] = [
        ((FOREIGN, n),) if n > 1 else () for n in out[at[0] : at[0] + count]
    ]
    if keep and len(rows) == len(new) == 1 and new[0]:
        new = [((next(iter(rows)), out[at[0]]),)]
    return (*dims[: at[0]], *new, *dims[at[-1] + 1 :])


def join(ledger: Ledger, call: Call) -> Made:
    """aten.cat and aten.stack: beside activations a use, among weights one larger weight."""
    weights = [t for t in call.args[0] if ledger.is_weight(t)]
    dim = call.args[1] if len(call.args) > 1 else 0
    out = call.out[0]
    if ledger.is_live(call.given):
        for weight in weights:
            element(ledger, call, weight, "join")
        return Made()
    for weight in weights:
        for layout, dims in ledger.dims(weight):
            if call.name == "stack":
                at = dim % out.dim()
                moved: Dims | None = (*dims[:at], ((FOREIGN, out.shape[at]),), *dims[at:])
            else:
                moved = resized(dims, weight.shape, out.shape)
            _hand_on(ledger, call, layout, moved)
    return Made()


def _hand_on(ledger: Ledger, call: Call, layout: Layout, dims: Dims | None) -> None:
    if dims is None:
        ledger.refuse(layout.name, f"aten.{call.name} along merged dimensions")
    else:
        ledger.hand_on(layout, dims, call.out[0])


def repeat(ledger: Ledger, call: Call) -> Made:
    """aten.repeat(self, times)."""
    weight, out = call.args[0], call.out[0]
    for layout, dims in ledger.dims(weight):
        missing = out.dim() - weight.dim()
        sizes = (*(1 for _ in range(missing)), *weight.shape)
        padded = (*(() for _ in range(missing)), *dims)
        moved = tuple(
            (((FOREIGN, to // n), *atoms) if to > n else atoms)
            for atoms, n, to in zip(padded, sizes, out.shape, strict=True)
        )
        ledger.hand_on(layout, moved, out)
    return Made()


def resize(ledger: Ledger, call: Call) -> Made:
    """Interpolation and padding: dimensions keep their place and change their length."""
    weight, out = call.given[0], call.out[0]
    for layout, dims in ledger.dims(weight):
        _hand_on(ledger, call, layout, resized(dims, weight.shape, out.shape))
    return Made()
