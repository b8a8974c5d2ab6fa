"""The verbs that train nothing: their flags alone."""

from __future__ import annotations

from typing import Annotated

import typer

from sweeper.overrides import place_of
from sweeper.verb import Json, Name, Root, Study, output_of, run


def status(
    name: Name = None,
    study: Study = None,
    root: Root = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until the study's driver and jobs end.")
    ] = False,
    json: Json = False,
) -> None:
    """Show where a study stands: trials by phase, best so far, its jobs, the running driver."""

    def work() -> int:
        from sweeper.commands.inspect import status

        return status(*place_of(name or [], study, root), output_of(json), watch=watch)

    run(work, stopped="Stopped watching.")


def cancel(name: Name = None, study: Study = None, root: Root = None, json: Json = False) -> None:
    """Cancel a study's jobs, wherever they run, and no others; what had finished is kept."""

    def work() -> int:
        from sweeper.commands.inspect import cancel

        return cancel(*place_of(name or [], study, root), output_of(json))

    run(work, stopped="Stopped.")


def report(name: Name = None, study: Study = None, root: Root = None, json: Json = False) -> None:
    """Write a study's report, report.html: one page that needs no network."""

    def work() -> int:
        from sweeper.commands.inspect import report

        return report(*place_of(name or [], study, root), output_of(json))

    run(work, stopped="Stopped.")


def doctor(
    root: Root = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="An Optuna URL to try, as study.storage."),
    ] = None,
    json: Json = False,
) -> None:
    """Say what is here and what is missing, with the command to get it.

    Exits with 2 where no search can run.
    """

    def work() -> int:
        from sweeper.commands.doctor import doctor

        return doctor(root, storage, output_of(json))

    run(work, stopped="Stopped.")
