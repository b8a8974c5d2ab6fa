"""An answer as HTML: a page with one script and one style that loads nothing, or a piece of one."""

from __future__ import annotations

import base64
import hashlib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count, groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from sweeper.errors import SHELL, Spelling, as_text, printable, spelled
from sweeper.files import private_folder, write_atomically, write_json
from sweeper.report.drawing import save, svg
from sweeper.report.sections import Item, Report, Sentence, Shown, tone_of

STYLES = Path(__file__).parent / "templates"


def page(report: Report, *, live: float = 0.0) -> str:
    """A report as a page; `live`: it loads itself anew every so many seconds, where it was."""
    # The page's content security policy allows the one script with this digest: names and notes
    # from files can smuggle in no other.
    script = (STYLES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = _template().render(
        _spelled_and_drawn("f", SHELL),
        report=report,
        style=Markup((STYLES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=digest,
        live=live,
        written=time.time(),
    )
    return printable(text.strip())


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
        private_folder(folder)
        # Before `save`, which takes the marks that a page alone shows out of the figures.
        write_atomically(path := folder / f"{name}.html", page(report, live=live))
        pictures = [("figure", save(figure, folder / each)[0]) for each, figure in drawn.items()]
        if kind:
            write_json(folder / f"{name}.json", document)
            places = {kind: folder / f"{name}.json", **places}
        places = {"page": path, **places, **dict(pictures[:1])}
    return Shown(
        items=report.items,
        notes=report.notes,
        answer=report.answer,
        places=places,
        document=document,
        folder=folder,
        **more,
    )


def fragment(report: Report, name: str, spelling: Spelling) -> Markup:
    """The sections of a report as a piece of a page; ids of its drawings begin with `name`."""
    pieces: Any = _template().make_module(_spelled_and_drawn(name, spelling))
    return Markup(printable(pieces.sections(report)))


def _spelled_and_drawn(name: str, spelling: Spelling) -> dict[str, Callable[..., str]]:
    """What the template calls; drawings have ids in order, so equal reports are equal pages."""
    names = map(f"{name}{{}}".format, count(1))
    return {
        "drawn": lambda figure: Markup(svg(figure, next(names))),
        "spelled": lambda text: spelled(as_text(text), spelling),
    }


@cache
def _template() -> Template:
    """The one template, with escaping on: names and notes come from files, and are no HTML."""
    environment = Environment(
        loader=PackageLoader("sweeper.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"facts": facts, "grouped": _grouped, "lines": _lines, "tone": tone_of}
    return environment.get_template("page.html.j2")


def _grouped(items: Iterable[Item]) -> Iterator[tuple[str, bool, str, Any]]:
    def in_list(item: Item) -> tuple[bool, bool, int]:
        is_sentence = isinstance(item, Sentence)
        listed = isinstance(item, Sentence) and item.listed
        # By its identity an item that belongs to no list stays in a group of its own.
        return listed, item.detail, 0 if is_sentence and (listed or item.detail) else id(item)

    for (listed, detail, _), group in groupby(items, in_list):
        entries = list(group)
        if listed:
            yield "", detail, "list", entries
            continue
        for entry in entries:
            yield str(getattr(entry, "title", "")), detail, type(entry).__name__, entry


def _lines(commands: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(shlex.join, commands))


def facts(record: Mapping[str, Any]) -> dict[str, str]:
    """A record as rows of text; what is empty is left out."""
    texts = {key: _text(value) for key, value in record.items() if value is not None}
    return {key.replace("_", " "): text for key, text in texts.items() if text}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        pairs = [(key, _nested(part)) for key, part in value.items() if part not in (None, "")]
        return ", ".join(f"{str(key).replace('_', ' ')} {text}" for key, text in pairs)
    return ", ".join(map(_nested, value)) if isinstance(value, list | tuple) else str(value)


def _nested(value: object) -> str:
    text = _text(value)
    return f"({text or 'none'})" if isinstance(value, Mapping | list) else text
