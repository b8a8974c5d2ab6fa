"""Rules of lookups, choices, joins and changes of length."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from sweeper.models.classifier.elementwise import record_elementwise
from sweeper.models.classifier.layout import (
    FOREIGN,
    DimMapping,
    ParamLayout,
    extents,
    foreign,
    param_rank,
    resized_mapping,
)
from sweeper.models.classifier.state import OpCall, OutputInfo, TraceState
from sweeper.models.classifier.uses import Use, UseKind


def embedding(state: TraceState, call: OpCall) -> OutputInfo:
    """Rows of a table, by their numbers."""
    table, numbers = call.args[:2]
    for layout, mapping in state.params_in(table) if state.is_weight(table) else ():
        use = Use(
            kind=UseKind.LOOKUP,
            op=call.name,
            in_extents=extents(mapping[:1]),
            out_extents=extents(mapping[1:]),
            fan_in=table.shape[0],
            depends_on_input=state.depends_on_input((numbers,)),
        )
        state.record(layout.name, use)
    return OutputInfo(source_params=frozenset())


def index_select(state: TraceState, call: OpCall) -> OutputInfo:
    """aten.index_select(self, dim, index)."""
    table, dim, numbers = call.args[:3]
    return _select(state, call, table, [dim % max(table.dim(), 1)], [numbers])


def index(state: TraceState, call: OpCall) -> OutputInfo:
    """aten.index(self, indices): list indexing, such as `table[tokens]`."""
    table, indices = call.args[:2]
    indexed = [i for i, entry in enumerate(indices) if entry is not None]
    # Indices on separated dimensions would move the result's dimensions to the front.
    if indexed and indexed == list(range(indexed[0], indexed[-1] + 1)):
        return _select(state, call, table, indexed, [indices[i] for i in indexed])
    state.record_unsupported(call)
    return OutputInfo()


def _select(
    state: TraceState, call: OpCall, table: Tensor, indexed: list[int], numbers: list[Tensor]
) -> OutputInfo:
    """Entries of `table` along the dimensions `indexed`.

    By the model's inputs, vectors are looked up, and whole matrices are chosen among (experts).
    By constants, the result is a weight still (a permutation, relative positions).
    """
    by_input, out = state.depends_on_input(numbers), call.outputs[0]
    for layout, mapping in list(state.params_in(table)):
        rows = extents([mapping[i] for i in indexed])
        rest = [components for i, components in enumerate(mapping) if i not in indexed]
        if not by_input or param_rank(rest) >= 2:
            selected = _selected_mapping(mapping, indexed, rows, out.shape, keep=not by_input)
            moved = replace(layout, indexed=layout.indexed | frozenset(rows))
            state.record_derived(moved, selected, out)
        elif state.source_params(numbers):
            why = (
                f"aten.{call.name} by numbers that the model computes: a bias of one expert of "
                "several (vector), or a row of a codebook (embedding)?"
            )
            state.record_unknown(layout.name, why)
        else:
            use = Use(
                kind=UseKind.LOOKUP,
                op=call.name,
                in_extents=rows,
                out_extents=extents(rest),
                fan_in=prod(table.shape[i] for i in indexed),
            )
            state.record(layout.name, use)
    if not state.is_weight(table):
        return OutputInfo()
    return OutputInfo(source_params=frozenset(), is_whole_weight=state.is_weight(out))


def _selected_mapping(
    mapping: DimMapping, indexed: list[int], rows: dict[int, int], out: torch.Size, *, keep: bool
) -> DimMapping:
    """The mapping after a selection; with `keep`, a dimension indexed by a list stays itself."""
    first, last = indexed[0], indexed[-1]
    count = len(out) - (len(mapping) - len(indexed))
    new = [foreign(n) for n in out[first : first + count]]
    if keep and len(rows) == len(new) == 1 and new[0]:
        new = [((next(iter(rows)), out[first]),)]
    return (*mapping[:first], *new, *mapping[last + 1 :])


def join(state: TraceState, call: OpCall) -> OutputInfo:
    """aten.cat and aten.stack: beside activations a use, among weights one larger weight."""
    weights = [tensor for tensor in call.args[0] if state.is_weight(tensor)]
    dim = call.args[1] if len(call.args) > 1 else 0
    out = call.outputs[0]
    if state.depends_on_input(call.inputs):
        for weight in weights:
            record_elementwise(state, call, weight, UseKind.INSERT)
        return OutputInfo()
    for weight in weights:
        for layout, mapping in state.params_in(weight):
            joined: DimMapping | None
            if call.name == "stack":
                at = dim % out.dim()
                joined = (*mapping[:at], ((FOREIGN, out.shape[at]),), *mapping[at:])
            else:
                joined = resized_mapping(mapping, weight.shape, out.shape)
            _record_resized(state, call, layout, joined)
    return OutputInfo()


def _record_resized(
    state: TraceState, call: OpCall, layout: ParamLayout, mapping: DimMapping | None
) -> None:
    if mapping is None:
        state.record_unknown(layout.name, f"aten.{call.name} along merged dimensions")
    else:
        state.record_derived(layout, mapping, call.outputs[0])


def repeat(state: TraceState, call: OpCall) -> OutputInfo:
    """aten.repeat(self, times)."""
    weight, out = call.args[0], call.outputs[0]
    missing = out.dim() - weight.dim()
    sizes = (*(1 for _ in range(missing)), *weight.shape)
    for layout, mapping in state.params_in(weight):
        padded = (*(() for _ in range(missing)), *mapping)
        repeated = tuple(
            (((FOREIGN, to // n), *components) if to > n else components)
            for components, n, to in zip(padded, sizes, out.shape, strict=True)
        )
        state.record_derived(layout, repeated, out)
    return OutputInfo()


def resize(state: TraceState, call: OpCall) -> OutputInfo:
    """Interpolation and padding: dimensions keep their place and change their length."""
    weight, out = call.inputs[0], call.outputs[0]
    for layout, mapping in state.params_in(weight):
        resized = resized_mapping(mapping, weight.shape, out.shape)
        _record_resized(state, call, layout, resized)
    return OutputInfo()
