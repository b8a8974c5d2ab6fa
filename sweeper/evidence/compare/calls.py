"""`sweeper.compare`: what a notebook calls and is shown."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.api.calls import answered, folder_of
from sweeper.api.keywords import keywords_of, request_of
from sweeper.api.shown import Answer
from sweeper.api.words import settings_words
from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import ConfigError, Keyword
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.compare.verb import asks_for_winner
from sweeper.table import data_frame
from sweeper.verbs.requests import options_of

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
from sweeper.evidence.sources import source_of


class Compared(Answer):
    """Studies that were ranked; a notebook shows text and picture."""

    @property
    def picture(self) -> Path | None:
        """The file of the figure, where one was drawn."""
        return self.places.get("figure")

    def to_dataframe(self) -> pandas.DataFrame:
        """A row a place, the best first: by the transferred loss, with settle by what it found.

        BadInput where pandas is not installed.
        """
        places = self.document.get("by_transferred") or self.document.get("places") or []
        # A mean with its interval is three columns: loss, loss low, loss high.
        return data_frame(
            [
                {
                    f"{name} {part}".removesuffix(" value"): number
                    for name, value in place.items()
                    for part, number in (
                        value.items() if isinstance(value, Mapping) else [("value", value)]
                    )
                }
                for place in places
            ]
        )

    def _repr_html_(self) -> str:
        # The figure is written as PNG and as SVG, which stays sharp in a notebook.
        drawn = self.picture.with_suffix(".svg") if self.picture else None
        svg = drawn.read_text() if drawn and drawn.is_file() else ""
        # As an image: the ids of an <svg> hold for a whole notebook.
        image = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
        shown = f'<img src="{image}" style="max-width:100%;background:white">' if svg else ""
        return f'<pre style="font-family:monospace">{escape(self.text.strip())}</pre>{shown}'


@keywords_of(CompareRequest)
def compare(*studies: Any, **settings: Any) -> Compared | Answer:
    """Which change wins at a target, or how studies rank, as `sweeper compare` says it.

    Of runs of any source as `judge` takes them, with `by` and `baseline`, the variants are carried
    to `to_params`, `to_tokens` or `to_width`; nothing is written but with `out`. Of two validated
    studies or more, of one root, the ranking at equal compute. With `settle` seeds are trained at
    each study's optimum until it is decided which is the best; further keywords are settings such
    as `launcher="slurm"`. Errors as `search`.
    """
    sources = tuple(map(source_of, studies))
    known = options_of(CompareRequest)
    own = {name: value for name, value in settings.items() if name in known}
    asked = request_of(CompareRequest, {**own, "names": ()})
    if asks_for_winner(sources, vars(asked), Path(asked.root or DEFAULT_ROOT)):
        # Under strict nothing is written: a call writes nothing but with `out`.
        request = replace(request_of(CompareRequest, {**settings, "names": ()}), names=sources)
        return Answer.of(answered(replace(request, strict=request.out is None))[1])
    folders = [folder_of(study, settings.get("root")) for study in studies]
    parents = {folder.absolute().parent for folder in folders}
    if len(parents) > 1:
        raise ConfigError(
            Keyword("studies"), [*map(str, folders)], "studies of one folder, their root"
        )
    changes = {name: value for name, value in settings.items() if name not in known}
    if folders:
        own["root"] = folders[0].parent
    words = settings_words("transfer", changes, None)
    own["names"] = [*(folder.name for folder in folders), *words]
    _, output = answered(request_of(CompareRequest, own))
    if not output.places:
        return Answer.of(output)
    found = Compared()
    found.take(output)
    return found
