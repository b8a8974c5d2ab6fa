"""The prediction as a document: inputs, law, back-test, answer, what would settle it."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.errors import ConfigError, Keyword, MissingValue
from sweeper.evidence.predict.band import Band
from sweeper.evidence.predict.budget import BudgetOptimum, CurvePoint, law_curve, optimum
from sweeper.evidence.predict.forecast import (
    DRAWS,
    LossBackTest,
    LossLaw,
    RungMiss,
    back_test,
    fit_law,
    settled,
    short_laws,
    widening,
)
from sweeper.evidence.predict.regime import LeftOut, choose_runs
from sweeper.evidence.runs.loss_runs import Design, LossRuns, Rungs, distinct
from sweeper.evidence.runs.sizes import tokens_a_parameter
from sweeper.files import (
    RECORD_ERRORS,
    json_text,
    parse_json,
    private_folder,
    read_bounded,
    write_atomically,
)
from sweeper.stats.estimate import Estimate
from sweeper.stats.power_law import TOKENS
from sweeper.table import counted
from sweeper.version import __version__

PREDICTED, UNDECIDED = "predicted", "cannot say yet"
MOST_FITTED = 300
"""Runs that a law is fitted to: of more, these are spread over the compute. Time grows as their
third power."""
RUNGS = 3
"""Sizes, horizons or budgets without which a law cannot be tried on one of them."""
WIDEST = 8.0
"""Times its lower end, the upper one of a best size's interval that still says something."""
FORMAT = 1
DOCUMENT = "prediction.json"


@dataclass(frozen=True, kw_only=True)
class RunsSource:
    """Where runs are from, which of them were taken, and their `columns` by what they are."""

    source: str = ""
    sha256: str = ""
    where: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Inputs(RunsSource):
    """What the law was fitted to; `left_out`: a run, and why.

    `unlike` are those that were trained otherwise than the run to come will be, and left out.
    `unit`: what tokens count, where nobody knows tokens. Not `flops_known`: all FLOPs are merely in
    proportion to the true ones.
    """

    runs: int
    varied: str
    rungs: tuple[str, ...]
    flops_per_parameter_and_token: float
    largest_flops: float
    unit: str = "tokens"
    flops_known: bool = True
    left_out: tuple[tuple[str, str], ...] = ()
    unlike: LeftOut | None = None
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LossLawValues:
    """The law with its parameters; those that its form lacks are None."""

    form: str
    formula: str
    E: Estimate
    A: Estimate | None = None
    B: Estimate | None = None
    alpha: Estimate | None = None
    beta: Estimate | None = None
    gamma: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class LossTarget:
    """The run that is asked about, and how far beyond the largest one it lies, in compute."""

    params: float
    tokens: float
    flops: float
    beyond: float


def _as_target(best: BudgetOptimum | None, largest: float) -> LossTarget | None:
    if best is None:
        return None
    size, tokens = best.params.value, best.tokens.value
    beyond = best.flops / largest
    return LossTarget(params=size, tokens=tokens, flops=best.flops, beyond=beyond)


@dataclass(frozen=True, kw_only=True)
class RunLoss:
    """A loss with its 95 % interval: that of one run."""

    loss: float
    low: float
    high: float

    @property
    def estimate(self) -> Estimate:
        """The loss as a value with its interval."""
        return Estimate(value=self.loss, low=self.low, high=self.high)


@dataclass(frozen=True, kw_only=True)
class SizeChoice:
    """A model and a run of a study that have about some parameters and tokens."""

    width: int
    depth: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """A run that would help to settle the answer."""

    params: float
    tokens: float
    flops: float
    choice: SizeChoice | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What `prediction.json` holds. Losses are in the unit of the table.

    `band` is the way to that loss, where training curves are known; else `no_band` says why not.
    """

    answer: str
    reasons: tuple[str, ...]
    inputs: Inputs
    law: LossLawValues
    noise: float
    back_test: tuple[LossBackTest, ...]
    target: LossTarget | None = None
    prediction: RunLoss | None = None
    optimum: BudgetOptimum | None = None
    choice: SizeChoice | None = None
    hours: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    notes: tuple[str, ...] = ()
    settle: tuple[Proposed, ...] = ()
    settle_flops: float = 0.0
    band: Band | None = None
    no_band: str = ""
    fixed: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    command: str = ""
    format: int = FORMAT

    @property
    def aim(self) -> LossTarget | None:
        """The run that is asked about: the target, or the best of a budget."""
        return self.target or _as_target(self.optimum, self.inputs.largest_flops)

    def text(self) -> str:
        """The document as it is written."""
        return json_text(self)

    @property
    def sha256(self) -> str:
        """The digest of the document, to be posted before the run begins."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def write(self, folder: Path) -> Path:
        """Write `prediction.json` into `folder`."""
        private_folder(folder)
        write_atomically(folder / DOCUMENT, self.text())
        return folder / DOCUMENT

    def dated(self, folder: Path) -> Prediction:
        """Takes the time of a document in `folder` that says the same: its digest stays."""
        try:
            content = read_bounded(folder / DOCUMENT)
            time = str(parse_json(content)["time"])
        except (OSError, *RECORD_ERRORS, LookupError):
            return self
        earlier = replace(self, time=time)
        return earlier if earlier.text().encode() == content else self

    def keep_earlier(self, folder: Path) -> Path | None:
        """Rename another document in `folder` after its digest: it may have been posted."""
        try:
            earlier = (folder / DOCUMENT).read_bytes()
        except OSError:
            return None
        if earlier == self.text().encode():
            return None
        kept = folder / f"prediction-{hashlib.sha256(earlier).hexdigest()[:12]}.json"
        (folder / DOCUMENT).replace(kept)
        return kept


@dataclass(frozen=True, kw_only=True)
class LossQuestion:
    """What is asked: a target, a budget, or neither: the law alone.

    `fixed`: parameters of the law that are known, by name.
    """

    params: float | None = None
    tokens: float | None = None
    flops: float | None = None
    fixed: Mapping[str, float] = field(default_factory=dict)
    draws: int = DRAWS


@dataclass(frozen=True, kw_only=True)
class NoLossLaw:
    """The answer where runs allow no law yet: cannot say yet. `settle` are runs that would help."""

    reasons: tuple[str, ...]
    settle: tuple[Proposed, ...] = ()
    answer: str = UNDECIDED
    prediction: None = None
    optimum: None = None
    target: None = None


Choose = Callable[[float, float], SizeChoice | None]
"""The model of a study for parameters and tokens."""


def _chosen(runs: Sequence[Proposed], choose: Choose | None) -> tuple[Proposed, ...]:
    return tuple(replace(r, choice=choose and choose(r.params, r.tokens)) for r in runs)


def predict_runs(
    runs: LossRuns,
    question: LossQuestion,
    source: RunsSource = RunsSource(),
    *,
    left_out: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    command: str = "",
    choose: Choose | None = None,
    flops_known: bool = True,
) -> Prediction | NoLossLaw:
    """The law of `runs`, tried backwards, and what it says to the question.

    `choose` gives the model of a study for parameters and tokens. BadInput for a question that the
    runs cannot answer at all.
    """
    try:
        studied = study_law(runs, question)
    except ValueError as error:
        more = _chosen(_one_more(runs, Design.of(runs)), choose)
        return NoLossLaw(reasons=(f"{counted(len(runs), 'run')} of {error}",), settle=more)
    law, rungs, tested, design = studied.law, studied.rungs, studied.tested, studied.law.design
    target = target_of(law, question)
    best = _optimum(studied, question)
    loss = law.loss(target.params, target.tokens) if target else best.loss if best else None
    aim = target or _as_target(best, float(runs.flops.max()))
    reasons = studied.reasons(loss, aim, best)
    settle = _chosen(_next_rung(law, rungs), choose) if reasons else ()
    values = LossLawValues(form=law.form.name, formula=law.form.formula, **law.values())
    fitted = f"the law is fitted to {MOST_FITTED} of the {len(runs)} runs, spread over the compute"
    thinned = [fitted] * (len(runs) > MOST_FITTED)
    # Where FLOPs are in proportion alone, hours by the runs' FLOPs a second would be wrong.
    speed = runs.flops_per_second if flops_known else None
    return Prediction(
        answer=UNDECIDED if reasons else PREDICTED,
        reasons=tuple(reasons),
        inputs=Inputs(
            **vars(source),
            runs=len(runs),
            varied=design.varied,
            rungs=rungs.names,
            flops_per_parameter_and_token=runs.flops_per_product,
            largest_flops=float(runs.flops.max()),
            unit=runs.unit,
            flops_known=flops_known,
            left_out=tuple(left_out),
            unlike=studied.unlike,
            strays=tuple(law.runs.labels[place] for place in law.strays),
        ),
        law=values,
        noise=law.noise,
        back_test=tuple(tested),
        target=target,
        prediction=RunLoss(loss=loss.value, low=loss.low, high=loss.high) if loss else None,
        optimum=best,
        choice=choose(best.params.value, best.tokens.value) if choose and best else None,
        hours=aim.flops / speed / 3600 if aim and speed else None,
        curve=law_curve(law, aim.flops if aim else None),
        notes=(*notes, *thinned, *_far(runs, aim)),
        settle=settle,
        settle_flops=sum(run.flops for run in settle),
        fixed=dict(question.fixed),
        versions={
            "sweeper": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )


@dataclass(frozen=True, eq=False)
class BackTestedLaw:
    """A law of runs, tried backwards on its own rungs, and widened by what that showed."""

    law: LossLaw
    rungs: Rungs
    tested: tuple[LossBackTest, ...]
    tried: tuple[RungMiss, ...]
    unlike: LeftOut | None = None

    def reasons(
        self, loss: Estimate | None, aim: LossTarget | None, best: BudgetOptimum | None
    ) -> list[str]:
        """Why nothing can be said yet; none where the prediction stands."""
        law, rungs, tests, reasons = self.law, self.rungs, self.tested, list[str]()
        form = law.form
        horizons = f"numbers of {law.runs.unit}"
        kinds = {"sizes": law.runs.params, horizons: law.runs.tokens}
        if len(form.terms) == 1:  # along a line of both, sizes tell rungs as well as tokens do
            del kinds["sizes" if form.name == "tokens" else horizons]
        for kind, values in kinds.items():
            if (count := distinct(values)) < RUNGS:
                reasons.append(f"there are {count} {kind}, and a law needs {RUNGS} at least")
        if not tests and not reasons:
            reasons.append(
                f"{len(rungs)} groups of runs are too few to leave the farthest out: the law has "
                "not been tried"
            )
        reasons += [
            f"without {', '.join(test.left_out)} the law says {test.predicted.value:.4f} there "
            f"({test.predicted.low:.4f} to {test.predicted.high:.4f}), and {test.measured:.4f} "
            "was measured"
            for test in tests
            if test.failed
        ]
        if best and best.params.high > WIDEST * best.params.low:
            reasons.append(
                f"the best size may lie anywhere from {best.params.low:.3g} to "
                f"{best.params.high:.3g} parameters"
            )
        # Within the runs' own compute no reach is claimed: the interval is as wide as it is.
        if loss and aim and aim.beyond > 1 and not settled(law, aim.params, aim.tokens, loss):
            floor = law.values()["E"]
            reasons.append(
                f"the floor E is known as {floor.low:.2f} to {floor.high:.2f} alone, the run is "
                f"{aim.beyond:.3g} times the compute of the largest: its loss may come to lie "
                f"anywhere from {loss.low:.4f} to {loss.high:.4f}"
            )
        return reasons


def study_law(runs: LossRuns, question: LossQuestion) -> BackTestedLaw:
    """The law of `runs` with its back-test; ValueError where they are too few for one."""
    # Before anything is fitted: the back-test is of the runs that are like the one to come.
    runs, unlike = choose_runs(runs.spread(MOST_FITTED), *asked_of(runs, question))
    design = Design.of(runs)
    fixed = _fixed(design, question, runs)
    asked: dict[str, Any] = {"draws": question.draws, "fixed": fixed}
    law = fit_law(runs, **asked)
    rungs = Rungs.of(runs, design)
    shorts = short_laws(runs, rungs, strays=law.strays, **asked)
    tried = tuple(miss for short in shorts for miss in short.tried)
    tested = [
        back_test(runs, rungs, short, tried)
        # The longest first. Shorter ladders widen the interval, but are no back-test of this one.
        for short in reversed(shorts)
        if short.kept >= len(rungs) - 2
    ]
    law = replace(law, widened=widening(tried, len(rungs)))
    return BackTestedLaw(law, rungs, tuple(tested), tried, unlike)


def asked_of(runs: LossRuns, question: LossQuestion) -> tuple[float, float]:
    """Tokens a parameter of the run to come, and its compute over the largest run's, if known."""
    flops, largest = question.flops, float(runs.flops.max())
    # Both known: tokens a parameter say which runs are like it, and not the compute alone.
    if question.params and question.tokens:
        flops = question.params * question.tokens * runs.flops_per_product
        return question.tokens / question.params, flops / largest
    return math.inf, flops / largest if flops else 1.0


def _fixed(design: Design, question: LossQuestion, runs: LossRuns) -> Mapping[str, float]:
    names = {*design.form.parameters}
    for name, value in question.fixed.items():
        exponents = sorted(names & {"alpha", "beta", "gamma"})
        if name != "E" and name not in exponents:
            allowed = f"E or {', '.join(exponents)}, since the runs varied {design.varied}"
            raise ConfigError(Keyword("fixed"), name, allowed)
        lowest = float(runs.loss.min())
        if name == "E" and not 0 < value < lowest:
            allowed = f"above 0, and below the lowest loss, {lowest:.4g}"
            raise ConfigError(Keyword("fixed"), f"E={value:g}", allowed)
        if name != "E" and not 0.005 <= value <= 4:
            raise ConfigError(Keyword("fixed"), f"{name}={value:g}", "from 0.005 to 4")
    return question.fixed


def target_of(law: LossLaw, question: LossQuestion) -> LossTarget | None:
    """The run that is asked about; ConfigError where the runs leave a choice of what is missing."""
    params, tokens = question.params, question.tokens
    if params is None and tokens is None:
        return None
    runs, design = law.runs, law.design
    kind, ratio = law.form.name, float(np.median(runs.tokens / runs.params))
    if params is None:
        if kind == "tokens":
            params = float(runs.params[0])
        elif design.line and tokens is not None:
            level, slope = design.line
            params = math.exp((math.log(tokens) - level) / slope)
        else:
            assert tokens is not None
            raise _unnamed(runs, "to_params", tokens / ratio)
    elif tokens is None:
        if kind == "size":
            tokens = float(runs.tokens[0])
        elif design.line:
            tokens = design.tokens_on_line(params)
        else:
            raise _unnamed(runs, "to_tokens", params * ratio)
    assert params is not None and tokens is not None
    design.check_target(runs, params, tokens)
    flops = params * tokens * runs.flops_per_product
    return LossTarget(
        params=params, tokens=tokens, flops=flops, beyond=flops / float(runs.flops.max())
    )


def _unnamed(runs: LossRuns, keyword: str, middle: float) -> MissingValue:
    """The error of runs over sizes and horizons, where one of the target's is not named."""
    what = "tokens" if keyword == "to_tokens" else "parameters"
    return MissingValue(
        Keyword(keyword),
        (
            f", the {what} of the run to come. These runs have "
            f"{tokens_a_parameter(runs.params, runs.tokens)}: in the middle it is ",
            Keyword(keyword, float(f"{middle:.3g}")),
        ),
    )


def _optimum(studied: BackTestedLaw, question: LossQuestion) -> BudgetOptimum | None:
    if question.flops is None:
        return None
    try:
        return optimum(studied.law, question.flops)
    except ValueError as error:
        raise ConfigError(Keyword("flops"), question.flops, f"left out: {error}") from error


def _far(runs: LossRuns, aim: LossTarget | None) -> list[str]:
    """What no interval holds: that the law goes on as far as it is asked to."""
    if aim is None:
        return []
    span = float(runs.flops.max() / runs.flops.min())
    # As far beyond as the runs span, and twice at least: one rung is no ladder to go on from.
    if aim.beyond > max(span, 2.0):
        return [
            f"the run is {aim.beyond:.3g} times the compute of the largest, and the runs span a "
            f"factor of {span:.3g} alone: that the law goes on so far is an assumption, which no "
            "interval holds"
        ]
    if aim.flops < 0.5 * float(runs.flops.min()):
        return ["the run is smaller than all that were measured: laws bend there"]
    return []


def _one_more(runs: LossRuns, design: Design) -> tuple[Proposed, ...]:
    # Where size and tokens were varied apart there is no one direction in which to go on.
    if len(design.form.terms) > 1:
        return ()
    along = runs.tokens if design.form is TOKENS else runs.params
    ratio = (along.max() / along.min()) ** (1 / max(1, distinct(along) - 1))
    params, tokens = float(runs.params.max()), float(runs.tokens.max())
    if design.form is TOKENS:
        tokens *= ratio
    else:
        params *= ratio
        tokens = design.tokens_on_line(params) if design.line else tokens
    return (_proposed(runs, params, tokens),)


def _next_rung(law: LossLaw, rungs: Rungs) -> tuple[Proposed, ...]:
    """The farthest rung's runs, as much farther as it lies beyond the one before it."""
    runs, last = law.runs, len(rungs) - 1
    middles = [float(np.exp(np.log(runs.flops[rungs.index == i]).mean())) for i in range(last + 1)]
    # Rungs that lie close would tell nothing more, far ones cost what nobody pays.
    ratio = min(max(middles[-1] / middles[-2], 1.5), 10.0) if last else 4.0
    of_last = rungs.index == last
    here = np.unique(np.stack([runs.params[of_last], runs.tokens[of_last]]).T, axis=0)
    # Both ends of the budget and some between: the valley's shape is what is missing.
    if len(here) > MOST_PROPOSED:
        here = here[np.linspace(0, len(here) - 1, MOST_PROPOSED).round().astype(int)]
    proposed = []
    for params, tokens in here:
        if rungs.kind == "size" and law.design.line is None:
            place = params * ratio, tokens
        elif rungs.kind == "tokens":
            place = params, tokens * ratio
        else:
            (size,), (horizon,) = law.scaled(params, tokens, np.array([ratio]))
            place = size, horizon
        proposed.append(_proposed(runs, *place))
    return tuple(proposed)


def _proposed(runs: LossRuns, params: float, tokens: float) -> Proposed:
    flops = runs.flops_per_product * params * tokens
    return Proposed(params=float(params), tokens=float(tokens), flops=float(flops))


MOST_PROPOSED = 5
"""Runs of a rung that are proposed: enough for the valley of a budget."""
