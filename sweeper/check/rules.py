"""Every printed learning-rate rule measured: which move a layer alike whatever its shape?

A step of a linear layer [d_out, d_in] moves its outputs, on the inputs that its gradient is from,
by some RMS; a rule is right for a kind of update when that RMS is the same for every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeper.scaling.spec import Update
from sweeper.scaling.spectral import RULES

Array = NDArray[np.float32]
Shape = tuple[int, int]
"""(d_out, d_in)."""

SHAPES: tuple[Shape, ...] = ((256, 256), (1024, 1024), (256, 1024), (1024, 256), (16, 1024))
RULES_AND_UPDATES: tuple[tuple[str, Update], ...] = (
    ("inverse_fan_in", Update.SIGN),
    ("inverse_root_product", Update.SIGN),
    ("inverse_root_fan_in", Update.SIGN),
    ("root_ratio", Update.ORTHOGONAL),
    ("root_ratio_floored", Update.ORTHOGONAL),
    ("root_max", Update.ORTHOGONAL),
    ("root_ratio", Update.NORMALIZED),
)
"""Rules as they are printed, each with the updates that it is printed for."""
BATCH_SIZES: Mapping[Update, int] = {Update.SIGN: 8, Update.ORTHOGONAL: 8, Update.NORMALIZED: 1}
"""Inputs in a gradient. Several would share a unit Frobenius norm, so it is measured with one."""
MAX_SPREAD = 1.25
"""A rule keeps the change when its largest is at most this many times its smallest."""


@dataclass(frozen=True, kw_only=True)
class RuleRow:
    """A rule with a kind of update: the RMS of the output's change at every shape, at eta = 1."""

    rule: str
    update: Update
    changes: Mapping[Shape, float]

    @property
    def spread(self) -> float:
        """The largest change over the smallest."""
        return max(self.changes.values()) / min(self.changes.values())

    @property
    def keeps(self) -> bool:
        """Whether the change is the same at every shape, within MAX_SPREAD."""
        return self.spread <= MAX_SPREAD

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "rule": self.rule,
            "update": str(self.update),
            "changes": {f"{out}x{into}": value for (out, into), value in self.changes.items()},
            "spread": self.spread,
            "keeps": self.keeps,
        }


def rule_table(shapes: Sequence[Shape] = SHAPES) -> list[RuleRow]:
    """All of `RULES_AND_UPDATES` measured at `shapes`, at eta = 1."""
    changes = {(u, s): output_change(u, s, BATCH_SIZES[u]) for u in BATCH_SIZES for s in shapes}
    return [
        RuleRow(
            rule=rule,
            update=update,
            # The change is linear in the learning rate; RULES take (d_in, d_out).
            changes={s: RULES[rule](s[1], s[0]) * changes[update, s] for s in shapes},
        )
        for rule, update in RULES_AND_UPDATES
    ]


def output_change(update: Update, shape: Shape, batch: int, seed: int = 0) -> float:
    """RMS of U x over a batch of inputs, where U is the update of the gradient d x^T.

    Output gradients d [d_out, batch] and inputs x [d_in, batch] are N(0, 1).
    """
    generator = np.random.default_rng(seed)
    d, x = (generator.standard_normal((n, batch), dtype=np.float32) for n in shape)
    # On the very inputs of the gradient: fully aligned, the case that a rule must bound.
    return float(np.sqrt(np.square(_UPDATES[update](d, x) @ x).mean()))


def _sign(d: Array, x: Array) -> Array:
    update: Array = np.sign(d @ x.T)
    return update


def _orthogonal(d: Array, x: Array) -> Array:
    """U V^T of the gradient's singular vectors, which Muon's iteration goes towards."""
    # With d = q r and x = p s (thin QR), d x^T = q (r s^T) p^T: its singular vectors follow from
    # those of r s^T, which is [batch, batch], however large the layer is.
    (q, r), (p, s) = np.linalg.qr(d), np.linalg.qr(x)
    u, _, vt = np.linalg.svd(r @ s.T)
    update: Array = q @ (u @ vt) @ p.T
    return update


def _normalized(d: Array, x: Array) -> Array:
    update: Array = d @ x.T / np.linalg.norm(d @ x.T)
    return update


_UPDATES: Mapping[Update, Callable[[Array, Array], Array]] = {
    Update.SIGN: _sign,
    Update.ORTHOGONAL: _orthogonal,
    Update.NORMALIZED: _normalized,
}
