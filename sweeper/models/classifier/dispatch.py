"""One forward pass, every ATen operation of which goes to a rule.

A rule takes the state and the call, records uses and derived weights, and returns what more is
known of the outputs than that they are activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sweeper.models.classifier.contractions import MATMUL_ARGUMENTS, attention, convolution, matmul
from sweeper.models.classifier.elementwise import (
    COPIES,
    NORM_PARAMETERS,
    copy,
    normalize,
    pointwise,
    reduce,
)
from sweeper.models.classifier.indexing import embedding, index, index_select, join, repeat, resize
from sweeper.models.classifier.state import (
    ActivationInfo,
    OpCall,
    OutputInfo,
    TraceState,
    storage_id,
)
from sweeper.models.classifier.uses import Use

Rule = Callable[[TraceState, OpCall], OutputInfo]

_REDUCTIONS = (
    *("sum", "mean", "norm", "linalg_vector_norm", "prod", "logsumexp", "var", "std"),
    *("var_mean", "std_mean", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin"),
    *("all", "any"),
)
_KEEP_PLACES = (
    *("_softmax", "_log_softmax", "_safe_softmax", "native_dropout", "bernoulli", "masked_fill"),
    *("copy", "where", "flip", "roll", "tril", "triu", "cumsum", "cumprod"),
    *("_weight_norm_interface", "_prelu_kernel"),
)
"""Not pointwise by their tag, but every output entry stands where its input entry stood."""
_CHOICES = ("_softmax", "_log_softmax", "_safe_softmax", "sigmoid", "topk", "sort")
"""Their outputs are shares or ranks, of the same size whatever that of the inputs is."""
_KEEP_FACTOR = (*COPIES, "native_dropout", "index", "index_select")
_SCALED_TERMS = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}
"""Sums whose later operands are multiplied by a number, and the number's name."""
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, reduce),
    **dict.fromkeys(_KEEP_PLACES, pointwise),
    **dict.fromkeys(MATMUL_ARGUMENTS, matmul),
    **dict.fromkeys(NORM_PARAMETERS, normalize),
    **dict.fromkeys(COPIES, copy),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), embedding),
    "convolution": convolution,
    "index": index,
    "index_select": index_select,
    "cat": join,
    "stack": join,
    "repeat": repeat,
    "constant_pad_nd": resize,
}


def _unsupported(state: TraceState, call: OpCall) -> OutputInfo:
    """An operation without a rule: parameters in it are named, activations pass through."""
    state.record_unsupported(call)
    return OutputInfo()


def _rule(func: Any, name: str) -> Rule:
    """The rule of the operation `func`, called `name`."""
    if name in _RULES:
        return _RULES[name]
    if torch.Tag.pointwise in func.tags:
        return pointwise
    if name.startswith(("upsample_", "_upsample_")):
        return resize
    return attention if "attention" in name else _unsupported


def tensors_in(tree: object) -> tuple[Tensor, ...]:
    """All tensors in nested lists, tuples, dicts and the outputs of models."""
    return tuple(leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation itself; in bfloat16 where its meta kernel takes nothing else."""
    if func.overloadpacket.__name__ != "_grouped_mm" or args[0].dtype is torch.bfloat16:
        return func(*args, **kwargs)
    a, b, *rest = args
    return func(a.bfloat16(), b.bfloat16(), *rest, **kwargs).to(a.dtype)


class UseTracer(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """While entered, shows every ATen operation to its rule.

    It stands below autograd and torch's functions: an einsum or a module of torch arrives as the
    few hundred operations that all models share, and only these need rules.
    """

    def __init__(self, state: TraceState) -> None:
        """`state` holds the parameters and the inputs, and gets the uses."""
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.state = state

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run `func` as it is, then record what it did."""
        out = _run(func, args, dict(kwargs or {}))
        inputs = tensors_in((args, dict(kwargs or {})))
        if any(self.state.tracks(tensor) for tensor in inputs):
            self._record(func, args, dict(kwargs or {}), inputs, tensors_in(out))
        return out

    def _record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
    ) -> None:
        name, mutable = func.overloadpacket.__name__, func._schema.is_mutable
        if not outputs or name.endswith("_like") or name.startswith("new_"):
            return  # only the shape of the input is used
        if not mutable and set(map(storage_id, outputs)) <= set(map(storage_id, inputs)):
            return  # a view: its storage is on record, and its strides say the rest
        state = self.state
        if name not in COPIES and name not in ("sum", "mean"):
            state.record_unsummed(inputs)
        # All are read before the rule runs: an operation in place changes what is on record.
        depends_on_input = state.depends_on_input(inputs)
        source_params = state.source_params(inputs)
        operands = frozenset[str]() if name in _CHOICES else state.operand_params(inputs)
        call = OpCall(name.rstrip("_") if mutable else name, args, inputs, outputs)
        factor, contractions = _multiplied(state, call, kwargs)
        info = _rule(func, call.name)(state, call)
        replaced = info.source_params
        activation = ActivationInfo(
            depends_on_input=(depends_on_input or info.takes_data) and not info.is_whole_weight,
            source_params=source_params if replaced is None else replaced,
            elementwise_products=info.elementwise_products,
            groups=info.groups,
            operand_params=operands if replaced is None else replaced,
            factor=factor,
            contractions=info.contractions or contractions,
        )
        state.record_outputs(outputs, activation)


def _multiplied(
    state: TraceState, call: OpCall, kwargs: dict[str, Any]
) -> tuple[float, tuple[Use, ...]]:
    """The numbers that the output is multiplied by so far, and the contractions it is of.

    Numbers that the operation itself multiplies by are recorded, with the line of code.
    """
    if kwargs.get("alpha", 1) != 1 and call.name in MATMUL_ARGUMENTS:
        state.numbers.record("multiplies a product by", float(kwargs["alpha"]), state.module)
    if call.name in _SCALED_TERMS:
        _scale_term(state, call, kwargs)
    if call.name in _KEEP_FACTOR:
        info = state.activation(call.inputs[0])
        return info.factor, info.contractions
    tensor, number = _number_and_tensor(state, call, kwargs)
    if tensor is None or not number:
        return 1.0, ()
    verb, factor = ("divides by", 1 / number) if call.name == "div" else ("multiplies by", number)
    state.numbers.record(verb, number, state.module)
    info = state.activation(tensor)
    for use in info.contractions:
        use.factor *= factor
    return info.factor * factor, info.contractions


def _scale_term(state: TraceState, call: OpCall, kwargs: dict[str, Any]) -> None:
    """Record the number that the later operands of a sum are multiplied by."""
    number = state.number(kwargs.get(_SCALED_TERMS[call.name], 1))
    if number and number != 1:
        state.numbers.record("multiplies by", number, state.module)
        terms = [term for term in call.args[1:] if isinstance(term, Tensor)]
        for use in (use for term in terms for use in state.activation(term).contractions):
            use.factor *= number


def _number_and_tensor(
    state: TraceState, call: OpCall, kwargs: dict[str, Any]
) -> tuple[Tensor | None, float | None]:
    """What is multiplied or divided by a number, and the number; None for other operations."""
    if call.name not in ("mul", "div") or len(call.args) < 2 or kwargs.get("rounding_mode"):
        return None, None
    left, right = call.args[:2]
    if isinstance(left, Tensor) and (number := state.number(right)) is not None:
        return left, number
    if call.name == "mul" and isinstance(right, Tensor):
        return right, state.number(left)
    return None, None
