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
    from sweeper.config.compose import Tree
    from sweeper.config.studies import Invocation
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
    if request.strict and not request.validate:
        raise BadInput(K("strict"), " judges the verdict of ", K("validate"), ": give both")
    if request.dry_run and not request.validate and not request.predict:
        raise BadInput(
            *(K("dry_run"), " shows what ", K("validate"), " or ", K("predict")),
            " would train: give one",
        )
    if request.settle and not request.validate:
        raise BadInput(K("settle"), " trains the ladders of ", K("validate"), ": give both")
    if (request.budget is not None or request.hours is not None) and not request.settle:
        bound = "budget" if request.budget is not None else "hours"
        raise BadInput(
            *(K(bound, ...), " bounds what ", K("settle"), " trains: give "),
            *(K("validate"), " ", K("settle"), ", too"),
        )
    if request.detach and (not request.validate or request.dry_run):
        raise BadInput(K("detach"), " leaves the runs of ", K("validate"), " in a queue: give both")
    if request.predict and (request.validate or request.to_batch is not None):
        other = K("validate") if request.validate else K("to_batch", ...)
        raise BadInput(
            *(K("predict"), " trains its own ladder, at the base's batch: leave ", other, " out")
        )
    tree, invocation = _of_study(request)
    if request.predict:
        from sweeper.cli.predict import StudyTarget, predict_ladder
        from sweeper.decide.loss import LossQuestion

        asked = StudyTarget(width=request.to_width, depth=request.to_depth)
        question = LossQuestion(tokens=request.to_tokens)
        return predict_ladder(tree, asked, question, invocation, output, dry_run=request.dry_run)
    from sweeper.cli.transfer import TransferRequest
    from sweeper.cli.transfer import transfer as work
    from sweeper.cli.validate import Settle

    settle = Settle(budget=request.budget, hours=request.hours) if request.settle else None
    asked_for = TransferRequest(
        width=request.to_width,
        depth=request.to_depth,
        tokens=request.to_tokens,
        batch=request.to_batch,
        validate=request.validate,
        settle=settle,
        strict=request.strict,
        dry_run=request.dry_run,
        detach=request.detach,
    )
    return work(tree, asked_for, invocation, output)


def diagnose(request: requests.DiagnoseRequest, output: Output) -> int:
    if request.over not in ("width", "depth"):
        raise ConfigError(K("over"), request.over, "width or depth")
    name, others = of_study(request.overrides, request.study, _text(request.root))
    from sweeper.cli.diagnose import diagnose as work
    from sweeper.cli.diagnose import judged_ladder
    from sweeper.config.studies import study_tree

    ladder = judged_ladder(name, others, request.over, output)
    tree, invocation = study_tree(name, [*others, *ladder], request.config_dir, trust=request.trust)
    only = list(request.only)
    return work(tree, request.over, only, invocation, output, dry_run=request.dry_run)


def check(request: requests.CheckRequest, output: Output) -> int:
    from sweeper.cli.check import CheckRequest
    from sweeper.cli.check import check as work
    from sweeper.config.studies import tree_of

    placed = with_place(request.overrides, None, _text(request.root))
    tree, invocation = tree_of(request.study, placed, request.config_dir, trust=request.trust)
    asked_for = CheckRequest(
        scales=request.scales, rules=request.rules, strict=request.strict, folder=request.folder
    )
    return work(tree, asked_for, invocation, output)


def report(request: requests.ReportRequest, output: Output) -> int:
    from sweeper.cli.compare import named_studies, report_several
    from sweeper.cli.status import report as work

    names, place = named_studies(list(request.name), _text(request.root))
    if len(names) > 1 and request.csv is not None:
        raise BadInput(K("csv", ...), " is of one study: name one")
    if len(names) > 1 and request.study is None:
        return report_several(names, place, request.picture, output)
    if request.picture is not None:
        raise BadInput(K("picture", ...), " is of several studies: name them")
    return work(*place_of(request.name, request.study, _text(request.root)), output, request.csv)


def compare(request: requests.CompareRequest, output: Output) -> int:
    from sweeper.cli.compare import compare_studies, named_studies

    bounds = ("at_width", "budget", "hours", "detach", "dry_run")
    needless = [name for name in bounds if getattr(request, name)]
    if not request.settle and needless:
        raise BadInput(K(needless[0], ...), " is of what ", K("settle"), " trains: give both")
    if request.settle and request.to_width is not None:
        raise BadInput(
            *(K("to_width", ...), " looks beyond curves, and ", K("settle")),
            " trains none: give one",
        )
    studies, place = named_studies(list(request.names), _text(request.root))
    if request.settle:
        from sweeper.cli.ranked import RankRequest, rank_studies
        from sweeper.cli.validate import Settle

        asked_for = RankRequest(
            names=[name for name in studies if "=" not in name],
            overrides=[name for name in studies if "=" in name],
            root=place,
            settle=Settle(budget=request.budget, hours=request.hours),
            width=request.at_width,
            anyway=request.anyway,
            out=request.out,
            trust=request.trust,
            detach=request.detach,
            dry_run=request.dry_run,
        )
        return rank_studies(asked_for, output)
    return compare_studies(
        studies, place, output, anyway=request.anyway, out=request.out, to_width=request.to_width
    )


def predict(request: requests.PredictRequest, output: Output) -> int:
    from sweeper.cli.predict import StudyTarget, predict_saved, predict_study, predict_table
    from sweeper.decide.loss import LossQuestion
    from sweeper.runs.read import study_folder

    question = LossQuestion(
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


def _text(root: Path | None) -> str | None:
    return None if root is None else str(root)


def _root(root: Path | None) -> Path:
    return Path(DEFAULT_ROOT if root is None else root).expanduser()


def _of_study(request: requests.TransferRequest) -> tuple[Tree, Invocation]:
    """A study's configuration with the overrides; a misspelt one is refused before torch loads."""
    from sweeper.config.studies import study_tree

    name, others = of_study(request.overrides, request.study, _text(request.root))
    return study_tree(name, others, request.config_dir, trust=request.trust)
