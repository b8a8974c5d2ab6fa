"""What verbs that train share: checked settings, the experiment, runs that measure, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sweeper.config.settings import Experiment, Settings
from sweeper.errors import SHELL
from sweeper.report.output import Output
from sweeper.report.present import OutputWatcher
from sweeper.report.sentences import unfinished_notes
from sweeper.search.strategy import Conclusion
from sweeper.study.study import Study
from sweeper.sweep.experiment import check_model as seen_to_train
from sweeper.sweep.experiment import progress_of
from sweeper.sweep.optimum import optimum as study_optimum
from sweeper.sweep.optimum import planned_before
from sweeper.sweep.progress import Progress
from sweeper.trial import Log2Hps, Result


def check_model(experiment: Experiment, output: Output) -> None:
    """Train one step of the base model; say which rules the ladder's models cannot follow."""
    seen_to_train(experiment, OutputWatcher(output, SHELL))


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
    from sweeper.report.study_page import written_page

    places, notes = written_page(folder)
    output.notes(notes)
    return places


def optimum(experiment: Experiment, study: Study, output: Output) -> Conclusion:
    """The study's conclusion, and what there is to say of it."""
    found = study_optimum(experiment, study)
    output.notes([*study.notices, *unfinished_notes(found.unfinished)])
    return found.conclusion


def planned_optimum(experiment: Experiment, study: Study, output: Output) -> Log2Hps:
    """What the study plans with: the optimum of its search, with the eta of its ladder."""
    return planned_before(experiment.settings, optimum(experiment, study, output).best_log2)
