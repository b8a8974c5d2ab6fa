"""The coordinate check: do outputs, and what a step changes in them, keep their size as it grows?

Where a scheme is right, every layer's output is of order 1 at any width, and so is its change
(Yang and Hu, arXiv:2011.14522; Yang et al., arXiv:2203.03466, appendix D.1). A power of the width
in either is a slope in log-log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from sweeper.measure.coordinates import ModuleChange
from sweeper.scaling.names import layer_of
from sweeper.scaling.spec import Role
from sweeper.transfer.check import CheckRule
from sweeper.transfer.estimate import Estimate
from sweeper.transfer.ladder import Size
from sweeper.trial import encode

Answer = Literal["pass", "cannot say", "fail"]
ANSWERS: tuple[Answer, ...] = ("pass", "cannot say", "fail")
"""From good to bad."""
Runs = Mapping[Size, Sequence[Sequence[ModuleChange]]]
"""What was measured, by size: a run a seed, each the list of its modules."""


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A slope over log2 size with its 95 % interval over the seeds, and what came of it.

    `of` is "output" at initialization, "change" after a step, or "own", the part of the change
    that the module's own parameters make. `values` are the means over seeds of log2 RMS, a size
    each. `expected` is the theory's slope; `one_sided` tells that only growth is a fault.
    """

    of: Literal["output", "change", "own"]
    step: int
    values: tuple[float, ...]
    slope: Estimate
    expected: float
    one_sided: bool
    answer: Answer
    reason: str

    @property
    def off(self) -> float:
        """How far the slope is from where it should be; 0 where it may lie."""
        away = self.slope.value - self.expected
        if math.isnan(away):
            return math.inf
        return max(away, 0.0) if self.one_sided else abs(away)


@dataclass(frozen=True, kw_only=True)
class ModuleCheck:
    """One module's slopes, and the answer: fails with any, passes with all."""

    name: str
    role: Role | None
    slopes: tuple[Slope, ...]
    answer: Answer

    @property
    def worst(self) -> Slope:
        """The slope that the answer rests on: of the worst answer, the farthest off."""
        return max(self.slopes, key=lambda slope: (ANSWERS.index(slope.answer), slope.off))


@dataclass(frozen=True, kw_only=True)
class CoordinateCheck:
    """The answer along one axis. `origins` are failing modules whose own parameters fail."""

    axis: str
    sizes: tuple[int, ...]
    steps: int
    modules: tuple[ModuleCheck, ...]
    answer: Answer
    origins: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        found: dict[str, Any] = encode(asdict(self))
        return found

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> CoordinateCheck:
        """Inverse of `to_json`; one of `files.BROKEN` when the record is none."""
        sizes = tuple(map(int, record["sizes"]))
        modules = tuple(_read_module(module, len(sizes)) for module in record["modules"])
        origins = tuple(map(str, record["origins"]))
        own = {"sizes": sizes, "modules": modules, "origins": origins}
        if not sizes or not modules or record["answer"] not in ANSWERS:
            raise ValueError("no coordinate check")
        return cls(**{**record, **own, "steps": int(record["steps"])})


def _read_module(record: Mapping[str, Any], sizes: int) -> ModuleCheck:
    """A module from JSON; it has slopes over as many sizes as the check."""
    slopes = tuple(_read_slope(slope) for slope in record["slopes"])
    if record["answer"] not in ANSWERS or {len(slope.values) for slope in slopes} != {sizes}:
        raise ValueError("no module of a coordinate check")
    role = record["role"] and Role(record["role"])
    return ModuleCheck(**{**record, "role": role, "slopes": slopes})


def _read_slope(record: Mapping[str, Any]) -> Slope:
    """A slope from JSON."""
    own: dict[str, Any] = {
        "values": tuple(map(float, record["values"])),
        "slope": Estimate(**{key: float(value) for key, value in record["slope"].items()}),
        "expected": float(record["expected"]),
    }
    if record["answer"] not in ANSWERS:
        raise ValueError("no answer of a coordinate check")
    return Slope(**{**record, **own, "step": int(record["step"])})


def check(
    axis: str, runs: Runs, rule: CheckRule, intended: Mapping[Role, float] | None = None
) -> CoordinateCheck:
    """Judge what was measured along `axis`, "width" or "depth".

    Over the width every module that all sizes have is judged: its output at initialization, its
    change after the first and the last step, and its own parameters' part of the last.
    Exceptions:

    - A module with parameters must move by them: of its change as a whole, which may shrink
      with what moved before it, only growth is a fault.
    - An output of as many entries at any width (logits) may begin as small as it likes: of it
      and its change, too, only growth is a fault.
    - `intended` are exponents by which changes of a role's modules shrink on purpose; what runs
      before any hidden weight shrinks with its embeddings. As their share of what comes after
      fades, whole changes are then judged for growth alone, all of them.

    Over the depth the modules outside of layers are judged: a layer's own share must fall as
    there are more of them, and only their sum is of order 1.
    """
    sizes = sorted(runs)
    names = [change.name for change in runs[sizes[0]][0]]
    early = _before_hidden(runs[sizes[0]][0])
    wanted = intended if intended and axis == "width" else {}
    modules = []
    for name in names:
        if axis == "depth" and layer_of(name) is not None:
            continue
        table = [[_named(run, name) for run in runs[size]] for size in sizes]
        if all(change is not None for row in table for change in row):
            known = [[change for change in row if change is not None] for row in table]
            scale = [math.log2(getattr(size, axis)) for size in sizes]
            at = wanted.get(Role.EMBEDDING, 0.0) if name in early else 0.0
            few = axis == "width" and known[0][0].entries == known[-1][0].entries
            fixed = few and len(sizes) > 1
            modules.append(_module(scale, known, rule, at, fixed=fixed, fading=bool(wanted)))
    answers = [module.answer for module in modules]
    return CoordinateCheck(
        axis=axis,
        sizes=tuple(getattr(size, axis) for size in sizes),
        steps=rule.steps,
        modules=tuple(modules),
        answer=_worst(answers),
        origins=tuple(module.name for module in modules if _originates(module)),
    )


def _before_hidden(run: Sequence[ModuleChange]) -> set[str]:
    """Modules that last return before any hidden weight has taken part."""
    found: set[str] = set()
    for change in run:
        if change.role is Role.HIDDEN:
            break
        found.add(change.name)
    return found


def _named(run: Sequence[ModuleChange], name: str) -> ModuleChange | None:
    return next((change for change in run if change.name == name), None)


def _module(
    scale: Sequence[float],
    table: Sequence[Sequence[ModuleChange]],
    rule: CheckRule,
    expected: float,
    *,
    fixed: bool,
    fading: bool,
) -> ModuleCheck:
    """`table` has the module's measurements, a row a size with a column a seed."""
    first = table[0][0]
    growth = fixed or fading or bool(first.parameter_changes)
    slopes = [_slope("output", 0, scale, [[m.rms for m in row] for row in table], rule, 0.0, fixed)]
    for step in sorted({1, rule.steps}):
        changes = [[m.changes[step - 1] for m in row] for row in table]
        slopes.append(_slope("change", step, scale, changes, rule, expected, growth))
        if first.parameter_changes and step == rule.steps:
            own = [[m.parameter_changes[step - 1] for m in row] for row in table]
            slopes.append(_slope("own", step, scale, own, rule, expected, False))
    answer = _worst([slope.answer for slope in slopes])
    return ModuleCheck(name=first.name, role=first.role, slopes=tuple(slopes), answer=answer)


def _slope(
    of: Literal["output", "change", "own"],
    step: int,
    scale: Sequence[float],
    table: Sequence[Sequence[float]],
    rule: CheckRule,
    expected: float,
    one_sided: bool,
) -> Slope:
    """The slope of log2 of `table` [sizes][seeds] over `scale`, judged."""
    values = np.array(table, dtype=np.float64)
    if not values.any():
        found, logs = Estimate(value=0.0, low=0.0, high=0.0), np.full(len(scale), -math.inf)
        answer: tuple[Answer, str] = ("pass", "never moves" if step else "zero")
    elif not np.isfinite(values).all() or not values.all():
        found, logs = UNKNOWN, np.full(len(scale), math.nan)
        answer = _broken(values)
    else:
        logs = np.log2(values).mean(1)
        found = _fitted(np.array(scale), np.log2(values))
        answer = judge(found, expected, rule.threshold, one_sided=one_sided)
    return Slope(
        of=of,
        step=step,
        values=tuple(map(float, logs)),
        slope=found,
        expected=expected,
        one_sided=one_sided,
        answer=answer[0],
        reason=answer[1],
    )


UNKNOWN = Estimate(value=math.nan, low=-math.inf, high=math.inf)


def _broken(values: np.ndarray[Any, Any]) -> tuple[Answer, str]:
    """What is to be said of numbers that have no logarithm."""
    if not np.isfinite(values).all():
        return "fail", "not finite"
    return "cannot say", "zero at some sizes"


def _fitted(scale: np.ndarray[Any, Any], logs: np.ndarray[Any, Any]) -> Estimate:
    """Least squares for every seed of `logs` [sizes, seeds]; mean and Student's interval."""
    if len(scale) < 2:
        return UNKNOWN
    centred = scale - scale.mean()
    slopes = centred @ logs / float(centred @ centred)
    count = len(slopes)
    half = math.inf
    if count > 1:
        half = student(count - 1) * float(slopes.std(ddof=1)) / math.sqrt(count)
    middle = float(slopes.mean())
    return Estimate(value=middle, low=middle - half, high=middle + half)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: exact for 1 and 2 degrees of freedom.

    Beyond, Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5), within 1 %.
    """
    if freedom == 1:
        return math.tan(0.475 * math.pi)
    if freedom == 2:
        return 0.95 / math.sqrt(2 * 0.975 * 0.025)
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def judge(
    slope: Estimate, expected: float, threshold: float, *, one_sided: bool
) -> tuple[Answer, str]:
    """Pass: the interval lies within `threshold` of `expected`; fail: it lies beyond it."""
    low, high = slope.low - expected, slope.high - expected
    if low > threshold:
        return "fail", "grows"
    if high < -threshold and not one_sided:
        return "fail", "vanishes"
    if high <= threshold and (one_sided or low >= -threshold):
        return "pass", ""
    return "cannot say", "interval too wide"


def _worst(answers: Sequence[Answer]) -> Answer:
    return max(answers, key=ANSWERS.index, default="cannot say")


def _originates(module: ModuleCheck) -> bool:
    """Whether the module's own parameters fail: what comes after it fails because of it."""
    return any(slope.of == "own" and slope.answer == "fail" for slope in module.slopes)
