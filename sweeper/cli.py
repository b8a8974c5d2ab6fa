"""The command line: verbs and flags alone. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from sweeper.catalog import groups
from sweeper.completion import complete_override, complete_study
from sweeper.errors import BadInput, SweeperError
from sweeper.own_command import with_command

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


def _choices() -> str:
    """Every group with its options, for the help."""
    try:
        options = groups()
    except BadInput as error:
        return str(error)
    return "Groups: " + ", ".join(f"{name}={'|'.join(options[name])}" for name in options)


def _overrides(context: typer.Context, incomplete: str) -> list[str]:
    return complete_override(incomplete, context.params.get("config_dir"))


def _studies(context: typer.Context, incomplete: str) -> list[str]:
    return complete_study(incomplete, context.params.get("root") or Path("runs"))


def _settings(example: str) -> Any:
    return typer.Argument(
        metavar="OVERRIDES",
        help=f"Settings to change, as key=value in Hydra's syntax, for instance {example}",
        autocompletion=_overrides,
        show_default=False,
    )


Overrides = Annotated[
    list[str] | None,
    _settings("parameterization=umup model.width=128 search=lr study=NAME root=DIR"),
]
Changes = Annotated[
    list[str] | None,
    _settings("transfer.widths=[64,128,256] transfer.seeds=4 root=DIR"),
]
Study = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="The study; the latest if not given.",
        autocompletion=_studies,
        show_default=False,
    ),
]
OfStudy = Annotated[
    str | None,
    typer.Option("--study", help="The study; the latest if not given.", autocompletion=_studies),
]
Named = Annotated[str | None, typer.Option("--study", hidden=True, autocompletion=_studies)]
ToWidth = Annotated[int, typer.Option("--to-width", min=1, help="Width of the target model.")]
ToDepth = Annotated[
    int | None, typer.Option("--to-depth", min=1, help="Its depth; the base depth if not given.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; all else on stderr.")
]
ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir", help="A folder of your own configs, laid out as GROUP/OPTION.yaml."
    ),
]
Root = Annotated[Path, typer.Option("--root", help="Folder of all studies; search's root=DIR.")]


STOPPED = "Stopped; what had finished is kept. Run the same command again to go on."
_URL = re.compile(r"\S*://\S*")
BUG = (
    "Error: this was not foreseen. It is a bug, of sweeper or of a class of your own: the lines "
    "above show where. What had finished is kept."
)


def _say(message: str, code: int) -> int:
    print("\n".join(map(_without_password, message.splitlines())), file=sys.stderr)
    return code


def _without_password(line: str) -> str:
    """A line that may quote the URL of a storage, without its password."""
    if "://" not in line:
        return line
    from sweeper.mirror import redact

    # Only an "@" outside of the URLs tells that a password goes on behind a space.
    if "@" in _URL.sub("", line):
        return redact(line)
    return _URL.sub(lambda match: redact(match[0]), line)


def _exit(work: Callable[[], int], stopped: str = STOPPED) -> None:
    """Run a verb; errors become one message on stderr and an exit code."""
    try:
        code = work()
    except SweeperError as error:
        code = _say(f"Error: {error}", 2 if isinstance(error, BadInput) else 1)
    except KeyboardInterrupt:
        code = _say(stopped, 130)
    except BrokenPipeError:  # whoever read stdout has enough: Typer ends quietly then
        raise
    except MemoryError:
        code = _say("Error: out of memory", 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        code = _say(f"Error: {error.strerror or error}{where}", 1)
    except Exception:
        code = _say(f"{traceback.format_exc()}{BUG}", 1)
    raise typer.Exit(code)


def _output(json: bool) -> Output:
    from rich.console import Console

    from sweeper.commands.output import Output

    def console(stream: TextIO, *, stderr: bool) -> Console:
        columns = os.environ.get("COLUMNS", "")
        fixed = int(columns) if columns.isdecimal() and int(columns) else 120
        return Console(stderr=stderr, width=None if stream.isatty() else fixed)

    watchers = console(sys.stderr, stderr=True)
    people = watchers if json else console(sys.stdout, stderr=False)
    return Output(people=people, json=json, watchers=watchers)


@app.command(epilog=_choices())
def search(
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run; train and write nothing.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Collect finished jobs, submit what can be named, and return (launcher=slurm).",
        ),
    ] = False,
    json: Json = False,
    config_dir: ConfigDir = None,
) -> None:
    r"""Search the best hyperparameters at the base size, model.width and model.depth.

    With a training command of your own after --, every trial is a run of it:
    sweeper search model.width=256 'metric=loss (?P<loss>\S+)' -- python train.py --lr={eta}

    Run the same command again to go on where it stopped; what is finished is not trained again.
    """

    def work() -> int:
        from sweeper.commands.search import search

        return search(overrides or [], config_dir, _output(json), dry_run=dry_run, detach=detach)

    _exit(work)


@app.command()
def transfer(
    to_width: ToWidth,
    overrides: Changes = None,
    to_depth: ToDepth = None,
    study: OfStudy = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Train learning-rate curves along transfer.widths and depths, and judge them.",
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 unless the verdict is that it holds.")
    ] = False,
    json: Json = False,
    config_dir: ConfigDir = None,
) -> None:
    """Rescale a study's optimum to a larger model; with --validate, show whether it holds.

    The plan with every parameter's numbers goes to <study>/transfer/<target>/plan.json.
    """

    def work() -> int:
        from sweeper.commands.transfer import TransferRequest, transfer

        if strict and not validate:
            raise BadInput("--strict judges the verdict of --validate: give both")
        request = TransferRequest(width=to_width, depth=to_depth, validate=validate, strict=strict)
        return transfer(study, request, overrides or [], config_dir, _output(json))

    _exit(work)


@app.command()
def diagnose(
    overrides: Changes = None,
    study: OfStudy = None,
    over: Annotated[str, typer.Option("--over", help="The ladder: width or depth.")] = "width",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="An ablation to run; may be repeated.")
    ] = None,
    json: Json = False,
    config_dir: ConfigDir = None,
) -> None:
    """Find out why a transfer fails: change one thing at a time, at the base and the largest size.

    What `transfer --validate` has trained with the same overrides is not trained again.
    """

    def work() -> int:
        from sweeper.commands.diagnose import diagnose

        if over not in ("width", "depth"):
            raise BadInput(f"--over={over!r} is refused: width or depth")
        return diagnose(study, over, only or [], overrides or [], config_dir, _output(json))

    _exit(work)


@app.command()
def explain(
    to_width: ToWidth,
    overrides: Overrides = None,
    to_depth: ToDepth = None,
    json: Json = False,
    config_dir: ConfigDir = None,
) -> None:
    """Show what a scheme prescribes for every parameter of a model, and why. Trains nothing."""

    def work() -> int:
        from sweeper.commands.explain import explain

        return explain(overrides or [], config_dir, to_width, to_depth, _output(json))

    _exit(work)


@app.command()
def check(
    overrides: Overrides = None,
    study: Annotated[
        str | None,
        typer.Option(
            "--study",
            help="A study whose configuration and optimum to check.",
            autocompletion=_studies,
        ),
    ] = None,
    scales: Annotated[
        bool,
        typer.Option(
            "--scales", help="Report the RMS of every matrix product's operands instead, for FP8."
        ),
    ] = False,
    rules: Annotated[
        bool,
        typer.Option(
            "--rules", help="Measure every printed learning-rate rule over shapes instead."
        ),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where to write; <study>/check if not given."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 unless the check passes.")
    ] = False,
    json: Json = False,
    config_dir: ConfigDir = None,
) -> None:
    """Check that outputs and their changes keep their size over transfer.widths and depths.

    Trains tiny runs of a few steps: wrong rules for width and depth show at once, and where.
    """

    def work() -> int:
        from sweeper.commands.check import Wanted, check

        wanted = Wanted(scales=scales, rules=rules, strict=strict, folder=folder)
        return check(study, wanted, overrides or [], config_dir, _output(json))

    _exit(work, stopped="Stopped.")


@app.command()
def status(
    name: Study = None,
    study: Named = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until the study's driver and jobs end.")
    ] = False,
    root: Root = Path("runs"),
    json: Json = False,
) -> None:
    """Show where a study stands: trials by phase, best so far, its jobs, the running driver."""

    def work() -> int:
        from sweeper.commands.inspect import chosen, status

        return status(*chosen(name, study, root), _output(json), watch=watch)

    _exit(work, stopped="Stopped watching.")


@app.command()
def cancel(
    name: Study = None, study: Named = None, root: Root = Path("runs"), json: Json = False
) -> None:
    """Cancel a study's jobs, wherever they run, and no others; what had finished is kept."""

    def work() -> int:
        from sweeper.commands.inspect import cancel, chosen

        return cancel(*chosen(name, study, root), _output(json))

    _exit(work, stopped="Stopped.")


@app.command()
def report(
    name: Study = None, study: Named = None, root: Root = Path("runs"), json: Json = False
) -> None:
    """Write a study's report, report.html: one page that needs no network."""

    def work() -> int:
        from sweeper.commands.inspect import chosen, report

        return report(*chosen(name, study, root), _output(json))

    _exit(work, stopped="Stopped.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Make stdout and stderr take every word: one may be closed, or know ASCII alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        else:
            stream.reconfigure(errors="replace")


def main() -> None:
    """The `sweeper` command."""
    _open_streams()
    signal.signal(signal.SIGTERM, _interrupt)
    # A model of the user's own lies in the folder worked in, as for a script started there.
    with suppress(FileNotFoundError):  # it may be gone
        sys.path.append(os.getcwd())
    # torch's threads spin for long before they sleep, which on a busy machine costs tenfold.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        app(with_command(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_say(STOPPED, 130))


if __name__ == "__main__":
    main()
