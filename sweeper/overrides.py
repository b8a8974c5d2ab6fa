"""How a command line names a study and the folder of all studies: --study, --root, or overrides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

from sweeper.errors import BadInput, ConfigError
from sweeper.own_command import quoted

DEFAULT_ROOT = "runs"
"""The folder of all studies where the command line names none."""
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_./][A-Za-z0-9_./-]*", re.IGNORECASE)
"""What Hydra takes for a text without quotes around it."""
_NAME = re.compile(r"^study(?:\.name)?=(?!\{)(.*)$", re.DOTALL)
_ROOT = re.compile(r"^root=(.*)$", re.DOTALL)


def with_place(words: Sequence[str], study: str | None, root: str | None) -> list[str]:
    """The overrides with --study and --root among them; BadInput where both name one otherwise."""
    _one("study", [study, *_values(_NAME, words)])
    _one("root", [root, *_values(_ROOT, words)])
    return [*words, *_override("study", study), *_override("root", root)]


def of_study(
    words: Sequence[str], study: str | None, root: str | None
) -> tuple[str | None, list[str]]:
    """The study that --study or study=NAME name, and the other overrides, --root among them."""
    name = _one("study", [study, *_values(_NAME, words)])
    return name, with_place([word for word in words if not _NAME.match(word)], None, root)


def place_of(words: Sequence[str], study: str | None, root: str | None) -> tuple[str | None, Path]:
    """The study and the folder of all, of verbs that take nothing else: NAME is one of `words`."""
    names = [word for word in words if not _ROOT.match(word)]
    name = _one("study", [study, *(name.removeprefix("study=") for name in names)])
    folder = _one("root", [root, *_values(_ROOT, words)])
    if folder == "":
        raise ConfigError("root", folder, "the path of a folder")
    return name, Path(expanduser(DEFAULT_ROOT if folder is None else folder))


def repeated(words: Sequence[str], root: Path, config_dir: Path | None) -> list[str]:
    """The words of a command that is to follow: `words`, and flags for the two folders."""
    kept = [word for word in words if not _ROOT.match(word)]
    kept += ["--root", str(root)] * (str(root) != DEFAULT_ROOT)
    return kept + ([] if config_dir is None else ["--config-dir", str(config_dir)])


def command_line(verb: str, *words: str, study: str | None = None) -> str:
    """A command line as it is typed, every word quoted where it must be."""
    return shlex.join(["sweeper", verb, *(() if study is None else ("--study", study)), *words])


def _override(key: str, value: str | None) -> list[str]:
    """`key=value` in Hydra's syntax; none without a value."""
    if value is None:
        return []
    return [f"{key}={value if _PLAIN.fullmatch(value) else quoted(value)}"]


def _values(pattern: re.Pattern[str], words: Sequence[str]) -> list[str]:
    """What overrides give, without the quotes around it."""
    found = (pattern.match(word) for word in words)
    return [re.sub(r"""^(['"])(.*)\1$""", r"\2", match[1]) for match in found if match]


def _one(what: str, given: Sequence[str | None]) -> str | None:
    """The one value that is given, if any; BadInput where there are several."""
    values = list(dict.fromkeys(value for value in given if value is not None))
    if len(values) > 1:
        raise BadInput(f"one {what} at a time, not {' and '.join(values)}")
    return values[0] if values else None
