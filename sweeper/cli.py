"""The command line: verbs and flags alone. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.completion import complete_override, complete_study
from sweeper.errors import BadInput, SweeperError

if TYPE_CHECKING:
    from sweeper.commands.output import Output

app = typer.Typer(
    name="sweeper",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tune small, train big: search hyperparameters on a small proxy model, transfer them to "
    "any width and depth, and prove that the transfer holds.",
    epilog="Exit codes: 0 done, 1 the work failed, 2 bad input, 3 not proven under --strict, "
    "130 interrupted.",
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...",
        help="Hydra overrides: parameterization=umup model.width=128 search=lr study=NAME root=DIR",
        autocompletion=complete_override,
        show_default=False,
    ),
]
Study = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="The study; the latest if not given.",
        autocompletion=complete_study,
        show_default=False,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; all else on stderr.")
]
ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="A folder with your own configs, laid out like conf/."),
]
Root = Annotated[Path, typer.Option("--root", help="Folder of all studies.")]


STOPPED = "Stopped; what had finished is kept. Run the same command again to go on."


def _say(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _exit(work: Callable[[], int]) -> None:
    """Run a verb; errors become one message on stderr and an exit code."""
    try:
        code = work()
    except SweeperError as error:
        code = _say(f"Error: {error}", 2 if isinstance(error, BadInput) else 1)
    except KeyboardInterrupt:
        code = _say(STOPPED, 130)
    raise typer.Exit(code)


def _output(json: bool) -> Output:
    from rich.console import Console

    from sweeper.commands.output import Output

    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "120"))
    return Output(people=Console(stderr=json, width=width), json=json)


@app.command()
def search(
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run; train and write nothing.")
    ] = False,
    json: Json = False,
    config_dir: ConfigDir = None,
) -> None:
    """Search the best hyperparameters at the base size. Run it again to go on where it stopped."""

    def work() -> int:
        from sweeper.commands.search import search

        return search(overrides or [], config_dir, _output(json), dry_run=dry_run)

    _exit(work)


@app.command()
def transfer(
    to_width: Annotated[int, typer.Option("--to-width", min=1, help="Width of the target model.")],
    overrides: Overrides = None,
    to_depth: Annotated[
        int | None,
        typer.Option("--to-depth", min=1, help="Its depth; the base depth if not given."),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            "--study", help="The study; the latest if not given.", autocompletion=complete_study
        ),
    ] = None,
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Train learning-rate curves at a ladder of sizes."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 unless the verdict is that it holds.")
    ] = False,
    json: Json = False,
    config_dir: ConfigDir = None,
) -> None:
    """Rescale a study's optimum to a larger model, and show whether the transfer holds."""

    def work() -> int:
        from sweeper.commands.transfer import Target, transfer

        if strict and not validate:
            raise BadInput("--strict judges the verdict of --validate: give both")
        target = Target(width=to_width, depth=to_depth, validate=validate, strict=strict)
        return transfer(study, target, overrides or [], config_dir, _output(json))

    _exit(work)


@app.command()
def status(
    name: Study = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until the study's driver ends.")
    ] = False,
    root: Root = Path("runs"),
    json: Json = False,
) -> None:
    """Show where a study stands: trials by phase, best so far, the running driver."""

    def work() -> int:
        from sweeper.commands.inspect import status

        return status(name, root, _output(json), watch=watch)

    _exit(work)


@app.command()
def report(name: Study = None, root: Root = Path("runs"), json: Json = False) -> None:
    """Write a study's report, one HTML page without any link to the network."""

    def work() -> int:
        from sweeper.commands.inspect import report

        return report(name, root, _output(json))

    _exit(work)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """The `sweeper` command."""
    signal.signal(signal.SIGTERM, _interrupt)
    # torch's threads spin for long before they sleep, which on a busy machine costs tenfold.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(_say(STOPPED, 130))


if __name__ == "__main__":
    main()
