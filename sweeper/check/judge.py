"""The coordinate check: do outputs, and what a step changes in them, keep their size?

Where a parameterization is right, every layer's output is of order 1 at any width, and so is its
change (Yang and Hu, arXiv:2011.14522; Yang et al., arXiv:2203.03466, appendix D.1). A power of
the width in either is a slope in log-log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sweeper.records import Bounded, Bounds, Build, Positive
from sweeper.scaling.spec import LOGITS, SUMMED, Role, layer_of, with_layer
from sweeper.stats.estimate import UNKNOWN, Estimate, mean_estimate
from sweeper.stats.ladder import Size
from sweeper.trial import LOG2_OR_NULL, ONE_OR_MORE, Choice

if TYPE_CHECKING:
    from sweeper.engine.measure import ModuleMeasurement


@dataclass(frozen=True, kw_only=True)
class CheckRule(Bounded):
    """The runs of `sweeper check`, and the threshold of its coordinate check.

    - `seeds` runs are trained at every size, from seed `seed` on. Each takes `steps` steps on one
      batch of `batch` sequences, at the fraction `share` of eta: real runs begin with a warm-up
      too, and at all of eta the first steps are noise.
    - `eta` (log2) replaces the study's, or the space's default.
    - A slope passes when its interval lies within `threshold` of theory's. Theory's slopes are
      multiples of 1/2, and the default is half of that.
    - The scale report (`--scales`) is one run of `scale_steps` steps with seed `seed`, at all of
      eta.
    """

    steps: Annotated[int, ONE_OR_MORE] = 4
    seeds: Annotated[int, ONE_OR_MORE] = 8
    seed: Annotated[int, Bounds(least=0, allowed="0 or more")] = 0
    batch: Annotated[int, ONE_OR_MORE] = 4
    share: Annotated[float, Bounds(above=0, most=1)] = 0.25
    eta: Annotated[float | None, LOG2_OR_NULL] = None
    threshold: Positive = 0.25
    scale_steps: Annotated[int, ONE_OR_MORE] = 50


CheckCode = Literal["pass", "cannot say", "fail"]
CHECK_ANSWERS: tuple[CheckCode, ...] = ("pass", "cannot say", "fail")
"""From good to bad."""
Quantity = Literal["output", "change", "direct"]
Runs = Mapping[Size, Sequence[Sequence["ModuleMeasurement"]]]
"""What was measured, by size: for each seed the modules, in the order in which they last return."""
NOT_SEEN = "not seen"
"""The reason where no output shows what a trained parameter does."""
LOST_ALIGNMENT = "shrinks, perhaps as the batch has many tokens"
LARGE_STEPS = "grows, perhaps as the steps are large"
"""Why changes cannot be judged: see `_with_lost_alignment` and `_with_large_steps`."""


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A slope over log2 size with its 95 % interval over the seeds, and the answer on it.

    `quantity` is "output" at initialization, "change" after a step, or "direct", the part of the
    change that the module's own parameters make. `values` are the means over seeds of log2 RMS,
    one a size. `expected` is the theory's slope; `one_sided` tells that only growth is a fault.
    """

    quantity: Quantity
    step: int
    values: tuple[float, ...]
    slope: Estimate
    expected: float
    one_sided: bool
    answer: CheckCode
    reason: str

    @property
    def deviation(self) -> float:
        """How far the slope is from where it may lie; +inf where there is no slope."""
        away = self.slope.value - self.expected
        if math.isnan(away):
            return math.inf
        return max(away, 0.0) if self.one_sided else abs(away)


@dataclass(frozen=True, kw_only=True)
class ModuleCheck:
    """One module's slopes, and the answer: it fails with any of them, and passes with all."""

    name: str
    role: Role | None
    slopes: tuple[Slope, ...]
    answer: CheckCode

    @property
    def worst(self) -> Slope:
        """The slope that the answer rests on: of the worst answer, the one that deviates most."""
        return max(
            self.slopes, key=lambda slope: (CHECK_ANSWERS.index(slope.answer), slope.deviation)
        )


@dataclass(frozen=True, kw_only=True)
class CoordinateCheck:
    """The answer along one axis. `origins` are the modules whose direct change fails."""

    axis: str
    sizes: tuple[int, ...]
    steps: int
    modules: tuple[ModuleCheck, ...]
    answer: CheckCode
    origins: tuple[str, ...]

    @property
    def unseen(self) -> tuple[str, ...]:
        """Trained parameters that no row shows, those of all layers under one name."""
        names = [module.name for module in self.modules if module.worst.reason == NOT_SEEN]
        return tuple(dict.fromkeys(with_layer(name, "*") for name in names))

    def settled_by(self, rule: CheckRule) -> str | None:
        """The setting of the check that settles one that cannot say; None where the model must."""
        if self.unseen:
            return None
        reasons = [slope.reason for module in self.modules for slope in module.slopes]
        # A doubt that has a known cause is removed at its cause; else more seeds narrow intervals.
        if LARGE_STEPS in reasons:
            return f"check.share={rule.share / 4:g}"
        if LOST_ALIGNMENT in reasons and rule.batch > 1:
            return "check.batch=1"
        return self.third_size or f"check.seeds={2 * rule.seeds}"

    @property
    def third_size(self) -> str:
        """The setting with a third size, where two cannot tell a power from a change that ends."""
        if len(self.sizes) != 2 or self.axis not in ("width", "depth"):
            return ""
        # A slope's error goes with 1 / (range of log2 size): twice the range does more than twice
        # the seeds.
        sizes = [*self.sizes, 2 * self.sizes[-1]]
        return f"transfer.{self.axis}s=[{','.join(map(str, sizes))}]"

    @classmethod
    def read_json(cls, record: Mapping[str, Any], build: Build) -> CoordinateCheck:
        """ValueError for a check of nothing, or whose slopes are not over its sizes."""
        check: CoordinateCheck = build(record)
        lengths = {len(slope.values) for module in check.modules for slope in module.slopes}
        whole = lengths == {len(check.sizes)} and all(module.slopes for module in check.modules)
        if not whole or min(check.sizes) < 1:
            raise ValueError("no coordinate check")
        return check


MEASURED = 4
"""Raised where a check measures or judges something else: an earlier record is none of it then."""


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """`check/check.json` of `sweeper check`, and `check/transfer.json` of the check with a plan.

    `spec` is the digest of what was checked, at the base. `command` shows all modules.
    """

    measured: int = MEASURED
    parameterization: str
    optimizer: str
    base: Size
    spec: str
    log2_hps: Mapping[str, Choice]
    rule: CheckRule
    axes: tuple[CoordinateCheck, ...] = ()
    command: str = ""

    def of_the_same(self, other: CheckRecord) -> bool:
        """Whether another record is of the same check, wherever its eta came from."""
        # The eta that was checked is in `log2_hps`.
        first, second = (
            replace(record, rule=replace(record.rule, eta=None), axes=(), command="")
            for record in (self, other)
        )
        return first == second


def check_coordinates(
    axis: str, runs: Runs, rule: CheckRule, intended: Mapping[Role, float] | None = None
) -> CoordinateCheck:
    """Judge what was measured along `axis`: "width", "depth" or another size of the model.

    Over the width every module that all sizes have is judged: its output at initialization, its
    change after the first and the last step, and the direct part of the last change. Exceptions:

    - A module with parameters must move by them. Its whole change may also shrink together with
      its input's, so there only growth is a fault.
    - An output with as many entries at any width (logits) may begin as small as it likes, so
      there only growth of the output and of its change is a fault.
    - `intended` are exponents by which changes of a role's modules shrink on purpose; what runs
      before any other weight, a norm's gain among them, shrinks with the embeddings. What comes
      after gets less and less from them, so with any intended exponent only growth is a fault of
      whole changes.

    Over the depth only the modules outside of layers are judged: a layer's contribution must
    fall as there are more of them, and only their sum is of order 1.
    See also `_of_experts`, `_with_lost_alignment` and `_with_large_steps`.
    """
    sizes = sorted(runs)
    first_run = runs[sizes[0]][0]
    # What returns before any weight but embeddings has taken part sees embeddings alone. Modules
    # without parameters (role None) pass on what they get.
    of_embeddings = {
        measured.name
        for measured in takewhile(lambda m: m.role in (Role.EMBEDDING, None), first_run)
    }
    wanted = intended if intended and axis == "width" else {}
    of_experts = axis not in ("width", "depth")
    fading = bool(wanted) or of_experts
    log_sizes = [math.log2(getattr(size, axis)) for size in sizes]
    modules = []
    for name in (measured.name for measured in first_run):
        if axis == "depth" and layer_of(name) is not None:
            continue
        # [sizes][seeds]: the module's measurements.
        table = [[m for run in runs[size] for m in run if m.name == name] for size in sizes]
        if any(len(row) < len(runs[size]) for row, size in zip(table, sizes, strict=True)):
            continue  # a module that not all sizes have
        if not all(measured.entries for row in table for measured in row):
            modules.append(_not_seen(table[0][0], len(sizes), rule))
            continue
        # A decoder's table comes after the encoder's weights, and moves by itself alone.
        embedded = name in of_embeddings or table[0][0].role is Role.EMBEDDING
        expected = wanted.get(Role.EMBEDDING, 0.0) if embedded else 0.0
        same_entries = table[0][0].entries == table[-1][0].entries
        fixed = axis == "width" and same_entries and len(sizes) > 1
        modules.append(_check_module(log_sizes, table, rule, expected, fixed=fixed, fading=fading))
        if of_experts:
            modules[-1] = _of_experts(modules[-1], axis)
    if axis == "width":
        modules = _with_large_steps(_with_lost_alignment(modules))
    return CoordinateCheck(
        axis=axis,
        sizes=tuple(getattr(size, axis) for size in sizes),
        steps=rule.steps,
        modules=tuple(modules),
        answer=_worst([module.answer for module in modules]),
        # What comes after a module whose direct change fails, fails because of it.
        origins=tuple(
            module.name
            for module in modules
            if any(s.quantity == "direct" and s.answer == "fail" for s in module.slopes)
        ),
    )


def _check_module(
    log_sizes: Sequence[float],
    table: Sequence[Sequence[ModuleMeasurement]],
    rule: CheckRule,
    expected: float,
    *,
    fixed: bool,
    fading: bool,
) -> ModuleCheck:
    """The slopes of one module, judged; `table` [sizes][seeds] are its measurements.

    `fixed`: its output has as many entries at any size; `fading`: changes shrink on purpose.
    """
    first = table[0][0]
    # The whole change of a module with weights may shrink with its input's: its direct change
    # says whether the weights move enough.
    growth = fixed or fading or bool(first.direct_changes)
    outputs = [[measured.rms for measured in row] for row in table]
    slopes = [_slope("output", 0, log_sizes, outputs, rule, 0.0, fixed)]
    for step in sorted({1, rule.steps}):
        changes = [[measured.changes[step - 1] for measured in row] for row in table]
        slopes.append(_slope("change", step, log_sizes, changes, rule, expected, growth))
    if first.direct_changes:
        direct = [[measured.direct_changes[-1] for measured in row] for row in table]
        # What lies between a parameter outside of modules and the logits may shrink.
        outside = first.name == LOGITS
        slopes.append(_slope("direct", rule.steps, log_sizes, direct, rule, expected, outside))
    answer = _worst([slope.answer for slope in slopes])
    return ModuleCheck(name=first.name, role=first.role, slopes=tuple(slopes), answer=answer)


def _not_seen(measured: ModuleMeasurement, sizes: int, rule: CheckRule) -> ModuleCheck:
    """A parameter of which nothing can be said: its direct change is unknown."""
    unknown = _slope("direct", rule.steps, (0.0,), [[math.nan]], rule, 0.0, False)
    values = (math.nan,) * sizes
    slope = replace(unknown, values=values, answer="cannot say", reason=NOT_SEEN)
    return ModuleCheck(name=measured.name, role=measured.role, slopes=(slope,), answer="cannot say")


def _of_experts(module: ModuleCheck, axis: str) -> ModuleCheck:
    """The module judged over a size of the experts by those slopes alone that say something there.

    Direct changes do, and for modules without parameters whether the whole change grows. At
    initialization a mean over more experts is smaller, and a cut expert larger, on purpose. A
    token that changes its experts moves all that comes after by as much as an expert's output,
    however small the step: the more often the more there are, so that over their number only direct
    changes say anything.
    """
    judged = {"direct"}
    if axis != "experts" and all(slope.quantity != "direct" for slope in module.slopes):
        judged.add("change")
    slopes = tuple(
        slope if slope.quantity in judged else replace(slope, answer="pass", reason="not judged")
        for slope in module.slopes
    )
    return replace(module, slopes=slopes, answer=_worst([slope.answer for slope in slopes]))


def _with_lost_alignment(modules: Sequence[ModuleCheck]) -> list[ModuleCheck]:
    """The modules; a few weights whose direct changes shrink by at most width^-1/2 do not fail.

    A sign-like update is the sign of a sum over the batch's tokens. Applied to the input of one
    token, n entries, it gives n / tokens^1/2 by that token's own part of the sum, and n^1/2 by
    chance, from the other tokens' signs. While n < tokens chance is more, and growth with n^1/2
    in place of full alignment's n is a slope of -1/2. Keys show it first: a softmax does not see
    what tokens share.
    """
    seen = [module for module in modules if module.worst.reason != NOT_SEEN]
    summing = [module for module in seen if module.role in SUMMED]
    softened = {m.name: _softened(m, _lost_alignment, LOST_ALIGNMENT) for m in summing}
    # A rate that is wrong by width^-1/2 looks the same, but then most weights show it.
    few = 2 * sum(softened[module.name] != module for module in summing) < len(summing)
    return [softened.get(module.name, module) if few else module for module in modules]


def _lost_alignment(slope: Slope) -> bool:
    return slope.quantity == "direct" and slope.reason == "vanishes" and slope.slope.value >= -0.5


def _with_large_steps(modules: Sequence[ModuleCheck]) -> list[ModuleCheck]:
    """The modules; a change that grows by the last step alone does not fail where no weight does.

    First logits shrink with the width: large steps teach narrow models something else.
    """
    # Where a weight's direct change fails, the cause is known, and nothing is excused.
    explained = any(
        s.quantity == "direct" and s.answer == "fail" for m in modules for s in m.slopes
    )
    # slopes[1] is the change after the first step: what grows there already is no matter of steps.
    return [
        m if explained or any(map(_grows, m.slopes[1:2])) else _softened(m, _grows, LARGE_STEPS)
        for m in modules
    ]


def _grows(slope: Slope) -> bool:
    return slope.quantity == "change" and slope.reason == "grows"


def _softened(module: ModuleCheck, doubted: Callable[[Slope], bool], reason: str) -> ModuleCheck:
    """The module with "cannot say", for this `reason`, on the slopes that are `doubted`."""
    slopes = tuple(
        replace(slope, answer="cannot say", reason=reason) if doubted(slope) else slope
        for slope in module.slopes
    )
    return replace(module, slopes=slopes, answer=_worst([slope.answer for slope in slopes]))


def _slope(
    quantity: Quantity,
    step: int,
    log_sizes: Sequence[float],
    table: Sequence[Sequence[float]],
    rule: CheckRule,
    expected: float,
    one_sided: bool,
) -> Slope:
    """The slope of log2 of `table` [sizes][seeds] over `log_sizes`, judged."""
    values = np.array(table, dtype=np.float64)
    slope, logs = UNKNOWN, np.full(len(log_sizes), math.nan)
    verdict: tuple[CheckCode, str]
    if not values.any():  # a weight that is frozen, or a bias that begins at 0
        slope, logs = Estimate(value=0.0, low=0.0, high=0.0), np.full(len(log_sizes), -math.inf)
        verdict = "pass", "never moves" if step else "zero"
    elif not np.isfinite(values).all():
        verdict = "fail", "not finite"
    # The logarithm of 0 is -inf, and a line through that has no slope.
    elif not values.all():
        verdict = "cannot say", "zero at some sizes"
    else:
        logs = np.log2(values).mean(1)
        slope = _fit_slope(np.array(log_sizes), np.log2(values))
        verdict = judge_slope(slope, expected, rule.threshold, one_sided=one_sided)
    return Slope(
        quantity=quantity,
        step=step,
        values=tuple(map(float, logs)),
        slope=slope,
        expected=expected,
        one_sided=one_sided,
        answer=verdict[0],
        reason=verdict[1],
    )


def _fit_slope(log_sizes: NDArray[np.float64], logs: NDArray[np.float64]) -> Estimate:
    """The mean over seeds of each seed's slope of `logs` [sizes, seeds], with its interval.

    Seed by seed, since all sizes share a seed's batch: what the batch adds to each cancels.
    """
    if len(log_sizes) < 2:
        return UNKNOWN
    # Least squares: slope = sum (x - mean x) y / sum (x - mean x)^2, [sizes] @ [sizes, seeds].
    centred = log_sizes - log_sizes.mean()
    return mean_estimate(centred @ logs / float(centred @ centred))


def judge_slope(
    slope: Estimate, expected: float, threshold: float, *, one_sided: bool
) -> tuple[CheckCode, str]:
    """Pass: the interval lies within `threshold` of `expected`; fail: it lies beyond it.

    An interval that straddles the threshold answers nothing: noise can neither pass nor fail.
    """
    low, high = slope.low - expected, slope.high - expected
    if low > threshold:
        return "fail", "grows"
    if high < -threshold and not one_sided:
        return "fail", "vanishes"
    if high <= threshold and (one_sided or low >= -threshold):
        return "pass", ""
    return "cannot say", "interval too wide"


def _worst(answers: Sequence[CheckCode]) -> CheckCode:
    return max(answers, key=CHECK_ANSWERS.index, default="cannot say")
