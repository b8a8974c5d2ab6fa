# ruff: noqa: D103
"""From a verb's request to the work, for the verbs that still print what they find themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.config.command_line import DEFAULT_ROOT, FIRST, place_of, with_place
from sweeper.errors import BadInput, Keyword
from sweeper.verbs import requests

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


def _text(root: Path | None) -> str | None:
    return None if root is None else str(root)


def _root(root: Path | None) -> Path:
    return Path(DEFAULT_ROOT if root is None else root).expanduser()
