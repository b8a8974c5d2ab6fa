"""The configuration of a study that exists, with overrides on top; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.catalog import OVERLAYS
from sweeper.commands.output import find_study
from sweeper.config import Tree, compose_tree, override_value, parse_overrides, read_tree
from sweeper.errors import BadInput
from sweeper.overrides import DEFAULT_ROOT, command_line, repeated
from sweeper.study import check_config_format, read_root

if TYPE_CHECKING:
    from sweeper.settings import Settings

_STUDY_KEYS = ("study", "study.name")


@dataclass(frozen=True, kw_only=True)
class Typed:
    """How a command's configuration was given, for the command that comes next.

    `of_study`: it is that of a study that exists, under whose optimum the command works.
    """

    words: Sequence[str] = ()
    config_dir: Path | None = None
    of_study: bool = False

    def again(self, verb: str, settings: Settings, *changes: str) -> str:
        """A command line of `verb` for the same configuration, with `changes`."""
        keys = tuple(f"{change.partition('=')[0]}=" for change in changes if "=" in change)
        kept = [word for word in self.words if not keys or not word.startswith(keys)]
        given = repeated([*kept, *changes], settings.root, self.config_dir)
        return command_line(verb, *given, study=settings.name if self.of_study else None)


def split_root(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The root folder that the overrides give (default runs), and the other overrides."""
    root, others = Path(DEFAULT_ROOT), []
    for word, override in zip(words, parse_overrides(words), strict=True):
        if override.key_or_group == "root":
            root = read_root(override_value("root", override.value()))
        else:
            others.append(word)
    return root, others


def study_tree(name: str | None, words: Sequence[str], config_dir: Path | None) -> Tree:
    """A study's settings with overrides on top; BadInput for what a study cannot change."""
    root, others = split_root(words)
    study = find_study(name, root)
    for override in parse_overrides(others):
        key = str(override.key_or_group)
        if key.split(".")[0] in ("parameterization", *OVERLAYS) or key in _STUDY_KEYS:
            raise BadInput(
                f"{key} cannot be changed for the study {study!r}: search anew with it, or choose "
                "another study with --study"
            )
    check_config_format(root / study)
    tree = read_tree(root / study / "config.yaml", others, config_dir) | {"root": str(root)}
    if isinstance(tree.get("study"), dict):
        tree["study"]["name"] = study
    return tree


def tree_of(study: str | None, words: Sequence[str], config_dir: Path | None) -> Tree:
    """The configuration of a study where one is named, else of the defaults and the overrides."""
    if study is None:
        return compose_tree(words, config_dir)
    return study_tree(study, words, config_dir)
