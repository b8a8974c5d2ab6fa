"""Search the best hyperparameters at the base size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.config.command_line import (
    FIRST,
    FROM,
    key_of,
    literal_metric,
    of_study,
    place_of,
    with_place,
)
from sweeper.config.studies import Invocation, study_tree, tree_of
from sweeper.errors import Call, Keyword
from sweeper.registry import TARGET, groups
from sweeper.study.folder import StudyFolder
from sweeper.study.study import find_study
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import Outcome, VerbAnswer
from sweeper.verbs.requests import SearchRequest

if TYPE_CHECKING:
    from sweeper.config.settings import Settings
    from sweeper.sweep.base_search import Found, SearchCost
    from sweeper.sweep.sweep import Submitted

UNTRAINED = ("study", "root=", "launcher", "logger", "runner.device=", "runner.batched_trials=")
"""How the words begin that say nothing of what a search trains."""


@dataclass(frozen=True, kw_only=True)
class SearchAnswer(VerbAnswer):
    """What was found, what is in jobs, or what would run; and how that was asked for.

    `source` is the study whose answer it began at.
    """

    request: SearchRequest
    settings: Settings
    invocation: Invocation
    result: Found | Submitted | SearchCost
    source: str | None = None


def _goes_on(folder: Path, overrides: Sequence[str], config_dir: Path | None) -> bool:
    """Whether a search of the study in `folder` changes settings of the one before, if any.

    What chooses a group, a class or a command says anew what to search.
    """
    chosen = {*groups(config_dir), FROM, "runner.command"}
    is_new = any(key in chosen or key.endswith(f".{TARGET}") for key in map(key_of, overrides))
    return not is_new and StudyFolder(folder).config.is_file()


def search(request: SearchRequest, watcher: Watcher) -> SearchAnswer:
    """Train what the study lacks, or with `dry_run` say what that would take."""
    name, others = of_study(request.overrides, request.study, request.root)
    sources, overrides = list[str](), [literal_metric(word) for word in others]
    _, root = place_of([word for word in others if word.startswith("root=")], None, None)
    if name is not None and _goes_on(root / name, others, request.config_dir):
        tree, invocation = study_tree(name, overrides, request.config_dir, trust=None)
    else:
        overrides = list(request.overrides)
        if request.study is not None and not overrides:  # all that it could train is a study's
            find_study(request.study, root)
        # Who says nothing of what to train gets an answer by short runs.
        if all(word.startswith(UNTRAINED) for word in overrides):
            overrides = [f"experiment={FIRST}", *overrides]
        placed = with_place(overrides, request.study, request.root)
        # The study that a search begins at is no setting, what it leads to is (`warm_start.py`).
        begins = [word for word in placed if word.startswith(f"{FROM}=")]
        sources = [word.partition("=")[2].strip("'\"") for word in begins]
        overrides = [word for word in placed if word not in begins]
        # A misspelt setting is refused before torch loads.
        tree, invocation = tree_of(None, overrides, request.config_dir)
        invocation = replace(invocation, overrides=placed)
        if sources:
            from sweeper.sweep.warm_start import warm_tree

            # Ranges that the user typed stay; the others are laid around the source's answer.
            tree = warm_tree(tree, sources[-1], {*map(key_of, placed)})
    from sweeper.config.settings import resolve
    from sweeper.sweep.base_search import Found, check_place, search_cost, search_study

    settings = resolve(tree, overrides)
    if f"experiment={FIRST}" in invocation.overrides:
        watcher.tell(
            "This searches the learning rate alone, by short runs of a small model "
            "(experiment=first). What takes longer is asked for: the u-muP paper's search with ",
            Call("search", "search=independent"),
            ", at its size and with its ladders with ",
            Call("search", "size=paper"),
            " (hours, and days without a GPU). ",
            Keyword("dry_run"),
            " says how long.",
        )
    check_place(settings, detach=request.detach)
    new_setup, outcome = request.new_setup, Outcome.DONE
    result: Found | Submitted | SearchCost
    if request.dry_run:
        result = search_cost(settings, invocation, watcher, new_setup=new_setup)
    else:
        detach = request.detach
        result = search_study(settings, invocation, watcher, detach=detach, new_setup=new_setup)
    if isinstance(result, Found):
        # Where every run diverged, or a neighbour of the best has no result, there is none yet.
        is_found = math.isfinite(result.conclusion.objective) and not result.lacking
        outcome = Outcome.DONE if is_found else Outcome.FAILED
    return SearchAnswer(
        outcome=outcome,
        request=request,
        settings=settings,
        invocation=invocation,
        result=result,
        source=sources[-1] if sources else None,
    )
