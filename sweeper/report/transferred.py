"""A transfer answered: the plan, what its ladders say, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweeper.decide.ladder_verdict import WORST_FIRST, Verdict
from sweeper.decide.trend import MIN_TREND_SIZES
from sweeper.decide.validation import Validation, unjudged
from sweeper.errors import SHELL, Keyword, Text, as_text, call_words, spelled
from sweeper.records import to_json
from sweeper.report import console
from sweeper.report.costs import branches_text, ladder_answer, ladder_document, ladder_items
from sweeper.report.drawing import learning_rate_figure, save
from sweeper.report.next import Next, after_plan, again, target_words, the_same, within
from sweeper.report.search_result import queued_shown
from sweeper.report.sections import Commands, Item, Sentence, Shown
from sweeper.report.sentences import check_sentence, failure_notes, unfinished_notes
from sweeper.report.sentences_transfer import exponent_text, unjudged_text
from sweeper.report.study_page import written_page
from sweeper.stats.ladder import LADDER_AXES
from sweeper.study.cost import NOTHING
from sweeper.study.folder import TargetFolder, read_document
from sweeper.sweep.ladders import StaleVerdict, Trained, curves_stem
from sweeper.sweep.planning import Unvalidated
from sweeper.table import counted
from sweeper.verbs.listed import REQUESTS
from sweeper.verbs.transfer import (
    AnswerAtTarget,
    EachTransferAnswer,
    HorizonsAnswer,
    LadderCostAnswer,
    QueuedLadders,
    TransferAnswer,
)


def presented(answer: AnswerAtTarget | EachTransferAnswer) -> Shown:
    """The plan and the verdicts, or what the ladders would train, or have in a queue."""
    if isinstance(answer, EachTransferAnswer):
        return _each(answer)
    settings = answer.settings
    same = _same(answer)
    items = list[Item]()
    if (spans := answer.target.spans) is not None:
        text = f"At {settings.transfer.tokens_per_parameter:g} tokens a parameter the target trains"
        ends = f"{spans.shortest:,} to {spans.longest:,}"
        items.append(Sentence(f"{text} {spans.target:,} steps, and the ladder's sizes {ends}."))
    notes: list[str | Text] = [*answer.notes]
    notes += unfinished_notes(answer.target.optimum.unfinished)
    if isinstance(answer, HorizonsAnswer):
        return _horizons(answer, same, notes)
    if isinstance(answer, LadderCostAnswer):
        # What trains nothing still judges: it writes the verdict.
        why = same.why if answer.cost.missing else "to have it judged"
        same = replace(same, why=why)
        return Shown(
            items=[*items, *ladder_items(answer)],
            notes=notes,
            answer=(ladder_answer(answer.cost), *the_same(same)),
            document={**ladder_document(answer), "next": [same.document]},
        )
    if isinstance(answer, QueuedLadders):
        collect = within(settings.folder, replace(same, why="to collect them, and go on"))
        return replace(queued_shown(settings, answer.queued, collect, notes), items=items)
    assert isinstance(answer, TransferAnswer)
    return _planned(answer, same, items, notes)


def _each(answer: EachTransferAnswer) -> Shown:
    notes: list[str | Text] = [*answer.notes]
    if answer.gainless:
        notes.append(f"no ladder of {', '.join(answer.gainless)}: left at the default")
    parts = {name: presented(each) for name, each in answer.answers.items()}
    document: dict[str, object] = {
        "study": answer.folder.name,
        "hyperparameters": [*parts],
        "left": answer.gainless,
        "ladders": {name: part.document for name, part in parts.items()},
    }
    if answer.request.dry_run:
        costs = [
            (name, cost)
            for name, each in answer.answers.items()
            if isinstance(each, LadderCostAnswer)
            for cost in [sum((size.cost for size in each.cost.sizes), NOTHING)]
        ]
        facts = "Each is a ladder over the study's sizes."
        runs = sum(cost.trials for _, cost in costs)
        return Shown(
            items=console.dry_run("This would train", "ladder of", costs, "runs", facts),
            notes=notes,
            answer=f"{counted(runs, 'run')} are to be trained; nothing was written.",
            document=document,
        )
    items: list[Item] = [
        Sentence(f"{name}: {spelled(as_text(p.answer), SHELL)}") for name, p in parts.items()
    ]
    places = [part.places for part in parts.values() if part.places]
    return Shown(
        items=items,
        notes=notes,
        answer=f"The transfer {_by_hyperparameter(answer.answers)}.",
        places=places[-1] if places else {},
        document=document,
        folder=answer.folder,
    )


def _by_hyperparameter(answers: Mapping[str, AnswerAtTarget]) -> str:
    parts = list[str]()
    for name, each in answers.items():
        verdicts = each.ladders.verdicts if isinstance(each, TransferAnswer) else ()
        codes = {v.answer for v in verdicts} | {v.target.answer for v in verdicts if v.target}
        worst = next((code for code in WORST_FIRST if code in codes), "not validated")
        parts.append(f"of {name}: {worst}")
    return "; ".join(parts)


def _planned(
    answer: TransferAnswer,
    same: Next,
    items: list[Item],
    notes: list[str | Text],
) -> Shown:
    settings, plan, ladders = answer.settings, answer.plan, answer.ladders
    verdicts, hyperparameter = ladders.verdicts, settings.transfer.hyperparameter
    files = TargetFolder(answer.folder)
    stem = curves_stem(files.validation_of(hyperparameter))
    judged, beside = _beside(answer)
    shown = verdicts or (answer.kept.axes if answer.kept else ())
    before = "" if verdicts else ", as validated before,"
    validated = f"the transfer{judged}{before} {_answers(shown)}"
    if ladders.trained is not None:
        notes += _trained_notes(ladders.trained)
        for verdict in verdicts:
            figure = learning_rate_figure(ladders.trained.record, verdict)
            save(figure, answer.folder / f"{stem}-{verdict.axis}")
        items += console.verdicts(verdicts, hyperparameter, ladders.settled, beside)
    if ladders.exponents is not None:
        of = f"{ladders.exponents.sizes} sizes, eta as a power (95 % intervals)"
        items.append(Sentence(f"Law fitted over {of}:"))
        exponents = ladders.exponents.exponents
        items += [Sentence(exponent_text(exponent), listed=True) for exponent in exponents]
    notes += map(_removed_note, answer.removed)
    deep = settings.runner.takes("depth")
    items += console.plan(plan, deep=deep)
    items += _trend_items(answer)
    notes += [*filter(None, [answer.notice]), *map(_unvalidated_note, answer.unvalidated)]
    if (quick := answer.check) is not None and quick.check is None:
        why = ("the coordinate check was not run: ", *quick.why_not, "; ", quick.call, " runs it")
        notes.append(why)
    elif quick is not None and quick.check is not None:
        items.append(Sentence(check_sentence(quick.check, settings.check)))
        items.append(Commands("All modules:", [call_words(quick.call)], detail=True))
    places, page_notes = written_page(settings.folder)
    notes += page_notes
    next_command = after_plan(settings.folder, answer.folder, plan, same, answer.kept)
    next_command = next_command and within(settings.folder, next_command)
    # A next command without a verb is the target's own, and is not said twice.
    if not (next_command and not next_command.call.verb):
        targets = {v.axis for v in shown if v.target and v.target.answer != "holds"}
        doubts = [v for v in shown if v.answer != "holds" or v.axis in targets]
        note = f"Its eta is in doubt: {_answers(doubts)}. " if doubts else ""
        # A target's plan is of no trial, whose seed `init_` would draw by.
        seeds = "plan.init_(model) draws the weights by seed 0 whatever seed the script is given, "
        note += f"{seeds}plan.init_(model, seed) by that one." * bool(plan.parameters)
        items += console.target_command(target_words(plan, answer.folder), note)
    places["plan"] = files.plan
    if verdicts:
        places["curves"] = answer.folder / f"{stem}-{verdicts[0].axis}.png"
    of_eta = shown if hyperparameter == "eta" else ()
    eta = f", at eta {console.planned_eta(plan, of_eta)}" if "eta" in plan.hps else ""
    target = console.size_text(plan.target, deep=deep)
    return Shown(
        items=items,
        notes=notes,
        answer=f"Planned {target}{eta}; {validated if shown else 'the transfer is not validated'}.",
        places=places,
        document=_document(answer),
        next=[next_command],
        folder=settings.folder,
    )


def _document(answer: TransferAnswer) -> dict[str, object]:
    settings, ladders = answer.settings, answer.ladders
    checked: dict[str, object] | None = None
    if answer.check is not None and (check := answer.check.check) is not None:
        facts = {key: getattr(check, key) for key in ("axis", "sizes", "answer", "origins")}
        checked = {**facts, "sentence": check_sentence(check, settings.check)}
    return {
        "study": settings.name,
        "plan": to_json(answer.plan),
        "verdicts": ladders.verdicts or None,
        "trend": ladders.trend,
        "check": checked,
        **({"settled": ladders.settled} if ladders.settled else {}),
        **({"exponents": ladders.exponents} if ladders.exponents is not None else {}),
    }


def _same(answer: AnswerAtTarget) -> Next:
    request = replace(answer.request, dry_run=False, detach=False, strict=False, trust=False)
    if request.to_depth == answer.settings.base.depth:
        request = replace(request, to_depth=None)
    return again(answer.invocation, request, answer.settings, why="to train them")


def _trend_items(answer: TransferAnswer) -> list[Item]:
    trend, rule = answer.ladders.trend, answer.settings.transfer
    if trend is not None:
        applied = answer.plan.source["correction"] is not None
        text = console.trend_text(trend, applied=applied)
        # Of two sizes it only says that they are too few.
        return [Sentence(text, detail=len(trend.sizes) < MIN_TREND_SIZES)]
    if not rule.correct:
        return []
    why = "No correction: fewer than two widths have an optimum; add widths to transfer.widths."
    return [Sentence(why)]


def _trained_notes(trained: Trained) -> list[str]:
    notes = [*trained.notices, *failure_notes(trained.failures), *console.clip_note(trained.runs)]
    if trained.kept is not None:
        these, those = trained.kept
        notes.append(
            f"the verdict that was there stays: it rests on {those} runs, and these "
            f"{these} are among them"
        )
    return notes


def _removed_note(removed: StaleVerdict) -> Text:
    other = "another law" if removed.of_law else "other hyperparameters"
    judged = f"{removed.name} judged {other} and was removed; "
    return judged, Keyword("validate"), " judges these"


def _unvalidated_note(missing: Unvalidated) -> str:
    name, base = missing.axis.replace("_", " "), missing.base
    return (
        f"the target's {name}, {missing.target}, is not validated: no ladder changes it from the "
        f"base's {base}; add transfer.{LADDER_AXES[missing.axis]}=[{base},{2 * base},{4 * base}]"
    )


def _answers(verdicts: Sequence[Verdict]) -> str:
    return ", ".join(
        f"over {verdict.axis.replace('_', ' ')}: {verdict.answer}"
        + (f", at the target: {verdict.target.answer}" if verdict.target else "")
        for verdict in verdicts
    )


def _beside(answer: TransferAnswer) -> tuple[str, str]:
    place, settings = TargetFolder(answer.folder), answer.settings
    kept = [read_document(path, Validation, []) for path in place.validations]
    judged = [settings.transfer.hyperparameter] * bool(answer.ladders.verdicts)
    judged += [each.hyperparameter for each in kept if each and each.axes]
    judged = list(dict.fromkeys(judged))
    more = unjudged(answer.target.conclusion, settings.space, judged) if judged else {}
    return (f" of {judged[0]}", unjudged_text(more, judged)) if more else ("", "")


def _horizons(answer: HorizonsAnswer, again: Next, notes: Sequence[str | Text]) -> Shown:
    costs, settings, tokens = answer.costs, answer.settings, answer.request.to_tokens
    rows = [*costs.sizes.items()]
    trained = {
        "study": settings.name,
        "branches": {"runs": len(costs.branches), "steps": sum(costs.branches.values())},
        "sizes": [
            {"size": name, "runs": cost.trials, "flops": cost.flops, "seconds": cost.seconds}
            for name, cost in rows
        ],
    }
    if answer.plan is not None and answer.folder is not None:
        following = Next(
            REQUESTS["predict"](
                to_width=answer.request.to_width,
                to_depth=answer.request.to_depth,
                to_tokens=tokens,
                study=settings.name,
                root=settings.root,
            ),
            "to predict the target's loss",
        )
        horizons = ", ".join(map(str, costs.horizons))
        return Shown(
            items=console.target_command(target_words(answer.plan, answer.folder)),
            notes=[*notes, *failure_notes(answer.failed), *map(_removed_note, answer.removed)],
            answer=f"Trained {counted(len(costs.missing), 'run')} more of {len(costs.trials)}, "
            f"each size at {horizons} steps.",
            places={"plan": TargetFolder(answer.folder).plan},
            document={**trained, "plan": to_json(answer.plan)},
            next=[following] if "predict" in REQUESTS else [],
            folder=settings.folder,
        )
    facts = (
        f"Each size at {', '.join(map(str, costs.horizons))} steps and the planned eta, "
        f"{costs.seeds} seed{'s' * (costs.seeds != 1)} each."
    ) + branches_text(sum(trial.spec.train.steps for trial in costs.missing), costs.branches)
    if costs.could_branch:
        facts += " In a study with train.schedule=wsd shorter runs would branch off the longest."
    return Shown(
        items=console.dry_run("This would train", "size", rows, "runs", facts),
        notes=notes,
        answer=(
            f"{len(costs.missing)} of {len(costs.trials)} runs are to be trained; nothing was "
            "written.",
            *the_same(again),
        ),
        document={**trained, "next": [again.document]},
        folder=settings.folder,
    )
