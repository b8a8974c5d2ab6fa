"""Shell completion: of overrides, group by group and key by key, and of studies' names.

A shell waits at every Tab, so nothing heavy is imported here. `complete_override` is what a shell
asks: it takes all words that conf/ makes (`_words_of_conf`) and gives those that begin as typed.
The values that a key may have (`values_of`) are read off the source of its class: to import the
class may import torch, seconds; to parse its file takes milliseconds.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from sweeper.errors import BadInput
from sweeper.registry import OVERLAYS, TARGET, conf_folder, groups
from sweeper.study.folder import studies

PACKAGE = Path(__file__).resolve().parents[1]
VARIABLE = "_SWEEPER_COMPLETE"
"""Where the shell's script tells which shell it is."""
SECTIONS = {
    "study": "sweeper.config.settings.StudySettings",
    "train": "sweeper.trial.TrainSettings",
    "transfer": "sweeper.stats.ladder.LadderRule",
    "check": "sweeper.check.judge.CheckRule",
}
"""The classes of the sections that are no plugins."""


def complete_override(incomplete: str, config_dir: Path | None = None) -> list[str]:
    """Words that `incomplete` may become: `group=option`, or `key=` and `key=default`.

    A key has two words so that the shell stops at the "=", without a space behind it. Nothing
    typed yet gets the groups and sections alone.
    """
    with suppress(BadInput, OSError):
        cut, typed = _typed(incomplete)
        words = {
            word for word in _words_of_conf(config_dir) if word.startswith(typed) and word != cut
        }
        if not typed:
            # Up to the first dot or equals sign: `model.`, `search=`.
            words = {re.split(r"(?<=[.=])", word)[0] for word in words}
        return sorted(word.removeprefix(cut) for word in words)
    return []


def complete_study(incomplete: str, root: Path = Path("runs")) -> list[str]:
    """Names of studies in `root`."""
    return [name for name in studies(root) if name.startswith(incomplete)]


def _typed(incomplete: str) -> tuple[str, str]:
    """What the shell has cut off the override at hand, and the whole of it as typed so far.

    Bash breaks words at "=", and completes what follows it alone.
    """
    if "complete_bash" not in os.environ.get(VARIABLE, ""):
        return "", incomplete
    words = re.split(r"\n" if "\n" in os.environ["COMP_WORDS"] else r" +", os.environ["COMP_WORDS"])
    index = int(os.environ["COMP_CWORD"])
    # Behind a last blank there is no word yet.
    current = words[index] if index < len(words) else ""
    # COMP_WORDS has key, = and value as three words; COMP_CWORD is the one with the cursor.
    if current == "=":
        return f"{words[index - 1]}=", f"{words[index - 1]}="
    if index >= 2 and words[index - 1] == "=":
        return f"{words[index - 2]}=", f"{words[index - 2]}={current}"
    return "", incomplete


# The words: all overrides that conf/ makes, of the root, of every group and every option's keys.


def _words_of_conf(config_dir: Path | None) -> Iterator[str]:
    for group, options in groups(config_dir).items():
        yield from (f"{group}={option}" for option in options)
    yield from ("study=", *(f"study={name}" for name in complete_study("")))
    for folder in (conf_folder(), config_dir):
        if folder is not None:
            yield from _keys(_read(folder / "config.yaml"))
            for path in sorted(folder.glob("[!.]*/[!.]*.yaml")):
                if path.parent.name not in OVERLAYS:  # their keys are those of other groups
                    yield from _keys(_read(path), f"{path.parent.name}.")


def _keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Words for the keys of a config, bare and with a value: the default, and all where few are."""
    allowed = values_of(str(tree.get(TARGET) or SECTIONS.get(prefix.rstrip("."), "")))
    for name, value in tree.items():
        if name in ("defaults", TARGET):
            continue
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
            continue
        yield f"{prefix}{name}="
        yield from (f"{prefix}{name}={word}" for word in allowed.get(name, ()))
        if value != "???":  # OmegaConf's sign of a value that has to be given
            plain = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            yield f"{prefix}{name}={plain}"


def _read(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file; empty where there is none: completion complains of nothing."""
    import yaml  # type: ignore[import-untyped]

    with suppress(OSError, ValueError, yaml.YAMLError):
        content = yaml.safe_load(path.read_text())
        return content if isinstance(content, Mapping) else {}
    return {}


# The values of a key, from the annotation of the field that it stands for.


def values_of(target: str) -> dict[str, list[str]]:
    """Words for each field of sweeper's class at the dotted path `target` that takes few values.

    Of literals their words, of a bool true and false, null where None is taken. Fields of the
    classes that it inherits from are among them. Empty for a class that is not sweeper's.
    """
    module, _, name = target.rpartition(".")
    definition = _definition(module, name)
    if definition is None or not isinstance(definition[1], ast.ClassDef):
        return {}
    module, defined = definition[0], definition[1]
    fields: dict[str, list[str]] = {}
    for base in defined.bases:
        if isinstance(base, ast.Name) and (where := _definition(module, base.id)):
            fields |= values_of(f"{where[0]}.{base.id}")
    for line in defined.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            words = list(dict.fromkeys(_words(module, line.annotation)))
            if words and words != ["null"]:
                fields[line.target.id] = words
    return fields


def _words(module: str, annotation: ast.expr) -> Iterator[str]:
    """The values that an annotation in `module` names; none for numbers and texts."""
    match annotation:
        case ast.Constant(value=None):
            yield "null"
        case ast.Name(id="bool"):
            yield from ("true", "false")
        case ast.Name(id=name):  # an alias: what it stands for may lie in another module
            definition = _definition(module, name)
            if definition is not None and isinstance(definition[1], ast.Assign):
                yield from _words(definition[0], definition[1].value)
        # A union, `int | None`: the only operator in our annotations.
        case ast.BinOp(left=left, right=right):
            yield from _words(module, left)
            yield from _words(module, right)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
            yield from _words(module, inner)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            listed = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            yield from (str(item.value) for item in listed if isinstance(item, ast.Constant))


def _definition(module: str, name: str) -> tuple[str, ast.stmt] | None:
    """The statement that defines `name`, and its module: `module` or one that it imports from."""
    for line in _statements(module):
        match line:
            case ast.ClassDef(name=defined) if defined == name:
                return module, line
            case ast.Assign(targets=[ast.Name(id=defined)]) if defined == name:
                return module, line
            case ast.ImportFrom(module=source, names=names) if source:
                if any(name == (alias.asname or alias.name) for alias in names):
                    return _definition(source, name)
    return None


@cache
def _statements(module: str) -> list[ast.stmt]:
    """The statements of one of sweeper's modules; none of any other."""
    package, *parts = module.split(".")
    path = PACKAGE.joinpath(*parts)
    # A user's own class is not looked for: to find its file may run the package's code.
    if package != PACKAGE.name:
        return []
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8")).body
    return []
