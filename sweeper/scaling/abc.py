"""Exponents of width: the learning rate's follows from (a, b), the optimizer and the alignment.

Everett et al. (arXiv:2407.05872): a weight acts as `n^-a W x`, `W ~ N(0, n^-2b)`, its learning
rate goes as `n^-c` and its gradient's entries as `n^-g`. A table of (a, b) by role is a gauge:
tables that the symmetry of `shift` connects train alike and differ in what is written where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sweeper.scaling.spec import Role, Update

Alignment = Literal["full", "none"]
"""Whether a layer's input has turned towards its update (full) or is as good as random."""

Gauge = Mapping[Role, tuple[float, float]]
"""(a, b) for embedding, hidden and readout."""

EMBEDDING, HIDDEN, READOUT = Role.EMBEDDING, Role.HIDDEN, Role.READOUT
STANDARD: Gauge = {EMBEDDING: (0, 0), HIDDEN: (0, 0.5), READOUT: (0, 0.5)}
NTK: Gauge = {EMBEDDING: (0, 0), HIDDEN: (0.5, 0), READOUT: (0.5, 0)}
MUP: Gauge = {EMBEDDING: (-0.5, 0.5), HIDDEN: (0, 0.5), READOUT: (0.5, 0.5)}
"""Erratum E1: the readout is (1/2, 1/2); the printed (1/2, 0) trains as the standard one."""
MEAN_FIELD: Gauge = {EMBEDDING: (0, 0), HIDDEN: (0.5, 0), READOUT: (1, 0)}


@dataclass(frozen=True, kw_only=True)
class Exponents:
    """`n^-a` multiplies the weight, `n^-b` its init, `n^-c` its rate; its gradient is `n^-g`."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    g: float = 0.0


def movement(role: Role, update: Update, alignment: Alignment) -> float:
    """k: an update with entries of order 1 moves a layer's output by n^k.

    Contracting n terms gives n when input and update are aligned and n^1/2 when they are not;
    an embedding contracts nothing. An orthogonalised hidden update has full rank, so that no
    input is aligned with more than n^1/2 of it.
    """
    if role is EMBEDDING:
        return 0.0
    full_rank = update is Update.ORTHOGONAL and role is HIDDEN
    return 1.0 if alignment == "full" and not full_rank else 0.5


def update_exponent(role: Role, update: Update, b: float, g: float) -> float:
    """u: an optimizer's update, before its learning rate, has entries of order n^-u.

    A matrix with unit singular values has entries n^-1/2 where one or both of its sides grow;
    one of unit Frobenius norm has n^-1/2 where one side grows, n^-1 where both do.
    """
    if update is Update.GRADIENT:
        return g
    if update is Update.PARAMETER:
        return b
    if update is Update.SIGN:
        return 0.0
    return 1.0 if update is Update.NORMALIZED and role is HIDDEN else 0.5


def exponents(
    gauge: Gauge, role: Role, update: Update = Update.SIGN, alignment: Alignment = "full"
) -> Exponents:
    """Exponents of a layer: its output must move by O(1), so `c = k - a - u` (section 2.3)."""
    if role not in gauge:
        return Exponents()
    if role is READOUT:
        return _readout(gauge, update, alignment)
    a, b = gauge[role]
    g = a + _backward(gauge, update, alignment)
    u = update_exponent(role, update, b, g)
    return Exponents(a=a, b=b, c=movement(role, update, alignment) - a - u, g=g)


def _readout(gauge: Gauge, update: Update, alignment: Alignment) -> Exponents:
    """The readout's: its gradient is its multiplier times an activation of order 1.

    Under SGD c = k - 2a alone would let the update outgrow the initial weights in the backward
    pass, and every other layer would have to pay with its own rate. The largest sum of rates,
    the linear programme of Everett et al. (Appendix), holds c at b - a where that is more.
    """
    a, b = gauge[READOUT]
    c = movement(READOUT, update, alignment) - a - update_exponent(READOUT, update, b, a)
    return Exponents(a=a, b=b, c=max(c, b - a) if update is Update.GRADIENT else c, g=a)


def _backward(gauge: Gauge, update: Update, alignment: Alignment) -> float:
    """The gradient of the activations goes as n^-this: the readout's weights or their update."""
    out = _readout(gauge, update, alignment)
    moved = out.a + out.c + update_exponent(READOUT, update, out.b, out.g)
    return min(out.a + out.b, moved)


def shift(e: Exponents, theta: float, update: Update) -> Exponents:
    """The abc symmetry: `theta` moved from the init to the multiplier; no loss of a run changes.

    c changes by how the update follows the weight: -theta when it does not (Adam, Muon), -2
    theta when it goes as the gradient (SGD), not at all when it goes as the weight (Adafactor).
    """
    follows = {Update.GRADIENT: 2, Update.PARAMETER: 0}.get(update, 1)
    return Exponents(a=e.a + theta, b=e.b - theta, c=e.c - follows * theta, g=e.g + theta)
