"""Errors that a user can act on: they end a command with one message and no traceback."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class SweeperError(Exception):
    """The work failed for a reason worth one clear message (exit code 1)."""


class BadInput(SweeperError):
    """What the user gave cannot be used; nothing was written (exit code 2)."""


class ConfigError(BadInput):
    """A configuration value that is refused: the key, the value, and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        """Build the message from the dotted `key`, the refused `value` and what is `allowed`."""
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{key}={value!r} is refused: {allowed}")

    def below(self, prefix: str) -> ConfigError:
        """The same error, its key seen from one level further out."""
        return ConfigError(f"{prefix}.{self.key}" if prefix else self.key, self.value, self.allowed)


class MissingValue(ConfigError):
    """A value that is needed, and that nobody gave."""

    def __init__(self, key: str, advice: str = "") -> None:
        """Build the message from the dotted `key`; `advice` says what to do."""
        self.advice = advice
        super().__init__(key, None, f"it needs a value{advice}")
        # In place of "key=None is refused": nobody wrote None.
        self.args = (f"{key}: {self.allowed}",)

    def below(self, prefix: str) -> MissingValue:
        """The same error, its key seen from one level further out."""
        return MissingValue(f"{prefix}.{self.key}" if prefix else self.key, self.advice)


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
    close = get_close_matches(word, options, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known: {', '.join(options)}" if options else "nothing is allowed here"


def first_line(error: BaseException) -> str:
    """What an error says, in a line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def user_frames(error: BaseException) -> list[str]:
    """Where the user's own code raised `error`, one line a call, the innermost last.

    Calls within sweeper and torch say nothing that helps, and are left out.
    """
    # torch by a part of the path, wherever it is installed; of ours the package's own folder.
    frames = [*traceback.extract_tb(error.__traceback__)]
    package = str(Path(__file__).parent)
    # What called us, such as a notebook's kernel, is no part of the fault.
    ours = [at for at, frame in enumerate(frames) if frame.filename.startswith(package)]
    frames = frames[ours[0] :] if ours else frames
    user_code = [
        frame
        for frame in frames
        if not frame.filename.startswith(package) and "torch" not in Path(frame.filename).parts
    ]
    return [f"{f.filename}:{f.lineno}, in {f.name}: {f.line}" for f in user_code]


# A call from Python is a command line inside: its errors name keyword arguments.

_SWITCHES = {"validate", "settle", "strict", "detach", "dry-run", "predict", "trust", "anyway"}
_SWITCHES |= {"new-setup"}
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?![\w-])(=?)")
_VALUED = re.compile(r"--(where|axis|ignore|columns) (?:'([^']*)'|(?!where)([\w=.,]*[\w=]))")
_KEY = re.compile(r"(?<![\w.])(?:model|train|transfer)\.(\w+)(?==)")
_COMMAND = re.compile(r"`sweeper (search|transfer|compare)`")
_LINE = re.compile(r"(`(?:sweeper [a-z]+|(?!sweeper)[^`\s]+) [^`]+`)")
_OF_MODEL = re.compile(r"(?<![\w.{])model\.(branches|roles|keep_init|frozen)=(\[[^\]]*\])")


def python_text(text: str, call_of: Callable[[str], str] = str) -> str:
    """A sentence about a command line, about the call that stands for it.

    A whole command in it becomes what `call_of` makes of it: as it stands, a shell takes it.
    """
    parts = _LINE.split(text)
    for at, part in enumerate(parts):
        if part.startswith("`sweeper "):
            parts[at] = f"`{call_of(part.strip('`'))}`"
        elif not at % 2:  # what else stands in backquotes is quoted as it is
            parts[at] = _python_words(part)
    return "".join(parts)


def _python_words(text: str) -> str:

    def argument(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return f"{name}{'=True' * (match[1] in _SWITCHES)}{match[2]}"

    def valued(match: re.Match[str]) -> str:
        return f"{match[1]}={(match[2] or match[3])!r}"

    text = _FLAG.sub(argument, _VALUED.sub(valued, text))
    text = _OF_MODEL.sub(r'model={"name": ..., "\1": \2}', text)
    return _COMMAND.sub(r"`sweeper.\1`", text)


@contextmanager
def in_python(settings: Iterable[str] = (), call_of: Callable[[str], str] = str) -> Iterator[None]:
    """Errors of a command line inside, in the words of its call, without the way there.

    `settings` are keywords that were given: a key that ends in one is called by it, `steps` in
    place of `train.steps`. `call_of` makes a call of a whole command.
    """
    given = {*settings}
    try:
        yield
    except BadInput as error:

        def bare(match: re.Match[str]) -> str:
            return match[1] if match[1] in given else match[0]

        if isinstance(error, ConfigError):
            if error.key.startswith("--"):
                error.key = error.key.removeprefix("--").replace("-", "_")
            error.key = _KEY.sub(bare, f"{error.key}=").removesuffix("=")
            error.allowed = _KEY.sub(bare, python_text(error.allowed, call_of))
        text = str(error.args[0]) if error.args else ""
        # The key of a value stands before "=", a switch's as well.
        text = re.sub(r"^--([a-z-]+)=", lambda match: f"{match[1].replace('-', '_')}=", text)
        error.args = (_KEY.sub(bare, python_text(text, call_of)),)
        raise error.with_traceback(None) from None
