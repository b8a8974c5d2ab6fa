"""The verbs as commands: each is made when it is asked for."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sweeper.cli.options import COMMON_PANEL, verb_first
from sweeper.cli.verb import INTERRUPTED, USAGE, say, stopped_to_go_on, usage_text
from sweeper.config.command_line import missing_dashes
from sweeper.gone import gone

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
