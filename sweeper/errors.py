"""Errors that a user can act on: they end a command with one message and no traceback.

A message that names a keyword or a command holds it as a value: the command line and Python spell
it each in their own way.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import EllipsisType

from sweeper.gone import gone


@dataclass(frozen=True)
class Keyword:
    """A keyword of a verb, with a value to give it.

    `Keyword("to_width", 64)` is `--to-width 64` on a command line and `to_width=64` in Python,
    `Keyword("validate")` is `--validate` and `validate=True`. With `...` as its value it is the
    name alone, `--where` and `where`; without a name the value of a setting, `true` and `True`.
    """

    name: str
    value: object = True


@dataclass(frozen=True, init=False)
class Call:
    """A verb with keywords and settings, such as `Call("transfer", Keyword("study", "a"))`.

    Settings are texts, `transfer.seeds=3`; `command` is what stands behind `--`. Without a verb it
    is that command alone.
    """

    verb: str
    arguments: tuple[Keyword | str, ...]
    command: tuple[str, ...]

    def __init__(self, verb: str, *arguments: Keyword | str, command: Sequence[str] = ()) -> None:
        object.__setattr__(self, "verb", verb)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "command", tuple(command))


Text = tuple[str | Keyword | Call, ...]
"""A sentence in parts: its keywords and calls are spelt by whoever shows it."""


class Spelling:
    """How a mouth writes keywords and calls: here the command line, as a shell takes them."""

    def keyword(self, keyword: Keyword) -> str:
        """A flag, with its value behind it."""
        if not keyword.name:
            as_typed = [word for value, word in _WORDS if keyword.value is value]
            return as_typed[0] if as_typed else _one_line(keyword.value).replace("\\\\", "\\")
        return shlex.join(_flag_parts(keyword))

    def call(self, call: Call) -> str:
        """The line, every word quoted where a shell needs it."""
        return shlex.join(call_words(call))


class Python(Spelling):
    """Python's spelling: keyword arguments; commands as a shell takes them."""

    def keyword(self, keyword: Keyword) -> str:
        """`name=value`."""
        if isinstance(keyword.value, EllipsisType):
            return keyword.name
        return f"{keyword.name}={_one_line(keyword.value)}".removeprefix("=")


SHELL, PYTHON = Spelling(), Python()
_WORDS = ((True, "true"), (False, "false"), (None, "null"))
"""Values of settings that the command line and Python write in different words."""


def _one_line(value: object) -> str:
    """A value as Python writes it; of what takes lines, such as a module, the kind alone."""
    text = repr(value)
    return f"{type(value).__name__}(...)" if "\n" in text else text


def flag(name: str) -> str:
    """A keyword's flag: `to_width` is `--to-width`."""
    return f"--{name.replace('_', '-')}"


def call_words(call: Call) -> list[str]:
    """A call as the words of a command line."""
    if not call.verb:
        return [*call.command]
    line = ["sweeper", call.verb]
    for each in call.arguments:
        line += [each] if isinstance(each, str) else _flag_parts(each)
    return [*line, *(["--", *call.command] if call.command else [])]


def _flag_parts(keyword: Keyword) -> list[str]:
    value = keyword.value
    if value is True or isinstance(value, EllipsisType):
        return [flag(keyword.name)]
    return [flag(keyword.name), _number(value) if isinstance(value, float) else str(value)]


def _number(value: float) -> str:
    """A number as people type it, with all its digits: 2e9, 49152000, 0.25."""
    digits = f"{value:.0f}" if value.is_integer() else repr(value)
    short = f"{value:g}".replace("e+0", "e").replace("e+", "e")
    return min(digits, short, key=len) if float(short) == value else digits


def spelled(parts: Iterable[str | Keyword | Call], spelling: Spelling = PYTHON) -> str:
    """A sentence, its keywords and calls as `spelling` writes them."""
    spelt = (spelling.keyword(part) if isinstance(part, Keyword) else part for part in parts)
    return "".join(f"`{spelling.call(each)}`" if isinstance(each, Call) else each for each in spelt)


def as_text(text: str | Text) -> Text:
    """A sentence in parts; a plain one is a single part."""
    return (text,) if isinstance(text, str) else text


class SweeperError(Exception):
    """The work failed for a reason worth one clear message (exit code 1).

    Its `args` are texts, keywords and calls; `str` spells them as Python does.
    """

    def __init__(self, *parts: str | Keyword | Call) -> None:
        super().__init__(*parts)

    def spelled(self, spelling: Spelling) -> str:
        """The message, its keywords and calls as `spelling` writes them."""
        return spelled(self.args, spelling)

    def __str__(self) -> str:
        return self.spelled(PYTHON)


class BadInput(SweeperError):
    """What the user gave cannot be used; nothing was written (exit code 2)."""


class ConfigError(BadInput):
    """A value that is refused: the key, the value, and what is allowed.

    The key is a setting's dotted key, or a verb's keyword.
    """

    def __init__(self, key: str | Keyword, value: object, allowed: str | Text) -> None:
        self.subject = key if isinstance(key, str) else Keyword(key.name, ...)
        self.value, self.remedy = value, as_text(allowed)
        super().__init__(self.subject, "=", Keyword("", value), " is refused: ", *self.remedy)

    @property
    def key(self) -> str:
        """The setting's dotted key, or the keyword's name."""
        return spelled([self.subject])

    @property
    def allowed(self) -> str:
        """What is allowed, and what to do, as Python spells it."""
        return spelled(self.remedy)

    def below(self, prefix: str) -> ConfigError:
        """The same error, its key seen from one level further out."""
        key = f"{prefix}.{self.key}" if prefix else self.key
        went = gone(key)
        return ConfigError(key, self.value, (*self.remedy, went)) if went else self.renamed(key)

    def renamed(self, key: str | Keyword) -> ConfigError:
        """The same error, its key called otherwise."""
        return ConfigError(key, self.value, self.remedy)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.subject, self.value, self.remedy)


class MissingValue(ConfigError):
    """A value that is needed, and that nobody gave."""

    def __init__(self, key: str | Keyword, advice: str | Text = "") -> None:
        self.advice = as_text(advice)
        super().__init__(key, None, ("it needs a value", *self.advice))
        # In place of "key=None is refused": nobody wrote None.
        self.args = (self.subject, ": ", *self.remedy)

    def renamed(self, key: str | Keyword) -> MissingValue:
        """The same error, its key called otherwise."""
        return MissingValue(key, self.advice)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.subject, self.advice)


class BrokenDeviceError(Exception):
    """The device does nothing more for this process, which has to end.

    A CUDA context is broken for good by an illegal access or a failed assertion on the device. What
    the process did is not lost, and another process can go on.
    """


@contextmanager
def key_prefix(prefix: str) -> Iterator[None]:
    """Report a ConfigError from inside with its key seen from one level further out."""
    try:
        yield
    except ConfigError as error:
        raise error.below(prefix) from error


def suggest(word: str, choices: Iterable[str]) -> str:
    """A closing clause that names near misses of `word`, or else all choices."""
    options = sorted(choices)
    if close := near_misses(word, options):
        return close.removeprefix("; ")
    return f"known: {', '.join(options)}" if options else "nothing is allowed here"


def near_misses(word: str, choices: Iterable[str]) -> str:
    """A clause that names near misses of `word`, where a message lists all choices; or nothing."""
    close = get_close_matches(word, sorted(choices), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?"[:200] if close else ""


def first_line(error: BaseException) -> str:
    """What an error says, in a line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def user_frames(error: BaseException) -> list[str]:
    """Where the user's own code raised `error`, one line a call, the innermost last."""
    user_code = users_own(traceback.extract_tb(error.__traceback__))
    return [f"{f.filename}:{f.lineno}, in {f.name}: {f.line}" for f in user_code]


def users_own(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The calls of the user's own code among `frames`: torch's and the package's are left out."""
    # torch by a part of the path, wherever it is installed; of ours the package's own folder.
    package = str(Path(__file__).parent)
    # What called us, such as a notebook's kernel, is no part of the fault.
    ours = [at for at, frame in enumerate(frames) if frame.filename.startswith(package)]
    frames = frames[ours[0] :] if ours else frames
    return [
        frame
        for frame in frames
        if not frame.filename.startswith(package) and "torch" not in Path(frame.filename).parts
    ]


# Unicode's ends of lines, what turns the direction of letters, halves of pairs of codes, and what
# is not seen, such as its second ASCII; but the joiners, without which some scripts are misspelled.
_UNICODE = (
    *(0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB),
    *(*range(0x2028, 0x202F), *range(0x2060, 0x2070)),
    *(*range(0xD800, 0xE000), *range(0xE0000, 0xE0200)),
)
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160), *_UNICODE], "\ufffd")


def printable(text: str) -> str:
    """A text without characters that command a terminal: names in records may hold any."""
    return text.translate(_CONTROLS)
