"""The verbs that train nothing: their flags alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.errors import BadInput
from sweeper.overrides import place_of
from sweeper.verb import Json, Name, Names, Root, Studies, Study, output_of, run


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


def report(
    name: Names = None,
    study: Study = None,
    root: Root = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE.svg",
            help="Of several studies: write their curves there too, and as FILE-dark.svg.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a study's report, report.html: one page that needs no network.

    Of several studies, sweeper report A B, their curves side by side, and how they rank.
    """

    def work() -> int:
        from sweeper.commands.compare import named_studies
        from sweeper.commands.inspect import report
        from sweeper.commands.several import report_several

        names, place = named_studies(name or [], root)
        if len(names) > 1 and study is None:
            return report_several(names, place, picture, output_of(json))
        if picture is not None:
            raise BadInput("--picture is of several studies: sweeper report STUDY STUDY")
        return report(*place_of(name or [], study, root), output_of(json))

    run(work, stopped="Stopped.")


def compare(
    names: Studies,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Compare studies whose data, model or training differ."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; <root>/comparisons/NAMES if not given."),
    ] = None,
    root: Root = None,
    json: Json = False,
) -> None:
    """Rank validated studies at equal compute: is a scheme worth it? Trains nothing.

    Loss at the transferred and the re-tuned eta over width, robustness, and what tuning cost.
    """

    def work() -> int:
        from sweeper.commands.compare import compare_studies, named_studies

        return compare_studies(*named_studies(names, root), output_of(json), anyway=anyway, out=out)

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
