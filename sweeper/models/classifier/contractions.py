"""Rules of contractions: matrix products, convolutions, attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from sweeper.models.classifier.elementwise import record_elementwise
from sweeper.models.classifier.layout import FOREIGN, DimMapping, ParamLayout, extents, foreign
from sweeper.models.classifier.state import (
    ActivationInfo,
    OpCall,
    OutputInfo,
    TraceState,
    storage_id,
)
from sweeper.models.classifier.uses import Use, UseKind

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
    left, right, added = MATMUL_ARGUMENTS[call.name]
    a, b = call.args[left], call.args[right]
    if call.name == "linear":  # not taken apart under inference mode
        b = b.t()
    operands = [_Operand(a, b, a.dim() - 1), _Operand(b, a, max(b.dim() - 2, 0))]
    info = _contract(state, call, [op for op in operands if state.is_weight(op.weight)])
    state.contracted_again |= state.source_params((a, b))
    if info is None:
        state.record_product((a, b), a.shape[-1], call.outputs[0].numel())
        info = OutputInfo()
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
    """Record the contraction of the weights among the operands; None if there is none."""
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
        state.record(layout.name, use)
        names.append(layout.name)
        uses.append(use)
        if out.dim() == len(mapping) == 3:
            # The batch of the weight is the batch of the output [batch, ., .].
            groups.append(layout.placed((mapping[0], *map(foreign, out.shape[1:])), out))
    return OutputInfo(
        source_params=frozenset(names),
        groups=tuple(groups),
        takes_data=takes_data,
        contractions=tuple(uses),
    )


def _is_data(state: TraceState, operand: _Operand, operands: list[_Operand]) -> bool:
    """Whether a weight takes the place of the data, as learned queries do.

    Data is repeated over the batch, or given to a module that holds the other operand itself.
    """
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
    """The use of a weight with `mapping` that is summed over some dimensions, batched in others."""
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
        module=state.module_with(layout.name),
        factor=state.activation(other).factor,
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
        state.record(layout.name, use)
        names.append(layout.name)
    state.contracted_again |= state.source_params((x,))
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
    count = query.numel() // query.shape[-1] * key.shape[-2]
    state.record_product((query, key), query.shape[-1], count)
    state.record_product((value,), key.shape[-2], query.numel() // query.shape[-1])
    state.contracted_again |= state.source_params(call.args[:3])
    return OutputInfo()
