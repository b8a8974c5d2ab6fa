"""What verbs that train share: checked settings, the experiment, runs that measure, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sweeper.config.settings import Experiment, Settings
from sweeper.report.live import LivePage
from sweeper.report.next import report_of
from sweeper.report.output import Output
from sweeper.report.progress import SweepProgress
from sweeper.study.cost import at_once
from sweeper.study.setup import command_line
from sweeper.sweep.experiment import trial_seconds
from sweeper.trial import Result, defaults


def check_model(experiment: Experiment, output: Output) -> None:
    """Train one step of the base model; say which rules the ladder's models cannot follow."""
    settings = experiment.settings
    hps = defaults(settings.space)
    trial = experiment.trial(settings.base, hps, 0, "check")
    settings.runner.validate(trial, experiment.corpus, settings.launcher)
    for sentence in settings.notes:
        output.tell(f"Note: {sentence}")


def progress(
    settings: Settings,
    output: Output,
    job: str,
    planned: int,
    folder: Path | None = None,
    known: Sequence[Result] = (),
    heard: Callable[[Result], None] | None = None,
) -> SweepProgress:
    """A listener that writes to `folder` (None: the study's), and learns from runs of `known`.

    Each result is told to `heard`.
    """
    same = [result for result in known if result.trial.spec.runner == settings.identity]
    where = folder or settings.folder
    return SweepProgress(
        where,
        output.watchers,
        job,
        planned=planned,
        seconds=trial_seconds(settings, same),
        at_once=at_once(same),
        page=LivePage(where, output.tell, report_of(where)) if folder is None else None,
        bar=output.bar,
        heard=heard,
        command=command_line(),
    )


def write_page(folder: Path, output: Output) -> dict[str, Path]:
    """Write the study's page, and say where it lies; one that cannot be written is told.

    It costs nothing else: the results are recorded, and the verb's answer is still to come.
    """
    from sweeper.report.page import write_report

    page = folder / "report.html"
    try:
        return {"report": write_report(folder)}
    except OSError as error:
        # Its figures are written after it.
        path, why = Path(error.filename or page), error.strerror or str(error)
    except Exception as error:
        path, why = page, " ".join(f"{type(error).__name__}: {error}".split())
    output.notes([f"{path.name} was not written ({why}): `{report_of(folder)}` writes it"])
    return {"study": folder} if path == page else {"report": page}
