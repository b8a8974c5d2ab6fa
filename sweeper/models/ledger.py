"""What is known of every storage while a model runs, and the uses of its parameters so far.

A storage holds a weight (a function of parameters and constants alone), an activation, or a
constant, which is not kept. Storages are known by address, so each is kept alive on record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sweeper.models.provenance import FOREIGN, Dims, Layout, Use, extents, lay, of_parameter, read


@dataclass(frozen=True, kw_only=True)
class Activation:
    """What is known of a storage that is no weight.

    `live` tells that it depends on the model's inputs; `sources` are the contracted parameters
    whose output it is; `products` are element-wise products with a parameter, which may still
    be summed; `groups` lays out the independent weights that made it (stacked experts).
    """

    live: bool
    sources: frozenset[str] = frozenset()
    products: tuple[tuple[Layout, Use], ...] = ()
    groups: tuple[Layout, ...] = ()


@dataclass(frozen=True)
class Product:
    """A contraction of two activations over `size` entries, made by the parameters `sources`."""

    size: int
    sources: frozenset[str]


@dataclass(frozen=True)
class Call:
    """One operation: its name without a trailing underscore, what it was given, what it made."""

    name: str
    args: tuple[Any, ...]
    given: tuple[Tensor, ...]
    out: tuple[Tensor, ...]


@dataclass(frozen=True)
class Made:
    """What a rule knows of the outputs; `sources` None: those of the inputs.

    `chosen` tells that they are whole weights, though inputs chose which.
    """

    sources: frozenset[str] | None = None
    products: tuple[tuple[Layout, Use], ...] = ()
    groups: tuple[Layout, ...] = ()
    chosen: bool = False


def key(tensor: Tensor) -> int:
    """The address of the tensor's storage; views of one storage share it."""
    return int(tensor.untyped_storage()._cdata)


class Ledger:
    """Records of storages, and of what every parameter was used for."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]], inputs: Iterable[Tensor]) -> None:
        """Each parameter has a storage of its own; `inputs` are the model's."""
        self.weights: dict[int, tuple[Layout, ...]] = {}
        self.activations: dict[int, Activation] = {}
        self.uses: dict[str, list[Use]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.products: list[Product] = []
        self.fed: set[str] = set()
        """Parameters whose output reaches another contraction."""
        self._alive: dict[int, Tensor] = {}
        for name, tensor in parameters:
            self.uses[name], self.shapes[name] = [], tuple(tensor.shape)
            layout = of_parameter(name, tensor.shape, tensor.stride())
            self.weights[self._keep(tensor)] = (layout,)
        for tensor in inputs:
            self.activations[self._keep(tensor)] = Activation(live=True)

    def _keep(self, tensor: Tensor) -> int:
        address = key(tensor)
        self._alive.setdefault(address, tensor)
        return address

    def knows(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a weight or an activation."""
        return key(tensor) in self.weights or key(tensor) in self.activations

    def is_weight(self, thing: object) -> bool:
        """Whether `thing` is a tensor made of parameters and constants alone."""
        return isinstance(thing, Tensor) and key(thing) in self.weights

    def is_live(self, tensors: Iterable[Tensor]) -> bool:
        """Whether any of `tensors` depends on the model's inputs."""
        found = (self.activations.get(key(t)) for t in tensors)
        return any(activation is not None and activation.live for activation in found)

    def sources(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        """The contracted parameters whose outputs `tensors` are."""
        found = (self.activations.get(key(t)) for t in tensors)
        return frozenset[str]().union(*(a.sources for a in found if a is not None))

    def dims(self, tensor: Tensor) -> Iterator[tuple[Layout, Dims]]:
        """The parameters in the weight `tensor`; one whose dimensions are mixed is refused."""
        for layout in self.weights.get(key(tensor), ()):
            dims = read(layout, tensor.shape, tensor.stride())
            if dims is None:
                self.refuse(layout.name, "a reshape that mixes its dimensions")
            else:
                yield layout, dims

    def refuse(self, name: str, why: str) -> None:
        """Record a use of the parameter `name` that is not understood."""
        self.record(name, Use("unknown", why, {}, {}, {}))

    def refuse_all(self, call: Call) -> None:
        """Refuse every parameter that an operation without a rule is given."""
        for tensor in call.given:
            for layout in self.weights.get(key(tensor), ()):
                self.refuse(layout.name, f"aten.{call.name}, for which there is no rule")

    def record(self, name: str, use: Use) -> None:
        """Record a use of the parameter `name`."""
        self.uses[name].append(use)

    def hand_on(self, layout: Layout, dims: Dims, out: Tensor) -> None:
        """Record that `out` is a weight made of the parameter in `layout`, with `dims`."""
        moved = replace(layout, pieces=lay(dims, out.shape, out.stride()))
        address = self._keep(out)
        held = self.weights.get(address, ())
        # W / |W| holds W and also its norm, whose few dimensions say nothing more of W's use.
        same = [other for other in held if other.name == moved.name]
        covered = any(_labels(moved) < _labels(other) for other in same)
        if moved not in held and not covered:
            self.weights[address] = (*held, moved)

    def settle(self, out: Iterable[Tensor], activation: Activation) -> None:
        """Record what the outputs of an operation are, unless they were handed on as weights."""
        for tensor in out:
            address = self._keep(tensor)
            if activation.live:
                self.weights.pop(address, None)
            if address not in self.weights:
                self.activations[address] = activation

    def keep_products(self, tensors: Iterable[Tensor]) -> None:
        """Record that element-wise products are used as they are, not only summed."""
        for tensor in tensors:
            activation = self.activations.get(key(tensor))
            for _, use in activation.products if activation else ():
                use.kept = True

    def group_dims(self, tensor: Tensor) -> set[int]:
        """Dimensions of an activation, from the right (-1 ..), that count independent weights."""
        activation = self.activations.get(key(tensor))
        found: set[int] = set()
        for layout in activation.groups if activation else ():
            dims = read(layout, tensor.shape, tensor.stride()) or ()
            found |= {i - len(dims) for i, atoms in enumerate(dims) if extents([atoms])}
        return found


def _labels(layout: Layout) -> set[int]:
    return {dim for dim, _, _ in layout.pieces if dim != FOREIGN}
