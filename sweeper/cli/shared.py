"""What verbs that train share: a model that is seen to train, and the study's page."""

from __future__ import annotations

from pathlib import Path

from sweeper.cli.output import Output, report_command
from sweeper.config.settings import Experiment
from sweeper.trial import defaults


def check_model(experiment: Experiment, output: Output) -> None:
    """Train one step of the base model; say which rules the ladder's models cannot follow."""
    settings = experiment.settings
    hps = defaults(settings.space)
    trial = experiment.trial(settings.base, hps, 0, "check")
    settings.runner.validate(trial, experiment.corpus, settings.launcher)
    for sentence in settings.notes:
        output.tell(f"Note: {sentence}")


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
    output.notes([f"{path.name} was not written ({why}): `{report_command(folder)}` writes it"])
    return {"study": folder} if path == page else {"report": page}
