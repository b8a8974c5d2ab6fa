"""What a notebook shows of runs that were judged, compared, or told a law."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.api.shown import Answer, drawn
from sweeper.errors import PYTHON, BadInput, as_text, spelled
from sweeper.records import to_json
from sweeper.report.judged import figures, headline, judged_report, trend_lines, write_judged
from sweeper.report.judged import tables as judged_tables
from sweeper.report.notebook import html
from sweeper.report.rate_law import (
    critical_lines,
    critical_record,
    rates_figure,
    rates_lines,
    rates_notes,
    rates_record,
    rates_report,
    rates_tables,
)
from sweeper.report.sentences_judged import worded_judged
from sweeper.table import data_frame
from sweeper.verbs.judge import CriticalAnswer, JudgeAnswer, RatesAnswer

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    from matplotlib.axes import Axes


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


class Judgement(Answer):
    """A verdict on runs, with its curves; `judged` has all of it. Nothing was written.

    Over the batch `critical` is the critical one, None where nothing tells it.
    """

    def __init__(self, told: JudgeAnswer) -> None:
        """Show what was judged."""
        self.judged, self.critical = worded_judged(told.judged, PYTHON), told.critical
        self.document = self.judged.record
        beside = (spelled(as_text(note), PYTHON) for note in told.notes)
        self.notes = (*self.judged.notes, *beside)
        lines = [*headline(self.judged), *trend_lines(self.judged)]
        if told.critical is not None:
            lines += critical_lines(told.critical)
            self.document["critical_batch"] = to_json(told.critical)
        self.text = "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    @property
    def answer(self) -> str:
        """holds, fails or cannot say yet."""
        return self.judged.answer

    def to_dataframe(self) -> pandas.DataFrame:
        """The sizes, a row each; BadInput without any."""
        tables = judged_tables(self.judged)
        if not tables:
            raise BadInput("nothing was judged")
        return tables[0].to_frame()

    def plot(self) -> list[Axes]:
        """The curves, a panel each."""
        return drawn(lambda: next(iter(figures(self.judged).values())))

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write the page, the verdict and the figures there; their places."""
        return write_judged(self.judged, Path(folder))

    def _repr_html_(self) -> str:
        return html(judged_report(self.judged, figures(self.judged)))


class Critical(Answer):
    """The critical batch of runs that are no ladder of rates; `told` has all of it."""

    def __init__(self, told: CriticalAnswer) -> None:
        """Show what was told."""
        self.told, self.document = told.critical, critical_record(told)
        self.notes, self.text = self.document["notes"], "\n".join(self.document["sentences"])


class Rates(Answer):
    """The rate and the batch over models and horizons; `law` has all of it. Nothing was written."""

    def __init__(self, told: RatesAnswer) -> None:
        """Show what was told."""
        self.law, self.facts = told.law, told.facts
        self.document = rates_record(told.law, told.facts)
        self.notes = tuple(spelled(as_text(note), PYTHON) for note in rates_notes(told.law))
        self.text = "\n".join([*rates_lines(told.law), *(f"Note: {note}." for note in self.notes)])

    def to_dataframe(self) -> pandas.DataFrame:
        """The batches of the target, else the sizes that were run, a row each."""
        return rates_tables(self.law)[0].to_frame()

    def plot(self) -> list[Axes]:
        """The law, a panel for the rate and one for the batch."""
        return drawn(lambda: rates_figure(self.law))

    def _repr_html_(self) -> str:
        return html(rates_report(self.law, self.facts, rates_figure(self.law)))
