"""`sweeper.compare`: what a notebook calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sweeper.api.bar import answered
from sweeper.api.calls import folder_of
from sweeper.api.keywords import keywords_of, request_of
from sweeper.api.shown import Answer, source_of
from sweeper.api.words import settings_words
from sweeper.errors import ConfigError, Keyword
from sweeper.evidence.compare.request import CompareRequest
from sweeper.verbs.requests import options_of


@keywords_of(CompareRequest)
def compare(*studies: Any, **settings: Any) -> Answer:
    """Which change wins at a target, as `sweeper compare` says it.

    Of runs of any source as `judge` takes them, or of studies, the variants are carried to
    `to_params`, `to_tokens` or `to_width`; nothing is written. With `settle` the studies' next
    runs are trained until it is decided; further keywords are settings such as
    `launcher="slurm"`. Errors as `search`.
    """
    if not settings.get("settle"):
        sources = tuple(map(source_of, studies))
        request = replace(request_of(CompareRequest, {**settings, "names": ()}), names=sources)
        # Under strict nothing is written.
        return Answer.of(answered(replace(request, strict=True))[1])
    folders = [folder_of(study, settings.get("root")) for study in studies]
    parents = {folder.absolute().parent for folder in folders}
    if len(parents) > 1:
        raise ConfigError(
            Keyword("studies"), [*map(str, folders)], "studies of one folder, their root"
        )
    options = options_of(CompareRequest)
    own = {name: value for name, value in settings.items() if name in options}
    changes = {name: value for name, value in settings.items() if name not in options}
    if folders:
        own["root"] = folders[0].parent
    own["names"] = [
        *(folder.name for folder in folders),
        *settings_words("transfer", changes, None),
    ]
    return Answer.of(answered(request_of(CompareRequest, own))[1])
