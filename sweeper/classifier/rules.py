"""How every ATen operation passes on what a parameter's dimensions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from sweeper.classifier.state import (
    FOREIGN,
    ActivationInfo,
    DimMapping,
    OpCall,
    OutputInfo,
    ParamLayout,
    TraceState,
    Use,
    UseKind,
    broadcast_mapping,
    extents,
    foreign,
    param_rank,
    resized_mapping,
    storage_id,
)

COPIES = {"clone", "_to_copy", "lift_fresh_copy", "_unsafe_view", "_reshape_copy", "view_copy"}
"""What a copy holds is known as well as the original."""
_ADDITIONS = {"add", "sub", "rsub"}
NORMED = "_weight_norm_interface"
"""A weight over its norm, times a gain."""
_LINEAR = {
    *("mul", "div", "neg", "add", "sub", "rsub", "lerp", "where", "masked_fill", "copy"),
    *("tril", "triu", "flip", "roll", "native_dropout", NORMED),
}
"""Functions of a weight that give twice as much of one drawn twice as large, or as much."""
_INSERTIONS = {"where", "copy", "masked_fill", "cat", "stack", "index_put", "slice_scatter"}


def _kind(name: str) -> UseKind:
    if name in _ADDITIONS:
        return UseKind.ADD
    return UseKind.INSERT if name in _INSERTIONS else UseKind.MUL


def record_elementwise(
    state: TraceState,
    call: OpCall,
    weight: Tensor,
    kind: UseKind,
    shape: Sequence[int] | None = None,
) -> list[tuple[ParamLayout, Use]]:
    """Record a use entry by entry; products with a parameter are returned: they may be summed."""
    to, out = tuple(weight.shape if shape is None else shape), call.outputs[0]
    # A dimension that counts independent weights (experts) in the activation does so in a bias
    # that is added to it: the bias has as many vectors, not one vector of them all.
    grouped = set[int]().union(*(state.group_dims(tensor) for tensor in call.inputs))
    products = []
    for layout, weight_mapping in state.params_in(weight):
        mapping = broadcast_mapping(weight_mapping, weight.shape, to)
        fed = [c for i, c in enumerate(mapping) if i - len(mapping) not in grouped]
        separate = [c for i, c in enumerate(mapping) if i - len(mapping) in grouped]
        looked_up = {dim: state.shapes[layout.name][dim] for dim in layout.indexed}
        use = Use(
            kind=UseKind.LOOKUP if layout.indexed else kind,
            op=call.name,
            in_extents=looked_up,
            out_extents={dim: n for dim, n in extents(fed).items() if dim not in looked_up},
            group_extents=extents(separate),
            fan_in=prod(looked_up.values()),
            depends_on_input=state.depends_on_input(call.inputs),
            shifted=layout.shifted,
            transformed=layout.transformed,
            bent=layout.bent,
        )
        state.record(layout.name, use)
        if use.kind is UseKind.MUL and len(mapping) == out.dim():
            products.append((layout.placed(mapping, out), use))
    return products


def pointwise(state: TraceState, call: OpCall) -> OutputInfo:
    """Every output entry is made of the input entries in the same place."""
    weights = [tensor for tensor in call.inputs if state.is_weight(tensor)]
    if weights and state.depends_on_input(call.inputs):
        kind, shape = _kind(call.name), call.outputs[0].shape
        products: list[tuple[ParamLayout, Use]] = []
        for weight in weights:
            products += record_elementwise(state, call, weight, kind, shape)
        return OutputInfo(elementwise_products=tuple(products))
    if call.name == NORMED and weights:
        for layout, _ in state.params_in(weights[0]):
            state.record(layout.name, Use(kind=UseKind.STATISTIC, op=call.name))
    if weights:
        _derive(state, call, weights)
    return OutputInfo()


def _derive(state: TraceState, call: OpCall, weights: list[Tensor]) -> None:
    out = call.outputs[0]
    shifted = call.name in _ADDITIONS and len(call.inputs) == 1
    # Between a tensor and itself lies that tensor: only its gradient is another.
    alike = call.name == "lerp" and len({storage_id(tensor) for tensor in call.inputs[:2]}) == 1
    transformed = not (shifted or alike or call.name in COPIES)
    bent = transformed and call.name not in _LINEAR
    derived = [
        (
            replace(
                layout,
                shifted=layout.shifted or shifted,
                transformed=layout.transformed or transformed,
                bent=layout.bent or bent,
            ),
            broadcast_mapping(mapping, weight.shape, out.shape),
        )
        for weight in weights
        for layout, mapping in state.params_in(weight)
    ]
    # The parameter of most dimensions is the weight (weight norm's direction). Others only
    # multiply it (weight norm's gain), and are used as gains wherever the product is.
    top = max((param_rank(mapping) for _, mapping in derived), default=0)
    largest = {layout.name for layout, mapping in derived if param_rank(mapping) == top}
    for layout, mapping in sorted(derived, key=lambda item: -param_rank(item[1])):
        is_gain = layout.is_gain or layout.name not in largest
        if is_gain:
            for name in largest - {layout.name}:
                state.flow.gains.setdefault(name, set()).add(layout.name)
        state.record_derived(replace(layout, is_gain=is_gain), mapping, out)


def copy(state: TraceState, call: OpCall) -> OutputInfo:
    """A copy or a cast: what is known of an activation goes along."""
    pointwise(state, call)
    source, out = call.inputs[0], call.outputs[0]
    if source.shape != out.shape:
        return OutputInfo()

    def moved(layout: ParamLayout) -> ParamLayout | None:
        mapping = layout.mapping(source)
        return None if mapping is None else layout.placed(mapping, out)

    info = state.activation(source)
    return OutputInfo(
        elementwise_products=tuple(
            (there, use) for layout, use in info.elementwise_products if (there := moved(layout))
        ),
        groups=tuple(there for layout in info.groups if (there := moved(layout))),
    )


NORM_PARAMETERS = {
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


def normalize(state: TraceState, call: OpCall) -> OutputInfo:
    """A normalization with a gain and a bias, of activations or of a table (of positions)."""
    if state.is_weight(x := call.args[0]):
        if state.is_held(x):
            for layout, _ in state.params_in(x):
                state.record_unknown(layout.name, "a normalization of the weight itself")
        else:
            record_elementwise(state, call, x, UseKind.INSERT)
    positions = NORM_PARAMETERS[call.name]
    for position, kind in zip(positions, (UseKind.MUL, UseKind.ADD), strict=False):
        if position < len(call.args) and state.is_weight(call.args[position]):
            record_elementwise(state, call, call.args[position], kind)
    return OutputInfo()


def reduce(state: TraceState, call: OpCall) -> OutputInfo:
    """Sums, means, norms: of a weight a mere statistic, of a product a contraction."""
    for tensor in call.inputs:
        for layout, _ in state.params_in(tensor):
            state.record(layout.name, Use(kind=UseKind.STATISTIC, op=call.name))
    if call.name not in ("sum", "mean"):
        return OutputInfo()
    # A sum over element-wise products with a parameter is a contraction written at length.
    x = call.inputs[0]
    over = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], list) else []
    summed = {i % x.dim() for i in over} if over else set(range(x.dim()))
    for layout, use in state.activation(x).elementwise_products:
        mapping = layout.mapping(x) or ()
        in_extents = extents([c for i, c in enumerate(mapping) if i in summed])
        if not in_extents:
            use.used_unsummed = True
            continue
        use.summed, use.in_extents, use.fan_in = True, in_extents, prod(in_extents.values())
        use.out_extents = extents([c for i, c in enumerate(mapping) if i not in summed])
    return OutputInfo()


MATMUL_ARGUMENTS: dict[str, tuple[int, int, int | None]] = {
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
"""Matrix products: where the two operands and the added term stand among the arguments."""


@dataclass(frozen=True)
class _Operand:
    """A weight in a matrix product: its summed dimension, and the other operand."""

    weight: Tensor
    other: Tensor
    summed: int


def matmul(state: TraceState, call: OpCall) -> OutputInfo:
    """A matrix product of any kind: the last dimension of one operand with the first of another."""
    first, second, added = MATMUL_ARGUMENTS[call.name]
    a, b = call.args[first], call.args[second]
    if call.name == "linear":  # not taken apart under inference mode
        b = b.t()
    operands = [_Operand(a, b, a.dim() - 1), _Operand(b, a, max(b.dim() - 2, 0))]
    info = _contract(state, call, [op for op in operands if state.is_weight(op.weight)])
    if info is None:
        state.record_product((a, b), a.shape[-1], call.outputs[0].numel())
        info = OutputInfo(summed_over=a.shape[-1])
    bias: Any = call.args[added] if added is not None and added < len(call.args) else None
    if state.is_weight(bias):
        # The bias is added to the product, whose groups (experts) are those of the bias too. The
        # output has to be on record with them before the bias is compared with it.
        out = call.outputs[0]
        depends = info.takes_data or state.depends_on_input(call.inputs)
        recorded = ActivationInfo(depends_on_input=depends, groups=info.groups)
        state.record_outputs([out], recorded)
        addition = replace(call, inputs=(bias, out))
        record_elementwise(state, addition, bias, UseKind.ADD, out.shape)
    return info


def _contract(state: TraceState, call: OpCall, operands: list[_Operand]) -> OutputInfo | None:
    if not operands:
        return None
    takes_data = False
    if len(operands) == 2:
        # Two parameters, no input: fine for learned queries times a weight, where the queries
        # take the place of the data.
        data = [operand for operand in operands if _is_data(state, operand, operands)]
        if len(data) != 1:
            why = "a product with another parameter, before any input is met"
            for operand in operands:
                for layout, _ in state.params_in(operand.weight):
                    state.record_unknown(layout.name, why)
            return OutputInfo(source_params=frozenset())
        record_elementwise(state, replace(call, inputs=()), data[0].weight, UseKind.INSERT)
        operands = [operand for operand in operands if operand is not data[0]]
        takes_data = True
    operand, out = operands[0], call.outputs[0]
    names, groups, uses = [], [], []
    for layout, mapping in state.params_in(operand.weight):
        batch = [i for i in range(len(mapping) - 2) if i != operand.summed]
        use = _contraction(state, call, layout, mapping, [operand.summed], batch, operand.other)
        use.depends_on_input |= takes_data
        state.record(layout.name, use, operand.other)
        names.append(layout.name)
        uses.append(use)
        if out.dim() == len(mapping) > 1:
            # What counts matrices counts vectors of the output: the batch of [batch, ., .], and, of
            # a stack that one input feeds, all of the weight's outputs but the last dimension.
            side = -1 if operand.summed == len(mapping) - 2 else -2
            places = [*mapping[:-2], *map(foreign, out.shape[-2:])]
            if len(mapping[side]) > 1:
                places[side] = (*mapping[side][:-1], (FOREIGN, mapping[side][-1][1]))
            groups.append(layout.placed(tuple(places), out))
    return OutputInfo(
        source_params=frozenset(names),
        groups=tuple(groups),
        takes_data=takes_data,
        contractions=tuple(uses),
    )


def _is_data(state: TraceState, operand: _Operand, operands: list[_Operand]) -> bool:
    # As learned queries do: repeated over the batch, or given to a module that holds the other one.
    mappings = [mapping for _, mapping in state.params_in(operand.weight)]
    if any(dim == FOREIGN for mapping in mappings for group in mapping for dim, _ in group):
        return True
    other = next(item for item in operands if item is not operand)
    return state.is_held(other.weight) and not state.is_held(operand.weight)


def _contraction(
    state: TraceState,
    call: OpCall,
    layout: ParamLayout,
    mapping: DimMapping,
    summed: list[int],
    batch: list[int],
    other: Tensor,
) -> Use:
    in_extents = extents([mapping[i] for i in summed])
    out_extents = extents([c for i, c in enumerate(mapping) if i not in {*summed, *batch}])
    fan_in = prod(n for i in summed for _, n in mapping[i])
    # Summed over entries that the parameter was only repeated for (a gain in weight norm): it
    # multiplies every term alike.
    is_gain = layout.is_gain or (not in_extents and bool(out_extents))
    return Use(
        kind=UseKind.MUL if is_gain and fan_in > 1 else UseKind.CONTRACTION,
        op=call.name,
        in_extents=in_extents,
        out_extents=out_extents,
        group_extents=extents([mapping[i] for i in batch]),
        fan_in=fan_in,
        input_id=storage_id(other),
        depends_on_input=state.depends_on_input((other,)),
        transformed=layout.transformed,
        bent=layout.bent,
        module=state.module_with(layout.name),
        factor=state.activation(other).factor,
        multiplied=[*state.activation(other).multiplied],
    )


def convolution(state: TraceState, call: OpCall) -> OutputInfo:
    """aten.convolution(input, weight, bias, stride, padding, dilation, transposed, _, groups)."""
    x, weight, bias, stride, _, _, transposed, _, groups = call.args[:9]
    names = []
    for layout, mapping in state.params_in(weight) if state.is_weight(weight) else ():
        summed = [0 if transposed else 1, *range(2, len(mapping))]
        use = _contraction(state, call, layout, mapping, summed, [], x)
        if use.kind is UseKind.CONTRACTION:
            _count_kernel_positions(use, weight.shape, stride, groups, transposed=transposed)
        state.record(layout.name, use, x)
        names.append(layout.name)
    if state.is_weight(bias):
        record_elementwise(state, call, bias, UseKind.ADD)
    return OutputInfo(source_params=frozenset(names))


def _count_kernel_positions(
    use: Use, shape: torch.Size, stride: list[int], groups: int, *, transposed: bool
) -> None:
    """Correct the fans of a convolution for its kernel, and set its groups apart.

    `shape` is [out, in / groups, *kernel]; transposed [in, out / groups, *kernel]. At stride s, an
    entry on the strided side meets every s-th position of the kernel, one on the other side all.
    """
    strides = stride * (len(shape) - 2) if len(stride) == 1 else stride
    positions = prod(shape[2:])
    strided = prod(-(-n // s) for n, s in zip(shape[2:], strides, strict=True))
    if transposed:
        use.fan_in, use.fan_out_factor = shape[0] // groups * strided, positions
        split = use.in_extents
    else:
        use.fan_in, use.fan_out_factor = shape[1] * positions, strided
        split = use.out_extents
    # The weight's first dimension holds the channels of all groups, one after the other.
    if 0 in split:
        split[0] //= groups
    if groups > 1:
        use.group_extents[0] = groups


def attention(state: TraceState, call: OpCall) -> OutputInfo:
    """Fused attention (query, key, value, ...): the logits contract the last dimension."""
    state.record_unsupported(call)
    query, key, value = call.args[:3]
    # One inner product for each pair of a query and a key, over the entries of a head; then one for
    # each entry of the output, over the positions.
    count = query.numel() // query.shape[-1] * key.shape[-2]
    state.record_product((query, key), query.shape[-1], count)
    state.record_product((value,), key.shape[-2], query.numel() // query.shape[-1])
    return OutputInfo()


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
            transformed=layout.transformed,
            bent=layout.bent,
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
        # Matrices that inputs choose among are experts: what is chosen is a weight still.
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
    # The indexed dimensions follow each other: those of the numbers stand in their place.
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
