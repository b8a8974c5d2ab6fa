"""Build a model at any size, and trace what one forward pass of it uses its parameters for.

The pass needs no memory if possible (`places.py`). Every ATen operation of it goes to a rule
(`rules.py`): a rule takes the state and the call, records uses and derived weights, and returns
what more is known of the outputs than that they are activations. A pass that works nowhere is not
traced; the reason is kept, as roles may be given by hand.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sweeper.classifier.numbers import Factor, NumberMode, Numbers
from sweeper.classifier.places import (
    ATTEMPTS,
    Place,
    RealPlace,
    TooLarge,
    default_inputs,
    described_inputs,
    move_inputs,
    move_model,
)
from sweeper.classifier.roles import pattern_of
from sweeper.classifier.rules import (
    COPIES,
    MATMUL_ARGUMENTS,
    NORM_PARAMETERS,
    attention,
    convolution,
    copy,
    embedding,
    index,
    index_select,
    join,
    matmul,
    normalize,
    pointwise,
    reduce,
    repeat,
    resize,
)
from sweeper.classifier.running import uncompiled
from sweeper.classifier.state import (
    UNTRACKED,
    ActivationInfo,
    Flow,
    OpCall,
    OutputInfo,
    TraceState,
    Use,
    storage_id,
)
from sweeper.errors import BadInput

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
    state.record_unsupported(call)
    return OutputInfo()


def _rule(func: Any, name: str) -> Rule:
    if name in _RULES:
        return _RULES[name]
    if torch.Tag.pointwise in func.tags:
        return pointwise
    if name.startswith(("upsample_", "_upsample_")):
        return resize
    # Fused attention has a name a device and a version; all have "attention" in it.
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


def _in_derivative() -> bool:
    # The model takes one itself, as a force. What goes through weights backwards is no use of them.
    node = getattr(torch._C, "_current_autograd_node", lambda: None)
    return node() is not None


ATEN = torch.ops.aten
_COUNTS = (ATEN.arange.default, ATEN.arange.start, ATEN.arange.start_step)


class UseTracer(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """While entered, shows every ATen operation to its rule.

    It stands below autograd and torch's functions: an einsum or a module of torch arrives as the
    few hundred operations that all models share, and only these need rules.
    """

    def __init__(self, state: TraceState) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.state = state
        # What `arange` made, by its storage: its first number, and itself, lest the address is
        # another's.
        self._counted = dict[int, tuple[int, Tensor]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ATEN.embedding.default:
            self._check_rows(*args[:2])
        out = _run(func, args, dict(kwargs or {}))
        if func in _COUNTS:
            first = 0 if func is ATEN.arange.default else args[0]
            if isinstance(first, int) and args[2:] in ((), (1,)):
                self._counted[storage_id(out)] = first, out
        elif self._counted and func._schema.is_mutable and tensors_in(args[:1]):
            self._counted.pop(storage_id(args[0]), None)
        inputs = tensors_in((args, dict(kwargs or {})))
        if _in_derivative():
            self.state.record_outputs(tensors_in(out), ActivationInfo(depends_on_input=True))
        elif any(self.state.tracks(tensor) for tensor in inputs):
            self._record(func, args, dict(kwargs or {}), inputs, tensors_in(out))
        return out

    def _check_rows(self, table: Tensor, numbers: Tensor) -> None:
        if (counted := self._counted.get(storage_id(numbers))) is None or not numbers.numel():
            return
        steps = zip(numbers.shape, numbers.stride(), strict=True)
        last = counted[0] + numbers.storage_offset() + sum((n - 1) * step for n, step in steps)
        if last >= table.shape[0]:
            raise TooFewRows(table.shape[0], int(last) + 1)

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
        # x * w that is summed later is a contraction written out, unless something else reads it.
        if name not in COPIES and name not in ("sum", "mean"):
            state.record_unsummed(inputs)
        # All are read before the rule runs: an operation in place changes what is on record.
        depends_on_input = state.depends_on_input(inputs)
        source_params = state.source_params(inputs)
        unchosen = state.operand_params(inputs)
        operands = frozenset[str]() if name in _CHOICES else unchosen
        gates = [state.activation(t).sigmoid_of for t in inputs if state.depends_on_input([t])]
        alone = all(gates) and name not in _CHOICES
        sigmoid_of = frozenset[str]().union(*gates) if alone else frozenset[str]()
        call = OpCall(name.rstrip("_") if mutable else name, args, inputs, outputs)
        before = _multiplied(state, call, kwargs)
        info = _rule(func, call.name)(state, call)
        replaced = info.source_params
        if replaced is not None and call.name in (*MATMUL_ARGUMENTS, "convolution"):
            operands |= sigmoid_of  # what a weight sums over chooses nothing
        if depends_on_input:  # a spectral norm's iterations are no result
            # Of all parameters of a residual stream at once: one by one it would be depth^2 work.
            state.reaches[source_params] += outputs[0].numel()
            state.meets[operands] += outputs[0].numel()
        activation = ActivationInfo(
            depends_on_input=(depends_on_input or info.takes_data) and not info.is_whole_weight,
            source_params=source_params if replaced is None else replaced,
            elementwise_products=info.elementwise_products,
            groups=info.groups,
            operand_params=operands if replaced is None else replaced,
            sigmoid_of=unchosen if name == "sigmoid" else sigmoid_of,
            factor=before.factor,
            multiplied=before.multiplied,
            contractions=info.contractions or before.contractions,
            summed_over=info.summed_over or before.summed_over,
        )
        state.record_outputs(outputs, activation)


def _multiplied(state: TraceState, call: OpCall, kwargs: dict[str, Any]) -> ActivationInfo:
    # addmm and baddbmm multiply their product by `alpha`.
    if kwargs.get("alpha", 1) != 1 and call.name in MATMUL_ARGUMENTS:
        state.numbers.record("multiplies a product by", float(kwargs["alpha"]), state.running.name)
    if call.name in _SCALED_TERMS:
        _scale_term(state, call, kwargs)
    if call.name in _KEEP_FACTOR:
        return state.activation(call.inputs[0])
    tensor, number = _number_and_tensor(state, call, kwargs)
    if tensor is None or not number:
        return UNTRACKED
    verb, factor = ("divides by", 1 / number) if call.name == "div" else ("multiplies by", number)
    info = state.activation(tensor)
    # Muted are the parts of attention, whose scale is no factor of the projections before it.
    recorded = state.numbers.record(verb, number, state.running.name, info.summed_over)
    if recorded is not None:
        for use in info.contractions:
            use.factor *= factor
            use.multiplied.append(recorded)
    multiplied = info.multiplied + ((recorded,) if recorded else ())
    return replace(info, factor=info.factor * factor, multiplied=multiplied)


def _scale_term(state: TraceState, call: OpCall, kwargs: dict[str, Any]) -> None:
    number = state.number(kwargs.get(_SCALED_TERMS[call.name], 1))
    if number and number != 1:
        recorded = state.numbers.record("multiplies by", number, state.running.name)
        terms = [term for term in call.args[1:] if isinstance(term, Tensor)]
        for use in (use for term in terms for use in state.activation(term).contractions):
            use.factor *= number
            use.multiplied += [recorded] if recorded is not None else []


def _number_and_tensor(
    state: TraceState, call: OpCall, kwargs: dict[str, Any]
) -> tuple[Tensor | None, float | None]:
    """What is multiplied or divided by a number, and the number; None for other operations."""
    if call.name not in ("mul", "div") or len(call.args) < 2 or kwargs.get("rounding_mode"):
        return None, None
    first, second = call.args[:2]
    if isinstance(first, Tensor) and (number := state.number(second)) is not None:
        return first, number
    if call.name == "mul" and isinstance(second, Tensor):
        return second, state.number(first)
    return None, None


Sizes = Mapping[str, Any]
Inputs = Any
"""What the model is called with: a tensor, a tuple or dict of them, or a function of the sizes."""


@dataclass(frozen=True, kw_only=True)
class ModelTrace:
    """Parameters of a model of some size, and what its forward pass uses them for.

    `shapes`, `tied` (other names of the same parameter) and `frozen` are by parameter; `uses` is
    None where no forward pass was traced, for the reason `failure`; `too_large` tells that smaller
    models can be traced. `factors` are the numbers that the model multiplies by, and `way` says how
    the pass was traced, if not in the usual way.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, tuple[str, ...]]
    frozen: frozenset[str] = frozenset()
    uses: Mapping[str, list[Use]] | None = None
    flow: Flow = field(default_factory=Flow)
    factors: tuple[Factor, ...] = ()
    failure: str = ""
    too_large: bool = False
    way: str = ""


Traces = dict[tuple[Any, ...], ModelTrace]
"""Traces of one `build` and its `inputs`, by what was asked and the sizes."""


class DoesNotRun(BadInput):
    """No forward pass of a model runs here."""


class TooFewRows(BadInput):
    """A table of `rows` in which a model looks up its positions, `wanted` of them."""

    def __init__(self, rows: int, wanted: int) -> None:
        super().__init__(
            f"a table of the model's has {rows} rows, and {wanted} positions are looked up in it: "
            "give it more, or shorter inputs"
        )
        self.rows, self.wanted = rows, wanted


class _Failed(Exception):
    """Why an attempt did not work; `shapes` are known if the model could be built."""

    def __init__(self, why: str, shapes: ModelTrace | None) -> None:
        super().__init__(why)
        self.shapes = shapes


T = TypeVar("T")


@contextmanager
def _compiler_left_out() -> Iterator[None]:
    """While entered, operations on the meta device do not import `torch._dynamo`.

    Many of them, and every dispatch mode, are told to the compiler as none of its business, by
    `torch._disable_dynamo`, which imports it to say so; what it has said is kept in an attribute of
    the function. Set to the function itself, nothing is said, as nothing is compiled in here. With
    a torch of which that is not known it does nothing.
    """
    not_needed = "torch._dynamo" in sys.modules or torch.__version__ < "2.13"
    asked = (
        [] if not_needed else [f for f in _asked_by_meta() if not hasattr(f, "__dynamo_disable")]
    )
    for function in asked:
        function.__dynamo_disable = function
    try:
        yield
    finally:
        for function in asked:
            del function.__dynamo_disable


@cache
def _asked_by_meta() -> frozenset[Any]:
    """The functions that torch's own kernels of the meta device are decorated for the compiler."""
    asked, seen = set[Any](), set[Any]()
    modules = (torch._refs, torch._refs.nn.functional, torch._refs.special, torch._decomp)
    ahead = [value for module in (*modules, UseTracer) for value in vars(module).values()]
    while ahead:
        function = ahead.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        within = [cell.cell_contents for cell in function.__closure__ or ()]
        if function.__code__.co_filename == torch._compile.__file__:
            asked.update(inner for inner in within if isinstance(inner, FunctionType))
        ahead += within
    return frozenset(asked)


_TURNS = RLock()
"""A model is built and traced by one thread at a time: what the compiler is told holds for all."""


@dataclass(kw_only=True)
class Tracer:
    """Builds and traces a model at several sizes, each in the first way that works.

    `build` takes the sizes as named arguments; `inputs` is what the model is called with. What
    was traced is kept in `traces`, where they are given.
    """

    build: Callable[..., nn.Module]
    inputs: Inputs = None
    traces: Traces | None = None
    _first: int = 0

    def shapes(self, sizes: Sizes) -> ModelTrace:
        """Names and shapes alone, without a forward pass; BadInput if no way works."""
        return self._kept("shapes", sizes, lambda: _shapes(self.built(sizes)))

    def built(self, sizes: Sizes) -> nn.Module:
        """The model, which need not run; BadInput if it cannot be built in any way."""
        failures = []
        for kind in dict.fromkeys(kind for kind, _ in ATTEMPTS):
            try:
                with _TURNS:
                    return self._built(sizes, kind(), Numbers())
            except _Failed as failed:
                failures.append(failed)
        raise BadInput(_untraced(ModelTrace(shapes={}, tied={}), failures).failure)

    def trace(self, sizes: Sizes) -> ModelTrace:
        """How the parameters are used; BadInput if the model cannot be built in any way."""
        with _TURNS:
            return self._kept("uses", sizes, lambda: self._trace(sizes))

    def _kept(self, what: str, sizes: Sizes, made: Callable[[], ModelTrace]) -> ModelTrace:
        if self.traces is None:
            return made()
        key = (what, *sorted(sizes.items()))
        if key not in self.traces:
            self.traces[key] = made()
        return self.traces[key]

    def _trace(self, sizes: Sizes) -> ModelTrace:
        # The compiler takes longer to import than all else, and most models are traced without.
        if self._first == 0 and "torch._dynamo" not in sys.modules and torch.__version__ >= "2.13":
            (kind, evaluate), *_ = ATTEMPTS
            with suppress(_Failed), _compiler_left_out():
                traced = self._attempt(sizes, kind(), evaluate=evaluate)
                if "torch._dynamo" not in sys.modules:  # or the model had compiled on the way
                    return traced
        # Tracing asks for it, and with torch 2.6 its import fails halfway under a mode of ours.
        import_module("torch._dynamo")
        failures: list[_Failed] = []
        for at in range(self._first, len(ATTEMPTS)):
            kind, evaluate = ATTEMPTS[at]
            try:
                traced = self._attempt(sizes, kind(), evaluate=evaluate)
            except _Failed as failed:
                failures.append(failed)
            else:
                self._first = at
                return traced
        built = next((failed.shapes for failed in failures if failed.shapes is not None), None)
        return _untraced(built or self.shapes(sizes), failures)

    def watch(self, sizes: Sizes, watcher: Callable[[nn.Module, Callable[[], object]], T]) -> T:
        """What `watcher` returns of a model and a call that runs it; DoesNotRun if nothing runs."""
        failure: Exception | None = None
        for kind, evaluate in ATTEMPTS[self._first :]:
            place = kind()
            try:
                model = self._built(sizes, place, Numbers()).train(not evaluate)
                with place.entered(), _eager(), _compiler_left_out():
                    args, kwargs = self._arguments(model, sizes, place)
                    return watcher(model, lambda m=model, a=args, k=kwargs: m(*a, **k))  # type: ignore[misc]
            except BadInput:
                raise
            except Exception as error:
                failure = error
        raise DoesNotRun(f"the forward pass does not run: {failure}") from failure

    def _attempt(self, sizes: Sizes, place: Place, *, evaluate: bool) -> ModelTrace:
        numbers = Numbers()
        model = self._built(sizes, place, numbers)
        shapes = _shapes(model)
        if evaluate:
            model.eval()
        with place.entered():
            try:
                args, kwargs = self._arguments(model, sizes, place)
            except BadInput as error:
                # No other place would know the inputs: this is the result, not a failed attempt.
                return replace(shapes, failure=str(error))
            parameters, _ = _parameters(model)
            state = TraceState(parameters.items(), tensors_in((args, kwargs)), numbers)
            try:
                # The order matters: a later mode sees an operation before an earlier one.
                with (
                    _eager(),
                    state.running.of(model),
                    UseTracer(state),
                    NumberMode(numbers, lambda: state.running.name),
                ):
                    model(*args, **kwargs)
            except TooFewRows:
                raise
            except Exception as error:
                call = described_inputs(kwargs or args)
                why = f"the forward pass cannot be traced at {described(sizes)}, called with {call}"
                raise _Failed(f"{why}: {_reason(error, place)}", shapes) from error
        return _traced(shapes, state, place, evaluate=evaluate)

    def _built(self, sizes: Sizes, place: Place, numbers: Numbers) -> nn.Module:
        try:
            with place.entered(), NumberMode(numbers), _compiler_left_out():
                model = self.build(**sizes)
        except TooLarge as error:
            raise _Failed(str(error), None) from error
        except BadInput:
            raise
        except Exception as error:
            why = f"the model cannot be built at {described(sizes)}: {_reason(error, place)}"
            raise _Failed(why, None) from error
        if not isinstance(model, nn.Module):
            raise BadInput(f"build must return an nn.Module, not {type(model).__name__}")
        with place.entered():
            move_model(model, place, numbers)
        return model

    def _arguments(
        self, model: nn.Module, sizes: Sizes, place: Place
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs = self.inputs(sizes) if callable(self.inputs) else self.inputs
        inputs = default_inputs(model) if inputs is None else inputs
        inputs = move_inputs(inputs, place)
        if isinstance(inputs, Mapping):
            return (), dict(inputs)
        return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _parameters(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    first_names: dict[int, str] = {}
    parameters: dict[str, Tensor] = {}
    tied: dict[str, tuple[str, ...]] = {}
    for full_name, tensor in model.named_parameters(remove_duplicate=False):
        name = uncompiled(full_name)
        first = first_names.setdefault(id(tensor), name)
        if first == name:
            parameters[first] = tensor
        else:
            tied[first] = (*tied.get(first, ()), name)
    return parameters, tied


def _shapes(model: nn.Module) -> ModelTrace:
    parameters, tied = _parameters(model)
    return ModelTrace(
        shapes={name: tuple(tensor.shape) for name, tensor in parameters.items()},
        tied=tied,
        frozen=frozenset(name for name, t in parameters.items() if not t.requires_grad),
    )


def _eager() -> AbstractContextManager[Any]:
    """Run compiled modules as they are written: the tracer cannot look into compiled code."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _traced(shapes: ModelTrace, state: TraceState, place: Place, *, evaluate: bool) -> ModelTrace:
    uses = state.uses
    # With real values a router picks some experts, and the others show no use.
    if isinstance(place, RealPlace):
        uses = {name: seen or _of_sibling(name, state) for name, seen in uses.items()}
    state.flow.meets, state.flow.reaches = _by_name(state.meets), _by_name(state.reaches)
    return replace(
        shapes,
        uses=uses,
        flow=state.flow,
        factors=tuple(state.numbers.factors),
        way=f"{place.name}, in evaluation mode" if evaluate else "",
    )


def _by_name(entries: Mapping[frozenset[str], int]) -> Counter[str]:
    """The sum of every name: a large result that does not grow hides no growth of another."""
    sums = Counter[str]()
    for names, count in entries.items():
        sums.update(dict.fromkeys(names, count))
    return sums


def _of_sibling(name: str, state: TraceState) -> list[Use]:
    """The uses of a parameter like it: no input of the pass chose this expert, but another."""
    alike = (
        uses
        for other, uses in state.uses.items()
        if uses and state.shapes[other] == state.shapes[name]
        if pattern_of(other) == pattern_of(name)
    )
    return next(alike, [])


def _untraced(shapes: ModelTrace, failures: list[_Failed]) -> ModelTrace:
    large = [str(failed) for failed in failures if isinstance(failed.__cause__, TooLarge)]
    others = [str(failed) for failed in failures if not isinstance(failed.__cause__, TooLarge)]
    return replace(shapes, failure="; ".join([*others[-1:], *large]), too_large=bool(large))


def described(sizes: Sizes) -> str:
    """Sizes in words."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "its size"


def _reason(error: Exception, place: Place) -> str:
    # The user's frame is what helps: the last one outside of torch and of the modules here.
    package = Path(__file__).parents[1]
    skipped = (
        str(Path(torch.__file__).parent),
        str(package / "models"),
        str(package / "classifier"),
    )
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(skipped)]
    line = f"{outside[-1].filename}:{outside[-1].lineno}: " if outside else ""
    first_line = (str(error).strip().splitlines() or [""])[0]
    return f"{line}{type(error).__name__}: {first_line} ({place.name})"
