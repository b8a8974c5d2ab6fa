"""Rules of operations that work entry by entry, and of sums over their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from torch import Tensor

from sweeper.models.classifier.layout import ParamLayout, broadcast_mapping, extents, param_rank
from sweeper.models.classifier.state import OpCall, OutputInfo, TraceState, storage_id
from sweeper.models.classifier.uses import Use, UseKind

COPIES = {"clone", "_to_copy", "lift_fresh_copy", "_unsafe_view", "_reshape_copy", "view_copy"}
"""What a copy holds is known as well as the original."""
_ADDITIONS = {"add", "sub", "rsub"}
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
    """Record that `weight` meets activations entry by entry; `shape` is the result's.

    Products with a parameter are returned, by their place in the output: they may be summed.
    """
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
    if weights:
        _derive(state, call, weights)
    return OutputInfo()


def _derive(state: TraceState, call: OpCall, weights: list[Tensor]) -> None:
    """Record the output as a weight that is a function of `weights`, entry by entry."""
    out = call.outputs[0]
    shifted = call.name in _ADDITIONS and len(call.inputs) == 1
    # Between a tensor and itself lies that tensor: only its gradient is another.
    alike = call.name == "lerp" and len({storage_id(tensor) for tensor in call.inputs[:2]}) == 1
    transformed = not (shifted or alike or call.name in COPIES)
    derived = [
        (
            replace(
                layout,
                shifted=layout.shifted or shifted,
                transformed=layout.transformed or transformed,
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
    if call.name in ("sum", "mean"):
        _contract_products(state, call)
    return OutputInfo()


def _contract_products(state: TraceState, call: OpCall) -> None:
    """A sum over element-wise products with a parameter is a contraction written at length."""
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
