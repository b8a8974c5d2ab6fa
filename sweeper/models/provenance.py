"""Which dimension of a parameter every dimension of a tensor made from it stems from.

A parameter's dimensions are laid into its storage as pieces, each with a stride. Every view of
that storage, however it was made (transpose, split, select, reshape, expand), is then read back
from its sizes and strides alone; only operations that copy need a rule of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

FOREIGN = -1
"""Stands for a dimension that no dimension of the parameter made, such as a repetition."""

Atom = tuple[int, int]
"""A dimension of the parameter (or FOREIGN) and how many of its entries are meant."""

Dims = tuple[tuple[Atom, ...], ...]
"""For every dimension of a tensor its atoms, the slowest first; none for a dimension of 1."""


@dataclass(frozen=True)
class Layout:
    """How the parameter `name` lies in a storage.

    `pieces` are (dimension, size, stride) by falling stride. `picked` are dimensions that were
    indexed by a list. `scale` marks a parameter that multiplies a larger one (a weight norm's
    gain), `shifted` one to which a constant was added (a gain stored as 1 + w), `bent` one that
    went through another function first (a decay stored as its logarithm).
    """

    name: str
    pieces: tuple[tuple[int, int, int], ...]
    picked: frozenset[int] = frozenset()
    scale: bool = False
    shifted: bool = False
    bent: bool = False


def of_parameter(name: str, size: Sequence[int], stride: Sequence[int]) -> Layout:
    """The layout of the parameter itself: one piece for every dimension."""
    dims = tuple(((i, n),) if n > 1 else () for i, n in enumerate(size))
    return Layout(name, lay(dims, size, stride))


def lay(dims: Dims, size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Pieces of a fresh storage whose tensor has `dims`; the inverse of `read`."""
    pieces = []
    for atoms, n, step in zip(dims, size, stride, strict=True):
        if n > 1 and step > 0:
            for dim, extent in reversed(atoms):
                pieces.append((dim, extent, step))
                step *= extent
    return tuple(sorted(pieces, key=lambda piece: -piece[2]))


def read(layout: Layout, size: Sequence[int], stride: Sequence[int]) -> Dims | None:
    """What the dimensions of a view of `layout`'s storage stem from; None if they are mixed."""
    found = []
    for n, step in zip(size, stride, strict=True):
        atoms = _atoms(layout.pieces, n, step)
        if atoms is None:
            return None
        found.append(atoms)
    return tuple(found)


def _atoms(pieces: tuple[tuple[int, int, int], ...], n: int, step: int) -> tuple[Atom, ...] | None:
    """Atoms of one dimension of `n` entries, `step` apart in the storage."""
    if n <= 1:
        return ()
    if step == 0:
        return ((FOREIGN, n),)
    found: list[Atom] = []
    for dim, size, stride in reversed(pieces):
        if stride > step or step >= stride * size:
            continue
        if step % stride:
            return None
        have = -(-size * stride // step)
        if n <= have:
            return ((dim, n), *reversed(found))
        if n % have or have * step != size * stride:
            return None
        found.append((dim, have))
        n, step = n // have, stride * size
    return None


def broadcast(dims: Dims, size: Sequence[int], out: Sequence[int]) -> Dims:
    """`dims` of a tensor of `size` when it is broadcast to `out`, aligned at the right."""
    missing = len(out) - len(size)
    wide: list[tuple[Atom, ...]] = [((FOREIGN, n),) if n > 1 else () for n in out[:missing]]
    for atoms, n, to in zip(dims, size, out[missing:], strict=True):
        wide.append(((FOREIGN, to),) if n != to else atoms)
    return tuple(wide)


def resized(dims: Dims, size: Sequence[int], out: Sequence[int]) -> Dims | None:
    """`dims` after a resampling, padding or joining to `out`; None if a mixed dimension changed."""
    found: list[tuple[Atom, ...]] = []
    for atoms, n, to in zip(dims, size, out, strict=True):
        labels = {dim for dim, _ in atoms}
        if n == to:
            found.append(atoms)
        elif len(labels) <= 1:
            found.append(((labels.pop() if labels else FOREIGN, to),))
        else:
            return None
    return tuple(found)


def extents(dims: Sequence[tuple[Atom, ...]]) -> dict[int, int]:
    """How many entries of each of the parameter's dimensions the given dimensions span."""
    found: dict[int, int] = {}
    for atoms in dims:
        for dim, extent in atoms:
            if dim != FOREIGN:
                found[dim] = found.get(dim, 1) * extent
    return found


def rank(dims: Dims) -> int:
    """How many dimensions stem from the parameter."""
    return sum(bool(extents([atoms])) for atoms in dims)


@dataclass
class Use:
    """One use of a parameter.

    `kind` is "sum" (contracted), "lookup", "mul", "add", "join" (element by element, or set
    beside the activations), "reduced" or "unknown"; `op` is the operation. `ins`, `outs` and
    `groups` give the entries, by dimension of the parameter, that are summed over, that feed
    outputs, and that choose one of several independent weights. `key` identifies the input and
    `live` tells that it depends on the model's inputs. `factor_out` counts further outputs that
    an input feeds; `shifted` and `bent` are the layout's. `summed` and `kept` tell what becomes
    of a product's terms.
    """

    kind: str
    op: str
    ins: dict[int, int]
    outs: dict[int, int]
    groups: dict[int, int]
    fan_in: int = 1
    factor_out: int = 1
    key: int = 0
    live: bool = True
    shifted: bool = False
    bent: bool = False
    summed: bool = False
    kept: bool = False

    @property
    def fan_out(self) -> int:
        """Entries that one input feeds, through this use alone."""
        return prod(self.outs.values()) * self.factor_out
