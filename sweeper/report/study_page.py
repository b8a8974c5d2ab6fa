"""The page of a study: what is known of its transfers, its search, its plans and its costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args
from urllib.parse import quote

from matplotlib.figure import Figure

from sweeper.command.logged import logged
from sweeper.decide.documents import Documents, TargetDocuments
from sweeper.decide.saving import saving
from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation, unjudged
from sweeper.errors import call_words
from sweeper.files import private_folder, write_atomically
from sweeper.plan.plan import TransferPlan
from sweeper.report.answer import (
    Commands,
    Drawing,
    Facts,
    Item,
    KeyNumber,
    KeyNumbers,
    Progress,
    Report,
    Section,
    Sentence,
    Verbatim,
)
from sweeper.report.console import (
    best_table,
    clip_note,
    lines_table,
    plan_table,
    size_text,
    trend_text,
    verdict_sentences,
    verdict_table,
)
from sweeper.report.drawing import save
from sweeper.report.figures import (
    best_loss_figure,
    chosen_trials,
    chosen_widths,
    conclusion_so_far,
    learning_rate_figure,
    lines_figure,
    metrics_figure,
    pairs_figure,
    steps_figure,
)
from sweeper.report.ladder import ladder_table
from sweeper.report.next import Next, next_of, report_of
from sweeper.report.page import page
from sweeper.report.sentences import check_sentence, saving_text, times
from sweeper.report.sentences_transfer import exponent_text, unjudged_text
from sweeper.report.trials import trials_table
from sweeper.search.fresh import final_accuracy
from sweeper.search.strategy import Conclusion
from sweeper.stats.estimate import UNKNOWN
from sweeper.stats.ladder import LADDER_AXES, LadderSize, LadderSoFar, Size, SizeCurve, extent
from sweeper.study.cost import NOT_KNOWN, cost_table
from sweeper.study.folder import StudyFolder, read_document
from sweeper.study.lock import live_holder
from sweeper.study.searched import Searched
from sweeper.sweep.progress import Snapshot
from sweeper.table import Cell, Column, Table, answer, answer_first, duration
from sweeper.trial import Status

STATUSES = get_args(Status)
UNDECIDED = "cannot say yet"
HEADLINES = {
    "holds": "The transfer{} holds",
    "fails": "The transfer{} fails",
    UNDECIDED: "Cannot say yet whether the transfer{} holds",
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
    figures = _search_figures(documents)
    running = Running.read(folder, live) if live else Running.stopped(folder, is_left=is_left)
    following = None if live else next_of(folder)
    write_atomically(path, render(documents, figures, running, following))
    if live:
        return path
    # After the page, which matters more: a full disk then costs pictures alone.
    for name, figure in figures.items():
        if name not in KEPT:
            continue
        private_folder(folder / "figures")
        save(figure, folder / "figures" / name)
    return path


def written_page(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Write the study's page: where it lies, and notes where it cannot be written.

    That costs nothing else: the results are recorded, and a verb's answer is still to come.
    """
    path = StudyFolder(folder).report
    try:
        return {"report": write_report(folder)}, []
    except OSError as error:
        # Its figures are written after it.
        failed, why = Path(error.filename or path), error.strerror or str(error)
    except Exception as error:
        failed, why = path, " ".join(f"{type(error).__name__}: {error}".split())
    note = f"{failed.name} was not written ({why}): `{report_of(folder)}` writes it"
    return {"study": folder} if failed == path else {"report": path}, [note]


@dataclass(frozen=True, kw_only=True)
class Running:
    """What the head of a page says while the study's driver runs, and where one was stopped."""

    every: float
    """Seconds until the page is loaded anew; 0 where nothing runs any more."""
    progress: Snapshot | None = None

    @classmethod
    def read(cls, folder: Path, every: float) -> Running:
        """The progress in the study's `folder`."""
        return cls(every=every, progress=read_document(StudyFolder(folder).progress, Snapshot, []))

    @classmethod
    def stopped(cls, folder: Path, *, is_left: bool = False) -> Running | None:
        """How far a driver came that was stopped; None where none was, or one runs.

        `is_left`: the one that is ending just now holds the lock a little longer.
        """
        stopped = cls.read(folder, 0.0)
        if stopped.progress is None or stopped.progress.over:
            return None
        return stopped if is_left or live_holder(folder) is None else None

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
        ladder = self.progress.ladder if self.progress else None
        return ladder if ladder and ladder.points else None


def _search_figures(documents: Documents) -> dict[str, Figure]:
    """What is drawn of a search, by its name; a tenth of a second each."""
    figures: dict[str, Figure] = {}
    # What was stopped early has the loss of a shorter run.
    trials = [r for r in documents.trials.searched if r.status in ("complete", "diverged")]
    conclusion = documents.conclusion
    if conclusion is None and trials:
        conclusion = conclusion_so_far(trials)
    if conclusion is not None and conclusion.best_loss_curve:
        figures["best_loss"] = best_loss_figure(conclusion, trials)
    lines = documents.searched.conclusion.lines if documents.searched else ()
    if documents.searched and lines:
        figures["lines"] = lines_figure(
            documents.searched.conclusion, documents.searched.space, trials
        )
    if trials:
        # It brings Optuna, which no other figure needs.
        from sweeper.report.optuna import search_pictures

        space = documents.searched.space if documents.searched else {}
        figures |= search_pictures(trials, space, lines=bool(lines))
    return figures


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
    found = documents.searched
    return unjudged_text(unjudged(found.conclusion, found.space, judged), judged)


def answer_of(documents: Documents) -> str:
    """The worst answer of all that were validated, empty when none was.

    An answer of another kind, such as none yet, leaves it undecided.
    """
    answers = {answer for target in documents.targets for answer in target.answers}
    return next(
        (a for a in ("fails", UNDECIDED, "holds") if a in answers), UNDECIDED * bool(answers)
    )


def render(
    documents: Documents,
    figures: Mapping[str, Figure] | None = None,
    running: Running | None = None,
    following: Next | None = None,
) -> str:
    """The report of a study as HTML; `figures` are its search's figures, where they are made.

    With `running` it is the page of a study whose driver runs, or was stopped; `following` is the
    command that goes on with it.
    """
    report = study_report(documents, figures, running, following)
    return page(report, live=running.every if running else 0.0)


def study_report(
    documents: Documents,
    figures: Mapping[str, Figure] | None = None,
    running: Running | None = None,
    following: Next | None = None,
) -> Report:
    """All that the records of a study say, the answer first."""
    figures = _search_figures(documents) if figures is None else figures
    searched, base, about = documents.searched, "", "A report of sweeper."
    if searched is not None:
        base = size_text(searched.base, deep=documents.deep) if searched.base else ""
        rules, strategy = (name.rpartition(".")[2] for name in _names(searched))
        about = f"{rules}, searched with {strategy}{f' at {base}' if base else ''}. {about}"
    damaged = ", ".join(documents.damaged)
    lost = f"Damaged, and not shown: {damaged}. The commands that wrote them write them anew."
    loss = documents.conclusion.loss_name if documents.conclusion else "Loss"
    targets = [_Target.of(target, loss, deep=documents.deep) for target in documents.targets]
    sections = [
        *([_running(running)] if running else []),
        _answer(documents, targets, following),
        Section("", [KeyNumbers(cards(documents))]),
        *(section for target in targets for section in target.validations()),
        _best(documents),
        _search(documents, figures),
        *_checks(documents),
        *_scales(documents),
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


def _names(searched: Searched) -> tuple[str, str]:
    return searched.parameterization, searched.strategy


def _running(running: Running) -> Section:
    """How far the study's driver is, and the ladder that it trains."""
    text = f"Running: {running.sentence}. This page renews itself."
    if not running.every:
        text = f"Stopped: {running.sentence}. The same command goes on from there."
    items: list[Item] = [Progress(text, running.share)]
    if (ladder := running.ladder) is not None:
        items.append(ladder_table(ladder))
        if (figure := _partly(ladder)) is not None:
            caption = "The points whose runs have all ended: no verdict yet, and no optimum."
            items.append(Drawing(lambda: figure, caption=caption))
    return Section("", items)


def _answer(documents: Documents, targets: Sequence[_Target], following: Next | None) -> Section:
    """What the page says first: each verdict, and checks that speak against it."""
    code = answer_of(documents)
    items: list[Item] = [sentence for target in targets for sentence in target.answers()]
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
    """How far a study is that has neither plan nor check."""
    searched = documents.searched
    if searched is not None and searched.finished:
        return "The search is finished. No plan has been made from it yet."
    if searched is not None:
        runs = searched.conclusion.runs
        return f"The search has not finished. This is its state after {runs} runs."
    if documents.trials.current:
        return "The search has not concluded anything yet."
    return "The search has not written any result yet."


def _best(documents: Documents) -> Section:
    """The hyperparameters that the search chose."""
    title, searched = "Best hyperparameters", documents.searched
    if searched is None:
        return Section(title, [Sentence("None found yet.")])
    conclusion = searched.conclusion
    loss = "none: every run diverged or failed"
    if math.isfinite(conclusion.objective):
        loss = f"{conclusion.objective:.4f} nats"
    text = f"{conclusion.loss_name} of this configuration: {loss}, {conclusion.basis}."
    table = replace(best_table(conclusion, searched.space), title="")
    return Section(title, [Sentence(text), table])


def _search(documents: Documents, figures: Mapping[str, Figure]) -> Section:
    """How the search went: its trials, its figures, its notes."""
    searched, conclusion = documents.searched, documents.conclusion
    if searched is not None and conclusion is not None:
        done = "is finished" if searched.finished else "has not finished"
        so_far = "" if searched.finished else " so far"
        text = f"The search {done}: {conclusion.runs} runs{so_far}."
    else:
        text = _state(documents)
    trials = ", ".join(f"{documents.counts[status]} {status}" for status in STATUSES)
    items: list[Item] = [
        Sentence(text),
        Sentence(f"Trials of this study, validation included: {trials}."),
        *(Sentence(f"Note: {note}.") for note in clip_note(documents.trials.current)),
        *_search_drawings(documents, figures),
    ]
    if conclusion is not None:
        if conclusion.combination:
            summary = conclusion.combination.summary
            text = "All optima of the lines together, against the best single change"
            items.append(Sentence(f"{text}: {summary}."))
        if conclusion.retune:
            text = "A last line over eta around the configuration that was kept"
            items.append(Sentence(f"{text}: {conclusion.retune.summary}."))
        items += [Sentence(note, listed=True) for note in conclusion.notes]
    if searched is not None and searched.conclusion.lines:
        items.append(replace(lines_table(searched.conclusion, searched.space), detail=True))
    if documents.trials.current:
        items.append(trials_table(documents.trials.current, deep=documents.deep))
    return Section("Search", items)


def _search_drawings(documents: Documents, figures: Mapping[str, Figure]) -> list[Item]:
    """The figures of a search: those of `figures`, and what the page alone has."""
    conclusion, trials = documents.conclusion, documents.trials
    items: list[Item] = []

    def draw(name: str, caption: str) -> None:
        if (figure := figures.get(name)) is not None:
            items.append(Drawing(lambda: figure, caption=caption))

    order = ", in the order in which they ended" if conclusion else ""
    draw("best_loss", f"{BEST_LOSS}{order}. {_curve_note(conclusion)}")
    draw("importance", IMPORTANCE)
    draw("parallel", PARALLEL)
    draw("contours", CONTOURS)
    for name in figures:
        if name.startswith("slices"):
            draw(name, SLICES)
    if conclusion is not None and conclusion.pairs:
        items.append(Drawing(partial(pairs_figure, conclusion.pairs), caption=PAIRS))
    draw("lines", LINES)
    ends, widths = chosen_trials(trials), chosen_widths(trials)
    if ends or widths:
        items.append(Drawing(partial(steps_figure, ends, widths), caption=STEPS))
    if documents.folder is not None:
        place = StudyFolder(documents.folder).trials
        logs = [(each, logged(place / each.result.key)) for each in (*ends, *widths)]
        if logs := [(each, curves) for each, curves in logs if curves]:
            items.append(Drawing(partial(metrics_figure, logs), caption=METRICS))
    return items


BEST_LOSS = (
    "The best loss against the runs spent: a configuration counts with the mean over its seeds, so "
    "the curve may rise, as where fresh seeds compare. The first runs may lie above the axis. Dots "
    "are single trials"
)
IMPORTANCE = (
    "Which hyperparameters matter, by Optuna's PED-ANOVA: how far the values of the best tenth of "
    "the trials differ from all values that were tried. It ranks, and says nothing of the loss; of "
    "a search by lines it says little, since these try one hyperparameter at a time."
)
PARALLEL = (
    "Parallel coordinates: a line a trial, from its loss through its hyperparameters; dark is low. "
    "What diverged, or has a loss far above the others, stands at the top."
)
SLICES = (
    "Slices: every trial's loss against one hyperparameter, whatever the others were. What "
    "diverged stands at the top."
)
PAIRS = (
    "Pairs of hyperparameters. Where the optima of all rows lie in one column, and those of the "
    "columns in one row, the two do not depend on each other. The transfer error is the mean loss "
    "in nats by taking the optimum of another row or column."
)
CONTOURS = (
    "The two hyperparameters that were tried most together, whatever the others were. Dots are "
    "trials, the color between them is interpolated; dark is low."
)
LINES = (
    "One line search a panel: the loss against one hyperparameter, the others fixed. Bars: the "
    "standard error of a mean over seeds."
)
STEPS = (
    "The training loss over the steps, each point the mean of a stretch of the run. Best, median "
    "and worst are single runs of the search that reached the end, by the loss of their last "
    "steps; what diverged is not among them. Of each width of the ladder: the first seed at the "
    "learning rate of the least mean loss. The number beside a name is that run's own loss."
)
METRICS = (
    "What the logs of these runs say beside the loss, whatever they print with a step. The names "
    "are the script's."
)


def _checks(documents: Documents) -> list[Section]:
    """The newest coordinate check, axis by axis."""
    if (record := documents.check) is None:
        return []
    # It brings torch, which no other section needs.
    from sweeper.report.checks import check_section

    return [check_section(check, record) for check in record.axes]


def _scales(documents: Documents) -> list[Section]:
    """The measured scales of operands; empty where nothing was measured."""
    if not documents.scales:
        return []
    from sweeper.report.checks import scales_section

    return [scales_section(documents.scales)]


def _partly(ladder: LadderSoFar) -> Figure | None:
    """The curves of a ladder that still fills: its points whose runs have all ended."""
    losses: dict[LadderSize, dict[float, tuple[float, ...]]] = {}
    for point in ladder.points:
        if point.complete and not any(map(math.isnan, point.losses)):
            losses.setdefault(point.size, {})[point.value] = point.losses
    if not losses:
        return None
    curves = [SizeCurve(size=size, losses=points) for size, points in sorted(losses.items())]
    sizes = [curve.size for curve in curves]
    axes = [key for key in LADDER_AXES if len({getattr(size, key) for size in sizes}) > 1]
    validation = Validation(
        hyperparameter=ladder.hyperparameter, planned_log2=math.nan, curves=tuple(curves)
    )
    axis = axes[0] if axes else "width"
    figure = learning_rate_figure(validation, Verdict(axis=axis, answer="cannot say yet", sizes=()))
    figure.axes[0].set_title(f"The ladder over {axis.replace('_', ' ')} so far", loc="left")
    return figure


def _predictions(documents: Documents) -> list[Section]:
    """The predictions that were written of the study, each a link to its page."""
    if not documents.predictions:
        return []
    columns = [
        Column("prediction", left=True),
        Column("", left=True),
        Column("loss", form=".4f"),
        Column("FLOPs", form=".2e"),
        Column("written", left=True),
    ]
    table = Table("", columns)
    for prediction in documents.predictions:
        name = Cell(
            prediction.name,
            prediction.name,
            link=f"transfer/{quote(prediction.name)}/prediction.html",
        )
        table.add(
            name, answer(prediction.answer), prediction.loss, prediction.flops, prediction.time
        )
    text = "Predictions by the law of this study's runs; a page each, with the law and its test."
    return [Section("What larger runs will reach", [Sentence(text), table])]


def _provenance(documents: Documents) -> Section:
    """The commands that made the study, and with what."""
    record = dict(documents.searched.provenance) if documents.searched else {}
    items: list[Item] = []
    if commands := _commands(documents):
        items.append(Verbatim("\n".join(commands), title="To reproduce"))
    values = {key: value for key, value in record.items() if key not in COMMANDS}
    items.append(Facts(values) if values else Sentence("Not recorded yet."))
    if documents.config:
        title = "The configuration, config.yaml"
        items.append(Verbatim(documents.config, title=title, detail=True))
    return Section("Provenance", items)


COMMANDS = ("command", "target_command")
"""Of records: they stand by themselves, to be copied."""


def _commands(documents: Documents) -> list[str]:
    """The commands that made the study, each once."""
    plans = [target.plan for target in documents.targets if target.plan]
    recorded = [documents.searched.provenance] if documents.searched else []
    records = (*recorded, *(plan.source for plan in plans))
    # A plan that was made again has another command than its verdict.
    validated = [t.validation.command for t in documents.targets if t.validation]
    made = [*(record.get("command") for record in records), *validated]
    return list(dict.fromkeys(str(command) for command in made if command))


@dataclass(frozen=True)
class _Target:
    """A size that was planned or validated, under the name that the page has for it."""

    label: str
    documents: TargetDocuments
    loss: str
    """What the losses are called."""

    @classmethod
    def of(cls, target: TargetDocuments, loss: str, *, deep: bool) -> _Target:
        """The target by its size; where it has no plan, by its folder."""
        if (plan := target.plan) is None:
            verdicts = target.validation.axes if target.validation else ()
            asked = [f"{v.axis.replace('_', ' ')} {v.target.size}" for v in verdicts if v.target]
            return cls(", ".join(asked) or target.name, target, loss)
        label = size_text(plan.target, deep=deep)
        if plan.law is not None:
            before, after = plan.law.base, plan.law.target
            # Only a law moves batch and steps: where it has, they are part of the target's name.
            if (before.batch, before.steps) != (after.batch, after.steps):
                label += f", {after.steps:,} steps of {after.batch:,}"
        return cls(label, target, loss)

    def _verdicts(self) -> Iterator[tuple[Verdict, Validation, str]]:
        """Each verdict with what it is over, such as "weight_decay over width"."""
        for validation in filter(None, (self.documents.validation, *self.documents.others)):
            of = "" if validation.hyperparameter == "eta" else f"{validation.hyperparameter} "
            for verdict in validation.axes:
                yield verdict, validation, f"{of}over {verdict.axis.replace('_', ' ')}"

    def answers(self) -> Iterator[Sentence]:
        """Each verdict, on its ladder and at the target."""
        is_open = True
        for verdict, _, over in self._verdicts():
            is_open, ladder = False, extent(verdict.axis, [size.size for size in verdict.sizes])
            text = f"To {self.label}, {over}: {verdict.answer} at {ladder}"
            yield Sentence(text, code=verdict.answer, listed=True)
            if verdict.target is not None:
                target = verdict.target.answer
                text = f"To {self.label}, {over}: {target} at the target"
                yield Sentence(text, code=target, listed=True)
        if is_open:
            yield Sentence(f"To {self.label}: a plan, not validated yet", listed=True)

    def validations(self) -> Iterator[Section]:
        """A section a verdict: its sentences, its sizes, its curves."""
        for verdict, validation, over in self._verdicts():
            title = f"Validation {'of ' * (not over.startswith('over'))}{over}, to {self.label}"
            trend = validation.trend if verdict.axis == "width" else None
            plan = self.documents.plan
            corrected = bool(plan and plan.source.get("correction"))
            items = verdict_items(verdict, validation, self.loss)
            items += [Sentence(trend_text(trend, applied=corrected))] if trend else []
            yield Section(title, items)

    def planned(self) -> Iterator[Section]:
        """What every parameter gets there, or the command that trains it."""
        plan = self.documents.plan
        if plan is None:
            return
        items: list[Item] = []
        command = plan.source.get("target_command")
        if isinstance(command, list | tuple):
            items.append(Commands("The target's command:", [list(map(str, command))]))
        if plan.law is not None:
            lines = (line.removeprefix("- ") for line in plan.law.lines())
            items += [Sentence(line, listed=True) for line in lines]
        if self.documents.validation and (exponents := self.documents.validation.exponents):
            text = "The law fitted to the ladders, η as a power, with 95 % intervals:"
            items.append(Sentence(text))
            items += [Sentence(exponent_text(exponent), listed=True) for exponent in exponents]
        if plan.parameters:
            items += _parameters(plan)
        if not items:
            return
        operations = {
            name: ", ".join(f"{key} {value:.4g}" for key, value in factors.items())
            for name, factors in plan.operations.items()
        }
        if operations:
            title = "Factors of the operations at the target"
            items.append(Facts(operations, title=title, detail=True))
        source = {key: value for key, value in plan.source.items() if key not in COMMANDS}
        if source:
            title = "Where this plan's numbers come from"
            items.append(Facts(source, title=title, detail=True))
        yield Section(f"Plan for {self.label}", items)


def _parameters(plan: TransferPlan) -> list[Item]:
    """The table of a plan, and what it leaves to the model."""
    table = replace(plan_table(plan), title="")
    text = (
        "An arrow leads from the base model's value to the target's; a single value is both. The "
        "forward pass uses the multiplier times the weight."
    )
    if len(table.rows) < len(plan.parameters):
        count, rows = len(plan.parameters), len(table.rows)
        text += f" Layers that are alike share a row: {count} parameters in {rows} rows."
    items: list[Item] = [Sentence(text), table]
    if plan.needs:
        text = "In your own training code, TransferPlan.load leaves to the model:"
        items += [Sentence(text), *(Sentence(need, listed=True) for need in plan.needs)]
    return items


def verdict_items(verdict: Verdict, validation: Validation, loss: str = "Loss") -> list[Item]:
    """A verdict: its sentences, the table of its sizes, the curves of what is called `loss`."""
    items: list[Item] = [*verdict_sentences(verdict, validation.hyperparameter)]
    if verdict.law:
        items.append(Sentence(f"Planned by {verdict.law}."))
    if verdict.note:
        items.append(Sentence(f"Note: {verdict.note}."))
    if verdict.sizes:
        table = answer_first(verdict_table(verdict, validation.hyperparameter))
        items.append(replace(table, title=""))
    if validation.ladder(verdict.axis):
        of_eta = validation.hyperparameter == "eta"
        what = "learning rate" if of_eta else validation.hyperparameter
        caption = (
            f"{loss} against the {what}, one curve a size. Curves are means over the seeds "
            "and bands their range. The dashed line is the transferred one"
            f"{', at the base' if verdict.law else ''}."
        )
        drawn = partial(learning_rate_figure, validation, verdict)
        items.append(Drawing(drawn, caption=caption))
    return items


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


def cards(documents: Documents) -> list[KeyNumber]:
    """The few numbers that a reader looks for first: name, value, and what it rests on."""
    shown = list[KeyNumber]()

    def add(name: str, value: str, note: str) -> None:
        shown.append(KeyNumber(name=name, value=value, note=note))

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
        is_bounded = math.isfinite(low) and math.isfinite(high)
        ends = f"95 % interval {2**low:.3g} to {2**high:.3g}" if is_bounded else "no interval"
        # The search's own is on the page, too: two numbers of one name would be a riddle.
        near = f"; of the points that were trained {2**chosen:.4g} was chosen"
        near *= math.isfinite(chosen) and f"{chosen:.2f}" != f"{measured.value:.2f}"
        note = f"log2 {measured.value:.2f} on its curve; {ends}{near}"
        add(name, f"{2**measured.value:.4g}", note)
    elif math.isfinite(chosen):
        add(name, f"{2**chosen:.4g}", f"log2 {chosen:g}; no interval before a validation")
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
    saved = saving(documents.trials, plan, documents.flops)
    # A number that nobody knows is no key number.
    if saved is not None and math.isfinite(saved.factor):
        here, there = (
            duration(cost.seconds) if math.isfinite(cost.seconds) else NOT_KNOWN
            for cost in (saved.tuning, saved.at_target)
        )
        total = times(saved.factor_with_validation)
        note = f"FLOPs; {here} here, about {there} there; with the validation {total}"
        add(f"Tuning here, against width {saved.width}", times(saved.factor), note)
    return shown


def _costs(documents: Documents, base: str) -> list[Section]:
    """What was spent at the `base`, and beside it the same tuning at each plan's target."""
    savings = [
        s for t in documents.targets if (s := saving(documents.trials, t.plan, documents.flops))
    ]
    if not savings:
        return []
    # What was spent is the same beside every target.
    tuning, validation = savings[0].tuning, savings[0].validation
    rows = [([f"tuning at {base}"], tuning)]
    rows += [(["validation on ladders"], validation)] * bool(validation.trials)
    for each in savings:
        size = size_text(Size(width=each.width, depth=each.depth), deep=documents.deep)
        rows.append(([f"the same tuning at {size}"], each.at_target))
    table = cost_table("", ["what"], rows, guessed=[each.at_target for each in savings])
    table.legend = [f"{saving_text(savings[-1])} Times are those of trials on their devices."]
    return [Section("What it cost, and what it saved", [table])]
