# ruff: noqa: D103
"""From a verb's request to the work, for the verbs that still print what they find themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.config.command_line import DEFAULT_ROOT, FIRST, of_study, place_of, with_place
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.verbs import requests
from sweeper.verbs.requests import columns_text

if TYPE_CHECKING:
    from sweeper.report.output import Output

K = Keyword
UNTRAINED = ("study", "root=", "launcher", "logger", "runner.device=", "runner.batched_trials=")
"""How the words begin that say nothing of what a search trains."""


def search(request: requests.SearchRequest, output: Output) -> int:
    from sweeper.config.studies import tree_of

    given = list(request.overrides)
    if all(word.startswith(UNTRAINED) for word in given):
        given = [f"experiment={FIRST}", *given]
    named = with_place(given, request.study, _text(request.root))
    tree, invocation = tree_of(None, named, request.config_dir)  # a misspelt key needs no torch
    from sweeper.cli.search import search as work

    return work(
        tree,
        invocation,
        output,
        dry_run=request.dry_run,
        detach=request.detach,
        new_setup=request.new_setup,
    )


def transfer(request: requests.TransferRequest, output: Output) -> int:
    """Its `predict` alone; a plan is made by the verb."""
    from sweeper.config.studies import study_tree
    from sweeper.verbs.transfer import check_asked

    check_asked(request)
    name, others = of_study(request.overrides, request.study, _text(request.root))
    tree, invocation = study_tree(name, others, request.config_dir, trust=request.trust)
    from sweeper.cli.predict import StudyTarget, predict_ladder
    from sweeper.decide.loss import Question

    asked = StudyTarget(width=request.to_width, depth=request.to_depth)
    question = Question(tokens=request.to_tokens)
    return predict_ladder(tree, asked, question, invocation, output, dry_run=request.dry_run)


def status(request: requests.StatusRequest, output: Output) -> int:
    from sweeper.cli.status import status as work

    place = place_of(request.name, request.study, _text(request.root))
    return work(*place, output, watch=request.watch)


def report(request: requests.ReportRequest, output: Output) -> int:
    from sweeper.cli.compare import report_several
    from sweeper.cli.status import report as work
    from sweeper.sweep.compared import named_studies

    names, place = named_studies(list(request.name), _text(request.root))
    if len(names) > 1 and request.csv is not None:
        raise BadInput(K("csv", ...), " is of one study: name one")
    if len(names) > 1 and request.study is None:
        return report_several(names, place, request.picture, output)
    if request.picture is not None:
        raise BadInput(K("picture", ...), " is of several studies: name them")
    return work(*place_of(request.name, request.study, _text(request.root)), output, request.csv)


def predict(request: requests.PredictRequest, output: Output) -> int:
    from sweeper.cli.predict import StudyTarget, predict_saved, predict_study, predict_table
    from sweeper.decide.loss import Question
    from sweeper.runs.read import study_folder

    question = Question(
        params=request.to_params,
        tokens=request.to_tokens,
        flops=request.flops,
        flops_per_second=request.flops_per_second,
        threshold=request.huber,
        form=request.form,
        draws=request.draws,
        seed=request.seed,
    )
    place, out = _root(request.root), request.out
    if (folder := study_folder(request.source, place)) is not None:
        if folder.parent.resolve() != place.resolve():
            raise ConfigError(K("root"), str(place), f"{folder.parent}, where {folder.name} lies")
        request = replace(request, source=None, study=folder.name)
    # A keyword that is meant for the other kind of source would else be passed over in silence.
    of_table, of_study = ("columns", "to_params"), ("study", "to_width", "to_depth")
    for name in of_study if request.source is not None else of_table:
        if value := getattr(request, name):
            of = "a study" if request.source is not None else "a table"
            raise ConfigError(K(name), value, f"given with the runs of {of} alone")
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(K("out"), str(out), "a folder, or nothing yet")
    if request.source is not None:
        columns = columns_text(request.columns)
        table = Path(request.source)
        return predict_table(table, columns, request.where, question, output, out, place)
    from sweeper.config.studies import tree_of
    from sweeper.study.study import find_study, is_saved

    name = find_study(request.study, place)
    asked = StudyTarget(width=request.to_width, depth=request.to_depth)
    if is_saved(place / name):
        return predict_saved(place / name, asked, question, output, out, where=request.where)
    placed = with_place([], None, _text(request.root))
    tree, invocation = tree_of(name, placed, request.config_dir, trust=request.trust)
    return predict_study(tree, asked, question, invocation, output, out, where=request.where)


def follow(request: requests.FollowRequest, output: Output) -> int:
    from sweeper.cli.follow import Request, follow_run

    asked_for = Request(
        prediction=request.prediction,
        metric=request.metric,
        run=request.run,
        lr=request.lr,
        steps=request.steps,
        alarm=request.alarm,
        spike_steps=request.spike_steps,
        every=request.every,
        measured=request.measured,
        out=request.out,
        ledger=request.ledger,
    )
    return follow_run(asked_for, output, once=request.once)


def cancel(request: requests.CancelRequest, output: Output) -> int:
    from sweeper.cli.status import cancel as work

    return work(*place_of(request.name, request.study, _text(request.root)), output)


def doctor(request: requests.DoctorRequest, output: Output) -> int:
    from sweeper.cli.doctor import doctor as work

    return work(_text(request.root), request.storage, output)


def _text(root: Path | None) -> str | None:
    return None if root is None else str(root)


def _root(root: Path | None) -> Path:
    return Path(DEFAULT_ROOT if root is None else root).expanduser()
