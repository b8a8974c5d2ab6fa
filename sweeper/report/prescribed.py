"""What parameters are prescribed, and what was exported."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.errors import Keyword, Text
from sweeper.export.lacks import Lack
from sweeper.records import to_json
from sweeper.report import console
from sweeper.report.next import again
from sweeper.report.sections import Item, Sentence, Shown
from sweeper.report.sentences import unfinished_notes
from sweeper.verbs.explain import ExplainAnswer
from sweeper.verbs.export import ExportAnswer
from sweeper.verbs.requests import CheckRequest


def presented(answer: ExplainAnswer | ExportAnswer) -> Shown:
    """The table of prescriptions, or what was exported."""
    if isinstance(answer, ExportAnswer):
        return _exported(answer)
    plan, source = answer.plan, str(answer.plan.source["hyperparameters"])
    items: list[Item] = []
    if answer.optimum is not None:
        items += [Sentence(f"Note: {n}") for n in unfinished_notes(answer.optimum.unfinished)]
    items += console.explanation(plan, answer.rows)
    items += [Sentence(line, listed=True) for line in answer.tied]
    if answer.classes:
        text = (
            f"The model takes {answer.classes} classes, and the data have more: to train it, let "
            "it take an argument `classes`, or give data of as many, such as data=tokens "
            "data.path=FILE."
        )
        items.append(Sentence(text, listed=True))
    count = len(plan.parameters)
    why = "to see that it holds in short runs"
    check = again(answer.invocation, CheckRequest(), answer.settings, why=why)
    return Shown(
        items=items,
        notes=answer.notes,
        answer=f"{answer.parameterization} prescribes {count} parameters for {plan.target}; "
        "nothing was trained or written.",
        document={
            "parameterization": plan.parameterization,
            "base": {"width": plan.base.width, "depth": plan.base.depth},
            "target": {"width": plan.target.width, "depth": plan.target.depth},
            "hps": dict(answer.hps),
            "hyperparameters": source,
            "parameters": [to_json(row) for row in answer.rows],
            "operations": dict(plan.operations),
            "needs": list(plan.needs),
            "tied_readouts": answer.tied,
        },
        next=(check,) if answer.measures else (),
    )


def _exported(answer: ExportAnswer) -> Shown:
    document = _document(answer)
    if answer.refused:
        head = f"{answer.trainer} cannot express this plan, and nothing was written:"
        advice = ("Where you do it yourself, or mean to train without, say so by adding ",)
        return Shown(
            items=[Sentence(head), *(Sentence(str(lack), listed=True) for lack in answer.missing)],
            answer=(*advice, *_accepts(answer.missing), ": the header of the export lists it"),
            document=document,
        )
    head = f"Exported the plan for {answer.plan.target} to {answer.trainer}"
    if answer.accepted:
        head += f"; what it cannot express was accepted ({len(answer.accepted)})"
    if answer.missing:
        names = ", ".join(lack.name for lack in answer.missing)
        head += f"; the plan is not whole without {names}, which it leaves to you"
    return Shown(
        items=_items(answer),
        answer=f"{head}.",
        places={"export": ", ".join(map(str, answer.files))},
        document=document,
    )


def _items(answer: ExportAnswer) -> list[Item]:
    items: list[Item] = [
        Sentence(f"Accepted, though {answer.trainer} cannot express it: {lack}", detail=True)
        for lack in answer.accepted
    ]
    if answer.missing:
        items.append(
            Sentence(f"{answer.trainer} cannot express all of this plan. It leaves to you:")
        )
        for lack in answer.missing:
            edit = f"\n  The edit: {lack.edit()}" if lack.edit() else ""
            items.append(Sentence(f"{lack}{edit}", listed=True))
        head = "Once that is done, or where you mean to train without, say so: "
        text = (head, *_accepts(answer.missing), ". The header of the export lists it.")
        items.append(Sentence(text))
    if answer.own_schedule:
        own = "the study's command takes none, so it is the script's own"
        items.append(Sentence(f"The schedule is left to you: {own}", detail=True))
    by_itself = "The study's model multiplies by itself, and yours must too"
    return [*items, *(Sentence(f"{by_itself}: {line}") for line in answer.own_factors)]


def _accepts(missing: Sequence[Lack]) -> Text:
    parts = [part for lack in missing for part in (" ", Keyword("accept", lack.name))]
    return tuple(parts[1:])


def _document(answer: ExportAnswer) -> dict[str, object]:
    accepted = {lack.name for lack in answer.accepted}
    return {
        "to": answer.to,
        "study": answer.plan.source.get("study"),
        "files": list(answer.files),
        "cannot_express": [
            {
                "name": lack.name,
                "accepted": lack.name in accepted,
                "differences": lack.differences,
                "edit": lack.edit(),
            }
            for lack in answer.lacks
        ],
    }
