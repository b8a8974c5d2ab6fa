"""What people see of a verdict on a table of runs: tables, curves, the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sweeper.config.command_line import changed
from sweeper.decide.ladder_verdict import Verdict
from sweeper.decide.trend import MIN_TREND_SIZES
from sweeper.decide.validation import Validation
from sweeper.evidence.batch.decision import CriticalBatch
from sweeper.evidence.batch.page import critical_figure, critical_section, critical_shown
from sweeper.evidence.each.page import each_items, each_sentence
from sweeper.evidence.flags import columns_text
from sweeper.evidence.judge.decision import TableVerdict
from sweeper.evidence.judge.verb import CriticalAnswer, EachJudgeAnswer, JudgeAnswer, RatesAnswer
from sweeper.evidence.judge.words import (
    gap_text,
    key_text,
    range_text,
    value_text,
    worded_judged,
)
from sweeper.evidence.rates.page import rates_shown
from sweeper.evidence.runs.run import unit_of
from sweeper.evidence.runs.sizes import axis_name
from sweeper.evidence.runs.words import reading_text, roles_text, table_facts
from sweeper.records import to_json
from sweeper.report.console import LEARNING_RATE, drift_text, verdict_sentences, verdict_table
from sweeper.report.drawing import learning_rate_figure
from sweeper.report.next import Next, ladder_words, next_of, validated_by
from sweeper.report.page import paged
from sweeper.report.sections import Drawing, Item, Report, Section, Sentence, Shown, rests_on
from sweeper.report.sentences_transfer import names
from sweeper.stats.ladder import JOINT_AXIS
from sweeper.table import Column, Table, counted
from sweeper.verbs.requests import TransferRequest


def headline(judged: TableVerdict) -> list[str]:
    """The answer in sentences, with the learning rates that were asked for at its end."""
    ends = [f"{_capital(line)}." for line in judged.ends]
    return [*answers(judged), *ends, *trend_lines(judged), *rate_lines(judged)]


def answers(judged: TableVerdict) -> list[str]:
    """The ladder's answer and the target's, or what is said where there is none."""
    lines = []
    if (verdict := judged.verdict) is not None:
        failing = [size.size for size in verdict.sizes if size.answer == "fails"]
        # Others may hold, or be open: that is not said of the whole ladder.
        some = bool(failing) and verdict.axis != JOINT_AXIS
        at = f"{names(failing, verdict.axis)}, of " if some else ""
        lines += [str(sentence) for sentence in verdict_sentences(verdict, at=at)]
    return lines + [f"{_capital(line)}." for line in judged.sentences]


def rate_lines(judged: TableVerdict) -> list[str]:
    """The judged rate and the target's in plain numbers, as they go into a config."""
    if not math.isfinite(judged.transferred_log2_eta):
        return []
    line = f"The transferred learning rate: {value_text(judged.transferred_log2_eta)}"
    if judged.bound:
        line += f", a bound: the best one of the base lies {judged.bound} it"
    if (best := judged.predicted) is not None:
        line += (
            f"; at {axis_name(judged.axis)} {judged.to} the best one is predicted to be "
            f"{range_text(best)}"
        )
    sizes = judged.verdict.sizes if judged.verdict is not None else ()
    asked = [each for each in sizes if getattr(each.size, judged.axis, None) == judged.to]
    if judged.to is not None and any(each.is_base for each in asked):
        line += f", the best at {axis_name(judged.axis)} {judged.to}, which is the base"
    return [f"{line}."]


def trend_lines(judged: TableVerdict) -> list[str]:
    """The drift of the optima, and what either rate loses there; none where nothing shows it."""
    if (trend := judged.trend) is None or judged.axis == JOINT_AXIS:
        return []
    drift = drift_text(trend, "the rate")
    if len(trend.sizes) < MIN_TREND_SIZES:
        return [f"{drift}; {trend.reason}."]
    predicted, kept = (gap_text(g, judged.unit) for g in (trend.predicted_gap, trend.loss_gap))
    end = "the runs do not tell which is better"
    if trend.warranted:
        # A key of a study means nothing where there is none.
        end = f"train with the trend's{', transfer.correct=true' * bool(judged.study)}"
    elif not math.isfinite(trend.gain.high - trend.gain.low):
        end = "no curve reaches far enough to tell which is better"
    return [
        f"{drift}.",
        f"Against the best rate at {axis_name(trend.axis)} {trend.target} the trend's loses "
        f"{predicted}, the transferred one {kept}: {end}.",
    ]


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def tables(judged: TableVerdict) -> list[Table]:
    """The verdict's sizes, and the runs that would tell more."""
    made = []
    if judged.ladders:
        made.append(ladders_table(judged))
    if judged.verdict is not None:
        made.append(verdict_table(judged.verdict, LEARNING_RATE, unit=judged.unit))
    if judged.next_runs:
        made.append(runs_table(judged))
    return made


def ladders_table(judged: TableVerdict) -> Table:
    """A row a ladder, by the sizes that it has beside its own."""
    target = f"best at {axis_name(judged.axis)} {judged.to}"
    table = Table(
        f"Ladders over {axis_name(judged.axis)}",
        [
            *(Column(axis_name(role), form="d") for role in judged.ladders[0].key),
            Column("sizes", left=True),
            Column("learning rate", left=True),
            *[Column(target, left=True)] * (judged.to is not None),
            Column("largest shift", unit="log2", form="+z.2f"),
            Column("answer", left=True),
        ],
        legend=["Each is judged by itself. Learning rate: the base's best one."],
    )
    for ladder in judged.ladders:
        sizes = ladder.verdict.sizes if ladder.verdict else ()
        values = sorted(getattr(size.size, ladder.axis) for size in sizes)
        shifts = [size.shift_log2 for size in sizes if not size.is_base]
        shift = max(shifts, key=lambda estimate: abs(estimate.value), default=None)
        there = range_text(ladder.predicted) if ladder.predicted else "-"
        table.add(
            *ladder.key.values(),
            f"{values[0]} to {values[-1]}" if values else "-",
            value_text(ladder.transferred_log2_eta),
            *[there] * (judged.to is not None),
            shift,
            ladder.answer,
        )
    return table


def runs_table(judged: TableVerdict) -> Table:
    """The cells that would settle an open answer."""
    total = sum(proposed.runs * len(proposed.etas) for proposed in judged.next_runs)
    table = Table(
        "Runs that would tell",
        [
            Column(axis_name(judged.axis), left=True),
            Column("learning rates", left=True),
            Column("runs at each", form="d"),
            Column("why", left=True),
        ],
        legend=[f"{counted(total, 'run')}, each with a seed that its cell does not have yet."],
    )
    # Sizes that lack the same runs share a row, so that a screen has room for all of them.
    alike: dict[tuple[str, int, str], list[str]] = {}
    for proposed in judged.next_runs:
        etas = ", ".join(value_text(eta, plain=judged.plain) for eta in proposed.etas)
        size = " ".join(f"{axis_name(key)} {value}" for key, value in proposed.size.items())
        name = size.removeprefix(f"{axis_name(judged.axis)} ") if len(proposed.size) == 1 else size
        alike.setdefault((etas, proposed.runs, proposed.why), []).append(name)
    for (etas, runs, why), sizes in alike.items():
        table.add(", ".join(sizes), etas, runs, why)
    return table


def figures(judged: TableVerdict) -> dict[str, Figure]:
    """The curves, by the names of their pictures."""
    pictures: dict[str, Figure] = {}
    for ladder in judged.ladders:
        name = "-".join(f"{role}-{value}" for role, value in ladder.key.items())
        pictures |= {f"{name}-{what}": figure for what, figure in figures(ladder).items()}
    if judged.curves:
        # A table's curves in the record of a study's: one figure draws both.
        validation = Validation(
            planned_log2=judged.transferred_log2_eta, axes=judged.axes, curves=judged.curves
        )
        verdict = judged.verdict or Verdict(axis=judged.axis, answer=judged.answer, sizes=())
        column = judged.columns.get("loss", "loss")  # of several that a table has
        figure = learning_rate_figure(validation, verdict, f"{column} ({unit_of(column)})")
        pictures[f"curves-{judged.axis}"] = figure
    return pictures


def judged_report(
    judged: TableVerdict, drawn: Mapping[str, Figure], critical: CriticalBatch | None = None
) -> Report:
    """The verdict, what was measured and drawn, and what it rests on."""
    source = f" of {judged.source}" if judged.source else ""
    caption = (
        "Curves are means over a cell's runs. The dashed line is the transferred learning rate."
    )
    items: list[Item] = [
        Drawing(partial(drawn.__getitem__, name), caption=caption) for name in drawn
    ]
    items += tables(judged)
    for ladder in judged.ladders:
        at = key_text(ladder)
        many = len(judged.ladders) > 4  # a screen has a row for each, the page their sizes
        items += [replace(t, title=f"{t.title} at {at}", detail=many) for t in tables(ladder)]
        items += [Sentence(f"At {at}: {line}", detail=True) for line in headline(ladder)]
    sections = [
        Section(
            {"holds": "It holds", "fails": "It fails"}.get(judged.answer, "Cannot say yet"),
            [Sentence(line, listed=True) for line in headline(judged)],
            is_answer=True,
            code=judged.answer,
        ),
        Section("What was measured", items),
    ]
    if critical is not None:
        sections.append(critical_section(critical))
    noted = [judged.verdict.note] if judged.verdict is not None and judged.verdict.note else []
    return Report(
        title="Does the learning rate transfer?",
        about=f"A verdict of sweeper on {judged.runs} runs{source}. Nothing was trained.",
        # The number that was asked for, where there is one.
        answer=[*answers(judged), *rate_lines(judged)][-1],
        sections=[*sections, rests_on(_inputs(judged))],
        notes=[*judged.notes, *noted],
    )


def judged_shown(
    judged: TableVerdict, folder: Path, critical: CriticalBatch | None = None, **more: Any
) -> Shown:
    """The verdict for readers; its page, `judge.json` and the figures lie in `folder`."""
    drawn, document = figures(judged), judged.record
    report = judged_report(judged, drawn, critical)
    if critical is not None:
        document["critical_batch"] = to_json(critical)
        if critical.points:
            drawn["critical"] = critical_figure(critical)
    return paged(report, folder, "judge", document, drawn=drawn, kind="verdict", **more)


def _inputs(judged: TableVerdict) -> Mapping[str, Any]:
    low, high = ("", "")
    if math.isfinite(judged.transferred_log2_eta):
        low = value_text(judged.transferred_log2_eta, plain=judged.plain)
        high = f"2^{judged.transferred_log2_eta:.2f}"
    return {
        **table_facts(judged.source, judged.sha256, judged.where, judged.columns, judged.runs),
        "transferred learning rate": f"{low} ({high})" if low and low != high else low,
        "noise": judged.noise or "nothing shows it",
        "command": judged.command,
    }


def presented(answer: JudgeAnswer | RatesAnswer | CriticalAnswer | EachJudgeAnswer) -> Shown:
    """Curves, what is open at their ends, the prediction, the verdict; pages are written."""
    if isinstance(answer, EachJudgeAnswer):
        return each_shown(answer)
    if isinstance(answer, RatesAnswer):
        return rates_shown(answer.law, answer.facts, answer.folder)
    if isinstance(answer, CriticalAnswer):
        return critical_shown(answer)
    judged = worded_judged(answer.judged)
    made = judged_shown(
        judged,
        answer.folder,
        answer.critical,
        before=(reading_text(judged.runs, judged.source, judged.columns),),
        next=(_next(judged, answer.root),),
    )
    return replace(made, notes=[*made.notes, *answer.notes])


def each_shown(answer: EachJudgeAnswer) -> Shown:
    """The answer to a table of runs; its page and record are written."""
    each, varied = answer.each, answer.varied
    facts = {
        "table": varied.name or "a table in memory",
        "columns": columns_text(varied.columns),
        "runs": varied.runs,
        "on lines through the point": varied.used,
    }
    sentence = each_sentence(each)
    answered = Section("The answer", [Sentence(sentence), *each_items(each)], is_answer=True)
    report = Report(
        title="One hyperparameter at a time",
        answer=sentence,
        sections=[answered, rests_on(facts)],
        notes=varied.notes,
    )
    read = f"{counted(varied.used, 'run')} on lines through one point"
    before = (f"{read}; {roles_text(varied.columns)}",)
    return paged(report, answer.folder, "each", to_json(each), kind="record", before=before)


def _next(judged: TableVerdict, root: Path) -> Next | None:
    if not (judged.study and judged.overrides):
        return None
    # Longer runs are another study's: a search comes first.
    if any(word.startswith("train.") for word in judged.overrides):
        return next_of(root / judged.study)
    target, ladder = judged.verdict.target if judged.verdict else None, list[str]()
    width = target.size if target else max(int(curve.size.width) for curve in judged.curves)
    command = validated_by(root / judged.study)
    if command is not None:
        ladder = ladder_words(command.request.overrides)
    request = TransferRequest(
        to_width=int(width),
        validate=True,
        overrides=changed(ladder, judged.overrides),
        study=judged.study,
        root=root,
    )
    return Next(request, "to settle it")
