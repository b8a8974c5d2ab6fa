"""The command line: a command for every Request. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sweeper.cli import stop
from sweeper.cli.options import COMMON_PANEL, command_of, program, verb_first
from sweeper.cli.verb import (
    INTERRUPTED,
    USAGE,
    output_of,
    run,
    say,
    show_version,
    stopped_to_go_on,
    usage_text,
)
from sweeper.config.command_line import missing_dashes, with_user_command
from sweeper.errors import BadInput
from sweeper.gone import gone
from sweeper.launch.machine import collect_rarely, find_users_modules, set_blas_threads, set_spin
from sweeper.report.warned import keep_warnings
from sweeper.verbs.listed import REQUESTS
from sweeper.verbs.requests import Request

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
"""Settings of a context: the words that ask for help."""


def command(function: Callable[..., None], panel: str, epilog: Callable[[], str] | None) -> Any:
    """The command of a verb's function, with all its options, in that panel of the help."""
    verb = typer.Typer(add_completion=False)
    # Its own names of help, too: the first context, which may have no parent, decides for good.
    verb.command(cls=Verb, rich_help_panel=panel, context_settings=HELP_NAMES)(function)
    made: Any = typer.main.get_command(verb)
    hidden = sorted(each.opts[0] for each in made.params if each.hidden)
    common = f"{COMMON_PANEL}, {', '.join(hidden)}: sweeper --help"
    made.epilog = common if epilog is None else f"{epilog()}\n\n{common}"
    return made


VERBS: dict[str, Callable[[], Any]] = {}
"""What makes the command of each name, some milliseconds each."""


class Verb(TyperCommand):
    """A verb, whose command line is read strictly."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the verb's words; whatever is wrong with them is told with the verb's help."""
        try:
            # Of an option that is there twice, click takes the last without a word.
            order: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
            counts = Counter(order)
            for option, times in counts.items():
                several = option.multiple or option.nargs < 0 or getattr(option, "is_flag", False)
                if times > 1 and not several:
                    ctx.fail(f"{option.opts[0]} is given {times} times, and takes one value")
            return super().parse_args(ctx, args)
        except USAGE as error:
            # click's parser does not say where an option without its value stood.
            error.ctx = error.ctx or ctx
            raise


class CommandGroup(TyperGroup):
    """The verbs; a command line that cannot be read is refused like any other bad input."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = VERBS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, made when it is asked for."""
        return VERBS[cmd_name]() if cmd_name in VERBS else None

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the program's words, after those that are the verb's are put behind it."""
        return super().parse_args(ctx, verb_first(args))

    def main(self, args: Sequence[str] | None = None, *others: Any, **extra: Any) -> Any:
        """Run a command line, and end the process unless it is another program's part."""
        if not extra.get("standalone_mode", True):
            return super().main(args, *others, **extra)
        try:
            # Standalone, Typer prints errors in boxes of its own, and ends the process before us.
            code = super().main(args, *others, **{**extra, "standalone_mode": False})
        except USAGE as error:
            sys.exit(_say_usage(error, missing_dashes(sys.argv[1:] if args is None else args)))
        except typer.Abort:
            sys.exit(say(stopped_to_go_on(), INTERRUPTED))
        sys.exit(code or 0)


def _say_usage(error: Any, advice: str) -> int:
    # By its name, since Typer exports this class of its click no more than UsageError.
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return int(error.exit_code)
    reason = usage_text(error)
    path = "sweeper" if error.ctx is None else error.ctx.command_path
    if went := _went(error):
        # Without the near misses, which are none.
        reason = f"{error.message.partition('. ')[0].rstrip('.')}{went}."
    return say(f"Error: {reason} Try '{path} --help'.{advice}", int(error.exit_code))


def _went(error: Any) -> str:
    """What takes the place of a verb or a flag that an earlier version had."""
    if option := getattr(error, "option_name", ""):
        verb, bare = error.ctx.info_name if error.ctx else "", option.lstrip("-").replace("-", "_")
        return gone(f"{verb} {bare}", f"{verb} {option}") or gone(option)
    unknown = re.match(r"No such command '(.*?)'", error.message)
    return gone(unknown[1]) if unknown else ""


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
                return int(import_module("sweeper.report.present").ask(asked, output)[0])

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
