"""What the trace of a forward pass knows so far: of every storage, and of every parameter's uses.

A storage holds a weight (a function of parameters and constants alone), an activation, or a
constant, which is not tracked. Storages are identified by address. Each one on record is kept
alive: a freed address would soon belong to another tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sweeper.models.classifier.layout import FOREIGN, DimMapping, ParamLayout, extents
from sweeper.models.classifier.numbers import Numbers, plain
from sweeper.models.classifier.uses import Use, UseKind


@dataclass(frozen=True, kw_only=True)
class ActivationInfo:
    """What is known of a storage that is no weight.

    `source_params` are the contracted parameters whose output it is, and `operand_params` those
    of them whose output was not turned into a choice (by a softmax, say) on the way.
    `elementwise_products` are products with a parameter, entry by entry, which may still be
    summed: a contraction then. `groups` lay out the independent weights that made it (stacked
    experts). `factor` is what the model multiplied it by, as numbers, since the last other
    operation, and `contractions` are the uses whose bare output it is.
    """

    depends_on_input: bool
    source_params: frozenset[str] = frozenset()
    elementwise_products: tuple[tuple[ParamLayout, Use], ...] = ()
    groups: tuple[ParamLayout, ...] = ()
    operand_params: frozenset[str] = frozenset()
    factor: float = 1.0
    contractions: tuple[Use, ...] = ()


UNTRACKED = ActivationInfo(depends_on_input=False)


@dataclass(frozen=True)
class ActivationProduct:
    """A contraction of two activations over `size` entries, outputs of `source_params`."""

    size: int
    source_params: frozenset[str]


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
    `contractions` are the uses whose bare output it is.
    """

    source_params: frozenset[str] | None = None
    elementwise_products: tuple[tuple[ParamLayout, Use], ...] = ()
    groups: tuple[ParamLayout, ...] = ()
    is_whole_weight: bool = False
    takes_data: bool = False
    contractions: tuple[Use, ...] = ()


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
        self.modules: list[tuple[str, nn.Module]] = []
        """The modules that run now, the innermost last."""
        self.weights: dict[int, tuple[ParamLayout, ...]] = {}
        self.activations: dict[int, ActivationInfo] = {}
        self.uses: dict[str, list[Use]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.activation_products: list[ActivationProduct] = []
        self.products: dict[str, int] = {}
        """Inner products with other activations that a parameter's output takes part in."""
        self.contracted_again: set[str] = set()
        """Parameters whose output reaches another contraction."""
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

    @property
    def module(self) -> str:
        """The name of the module that runs; "" for the whole model."""
        return self.modules[-1][0] if self.modules else ""

    def module_with(self, name: str) -> str:
        """The module that runs if it holds the parameter `name` itself, under any name; else ""."""
        module, running = self.modules[-1] if self.modules else ("", nn.Module())
        held = (p for p in running._parameters.values() if p is not None)
        return module if any(storage_id(p) == self._parameters[name] for p in held) else ""

    def is_held(self, weight: Tensor) -> bool:
        """Whether the module that runs holds the parameters in `weight` itself."""
        held = self.modules[-1][1]._parameters.values() if self.modules else ()
        own = {storage_id(parameter) for parameter in held if parameter is not None}
        layouts = self.weights.get(storage_id(weight), ())
        return bool(layouts) and all(self._parameters[at.name] in own for at in layouts)

    def number(self, thing: object) -> float | None:
        """The number that `thing` is or holds, which is where a known parameter starts."""
        if isinstance(thing, Tensor):
            if storage_id(thing) in self.activations:
                return None
            known = self.numbers.value(thing)
            return plain(thing) if known is None and not self.is_weight(thing) else known
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
        self.activation_products.append(ActivationProduct(size, self.source_params(operands)))
        for name in self.operand_params(operands):
            self.products[name] = self.products.get(name, 0) + count

    def params_in(self, weight: Tensor) -> Iterator[tuple[ParamLayout, DimMapping]]:
        """The parameters in `weight`; one whose dimensions are mixed is recorded as unknown."""
        for layout in self.weights.get(storage_id(weight), ()):
            mapping = layout.mapping(weight)
            if mapping is None:
                self.record_unknown(layout.name, "a reshape that mixes its dimensions")
            else:
                yield layout, mapping

    def record(self, name: str, use: Use) -> None:
        """Record a use of the parameter `name`."""
        self.uses[name].append(use)

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
