"""Prescriptions of every parameter, and what a published model's multipliers mean, to read."""

from __future__ import annotations

from sweeper.records import to_json
from sweeper.report import console
from sweeper.report.answer import Item, Sentence
from sweeper.report.next import again
from sweeper.report.present import Shown
from sweeper.table import Column, Table
from sweeper.verbs.explain import ExplainAnswer, PublishedAnswer


def shown(answer: ExplainAnswer | PublishedAnswer, *, verbose: bool = False) -> Shown:
    """The table of prescriptions, or that of a published model beside ours."""
    if isinstance(answer, PublishedAnswer):
        return _published(answer)
    plan, source = answer.plan, str(answer.plan.source["hyperparameters"])
    items: list[Item] = []
    if answer.optimum is not None and answer.optimum.unfinished:
        trials = f"{answer.optimum.unfinished} trials"
        items.append(Sentence(f"Note: the search is not finished; this is its best of {trials}."))
    items += console.explanation(plan, answer.rows, verbose=verbose)
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
    check = again(answer.invocation, "check", answer.settings, why=why)
    return Shown(
        items=items,
        notes=answer.study_notices,
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


def _published(answer: PublishedAnswer) -> Shown:
    model = answer.model
    shape = model.shape
    sizes = f"width {shape.width}, {shape.depth} layers, heads of {shape.head_size}"
    names = {"published": "published", "ours": "ours", "lr": "lr / eta", "eps": "eps / eps"}
    table = Table(
        f"muP from width {model.base_width}, depth {model.base_depth}, every constant 1",
        [Column("", left=True), *map(Column, names.values())],
    )
    for row in model.ours:
        table.add(row["what"], *(row.get(name) for name in names))
    legend = (
        "Numbers of parameters are standard deviations of initial values, published as one "
        "initializer_range. The configuration does not say learning rates and eps by parameter, "
        "nor weight decay: a plan of ours does."
    )
    return Shown(
        items=[
            Sentence(f"{answer.path}: {model.family}, {sizes}"),
            *(Sentence(line, listed=True) for line in model.lines()),
            table,
            Sentence(legend, detail=True),
        ],
        answer=f"It stands for {model.parameterization}.",
        document=to_json(model),
    )
