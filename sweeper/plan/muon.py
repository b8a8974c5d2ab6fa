"""Muon outside of here: its implementations multiply a step by different functions of the shape.

A plan's learning rate is that of a step with singular values of 1. Torch's Muon, Keller Jordan's,
Moonlight's and Dion's each have a factor of rows and columns before it, so that one rate means four
things. Groups are made for one of them (`CONVENTIONS`), and what an optimizer really does with a
group is measured, by one step of its own on two small matrices (`performed`): also whether the
weights keep their norm, as AdamH's and MuonH's do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, log, prod, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sweeper.scaling.spec import Update
from sweeper.scaling.spectral import RULES

Factor = Callable[[int, int], float]
"""Of a step's learning rate, in rows and columns of a matrix."""
FACTORS: Mapping[str, Factor] = {
    "1": lambda rows, columns: 1.0,
    "sqrt(max(1, rows / columns))": lambda r, c: RULES["root_ratio_floored"](c, r),
    "0.2 sqrt(max(rows, columns))": lambda r, c: RULES["root_max"](c, r),
    "sqrt(rows / columns)": lambda r, c: RULES["root_ratio"](c, r),
}
"""All factors that implementations have, by their formula."""


@dataclass(frozen=True)
class Convention:
    """An implementation: its factor, and what it asks of the groups of Muon and of all others.

    `names` are its words for some of a plan's settings, and `takes` all that such a group may hold,
    where it refuses others. `flattens` says of parameters of more than two dimensions, by their
    number, whether they are one matrix [first, all others], or a stack of their last two
    dimensions; "asked" as a group says, and None where it takes none, or any.
    """

    factor: str
    matrices: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    takes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    flattens: Callable[[int], bool] | Literal["asked"] | None = None

    def group(self, group: Mapping[str, Any], *, orthogonal: bool) -> dict[str, Any]:
        """A plan's group as the implementation takes it."""
        takes = self.takes[0 if orthogonal else 1]
        own = {name: value for name, value in group.items() if not takes or name in takes}
        also = {new: group[old] for old, new in self.names.items() if old in group}
        return own | also | dict(self.matrices if orthogonal else self.others)

    def flat(self, shape: Sequence[int], matrix: tuple[int, int] | None) -> bool | None:
        """Whether its matrices are the plan's as one, [first, all others], or as a stack.

        None where neither is what it makes of the parameter.
        """
        if len(shape) < 3 or matrix is None or self.flattens is None:
            return False
        options = (self.flattens(len(shape)),) if callable(self.flattens) else (True, False)
        counts = {True: (1, shape[0]), False: (prod(shape[:-2]), shape[-2])}
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
    "torch": Convention(FLOORED, {"adjust_lr_fn": "original"}),
    "keller_jordan": Convention(
        FLOORED,
        {"use_muon": True},
        {"use_muon": False},
        takes=_KELLER_JORDAN,
        flattens=lambda dimensions: dimensions == 4,
    ),
    "moonlight": Convention(ROOT_MAX, {"adjust_lr_fn": "match_rms_adamw"}),
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
"""Those that may average rows as NorMuon does."""


# What an optimizer does with one of its groups, by one step of its own on small matrices.

PROBES = ((64, 16), (16, 64))
"""Tall and wide: every two of `FACTORS` differ by a quarter on one of them."""
SPREAD = 0.05
"""The least singular value of a probe's gradient, the largest being 1."""
FLAT = 0.4
"""Newton-Schulz leaves singular values within 0.7 and 1.2: their ratio is above this."""
FAR = 0.3
"""A factor this far from all that are known, as a logarithm, is another."""
PROBE_LR = 1e-3
ALONG = 0.6
"""The cosine of a probe's weights with its gradient: their norm changes where nothing holds it."""
HELD = 1e-6
"""Relative: a norm that changes by less is held. A step along the weights takes some 1e-4."""


@dataclass(frozen=True)
class Performed:
    """Whether a step is orthogonal, and which of `FACTORS` it has; "" for another factor.

    `held`: whether the weights keep their norm, of which the step is then a share.
    """

    orthogonal: bool
    factor: str = "1"
    held: bool = False

    @property
    def words(self) -> str:
        """What it does, for people."""
        return ("orthogonal matrices" if self.orthogonal else "entry by entry") + (
            ", of weights that keep their norm" * self.held
        )

    def differs(self, planned: Update) -> bool:
        """Whether a plan asks for something else."""
        return (self.orthogonal, self.held) != (planned.orthogonal, planned.holds_norm)


def asked(planned: Update) -> Performed:
    """What a plan asks of an optimizer."""
    return Performed(orthogonal=planned.orthogonal, held=planned.holds_norm)


def performed(optimizer: Optimizer, group: Mapping[str, Any]) -> Performed | None:
    """What `optimizer` does with matrices in `group`; None where it does not step on its own."""
    # A foreign one may talk to other processes, which do not step now.
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    if not (alone or type(optimizer).__module__.startswith("torch.")):
        return None
    try:
        pairs = [_stepped(optimizer, group, *shape) for shape in PROBES]
        held = all(abs(float(new.norm() / old.norm()) - 1) < HELD for old, new in pairs)
        steps = [(_off_the_sphere(*pair) if held else pair[0] - pair[1]) for pair in pairs]
        scales = [torch.linalg.svdvals(step / PROBE_LR) for step in steps]
    except Exception:  # a class of anybody's: it may want processes, a device, a closure
        return None
    if any(not s.isfinite().all() or s.max() == 0 for s in scales):
        return None
    if any(s.min() < FLAT * s.max() for s in scales):
        return Performed(orthogonal=False, held=held)
    if held:
        return Performed(orthogonal=True, held=True)
    logs = [log(float(s.mean())) for s in scales]
    away = {
        formula: hypot(*(a - log(f(*shape)) for a, shape in zip(logs, PROBES, strict=True)))
        for formula, f in FACTORS.items()
    }
    nearest = min(away, key=lambda formula: away[formula])
    return Performed(orthogonal=True, factor=nearest if away[nearest] < FAR else "")


def _off_the_sphere(old: Tensor, new: Tensor) -> Tensor:
    """The step of length lr |w| before the weights were brought back to their norm.

    With new = c (old - step) the length says what c is: of a quadratic equation in 1 / c the root
    that is less than 1, as the probe's weights lie along its gradient.
    """
    square, product = float(old.square().sum()), float((old * new).sum())
    back = (product - sqrt(max(0.0, product**2 - square**2 * (1 - PROBE_LR**2)))) / square
    return old - new * back


def _stepped(
    optimizer: Optimizer, group: Mapping[str, Any], rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    """A matrix in `group` before and after its first step.

    On an optimizer of the same class and attributes, whose state and parameters are its own: one
    that is built anew may want arguments that nobody here knows.
    """
    generator = torch.Generator().manual_seed(0)
    few = min(rows, columns)
    # Rows of one length, which an optimizer that normalizes rows leaves alone.
    long = _hadamard(max(rows, columns))[:, :few] / sqrt(max(rows, columns))
    drawn = torch.randn(few, few, generator=generator, dtype=torch.float64)
    values = torch.logspace(0, log(SPREAD) / log(10), few, dtype=torch.float64)
    gradient = long * values @ torch.linalg.qr(drawn)[0]
    gradient = (gradient if rows >= columns else gradient.T).contiguous()
    noise = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    along, noise = (x * sqrt(x.numel()) / x.norm() for x in (gradient, noise))
    tried = nn.Parameter(ALONG * along + sqrt(1 - ALONG**2) * noise)
    tried.grad, before = gradient, tried.detach().clone()
    probe: Any = object.__new__(type(optimizer))
    probe.__dict__.update(optimizer.__dict__)
    # A schedule's own `step` and people's hooks count the steps of the real one.
    for name in [n for n in vars(probe) if n == "step" or n.endswith("_hooks")]:
        value = probe.__dict__.pop(name)
        if name != "step":
            probe.__dict__[name] = type(value)()
    known = optimizer.state.get(group["params"][0], {})
    # Some say in a parameter's state who updates it.
    flags = {key: value for key, value in known.items() if isinstance(value, bool | str)}
    probe.state = defaultdict(dict, {tried: flags})
    no_decay = {key: 0.0 for key in ("weight_decay", "wd") if key in group}
    probe.param_groups = [{**group, **no_decay, "params": [tried], "lr": PROBE_LR}]
    type(optimizer).step(probe)
    return before, tried.detach()


def _hadamard(size: int) -> Tensor:
    """Sylvester's matrix of +-1 with orthogonal columns; `size` is a power of 2."""
    found = torch.ones(1, 1, dtype=torch.float64)
    while len(found) < size:
        found = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), found)
    return found
