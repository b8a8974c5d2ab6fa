"""Dimension mapping: which dimension of a parameter every dimension of a tensor stems from.

A `ParamLayout` places the dimensions of a parameter in a storage, as strided axes. A view of that
storage (transpose, split, select, reshape, expand) is mapped from its sizes and strides alone,
however it was made; only operations that copy need a rule of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

FOREIGN = -1
"""Stands for a dimension that no dimension of the parameter made, such as a repetition."""

Component = tuple[int, int]
"""A dimension of the parameter (or FOREIGN), and how many of its entries are meant."""

DimMapping = tuple[tuple[Component, ...], ...]
"""The components of every dimension of a tensor, the slowest first; a dimension of 1 has none."""


class Axis(NamedTuple):
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
    function first (a decay stored as its logarithm).
    """

    name: str
    axes: tuple[Axis, ...] = ()
    indexed: frozenset[int] = frozenset()
    is_gain: bool = False
    shifted: bool = False
    transformed: bool = False

    @classmethod
    def of_parameter(cls, name: str, tensor: Tensor) -> ParamLayout:
        """The layout of the parameter itself: one axis for every dimension."""
        mapping = tuple(((dim, n),) if n > 1 else () for dim, n in enumerate(tensor.shape))
        return cls(name).placed(mapping, tensor)

    def placed(self, mapping: DimMapping, tensor: Tensor) -> ParamLayout:
        """The same parameter in the storage of `tensor`, whose dimensions have `mapping`."""
        axes = []
        for components, n, step in zip(mapping, tensor.shape, tensor.stride(), strict=True):
            if n > 1 and step > 0:
                for dim, extent in reversed(components):
                    axes.append(Axis(dim, extent, step))
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


def _components(axes: tuple[Axis, ...], n: int, step: int) -> tuple[Component, ...] | None:
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
