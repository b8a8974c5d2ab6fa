"""What the verbs of the command line share: their options, and how a verb ends."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

from sweeper.cli.options import verb_first
from sweeper.errors import SHELL, BadInput, SweeperError, printable
from sweeper.version import __version__

if TYPE_CHECKING:
    from sweeper.report.output import Output


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
    if reason.startswith("Missing option") and error.param is not None:
        reason = f"{error.param.opts[0]} is missing: {error.param.help}"
    # pydantic's, which knows the value that was typed.
    faults: list[Any] = getattr(error.__cause__, "errors", list)()
    if faults and getattr(error, "param", None) is not None:
        kind = faults[0]["type"].partition("_")[0]
        allowed = {"int": "a whole number", "float": "a number"}.get(kind, faults[0]["msg"])
        reason = f"{error.param.opts[0]}={faults[0]['input']} is refused: {allowed}"
    return reason + ("" if reason.endswith((".", "?")) else ".")


def show_version(wanted: bool) -> None:
    """Print the version and end, if it is wanted."""
    if wanted:
        print(f"sweeper {__version__}")
        raise typer.Exit


def say(message: str, code: int) -> int:
    """Print a message on stderr, without the passwords of URLs; the exit code that it has."""
    print(printable("\n".join(map(_without_password, message.splitlines()))), file=sys.stderr)
    return code


def _without_password(line: str) -> str:
    if "://" not in line:
        return line
    from sweeper.search.optuna.url import redact

    # Only an "@" outside of the URLs tells that a password goes on behind a space.
    if "@" in _URL.sub("", line):
        return redact(line)
    return _URL.sub(lambda match: redact(match[0]), line)


def typed() -> list[str]:
    """The words that were typed, the verb first, without passwords."""
    from sweeper.search.optuna.url import redact_word

    return list(map(redact_word, verb_first(sys.argv[1:])))


def stopped_to_go_on(sentence: str = STOPPED, why: str = "to go on") -> str:
    """What a verb says that was stopped, with the command that goes on: the same one again."""
    line = typed()
    # A program has read none of its --json document, and a person none at all.
    own = line.index("--") if "--" in line else len(line)
    line[:own] = [word for word in line[:own] if word != "--json"]
    text = shlex.join(["sweeper", *line])
    if own < len(line) and "sweeper.sweep.progress" in sys.modules:  # else nothing was trained
        from sweeper.report.next import stopped_by

        text = stopped_by(text)
    return f"{sentence}\nNext, {why}: {text}"


def run(work: Callable[[], int], stopped: str | None = None) -> None:
    """Run a verb; errors become one message on stderr and an exit code.

    `stopped` is said where the user stops it; None: how to go on.
    """
    from sweeper.files import take_damaged
    from sweeper.registry import only_named
    from sweeper.study.setup import asked

    take_damaged()  # of an earlier verb in this process
    try:
        # Within a verb, a class that only a study's records name is not imported: see registry.
        with only_named(), asked(["sweeper", *typed()]):
            code = work()
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


@contextmanager
def output_of(json: bool, verbose: bool) -> Iterator[Output]:
    """The consoles that a verb prints to, and whether it prints JSON, or all that it has to say.

    What is still to be said is, however the verb ends.
    """
    from rich.console import Console

    from sweeper.report.output import Output

    def console(stream: TextIO, *, stderr: bool) -> Console:
        # For a pipe or a file rich would assume 80 columns, and tables would lack some of theirs.
        columns = os.environ.get("COLUMNS", "")
        fixed = int(columns) if columns.isdecimal() and int(columns) else 120
        return Console(stderr=stderr, width=None if stream.isatty() else fixed)

    watchers = console(sys.stderr, stderr=True)
    people = watchers if json else console(sys.stdout, stderr=False)
    output = Output(people=people, json=json, watchers=watchers, verbose=verbose)
    try:
        yield output
    finally:
        output.flush()
