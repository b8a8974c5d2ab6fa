"""The report of a study: one HTML page, with one script and one style, that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from sweeper.check.judge import sentence
from sweeper.decide.documents import Documents, TargetDocuments
from sweeper.decide.saving import NO_SIZES, saving, times
from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation
from sweeper.files import private_folder, write_atomically
from sweeper.report.console import (
    ablation_table,
    best_table,
    clip_note,
    plan_table,
    size_text,
    trend_text,
    verdict_table,
)
from sweeper.report.drawing import save, svg
from sweeper.report.figures import (
    best_loss_figure,
    chosen_trials,
    chosen_widths,
    conclusion_so_far,
    learning_rate_figure,
    lines_figure,
    pairs_figure,
    steps_figure,
)
from sweeper.report.ladder import ladder_table
from sweeper.report.trials import (
    Importance,
    hidden_note,
    importance,
    importance_figure,
    parallel_figure,
    searched_axes,
    slices_figure,
)
from sweeper.search.fresh import final_accuracy
from sweeper.search.strategy import Conclusion
from sweeper.stats.estimate import UNKNOWN
from sweeper.stats.ladder import (
    LADDER_AXES,
    LadderSize,
    LadderSoFar,
    Size,
    SizeCurve,
    extent,
)
from sweeper.study.cost import NOT_KNOWN, cost_table
from sweeper.study.folder import StudyFolder, read_document
from sweeper.study.lock import live_holder
from sweeper.sweep.progress import Snapshot
from sweeper.table import Cell, Column, Table, answer, answer_first, duration
from sweeper.trial import Status


def rendered(template: str, *, live: float = 0.0, **values: object) -> str:
    """A page from a template of this package; `live`: it loads itself anew every so many seconds.

    It is then no page of that moment alone: `report.js` asks for it again, and keeps its place.
    """
    # The page's content security policy allows the one script with this digest: names and notes
    # from files can smuggle in no other.
    environment = _environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        script=Markup(script), script_digest=digest, live=live, written=time.time(), **values
    )


def fragment(template: str, **values: object) -> str:
    """A piece of a page, without script, from a template of this package."""
    return _environment().get_template(template).render(**values)


def table_html(shown: Table) -> str:
    """A table as a piece of a page, with its legend and remarks."""
    macros: Any = _environment().get_template("macros.html.j2").module
    return str(macros.table(shown))


def facts(record: Mapping[str, Any]) -> dict[str, str]:
    """A record as rows of text; nulls and the commands are left out."""
    shown = {key: value for key, value in record.items() if value is not None}
    commands = ("command", "target_command")
    return {k.replace("_", " "): _text(value) for k, value in shown.items() if k not in commands}


def _text(value: object) -> str:
    """A value of a record as people write it; what is nested further lies in brackets."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        pairs = [(key, _nested(part)) for key, part in value.items() if part not in (None, "")]
        return ", ".join(f"{str(key).replace('_', ' ')} {text}" for key, text in pairs)
    return ", ".join(map(_nested, value)) if isinstance(value, list) else str(value)


def _nested(value: object) -> str:
    text = _text(value)
    return f"({text or 'none'})" if isinstance(value, Mapping | list) else text


def _loss(loss: float) -> str:
    return f"{loss:.4f} nats" if math.isfinite(loss) else "none: every run diverged or failed"


@cache
def _environment() -> Environment:
    """Jinja with escaping on: names and notes come from files, and are no HTML."""
    environment = Environment(
        loader=PackageLoader("sweeper.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "facts": facts,
        "loss": _loss,
        "short": lambda target: str(target).rpartition(".")[2],
    }
    return environment


STATUSES = get_args(Status)
UNDECIDED = "cannot say yet"
HEADLINES = {
    "holds": "The transfer holds",
    "fails": "The transfer fails",
    UNDECIDED: "Cannot say yet whether the transfer holds",
    "": "The transfer has not been validated yet",
}


KEPT = ("best_loss", "lines")
"""Figures that are files, too; a picture takes as long as the page. The page saves all of them."""


def write_report(
    folder: Path, documents: Documents | None = None, *, live: float = 0.0, is_left: bool = False
) -> Path:
    """Write `report.html` into the study's `folder`, whatever of the study there is so far.

    `documents` are those of the folder, where they were read already.
    The search's figures are put beside it in `figures/`, as PNG and SVG. With `live` the page alone
    is written, which loads itself anew every so many seconds. With `is_left` nobody drives the
    study any more, whatever its lock says. OSError when it cannot be
    written; an older report is then untouched.
    """
    path = StudyFolder(folder).report
    documents = documents or Documents.read(folder)
    found = _search_figures(documents)
    running = Running.read(folder, live) if live else Running.stopped(folder, is_left=is_left)
    write_atomically(path, render(documents, found, running))
    if live:
        return path
    # After the page, which matters more: a full disk then costs pictures alone.
    for name, figure in found.items():
        if name not in KEPT:
            continue
        private_folder(folder / "figures")
        save(figure, folder / "figures" / name)
    return path


@dataclass(frozen=True, kw_only=True)
class Running:
    """What the head of a page says while the study's driver runs, and where one was stopped."""

    every: float
    """Seconds until the page is loaded anew; 0 where nothing runs any more."""
    progress: Snapshot | None = None
    now: float = field(default_factory=time.time)

    @classmethod
    def read(cls, folder: Path, every: float) -> Running:
        """The progress in the study's `folder`."""
        return cls(every=every, progress=read_document(StudyFolder(folder).progress, Snapshot, []))

    @classmethod
    def stopped(cls, folder: Path, *, is_left: bool = False) -> Running | None:
        """How far a driver came that was stopped; None where none was, or one runs.

        `is_left`: the one that is ending just now holds the lock a little longer.
        """
        found = cls.read(folder, 0.0)
        if found.progress is None or found.progress.over:
            return None
        return found if is_left or live_holder(folder) is None else None

    @property
    def sentence(self) -> str:
        """What is trained, how far it is, and how long it will still take."""
        if (progress := self.progress) is None:
            return "starting"
        left = "" if progress.left is None else f", about {duration(progress.left)} left"
        left *= bool(self.every)
        return f"{progress.where()}: {progress.done} of {progress.total} trials{left}"

    @property
    def share(self) -> float:
        """Trials done, of all."""
        return self.progress.done / max(1, self.progress.total) if self.progress else 0.0

    @property
    def ladder(self) -> LadderSoFar | None:
        """The ladder that is trained, where it has points."""
        found = self.progress.ladder if self.progress else None
        return found if found and found.points else None


def _search_figures(documents: Documents) -> dict[str, Figure]:
    """What is drawn of a search, by its name; a tenth of a second each."""
    found: dict[str, Figure] = {}
    # What was stopped early has the loss of a shorter run.
    trials = [r for r in documents.trials.searched if r.status in ("complete", "diverged")]
    conclusion = documents.conclusion
    if conclusion is None and trials:
        conclusion = conclusion_so_far(trials)
    if conclusion is not None and conclusion.best_loss_curve:
        found["best_loss"] = best_loss_figure(conclusion, trials)
    lines = documents.searched.conclusion.lines if documents.searched else ()
    if documents.searched and lines:
        found["lines"] = lines_figure(documents.searched.conclusion, documents.searched.space)
    axes = searched_axes(trials)
    # The lines of a search are its slices, with less beside them.
    if axes and not lines:
        found["slices"] = slices_figure(trials)
    if len(axes) > 1:
        found["parallel"] = parallel_figure(trials)
    return found


def headline(documents: Documents) -> str:
    """What the report of a study says first."""
    text = HEADLINES[_overall(documents.targets)]
    return text[0].lower() + text[1:]


def answer_of(documents: Documents) -> str:
    """The worst answer of all that were validated, empty when none was."""
    return _overall(documents.targets)


def _overall(targets: Iterable[TargetDocuments]) -> str:
    """The worst answer of all that were validated, empty when none was.

    An answer of another kind, such as none yet, leaves it undecided.
    """
    answers = {answer for target in targets for answer in target.answers}
    return next(
        (a for a in ("fails", UNDECIDED, "holds") if a in answers), UNDECIDED * bool(answers)
    )


def render(
    documents: Documents,
    found: Mapping[str, Figure] | None = None,
    running: Running | None = None,
) -> str:
    """The report of a study as HTML; `found` are its search's figures, where they are made.

    With `running` it is the page of a study whose driver runs, or was stopped.
    """
    found = _search_figures(documents) if found is None else found
    # Ids hold for a whole page. Drawings are named in the order in which they are made, so that
    # the same study gives the same page.
    names = map("f{}".format, count(1))

    def drawn(figure: Figure) -> Markup:
        return Markup(svg(figure, next(names)))

    base = ""
    if documents.searched and documents.searched.base:
        base = size_text(documents.searched.base, deep=documents.deep)
    # A diagnosis judges the transfer anew: one that fails is news where nothing was validated.
    failed = any(diagnosis.answer == "fails" for diagnosis in documents.diagnoses)
    transfers = [_transfer(target, drawn, deep=documents.deep) for target in documents.targets]
    matters = importance(documents.conclusion, documents.trials.searched)
    return rendered(
        "report.html.j2",
        live=running.every if running else 0.0,
        documents=documents,
        search=documents.searched,
        conclusion=documents.conclusion,
        answer=_overall(documents.targets) or "fails" * failed,
        headlines=HEADLINES,
        base=base,
        transfers=transfers,
        best=_best(documents),
        figures=_figures(documents, found, matters, drawn),
        matters=matters,
        running=running,
        ladder=_filling(running.ladder, drawn) if running and running.ladder else None,
        hidden=hidden_note(documents.trials.searched),
        axes_count=len(searched_axes(documents.trials.searched)),
        commands=_commands(documents),
        diagnoses=_diagnoses(documents),
        predictions=_predictions(documents),
        checks=_checks(documents, drawn),
        scales=_scales(documents, drawn),
        trials=[(documents.counts[status], status) for status in STATUSES],
        cards=cards(documents),
        costs=_costs(documents, base or "the base"),
        curve_note=_curve_note(documents.conclusion),
        clip_notes=clip_note(documents.trials.current),
    )


Draw = Callable[[Figure], Markup]
"""Makes a drawing of the page of a figure."""


def _figures(
    documents: Documents,
    found: Mapping[str, Figure],
    matters: Importance | str | None,
    drawn: Draw,
) -> dict[str, Markup]:
    """The drawings of the search, by name: those of `found`, and what the page alone has."""
    conclusion = documents.conclusion
    figures = {name: drawn(figure) for name, figure in found.items()}
    if conclusion is not None and conclusion.pairs:
        figures["pairs"] = drawn(pairs_figure(conclusion.pairs))
    ends, widths = chosen_trials(documents.trials), chosen_widths(documents.trials)
    if ends or widths:
        figures["steps"] = drawn(steps_figure(ends, widths))
    if isinstance(matters, Importance):
        figures["importance"] = drawn(importance_figure(matters))
    return figures


def _best(documents: Documents) -> Table | None:
    """The hyperparameters that the search chose."""
    if documents.searched is None or documents.conclusion is None:
        return None
    return best_table(documents.conclusion, documents.searched.space)


def _commands(documents: Documents) -> list[str]:
    """The commands that made the study, each once."""
    plans = [target.plan for target in documents.targets if target.plan]
    recorded = [documents.searched.provenance] if documents.searched else []
    records = (*recorded, *(plan.source for plan in plans))
    # A plan that was made again has another command than its verdict.
    validated = [t.validation.command for t in documents.targets if t.validation]
    made = [*(record.get("command") for record in records), *validated]
    return list(dict.fromkeys(str(command) for command in made if command))


def _diagnoses(documents: Documents) -> list[dict[str, Any]]:
    """The diagnoses as the template shows them."""
    return [
        {
            "axis": diagnosis.axis,
            "answer": diagnosis.answer,
            "conclusion": diagnosis.conclusion,
            "table": ablation_table(diagnosis) if diagnosis.results else None,
        }
        for diagnosis in documents.diagnoses
    ]


def _scales(documents: Documents, drawn: Draw) -> dict[str, Any] | None:
    """The measured scales of operands; None where nothing was measured."""
    if not documents.scales:
        return None
    from sweeper.report.checks import scale_figure, scale_table

    operands = documents.scales
    return {"table": scale_table(operands), "figure": drawn(scale_figure(operands))}


def _filling(ladder: LadderSoFar, drawn: Draw) -> dict[str, Any]:
    """A ladder that is trained: its points, and the curves of those whose runs have all ended."""
    partly = _partly(ladder)
    return {"table": ladder_table(ladder), "figure": drawn(partly) if partly else ""}


def _partly(ladder: LadderSoFar) -> Figure | None:
    """The curves of a ladder that still fills: its points whose runs have all ended."""
    losses: dict[LadderSize, dict[float, tuple[float, ...]]] = {}
    for point in ladder.points:
        if point.complete and not any(map(math.isnan, point.losses)):
            losses.setdefault(point.size, {})[point.value] = point.losses
    if not losses:
        return None
    curves = [SizeCurve(size=size, losses=found) for size, found in sorted(losses.items())]
    sizes = [curve.size for curve in curves]
    axes = [key for key in LADDER_AXES if len({getattr(size, key) for size in sizes}) > 1]
    validation = Validation(
        hyperparameter=ladder.hyperparameter, planned_log2=math.nan, curves=tuple(curves)
    )
    axis = axes[0] if axes else "width"
    figure = learning_rate_figure(validation, Verdict(axis=axis, answer="cannot say yet", sizes=()))
    figure.axes[0].set_title(f"The ladder over {axis.replace('_', ' ')} so far", loc="left")
    return figure


def _predictions(documents: Documents) -> Table | None:
    """The predictions that were written of the study, each a link to its page."""
    if not documents.predictions:
        return None
    columns = [
        Column("prediction", left=True),
        Column("", left=True),
        Column("loss", form=".4f"),
        Column("FLOPs", form=".2e"),
        Column("written", left=True),
    ]
    table = Table("", columns)
    for said in documents.predictions:
        name = Cell(said.name, said.name, link=f"transfer/{said.name}/prediction.html")
        table.add(name, answer(said.answer), said.loss, said.flops, said.time)
    return table


def _transfer(target: TargetDocuments, drawn: Draw, *, deep: bool) -> dict[str, Any]:
    """A target as the template shows it: each axis of its validations, and its plan."""
    plan, label, axes = target.plan, target.name, []
    for validation in filter(None, (target.validation, *target.others)):
        of_eta = validation.hyperparameter == "eta"
        for verdict in validation.axes:
            trend = ""
            if verdict.axis == "width" and validation.trend:
                corrected = bool(plan and plan.source.get("correction"))
                trend = trend_text(validation.trend, applied=corrected)
            axes.append(
                {
                    "verdict": verdict,
                    "hyperparameter": validation.hyperparameter * (not of_eta),
                    "extent": extent(verdict.axis, [size.size for size in verdict.sizes]),
                    "trend": trend,
                    "table": answer_first(verdict_table(verdict, validation.hyperparameter))
                    if verdict.sizes
                    else None,
                    "figure": drawn(learning_rate_figure(validation, verdict))
                    if validation.ladder(verdict.axis)
                    else "",
                }
            )
    exponents = target.validation.exponents if target.validation else ()
    shown: dict[str, Any] = {"axes": axes, "exponents": list(map(str, exponents))}
    if plan is None:
        return shown | {"label": label}
    label = size_text(plan.target, deep=deep)
    if plan.law is not None:
        before, after = plan.law.base, plan.law.target
        # Only a law moves batch and steps: where it has, they are part of the target's name.
        if (before.batch, before.steps) != (after.batch, after.steps):
            label += f", {after.steps:,} steps of {after.batch:,}"
    command = plan.source.get("target_command")
    return shown | {
        "label": label,
        "law": [line.removeprefix("- ") for line in plan.law.lines()] if plan.law else [],
        "parameters": plan_table(plan) if plan.parameters else None,
        "count": len(plan.parameters),
        "operations": {
            name: ", ".join(f"{key} {value:.4g}" for key, value in factors.items())
            for name, factors in plan.operations.items()
        },
        "needs": plan.needs,
        "command": shlex.join(map(str, command)) if isinstance(command, list | tuple) else "",
        "source": facts(plan.source),
    }


def _checks(documents: Documents, drawn: Draw) -> list[dict[str, Any]]:
    """The newest coordinate check, axis by axis."""
    if (record := documents.check) is None:
        return []
    # It brings torch, which no other section needs.
    from sweeper.report.checks import coordinate_figure, coordinate_table

    rule, eta = record.rule, record.log2_hps.get("eta")
    at = f"; log2 η is {eta:g}" if isinstance(eta, int | float) else ""
    return [
        {
            "axis": check.axis,
            "answer": check.answer,
            "sentence": sentence(check, rule),
            "runs": f"{rule.seeds} runs a size, each of {rule.steps} steps on one batch of "
            f"{rule.batch}, at {rule.share:g} times η{at}",
            "table": coordinate_table(check, rule.threshold),
            "figure": drawn(coordinate_figure(check)),
        }
        for check in record.axes
    ]


def _curve_note(conclusion: Conclusion | None) -> str:
    """Why the end of the drawn best loss is another number than the loss of the best, if so."""
    if conclusion is None or not conclusion.best_loss_curve:
        return ""
    last, loss = conclusion.best_loss_curve[-1][1], conclusion.objective
    if not (math.isfinite(last) and math.isfinite(loss)) or f"{last:.4f}" == f"{loss:.4f}":
        return ""
    return (
        f"Its end, {last:.4f} nats, is no second best loss: it counts other seeds than the "
        f"{loss:.4f} nats of the best configuration."
    )


# The head of a report: the few numbers that a reader looks for first.


def cards(documents: Documents) -> list[dict[str, str]]:
    """The few numbers that a reader looks for first: name, value, and what it rests on."""
    shown: list[dict[str, str]] = []

    def add(name: str, value: str, note: str) -> None:
        shown.append({"name": name, "value": value, "note": note})

    # The best eta of the base: measured on its curve, else what the search chose.
    searched, conclusion = documents.searched, documents.conclusion
    name = f"Best η at width {searched.base.width}" if searched and searched.base else "Best η"
    validations = [t.validation for t in reversed(documents.targets) if t.validation]
    verdict = validations[0].over("width") if validations else None
    sizes = verdict.sizes if verdict else ()
    measured = next((size.optimum_log2 for size in sizes if size.is_base), UNKNOWN)
    chosen = conclusion.best_log2.get("eta", math.nan) if conclusion else math.nan
    if math.isfinite(measured.value):
        low, high = measured.low, measured.high
        known = math.isfinite(low) and math.isfinite(high)
        ends = f"95 % interval {2**low:.3g} to {2**high:.3g}" if known else "no interval"
        add(name, f"{2**measured.value:.4g}", f"log2 {measured.value:.2f}; {ends}")
    elif math.isfinite(chosen):
        add(name, f"{2**chosen:.4g}", f"log2 {chosen:g}; no interval before --validate")
    if conclusion is not None and math.isfinite(conclusion.objective):
        note = f"of the best configuration, {conclusion.basis}"
        add(conclusion.loss_name, f"{conclusion.objective:.4f} nats", note)
    if (accuracy := final_accuracy(documents.trials.searched)) is not None:
        note = f"on held-out samples, mean of {accuracy[1]} fresh seeds"
        add("Top-1 accuracy", f"{accuracy[0]:.1%}", note)
    # Of several targets the widest: it is what tuning small was for.
    plans = [target.plan for target in documents.targets if target.plan]
    plan = max(plans, key=lambda plan: plan.target.width, default=None)
    eta = plan.hps.get("eta") if plan else None
    if plan is not None and isinstance(eta, int | float) and math.isfinite(eta):
        origin = str(plan.source.get("eta_from") or "the study")
        note = f"log2 {math.log2(eta):.2f}, from {origin}" if eta > 0 else f"from {origin}"
        add(f"Planned η for width {plan.target.width}", f"{eta:.4g}", note)
    if (saved := saving(documents.trials, plan, documents.flops)) is not None:
        name = f"Tuning here, against width {saved.width}"
        if math.isfinite(saved.factor):
            here, there = (
                duration(cost.seconds) if math.isfinite(cost.seconds) else NOT_KNOWN
                for cost in (saved.tuning, saved.at_target)
            )
            total = times(saved.factor_with_validation)
            note = f"FLOPs; {here} here, about {there} there; with the validation {total}"
            add(name, times(saved.factor), note)
        else:
            add(name, "not known", NO_SIZES)
    return shown


def _costs(documents: Documents, base: str) -> Table | None:
    """What was spent at the `base`, and beside it the same tuning at each plan's target."""
    savings = [
        s for t in documents.targets if (s := saving(documents.trials, t.plan, documents.flops))
    ]
    if not savings:
        return None
    # What was spent is the same beside every target.
    tuning, validation = savings[0].tuning, savings[0].validation
    rows = [([f"tuning at {base}"], tuning)]
    rows += [(["validation on ladders"], validation)] * bool(validation.trials)
    for each in savings:
        size = size_text(Size(width=each.width, depth=each.depth), deep=documents.deep)
        rows.append(([f"the same tuning at {size}"], each.at_target))
    table = cost_table("", ["what"], rows, guessed=[each.at_target for each in savings])
    table.legend = [f"{savings[-1]} Times are those of trials on their devices."]
    return table
