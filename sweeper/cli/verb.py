"""What the verbs of the command line share: their options, and how a verb ends."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from sweeper import __version__
from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import SHELL, BadInput, SweeperError

if TYPE_CHECKING:
    from sweeper.cli.output import Output


def _overrides(context: typer.Context, incomplete: str) -> list[str]:
    from sweeper.config.completion import complete_override

    return complete_override(incomplete, context.params.get("config_dir"))


def _studies(context: typer.Context, incomplete: str) -> list[str]:
    from sweeper.config.completion import complete_study

    return complete_study(incomplete, Path(context.params.get("root") or DEFAULT_ROOT))


def _settings(example: str) -> Any:
    return typer.Argument(
        metavar="OVERRIDES",
        help=f"Settings to change, as key=value in Hydra's syntax, for instance {example}",
        autocompletion=_overrides,
        show_default=False,
    )


Overrides = Annotated[
    list[str] | None,
    _settings("parameterization=umup model.width=128 search=lr"),
]
Changes = Annotated[
    list[str] | None,
    _settings("transfer.widths=[64,128,256] transfer.seeds=4"),
]


def _named(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, autocompletion=_studies, show_default=False)


Name = Annotated[list[str] | None, _named("NAME", "The study, as --study names it.")]
Names = Annotated[
    list[str] | None, _named("NAME", "The study, as --study names it; several for one page.")
]
Studies = Annotated[list[str], _named("STUDY", "The studies; two or more.")]


def _study(text: str) -> Any:
    return typer.Option("--study", metavar="NAME", help=text, autocompletion=_studies)


Study = Annotated[str | None, _study("The study; the latest if not given.")]
NewStudy = Annotated[
    str | None, _study("The study's name; made from the configuration if not given.")
]
StudyInPlace = Annotated[
    str | None, _study("A study whose configuration and optimum to take, in place of the defaults.")
]
ToWidth = Annotated[int, typer.Option("--to-width", min=1, help="Width of the target model.")]
ToDepth = Annotated[
    int | None, typer.Option("--to-depth", min=1, help="Its depth; the base depth if not given.")
]
ToTokens = Annotated[
    float | None,
    typer.Option(
        "--to-tokens",
        min=1,
        help="Tokens of its whole run (examples, where those are no sequences), by a law=...; the "
        "base's if not given.",
    ),
]
ToBatch = Annotated[
    int | None,
    typer.Option(
        "--to-batch",
        min=1,
        help="Its batch, in sequences or examples a step, by a law=...; the base's if not given.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; all else on stderr.")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", help="Print all: every table, row and note, and what each column means."
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir", help="A folder of your own configs, laid out as GROUP/OPTION.yaml."
    ),
]
Root = Annotated[
    str | None,
    typer.Option("--root", metavar="DIR", help="The folder of all studies; runs if not given."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the classes and the command that the study's own records name; remembered.",
    ),
]
Trainer = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="The trainer: automodel, hf, llm-foundry, megatron, nanogpt-mup, olmo-core, pytorch "
        "or torchtitan.",
    ),
]
TrainerOptions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="The trainer's own, as key=value: family=granite (hf), recipe=true (megatron), "
        "completep=true (nanogpt-mup), config=module:function (torchtitan)",
        show_default=False,
    ),
]
WhichWidth = Annotated[
    int | None, typer.Option("--to-width", min=1, help="The plan's, where there are several.")
]
WhichDepth = Annotated[
    int | None, typer.Option("--to-depth", min=1, help="The plan's, where there are several.")
]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="A plan.json in place of a study's.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The folder to write to; export/TRAINER beside the plan."),
]
Accept = Annotated[
    list[str] | None,
    typer.Option("--accept", help="What the trainer cannot express, by name; may be repeated."),
]
Published = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="A published model's config.json: which rules and base its multipliers stand for.",
    ),
]


FIRST = "first"
"""The experiment of a search of which nothing is said."""
INTERRUPTED = 130
"""The exit code of a verb that was stopped."""
STOPPED = "Stopped; what had finished is kept."
_URL = re.compile(r"\S*://\S*")
BUG = (
    "Error: this was not foreseen. It is a bug, of sweeper or of a class of your own: the lines "
    "above show where. What had finished is kept."
)


# Typer carries its own copy of click, and exports BadParameter but not its base, UsageError:
# click's own class would catch nothing.
USAGE: Any = typer.BadParameter.__bases__[0]
"""What Typer raises for a command line that it cannot read."""


def usage_text(error: Any) -> str:
    """What is wrong with a command line, as a sentence."""
    reason = " ".join(error.format_message().split())
    return reason + ("" if reason.endswith((".", "?")) else ".")


def show_version(wanted: bool) -> None:
    """Print the version and end, if it is wanted."""
    if wanted:
        print(f"sweeper {__version__}")
        raise typer.Exit


def say(message: str, code: int) -> int:
    """Print a message on stderr, without the passwords of URLs; the exit code that it has."""
    print("\n".join(map(_without_password, message.splitlines())), file=sys.stderr)
    return code


def _without_password(line: str) -> str:
    """A line that may quote the URL of a storage, without its password."""
    if "://" not in line:
        return line
    from sweeper.study.optuna_copy import redact

    # Only an "@" outside of the URLs tells that a password goes on behind a space.
    if "@" in _URL.sub("", line):
        return redact(line)
    return _URL.sub(lambda match: redact(match[0]), line)


_caller: Output | None = None
"""Where a verb's words go that a program calls: it gets errors as they are."""


@contextmanager
def called_by_program(output: Output) -> Iterator[None]:
    """Verbs in here print to `output`, and raise their errors."""
    global _caller
    outer, _caller = _caller, output
    try:
        yield
    finally:
        _caller = outer


def stopped_to_go_on(said: str = STOPPED, why: str = "to go on") -> str:
    """What a verb says that was stopped, with the command that goes on: the same one again."""
    from sweeper.study.optuna_copy import redact_word

    words = list(map(redact_word, sys.argv[1:]))
    # A program has read none of its --json document, and a person none at all.
    own = words.index("--") if "--" in words else len(words)
    words[:own] = [word for word in words[:own] if word != "--json"]
    return f"{said}\nNext, {why}: {shlex.join(['sweeper', *words])}"


def run(work: Callable[[], int], stopped: str | None = None) -> None:
    """Run a verb; errors become one message on stderr and an exit code.

    `stopped` is said where the user stops it; None: how to go on.
    """
    from sweeper.files import take_damaged
    from sweeper.registry import only_named

    take_damaged()  # of an earlier verb in this process
    _outputs.clear()
    if _caller is not None:
        with only_named():
            code = work()
        raise typer.Exit(code)
    try:
        # Within a verb, a class that only a study's records name is not imported: see registry.
        with only_named():
            code = _shown(work)
    except SweeperError as error:
        code = say(f"Error: {error.spelled(SHELL)}", 2 if isinstance(error, BadInput) else 1)
    except KeyboardInterrupt:
        code = say(stopped_to_go_on() if stopped is None else stopped, INTERRUPTED)
    except BrokenPipeError:  # whoever read stdout has enough: Typer ends quietly then
        raise
    except MemoryError:
        code = say("Error: out of memory", 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        code = say(f"Error: {error.strerror or error}{where}", 1)
    except Exception:
        code = say(f"{traceback.format_exc()}{BUG}", 1)
    raise typer.Exit(code)


_outputs: list[Output] = []
"""Of the verb that runs."""


def _shown(work: Callable[[], int]) -> int:
    """Do the work, and print what it had to show, also where it ends with an error."""
    try:
        return work()
    finally:
        for output in _outputs:
            output.flush()


def output_of(json: bool, verbose: bool = False) -> Output:
    """The consoles that a verb prints to, and whether it prints JSON, or all that it has to say."""
    if _caller is not None:
        return _caller
    from rich.console import Console

    from sweeper.cli.output import Output

    def console(stream: TextIO, *, stderr: bool) -> Console:
        # For a pipe or a file rich would assume 80 columns, and tables would lack some of theirs.
        columns = os.environ.get("COLUMNS", "")
        fixed = int(columns) if columns.isdecimal() and int(columns) else 120
        return Console(stderr=stderr, width=None if stream.isatty() else fixed)

    watchers = console(sys.stderr, stderr=True)
    people = watchers if json else console(sys.stdout, stderr=False)
    _outputs.append(Output(people=people, json=json, watchers=watchers, verbose=verbose))
    return _outputs[-1]
