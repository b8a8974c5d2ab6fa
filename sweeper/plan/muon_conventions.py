"""Muon outside of here: its implementations multiply a step by different functions of the shape.

A plan's learning rate is that of a step with singular values of 1. Torch's Muon, Keller Jordan's,
Moonlight's and Dion's each have a factor of rows and columns before it, so that one rate means four
things. Groups are made for one of them (`CONVENTIONS`). `documented` says which one an optimizer
has, by its class and its groups' options: also whether the weights keep their norm, as AdamH's and
MuonH's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from torch.optim import Optimizer

from sweeper.scaling.spec import Update
from sweeper.scaling.spectral import RULES

Factor = Callable[[int, int], float]
"""A factor of a step, from the rows and columns of a matrix."""
FACTORS: Mapping[str, Factor] = {
    "1": lambda rows, columns: 1.0,
    "sqrt(max(1, rows / columns))": lambda r, c: RULES["root_ratio_floored"](c, r),
    "0.2 sqrt(max(rows, columns))": lambda r, c: RULES["root_max"](c, r),
    "sqrt(rows / columns)": lambda r, c: RULES["root_ratio"](c, r),
}


@dataclass(frozen=True)
class Convention:
    """An implementation: its factor, and what it asks of the groups of Muon and of all others.

    `names` are its words for some of a plan's settings, and `takes` all that such a group may hold,
    where it refuses others. `flattens` says of parameters of more than two dimensions, by their
    number, whether they are one matrix [first, all others], or a stack of their last two
    dimensions, None where it takes none; "asked" as a group says. Without it any are taken.
    """

    factor: str
    matrices: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    takes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    flattens: Callable[[int], bool | None] | Literal["asked"] | None = None

    def group(self, group: Mapping[str, Any], *, orthogonal: bool) -> dict[str, Any]:
        """A plan's group as the implementation takes it."""
        takes = self.takes[0 if orthogonal else 1]
        own = {name: value for name, value in group.items() if not takes or name in takes}
        also = {new: group[old] for old, new in self.names.items() if old in group}
        return own | also | dict(self.matrices if orthogonal else self.others)

    def flat(self, shape: Sequence[int], matrix: tuple[int, int] | None) -> bool | None:
        """Whether the plan's matrices are one, [first, all others], or a stack; None: neither."""
        if len(shape) < 3 or matrix is None or self.flattens is None:
            return False
        options = (self.flattens(len(shape)),) if callable(self.flattens) else (True, False)
        counts = {True: (1, shape[0]), False: (prod(shape[:-2]), shape[-2]), None: None}
        planned = (matrix[0], matrix[1] or shape[0])
        return next((flat for flat in options if counts[flat] == planned), None)

    def factor_of(
        self, shape: Sequence[int], matrix: tuple[int, int] | None, formula: str = ""
    ) -> float:
        """Its factor, or that of another `formula`, of a parameter.

        It goes by the last two dimensions, unless a group has them flattened.
        """
        rows, columns = shape[-2:] if len(shape) > 1 else (1, 1)
        if self.flattens == "asked" and self.flat(shape, matrix):
            rows, columns = shape[0], prod(shape[1:])
        return FACTORS[formula or self.factor](rows, columns)


FLOORED, ROOT_MAX = "sqrt(max(1, rows / columns))", "0.2 sqrt(max(rows, columns))"
_COMMON = ("params", "lr", "weight_decay")
_KELLER_JORDAN = ((*_COMMON, "momentum"), (*_COMMON, "betas", "eps"))
CONVENTIONS: Mapping[str, Convention] = {
    "torch": Convention(FLOORED, {"adjust_lr_fn": "original"}, flattens=lambda _: None),
    "keller_jordan": Convention(
        FLOORED,
        {"use_muon": True},
        {"use_muon": False},
        takes=_KELLER_JORDAN,
        flattens=lambda dimensions: dimensions == 4,
    ),
    "moonlight": Convention(ROOT_MAX, {"adjust_lr_fn": "match_rms_adamw"}, flattens=lambda _: None),
    "dion": Convention(
        "sqrt(rows / columns)",
        {"algorithm": "muon", "adjust_lr": "spectral_norm"},
        {"algorithm": "adamw"},
        {"eps": "epsilon", "momentum": "mu"},
        flattens="asked",
    ),
    "normuon": Convention(
        FLOORED,
        {"use_muon": True},
        {"use_muon": False},
        {"normuon": "beta2"},
        takes=_KELLER_JORDAN,
        flattens=lambda dimensions: dimensions == 4,
    ),
    "plain": Convention("1"),
}
"""`torch.optim.Muon` has Keller Jordan's factor, and Moonlight's as an option."""
NORMUON = ("normuon", "plain")
DION = {"spectral_norm": "sqrt(rows / columns)", "rms_norm": ROOT_MAX, None: "1"}


@dataclass(frozen=True)
class Performed:
    """Whether a step is orthogonal, its factor, and whether the weights keep their norm."""

    orthogonal: bool
    factor: str = "1"
    keeps_norm: bool = False

    @property
    def description(self) -> str:
        """What it does, for people."""
        return ("orthogonal matrices" if self.orthogonal else "entry by entry") + (
            ", of weights that keep their norm" * self.keeps_norm
        )

    def differs(self, planned: Update) -> bool:
        """Whether a plan asks for something else."""
        return (self.orthogonal, self.keeps_norm) != (planned.orthogonal, planned.holds_norm)


def asked(planned: Update) -> Performed:
    """What a plan asks of an optimizer."""
    return Performed(orthogonal=planned.orthogonal, keeps_norm=planned.holds_norm)


def documented(optimizer: Optimizer, group: Mapping[str, Any]) -> Performed | None:
    """What an implementation's documentation says of its steps; None of one that is not known."""
    name = type(optimizer).__name__
    if type(optimizer).__module__.startswith("torch."):
        by_rms = group.get("adjust_lr_fn") == "match_rms_adamw"
        factor = ROOT_MAX if by_rms else FLOORED
        return Performed(orthogonal=True, factor=factor) if name == "Muon" else Performed(False)
    if name in ("AdamH", "MuonH"):
        return Performed(orthogonal=name == "MuonH", keeps_norm=True)
    if "use_muon" in group:  # Keller Jordan's, NorMuon's
        return Performed(True, FLOORED) if group["use_muon"] else Performed(False)
    if "algorithm" in group and (option := group.get("adjust_lr", "spectral_norm")) in DION:
        return Performed(True, DION[option]) if group["algorithm"] == "muon" else Performed(False)
    return None
