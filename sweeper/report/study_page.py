"""The page of a study: what is known of its transfers, its search, its plans and its costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args
from urllib.parse import quote

from sweeper.decide.documents import Documents, TargetDocuments
from sweeper.decide.ladder_verdict import Answer, Verdict, worst
from sweeper.decide.validation import Validation, unjudged
from sweeper.errors import call_words
from sweeper.files import write_atomically
from sweeper.report import console
from sweeper.report.console import (
    accuracy_note,
    best_table,
    clip_note,
    lines_table,
    pairs_table,
    size_text,
    trend_text,
)
from sweeper.report.drawing import learning_rate_figure
from sweeper.report.next import Next, next_of, report_of, reproducing, target_words
from sweeper.report.page import page
from sweeper.report.sections import (
    Commands,
    Drawing,
    Facts,
    Item,
    Progress,
    Report,
    Section,
    Sentence,
    Shown,
    Verbatim,
)
from sweeper.report.sentences import check_sentence
from sweeper.report.sentences_transfer import exponent_text, unjudged_text
from sweeper.report.trials import ladder_table, trials_table
from sweeper.stats.ladder import extent
from sweeper.study.cost import cost_table, spent
from sweeper.study.folder import StudyFolder, read_document
from sweeper.study.lock import live_holder
from sweeper.study.setup import LADDER_PHASE
from sweeper.sweep.progress import PAGE_EVERY, Snapshot, stopped_at
from sweeper.table import Cell, Column, Table, answer, counted, duration
from sweeper.trial import Status, in_use
from sweeper.verbs.report import ReportAnswer

STATUSES = get_args(Status)
UNDECIDED = "cannot say yet"
HEADLINES = {
    "holds": "The transfer{} holds",
    "fails": "The transfer{} fails",
    UNDECIDED: "Cannot say yet whether the transfer{} holds",
    "": "The transfer has not been validated yet",
}


def presented(answer: ReportAnswer) -> Shown:
    """Write the page anew, and say where it lies."""
    folder, documents, csv = answer.folder, answer.documents, answer.csv
    # A page that its driver keeps writing goes on renewing itself.
    runs = live_holder(folder) is not None
    path = write_report(folder, documents, live=PAGE_EVERY if runs else 0.0)
    items: Sequence[Item] = ()
    document = {"study": folder.name, "report": str(path)}
    if csv is not None:
        items = [Sentence(f"{counted(answer.runs, 'run')} of its validation: {csv}")]
        document["csv"] = str(csv)
    return Shown(
        items=items,
        notes=documents.notices,
        answer=f"Study {folder.name}: {headline(documents)}.",
        places={"report": path},
        document=document,
        next=[next_of(folder)],
    )


def write_report(
    folder: Path, documents: Documents | None = None, *, live: float = 0.0, is_left: bool = False
) -> Path:
    """Write `report.html` into the study's `folder`, whatever of the study there is so far.

    `documents` are those of the folder, where they were read already. With `live` it loads itself
    anew every so many seconds. With `is_left` nobody drives the study any more, whatever its lock
    says. OSError when it cannot be written; an older report is then untouched.
    """
    progress = (
        read_document(StudyFolder(folder).progress, Snapshot, [])
        if live
        else stopped_at(folder, [], is_left=is_left)
    )
    work = [_work(progress, live=bool(live))] if live or progress else []
    following = None if live else next_of(folder)
    report = study_report(documents or Documents.read(folder), work, following)
    path = StudyFolder(folder).report
    write_atomically(path, page(report, live=live))
    return path


def written_page(
    folder: Path, *, live: float = 0.0, is_left: bool = False
) -> tuple[dict[str, Path], list[str]]:
    """Write the study's page: where it lies, or notes why not, which is no reason to fail."""
    try:
        return {"report": write_report(folder, live=live, is_left=is_left)}, []
    except OSError as error:
        why = error.strerror or str(error)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    name = StudyFolder(folder).report.name
    return {"study": folder}, [f"{name} was not written ({why}): `{report_of(folder)}` writes it"]


def headline(documents: Documents) -> str:
    """What the report of a study says first."""
    text = _headline(documents, answer_of(documents))
    return text[0].lower() + text[1:]


def _headline(documents: Documents, code: str) -> str:
    """The answer `code`, and of what it is, where more is carried than was judged."""
    others = any(target.others for target in documents.targets)
    return HEADLINES[code].format(" of eta" * bool(others or _beside(documents)))


def _beside(documents: Documents) -> str:
    """What plans carry beside what was judged; empty before any verdict."""
    validations = [v for t in documents.targets for v in (t.validation, *t.others) if v and v.axes]
    judged = list(dict.fromkeys(validation.hyperparameter for validation in validations))
    if not judged or documents.searched is None:
        return ""
    searched = documents.searched
    return unjudged_text(unjudged(searched.conclusion, searched.space, judged), judged)


def answer_of(documents: Documents) -> str:
    """The worst answer of all that were validated, empty when none was."""
    answers: list[Answer] = [answer for target in documents.targets for answer in target.answers]
    return worst(answers) if answers else ""


def study_report(
    documents: Documents, work: Sequence[Section] = (), following: Next | None = None
) -> Report:
    """All that the records of a study say, the answer first; above it `work` that goes on."""
    searched, base, about = documents.searched, "", "A report of sweeper."
    if searched is not None:
        base = size_text(searched.base, deep=documents.deep) if searched.base else ""
        rules = searched.parameterization.rpartition(".")[2]
        strategy = searched.strategy.rpartition(".")[2]
        about = f"{rules}, searched with {strategy}{f' at {base}' if base else ''}. {about}"
    damaged = ", ".join(documents.damaged)
    lost = f"Damaged, and not shown: {damaged}. The commands that wrote them write them anew."
    loss = documents.conclusion.loss_name if documents.conclusion else "Loss"
    targets = [_Target.of(target, loss, deep=documents.deep) for target in documents.targets]
    sections = [
        *work,
        _answer(documents, targets, following),
        *(section for target in targets for section in target.validations()),
        best_section(documents),
        _search(documents),
        *_checks(documents),
        *(section for target in targets for section in target.planned()),
        *_predictions(documents),
        *_costs(documents, base or "the base"),
        _provenance(documents),
    ]
    return Report(
        title=documents.name,
        about=about,
        notes=[*documents.notices, *[lost] * bool(damaged)],
        sections=sections,
    )


def _work(progress: Snapshot | None, *, live: bool) -> Section:
    """How far work is that goes on, and how long it will still take, or where it was stopped."""
    if progress is None:
        return Section("", [Progress("Running: starting. This page renews itself.", 0.0)])
    where = f"{progress.where()}: {progress.done} of {progress.total} trials"
    text = f"Stopped: {where}. The same command goes on from there."
    if live:
        remaining = "" if progress.left is None else f", about {duration(progress.left)} left"
        text = f"Running: {where}{remaining}. This page renews itself."
    items: list[Item] = [Progress(text, progress.done / max(1, progress.total))]
    if progress.ladder and progress.ladder.points:
        items.append(ladder_table(progress.ladder))
    return Section("", items)


def _answer(documents: Documents, targets: Sequence[_Target], following: Next | None) -> Section:
    code = answer_of(documents)
    etas = {
        target.label: console.planned_eta(plan, target.of_eta())
        for target in targets
        if (plan := target.documents.plan) and "eta" in plan.hps
    }
    each = {eta if len({*etas.values()}) == 1 else f"{eta} ({at})": at for at, eta in etas.items()}
    items: list[Item] = [
        Sentence(f"The learning rate (eta) to train with: {', '.join(each)}")
    ] * bool(etas)
    items += [sentence for target in targets for sentence in target.answers()]
    if documents.check is not None:
        rule = documents.check.rule
        items += [
            Sentence(check_sentence(check, rule), code=check.answer, listed=True)
            for check in documents.check.axes
            if check.answer != "pass"
        ]
    if not items:
        items = [Sentence(_state(documents))]
    if beside := _beside(documents):
        items.append(Sentence(beside))
    if following is not None:
        items.append(Commands(f"Next, {following.why}:", [call_words(following.call)]))
    return Section(_headline(documents, code), items, is_answer=True, code=code or UNDECIDED)


def _state(documents: Documents) -> str:
    searched = documents.searched
    if searched is not None:
        done, so_far = ("is finished", "") if searched.finished else ("has not finished", " so far")
        return f"The search {done}: {searched.conclusion.runs} runs{so_far}."
    if documents.trials.current:
        return "The search has not concluded anything yet."
    return "The search has not written any result yet."


def best_section(documents: Documents) -> Section:
    """The hyperparameters that the search chose."""
    title, searched = "Best measured point", documents.searched
    if searched is None:
        return Section(title, [Sentence("None found yet.")])
    conclusion = searched.conclusion
    if conclusion.untrained:
        return Section(title, [Sentence(f"None: {conclusion.untrained}")])
    loss = "none: every run diverged or failed"
    if math.isfinite(conclusion.objective):
        loss = f"{conclusion.objective:.4f} nats"
    text = f"{conclusion.loss_name} of this configuration: {loss}, {conclusion.basis}."
    # Another configuration may have fresh seeds, too: the best one before, or trained ahead.
    best = in_use(searched.space, conclusion.best_log2)
    notes = accuracy_note(r for r in documents.trials.searched if r.trial.values == best)
    texts = [text, *(f"{note[:1].upper()}{note[1:]}." for note in notes)]
    table = replace(best_table(conclusion, searched.space), title="")
    return Section(title, [*map(Sentence, texts), table])


def _search(documents: Documents) -> Section:
    searched, conclusion = documents.searched, documents.conclusion
    trials = ", ".join(f"{documents.counts[status]} {status}" for status in STATUSES)
    items: list[Item] = [
        Sentence(_state(documents)),
        Sentence(f"Trials of this study, validation included: {trials}."),
        *(Sentence(f"Note: {note}.") for note in clip_note(documents.trials.current)),
        *_search_drawings(documents),
    ]
    if conclusion is not None:
        items += [pairs_table(conclusion.pairs)] * bool(conclusion.pairs)
        items += [Sentence(note, listed=True) for note in conclusion.notes]
    if searched is not None and searched.conclusion.lines:
        items.append(lines_table(searched.conclusion, searched.space))
    if documents.trials.current:
        items.append(trials_table(documents.trials.current, deep=documents.deep))
    return Section("Search", items)


def _search_drawings(documents: Documents) -> list[Item]:
    # What was stopped early has the loss of a shorter run.
    trials = [r for r in documents.trials.searched if r.status in ("complete", "diverged")]
    if not trials:
        return []
    # It brings Optuna, which no other figure needs.
    from sweeper.report.optuna import search_pictures

    space = documents.searched.space if documents.searched else {}

    pictures = search_pictures(trials, space)
    return [
        Drawing(partial(pictures.__getitem__, name), caption=CAPTIONS[name.partition("-")[0]])
        for name in pictures
    ]


CAPTIONS = {
    "history": "Every trial's loss, and the best one so far. The first may lie above the axis.",
    "importance": "Which hyperparameters matter, by Optuna's PED-ANOVA: how far the values of the "
    "best tenth of the trials differ from all values that were tried. It ranks, and says nothing "
    "of the loss; of a search by lines it says little, since these try one hyperparameter at a "
    "time.",
    "parallel": "Parallel coordinates: a line a trial, from its loss through its hyperparameters; "
    "dark is low. What diverged, or has a loss far above the others, stands at the top.",
    "contours": "The two hyperparameters that were tried most together, whatever the others were. "
    "Dots are trials, the color between them is interpolated; dark is low.",
    "slices": "Slices: every trial's loss against one hyperparameter, whatever the others were. "
    "What diverged stands at the top.",
}


def _checks(documents: Documents) -> list[Section]:
    record, scales = documents.check, documents.scales
    if record is None and not scales:
        return []
    # It brings torch, which no other section needs.
    from sweeper.report.checks import check_section, scales_section

    sections = [check_section(check, record) for check in record.axes] if record else []
    return [*sections, *([scales_section(scales)] if scales else [])]


def _predictions(documents: Documents) -> list[Section]:
    if not documents.predictions:
        return []
    columns = [Column("prediction", left=True), Column("", left=True), Column("loss", form=".4f")]
    table = Table("", columns)
    for prediction in documents.predictions:
        link = f"transfer/{quote(prediction.name)}/prediction.html"
        name = Cell(prediction.name, prediction.name, link=link)
        table.add(name, answer(prediction.answer), prediction.loss)
    text = "Predictions by the law of this study's runs; a page each, with the law and its test."
    return [Section("What larger runs will reach", [Sentence(text), table])]


def _provenance(documents: Documents) -> Section:
    record = dict(documents.searched.provenance) if documents.searched else {}
    items: list[Item] = []
    if commands := _commands(documents):
        items.append(Verbatim("\n".join(commands), title="To reproduce"))
    values = {key: value for key, value in record.items() if key not in COMMANDS}
    items.append(Facts(values) if values else Sentence("Not recorded yet."))
    return Section("Provenance", items)


COMMANDS = ("command", "target_command")
"""Keys of records that stand by themselves, to be copied."""


def _commands(documents: Documents) -> list[str]:
    plans = [target.plan for target in documents.targets if target.plan]
    recorded = [documents.searched.provenance] if documents.searched else []
    records = (*recorded, *(plan.source for plan in plans))
    # A plan that was made again has another command than its verdict.
    validated = [t.validation.command for t in documents.targets if t.validation]
    made = [*(record.get("command") for record in records), *validated]
    here = (reproducing(documents.folder, str(command)) for command in made if command)
    return list(dict.fromkeys(here))


@dataclass(frozen=True)
class _Target:
    """A size that was planned or validated, under the name that the page has for it."""

    label: str
    documents: TargetDocuments
    loss: str
    """What the losses are called."""
    deep: bool

    @classmethod
    def of(cls, target: TargetDocuments, loss: str, *, deep: bool) -> _Target:
        """The target by its size; where it has no plan, by its folder."""
        if (plan := target.plan) is None:
            verdicts = target.validation.axes if target.validation else ()
            asked = [f"{v.axis.replace('_', ' ')} {v.target.size}" for v in verdicts if v.target]
            return cls(", ".join(asked) or target.place.name, target, loss, deep)
        label = size_text(plan.target, deep=deep)
        if plan.law is not None:
            before, after = plan.law.base, plan.law.target
            # Only a law moves batch and steps: where it has, they are part of the target's name.
            if (before.batch, before.steps) != (after.batch, after.steps):
                label += f", {after.steps:,} steps of {after.batch:,}"
        return cls(label, target, loss, deep)

    def _verdicts(self) -> Iterator[tuple[Verdict, Validation, str]]:
        for validation in filter(None, (self.documents.validation, *self.documents.others)):
            of = "" if validation.hyperparameter == "eta" else f"{validation.hyperparameter} "
            for verdict in validation.axes:
                yield verdict, validation, f"{of}over {verdict.axis.replace('_', ' ')}"

    def of_eta(self) -> Iterator[Verdict]:
        """The verdicts whose curves are over eta."""
        return (verdict for verdict, by, _ in self._verdicts() if by.hyperparameter == "eta")

    def answers(self) -> Iterator[Sentence]:
        """Each verdict, on its ladder and at the target."""
        is_open, to = True, f"To {self.label}"
        for verdict, _, over in self._verdicts():
            is_open, ladder = False, extent(verdict.axis, [size.size for size in verdict.sizes])
            text = f"{to}, {over}: {verdict.answer} at {ladder}"
            yield Sentence(text, code=verdict.answer, listed=True)
            if verdict.target is not None:
                target = verdict.target.answer
                text = f"{to}, {over}: {target} at the target"
                yield Sentence(text, code=target, listed=True)
        if is_open:
            yield Sentence(f"{to}: a plan, not validated yet", listed=True)

    def validations(self) -> Iterator[Section]:
        """A section a verdict: its sentences, its sizes, its curves."""
        for verdict, validation, over in self._verdicts():
            title = f"Validation {'of ' * (not over.startswith('over'))}{over}, to {self.label}"
            trend = validation.trend if verdict.axis == "width" else None
            plan = self.documents.plan
            corrected = bool(plan and plan.source.get("correction"))
            items = drawn_verdict(verdict, validation, self.loss)
            items += [Sentence(trend_text(trend, applied=corrected))] if trend else []
            yield Section(title, items)

    def planned(self) -> Iterator[Section]:
        """What every parameter gets there, or the command that trains it."""
        plan = self.documents.plan
        if plan is None:
            return
        items: list[Item] = []
        items += console.target_command(target_words(plan, self.documents.place))
        if self.documents.validation and (exponents := self.documents.validation.exponents):
            text = "The law fitted to the ladders, η as a power, with 95 % intervals:"
            items.append(Sentence(text))
            items += [Sentence(exponent_text(exponent), listed=True) for exponent in exponents]
        if plan.parameters or plan.law is not None:
            items += _untitled(console.plan(plan, deep=self.deep))
        if not items:
            return
        source = {key: value for key, value in plan.source.items() if key not in COMMANDS}
        if source:
            title = "Where this plan's numbers come from"
            items.append(Facts(source, title=title, detail=True))
        yield Section(f"Plan for {self.label}", items)


def _untitled(items: Sequence[Item]) -> list[Item]:
    return [replace(item, title="") if isinstance(item, Table) else item for item in items]


def _answer_second(table: Table) -> Table:
    """The table with its last column second: a narrow page may have no room for the last."""
    order = [0, -1, *range(1, len(table.columns) - 1)]
    rows = [replace(row, values=[row.values[place] for place in order]) for row in table.rows]
    return replace(table, columns=[table.columns[place] for place in order], rows=rows)


def drawn_verdict(verdict: Verdict, validation: Validation, loss: str = "Loss") -> list[Item]:
    """A verdict with the curves of what is called `loss`."""
    sentences = _untitled(console.verdict_items(verdict, validation.hyperparameter))
    items = [_answer_second(item) if isinstance(item, Table) else item for item in sentences]
    if validation.ladder(verdict.axis):
        of_eta = validation.hyperparameter == "eta"
        what = "learning rate" if of_eta else validation.hyperparameter
        caption = (
            f"{loss} against the {what}, one curve a size. Curves are means over the seeds. "
            "The dashed line is the transferred one"
            f"{', at the base' if verdict.law else ''}."
        )
        drawn = partial(learning_rate_figure, validation, verdict)
        items.append(Drawing(drawn, caption=caption))
    return items


def _costs(documents: Documents, base: str) -> list[Section]:
    trials, flops = documents.trials, documents.flops
    ladders = [run for run in trials.current if run.trial.phase == LADDER_PHASE]
    rows = [([f"tuning at {base}"], spent(trials.searched, flops))]
    rows += [(["validation on ladders"], spent(ladders, flops))] * bool(ladders)
    table = cost_table("", ["what"], rows)
    table.legend = ["Times are those of trials on their devices."]
    return [Section("What it cost", [table])]
