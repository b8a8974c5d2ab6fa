"""Exponents of width: the learning rate's follows from (a, b), the optimizer and the alignment.

Everett et al. (arXiv:2407.05872): a weight acts as `n^-a W x`, `W ~ N(0, n^-2b)`, its learning
rate goes as `n^-c` and its gradient's entries as `n^-g`. A parameterization is a table of (a, b)
by role. Tables that the abc symmetry (`shift`) connects are equivalent: they train alike and
differ in what is written where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from sweeper.scaling.spec import Role, Update

Alignment = Literal["full", "none"]
"""Whether a layer's input has turned towards its update (full) or is as good as random."""

ABExponents = Mapping[Role, tuple[float, float]]
"""(a, b) for embedding, hidden and readout."""

EMBEDDING, HIDDEN, READOUT = Role.EMBEDDING, Role.HIDDEN, Role.READOUT
STANDARD: ABExponents = {EMBEDDING: (0, 0), HIDDEN: (0, 0.5), READOUT: (0, 0.5)}
NTK: ABExponents = {EMBEDDING: (0, 0), HIDDEN: (0.5, 0), READOUT: (0.5, 0)}
MUP: ABExponents = {EMBEDDING: (-0.5, 0.5), HIDDEN: (0, 0.5), READOUT: (0.5, 0.5)}
"""The readout is (1/2, 1/2): (1/2, 0) trains as `STANDARD` does (erratum E1, docs/papers.md)."""
MEAN_FIELD: ABExponents = {EMBEDDING: (0, 0), HIDDEN: (0.5, 0), READOUT: (1, 0)}


@dataclass(frozen=True, kw_only=True)
class Exponents:
    """`n^-a` multiplies the weight, `n^-b` its init, `n^-c` its rate; its gradient is `n^-g`."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    g: float = 0.0


def alignment_exponent(role: Role, update: Update, alignment: Alignment) -> float:
    """k: an update with entries of order 1 moves a layer's output by n^k.

    Contracting n terms gives n when input and update are aligned and n^1/2 when they are not;
    an embedding contracts nothing. An orthogonalised hidden update has full rank, so that no
    input is aligned with more than n^1/2 of it.
    """
    if role is EMBEDDING:
        return 0.0
    full_rank = update.orthogonal and role is HIDDEN
    return 1.0 if alignment == "full" and not full_rank else 0.5


def update_exponent(role: Role, update: Update, b: float, g: float) -> float:
    """u: an optimizer's update, before its learning rate, has entries of order n^-u.

    A matrix with unit singular values has entries n^-1/2 where one or both of its sides grow;
    one of unit Frobenius norm has n^-1/2 where one side grows, n^-1 where both do.
    What is relative to the weight, or to its norm, has the weight's own n^-b.
    """
    if update is Update.GRADIENT:
        return g
    if update.relative:
        return b
    if update is Update.SIGN:
        return 0.0
    return 1.0 if update is Update.NORMALIZED and role is HIDDEN else 0.5


# Worked example, muP's hidden weights under Adam with full alignment: (a, b) = (0, 1/2), k = 1 and
# u = 0, hence c = 1. A rate of 1/n: n entries of a step, aligned with their input, add up to O(1).
def exponents(
    ab: ABExponents, role: Role, update: Update = Update.SIGN, alignment: Alignment = "full"
) -> Exponents:
    """Exponents of a layer: a step must move its output by O(1).

    The step n^-c n^-u, multiplied by n^-a and contracted to n^k, is of order 1 when
    `c = k - a - u`. Everett et al.'s table of learning rates by optimizer is this equation for
    u = g (SGD), 0 (Adam) and b (Adafactor).
    """
    if role not in ab:
        return Exponents()
    if role is READOUT:
        return _readout(ab, update, alignment)
    a, b = ab[role]
    # d(loss)/dW is the multiplier, times the gradient of the layer's output, times its input,
    # whose entries are of order 1.
    g = a + _activation_gradient(ab, update, alignment)
    u = update_exponent(role, update, b, g)
    return Exponents(a=a, b=b, c=alignment_exponent(role, update, alignment) - a - u, g=g)


def _readout(ab: ABExponents, update: Update, alignment: Alignment) -> Exponents:
    """The readout's: its gradient is its multiplier times an activation of order 1.

    Under SGD c = k - 2a alone would let the update outgrow the initial weights in the backward
    pass, and every other layer would have to pay with its learning rate. The largest sum of
    rates, the linear programme of Everett et al. (Appendix), holds c at b - a where that is more.
    """
    # muP without alignment: k - 2a = 1/2 - 1 would let the rate rise as n^1/2; b - a = 0 holds it.
    a, b = ab[READOUT]
    c = alignment_exponent(READOUT, update, alignment) - a - update_exponent(READOUT, update, b, a)
    return Exponents(a=a, b=b, c=max(c, b - a) if update is Update.GRADIENT else c, g=a)


def _activation_gradient(ab: ABExponents, update: Update, alignment: Alignment) -> float:
    """The gradient of the activations goes as n^-this.

    The readout hands it down through its weights, n^-(a+b), and through what training adds to
    them, n^-(a+c+u): the larger of the two, which has the smaller exponent, is what counts.
    Hidden layers pass it on unchanged, as each contracts n terms of n^-1/2 without alignment.
    """
    readout = _readout(ab, update, alignment)
    u = update_exponent(READOUT, update, readout.b, readout.g)
    return min(readout.a + readout.b, readout.a + readout.c + u)


def shape_factor(ratio: float, update: Update, alignment: Alignment) -> float:
    """The rate of a hidden matrix [out, in], out / in = `ratio`, over that of a square one.

    What `exponents` say of hidden weights is for sides that grow alike. D with k = min(out, in)
    singular values of 1 keeps the length of an x in its rows: RMS(D x) = sqrt(in / out) RMS(x),
    so that the rate goes as sqrt(out / in). An x that it has not seen has k / in of its square in
    the rows: sqrt(out / k). MuonH's D has the Frobenius norm of a weight of fan-in^-1/2, sqrt(out):
    singular values of sqrt(out / k), by which the rate is divided.
    """
    if not (update.orthogonal or update is Update.NORMALIZED):
        return 1.0
    root, wide = sqrt(ratio), sqrt(max(1.0, ratio))
    rate = wide if update.orthogonal and alignment == "none" else root
    return rate / wide if update.holds_norm else rate


def shift(e: Exponents, theta: float, update: Update) -> Exponents:
    """The abc symmetry: `theta` moved from the init to the multiplier; no loss of a run changes.

    c changes by how the update follows the weight: -theta when it does not (Adam, Muon), -2 theta
    when it goes as the gradient (SGD), not at all when it goes as the weight (Adafactor, AdamH).
    `prescription.absorbed_factors` is the same at one width, for a multiplier in numbers.
    """
    follows = 0 if update.relative else 2 if update is Update.GRADIENT else 1
    return Exponents(a=e.a + theta, b=e.b - theta, c=e.c - follows * theta, g=e.g + theta)
