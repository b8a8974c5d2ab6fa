"""A verb's answer that has a page of its own: one report for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure

from sweeper.files import write_json
from sweeper.report.answer import Report
from sweeper.report.page import write_page
from sweeper.report.present import Shown


def paged(
    report: Report,
    folder: Path | None,
    name: str,
    document: Mapping[str, Any],
    *,
    drawn: Mapping[str, Figure] = MappingProxyType({}),
    kind: str = "",
    places: Mapping[str, object] = MappingProxyType({}),
    live: float = 0.0,
    **more: Any,
) -> Shown:
    """A verb's report for both readers: NAME.html is written, and a terminal gets the same items.

    What is `drawn` are files beside the page, and so is the `document`, as a place of that `kind`,
    where one is named. Without a `folder` nothing is written.
    """
    if folder is not None:
        written = write_page(folder, name, report, drawn, live=live)
        if kind:
            write_json(folder / f"{name}.json", document)
            places = {kind: folder / f"{name}.json", **places}
        places = {"page": written.pop("page"), **places, **written}
    return Shown(
        items=report.items,
        notes=report.notes,
        answer=report.answer,
        places=places,
        document=document,
        folder=folder,
        **more,
    )
