"""Sections of the report on what other commands found: diagnoses, coordinate checks, scales.

A record that is of another shape than its command writes is as if it were missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from sweeper.errors import ConfigError
from sweeper.files import RECORD_ERRORS
from sweeper.laws.law import AppliedLaw
from sweeper.registry import call_checked
from sweeper.report.documents import Document, Documents, axis_verdict, interval, number
from sweeper.report.drawing import svg
from sweeper.report.progress import duration
from sweeper.report.table import size_words, trend_words
from sweeper.study.setup import LADDER_PHASE
from sweeper.trial import Result, TrialSpec
from sweeper.verdict.compare import Cost, cost_of
from sweeper.verdict.trend import Exponent, Trend

Section = dict[str, Any]
"""What the template shows of a record."""


def _whole(make: Callable[[Any], Section], records: Iterable[Any]) -> list[Section]:
    """The sections of the records that `make` can take apart."""
    found = []
    for record in records:
        try:
            found.append(make(record))
        except (*RECORD_ERRORS, LookupError, ArithmeticError):
            continue
    return found


def diagnoses(records: Iterable[Document]) -> list[Section]:
    """The diagnoses, each with the ablation that explains most first."""
    return _whole(_diagnosis, filter(None, records))


def _diagnosis(record: Document) -> Section:
    results = [_result(result) for result in record["results"]]
    before = record["results"][0]["before"] if results else {}
    return {
        "axis": str(record["axis"]),
        "answer": str(record["answer"]),
        "conclusion": str(record["conclusion"]),
        "before": _numbers(before),
        "results": sorted(results, key=lambda result: -result["order"]),
    }


def _result(record: Document) -> Section:
    """One ablation: its numbers, and what they mean in a sentence."""
    ablation, fraction = record["ablation"], number(record["explained"]["value"])
    return {
        "name": str(ablation["name"]),
        "evidence": str(ablation["evidence"]),
        "sentence": str(record["sentence"]),
        "explained": interval(record["explained"], "{:.0f}", scale=100),
        "bar": round(100 * min(1.0, max(0.0, fraction))) if math.isfinite(fraction) else 0,
        "order": fraction if math.isfinite(fraction) else -1.0,
        **_numbers(record["after"] or {}),
    }


def _numbers(size: Document) -> Section:
    """Shift, loss gap and loss of the large size, with their intervals."""
    return {
        "shift": interval(size.get("shift_log2"), "{:+z.2f}"),
        "loss_gap": interval(size.get("loss_gap"), "{:z.4f}"),
        "loss": interval(size.get("loss"), "{:.4f}"),
    }


def checks(record: Document, name: Callable[[], str]) -> list[Section]:
    """The coordinate check, a section an axis; `name` hands out the drawings' names."""
    return _whole(lambda axis: _check(record, axis, name()), _list(record.get("axes")))


def _check(record: Document, axis: Document, name: str) -> Section:
    # It brings torch, which no other section needs.
    from sweeper.check.judge import CheckRule, CoordinateCheck
    from sweeper.report import checks as show

    found, rule = CoordinateCheck.from_json(axis), record["rule"]
    settled = CheckRule(**{key: rule[key] for key in ("share", "batch", "seeds")})
    eta = number(record["log2_hps"]["eta"])
    note, *legend = show.legend(found, number(rule["threshold"]))
    return {
        "axis": found.axis,
        "answer": found.answer,
        "todo": f"{found.todo(settled)}." * (found.answer == "cannot say"),
        "runs": f"{rule['seeds']} runs a size, each of {rule['steps']} steps on one batch of "
        f"{rule['batch']}, at {number(rule['share']):g} times η; log2 η is {eta:g}",
        "sizes": ", ".join(map(str, found.sizes)),
        "columns": list(show.columns(found)),
        "rows": show.rows(found),
        "note": note,
        "legend": [line.removeprefix("- ") for line in legend],
        "figure": Markup(svg(show.coordinate_figure(found), name)),
    }


def scales(records: Sequence[Document], name: Callable[[], str]) -> list[Section]:
    """The scale report, if there is one."""
    return _whole(lambda found: _scales(found, name()), filter(None, [records]))


def _scales(records: Sequence[Document], name: str) -> Section:
    from sweeper.engine.operand_scales import OperandScale
    from sweeper.report import checks as show

    found = [OperandScale.from_json(record) for record in records]
    columns, rows = show.scale_table(found)
    return {
        "columns": columns,
        "rows": rows,
        "note": show.SCALES_NOTE,
        "figure": Markup(svg(show.scale_figure(found), name)),
    }


def law(plan: Document) -> list[str]:
    """The lines on the law of a plan; none without one."""
    applied = _law(plan)
    return [line.removeprefix("- ") for line in applied.lines()] if applied else []


def trend(validation: Document, *, corrected: bool) -> str:
    """What the optima over width predict for the target, as the terminal says it; empty: none."""
    if not validation.get("trend"):
        return ""
    try:
        return trend_words(call_checked(Trend, validation["trend"], {}), applied=corrected)
    except ConfigError:
        return ""


def exponents(validation: Document) -> list[str]:
    """The law that was fitted to the ladders, a line an exponent; none without one."""
    fitted = validation.get("exponents") or {}
    try:
        return [str(call_checked(Exponent, one, {})) for one in _list(fitted.get("exponents"))]
    except ConfigError:
        return []


def target_words(plan: Document, name: str, *, deep: bool) -> str:
    """A plan's target in words; the folder's `name` where there is no plan."""
    if not (size := plan.get("target")):
        return name
    words, applied = size_words(size, deep=deep), _law(plan)
    if applied is None:
        return words
    base, target = applied.base, applied.target
    if (base.batch, base.steps) == (target.batch, target.steps):
        return words
    return f"{words}, {target.steps:,} steps of {target.batch:,}"


def _law(plan: Document) -> AppliedLaw | None:
    if not plan.get("law"):
        return None
    try:
        applied: AppliedLaw = call_checked(AppliedLaw, plan["law"], {})
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return applied


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# The head of a report: the best learning rate, the plan, and what tuning small has saved.


ENGINE = "engine"
"""The runner whose trials' FLOPs are known; how much a command computes is not."""
NO_SIZES = "the FLOPs of these trials are not known"


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Tuning at the base, its proof, and the same tuning at the target, of `width` and `depth`.

    FLOPs are NaN where they are not known. `at_target.hours` follow from the speed of the trials
    of `timed_width`, the widest that were trained.
    """

    width: int
    depth: int
    tuning: Cost
    proving: Cost
    at_target: Cost
    timed_width: int
    device: str

    @property
    def factor(self) -> float:
        """So many times less than at the target: FLOPs of tuning, without the proof."""
        return self.at_target.flops / self.tuning.flops if self.tuning.flops else math.nan

    @property
    def factor_with_proof(self) -> float:
        """Likewise, the proof counted."""
        spent = self.tuning.flops + self.proving.flops
        return self.at_target.flops / spent if spent else math.nan


def flops_of(spec: TrialSpec) -> float:
    """FLOPs of a whole run; NaN where they are not known: of commands, and of lost models."""
    if spec.runner.get("name", ENGINE) != ENGINE:
        return math.nan
    return _engine_flops(spec)


@lru_cache(maxsize=256)
def _engine_flops(spec: TrialSpec) -> float:
    # It brings torch, which a study without trials does not need.
    from sweeper.engine.prepare import prepare

    try:
        return prepare(spec).flops()
    except Exception:  # a model of the user's own that is gone, or needs what is not here
        return math.nan


def saving(
    documents: Documents, plan: Document, flops: Callable[[TrialSpec], float] = flops_of
) -> Saving | None:
    """What the study spent, and what the same search at the plan's target would; None: no trials.

    The trials at the target are those of the search, run for run, each for as many of its steps.
    """
    searched = documents.trials.searched
    try:
        target = _target(searched[-1].trial.spec, plan)
    except (*RECORD_ERRORS, LookupError):  # no trials, no target, or one of another shape
        return None
    proofs = [one for one in documents.trials.current if one.trial.phase == LADDER_PHASE]
    at_target = cost_of(searched, lambda spec: flops(_target(spec, plan)))
    speed, widest, device = _speed([*searched, *proofs], flops)
    hours = at_target.flops / speed / 3600 if speed else math.nan
    return Saving(
        width=target.width,
        depth=target.depth,
        tuning=cost_of(searched, flops),
        proving=cost_of(proofs, flops),
        at_target=replace(at_target, hours=hours),
        timed_width=widest,
        device=device,
    )


def _target(spec: TrialSpec, plan: Document) -> TrialSpec:
    """A trial's specification at the plan's target, trained as its law says."""
    size = plan["target"]
    scale = (plan.get("law") or {}).get("target") or {}
    train = spec.train
    if scale:
        train = replace(train, batch_size=int(scale["batch"]), steps=int(scale["steps"]))
    return replace(spec, width=int(size["width"]), depth=int(size["depth"]), train=train)


def _speed(
    results: Sequence[Result], flops: Callable[[TrialSpec], float]
) -> tuple[float, int, str]:
    """FLOPs a second of the widest trials, their width and device; 0 where none was timed."""
    timed = [one for one in results if one.seconds > 0]
    if not timed:
        return 0.0, 0, ""
    widest = max(one.trial.width for one in timed)
    cost = cost_of([one for one in timed if one.trial.width == widest], flops)
    device = next(one.device for one in timed if one.trial.width == widest)
    return cost.flops / (3600 * cost.hours), widest, device


def cards(documents: Documents) -> list[dict[str, str]]:
    """The few numbers that a reader looks for first: name, value, and what it rests on."""
    target = max(documents.targets, key=_width, default=None)
    plan = target.plan if target is not None else {}
    validation = next((t.validation for t in reversed(documents.targets) if t.validation), {})
    best = [_optimum(documents.search, validation), _loss(documents.search)]
    return [card for card in [*best, _planned(plan), _saved(documents, plan)] if card]


def _width(target: Any) -> int:
    return int((target.plan.get("target") or {}).get("width", 0))


def _optimum(search: Document, validation: Document) -> dict[str, str] | None:
    """The best eta of the base: measured on its curve, else what the search chose."""
    sizes = axis_verdict(validation, "width").get("sizes") or ()
    base: Document = next((size for size in sizes if size.get("is_base")), {})
    estimate = base.get("optimum_log2") or {}
    value, low, high = (number(estimate.get(key)) for key in ("value", "low", "high"))
    width = (search.get("base") or {}).get("width")
    name = f"Best η at width {width}" if width else "Best η"
    if math.isfinite(value):
        known = math.isfinite(low) and math.isfinite(high)
        span = f"95 % interval {2**low:.3g} to {2**high:.3g}" if known else "no interval"
        return _card(name, f"{2**value:.4g}", f"log2 {value:.2f}; {span}")
    log2 = number((search.get("best_log2") or {}).get("eta"))
    if not math.isfinite(log2):
        return None
    return _card(name, f"{2**log2:.4g}", f"log2 {log2:g}; no interval before --validate")


def _loss(search: Document) -> dict[str, str] | None:
    loss, seeds = number(search.get("objective")), search.get("seeds")
    if not math.isfinite(loss):
        return None
    note = f"of the best configuration, {'one seed' if seeds == 1 else f'mean over {seeds} seeds'}"
    return _card("Training loss", f"{loss:.4f} nats", note)


def _planned(plan: Document) -> dict[str, str] | None:
    eta, size = number((plan.get("hps") or {}).get("eta")), plan.get("target") or {}
    if not math.isfinite(eta) or not size:
        return None
    origin = str((plan.get("source") or {}).get("eta_from") or "the study")
    words = f"log2 {math.log2(eta):.2f}, from {origin}" if eta > 0 else f"from {origin}"
    return _card(f"Planned η for width {size['width']}", f"{eta:.4g}", words)


def _saved(documents: Documents, plan: Document) -> dict[str, str] | None:
    """Against tuning at the target, in FLOPs."""
    found = saving(documents, plan)
    if found is None:
        return None
    name = f"Tuning here, against width {found.width}"
    if not math.isfinite(found.factor):
        return _card(name, "not known", NO_SIZES)
    hours = f"{_time(found.tuning)} here, about {_time(found.at_target)} there"
    note = f"FLOPs; {hours}; with the proof {times(found.factor_with_proof)}"
    return _card(name, times(found.factor), note)


def _time(cost: Cost) -> str:
    return duration(3600 * cost.hours) if math.isfinite(cost.hours) else "not known"


def saving_words(found: Saving) -> str:
    """What the table of costs says, and what its last row rests on."""
    if not math.isfinite(found.factor):
        return f"{NO_SIZES.capitalize()}, so neither is what tuning at the target would cost."
    words = (
        f"Tuning here took {times(found.factor)} FLOPs than the same tuning at width {found.width} "
        f"would, and with the proof {times(found.factor_with_proof)}. The row of that tuning is no "
        "measurement: it is the search's own trials, run for run, at the target's size"
    )
    if not found.timed_width:
        return words + "."
    device = f" on {found.device}" if found.device else ""
    return (
        f"{words}, and the time that they would take at the speed of the trials of width "
        f"{found.timed_width}{device}."
    )


def times(factor: float) -> str:
    """A saving in words: 29 times fewer, 1.4 times more."""
    word, size = ("fewer", factor) if factor >= 1 else ("more", 1 / factor)
    return f"{size:.2g} times {word}" if size < 10 else f"{size:,.0f} times {word}"


def _card(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "note": note}


def cost_rows(every: Sequence[Saving], base: str, *, deep: bool = True) -> list[dict[str, str]]:
    """The table of what was spent, and of what was not, a row a target: trials, FLOPs, time."""
    tuning, proving = every[0].tuning, every[0].proving
    rows = [(f"tuning at {base}", tuning, "")]
    rows += [("proving it on ladders", proving, "")] * bool(proving.trials)
    for one in every:
        size = size_words({"width": one.width, "depth": one.depth}, deep=deep)
        there = f"the same tuning at {size}"
        rows.append((there, one.at_target, "≈ "))
    return [
        {
            "what": what,
            "trials": f"{cost.trials:,}",
            "flops": f"{cost.flops:.2e}" if math.isfinite(cost.flops) else "not known",
            "time": about * math.isfinite(cost.hours) + _time(cost),
        }
        for what, cost, about in rows
    ]
