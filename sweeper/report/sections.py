"""What a verb answers, in one shape: sections of tables, drawings, facts, sentences and commands.

Terminal, page and notebook are renderings of it, each in a file of its own. An item says one thing
of room alone: what is a `detail` stands under --verbose on a terminal, and folded on a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sweeper.errors import SHELL, Text, as_text, spelled
from sweeper.table import TONES, Table, Tone

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from sweeper.report.next import Next


def tone_of(code: str) -> Tone:
    """The colour of a decision: that of an open answer for all that is not decided."""
    return TONES.get(code, "open") if code else ""


@dataclass(frozen=True)
class BaseItem:
    """The base of what an answer is made of."""

    detail: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Sentence(BaseItem):
    """A sentence, or an entry of a list where `listed`; its `code` is the decision that it tells.

    Keywords and commands in it are values, which each rendering spells.
    Codes such as "holds" and "fails" give it a colour, and on a page a mark.
    """

    text: str | Text
    _: KW_ONLY
    code: str = ""
    listed: bool = False

    def __str__(self) -> str:
        return spelled(as_text(self.text), SHELL)


@dataclass(frozen=True)
class Verbatim(BaseItem):
    """Text that is copied as it stands, such as a script: no line of it is broken."""

    text: str
    title: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Commands(BaseItem):
    """Commands to type one after the other, each as its words, behind a `title`."""

    title: str
    commands: Sequence[Sequence[str]]
    note: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Facts(BaseItem):
    """Values by their names, such as where a plan's numbers come from; empty ones are left out."""

    values: Mapping[str, object]
    title: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Drawing(BaseItem):
    """A figure, drawn where it is shown, with its caption; `wide`: scrolled on a narrow page."""

    figure: Callable[[], Figure]
    _: KW_ONLY
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Progress(BaseItem):
    """How far work is that goes on, or that was stopped: a sentence, and a bar of a `share`."""

    text: str
    share: float


Item = Table | Sentence | Verbatim | Commands | Facts | Drawing | Progress


@dataclass(frozen=True)
class Section:
    """Items under a title in reading order; that of the answer has the colour of its `code`."""

    title: str
    items: Sequence[Item]
    _: KW_ONLY
    is_answer: bool = False
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """An answer as it is read: a title, what it is of in a sentence, notes, and its sections.

    A page shows all of it, the answer first; a terminal its `items`, and the `answer`, one of the
    sentences, at the end.
    """

    title: str
    sections: Sequence[Section]
    answer: str | Text = ""
    about: str = ""
    notes: Sequence[str | Text] = ()

    @property
    def items(self) -> list[Item]:
        """What stands above the answer on a terminal: what it is of, then what goes with it."""
        ordered = sorted(self.sections, key=lambda section: section.is_answer)
        items = [item for section in ordered for item in section.items]
        return [i for i in items if not (isinstance(i, Sentence) and i.text == self.answer)]


def rests_on(values: Mapping[str, object], *more: Item) -> Section:
    """What an answer was made of: its runs, its columns, its command."""
    facts = Facts(values, title="What it rests on", detail=True)
    return Section("", [facts, *(replace(item, detail=True) for item in more)])


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An answer for readers: its items in order, and how the verb ends.

    `before` are remarks to whoever watched, as which columns were read as what. `answer` is the
    last sentence, `places` are files by what they are, `document` is what --json
    prints, in `one_line` for a program that decides by it, `next` what to ask next. `folder` keeps
    what libraries warned of.
    """

    answer: str | Text
    before: Sequence[str] = ()
    items: Sequence[Item] = ()
    notes: Sequence[str | Text] = ()
    places: Mapping[str, object] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)
    next: Sequence[Next | None] = ()
    folder: Path | None = None
    one_line: bool = False
