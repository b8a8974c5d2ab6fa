"""The command line: a command for every Request. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from types import FrameType
from typing import Any

import typer

from sweeper.cli import stop
from sweeper.cli.commands import HELP_NAMES, VERBS, CommandGroup, command
from sweeper.cli.options import command_of, program, verb_first
from sweeper.cli.verb import INTERRUPTED, output_of, run, say, show_version, stopped_to_go_on
from sweeper.config.command_line import with_user_command
from sweeper.errors import SHELL, BadInput
from sweeper.launch.machine import collect_rarely, find_users_modules, set_blas_threads, set_spin
from sweeper.report.warned import keep_warnings
from sweeper.verbs.listed import REQUESTS
from sweeper.verbs.requests import Request

app = typer.Typer(
    name="sweeper",
    cls=CommandGroup,
    no_args_is_help=True,
    # `run` ends every verb itself: with one message, or for a bug with a plain traceback.
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
    help="Tune small, train big: search hyperparameters on a small proxy model, transfer them to "
    "any width and depth, and validate that the transfer holds.",
    epilog="Exit codes: 0 done, 1 the work failed, 2 bad input, 3 under --strict where a "
    "transfer is not validated or an export not whole, or off the band of follow, of compare 3 "
    "where all are worse and 4 where it is open, 130 interrupted.",
)
STOPPED = {
    "follow": "Stopped watching; the run goes on.",
    "status": "Stopped watching.",
    **dict.fromkeys(("report", "predict", "judge", "cancel", "doctor"), "Stopped."),
}
"""What is said where a user stops a verb that leaves nothing to go on with."""
READING = ("judge", "predict", "follow", "compare", "report")
"""Verbs that compute and train nothing; `compare` does with `--settle`."""


VERSION = typer.Option("--version", is_eager=True, callback=show_version, help="Print the version.")
app.callback()(program(VERSION))


def _choices() -> str:
    from sweeper.registry import groups

    try:  # a broken conf/ is told in the help, and breaks no `--help`
        options = groups()
    except BadInput as error:
        return str(error)
    return "Groups:\n\n" + "\n\n".join(f"{n}={' | '.join(options[n])}" for n in options)


def _declare(verb: str, request: type[Request]) -> None:
    def perform(made: Callable[[], Any], *, json: bool, verbose: bool) -> None:
        def work() -> int:
            asked = made()
            with output_of(json, verbose) as output:
                return int(import_module("sweeper.report.present").ask(asked, output, SHELL)[0])

        run(work, stopped=_stopped(verb))

    epilog = _choices if verb == "search" else None
    made = partial(command, command_of(request, perform), request.panel, epilog)
    VERBS[verb] = cache(made)


def _stopped(verb: str) -> str | None:
    if verb == "check":
        return stopped_to_go_on("Stopped; nothing is kept.", "to begin anew")
    if verb == "compare" and "--settle" not in sys.argv:
        return "Stopped."
    return STOPPED.get(verb)


for _verb_and_request in REQUESTS.items():
    _declare(*_verb_and_request)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _open_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        # So Python has a stream that the caller closed, as `>&-` and daemons do.
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w":
            stream.reconfigure(errors="replace")


def _is_no_text(word: str) -> bool:
    """Whether a word is bytes that are no UTF-8; `--help` need not load `files` to ask."""
    if word.isascii():
        return False
    from sweeper.files import is_text

    return not is_text(word)


def main() -> None:
    """The `sweeper` command."""
    _open_streams()
    # Schedulers and `kill` send SIGTERM: like Ctrl-C it then unwinds, so that locks are released,
    # jobs ended and the message printed. By default Python would just be gone.
    signal.signal(signal.SIGTERM, _interrupt)
    find_users_modules()
    # OpenMP reads its settings once, when torch loads it: before any import of torch.
    set_spin()
    words = verb_first(sys.argv[1:])
    if words and words[0] in READING and "--settle" not in words:
        set_blas_threads()
    collect_rarely()
    keep_warnings()
    if bad := next(filter(_is_no_text, words), None):
        sys.exit(say(f"Error: {bad!a} is refused: words in UTF-8, as records keep them", 2))
    try:
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # Before Typer parses: it drops the `--`, and the words behind it would be overrides to it.
        app(with_user_command(words))
    except KeyboardInterrupt:
        sys.exit(say(stopped_to_go_on(), INTERRUPTED))
    finally:
        gc.freeze()  # or Python goes over all that was loaded, twice, before it ends


if __name__ == "__main__":
    main()
