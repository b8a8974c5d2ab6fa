"""What the trace of a forward pass knows so far: of every storage, and of every parameter's uses.

A storage holds a weight (a function of parameters and constants alone), an activation, or a
constant, which is not tracked. Storages are identified by address. Each one on record is kept
alive: a freed address would soon belong to another tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from sweeper.classifier.numbers import Factor, Numbers, plain
from sweeper.classifier.running import RunningModules

# Dimension mapping: which dimension of a parameter every dimension of a tensor stems from.
# A `ParamLayout` places the dimensions of a parameter in a storage, as strided axes. A view of
# that storage (transpose, split, select, reshape, expand) is mapped from its sizes and strides
# alone, however it was made; only operations that copy need a rule of their own.


FOREIGN = -1
"""Stands for a dimension that no dimension of the parameter made, such as a repetition."""

Component = tuple[int, int]
"""A dimension of the parameter (or FOREIGN), and how many of its entries are meant."""

DimMapping = tuple[tuple[Component, ...], ...]
"""The components of every dimension of a tensor, the slowest first; a dimension of 1 has none."""


class StridedDim(NamedTuple):
    """One dimension of the parameter, or a part of it, as it lies in a storage."""

    dim: int
    size: int
    stride: int


@dataclass(frozen=True)
class ParamLayout:
    """How the parameter `name` lies in a storage that was computed from it.

    `axes` go by falling stride. `indexed` are dimensions that were indexed by a list. `is_gain`
    marks a parameter that multiplies a larger one (a weight norm's gain), `shifted` one to which
    a constant was added (a gain stored as 1 + w), `transformed` one that went through another
    function first (a decay stored as its logarithm), and `bent` one whose function was not linear.
    """

    name: str
    axes: tuple[StridedDim, ...] = ()
    indexed: frozenset[int] = frozenset()
    is_gain: bool = False
    shifted: bool = False
    transformed: bool = False
    bent: bool = False

    @classmethod
    def of_parameter(cls, name: str, tensor: Tensor) -> ParamLayout:
        """The layout of the parameter itself: one axis for every dimension."""
        mapping = tuple(((dim, n),) if n > 1 else () for dim, n in enumerate(tensor.shape))
        return cls(name).placed(mapping, tensor)

    def placed(self, mapping: DimMapping, tensor: Tensor) -> ParamLayout:
        """The same parameter in the storage of `tensor`, whose dimensions have `mapping`."""
        axes = []
        # The last component of a dimension is the fastest, and has the dimension's own stride.
        for components, n, step in zip(mapping, tensor.shape, tensor.stride(), strict=True):
            if n > 1 and step > 0:
                for dim, extent in reversed(components):
                    axes.append(StridedDim(dim, extent, step))
                    # The next component to the left is slower by as much as this one is long.
                    step *= extent
        return replace(self, axes=tuple(sorted(axes, key=lambda axis: -axis.stride)))

    def mapping(self, view: Tensor) -> DimMapping | None:
        """The mapping of any view of the storage; None if it mixes the parameter's dimensions."""
        mapping = []
        for n, step in zip(view.shape, view.stride(), strict=True):
            components = _components(self.axes, n, step)
            if components is None:
                return None
            mapping.append(components)
        return tuple(mapping)


def _components(axes: tuple[StridedDim, ...], n: int, step: int) -> tuple[Component, ...] | None:
    """Components of one dimension of `n` entries, `step` apart in the storage."""
    if n <= 1:
        return ()
    if step == 0:  # expanded: the same entry again and again
        return ((FOREIGN, n),)
    components: list[Component] = []
    for dim, size, stride in reversed(axes):  # the fastest axis first
        if stride > step or step >= stride * size:
            continue  # one step leaves this axis, or is finer than it
        if step % stride:
            return None
        # How many steps fit on what this axis has, rounded up: the last may begin before its end.
        available = -(-size * stride // step)
        if n <= available:
            return ((dim, n), *reversed(components))
        # Entries are left over. They lie on the next slower axis, if this one is used up whole
        # and the next one begins exactly where it ends.
        if n % available or available * step != size * stride:
            return None
        components.append((dim, available))
        n, step = n // available, stride * size
    return None


def broadcast_mapping(mapping: DimMapping, size: Sequence[int], out: Sequence[int]) -> DimMapping:
    """`mapping` of a tensor of `size` when it is broadcast to `out`, aligned at the right."""
    missing = len(out) - len(size)
    wide: list[tuple[Component, ...]] = [foreign(n) for n in out[:missing]]
    for components, n, to in zip(mapping, size, out[missing:], strict=True):
        wide.append(foreign(to) if n != to else components)
    return tuple(wide)


def foreign(n: int) -> tuple[Component, ...]:
    """The components of a dimension of `n` entries that no dimension of the parameter made."""
    return ((FOREIGN, n),) if n > 1 else ()


def resized_mapping(
    mapping: DimMapping, size: Sequence[int], out: Sequence[int]
) -> DimMapping | None:
    """`mapping` after resampling, padding or joining to `out`; None if a merged one changed."""
    resized: list[tuple[Component, ...]] = []
    for components, n, to in zip(mapping, size, out, strict=True):
        dims = {dim for dim, _ in components}
        if n == to:
            resized.append(components)
        elif len(dims) <= 1:
            resized.append(((dims.pop() if dims else FOREIGN, to),))
        else:
            return None
    return tuple(resized)


def extents(mapping: Sequence[tuple[Component, ...]]) -> dict[int, int]:
    """How many entries of each of the parameter's dimensions the mapped dimensions span."""
    spans: dict[int, int] = {}
    for components in mapping:
        for dim, extent in components:
            if dim != FOREIGN:
                spans[dim] = spans.get(dim, 1) * extent
    return spans


def param_rank(mapping: Sequence[tuple[Component, ...]]) -> int:
    """How many dimensions stem from the parameter."""
    return sum(bool(extents([components])) for components in mapping)


class UseKind(StrEnum):
    """What an operation does with a parameter."""

    CONTRACTION = "contraction"
    """Summed over, as in a matrix product."""
    LOOKUP = "lookup"
    """Rows are picked by their numbers."""
    MUL = "mul"
    ADD = "add"
    INSERT = "insert"
    """Set among the activations, as by cat."""
    STATISTIC = "statistic"
    """Reduced to a sum, a mean or a norm of its own."""
    UNKNOWN = "unknown"
    """Not understood; `Use.op` says why."""


ELEMENTWISE = (UseKind.MUL, UseKind.ADD, UseKind.INSERT)

UseSignature = tuple[UseKind, tuple[int, ...]]
"""Kind of a use, and the dimensions of the parameter that it sums over."""


@dataclass(kw_only=True)
class Use:
    """One use of a parameter by the operation `op`.

    `in_extents`, `out_extents` and `group_extents` give the entries, by dimension of the
    parameter, that are summed over (or looked up), that feed outputs, and that choose one of
    several independent weights. `fan_out_factor` counts further outputs that an input feeds.
    `input_id` identifies the other operand's storage, and `depends_on_input` tells that this
    operand depends on the model's inputs. `shifted`, `transformed` and `bent` are the layout's.
    `summed` and `used_unsummed` tell what later operations do with an element-wise product.
    `module` is the module that holds the parameter and ran the operation, if one did. `factor` is
    the product of the numbers that the model multiplies the other operand and the result by;
    `multiplied` are these numbers as they were recorded.
    """

    kind: UseKind
    op: str
    in_extents: dict[int, int] = field(default_factory=dict)
    out_extents: dict[int, int] = field(default_factory=dict)
    group_extents: dict[int, int] = field(default_factory=dict)
    fan_in: int = 1
    fan_out_factor: int = 1
    input_id: int = 0
    depends_on_input: bool = True
    shifted: bool = False
    transformed: bool = False
    bent: bool = False
    summed: bool = False
    used_unsummed: bool = False
    module: str = ""
    factor: float = 1.0
    multiplied: list[Factor] = field(default_factory=list)

    @property
    def fan_out(self) -> int:
        """Entries that one input feeds, through this use alone."""
        return prod(self.out_extents.values()) * self.fan_out_factor

    @property
    def signature(self) -> UseSignature:
        """Uses with the same signature are alike; a product that is summed is a contraction."""
        kind = UseKind.CONTRACTION if self.summed else self.kind
        return kind, tuple(sorted(self.in_extents))

    def fans(self, width_dims: Sequence[int]) -> tuple[int, int]:
        """Fan-in and fan-out; a table that is added feeds its dimensions that grow."""
        if self.signature[0] in ELEMENTWISE:
            spans = self.out_extents
            wide = [n for dim, n in spans.items() if dim in width_dims] or [*spans.values()][-1:]
            return 1, prod(wide)
        return self.fan_in, self.fan_out


class Undecided(Exception):
    """Why a parameter has no role; the caller names the parameter."""


def decisive_uses(uses: Sequence[Use], shape: Sequence[int]) -> dict[UseSignature, Use]:
    """The uses that count, one for each signature; Undecided if one is not understood.

    A use by the model's inputs outweighs one by constants (the norm of a spectral norm), and
    any use outweighs a mere statistic of the parameter.
    """
    for use in uses:
        if use.kind is UseKind.UNKNOWN:
            raise Undecided(f"it goes through {use.op}")
        if use.summed and use.used_unsummed:
            raise Undecided("its element-wise product is both summed and used as it is")
    counted = [use for use in uses if use.kind is not UseKind.STATISTIC]
    if uses and not counted:
        raise Undecided(f"only a statistic of it is used ({uses[0].op})")
    by_input = [use for use in counted if use.depends_on_input]
    alike: dict[UseSignature, list[Use]] = {}
    for use in by_input or counted:
        alike.setdefault(use.signature, []).append(use)
    return {signature: _merged(same, shape) for signature, same in alike.items()}


def _merged(uses: Sequence[Use], shape: Sequence[int]) -> Use:
    """One use for several alike: the one of largest fans, with all outputs that an input feeds.

    Slices of a fused projection (q, k and v in one weight) are separate uses of one parameter.
    Those that meet the same input count together: the input feeds all their outputs.
    """
    # The larger fan-in asks for the smaller start and rate: safe for the other slices too.
    largest = max(uses, key=lambda use: (use.fan_in, use.fan_out))
    outs_by_input: dict[int, dict[int, int]] = {}
    for use in uses:
        total = outs_by_input.setdefault(use.input_id, {})
        for dim, n in use.out_extents.items():
            # A slice that is used twice must not count twice: no more than the whole dimension,
            # less what the use sums over or what its groups take of it.
            taken = prod(spans.get(dim, 1) for spans in (use.in_extents, use.group_extents))
            total[dim] = min(max(shape[dim] // taken, n), total.get(dim, 0) + n)
    outs = max(outs_by_input.values(), key=lambda spans: prod(spans.values()))
    return replace(largest, out_extents=outs)


@dataclass(frozen=True, kw_only=True)
class ActivationInfo:
    """What is known of a storage that is no weight.

    `source_params` are the contracted parameters whose output it is, and `operand_params` those
    of them whose output was not turned into a choice (by a softmax, say) on the way; of a sigmoid
    of them, alone, `sigmoid_of` are these.
    `elementwise_products` are products with a parameter, entry by entry, which may still be
    summed: a contraction then. `groups` lay out the independent weights that made it (stacked
    experts). `factor` is what the model multiplied it by, as numbers, since the last other
    operation (`multiplied`, as recorded), and `contractions` are the uses whose bare output it is.
    Of a bare product of two activations `summed_over` counts the entries summed over, else 0.
    """

    depends_on_input: bool
    source_params: frozenset[str] = frozenset()
    elementwise_products: tuple[tuple[ParamLayout, Use], ...] = ()
    groups: tuple[ParamLayout, ...] = ()
    operand_params: frozenset[str] = frozenset()
    sigmoid_of: frozenset[str] = frozenset()
    factor: float = 1.0
    contractions: tuple[Use, ...] = ()
    multiplied: tuple[Factor, ...] = ()
    summed_over: int = 0


UNTRACKED = ActivationInfo(depends_on_input=False)


@dataclass(frozen=True)
class ActivationProduct:
    """A contraction of two activations over `size` entries, outputs of `source_params`."""

    size: int
    source_params: frozenset[str]


@dataclass(kw_only=True)
class Flow:
    """Where the outputs of parameters go, by their names.

    `products` counts the inner products with other activations that an output takes part in.
    `reaches` are the entries of all results that they go into, the next contraction's too, as they
    are or as a choice; `meets` leaves out choices. `fed_by` has the parameters whose outputs one is
    contracted with, `takes` leaves out choices; `gains` has those that multiply a larger one.
    """

    activation_products: list[ActivationProduct] = field(default_factory=list)
    products: Counter[str] = field(default_factory=Counter)
    meets: Counter[str] = field(default_factory=Counter)
    reaches: Counter[str] = field(default_factory=Counter)
    fed_by: dict[str, set[str]] = field(default_factory=dict)
    takes: dict[str, set[str]] = field(default_factory=dict)
    gains: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class OpCall:
    """An ATen operation that ran: its name without a trailing underscore, and its tensors."""

    name: str
    args: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class OutputInfo:
    """What a rule says of an operation's outputs; `source_params` None: those of the inputs.

    `is_whole_weight` tells that inputs chose which weight it is, but made none of its entries.
    `takes_data` tells that a parameter took the place of the model's inputs (learned queries).
    `contractions` are the uses whose bare output it is, and `summed_over` is an `ActivationInfo`'s.
    """

    source_params: frozenset[str] | None = None
    elementwise_products: tuple[tuple[ParamLayout, Use], ...] = ()
    groups: tuple[ParamLayout, ...] = ()
    is_whole_weight: bool = False
    takes_data: bool = False
    contractions: tuple[Use, ...] = ()
    summed_over: int = 0


def storage_id(tensor: Tensor) -> int:
    """The address of the tensor's storage; views of one storage share it."""
    # Not `data_ptr`, which is 0 for all tensors on the meta device.
    return int(tensor.untyped_storage()._cdata)


class TraceState:
    """Records of storages, and of what every parameter was used for."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        inputs: Iterable[Tensor],
        numbers: Numbers | None = None,
    ) -> None:
        """Each parameter has a storage of its own; `inputs` are the model's."""
        self.numbers = numbers or Numbers()
        self.running = RunningModules()
        self.weights: dict[int, tuple[ParamLayout, ...]] = {}
        self.activations: dict[int, ActivationInfo] = {}
        self.uses: dict[str, list[Use]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.flow = Flow()
        self.meets = Counter[frozenset[str]]()
        self.reaches = Counter[frozenset[str]]()
        """Those of the flow, of all parameters that go into a result together."""
        self._alive: dict[int, Tensor] = {}
        self._parameters: dict[str, int] = {}
        for name, tensor in parameters:
            self.uses[name], self.shapes[name] = [], tuple(tensor.shape)
            self._parameters[name] = self._keep(tensor)
            self.weights[self._parameters[name]] = (ParamLayout.of_parameter(name, tensor),)
        for tensor in inputs:
            self.activations[self._keep(tensor)] = ActivationInfo(depends_on_input=True)

    def _keep(self, tensor: Tensor) -> int:
        address = storage_id(tensor)
        self._alive.setdefault(address, tensor)
        return address

    def module_with(self, name: str) -> str:
        """The module that runs if it holds the parameter `name` itself, under any name; else ""."""
        parameters = (p for p in self.running.module._parameters.values() if p is not None)
        here = any(storage_id(p) == self._parameters[name] for p in parameters)
        return self.running.name if here else ""

    def is_held(self, weight: Tensor) -> bool:
        """Whether the module that runs holds the parameters in `weight` itself."""
        parameters = self.running.module._parameters.values()
        parameter_ids = {storage_id(parameter) for parameter in parameters if parameter is not None}
        layouts = self.weights.get(storage_id(weight), ())
        return bool(layouts) and all(self._parameters[at.name] in parameter_ids for at in layouts)

    def number(self, thing: object) -> float | None:
        """The number that `thing` is or holds, which is where a known parameter starts."""
        if isinstance(thing, Tensor):
            if storage_id(thing) in self.activations:
                return None
            value = self.numbers.value(thing)
            return plain(thing) if value is None and not self.is_weight(thing) else value
        return plain(thing)

    def tracks(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a weight or an activation."""
        return storage_id(tensor) in self.weights or storage_id(tensor) in self.activations

    def is_weight(self, thing: object) -> bool:
        """Whether `thing` is a tensor made of parameters and constants alone."""
        return isinstance(thing, Tensor) and storage_id(thing) in self.weights

    def activation(self, tensor: Tensor) -> ActivationInfo:
        """What is known of `tensor` as an activation; UNTRACKED of any other."""
        return self.activations.get(storage_id(tensor), UNTRACKED)

    def depends_on_input(self, tensors: Iterable[Tensor]) -> bool:
        """Whether any of `tensors` depends on the model's inputs."""
        return any(self.activation(tensor).depends_on_input for tensor in tensors)

    def source_params(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        """The contracted parameters whose outputs `tensors` are."""
        return frozenset[str]().union(*(self.activation(t).source_params for t in tensors))

    def operand_params(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        """The contracted parameters whose outputs `tensors` are, by no choice."""
        return frozenset[str]().union(*(self.activation(t).operand_params for t in tensors))

    def record_product(self, operands: tuple[Tensor, ...], size: int, count: int) -> None:
        """Record `count` inner products of activations, each over `size` entries."""
        product = ActivationProduct(size, self.source_params(operands))
        self.flow.activation_products.append(product)
        self.flow.products.update(dict.fromkeys(self.operand_params(operands), count))

    def params_in(self, weight: Tensor) -> Iterator[tuple[ParamLayout, DimMapping]]:
        """The parameters in `weight`; one whose dimensions are mixed is recorded as unknown."""
        for layout in self.weights.get(storage_id(weight), ()):
            mapping = layout.mapping(weight)
            if mapping is None:
                self.record_unknown(layout.name, "a reshape that mixes its dimensions")
            else:
                yield layout, mapping

    def record(self, name: str, use: Use, summed: Tensor | None = None) -> None:
        """Record a use of the parameter `name`, whose contraction sums over `summed`."""
        self.uses[name].append(use)
        if summed is not None:
            info, flow = self.activation(summed), self.flow
            flow.fed_by.setdefault(name, set()).update(info.source_params)
            flow.takes.setdefault(name, set()).update(info.operand_params, info.sigmoid_of)

    def record_unknown(self, name: str, why: str) -> None:
        """Record a use of the parameter `name` that is not understood."""
        self.record(name, Use(kind=UseKind.UNKNOWN, op=why))

    def record_unsupported(self, call: OpCall) -> None:
        """Record that every parameter in `call` goes through an operation without a rule."""
        for tensor in call.inputs:
            for layout in self.weights.get(storage_id(tensor), ()):
                why = f"aten.{call.name}, for which there is no rule"
                self.record_unknown(layout.name, why)

    def record_derived(self, layout: ParamLayout, mapping: DimMapping, out: Tensor) -> None:
        """Record that the weight `out` is made of the parameter in `layout`, with `mapping`."""
        derived = layout.placed(mapping, out)
        address = self._keep(out)
        recorded = self.weights.get(address, ())
        # W / |W| holds W and also its norm, whose few dimensions say nothing more of W's use.
        same = [other for other in recorded if other.name == derived.name]
        covered = any(_param_dims(derived) < _param_dims(other) for other in same)
        if derived not in recorded and not covered:
            self.weights[address] = (*recorded, derived)

    def record_outputs(self, outputs: Iterable[Tensor], info: ActivationInfo) -> None:
        """Record what the outputs of an operation are, unless they are weights already."""
        for tensor in outputs:
            address = self._keep(tensor)
            if info.depends_on_input:  # written into in place, a weight is none any more
                self.weights.pop(address, None)
            if address not in self.weights:
                self.activations[address] = info

    def record_unsummed(self, tensors: Iterable[Tensor]) -> None:
        """Record that element-wise products are used as they are, not only summed."""
        for tensor in tensors:
            for _, use in self.activation(tensor).elementwise_products:
                use.used_unsummed = True

    def group_dims(self, tensor: Tensor) -> set[int]:
        """Dimensions of an activation, from the right (-1 ..), that count independent weights."""
        dims: set[int] = set()
        for layout in self.activation(tensor).groups:
            mapping = layout.mapping(tensor) or ()
            dims |= {i - len(mapping) for i, group in enumerate(mapping) if extents([group])}
        return dims


def _param_dims(layout: ParamLayout) -> set[int]:
    return {axis.dim for axis in layout.axes if axis.dim != FOREIGN}
