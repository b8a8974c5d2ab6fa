"""What verbs that train share: checked settings, the experiment, runs that measure, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sweeper.config.settings import Experiment, Settings
from sweeper.errors import SHELL
from sweeper.report.next import report_of
from sweeper.report.output import Output
from sweeper.report.present import OutputWatcher
from sweeper.study.folder import StudyFolder
from sweeper.sweep.experiment import progress_of
from sweeper.sweep.progress import Progress
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
) -> Progress:
    """A listener that writes to `folder` (None: the study's), and learns from runs of `known`.

    Each result is told to `heard`.
    """
    watcher = OutputWatcher(output, SHELL)
    return progress_of(settings, watcher, job, planned, folder, known, heard)


def write_page(folder: Path, output: Output) -> dict[str, Path]:
    """Write the study's page, and say where it lies; one that cannot be written is told.

    It costs nothing else: the results are recorded, and the verb's answer is still to come.
    """
    from sweeper.report.study_page import write_report

    page = StudyFolder(folder).report
    try:
        return {"report": write_report(folder)}
    except OSError as error:
        # Its figures are written after it.
        path, why = Path(error.filename or page), error.strerror or str(error)
    except Exception as error:
        path, why = page, " ".join(f"{type(error).__name__}: {error}".split())
    output.notes([f"{path.name} was not written ({why}): `{report_of(folder)}` writes it"])
    return {"study": folder} if path == page else {"report": page}
