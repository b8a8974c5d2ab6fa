"""`sweeper.judge`: what a notebook calls and is shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.api.bar import TURNS
from sweeper.api.keywords import keywords_of, request_of
from sweeper.api.shown import Answer, drawn, source_of
from sweeper.errors import PYTHON, BadInput, as_text, spelled
from sweeper.evidence.batch.page import critical_record, critical_text
from sweeper.evidence.each.page import each_text
from sweeper.evidence.judge.page import figures, headline, judged_report, judged_shown
from sweeper.evidence.judge.page import tables as judged_tables
from sweeper.evidence.judge.request import JudgeRequest
from sweeper.evidence.judge.verb import CriticalAnswer, EachJudgeAnswer, JudgeAnswer, RatesAnswer
from sweeper.evidence.judge.words import worded_judged
from sweeper.evidence.rates.page import rates_lines, rates_record, rates_report, rates_tables
from sweeper.records import to_json
from sweeper.report.notebook import html
from sweeper.report.present import Silent, perform

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    from matplotlib.axes import Axes


class Judgement(Answer):
    """A verdict on runs with its curves, nothing written; `critical` is the batch, if known."""

    def __init__(self, answer: JudgeAnswer) -> None:
        self.judged, self.critical = worded_judged(answer.judged, PYTHON), answer.critical
        self.document = self.judged.record
        beside = (spelled(as_text(note), PYTHON) for note in answer.notes)
        self.notes = (*self.judged.notes, *beside)
        lines = headline(self.judged)
        if answer.critical is not None:
            lines.append(critical_text(answer.critical))
            self.document["critical_batch"] = to_json(answer.critical)
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

    def save(self, folder: str | Path) -> Mapping[str, object]:
        """Write the page, the verdict and the figures there; their places."""
        return judged_shown(self.judged, Path(folder)).places

    def _repr_html_(self) -> str:
        return html(judged_report(self.judged, figures(self.judged)))


class Critical(Answer):
    """The critical batch of runs that are no ladder of rates; `told` has all of it."""

    def __init__(self, answer: CriticalAnswer) -> None:
        self.told, self.document = answer.critical, critical_record(answer)
        self.notes, self.text = self.document["notes"], "\n".join(self.document["sentences"])


class Rates(Answer):
    """The rate and the batch over models and horizons; `law` has all of it. Nothing was written."""

    def __init__(self, answer: RatesAnswer) -> None:
        self.law, self.facts = answer.law, answer.facts
        self.document = rates_record(answer.law, answer.facts)
        self.notes = tuple(spelled(as_text(note), PYTHON) for note in answer.law.notes)
        lines = [*rates_lines(answer.law), *(f"Note: {note}." for note in self.notes)]
        self.text = "\n".join(lines)

    def to_dataframe(self) -> pandas.DataFrame:
        """The batches of the target, else the sizes that were run, a row each."""
        return rates_tables(self.law)[0].to_frame()

    def _repr_html_(self) -> str:
        return html(rates_report(self.law, self.facts))


@keywords_of(JudgeRequest)
def judge(source: Any = None, **keywords: Any) -> Judgement | Rates | Critical | Answer:
    """What `sweeper judge` says of runs: does their best learning rate stay? Trains nothing.

    `source` is a DataFrame, columns by name, a study, or a place as on the command line, a row a
    run. `columns` name them by role, as a text or a mapping: `{"width": "n_embd", "eta": "lr"}`.
    Nothing is written but by `save`; BadInput says what is missing.
    """
    request = request_of(JudgeRequest, {**keywords, "source": source_of(source)})
    with TURNS:
        answer = perform(request, Silent())
        result: Judgement | Rates | Critical | Answer
        match answer:
            case EachJudgeAnswer():
                result = Answer()
                result.text, result.document = each_text(answer.each), to_json(answer.each)
            case RatesAnswer():
                result = Rates(answer)
            case CriticalAnswer():
                result = Critical(answer)
            case JudgeAnswer():
                result = Judgement(answer)
            case _:
                raise TypeError(type(answer).__name__)
    return result
