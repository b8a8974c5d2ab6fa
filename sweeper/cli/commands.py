"""The verbs as commands: each is made when it is asked for, and tells its own help."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sweeper.cli.verb import INTERRUPTED, USAGE, say, stopped_to_go_on, usage_text
from sweeper.config.command_line import missing_dashes
from sweeper.gone import gone

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
"""Settings of a context: the words that ask for help."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A verb as `cli/app.py` declares it: its function with its flags, its panel, its epilog."""

    function: Callable[..., None]
    panel: str
    epilog: Callable[[], str] | None

    def command(self) -> Any:
        """The command, with all its options: some milliseconds each."""
        verb = typer.Typer(add_completion=False)
        epilog = self.epilog() if self.epilog is not None else None
        # Its own, too: the first context, which may be one without a parent, decides for good.
        verb.command(
            cls=Verb, epilog=epilog, rich_help_panel=self.panel, context_settings=HELP_NAMES
        )(self.function)
        return typer.main.get_command(verb)

    @property
    def summary(self) -> str:
        """The first paragraph of its help."""
        return " ".join((inspect.getdoc(self.function) or "").partition("\n\n")[0].split())


class Verbs(Mapping[str, Any]):
    """Commands by name, each made once, when it is asked for."""

    def __init__(self) -> None:
        self.declared: dict[str, Declared] = {}
        self._made: dict[str, Any] = {}

    def declare(
        self, panel: str, epilog: Callable[[], str] | None = None
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """A decorator: the function is a verb, in that panel of the program's help."""

        def declared(function: Callable[..., None]) -> Callable[..., None]:
            verb = Declared(function=function, panel=panel, epilog=epilog)
            self.declared[function.__name__] = verb
            return function

        return declared

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self.declared[name].command()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)


VERBS = Verbs()


class Verb(TyperCommand):
    """A verb; its help is ours, since Typer's loads rich."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the verb."""
        formatter.write(_help(self, ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the verb's words; whatever is wrong with them is told with the verb's help."""
        try:
            # Of an option that is there twice, click takes the last without a word.
            order: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
            given = Counter(order)
            for option, times in given.items():
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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program: its own options, and each verb in a line."""
        longest = max(map(len, VERBS))
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, verb in VERBS.declared.items():
            panels.setdefault(verb.panel, []).append((name.ljust(longest), verb.summary))
        formatter.write(_help(self, ctx, panels))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the words before a verb; the help of a verb is told at once."""
        if len(args) == 2 and args[0] in VERBS and args[1] in ctx.help_option_names:
            # Typer would load pydantic first, for the options that were not given.
            typer.echo(VERBS[args[0]].get_help(typer.Context(VERBS[args[0]], ctx, args[0])))
            ctx.exit()
        return super().parse_args(ctx, args)

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
        # The code of the `typer.Exit` that ended the verb.
        sys.exit(code or 0)


def _help(
    command: Any, context: Any, more: Mapping[str, Sequence[tuple[str, str]]] | None = None
) -> str:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            panel = "Arguments" if parameter.param_type_name == "argument" else "Options"
            # A number with bounds is "<int range>" to click; the bounds stand with the meaning.
            rows[panel].append((record[0].replace(" range>", ">"), record[1]))
    panels = {title: each for title, each in rows.items() if each} | dict(more or {})
    usage = command.get_usage(context)
    return page(usage, inspect.cleandoc(command.help or ""), panels, command.epilog or "")


def _say_usage(error: Any, advice: str) -> int:
    """Print what is wrong with a command line; its help where nothing was given."""
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
        verb = error.ctx.info_name if error.ctx else ""
        return gone(f"{verb} {option.lstrip('-').replace('-', '_')}", f"{verb} {option}")
    unknown = re.match(r"No such command '(.*?)'", error.message)
    return gone(unknown[1]) if unknown else ""


# The text of `--help`: usage, what it is, and a panel for each group of options or verbs.


Rows = Sequence[tuple[str, str]]
"""Names, as of an option and its value, and what they mean."""
NARROWEST = 24
"""A text of fewer columns beside its names stands below them."""
_COLOURS = {r"(?<=^│ )[a-z]+(?=  )|(?<![\w<-])--?[a-z][\w-]*": "1;36", r"<[^<>]+>": "33"}
"""Of verbs and options, and of the types of their values."""


def page(usage: str, text: str, panels: Mapping[str, Rows], epilog: str) -> str:
    """The whole help, as wide as the terminal, in its colours."""
    width = max(20, shutil.get_terminal_size().columns)
    first, _, others = text.partition("\n\n")
    blocks = [usage, " ".join(first.split()), *map(_paragraph, others.split("\n\n"))]
    lines = [line for block in blocks if block for line in (*_wrapped(block, width), "")]
    for title, rows in panels.items():
        lines += _panel(title, rows, width)
    lines += ["", *_wrapped(epilog, width)] if epilog else []
    return "\n".join(map(_coloured, lines)) if _colours() else "\n".join(lines)


def _paragraph(text: str) -> str:
    """Prose in one line, as it was broken for its author's screen; an example begins a new one."""
    return re.sub(r"(?<!:)\s*\n\s*(?!sweeper )", " ", text)


def _wrapped(text: str, width: int) -> list[str]:
    return [
        f" {part}" for line in text.splitlines() for part in _parts(line.strip(), width - 2) or [""]
    ]


def _parts(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _panel(title: str, rows: Rows, width: int) -> Iterator[str]:
    utf = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    across, down, *corners = list("─│╭╮╰╯" if utf else "-|++++")
    inner, named = width - 4, max(len(name) for name, _ in rows)
    yield f"{corners[0]}{across} {title} ".ljust(width - 1, across) + corners[1]
    for name, meaning in rows:
        beside = inner - named - 2
        if beside >= NARROWEST:
            cells = _parts(meaning, beside) or [""]
            names = [name, *[""] * (len(cells) - 1)]
            shown = [f"{name:{named}}  {cell}" for name, cell in zip(names, cells, strict=True)]
        else:
            shown = [*_parts(name, inner), *(f"  {c}" for c in _parts(meaning, inner - 2))]
        yield from (f"{down} {line:{inner}} {down}" for line in shown)
    yield corners[2] + across * (width - 2) + corners[3]


def _colours() -> bool:
    """Whether a terminal is to get colours; from other streams click takes them away."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") not in ("dumb", "unknown")


def _coloured(line: str) -> str:
    for pattern, colour in _COLOURS.items():
        line = re.sub(pattern, rf"\033[{colour}m\g<0>\033[0m", line)
    return line
