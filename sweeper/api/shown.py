"""What a notebook shows of a study, a transfer and a verdict: tables, plots, and the report's card.

Nothing here trains or writes. Plots are those of the report, as pyplot's figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sweeper.api.bar import Kept, answered
from sweeper.api.words import CALLS
from sweeper.decide.documents import Documents
from sweeper.decide.ladder_verdict import Verdict, worst
from sweeper.decide.validation import Validation
from sweeper.errors import BadInput
from sweeper.gone import gone
from sweeper.plan.plan import TransferPlan
from sweeper.report.console import verdict_table
from sweeper.report.drawing import learning_rate_figure, pyplot_figures
from sweeper.report.next import next_of
from sweeper.report.notebook import html, study_report, text, transfer_report, verdict_report
from sweeper.report.sections import Report
from sweeper.study import study as record
from sweeper.study.folder import TargetFolder, is_study
from sweeper.study.runs_table import trials_table
from sweeper.trial import Choice, in_use
from sweeper.verbs.requests import StatusRequest

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def drawn(draw: Callable[[], Figure]) -> list[Axes]:
    """The panels of a figure, which pyplot then knows."""
    with pyplot_figures():
        figure = draw()
    # A colour bar is a panel of matplotlib's, and none of ours.
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


class Answer:
    """What a verb answered, whichever it was.

    `text` is what people read, `document` what `--json` prints, `places` the files that were
    written by what they are, `notes` what else should be known. A notebook shows it as it is.
    """

    text: str = ""
    document: Mapping[str, Any] = MappingProxyType({})
    notes: Sequence[str] = ()
    places: Mapping[str, Path] = MappingProxyType({})

    @classmethod
    def of(cls, output: Kept) -> Answer:
        """What was kept of a verb's words."""
        made = cls()
        made.take(output)
        return made

    def take(self, output: Kept) -> None:
        """Keep a verb's words."""
        self.text, self.document = output.text, output.record
        self.notes, self.places = tuple(output.kept_notes), output.places

    @property
    def answer(self) -> str:
        """The decision where there is one, such as "holds"; else the last sentence."""
        return str(self.document.get("answer") or self.text.strip().rpartition("\n")[2])

    @property
    def _report(self) -> Report | None:
        return None

    def __repr__(self) -> str:
        return text(report) if (report := self._report) else self.text.strip()

    def _repr_html_(self) -> str:
        plain = f'<pre style="font-family:monospace">{escape(self.text.strip())}</pre>'
        return html(report) if (report := self._report) else plain


class Study(Answer, record.StudyRecord):
    """A study as it was when it was opened: its results, what they say, and its plots.

    A notebook shows it as the report's first lines. `notices` are what its user should know.
    """

    @classmethod
    def opened(cls, folder: Path) -> Study:
        """The study in `folder`; as an answer it says what `status` does."""
        study = cls.read(folder)
        if is_study(folder):
            study.take(answered(StatusRequest(study=folder.name, root=folder.parent))[1])
        return study

    def reload(self) -> None:
        """Take what was recorded since: of a search that goes on, or a later transfer."""
        self._results = type(self).read(self.folder)._results
        # A cached property: what was read before is of the study as it was then.
        vars(self).pop("documents", None)

    @cached_property
    def documents(self) -> Documents:
        """All that the report of the study is made of."""
        return Documents.read(self.folder)

    @property
    def best(self) -> dict[str, Choice]:
        """The best hyperparameters as they are used; BadInput before there are any."""
        searched = self.documents.searched
        if searched is None:
            raise BadInput(f"the search of {self.name!r} has no result yet")
        return in_use(searched.space, searched.conclusion.best_log2)

    @property
    def loss(self) -> float:
        """The best configuration's loss (nats); +inf where every run diverged."""
        conclusion = self.documents.conclusion
        if conclusion is None:
            raise BadInput(f"the search of {self.name!r} has no result yet")
        return conclusion.objective

    @property
    def plan(self) -> TransferPlan:
        """Its plan; BadInput where it has none, or several, which are named."""
        return TransferPlan.load(self.folder)

    @property
    def verdicts(self) -> list[LadderVerdict]:
        """What validations say, an axis of a target each."""
        targets = self.documents.targets
        return [verdict for t in targets for verdict in _verdicts(t.validation)]

    def records(self) -> list[dict[str, Any]]:
        """A flat record a trial, in the order in which they finished.

        Sizes, `log2_eta` and the other hyperparameters as they are used, seed, `loss` (nats; inf
        where it diverged), status; then phase, `heldout` loss, accuracy, steps, seconds, error.
        """
        results = self.results()
        more = ("heldout", "accuracy", "steps", "seconds", "error", "key")
        return [
            {**row, "phase": result.trial.phase, **{name: getattr(result, name) for name in more}}
            for row, result in zip(trials_table(results), results, strict=True)
        ]

    def to_dataframe(self) -> pandas.DataFrame:
        """The `records` as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.records())

    def plot_ladder(self, axis: str = "width") -> Axes:
        """The loss against the learning rate, a curve a size of the newest ladder over `axis`."""
        verdicts = [verdict for verdict in self.verdicts if verdict.axis == axis]
        if not verdicts:
            raise self._nothing(f"a validation over {axis} (sweeper.transfer(validate=True))")
        return verdicts[-1].plot()

    def plot_check(self, axis: str = "width") -> list[Axes]:
        """How outputs and their changes grow along `axis`, by the newest check: a panel a module.

        Checks come with a validation, or from `sweeper check`.
        """
        from sweeper.report.checks import coordinate_figure

        record = self.documents.check
        checks = [check for check in record.axes if check.axis == axis] if record else []
        if not checks:
            calls = "sweeper.transfer(validate=True), sweeper check"
            raise self._nothing(f"a coordinate check over {axis} ({calls})")
        return drawn(lambda: coordinate_figure(checks[0]))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a study has no {name!r}{gone(f'study.{name}')}")

    def _nothing(self, needed: str) -> BadInput:
        return BadInput(f"the study {self.name!r} has nothing to draw: this plot needs {needed}")

    @property
    def _report(self) -> Report:
        after = _next_call(self.folder)
        return study_report(self.documents, nearby(self.folder), self.notices, after)


def nearby(folder: Path) -> Path:
    """A folder as it is called from the one worked in, where it lies below."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _next_call(folder: Path) -> str:
    command = next_of(nearby(folder), shell=False)
    return f"Next, {command.why}: {CALLS.call(command.call)}" if command else ""


@dataclass(frozen=True, repr=False)
class LadderVerdict:
    """What a ladder over one axis says, with its curves; `verdict` has all of it."""

    verdict: Verdict
    validation: Validation

    @property
    def answer(self) -> str:
        """holds, fails or cannot say yet: on the ladder."""
        return self.verdict.answer

    @property
    def axis(self) -> str:
        """What changes along the ladder, such as width."""
        return self.verdict.axis

    @property
    def at_target(self) -> str:
        """The answer at the target; "" where it has the base's size along the axis."""
        return self.verdict.target.answer if self.verdict.target else ""

    def to_dataframe(self) -> pandas.DataFrame:
        """A row a size: its optimum, its shift, what the base's costs there, the answer."""
        return verdict_table(self.verdict, self.validation.hyperparameter).to_frame()

    def plot(self) -> Axes:
        """The loss against the learning rate, a curve a size, with the optima."""
        return drawn(lambda: learning_rate_figure(self.validation, self.verdict))[0]

    def __repr__(self) -> str:
        return text(verdict_report(self.verdict, self.validation))

    def _repr_html_(self) -> str:
        return html(verdict_report(self.verdict, self.validation))


def _verdicts(validation: Validation | None) -> list[LadderVerdict]:
    return [LadderVerdict(each, validation) for each in validation.axes] if validation else []


@dataclass(kw_only=True, repr=False, eq=False)
class Transfer(Answer):
    """A plan for a target, and what was validated of it; `folder` has both as files."""

    folder: Path
    plan: TransferPlan
    verdicts: tuple[LadderVerdict, ...] = ()
    notes: Sequence[str] = ()

    @classmethod
    def read(cls, folder: Path, notes: Sequence[str] = ()) -> Transfer:
        """What lies in a target's `folder`, as `sweeper transfer` left it."""
        plan, path = TransferPlan.load(folder), TargetFolder(folder).validation
        targets = Documents.read(folder.parents[1]).targets if path.is_file() else ()
        validation = next((t.validation for t in targets if t.place.name == folder.name), None)
        verdicts = tuple(_verdicts(validation))
        return cls(folder=folder, plan=plan, verdicts=verdicts, notes=tuple(notes))

    @property
    def answer(self) -> str:
        """holds, fails, cannot say yet: the worst of all; "not validated" without a verdict."""
        answers: list[Any] = [a for v in self.verdicts for a in (v.answer, v.at_target) if a]
        return worst(answers) if answers else "not validated"

    @property
    def study(self) -> Study:
        """The study that the plan was made from, as it is now."""
        return Study.opened(self.folder.parents[1])

    def plot_ladder(self, axis: str = "width") -> Axes:
        """The loss against the learning rate, a curve a size of the ladder over `axis`."""
        for verdict in self.verdicts:
            if verdict.axis == axis:
                return verdict.plot()
        raise BadInput(f"no ladder over {axis} was validated: sweeper.transfer(validate=True)")

    @property
    def _report(self) -> Report:
        verdicts = [(each.verdict, each.validation) for each in self.verdicts]
        after, folder = _next_call(self.folder.parents[1]), nearby(self.folder)
        return transfer_report(self.plan, self.answer, verdicts, folder, self.notes, after)


def source_of(source: Any) -> Any:
    """Runs as a request has them: a study by its folder."""
    if isinstance(source, Study):
        return str(nearby(source.folder))
    return fspath(source) if isinstance(source, PathLike) else source
